"""Input and output of the readers of logs: options, notes, entries, claims and totals."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.errors import InputError
from nafaudit.core.finding import foreign_tolerance
from nafaudit.core.ledger import LEDGERS, Ledger, as_budget, half_digit
from nafaudit.core.options import Group, option
from nafaudit.core.promise import check_ledger
from nafaudit.core.settings import GateSettings, promise_option
from nafaudit.core.trajectory import LOGGED_FIELDS, STEP_TYPES, Logged, Steps, Trajectory
from nafaudit.store.importers.fields import identifier, number, text

UNKNOWN_LEDGER = "unknown"
SCHEMA_NAMES = ("trajectories", "history", "heldout", "queries", "items", "table")
"""Known forms of logs, in the order in which they are tried (`importer.py: SCHEMAS`)."""
SCORES = ("rouge_l", "minhash_5gram")
"""Overlap with the reference, as the paper's logs name it."""
# Names of columns that no budget has.
_NO_BUDGET = ("step", "t", "i", "index", "position", "token", "seed", "time", "timestamp", "model")
# Most fields that a report names as not kept.
_MOST_NAMES = 200
_K_IN_NAME = re.compile(r"(?:^|[_-])k(-?\d+(?:\.\d+)?|inf)(?=[_.-]|$)")
_NUMBER_IN_NAME = re.compile(r"_(-?\d+(?:\.\d+)?)(?=_|$)")


