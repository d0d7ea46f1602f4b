"""A search: plain data, a document for the terminal, and what reports show of search.json.

In a search.json that a report reads, parts may be missing (another version, another protocol) and
others unknown: what is missing is left out, what is unknown is shown as it is. Its prompts are
text of a model or of an unknown author: escape it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from nafaudit.core.finding import MIN_TRAJECTORIES, CheckWord, Kept
from nafaudit.core.text import as_number, counted, cut, name, plain, value_at, visible
from nafaudit.store.artifacts import (
    ComparisonFile,
    GateFile,
    IntervalFile,
    OverlapFile,
    ProposerFile,
    SearchFile,
    search_file,
)
from nafaudit.store.files import write_whole
from nafaudit.views.document import NONE, Column, Document, Section, Table, nats, percent

if TYPE_CHECKING:
    from nafaudit.search.confirm import SearchResult
    from nafaudit.search.search import Sweep

_SHOWN_ON_TERMINAL = 64
_SHOWN_IN_REPORT = 600
_OTHERS = 60
NEAR_0 = 10.0
"""A rho from which B_eff is the reason: one short answer leaves a budget far below the others'."""
_TONES = {"WITHIN": "good", "VIOLATED": "bad", "INCONCLUSIVE": "open"}
_SHOWN_AS_THEY_ARE = ("archive",)


# Plain data: --json and RUN/search.json.


