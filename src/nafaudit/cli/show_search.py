"""A search on a terminal: what was tried, what was confirmed, and whether searching paid."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from nafaudit.cli.numbers import nats, percent
from nafaudit.core.finding import MIN_TRAJECTORIES, Kept
from nafaudit.mechanisms.cards import verified_with
from nafaudit.search.confirm import Comparison, Finalist, HeldOut, Interval
from nafaudit.search.explore import STRATEGIES, Explored
from nafaudit.search.found import Found
from nafaudit.search.search import Sweep, best_of

EXIT = {Kept.WITHIN: 0, Kept.VIOLATED: 1, Kept.INCONCLUSIVE: 3}
_SHOWN = 64


def search_text(found: Found) -> str:
    """The whole answer, at most 80 columns wide."""
    return _printed([_generations(found.searches), "", _finalists(found), "", *_lines(found)])


def plain_table(words: Sequence[str], numbers: Sequence[str]) -> Table:
    """A table without lines: words to the left, numbers to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in words:
        table.add_column(column, no_wrap=True)
    for column in numbers:
        table.add_column(column, no_wrap=True, justify="right")
    return table


def _generations(explored: Sequence[Explored]) -> Table:
    """Counts like the paper's tables; `best` is not confirmed."""
    columns = ("raw", "dedup", "length", "screened", "medium", "survivors", "topped up", "best")
    table = plain_table(("seed", "gen"), columns)
    for one in explored:
        for row in one.generations:
            counts = (row.raw, row.dedup, row.length_ok, row.screened, row.medium)
            late = (row.survivors, row.topped_up)
            cells = [str(count) for count in (*counts, *late)]
            table.add_row(str(one.seed), str(row.generation), *cells, percent(row.best))
    return table


def _finalists(found: Found) -> Table:
    """Finalists of the search, then the controls', all on fresh draws."""
    numbers = ("chosen at", "n", "use", "95 % limits", "worst", "spend", "risky", "over")
    table = plain_table(("who", "seed"), numbers)
    for one in (*found.finalists, *found.controls):
        table.add_row(
            one.strategy,
            str(one.seed),
            percent(one.promised),
            str(one.fresh),
            percent(one.use.mean),
            _limits(one.use),
            percent(one.worst),
            nats(one.spend),
            nats(one.risky),
            str(one.violations),
        )
    return table


def _limits(found: Interval) -> str:
    return f"{percent(found.low)} - {percent(found.high)}" if found.known else "-"


def _lines(found: Found) -> list[str]:
    settings = found.settings
    lines = [
        "best: shrunk mean utilisation on the draws that prompts were chosen by; chosen\n"
        "at: the same of a finalist; all else is on fresh draws. Limits are anytime-valid\n"
        f"and corrected for all {found.looked} prompts looked at. spend, risky: mean nats, and\n"
        "of the risky model alone; over: trajectories above their budget",
        *(f"finalist, seed {one.seed}: {_shown(one)}" for one in found.finalists),
        *_proposer(found),
        _trajectories(found),
        *(_comparison(one) for one in found.comparisons),
        _spread(found),
        *_named(found),
        *_copied(found),
        "held out, mean use of prompts that no search saw, and the finalists' lead:",
        *(_heldout(one) for one in (found.heldout, *found.others)),
    ]
    if found.pools.dropped:
        lines.append(
            f"left out: {found.pools.dropped} prompts of the workload, copies or not of "
            f"{settings.shortest} to {settings.longest} tokens"
        )
    return [
        *lines,
        *verdict_lines(found),
        f"search directory: {found.path}\nits page: nafaudit report {found.path}",
    ]


def _heldout(held: HeldOut) -> str:
    return (
        f"  {held.kind}: {held.prompts} prompts use {percent(held.use.mean)} "
        f"({_limits(held.use)}), lead {points(held.gap)}"
    )


def _named(found: Found) -> list[str]:
    """Two corrections over everything looked at; the second is said where it names more."""
    named, share = found.named, percent(found.named.above)
    lines = [
        f"above {share} of the budget on average: {len(named.shared)} of {named.asked} confirmed "
        "prompts,\n"
        f"  level {named.delta:g} shared by all {named.looked} looked at"
    ]
    more = len(named.discovered) - len(named.shared)
    if more > 0:
        lines[0] += f"; e-BH names {more} more, of\n  all it names {named.delta:.0%} may be wrong"
    return lines


def _copied(found: Found) -> list[str]:
    if found.overlaps is None:
        return []
    every = found.overlaps.everything
    mine = [found.overlaps.by_prompt.get(one.candidate.id) for one in found.finalists]
    words = max((one.words for one in mine if one is not None), default=0)
    return [
        f"protected text: {every.repeating} of {every.trajectories} outputs repeat 5 words or more "
        f"of one of\n{found.overlaps.passages} passages, at most {every.words} in a row; finalists "
        f"at most {words}"
    ]