@dataclass(frozen=True, kw_only=True)
class ImportOptions(Group):
    """Facts about a log that the user states where the log does not."""

    schema: str | None = option(
        None, f"{', '.join(SCHEMA_NAMES[:-1])} or {SCHEMA_NAMES[-1]}.", unset="by content",
        common=True,
    )  # fmt: skip
    mechanism: str | None = option(
        None, "What the log was decoded with.", unset="as it says", common=True
    )
    k: float | None = option(None, "Budget of records that have none.", common=True)
    max_new_tokens: int = option(
        0, "T of records that have none; 0: unknown.", least=0, common=True
    )
    stops: tuple[int, ...] = option(
        (), "Id of a token that ends a row; repeatable.", name="stop", metavar="<int>",
        form="whole numbers",
    )  # fmt: skip
    columns: Mapping[str, str] = option(
        {}, "A table's column, as spend=total_kl.", name="column", metavar="OURS=THEIRS",
        split=False, form="OURS=THEIRS, for example spend=total_kl", common=True,
    )  # fmt: skip
    ledger: str | None = option(
        None,
        "Rule behind the budgets: banking (k T), or unknown to use the log's own.",
        unset="by schema",
        common=True,
    )
    promise: str | None = promise_option(
        None, "What it is held to: banked, k-naf or anchored.", unset="banked, where k T is known"
    )
    vocabulary_size: int = option(
        0, "Tokens of the vocabulary, for the paper's R = T ln|V|; 0: unknown."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocabulary_size < 0 or self.vocabulary_size == 1:
            raise InputError(
                "vocabulary-size must be at least 2, or 0 if it is not known, got "
                f"{self.vocabulary_size}."
            )
        if self.ledger is not None and self.ledger not in (*LEDGERS, UNKNOWN_LEDGER):
            known = ", ".join(LEDGERS)
            raise InputError(f"ledger must be one of {known}, unknown; got {self.ledger!r}.")
        if self.ledger is not None:
            check_ledger(self.promise, self.ledger)
        named = identifier(self.mechanism, "--mechanism", "command line") or None
        object.__setattr__(self, "mechanism", named)
        if self.k is not None:
            object.__setattr__(self, "k", as_budget(self.k))

    @property
    def given(self) -> bool:
        """True if the user stated anything about a log."""
        return any(getattr(self, one.name) != one.default for one in fields(ImportOptions)
                   if one.name != "columns") or bool(self.columns)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ImportSettings(ImportOptions):
    """Everything that `nafaudit import` takes."""

    logs: tuple[Path, ...] = option(..., "Log files; .gz is read too.", argument=True)
    out: Path = option(..., "Run directory to write.", common=True)


@dataclass(frozen=True, kw_only=True)
class CheckSettings(GateSettings, ImportOptions):
    """Everything that `nafaudit check` takes."""

    run: tuple[Path, ...] = option(
        (), "Run directory, or logs; the latest run if left out.", argument=True,
        metavar="[RUN|LOG...]",
    )  # fmt: skip


# What each kind of note means. Nothing is dropped or reinterpreted without one of these.
KINDS = {
    "byte-order-mark": "file starts with a byte order mark; skipped",
    "non-strict": "NaN or Infinity, which strict JSON does not have; read as such",
    "k-minus-one": "k = -1; read as the risky model alone (k = inf)",
    "k-not-a-number": "k is a word; read as the mechanism's name, with k = K / T if both are "
    "known and no budget (inf) otherwise",
    "k-from-file-name": "record without k; read off the file's name",
    "k-inferred": "record without k; read off the growth of budget_so_far",
    "k-given": "record without k; as given on the command line",
    "no-id": "record without an id; named after its file and place",
    "other-rule": "log names a rule that is not the paper's bank; budgets are judged as logged",
    "empty-steps": "record with totals but no steps",
    "missing": "field missing or null; unknown (NaN), not 0",
    "pad-tail": "step after the row's end, by its account: nothing granted although budget was "
    "left; cut",
    "pad-tail-likely": "step after the row's end, by its look: one token again and again, "
    "certain and free; cut",
    "after-stop": "step after a stop token; cut",
    "too-long": "trajectory longer than its T_max",
    "prompt-echo": "generation starts with the tail of its own prompt",
    "percent": "utilisation in percent; compared with spend / budget as such",
    "utilisation-differs": "utilisation is neither spend / budget nor that in percent",
    "batch-budget": "final budget is not the one at the row's own length but a longer one's; kept "
    "as a claim",
    "recomputed-differs": "a_t_recomputed differs from a_t; a_t is kept",
    "debt-differs": "two fields give different debts; the first is kept",
    "debt-derived": "debt as k T - final budget",
    "debt-negative": "negative debt, which raises the budget above k T; a spend between the two is "
    "judged only by --ledger banking (k T) or --ledger unknown (the log's budget)",
    "budget-above-kT": "final budget above what k and T grant; a spend between the two is judged "
    "only by --ledger banking (k T) or --ledger unknown (the log's budget)",
    "spend-differs": "another column that could be the spend says otherwise; the one that was "
    "named is kept, else the larger, as either judges alike",
    "totals-differ": "two totals give different spends; the larger is kept, and neither if only "
    "one of them is within the budget",
    "repeated": "trajectory number used twice for one prompt and budget; renumbered",
    "duplicate-spend": "spend equal to another trajectory's of the prompt and budget",
    "duplicate-seed": "seed equal to another trajectory's of the prompt and budget",
    "duplicate-text": "text equal to another trajectory's of the prompt and budget",
    "prompt-differs": "prompt id with two texts or classes; the first is kept",
    "length-limits": "record with another T_max than the first; T is unknown for the run",
    "claims-differ": "totals of an export that do not follow from its own steps; kept as claims",
}


@dataclass
class Note:
    """A count of one kind of note, and its first place."""

    count: int = 0
    first: str = ""


@dataclass
class ImportNotes:
    """Notes of an import: what it noticed, dropped or read in another way than written."""

    notes: dict[tuple[str, str], Note] = field(default_factory=dict)
    not_kept: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, where: str, detail: str = "", count: int = 1) -> None:
        """Counts an event of a kind; `detail` separates events of one kind (a field's name)."""
        if not count:
            return
        if kind not in KINDS:
            raise ValueError(f"unknown kind of note {kind!r}.")
        note = self.notes.setdefault((kind, detail), Note(first=where))
        note.count += count

    def count(self, kind: str) -> int:
        """Counts the notes of a kind."""
        return sum(note.count for (name, _), note in self.notes.items() if name == kind)

    def to_json(self) -> dict[str, Any]:
        """Returns the notes and the names of fields that were not kept as plain data."""
        notes = []
        for (kind, detail), note in sorted(self.notes.items()):
            text = f"{detail}: {KINDS[kind]}" if detail else KINDS[kind]
            notes.append({"kind": kind, "count": note.count, "first": note.first, "text": text})
        return {"notes": notes, "not_kept": dict(sorted(self.not_kept.items()))}