def search_json(found: SearchResult) -> dict[str, Any]:
    """Returns everything that a search found; strict JSON, NaN and infinity as strings."""
    overlaps = found.overlaps
    confirmed = dict.fromkeys(one.candidate.id for one in (*found.finalists, *found.controls))
    # The paper's surrogate predicts a label, which has an AUC only.
    unknown = dict.fromkeys(("spearman", "disattenuated", "lower", "coverage"), "nan")
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
        "finalists": plain(found.finalists),
        "controls": plain(found.controls),
        "comparisons": plain(found.comparisons),
        "spread": {
            strategy: plain(
                {"maxima": maxima, "range": max(known) - min(known) if known else math.nan}
            )
            for strategy, maxima in found.spread.items()
            for known in ([value for value in maxima if not math.isnan(value)],)
        },
        "heldout": plain(found.heldout),
        "proposer": dict(found.proposer),
        "counterexamples": [str(path) for path in found.counterexamples],
        "others": plain(found.others),
        "named": plain(found.named),
        # Of everything drawn under the budget, and of the fresh draws of what was confirmed.
        "overlap": overlaps
        and {
            "passages": overlaps.passages,
            "everything": plain(overlaps.everything),
            "confirmed": {prompt: plain(overlaps.of(prompt)) for prompt in confirmed},
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
                    "prompts": one.judged,
                    "unsafe": one.unsafe,
                    "auc": as_number(one.auc),
                    **unknown,
                    "saturated": one.saturated,
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
    bundles = kept.get("counterexamples", ())
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
    return _BY_RHO if data.get("paper") else _BY_USE


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
        strategy: Name of the search or control.
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
    found = search_file(data)
    groups: dict[tuple[str, int], list[GenerationPoint]] = {}
    spent: dict[tuple[str, int], int] = {}
    for row in found.generations:
        if row.trajectories is None or row.generation is None:
            continue
        series = row.strategy, row.seed or 0
        spent[series] = spent.get(series, 0) + row.trajectories
        group = groups.setdefault(series, [])
        if math.isfinite(row.best):
            group.append(GenerationPoint(row.generation, spent[series], row.best))
    firsts = {
        (one.strategy, one.seed): one.use
        for one in (*found.finalists, *found.controls)
        if one.rank == 1
    }
    made = []
    for series, group in groups.items():
        use = firsts.get(series, IntervalFile())
        if group:
            made.append(Series(*series, tuple(group), use.mean, use.low, use.high))
    return made


# Tables, which page, Markdown and terminal share.


def points(value: float, unknown: str = NONE) -> str:
    """Writes a difference of shares, in percentage points."""
    if math.isnan(value):
        return unknown
    # Adding 0 after rounding leaves no minus sign before a zero.
    return f"{round(100 * value, 1) + 0.0:+.1f} points" if math.isfinite(value) else f"{value:+}"


def _limits(one: IntervalFile | ComparisonFile, write: Callable[[float], str] = percent) -> str:
    if math.isnan(one.low) or math.isnan(one.high):
        return NONE
    return " to ".join("no limit" if math.isinf(end) else write(end) for end in (one.low, one.high))


def _count(value: int | None) -> str:
    return NONE if value is None else str(value)


def _known(value: str) -> str:
    return name(value) if value else NONE


def _ratio(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else NONE


def _answer(value: str) -> str:
    return _ANSWERS.get(value, name(value))


_GENERATION = (
    Column("strategy", "strategy", "the search, or a control", name, words=True),
    Column("seed", "seed", "search seed"),
    Column("gen", "generation", "generation; 0 is the first pool"),
    Column("raw", "raw", "proposed"),
    Column("dedup", "dedup", "of them new"),
    Column("length", "length_ok", "of them of a fair length"),
    Column("screened", "screened", "of them given a trajectory"),
    Column("medium", "medium", "of them drawn again"),
    Column("survivors", "survivors", "of them kept after that"),
    Column("topped up", "topped_up", "survivors that were drawn a third time"),
    Column("trajectories", "trajectories", "drawn in this generation"),
)
_FINALIST = {
    column.head: column
    for column in (
        Column("strategy", "strategy", "search or control that found it", name, words=True),
        Column("made by", "operator", "operator", _known, words=True),
        Column("seed", "seed", "search seed"),
        Column("chosen at", "promised", "", percent),
        Column("n", "fresh", "fresh trajectories"),
        Column("use", "use.mean", "mean utilisation on fresh draws", percent),
        Column(
            "limits", "use", "anytime-valid, corrected for every prompt that was looked at", _limits
        ),
        Column("worst", "worst", "largest utilisation among the fresh ones", percent),
        Column("spend", "spend", "mean spend, in nats", nats),
        Column(
            "risky alone",
            "risky_alone",
            "mean spend of the risky model alone on the same draws, in nats",
            nats,
        ),
        Column("over", "violations", "fresh trajectories above their budget"),
        Column(
            "rate below", "rate_upper", "upper limit of their rate, likewise corrected", percent
        ),
    )
}
_COMPARISON = (
    Column(
        "control",
        "control",
        "the same trajectories, without feedback or without new prompts",
        _known,
        words=True,
    ),
    Column("answer", "answer", "", _answer, words=True),
    Column("search", "search.mean", "mean use of the search's first finalists", percent),
    Column("control's", "other.mean", "mean use of the control's", percent),
    Column("difference", "difference", "search minus control", points),
    Column(
        "limits",
        "",
        "of the difference; all comparisons together",
        lambda row: _limits(row, points),
    ),
)
_HELD_OUT = (
    Column(
        "pool",
        "kind",
        "prompts set apart before any search began",
        lambda kind: name(kind or "of the workload"),
        words=True,
    ),
    Column("prompts", "prompts"),
    Column("trajectories", "trajectories"),
    Column("use", "use.mean", "mean over prompts", percent),
    Column("limits", "use", "prompts as units", _limits),
    Column("highest", "highest", "of a prompt's mean", percent),
    Column("gap", "gap", "the finalists' mean use less this one", points),
)
_REPEATED = (
    Column("passage", "passage", "the one with the longest shared run", _known, words=True),
    Column("outputs", "trajectories", "that were compared"),
    Column("repeating", "repeating", "outputs with at least five words in a row of a passage"),
    Column("words", "words", "longest shared run; 0 stands for fewer than five"),
    Column("recall", "near_verbatim_recall", "largest near-verbatim recall of a passage", percent),
)
_GATE = (
    Column(
        "steers",
        "steers",
        "whether it chose what is screened",
        lambda steers: "yes" if steers else "no",
        words=True,
    ),
    Column("why not", "reasons", "", lambda reasons: name("; ".join(reasons) or NONE), words=True),
    Column("seed", "seed", "search seed"),
    Column("gen", "generation", "generation"),
    Column("prompts", "prompts", "it was judged on"),
    Column("AUC", "auc", "of the top decile, on prompts it never saw; at least 0.8", _ratio),
    Column(
        "rank corr.",
        "disattenuated",
        "over the root of the labels' reliability; at least 0.7",
        _ratio,
    ),
    Column("coverage", "coverage", "of its intervals; 85 to 95 %", _ratio),
)
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


def _tables(data: Mapping[str, Any]) -> list[Section]:
    """Returns the tables of a search.json that have rows, in the order to read them."""
    found, best, paper = search_file(data), ranking_of(data), bool(data.get("paper"))
    spreads = ", ".join(
        f"{name(strategy)} {points(one.range)}"
        for strategy, one in found.spread.items()
        if len(one.maxima) > 1
    )
    chosen_at = f"{'mean' if paper else 'shrunk mean'} utilisation on the draws it was chosen by"
    finalist = _FINALIST | {"chosen at": Column("chosen at", "promised", chosen_at, percent)}
    held = {"search.heldout": found.heldout} if found.heldout else {}
    overlap = found.overlap or OverlapFile()
    repeated = [("search.overlap.everything", "everything drawn", overlap.everything)]
    for prompt, copied in overlap.confirmed.items():
        place = f"search.overlap.confirmed[{json.dumps(name(prompt))}]"
        repeated.append((place, prompt, copied))
    outputs = Column(
        "outputs of", "", "all, or one confirmed prompt on fresh draws", name, words=True
    )
    copies = Table(
        (outputs, *_REPEATED),
        tuple((prompt, *(value_at(one, column.path) for column in _REPEATED))
              for _, prompt, one in repeated if one),
        tuple(place for place, _, one in repeated if one),
    )  # fmt: skip
    gates = found.surrogate.gates if found.surrogate else ()
    sections = [
        Section(
            "What was tried, by generation",
            _table((*_GENERATION, _best(best)), {"generations": found.generations}),
            best.note,
        ),
        Section(
            "Finalists on fresh draws",
            _table(
                tuple(finalist.values()),
                {"finalists": found.finalists, "controls": found.controls},
            ),
            "All but \u201cchosen at\u201d is on fresh draws, made after the choice. Limits are "
            f"corrected for all {_count(found.looked)} prompts that were looked at.",
        ),
        *paper_tables(data.get("paper") or {}),
        Section(
            "Did searching pay?",
            _table(_COMPARISON, {"comparisons": found.comparisons}),
            "First finalists of every search seed, on fresh draws. Spread of the best over search "
            f"seeds, largest less smallest: {spreads or 'not known of one seed'}.",
        ),
        Section(
            "Held out: what no search saw",
            Table.of(
                _HELD_OUT,
                (*held.values(), *found.others),
                (*held, *(f"search.others[{i}]" for i in range(len(found.others)))),
            ),
        ),
        Section(
            "Protected text repeated",
            copies,
            f"Compared with {_count(overlap.passages)} protected passages.",
        ),
        Section(
            "The surrogate" if paper else "The surrogate's gate",
            _table(_GATE, {"surrogate.gates": gates}),
            "The paper's protocol has no gate: its surrogate steers as soon as it can be fitted."
            if paper
            else "",
        ),
        _proposer(found.proposer),
        _rest(data),
    ]
    return [one for one in sections if one.table and one.table.rows]


def _decimal(value: Any, digits: int = 2) -> str:
    """Writes a number of the paper's part; as text it is one that JSON does not have."""
    return NONE if value is None or isinstance(value, str) else f"{value:.{digits}f}"


def rho_text(rho: float, budget: float | None = None) -> str:
    """Writes a ratio; a huge one says why it is huge.

    Args:
        rho: U_EBB / B_eff; NaN if there is none.
        budget: B_eff, to be named; None where it has a column of its own.
    """
    if math.isnan(rho):
        return "invalid"
    named = "" if budget is None else f" ({budget:.3g})"
    return f"{rho:.3f}" if rho < NEAR_0 else f"{rho:.3g}, small B_eff{named}"


def _pool_rho(row: Mapping[str, Any]) -> str:
    values = [float(row[key]) for key in ("rho", "B_eff") if row.get(key) is not None]
    return rho_text(*values) if len(values) == 2 else "invalid"


def _says(value: Any) -> str:
    return NONE if value is None else "yes" if value else "no"


_POOLS = {"final": "Final", "heldout": "Held-out", "stress": "Stress"}
B_EFF = "B_eff is the smallest budget among a prompt's answers, set by its shortest answer."
"""Why a rho may be above 1 although no answer is above its own budget."""

_POOL = (
    Column("prompt", "id", write=name, words=True),
    Column("N", "N", "trajectories, a seed that was used twice counted twice"),
    Column("mean", "mean_spend", "mean spend in nats", _decimal),
    Column("variance", "variance", "of the spends, divisor N - 1", _decimal),
    Column("R_eff", "R_eff", "range of the spends, at least 1", _decimal),
    Column("width", "width", "U_EBB less the mean", _decimal),
    Column("U_EBB", "U_EBB", "the paper's proxy of the mean spend", _decimal),
    Column("B_eff", "B_eff", "the smallest budget of its trajectories, at least 0", _decimal),
    Column("rho", "", "U_EBB / B_eff", _pool_rho),
    Column("valid", "invalid", "B_eff is above 0", lambda reason: _says(not reason)),
    Column("certified", "certified", "the paper's word for U_EBB <= B_eff", _says),
)
_PROGRESS = (
    Column("Gen.", "generation"),
    Column("Raw", "raw_candidates"),
    Column("Dedup", "after_dedup"),
    Column("Len. OK", "after_length"),
    Column("Screen", "screened"),
    Column("Med.", "med_fid"),
    Column("<0.9", "survivors_under_0.9K"),
    Column("Top-up", "topup_promoted"),
    Column("Best rho", "best_rho", write=partial(_decimal, digits=4)),
)
_FACTS = {
    "variant": "what is followed where the paper's text and code differ",
    "fix": "the paper's own remedies in use",
    "embedding": "embedding of prompts",
    "R": "R of the proxy, in nats",
    "second_k": "second budget of flagged prompts",
    "rounds": "rounds of validation",
    "gap.paper": "generalisation gap, an invalid held-out row as 0",
    "gap.valid": "generalisation gap over rows that have a rho",
    "report.max_rho_archive": "largest rho of the archive",
    "report.final_pass_rate": "share of the final pool that passed",
    "report.candidate_validity_rate_mean": "mean share of candidates that were promoted",
}


def paper_tables(paper: Mapping[str, Any]) -> list[Section]:
    """Returns the paper's own tables of its search: progress, pools, flagged prompts, defects.

    Args:
        paper: The part `paper` of search.json; empty for another search.
    """
    if not paper:
        return []

    def table(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], place: str) -> Table:
        cells = (tuple(row.get(c.path) if c.path else row for c in columns) for row in rows)
        return Table(tuple(columns), tuple(cells), tuple(f"search.paper.{place}[{i}]"
                                                         for i in range(len(rows))))  # fmt: skip

    log, pools = paper.get("generation_log", ()), paper.get("pools", {})
    found = [Section("The paper's search, by generation", table(_PROGRESS, log, "generation_log"))]
    note = (
        "rho = U_EBB / B_eff is the paper's proxy; much of it may be its width, so that it shows "
        "neither a violation nor safety."
    )
    found += [
        Section(f"{title} pool", table(_POOL, pools.get(pool, ()), f"pools.{pool}"), note)
        for pool, title in _POOLS.items()
    ]
    again = [
        {"pool": row["pool"], "id": row["id"]}
        | {f"{when}_{key}": row[when].get(key) for when in ("flagged", "same_k", "second_k")
           for key in ("N", "mean_spend", "U_EBB", "B_eff", "rho")}
        | {"over": row["same_k"].get("overspent", 0) + row["second_k"].get("overspent", 0)}
        for row in paper.get("rechecked", ())
    ]  # fmt: skip
    ratio = partial(_decimal, digits=3)
    columns = (
        Column("flagged in", "pool", words=True),
        Column("prompt", "id", write=name, words=True),
        Column("N", "flagged_N"),
        Column("mean", "flagged_mean_spend", write=_decimal),
        Column("U_EBB", "flagged_U_EBB", write=_decimal),
        Column("B_eff", "flagged_B_eff", write=_decimal),
        Column("rho", "flagged_rho", write=ratio),
        Column("fresh N", "same_k_N"),
        Column("rho, same k", "same_k_rho", write=ratio),
        Column("rho, second k", "second_k_rho", write=ratio),
        Column("over", "over", "trajectories above their budget"),
    )
    found.append(
        Section(
            "Flagged prompts, like for like: the same k, fresh draws",
            replace(table(columns, again, "rechecked"), places=()),
            "A rho above 1 that falls at the same k with more draws is an artefact of few draws. "
            + B_EFF,
        )
    )
    defects: dict[str, list[str]] = {}
    for one in paper.get("findings", ()):
        if one.get("verdict") == "SUSPECT":
            defects.setdefault(one["check"], []).append(one["text"])
    shown = tuple((check, texts[0], len(texts)) for check, texts in defects.items())
    words = (Column("defect", words=True), Column("first place", words=True, wraps=True))
    found.append(
        Section("Defects of the protocol that occurred", Table((*words, Column("places")), shown))
    )
    facts = ((text, value_at(paper, path)) for path, text in _FACTS.items() if _has(paper, path))
    said = tuple((text, v if isinstance(v, str) else f"{v:.4g}") for text, v in facts
                 if v not in (None, ""))  # fmt: skip
    found.append(
        Section(
            "The paper's search: settings and summary",
            Table((Column("what", words=True), Column("value", words=True)), said),
        )
    )
    return found


def _has(data: Mapping[str, Any], path: str) -> bool:
    head, _, rest = path.partition(".")
    return head in data and (not rest or _has(data[head], rest))


def _table(columns: Sequence[Column], parts: Mapping[str, Sequence[object]]) -> Table:
    """Returns a table of the rows of some lists of search.json, with their places there."""
    places = [f"search.{key}[{i}]" for key, rows in parts.items() for i in range(len(rows))]
    return Table.of(columns, (row for rows in parts.values() for row in rows), places)


def _best(best: Ranking) -> Column:
    write = percent if best.share else partial(_ratio, digits=3)
    return Column(best.head, "best", best.meaning, write)


def _proposer(said: ProposerFile) -> Section:
    """Returns what became of a model's answers; without rows if the local operators proposed."""
    counts: dict[str, tuple[str, int | None]] = {}
    if said.asked is not None:
        counts = {key: (label, getattr(said, key)) for key, label in _PROPOSER.items()}
        for key, n in said.outcomes.items():
            counts[f"outcomes.{key}"] = (f"attempts: {name(key)}", n)
    return Section(
        f"What became of the proposer's answers: {name(said.name)}",
        Table(
            (Column("", words=True), Column("count")),
            tuple(counts.values()),
            tuple(f"search.proposer.{key}" for key in counts),
        ),
        "Prompts that the model did not deliver were made by the local operators.",
    )


def _rest(data: Mapping[str, Any]) -> Section:
    """Returns what this version does not know by name, as it stands in the file."""
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
        if key not in SearchFile.__annotations__ or key in _SHOWN_AS_THEY_ARE:
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
        tone: Tone of the word.
        text: The outcome in a sentence.
        remarks: What was switched off and why, and what else must be said.
        ranking: What the search ranked prompts by.
        tables: In the order to read them.
        prompts: For each finalist a title, its descent and its own words, empty if left out.
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
    found = search_file(data)
    word, budget, looked = found.outcome, f"k = {found.k:g}", _count(found.looked)
    second, aside = found.second
    if word == "VIOLATED":
        also = f", or k = {second:.4g} on fresh draws of flagged prompts" if aside else ""
        said = (
            f"{_count(found.violating_prompts)} of the {looked} prompts looked at have a "
            f"trajectory above its budget ({budget}{also}). Nothing was dropped for being bad news."
        )
    elif word == "WITHIN":
        rates = [one.rate_upper for one in found.finalists if not math.isnan(one.rate_upper)]
        own = None if found.trajectories is None else found.trajectories - aside
        more = f", nor any of {aside} more of flagged prompts at k = {second:.4g}" if aside else ""
        said = (
            f"None of {_count(own)} trajectories exceeds its budget "
            f"({budget}), over {looked} prompts{more}; for each finalist the true rate is below "
            f"{percent(max(rates, default=math.nan))}. That says nothing of prompts that were not "
            "tried."
        )
    else:
        said = f"Nothing exceeds its budget ({budget}), but {found.lacking}."
    prompts = []
    for one in found.finalists:
        parents = ", ".join(map(name, one.parents))
        descent = f"{name(one.operator or 'seed')}, generation {_count(one.generation)}"
        descent += f", of {parents}" if parents else ""
        title = f"search seed {_count(one.seed)}, place {_count(one.rank)}"
        prompts.append((title, descent, cut(visible(one.text), _SHOWN_IN_REPORT)))
    return SearchView(
        word=name(word),
        tone=_TONES.get(word, "open"),
        text=said,
        remarks=tuple(
            visible(remark)
            for remark in (
                *_remarks(found),
                *(f"Defect of the protocol, {what}: {text}." for what, text in defects_of(data)),
            )
        ),
        ranking=ranking_of(data),
        tables=tuple(_tables(data)),
        prompts=tuple(prompts),
        bundles=tuple(map(visible, found.counterexamples)),
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


def _remarks(found: SearchFile) -> list[str]:
    """Returns what steered, what was filled in, which controls were not beaten, what is shown."""
    said, paper = found.surrogate, bool(found.paper)
    if said is None:
        remarks = ["No surrogate steered this search: prompts are ranked by what they spent."]
    elif not said.gates:
        kind = name(said.mode) if said.mode else "none"
        remarks = [f"No surrogate steered this search (surrogate: {kind})."]
    else:
        off = [gate for gate in said.gates if gate.steers is False]
        reasons = list(dict.fromkeys(reason for gate in off for reason in gate.reasons))
        why = f": {'; '.join(reasons[:6])}" if reasons else ""
        steered = len(said.gates) - len(off)
        untested = f"; {_tested(said.gates)}" if paper and steered else ""
        missing = f"; it was {'not ready' if paper else 'switched off'} in {len(off)}{why}"
        remarks = [
            f"The surrogate steered {steered} of {len(said.gates)} generations{untested}"
            f"{missing if off else ''}."
        ]
    proposer = found.proposer
    if proposer.filled:
        remarks.append(
            f"{proposer.filled} of {_count(proposer.asked)} prompts were made by the local "
            f"operators, because the proposer {name(proposer.name)} did not deliver them."
        )
    remarks += [
        f"Against the control {name(one.control)}: {_answer(one.answer)}."
        for one in found.comparisons
        if one.answer != "beats"
    ]
    if (named := found.named) is not None and not math.isnan(named.above):
        remarks.append(
            f"Of {_count(named.asked)} confirmed prompts {len(named.shared)} are shown to use more "
            f"than {percent(named.above)} of their budget, none of them wrongly but for "
            f"the level; {len(named.discovered)} if that share of wrong ones is allowed (e-BH)."
        )
    return remarks


def _tested(gates: Sequence[GateFile]) -> str:
    """Returns how the paper's surrogate did on prompts it never saw, where it steered."""
    steering = [gate for gate in gates if gate.steers]
    if not any(gate.prompts for gate in steering):
        return "its AUC on held-out rows was not measured"
    known = [gate.auc for gate in steering if not math.isnan(gate.auc)]
    auc = f"its lowest AUC on prompts it never saw is {min(known):.2f}" if known else ""
    if len(known) < len(steering):
        none = len(steering) - len(known)
        auc += f"{' and ' if auc else ''}it has no AUC in {none}, where these are of one class"
    stuck = sum(bool(gate.saturated) for gate in steering)
    return auc + (f"; it says nearly the same of every prompt in {stuck}" if stuck else "")


def defect_lines(findings: Iterable[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """Returns defects of the paper's protocol that occurred, each once: name, and what was found.

    Args:
        findings: Name, verdict and text of each.
    """
    places: dict[str, list[str]] = {}
    for check, verdict, text in findings:
        if verdict == CheckWord.SUSPECT:
            places.setdefault(check, []).append(text)
    found = []
    for check, texts in places.items():
        others = f" (and in {counted(len(texts) - 1, 'other place')})" if len(texts) > 1 else ""
        found.append((check, texts[0] + others))
    return found


def defects_of(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the defects that a search.json of the paper's protocol names; none of another."""
    found = (data.get("paper") or {}).get("findings") or ()
    rows = [(str(one.get("check")), str(one.get("verdict")), str(one.get("text"))) for one in found]
    return defect_lines(rows)


# On a terminal.


def search_document(found: SearchResult, plugin: str = "", *, redact: bool = False) -> Document:
    """Returns what a terminal shows: what was tried, what was confirmed, whether searching paid.

    Args:
        found: The search.
        plugin: What has to follow `nafaudit verify` for this mechanism.
        redact: Leave the text of prompts out.
    """
    data, settings, named = search_json(found), found.settings, found.named
    file = search_file(data)
    generations = [one for one in file.generations if one.strategy == "search"]
    columns = (*_GENERATION[1:-1], _best(ranking_of(data)))
    heads = ("strategy", "seed", "chosen at", "n", "use", "limits", "worst", "spend", "risky alone",
             "over")  # fmt: skip
    lines = []
    for one in found.finalists:
        said = " ".join(one.candidate.text.split())
        said = said if len(said) <= _SHOWN_ON_TERMINAL else said[: _SHOWN_ON_TERMINAL - 3] + "..."
        made = f"{one.candidate.operator}, generation {one.candidate.generation}"
        lines.append(f"finalist, seed {one.seed}: {made}" + ("" if redact else f"\n  {said!r}"))
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
    lines.append(
        f"trajectories explored: {', '.join(f'{strategy} {n}' for strategy, n in used.items())}"
    )
    for row in found.comparisons:
        answer = {
            "beats": f"the search beats {row.control}",
            "loses": f"the search LOSES to {row.control}",
            "not told apart": f"not shown that the search beats {row.control}",
        }[row.answer]
        ends = [points(end, "unknown") for end in (row.difference, row.low, row.high)]
        lines.append(f"{answer}:\n  {ends[0]} (limits {ends[1]} to {ends[2]})")
    maxima = "; ".join(
        f"{strategy} {', '.join(percent(value) for value in values)}"
        for strategy, values in found.spread.items()
    )
    lines.append(f"best of each search seed, confirmed:\n  {maxima}")
    more = len(named.discovered) - len(named.shared)
    lines.append(
        f"shown to use above {percent(named.above)} on average: {len(named.shared)} of "
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
        limits = _limits(IntervalFile(held.use.mean, held.use.low, held.use.high))
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
    lines.append(f"search directory: {found.path}")
    return Document(
        "nafaudit search",
        (
            Section(table=Table.of(columns, generations)),
            Section(
                table=Table.of(
                    [_FINALIST[head] for head in heads], (*file.finalists, *file.controls)
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


def verdict_lines(
    found: SearchResult,
    plugin: str = "",
    more: str = "--fresh",
    second: tuple[float, int] = (math.nan, 0),
) -> list[str]:
    """Returns the three-valued answer, and what it rests on.

    Args:
        found: The search.
        plugin: What has to follow `nafaudit verify` for this mechanism.
        more: Option that gives a finalist more fresh trajectories.
        second: Another budget at which some of the trajectories were drawn, and their number.
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
    other, aside = second
    return [
        f"{budget}: WITHIN: 0 of {found.trajectories - aside} trajectories exceed their budget"
        + (f" (and 0 of {aside} at k = {other:.4g})" if aside else "")
        + f"; for each finalist the true rate is below {percent(rate)}"
    ]


def sweep_document(sweep: Sweep) -> Document:
    """Returns one line per budget: does searching pay there?"""

    def best(strategy: str) -> Callable[[SearchResult], str]:
        return lambda one: percent(sum(one.spread[strategy]) / len(one.spread[strategy]))

    def lead(strategy: str) -> Callable[[SearchResult], str]:
        def write(one: SearchResult) -> str:
            row = next(row for row in one.comparisons if row.control == strategy)
            mark = " " if row.answer == "not told apart" else "*"
            return NONE if math.isnan(row.difference) else f"{100 * row.difference:+.1f}{mark}"

        return write

    strategies = tuple(sweep.found[0].spread)
    columns = (
        Column("k", write=lambda one: f"{one.settings.budget:g}", words=True),
        *(Column(strategy, write=best(strategy)) for strategy in strategies),
        Column("held out", "heldout.use.mean", write=percent),
        *(Column(f"over {strategy}", write=lead(strategy)) for strategy in strategies[1:]),
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
