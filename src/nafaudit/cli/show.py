"""Verdicts on a terminal or as JSON, and the exit status that goes with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from nafaudit.cli.echo import echo
from nafaudit.cli.numbers import nats, percent
from nafaudit.cli.show_classes import print_classes
from nafaudit.core.errors import InputError
from nafaudit.core.finding import Answer, Finding
from nafaudit.core.ledger import budget_name
from nafaudit.core.text import cut, visible
from nafaudit.core.text import name as shown
from nafaudit.measures.audit import AuditResult, result_json
from nafaudit.measures.verdicts import ArmVerdict
from nafaudit.views.terminal import drawn

# A log that keeps only totals leaves most checks unknown; then their names have to do.
_MOST_REASONS = 3
# Characters of a mechanism's name that the tables have room for.
_MECHANISM = 24


def latest_run(directory: Path = Path("runs")) -> Path:
    """The run that was written last."""
    return latest_runs(1, directory)[0]


def latest_runs(count: int, directory: Path = Path("runs")) -> list[Path]:
    """The runs that were written last, the latest at the end."""
    # A name with a dot in front is what a killed import left.
    runs = sorted(directory.glob("[!.]*/design.json"), key=lambda path: path.stat().st_mtime)
    if not runs:
        raise InputError(f"no run under {directory}/ yet; make one with: nafaudit run")
    if len(runs) < count:
        raise InputError(f"need {count} runs under {directory}/, there is {len(runs)}; name them.")
    return [path.parent for path in runs[-count:]]


def show(
    result: AuditResult,
    *,
    as_json: bool,
    source: str | None = None,
    page: Path | None = None,
) -> int:
    """Prints the result of a run; returns the exit status.

    Args:
        result: What came out.
        as_json: Print for machines.
        source: What the user named, if that is not the run directory.
        page: The report, if one was written.
    """
    name = source or str(result.run.path)
    if as_json:
        more = {"report": str(page)} if page else {}
        echo(json.dumps(result_json(result, name) | more, indent=2))
    else:
        text = drawn(lambda console: print_result(console, result, name))
        echo(text + (f"\nreport: {page}" if page else ""))
    return result.overall.exit_status


def print_result(console: Console, result: AuditResult, name: str) -> None:
    """Prints the table, its legend and what is not fine."""
    run, arms = result.run, result.arms
    several = len({arm.mechanism for arm in arms}) > 1

    def arm_name(arm: ArmVerdict) -> str:
        budget = budget_name(arm.k)
        return f"{cut(shown(arm.mechanism), _MECHANISM)} {budget}" if several else budget

    console.print(_verdict_table(arms, arm_name))
    console.print(
        "worth: of how many protected passages the word is true; a budget says nothing\n"
        "about a passage if K = kT reaches the safe model's surprisal of it\n"
    )
    console.print(_number_table(arms, arm_name))
    console.print(
        "n: trajectories; spend: mean nats; use, worst: mean and largest spend as a share\n"
        "of the own budget; forced, active, free: steps that served the safe model, a\n"
        "mixture, the risky model; recall: share of the reference that came back nearly\n"
        "word for word"
    )
    print_classes(console, result.classes, budget_name)
    recorded = len(result.rows)
    if result.gaps is not None:
        console.print(visible(f"incomplete: {result.gaps.text}"))
    elif recorded < run.asked:
        console.print(f"incomplete: {recorded} of {run.asked} trajectories are recorded")
    for arm in arms:
        finding = arm.finding("invariant")
        if not arm.baseline:
            console.print(visible(f"{arm_name(arm)}: {finding.text}{_where(finding)}"))
    for line in _remarks(arms):
        console.print(visible(line))
    console.print(f"charges are against {visible(run.design['anchor'])}")
    console.print(f"{_kind(name)}: {visible(name)}")


def _verdict_table(arms: Sequence[ArmVerdict], name: Callable[[ArmVerdict], str]) -> Table:
    """The three answers for every budget."""
    table = _table(("budget", "kept?", "tested?", "worth?"), ())
    for arm in arms:
        worth = f"{arm.worth} ({arm.passages.share})" if arm.passages.share else arm.worth
        words = (arm.kept, arm.tested, worth) if not arm.baseline else ("-", "-", "-")
        table.add_row(name(arm), *words)
    return table


def _number_table(arms: Sequence[ArmVerdict], name: Callable[[ArmVerdict], str]) -> Table:
    """What the first two answers rest on, and what came back."""
    numbers = ("n", "spend", "use", "worst", "forced", "active", "free", "recall")
    table = _table(("budget",), numbers)
    for arm in arms:
        regime, use = arm.regime, arm.utilisation
        judged = not arm.baseline
        table.add_row(
            name(arm),
            str(arm.trajectories),
            nats(arm.spend.mean),
            percent(use.mean) if judged else "-",
            percent(use.max) if judged else "-",
            *(percent(share) for share in (regime.forced, regime.active, regime.free)),
            percent(arm.recall.mean),
        )
    return table


def _table(words: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in words:
        table.add_column(column, no_wrap=True)
    for column in numbers:
        table.add_column(column, no_wrap=True, justify="right")
    return table


def _kind(name: str) -> str:
    return "run directory" if Path(name).is_dir() else "read from"


def _remarks(arms: Sequence[ArmVerdict]) -> list[str]:
    """A line for every finding that is not fine; what is unknown for one reason is said once."""
    suspect: list[str] = []
    unknown: dict[tuple[str, str], list[str]] = {}
    for arm in arms:
        name = budget_name(arm.k)
        for finding in arm.findings:
            if finding.verdict in (Answer.SUSPECT, Answer.FAILED):
                suspect.append(f"{name}: {finding.check} {finding.verdict}: {finding.text}")
                suspect[-1] += _where(finding)
            elif finding.verdict == Answer.UNKNOWN and not arm.baseline:
                unknown.setdefault((finding.check, finding.text), []).append(name)
    if len(unknown) > _MOST_REASONS:
        checks = ", ".join(dict.fromkeys(check for check, _ in unknown))
        return [*suspect, f"UNKNOWN for lack of records: {checks}; --json says what each lacks"]
    return suspect + [
        f"{', '.join(names)}: {check} UNKNOWN: {text}" for (check, text), names in unknown.items()
    ]


def _where(finding: Finding) -> str:
    if finding.witness is None:
        return ""
    key = finding.witness.key
    return f" (prompt {key.prompt!r}, trajectory {key.trajectory}, step {finding.witness.step})"