def describe(report: dict[str, Any]) -> list[str]:
    """Returns the lines of a report for people."""
    lines = [
        f"{note['count']} x {note['kind']}: {note['text']} (first: {note['first']})"
        for note in report["notes"]
    ]
    if report["not_kept"]:
        line = "not kept: " + ", ".join(report["not_kept"])
        could_be = [name for name in report["not_kept"] if name.lower() not in _NO_BUDGET]
        if could_be and any(
            (note["kind"], note["text"][:7]) == ("missing", "budget:") for note in report["notes"]
        ):
            line += "; if one of them is the budget: " + " or ".join(
                f"--column budget={shlex.quote(name)}" for name in could_be[:3]
            )
        lines.append(line)
    return lines


@dataclass(frozen=True)
class Context:
    """The file, options and notes that a reader has besides the record."""

    path: Path
    options: ImportOptions
    notes: ImportNotes

    @property
    def stem(self) -> str:
        """The file's name without its endings."""
        name = self.path.name
        for ending in (".gz", ".jsonl", ".json", ".csv", ".tsv", ".txt"):
            name = name.removesuffix(ending)
        return identifier(name or "log", "file name", str(self.path))

    def numeric(self, data: Mapping[str, Any], names: tuple[str, ...], where: str) -> float:
        """Returns the first field that has a number; NaN, with a note, if none has."""
        for name in names:
            found = number(data.get(name), name, where)
            if not (math.isnan(found) and data.get(name) in (None, "")):
                return found
        self.notes.add("missing", where, names[0])
        return math.nan

    def budget(self, value: object, where: str) -> float | None:
        """Returns the budget as recorded, inf for a word; None if the log does not say."""
        if word := k_word(value):
            self.notes.add("k-not-a-number", where, identifier(word, "k", where))
            return math.inf
        found = number(value, "k", where)
        if value is None or value == "" or math.isnan(found):
            return None
        if found == -1:
            self.notes.add("k-minus-one", where)
        try:
            return as_budget(found)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None

    def budget_or_given(self, value: object, where: str, inferred: float | None = None) -> float:
        """Returns the budget of the record, else inferred, given, or read off the file's name.

        Raises:
            InputError: Neither log nor user says which budget it was.
        """
        found = self.budget(value, where)
        if found is not None:
            return found
        if self.options.k is not None:
            self.notes.add("k-given", where)
            return as_budget(self.options.k)
        if inferred is not None:
            self.notes.add("k-inferred", where)
            return self.budget(inferred, where) or 0.0
        named = k_in_name(self.stem)
        if named is None:
            raise InputError(
                f"{where}: no k, and none in the file's name (such as {self.stem[:40]}_k3); say "
                "it with --k, or name its column with --column k=NAME."
            )
        self.notes.add("k-from-file-name", where)
        return self.budget(named, where) or 0.0

    def drop(self, data: Mapping[str, Any], kept: frozenset[str], prefix: str = "") -> None:
        """Notes which fields a record has that are not kept."""
        for name, value in data.items():
            is_said = value is not None and value != ""
            if is_said and name not in kept and len(self.notes.not_kept) < _MOST_NAMES:
                self.notes.not_kept[prefix + name[:60]] += 1


@dataclass(frozen=True)
class LogEntry:
    """One trajectory as a log has it, before it has a key.

    Attributes:
        where: `file:line`.
        prompt: Id of its prompt.
        mechanism: What it was decoded with.
        k: Budget in nats per token.
        debt: Prefix debt; NaN if unknown.
        stopped: True if a stop token ended it, as far as known.
        steps: Per-step record, pad tail cut.
        logged: What the log claims.
        number: Trajectory number, if the log gives one.
        label: Class of the prompt.
        prompt_text: Text of the prompt.
        prompt_tokens: Its token ids.
        reference: Text that outputs are compared with.
        max_new_tokens: T; 0 if not known.
        ledger: Whose rule grants the budgets.
        stops: Stop ids that the record names.
        seed: For duplicates.
        output: Generated text; None if the log does not have it.
        claims: Scores that the log claims of it, by its own names; where several trajectories share
            them, those of the first, with their number as `N`.
    """

    where: str
    prompt: str
    mechanism: str
    k: float
    debt: float
    stopped: bool
    steps: Steps
    logged: Logged | None
    number: int | None = None
    label: str = "prompt"
    prompt_text: str = ""
    prompt_tokens: tuple[int, ...] = ()
    reference: str = ""
    max_new_tokens: int = 0
    ledger: str = "banking"
    stops: frozenset[int] = frozenset()
    seed: int | None = None
    output: str | None = None
    claims: Mapping[str, float] = field(default_factory=dict)