def _shown(one: Finalist) -> str:
    text = " ".join(one.candidate.text.split())
    cut = text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
    return f"{one.candidate.operator}, generation {one.candidate.generation}\n  {cut!r}"


def _proposer(found: Found) -> list[str]:
    """What became of a model's answers; nothing for the local operators, which give none."""
    said = found.proposer
    if "asked" not in said:
        return []
    bad = [f"{count} {name}" for name, count in said["outcomes"].items() if count]
    return [
        f"proposer {said['name']}: {said['by_model']} of {said['asked']} prompts by the model, "
        f"{said['filled']}\nfilled by the local operators; {said['attempts']} attempts at "
        f"{said['calls']} calls: {', '.join(bad) or 'none'}"
    ]


def _trajectories(found: Found) -> str:
    """Controls are fair only at equal trajectories, so these are said."""
    used = {
        who: sum(one.trajectories for one in found.explored if one.strategy == who)
        for who in STRATEGIES
    }
    return "trajectories explored: " + ", ".join(f"{who} {n}" for who, n in used.items())


def _comparison(one: Comparison) -> str:
    words = {
        "beats": f"the search beats {one.control}",
        "loses": f"the search LOSES to {one.control}",
        "not told apart": f"not shown that the search beats {one.control}",
    }[one.answer]
    limits = f"{points(one.low)} to {points(one.high)}"
    return f"{words}:\n  {points(one.difference)} (limits {limits})"


def points(value: float) -> str:
    """A difference of shares, in percentage points."""
    if math.isnan(value):
        return "unknown"
    # Adding 0 after rounding leaves no minus sign before a zero.
    return f"{round(100 * value, 1) + 0.0:+.1f} points" if math.isfinite(value) else f"{value:+}"


def _spread(found: Found) -> str:
    parts = [
        f"{who} {', '.join(percent(value) for value in found.maxima(who))}" for who in STRATEGIES
    ]
    return "best of each search seed, confirmed:\n  " + "; ".join(parts)


def verdict_lines(found: Found, more: str = "--fresh") -> list[str]:
    """The three-valued answer, and what it rests on.

    Args:
        found: The search.
        more: Option that gives a finalist more fresh trajectories.
    """
    name = f"budget k = {found.settings.budget:g}"
    if found.outcome == Kept.VIOLATED:
        lines = [
            f"{name}: VIOLATED: {found.violating} of {found.looked} prompts looked at have a "
            "trajectory\nabove its budget"
        ]
        plugin = verified_with(found.settings.mechanism)
        return lines + [
            f"counterexample: nafaudit verify {path}{plugin}" for path in found.counterexamples
        ]
    if found.outcome == Kept.INCONCLUSIVE and not found.finalists:
        return [
            f"{name}: INCONCLUSIVE: nothing exceeds its budget, but no prompt reached\n"
            "the end of the search; start from more prompts, or search another --k"
        ]
    if found.outcome == Kept.INCONCLUSIVE:
        return [
            f"{name}: INCONCLUSIVE: nothing exceeds its budget, but a finalist needs\n"
            f"{MIN_TRAJECTORIES} fresh trajectories; raise {more}"
        ]
    rate = max(one.rate for one in found.finalists)
    return [
        f"{name}: WITHIN: 0 of {found.trajectories} trajectories exceed their budget; "
        f"for each\nfinalist the true rate is below {percent(rate)}"
    ]


def sweep_text(sweep: Sweep) -> str:
    """One line per budget: does searching pay there?"""
    table = plain_table(("k",), (*STRATEGIES, "held out", "over random", "over seeds", "kept?"))
    for one in sweep.found:
        against = {row.control: row for row in one.comparisons}
        table.add_row(
            f"{one.settings.budget:g}",
            *(percent(best_of(one, who)) for who in STRATEGIES),
            percent(one.heldout.use.mean),
            *(_lead(against[who].difference, against[who].answer) for who in STRATEGIES[1:]),
            str(one.outcome),
        )
    return _printed(
        [
            table,
            "",
            "confirmed mean use of the first finalists; points over each control, * where the\n"
            f"limits exclude 0; level {sweep.delta:g} shared by {len(sweep.found)} budgets",
            *(f"k = {one.settings.budget:g}: {one.path}" for one in sweep.found),
        ]
    )


def _lead(difference: float, answer: str) -> str:
    mark = " " if answer == "not told apart" else "*"
    return "-" if math.isnan(difference) else f"{100 * difference:+.1f}{mark}"


def _printed(lines: list[str | Table]) -> str:
    console = Console(width=80, highlight=False, color_system=None)
    with console.capture() as captured:
        for line in lines:
            console.print(line, markup=False) if isinstance(line, str) else console.print(line)
    return captured.get().rstrip()
