"""A search: plain data, a document for the terminal, and what reports show of search.json.

In a search.json that a report reads, parts may be missing (another version, another protocol) and
others unknown: what is missing is left out, what is unknown is shown as it is. Its prompts are a
model's or a stranger's text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from nafaudit.core.finding import MIN_TRAJECTORIES, Kept
from nafaudit.core.text import cut, name, plain, visible
from nafaudit.store.files import write_whole
from nafaudit.views.document import NONE, Column, Document, Section, Table, nats, percent

if TYPE_CHECKING:
    from nafaudit.search.confirm import Copied, Finalist, SearchResult
    from nafaudit.search.search import Sweep

EXIT = {Kept.WITHIN: 0, Kept.VIOLATED: 1, Kept.INCONCLUSIVE: 3}
_SHOWN_ON_TERMINAL = 64
_SHOWN_IN_REPORT = 600
_OTHERS = 60
_TONES = {"WITHIN": "good", "VIOLATED": "bad", "INCONCLUSIVE": "open"}
_KNOWN = (
    "run", "outcome", "k", "delta", "looked", "trajectories", "violating_prompts", "generations",
    "finalists", "controls", "comparisons", "spread", "heldout", "others", "counterexamples",
    "proposer", "surrogate", "overlap", "named",
)  # fmt: skip


# Plain data: --json and RUN/search.json.


def search_json(found: SearchResult) -> dict[str, Any]:
    """Returns everything that a search found; strict JSON, NaN and infinity as strings."""
    overlaps, named = found.overlaps, found.named
    confirmed = dict.fromkeys(one.candidate.id for one in (*found.finalists, *found.controls))
    # The paper's surrogate is not tested before it chooses.
    unknown = dict.fromkeys(("auc", "spearman", "disattenuated", "lower", "coverage"), "nan")
    return {
        "run": str(found.path),
        "outcome": str(found.outcome),
        "k": found.settings.budget,
        "delta": found.settings.delta,
        "looked": found.looked,
        "trajectories": found.trajectories,
        "violating_prompts": found.violating,
        "generations": [
            {"strategy": one.strategy, "seed": one.seed} | plain(row)
            for one in found.explored
            for row in one.generations
        ],
        "finalists": [_finalist_json(one) for one in found.finalists],
        "controls": [_finalist_json(one) for one in found.controls],
        "comparisons": [
            plain(
                {
                    "control": one.control,
                    "answer": one.answer,
                    "difference": one.difference,
                    "low": one.low,
                    "high": one.high,
                    "search": one.search,
                    "other": one.other,
                }
            )
            for one in found.comparisons
        ],
        "spread": {
            who: plain({"maxima": maxima, "range": max(known) - min(known) if known else math.nan})
            for who, maxima in found.spread.items()
            for known in ([value for value in maxima if not math.isnan(value)],)
        },
        "heldout": plain(found.heldout),
        "proposer": dict(found.proposer),
        "counterexamples": [str(path) for path in found.counterexamples],
        "others": plain(found.others),
        "named": {
            "above": named.above,
            "asked": named.asked,
            "looked": named.looked,
            "shared": list(named.shared),
            "discovered": list(named.discovered),
        },
        # Of everything drawn under the budget, and of the fresh draws of what was confirmed.
        "overlap": overlaps
        and {
            "passages": overlaps.passages,
            "everything": _copied_json(overlaps.everything),
            "confirmed": {prompt: _copied_json(overlaps.of(prompt)) for prompt in confirmed},
        },
        "archive": found.settings.archive,
        "surrogate": {
            "mode": found.settings.surrogate,
            "embedding": found.embedding,
            "taught_by": 0,
            "gates": [
                {
                    "seed": seed,
                    "generation": one.generation,
                    "steers": one.steers,
                    "offered": one.offered,
                    "kept": one.kept,
                    "prompts": 0,
                    **unknown,
                    "reasons": list(one.reasons),
                }
                for seed, one in found.steered
            ],
        },
    }


def write_result(found: SearchResult) -> Path:
    """Writes RUN/search.json; the same records give the same bytes."""
    path = found.path / "search.json"
    write_whole(path, json.dumps(search_json(found), indent=2).encode() + b"\n")
    return path


def _finalist_json(one: Finalist) -> dict[str, Any]:
    keys = ("id", "text", "label", "generation", "operator", "lineage", "parents")
    found: dict[str, Any] = plain(
        {"strategy": one.strategy, "seed": one.seed, "rank": one.rank}
        | {key: getattr(one.candidate, key) for key in keys}
        | {
            "promised": one.promised,
            "draws": one.draws,
            "fresh": one.fresh,
            "unspent": one.unspent,
            "use": one.use,
            "worst": one.worst,
            "violations": one.violations,
            "rate_upper": one.rate,
            "spend": one.spend,
            "risky_alone": one.risky,
            "e_above": one.evidence,
        }
    )
    return found


def _copied_json(one: Copied) -> dict[str, Any]:
    return {
        "trajectories": one.trajectories,
        "repeating": one.repeating,
        "words": one.words,
        "passage": one.passage,
        "where": plain(one.key),
        "near_verbatim_recall": one.recall,
    }


# Parts of a search.json, each as what it should be, or as nothing.


def number(data: Mapping[str, Any], path: str) -> float:
    """Returns the number at a path such as `use.mean`; NaN if it is missing or something else."""
    *parents, key = path.split(".")
    for parent in parents:
        data = part(data, parent)
    value = data.get(key)
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known else math.nan  # type: ignore[arg-type]


def text(data: Mapping[str, Any], key: str) -> str:
    """Returns a text; empty if it is missing or something else."""
    value = data.get(key)
    return value if isinstance(value, str) else ""


def part(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Returns an object; empty if it is missing or something else."""
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def rows(data: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Returns a list of objects, each at its own place; what is something else is empty."""
    value = data.get(key)
    found = value if isinstance(value, list) else []
    return [one if isinstance(one, dict) else {} for one in found]


def texts(data: Mapping[str, Any], key: str) -> list[str]:
    """Returns a list of texts, without what else stands in it."""
    value = data.get(key)
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def by_paper(data: Mapping[str, Any]) -> bool:
    """Whether it is the paper's protocol: rho ranks prompts, and no gate tests a surrogate."""
    return bool(part(data, "paper"))


def reported_search(data: Mapping[str, Any], *, redact: bool) -> dict[str, Any]:
    """Returns a search for report.json, without where it was made.

    Args:
        data: The content of search.json.
        redact: True leaves out the prompts' texts.
    """

    def without_text(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without_text(one) for key, one in value.items() if key != "text"}
        return [without_text(one) for one in value] if isinstance(value, list) else value

    kept = {key: value for key, value in data.items() if key != "run"}
    bundles = texts(kept, "counterexamples")
    kept["counterexamples"] = [f"counterexamples/{PurePath(path).name}" for path in bundles]
    return without_text(kept) if redact else kept


# How it went: the best against what it had cost, for each strategy and seed.


@dataclass(frozen=True)
class Ranking:
    """What a search ranks prompts by, in the words of its figure and table.

    Attributes:
        share: True if it is a share of a budget, shown in percent.
        axis: The best one, for an axis.
        head: The best one, for the head of a column.
        meaning: What exactly it is.
        note: What to know when reading it.
    """

    share: bool
    axis: str
    head: str
    meaning: str
    note: str


_BY_USE = Ranking(
    True,
    "best utilisation so far",
    "best",
    "largest shrunk mean utilisation so far, on the draws that prompts are chosen by",
    "best flatters: it is on the draws that prompts were chosen by.",
)
_BY_RHO = Ranking(
    False,
    "best rho in the archive",
    "best rho",
    "largest rho = U_EBB / B_eff in the archive, on the draws that prompts are chosen by",
    "rho = U_EBB / B_eff is the paper's proxy, not a share of a budget that was spent; a prompt "
    "with a rho above 1, or with none, is never archived.",
)


def ranking_of(data: Mapping[str, Any]) -> Ranking:
    """Returns what `best` of a generation is."""
    return _BY_RHO if by_paper(data) else _BY_USE


@dataclass(frozen=True)
class GenerationPoint:
    """After one generation: its number, trajectories spent so far, best of what it ranks by."""

    generation: int
    spent: int
    best: float


@dataclass(frozen=True)
class Series:
    """One search, or one control.

    Attributes:
        strategy: Which.
        seed: Search seed.
        points: After every generation whose best is known.
        confirmed: Use of its first finalist on fresh draws; NaN if there is none.
        low: Lower limit of that.
        high: Upper limit.
    """

    strategy: str
    seed: int
    points: tuple[GenerationPoint, ...]
    confirmed: float = math.nan
    low: float = math.nan
    high: float = math.nan


def progress_of(data: Mapping[str, Any]) -> list[Series]:
    """Returns one series per strategy and seed, in the order of the file."""
    groups: dict[tuple[str, int], list[GenerationPoint]] = {}
    spent: dict[tuple[str, int], int] = {}
    for row in rows(data, "generations"):
        cost, seed = number(row, "trajectories"), number(row, "seed")
        generation, best = number(row, "generation"), number(row, "best")
        if not all(math.isfinite(value) for value in (cost, generation)):
            continue
        who = text(row, "strategy") or "search", int(seed) if math.isfinite(seed) else 0
        spent[who] = spent.get(who, 0) + int(cost)
        group = groups.setdefault(who, [])
        if math.isfinite(best):
            group.append(GenerationPoint(int(generation), spent[who], best))
    firsts = {
        (text(row, "strategy"), number(row, "seed")): part(row, "use")
        for row in (*rows(data, "finalists"), *rows(data, "controls"))
        if number(row, "rank") == 1
    }
    made = []
    for (strategy, seed), group in groups.items():
        use = firsts.get((strategy, float(seed)), {})
        ends = (number(use, end) for end in ("mean", "low", "high"))
        if group:
            made.append(Series(strategy, seed, tuple(group), *ends))
    return made


# Tables, which page, Markdown and terminal share.


def count(value: float) -> str:
    """Writes a whole number."""
    return f"{value:.0f}" if math.isfinite(value) else NONE


def points(value: float, unknown: str = NONE) -> str:
    """Writes a difference of shares, in percentage points."""
    if math.isnan(value):
        return unknown
    # Adding 0 after rounding leaves no minus sign before a zero.
    return f"{round(100 * value, 1) + 0.0:+.1f} points" if math.isfinite(value) else f"{value:+}"


def _limits(data: Mapping[str, Any], write: Callable[[float], str] = percent) -> str:
    ends = number(data, "low"), number(data, "high")
    if any(math.isnan(end) for end in ends):
        return NONE
    return " to ".join("no limit" if math.isinf(end) else write(end) for end in ends)


def _number(
    head: str, path: str, meaning: str = "", write: Callable[[float], str] = count
) -> Column:
    """A column of numbers, whose rows may lack them."""
    return Column(head, path, meaning, lambda row: write(number(row, path)))


def _word(head: str, key: str, meaning: str = "", unknown: str = NONE) -> Column:
    return Column(
        head, key, meaning, lambda row: name(text(row, key)) if text(row, key) else unknown, True
    )


def _table(columns: Sequence[Column], found: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """A table in which a column writes what it finds in a row; with the rows' places."""
    return Table(
        tuple(columns),
        tuple((row,) * len(columns) for _, row in found),
        tuple(place for place, _ in found),
    )


_GENERATION = (
    _word("who", "strategy", "the search, or a control", "search"),
    _number("seed", "seed", "search seed"),
    _number("gen", "generation", "generation; 0 is the first pool"),
    _number("raw", "raw", "proposed"),
    _number("dedup", "dedup", "of them new"),
    _number("length", "length_ok", "of them of a fair length"),
    _number("screened", "screened", "of them given a trajectory"),
    _number("medium", "medium", "of them drawn again"),
    _number("survivors", "survivors", "of them kept after that"),
    _number("topped up", "topped_up", "survivors that were drawn a third time"),
    _number("trajectories", "trajectories", "drawn in this generation"),
)
_FINALIST = {
    column.head: column
    for column in (
        _word("who", "strategy", "who found it", "search"),
        _word("made by", "operator", "operator"),
        _number("seed", "seed", "search seed"),
        _number("chosen at", "promised", "", percent),
        _number("n", "fresh", "fresh trajectories"),
        _number("use", "use.mean", "mean utilisation on fresh draws", percent),
        Column(
            "limits",
            "use",
            "anytime-valid, corrected for every prompt that was looked at",
            lambda row: _limits(part(row, "use")),
        ),
        _number("worst", "worst", "largest utilisation among the fresh ones", percent),
        _number("spend", "spend", "mean spend, in nats", nats),
        _number(
            "risky alone",
            "risky_alone",
            "mean spend of the risky model alone on the same draws, in nats",
            nats,
        ),
        _number("over", "violations", "fresh trajectories above their budget"),
        _number(
            "rate below", "rate_upper", "upper limit of their rate, likewise corrected", percent
        ),
    )
}
_COMPARISON = (
    _word("control", "control", "the same trajectories, without feedback or without new prompts"),
    Column("answer", "answer", "", lambda row: _answer(row), True),
    _number("search", "search.mean", "mean use of the search's first finalists", percent),
    _number("control's", "other.mean", "mean use of the control's", percent),
    _number("difference", "difference", "search minus control", points),
    Column(
        "limits", "low", "of the difference; all comparisons together",
        lambda row: _limits(row, points),
    ),
)  # fmt: skip
_HELD_OUT = (
    _word("pool", "kind", "prompts set apart before any search began", "of the workload"),
    _number("prompts", "prompts"),
    _number("trajectories", "trajectories"),
    _number("use", "use.mean", "mean over prompts", percent),
    Column("limits", "use", "prompts as units", lambda row: _limits(part(row, "use"))),
    _number("highest", "highest", "of a prompt's mean", percent),
    _number("gap", "gap", "the finalists' mean use less this one", points),
)
_REPEATED = (
    _word("outputs of", "who", "all, or one confirmed prompt on fresh draws"),
    _word("passage", "passage", "the one with the longest shared run"),
    _number("outputs", "trajectories", "that were compared"),
    _number("repeating", "repeating", "outputs with at least five words in a row of a passage"),
    _number("words", "words", "longest shared run; 0 stands for fewer than five"),
    _number("recall", "near_verbatim_recall", "largest near-verbatim recall of a passage", percent),
)
_GATE = (
    Column("steers", "steers", "whether it chose what is screened",
           lambda row: {"True": "yes", "False": "no"}.get(repr(row.get("steers")), NONE), True),
    Column("why not", "reasons", "",
           lambda row: name("; ".join(texts(row, "reasons")) or NONE), True),
    _number("seed", "seed", "search seed"),
    _number("gen", "generation", "generation"),
    _number("prompts", "prompts", "it was judged on"),
    *(
        _number(head, key, meaning, lambda value: f"{value:.2f}" if math.isfinite(value) else NONE)
        for head, key, meaning in (
            ("AUC", "auc", "of the top decile, on prompts it never saw; at least 0.8"),
            ("rank corr.", "disattenuated",
             "over the root of the labels' reliability; at least 0.7"),
            ("coverage", "coverage", "of its intervals; 85 to 95 %"),
        )
    ),
)  # fmt: skip
_PROPOSER = {
    "asked": "prompts wanted",
    "by_model": "written by the model",
    "filled": "filled by the local operators",
    "calls": "calls",
    "attempts": "attempts, failures included",
    "unfit": "entries that could not be used",
}
_ANSWERS = {
    "beats": "the search beats it",
    "loses": "the search loses to it",
    "not told apart": "not shown that the search beats it",
}


def _answer(row: Mapping[str, Any]) -> str:
    answer = text(row, "answer")
    return _ANSWERS.get(answer, name(answer))


def _placed(data: Mapping[str, Any], *keys: str) -> list[tuple[str, dict[str, Any]]]:
    return [(f"search.{key}[{i}]", row) for key in keys for i, row in enumerate(rows(data, key))]


def _tables(data: Mapping[str, Any]) -> list[Section]:
    """Every table of a search.json, in the order to read them; without those that are empty."""
    best, paper = ranking_of(data), by_paper(data)
    looked = count(number(data, "looked"))
    spreads = ", ".join(
        f"{name(who)} {points(number(part(data, 'spread'), f'{who}.range'))}"
        for who in part(data, "spread")
    )
    chosen_at = f"{'mean' if paper else 'shrunk mean'} utilisation on the draws it was chosen by"
    finalist = _FINALIST | {"chosen at": _number("chosen at", "promised", chosen_at, percent)}
    held = [("search.heldout", part(data, "heldout")), *_placed(data, "others")]
    overlap = part(data, "overlap")
    repeated = [("search.overlap.everything", "everything drawn", part(overlap, "everything"))]
    for prompt in (confirmed := part(overlap, "confirmed")):
        place = f"search.overlap.confirmed[{json.dumps(name(prompt))}]"
        repeated.append((place, prompt, part(confirmed, prompt)))
    sections = [
        Section(
            "What was tried, by generation",
            _table((*_GENERATION, _best(best)), _placed(data, "generations")),
            best.note,
        ),
        Section(
            "Finalists on fresh draws",
            _table(tuple(finalist.values()), _placed(data, "finalists", "controls")),
            "All but \u201cchosen at\u201d is on fresh draws, made after the choice. Limits are "
            f"corrected for all {looked} prompts that were looked at.",
        ),
        Section(
            "Did searching pay?",
            _table(_COMPARISON, _placed(data, "comparisons")),
            "First finalists of every search seed, on fresh draws. Spread of the best over search "
            f"seeds, largest less smallest: {spreads or NONE}.",
        ),
        Section(
            "Held out: what no search saw", _table(_HELD_OUT, [one for one in held if one[1]])
        ),
        Section(
            "Protected text repeated",
            _table(_REPEATED, [(place, row | {"who": who}) for place, who, row in repeated if row]),
            f"Compared with {count(number(overlap, 'passages'))} protected passages.",
        ),
        Section(
            "The surrogate" if paper else "The surrogate's gate",
            _table(_GATE, [(f"search.surrogate.{place[7:]}", row)
                           for place, row in _placed(part(data, "surrogate"), "gates")]),
            "The paper's protocol has no gate: its surrogate steers as soon as it can be fitted."
            if paper
            else "",
        ),
        _proposer(data),
        _rest(data),
    ]  # fmt: skip
    return [one for one in sections if one.table and one.table.rows]


def _best(best: Ranking) -> Column:
    def ratio(value: float) -> str:
        return f"{value:.3f}" if math.isfinite(value) else NONE

    return _number(best.head, "best", best.meaning, percent if best.share else ratio)


def _proposer(data: Mapping[str, Any]) -> Section:
    """What became of a model's answers; without rows if the local operators proposed."""
    said = part(data, "proposer")
    found = [(label, key) for key, label in _PROPOSER.items() if "asked" in said]
    outcomes = part(said, "outcomes") if found else {}
    found += [(f"attempts: {name(key)}", f"outcomes.{key}") for key in outcomes]
    columns = (Column("", words=True), Column("count"))
    return Section(
        f"What became of the proposer's answers: {name(text(said, 'name'))}",
        Table(
            columns,
            tuple(
                (label, count(number(outcomes, key[9:]) if "." in key else number(said, key)))
                for label, key in found
            ),
            tuple(f"search.proposer.{key}" for _, key in found),
        ),
        "Prompts that the model did not deliver were made by the local operators.",
    )


def _rest(data: Mapping[str, Any]) -> Section:
    """What this version does not know by name, as it stands in the file."""
    flat: list[tuple[str, str]] = []

    def scalar(value: Any) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, float):
            return f"{value:.4g}"
        return "none" if value is None else str(value)

    def flatten(key: str, value: Any) -> None:
        if isinstance(value, dict) and value:
            for inner, one in value.items():
                flatten(f"{key}.{inner}", one)
        elif isinstance(value, list) and value and isinstance(value[0], dict | list):
            for index, one in enumerate(value):
                flatten(f"{key}[{index}]", one)
        elif isinstance(value, list):
            flat.append((key, ", ".join(map(scalar, value)) or "none"))
        else:
            flat.append((key, scalar(value)))

    for key, value in data.items():
        if key not in _KNOWN:
            flatten(key, value)
    cut_off = len(flat) > _OTHERS
    return Section(
        "Also recorded",
        Table(
            (Column("what", words=True), Column("value", words=True)),
            tuple((name(key), name(value)) for key, value in flat[:_OTHERS]),
            tuple(f"search.{key}" for key, _ in flat[:_OTHERS]),
        ),
        f"The first {_OTHERS} of {len(flat)}; report.json has all." if cut_off else "",
    )


@dataclass(frozen=True)
class SearchView:
    """A search.json, ready to be shown in a report.

    Attributes:
        word: The outcome.
        tone: Of the word.
        text: The outcome in a sentence.
        remarks: What was switched off and why, and what else must be said.
        ranking: What the search ranked prompts by.
        tables: In the order to read them.
        prompts: Of each finalist a title, its descent and its own words, empty if left out.
        bundles: Counterexamples, as directories within the run.
    """

    word: str
    tone: str
    text: str
    remarks: tuple[str, ...]
    ranking: Ranking
    tables: tuple[Section, ...]
    prompts: tuple[tuple[str, str, str], ...]
    bundles: tuple[str, ...]


def search_view(data: Mapping[str, Any]) -> SearchView:
    """Returns everything that a report shows of a search, with or without texts."""
    word = text(data, "outcome")
    budget, looked = f"k = {number(data, 'k'):g}", count(number(data, "looked"))
    if word == "VIOLATED":
        said = (
            f"{count(number(data, 'violating_prompts'))} of the {looked} prompts looked at have an "
            f"execution above its budget ({budget}). Nothing was dropped for being bad news."
        )
    elif word == "WITHIN":
        rates = [number(row, "rate_upper") for row in rows(data, "finalists")]
        rate = max((rate for rate in rates if not math.isnan(rate)), default=math.nan)
        said = (
            f"None of {count(number(data, 'trajectories'))} executions exceeds its budget "
            f"({budget}), over {looked} prompts; for each finalist the true rate is below "
            f"{percent(rate)}. That says nothing of prompts that were not tried."
        )
    else:
        said = (
            f"Nothing exceeds its budget ({budget}), but too little was drawn afresh to say more."
        )
    prompts = []
    for row in filter(None, rows(data, "finalists")):
        parents = ", ".join(name(one) for one in texts(row, "parents"))
        descent = f"{name(text(row, 'operator') or 'seed')}, generation "
        descent += count(number(row, "generation")) + (f", of {parents}" if parents else "")
        title = f"search seed {count(number(row, 'seed'))}, place {count(number(row, 'rank'))}"
        prompts.append((title, descent, cut(visible(text(row, "text")), _SHOWN_IN_REPORT)))
    return SearchView(
        word=name(word),
        tone=_TONES.get(word, "open"),
        text=said,
        remarks=tuple(visible(remark) for remark in _remarks(data)),
        ranking=ranking_of(data),
        tables=tuple(_tables(data)),
        prompts=tuple(prompts),
        bundles=tuple(visible(path) for path in texts(data, "counterexamples")),
    )


def search_sections(data: Mapping[str, Any]) -> list[Section]:
    """Returns the sections of report.md on a search."""
    view = search_view(data)
    bundles = (f"counterexample: nafaudit verify {path}" for path in view.bundles)
    lines = (f"{view.word}: {view.text}", *view.remarks, *bundles)
    prompts = tuple(
        (f"{title}, {descent}", f"\u201c{words}\u201d" if words else "The text is hidden.")
        for title, descent, words in view.prompts
    )
    tables = (replace(table, inner=True) for table in view.tables)
    last = [Section("The finalists", pairs=prompts, inner=True)] if prompts else []
    return [Section("Search", lines=lines), *tables, *last]


def _remarks(data: Mapping[str, Any]) -> list[str]:
    """Whether something steered, who filled in, which controls were not beaten, what is shown."""
    said, paper = part(data, "surrogate"), by_paper(data)
    asked, mode = rows(said, "gates"), text(said, "mode")
    off = [row for row in asked if row.get("steers") is False]
    if not said:
        remarks = ["No surrogate steered this search: prompts are ranked by what they spent."]
    elif not asked:
        kind = name(mode) if mode else "none"
        remarks = [f"No surrogate steered this search (surrogate: {kind})."]
    else:
        reasons = list(dict.fromkeys(reason for row in off for reason in texts(row, "reasons")))
        why = f": {'; '.join(reasons[:6])}" if reasons else ""
        steered = len(asked) - len(off)
        untested = "; its AUC on held-out rows was not measured" if paper and steered else ""
        missing = f"; it was {'not ready' if paper else 'switched off'} in {len(off)}{why}"
        remarks = [
            f"The surrogate steered {steered} of {len(asked)} generations{untested}"
            f"{missing if off else ''}."
        ]
    proposer = part(data, "proposer")
    if number(proposer, "filled") > 0:
        filled, wanted = (count(number(proposer, key)) for key in ("filled", "asked"))
        remarks.append(
            f"{filled} of {wanted} prompts were made by the local operators, because the "
            f"proposer {name(text(proposer, 'name'))} did not deliver them."
        )
    remarks += [
        f"Against the control {name(text(row, 'control'))}: {_answer(row)}."
        for row in rows(data, "comparisons")
        if text(row, "answer") != "beats"
    ]
    if "above" in (named := part(data, "named")):
        sure, likely = (len(texts(named, key)) for key in ("shared", "discovered"))
        remarks.append(
            f"Of {count(number(named, 'asked'))} confirmed prompts {sure} are shown to use more "
            f"than {percent(number(named, 'above'))} of their budget, none of them wrongly but for "
            f"the level; {likely} if that share of wrong ones is allowed (e-BH)."
        )
    return remarks


# On a terminal.


def search_document(found: SearchResult, plugin: str = "") -> Document:
    """Returns what a terminal shows: what was tried, what was confirmed, whether searching paid.

    Args:
        found: The search.
        plugin: What has to follow `nafaudit verify` for this mechanism.
    """
    data, settings, named = search_json(found), found.settings, found.named
    best = ranking_of(data)
    generations = [one for one in _placed(data, "generations") if one[1]["strategy"] == "search"]
    columns = (*_GENERATION[1:-1], _best(best))
    heads = ("who", "seed", "chosen at", "n", "use", "limits", "worst", "spend", "risky alone",
             "over")  # fmt: skip
    lines = []
    for one in found.finalists:
        said = " ".join(one.candidate.text.split())
        said = said if len(said) <= _SHOWN_ON_TERMINAL else said[: _SHOWN_ON_TERMINAL - 3] + "..."
        made = f"{one.candidate.operator}, generation {one.candidate.generation}"
        lines.append(f"finalist, seed {one.seed}: {made}\n  {said!r}")
    if "asked" in (asked := found.proposer):
        outcomes = [f"{n} {outcome}" for outcome, n in asked["outcomes"].items() if n]
        lines.append(
            f"proposer {asked['name']}: {asked['by_model']} of {asked['asked']} prompts by the "
            f"model, {asked['filled']} filled by the local operators; {asked['attempts']} attempts "
            f"at {asked['calls']} calls: {', '.join(outcomes) or 'none'}"
        )
    # Controls are fair only at equal trajectories, so these are said.
    used = dict.fromkeys(found.spread, 0)
    for explored in found.explored:
        used[explored.strategy] += explored.trajectories
    lines.append(f"trajectories explored: {', '.join(f'{who} {n}' for who, n in used.items())}")
    for row in found.comparisons:
        answer = {
            "beats": f"the search beats {row.control}",
            "loses": f"the search LOSES to {row.control}",
            "not told apart": f"not shown that the search beats {row.control}",
        }[row.answer]
        ends = [points(end, "unknown") for end in (row.difference, row.low, row.high)]
        lines.append(f"{answer}:\n  {ends[0]} (limits {ends[1]} to {ends[2]})")
    maxima = "; ".join(
        f"{who} {', '.join(percent(value) for value in values)}"
        for who, values in found.spread.items()
    )
    lines.append(f"best of each search seed, confirmed:\n  {maxima}")
    more = len(named.discovered) - len(named.shared)
    lines.append(
        f"above {percent(named.above)} of the budget on average: {len(named.shared)} of "
        f"{named.asked} confirmed prompts, level {named.delta:g} shared by all {named.looked} "
        "looked at"
        + (f"; e-BH names {more} more, of all it names {named.delta:.0%} may be wrong"
           if more > 0 else "")
    )  # fmt: skip
    if found.overlaps is not None:
        every = found.overlaps.everything
        words = max(
            (found.overlaps.of(one.candidate.id).words for one in found.finalists), default=0
        )
        lines.append(
            f"protected text: {every.repeating} of {every.trajectories} outputs repeat 5 words or "
            f"more of one of {found.overlaps.passages} passages, at most {every.words} in a row; "
            f"finalists at most {words}"
        )
    lines.append("held out, mean use of prompts that no search saw, and the finalists' lead:")
    for held in (found.heldout, *found.others):
        limits = _limits({"low": held.use.low, "high": held.use.high})
        lines.append(
            f"  {held.kind}: {held.prompts} prompts use {percent(held.use.mean)} ({limits}), lead "
            f"{points(held.gap, 'unknown')}"
        )
    if found.pools.dropped:
        lines.append(
            f"left out: {found.pools.dropped} prompts of the workload, copies or not of "
            f"{settings.shortest} to {settings.longest} tokens"
        )
    lines += verdict_lines(found, plugin)
    lines += [f"search directory: {found.path}", f"its page: nafaudit report {found.path}"]
    return Document(
        "nafaudit search",
        (
            Section(table=_table(columns, generations)),
            Section(
                table=_table(
                    [_FINALIST[head] for head in heads], _placed(data, "finalists", "controls")
                ),
                note="best: shrunk mean utilisation on the draws that prompts were chosen by; "
                "chosen at: the same of a finalist; all else is on fresh draws. Limits are "
                f"anytime-valid and corrected for all {found.looked} prompts looked at. spend, "
                "risky alone: mean nats, and of the risky model alone; over: trajectories above "
                "their budget",
            ),
            Section(lines=tuple(lines)),
        ),
    )


def verdict_lines(found: SearchResult, plugin: str = "", more: str = "--fresh") -> list[str]:
    """Returns the three-valued answer, and what it rests on.

    Args:
        found: The search.
        plugin: What has to follow `nafaudit verify` for this mechanism.
        more: Option that gives a finalist more fresh trajectories.
    """
    budget = f"budget k = {found.settings.budget:g}"
    if found.outcome == Kept.VIOLATED:
        return [
            f"{budget}: VIOLATED: {found.violating} of {found.looked} prompts looked at have a "
            "trajectory above its budget",
            *(f"counterexample: nafaudit verify {path}{plugin}" for path in found.counterexamples),
        ]
    if found.outcome == Kept.INCONCLUSIVE:
        why = (
            f"a finalist needs {MIN_TRAJECTORIES} fresh trajectories; raise {more}"
            if found.finalists
            else "no prompt reached the end of the search; start from more prompts, or search "
            "another --k"
        )
        return [f"{budget}: INCONCLUSIVE: nothing exceeds its budget, but {why}"]
    rate = max(one.rate for one in found.finalists)
    return [
        f"{budget}: WITHIN: 0 of {found.trajectories} trajectories exceed their budget; for each "
        f"finalist the true rate is below {percent(rate)}"
    ]


def sweep_document(sweep: Sweep) -> Document:
    """Returns one line per budget: does searching pay there?"""

    def best(who: str) -> Callable[[SearchResult], str]:
        return lambda one: percent(sum(one.spread[who]) / len(one.spread[who]))

    def lead(who: str) -> Callable[[SearchResult], str]:
        def write(one: SearchResult) -> str:
            row = next(row for row in one.comparisons if row.control == who)
            mark = " " if row.answer == "not told apart" else "*"
            return NONE if math.isnan(row.difference) else f"{100 * row.difference:+.1f}{mark}"

        return write

    strategies = tuple(sweep.found[0].spread)
    columns = (
        Column("k", write=lambda one: f"{one.settings.budget:g}", words=True),
        *(Column(who, write=best(who)) for who in strategies),
        Column("held out", "heldout.use.mean", write=percent),
        *(Column(f"over {who}", write=lead(who)) for who in strategies[1:]),
        Column("kept?", "outcome"),
    )
    return Document(
        "nafaudit search",
        (
            Section(
                table=Table.of(columns, sweep.found),
                note="confirmed mean use of the first finalists; points over each control, * where "
                f"the limits exclude 0; level {sweep.delta:g} shared by {len(sweep.found)} budgets",
            ),
            Section(lines=tuple(f"k = {one.settings.budget:g}: {one.path}" for one in sweep.found)),
        ),
    )