def written_text(data: Mapping[str, Any], name: str, where: str) -> str | None:
    """Returns a text as logged; None where the log has none, which is not the empty text."""
    return None if data.get(name) is None else text(data[name], name, where)


def claimed(data: Mapping[str, Any], names: tuple[str, ...], where: str) -> dict[str, float]:
    """Returns the scores that a record claims, those that it has."""
    found = {name: data[name] for name in names if data.get(name) not in (None, "")}
    return {
        name: float(value) if isinstance(value, bool) else number(value, name, where)
        for name, value in found.items()
    }


def no_steps() -> Steps:
    """Returns the steps of a log that keeps only totals."""
    return Steps(**{name: np.empty(0, dtype) for name, dtype in STEP_TYPES.items()})


def k_word(value: object) -> str | None:
    """Returns a word such as `memfree` in the place of a budget; None for a number."""
    if not isinstance(value, str) or not value.strip():
        return None
    try:
        float(value)
    except ValueError:
        return value.strip()
    return None


def k_in_name(stem: str) -> float | None:
    """Reads the budget in a file's name: `..._k3_...`, or `anchored_0.1_...`."""
    found = _K_IN_NAME.search(stem) or _NUMBER_IN_NAME.search(stem)
    if found:
        return float(found[1])
    return {"risky": math.inf, "safe": 0.0}.get(re.split("[_.-]", stem)[0])


def rule_in_name(stem: str) -> str:
    """Returns what stands before the budget in a file's name; all of it if there is none."""
    found = _K_IN_NAME.search(stem) or _NUMBER_IN_NAME.search(stem)
    return stem[: found.start()] or stem if found else stem


def ended_early(length: float, limit: int) -> bool:
    """Returns True if a row must have met a stop token, as it is shorter than the limit."""
    return 0 <= length < limit


def claims_of(trajectory: Trajectory, ledger: Ledger | None) -> Logged:
    """Returns the claims of an export: those of the log, else what the steps imply."""
    if trajectory.logged is not None:
        return trajectory.logged
    key, steps = trajectory.key, trajectory.steps
    granted = np.empty(0)
    if ledger is not None and not math.isnan(trajectory.debt):
        granted = ledger.accrued(key.k, trajectory.debt, steps.token)
    budget = float(granted[-1]) if granted.size else math.nan
    cumulative = np.cumsum(steps.charge)
    return Logged(trajectory.spend, budget, float(len(steps)), granted, cumulative)


def same_claims(one: Logged, other: Logged) -> bool:
    """Returns True if two sets of claims agree; NaN agrees with NaN."""
    return all(
        np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True)
        for name in LOGGED_FIELDS
    )


DEBT_NAMES = ("delta_init", "true_prefix_debt", "prefix_debt", "debt")


def rounding(*values: object) -> float:
    """Returns how far logged numbers may differ from each other by rounding alone.

    Whole numbers are taken at their word.
    """
    known = [abs(x) for x in map(_number, values) if math.isfinite(x)]
    slack = float(foreign_tolerance(np.array([max(known, default=0.0)]))[0])
    return max(slack, math.fsum(_half_unit(value) for value in values if _decimals(value)))


def judged_by(
    stated: object,
    k: object,
    limit: int,
    debt: float,
    where: str,
    context: Context,
    *,
    bank: bool = False,
) -> tuple[float, float]:
    """Returns the budget of a total, and what k and T grant if that is less and contested.

    The second is NaN where nothing is contested: the budget is no more than k T, to rounding, or
    the user said whether it is used (`--ledger`).

    Args:
        stated: The budget as logged.
        k: The rate as logged; its digits say how exact it is.
        limit: T; 0 if not known.
        debt: As logged; NaN if it is not.
        where: `file:line`.
        context: What the user said.
        bank: True if the debt is taken off k T, as the paper's bank does.
    """
    budget, rate = _number(stated), _number(k)
    rule = context.options.ledger
    if rule not in (None, "banking") or math.isnan(budget) or not 0 < rate < math.inf:
        return budget, math.nan
    owed = max(0.0, debt) if math.isfinite(debt) else 0.0
    if limit:
        digits = max(rounding(stated), _half_unit(stated))
        most = max(0.0, rate * limit - (owed if bank or rule else 0.0))
        inexact = limit * half_digit(k)
        if budget <= most + digits or budget + owed <= rate * limit + inexact + digits:
            return budget, math.nan
        context.notes.add("budget-above-kT", where)
    elif math.isfinite(debt) and debt < -rounding(stated):
        most = max(0.0, budget + debt)
        context.notes.add("debt-negative", where)
    else:
        return budget, math.nan
    return (most, math.nan) if rule else (budget, most)


def credited(
    granted: NDArray[np.float64], k: float, debt: float, where: str, context: Context
) -> float:
    """Returns what k grants over the steps if a negative debt grants more; NaN otherwise.

    NaN too if the user said whether that is used (`--ledger`).
    """
    if context.options.ledger or not granted.size or not 0 < k < math.inf:
        return math.nan
    explained = np.arange(1, granted.size + 1) * k - debt
    if not debt < -rounding(debt) or not np.allclose(granted, explained, rtol=1e-6, atol=1e-3):
        return math.nan
    context.notes.add("debt-negative", where)
    return granted.size * k


def over(spend: float, limit: float) -> bool:
    """Returns True if a total exceeds a limit beyond rounding; an unknown limit is not exceeded."""
    if math.isnan(limit):
        return False
    limit = max(0.0, limit)
    return spend > limit + float(foreign_tolerance(np.array([limit]))[0])


def larger_total(
    one: float, other: float, budget: float, slack: float, where: str, context: Context
) -> float:
    """Returns the spend behind two totals of one sequence; NaN if they decide differently."""
    if math.isnan(one) or math.isnan(other) or abs(one - other) <= slack:
        return other if math.isnan(one) else one
    context.notes.add("totals-differ", where)
    return math.nan if over(one, budget) != over(other, budget) else max(one, other)


def debt_of(
    data: Mapping[str, Any], k: float, limit: int, budget: float, where: str, context: Context
) -> float:
    """Returns the debt of a sequence; NaN if neither it nor T is known.

    Where only totals are logged, B = k T - debt, with T the steps that its batch ran.
    """
    for name in DEBT_NAMES:
        found = number(data.get(name), name, where)
        if not math.isnan(found):
            return found
    start = number(data.get("init_budget_tensor"), "init_budget_tensor", where)
    if not math.isnan(start):
        return -start
    derived = k * limit - budget if limit and math.isfinite(k) else math.nan
    # A budget above k T is not explained by a debt.
    if math.isfinite(derived) and derived >= -rounding(budget):
        context.notes.add("debt-derived", where)
        return max(0.0, derived)
    context.notes.add("missing", where, "debt")
    return math.nan


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _decimals(value: object) -> int:
    return len(str(value).strip().lower().partition("e")[0].partition(".")[2])


def _half_unit(value: object) -> float:
    """Returns half of the last digit of a number as written; 0 for one with an exponent."""
    word = str(value).strip().lower()
    if not math.isfinite(_number(value)) or "e" in word:
        return 0.0
    return float(0.5 * 10.0 ** -_decimals(value))


def compare_utilisation(
    given: float, spend: float, budget: float, where: str, notes: ImportNotes
) -> None:
    """Notes whether a logged utilisation is a fraction, a percentage, or neither."""
    if not all(map(math.isfinite, (given, spend, budget))) or abs(budget) < 1e-12:
        return
    ratio = spend / budget
    if math.isclose(given, ratio, rel_tol=1e-3, abs_tol=1e-5):
        return
    if math.isclose(given, 100 * ratio, rel_tol=1e-3, abs_tol=1e-3):
        notes.add("percent", where)
    else:
        notes.add("utilisation-differs", where)
