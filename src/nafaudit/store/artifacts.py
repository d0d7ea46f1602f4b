"""Files beside the records of a run: what a replay, a search and scored passages leave behind.

Each artefact is declared once, as the JSON that it is (`nafaudit.store.declared` has the rules, and
the files of the records). The declaration names the fields for the code that writes them, and
checks a file when it is read; `schema` gives its JSON Schema, which `nafaudit schema FILE` prints.

* `verify.json` has its own checksum, and that of the journal it was made from: an edited result is
  an error, and one that is older than the records says so.
* `replayed.parquet` has the trajectories that a replay found a black box to have drawn: a second
  record, beside the claims. Verdicts on a black box rest on it. Its checksum stands in verify.json,
  and it counts only as long as the records are those that were verified.
* `search.json` is what a search found.
* `passages.jsonl` has passages and their surprisals, from which a budget can be judged without
  models: a header, then one line per passage. The checksum covers everything but itself.
* `texts.jsonl` has what an imported log says of its outputs beside the account: their texts, and
  scores that it claims. Its checksum stands in import.json.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, NotRequired, TypedDict

import msgspec

from nafaudit.core.errors import StoreError
from nafaudit.core.finding import MIN_TRAJECTORIES, CheckWord, Finding, Kept, Overall, Thresholds
from nafaudit.core.passage import PassageScores, ScoredPassage
from nafaudit.core.text import plain
from nafaudit.core.trajectory import Arm, Key, Trajectory
from nafaudit.store import parts
from nafaudit.store.declared import (
    DesignFile,
    FaultLine,
    ImportFile,
    JournalLine,
    Number,
    PromptLine,
    SessionLine,
    ShownLine,
    SourceLine,
    VocabularyFile,
    strict_json,
    validated,
)
from nafaudit.store.files import write_whole
from nafaudit.store.run import Run
from nafaudit.store.shown import SHOWN

VERIFICATION, REPLAYED = "verify.json", "replayed.parquet"
SEARCH, PASSAGES = "search.json", "passages.jsonl"
CONFIRM = "confirm"
"""Directory within a search for the run of its fresh draws."""
TEXTS, IMPORTED = "texts.jsonl", "import.json"
OWN_FILES = "nafaudit"
"""Directory within exported logs for what their schema has no place for."""
FORMAT = 1
"""Version of the file of passages."""

RULES = 2
"""Version of the rules by which a replay judges a black box or a log; 1 where none is recorded.

Raised when the same records may get another verdict: verifications by other rules count as none.
"""

RECORDS, OTHER_RULES = "records", "rules"
"""Why a verification is not current: records were added since, or it was made by other rules."""

_DEPTH = 16
"""Deepest nesting in a search.json; no search writes more, and more may exhaust the stack."""


# What a verification found.

QUANTITIES: Mapping[str, str] = {
    "debt": "prefix debt",
    "allowance": "allowance, from the replayed charges",
    "charge": "charge of each step, as promised",
    "theta": "weight, as the charge that it implies",
    "served": "log p_served of the token",
    "safe": "log p_safe of the token",
    "risky": "log p_risky of the token",
    "spend": "charges summed up to each step",
    "token": "score missing to the best token",
    "end": "stop token and length (0 right, 1 wrong)",
}
"""The numbers of a record that a replay compares, and what each is."""

UNCLAIMED = ": nothing is claimed of it"
"""End of the text of a finding about a number that no record has."""


CAUSES = ("budget", "sampling", "bookkeeping")
"""What may be wrong with a decoder: the first word of the name of what accuses it."""


def cause_of(findings: Iterable[tuple[str, str]]) -> str:
    """Returns what accuses a decoder and explains most: "sampling: its tokens look like ...".

    Args:
        findings: Check and text of each finding that fails; others than `CAUSES` are left out.
    """
    order = {"tokens": 0, "claims": 1, "safe model": 2, "certificate": 3}
    known = [(check.partition(": "), text) for check, text in findings]
    said = [
        (order.get(name, len(order)), f"{kind}: {text}")
        for (kind, _, name), text in known
        if kind in CAUSES
    ]
    return min(said, key=lambda one: one[0])[1] if said else ""


def claims_nothing(findings: Iterable[tuple[str, str]]) -> bool:
    """Says of a verification's checks and texts whether no number of the record was claimed.

    Tokens and where they end are seen, not claimed.
    """
    claims = {f"replay: {name}" for name in QUANTITIES if name not in ("token", "end")}
    found = [text for check, text in findings if check in claims]
    return bool(found) and all(text.endswith(UNCLAIMED) for text in found)


DEBT_COUNTS = "replay: counts of the debt"
"""Name of the finding on trajectories that are over budget by one way to count the debt and not by
the other."""

TOKENS = "tokens: laws"
"""Name of the finding on which laws the tokens of a black box fit."""

FITS = "tokens: fit"
"""Name of the remark on which law the tokens of a black box fit instead of the promised one."""

CONFORMS = "conforms"
"""Name of the remark on whether a black box is the promised mechanism itself."""

OTHER_PROMISE = "sampler: other-promise"
"""Name of the finding on which promise the tokens of a refuted decoder fit instead."""


@dataclass(frozen=True)
class ArmFinding:
    """A finding about one arm, or about the whole run."""

    arm: Arm | None
    finding: Finding


@dataclass(frozen=True)
class Verification:
    """The result of a verification.

    Attributes:
        findings: Findings of the comparison, then of the sampler tests.
        deviation: Largest deviation and both levels of every quantity.
        trajectories: How many were replayed.
        recorded: How many there are.
        tokens: Tokens replayed.
        seconds: Time for all of it, loading the models apart.
        notes: What could not be done, or was done in a weaker way, in words.
        truth: For a black box, what it really did; its own numbers are claims.
        unfinished: True if the run lacks something that it was asked for; a note says what.
        thresholds: What is asked of the answer beyond the budgets.
        judged: The answer of the run's audit, if it was judged with this verification.
        fresh: Of a search, the answer on its fresh draws, which are a run of their own.
        promise: What a black box or a log was judged by (`nafaudit.core.promise`).
    """

    findings: list[ArmFinding]
    deviation: dict[str, dict[str, float]]
    trajectories: int
    recorded: int
    tokens: int
    seconds: float
    notes: list[str]
    truth: Sequence[Trajectory] = ()
    unfinished: bool = False
    thresholds: Thresholds = Thresholds()
    judged: Overall | None = None
    fresh: Overall | None = None
    promise: str = ""

    @property
    def failed(self) -> bool:
        """True if a claim is refuted or a budget was truly exceeded."""
        bad = (CheckWord.FAILED, Kept.VIOLATED)
        return any(found.finding.verdict in bad for found in self.findings)

    @property
    def overall(self) -> Overall:
        """0 claims true, 1 refuted or over budget, 3 nothing replayed or the run is unfinished."""
        words: dict[str, str] = {}
        for one in self.findings:
            said = f"{one.finding.check} is {one.finding.verdict}: {one.finding.text}"
            words.setdefault(one.finding.verdict, said)
        return self.thresholds.decide(self._answer(), words, {"the replay": self.trajectories})

    def _answer(self) -> Overall:
        found, fresh = self._of_records(), self.fresh
        order = (1, 3, 0)
        if fresh and order.index(fresh.exit_status) < order.index(found.exit_status):
            return replace(fresh, why=f"of its fresh draws: {fresh.why}")
        return found

    def _of_records(self) -> Overall:
        found = self._found()
        if self.judged is not None and self.judged.exit_status == 1:
            # One run has one answer: that of its audit, also where less was replayed now.
            why = f"{self.judged.why}; {found.why}" if found.why not in self.judged.why else None
            return Overall(self.judged.verdict, why or self.judged.why, 1)
        if self.judged is not None and self.truth and not found.exit_status:
            return self.judged
        return found

    def _found(self) -> Overall:
        about = [one.finding for one in self.findings if one.finding.check.startswith("replay: ")]
        silent = claims_nothing((one.check, one.text) for one in about)
        failed = [one.finding for one in self.findings if one.finding.verdict == CheckWord.FAILED]
        cause = cause_of((one.check, one.text) for one in failed)
        fits = [one.finding.text for one in self.findings if one.finding.check == FITS]
        if failed:
            why = "nothing is claimed, and the tokens do not fit the promise"
            why = cause or (why if silent else "the claims are refuted")
            return Overall(Kept.REFUTED, why, 1)
        if self.failed:
            why = "the claims are true, and they exceed the budget"
            if self.promise:
                spent = next(one for one in self.findings if one.finding.verdict == Kept.VIOLATED)
                why = "; ".join([f"budget: {spent.finding.text}", *fits[:1]])
            return Overall(Kept.VIOLATED, why, 1)
        if not self.trajectories:
            return Overall(Kept.INCONCLUSIVE, "nothing could be replayed: inconclusive", 3)
        why = "the claims are true as far as replayed"
        if self.truth:
            why = "the claims and the tokens fit the promise as far as replayed"
        if silent:
            why = "nothing is claimed, and the tokens fit the promise as far as replayed"
        if self.unfinished and self.truth:
            why = "outputs are missing, so that those which came were chosen, and decide nothing"
        if self.unfinished:
            return Overall(Kept.INCONCLUSIVE, why, 3)
        for one in self.findings:
            if one.finding.check == TOKENS and one.finding.verdict == Kept.INCONCLUSIVE:
                return Overall(Kept.INCONCLUSIVE, one.finding.text, 3)
        return Overall(CheckWord.FINE, why, 0)


class WitnessFile(TypedDict, total=False):
    """The trajectory and step that a finding rests on; older files lack its mechanism."""

    prompt: str
    mechanism: str
    k: Number
    trajectory: int
    step: int | None


class FindingFile(TypedDict):
    """A finding of a verification; mechanism and k are null if it is about the whole run."""

    mechanism: str | None
    k: Number | None
    check: str
    verdict: str
    value: Number
    numbers: dict[str, Number]
    witness: WitnessFile | None
    text: str


class VerificationFile(TypedDict):
    """The content of verify.json."""

    run: str
    design: str
    rules: NotRequired[int]
    promise: NotRequired[str]
    recorded: int
    replayed: int
    tokens: int
    seconds: float
    deviation: dict[str, dict[str, Number]]
    notes: list[str]
    findings: list[FindingFile]
    replayed_sha256: NotRequired[str]
    journal: str
    sha256: str


def verification_json(run: Run, found: Verification) -> dict[str, Any]:
    """Returns every finding and deviation as strict JSON."""
    return {
        "run": str(run.path),
        "design": run.design["hash"],
        "rules": RULES,
        "promise": found.promise,
        "recorded": found.recorded,
        "replayed": found.trajectories,
        "tokens": found.tokens,
        "seconds": found.seconds,
        "deviation": plain(found.deviation),
        "notes": found.notes,
        "findings": [one.finding.to_json(one.arm) for one in found.findings],
    }


def save_verification(run: Run, found: Verification) -> dict[str, Any]:
    """Writes RUN/verify.json and, for a black box, what it really did; returns the result.

    Raises:
        StoreError: A file cannot be written.
    """
    result = verification_json(run, found)
    if found.truth:
        result["replayed_sha256"] = write_replayed(run, found.truth)
    write_verification(run, result)
    return result


def write_verification(run: Run, result: Mapping[str, Any]) -> Path:
    """Writes RUN/verify.json; `result` is plain data without NaN."""
    content = {**result, "journal": run.journal_hash}
    data = content | {"sha256": _hash(content)}
    path = run.path / VERIFICATION
    write_whole(path, json.dumps(data, indent=2, allow_nan=False).encode() + b"\n")
    return path


def fresh_draws(run: Run) -> Run | None:
    """Returns the run of a search's fresh draws, RUN/confirm; None if there is none."""
    path = run.path / "confirm"
    return Run(path) if (path / "design.json").is_file() else None


def read_verification(run: Run) -> dict[str, Any] | None:
    """Returns the saved result, or None if there is none.

    `current` in it says whether the records are still those that were verified, and of a black box
    or a log whether today's rules made it; `outdated` says which of the two is not so (`RECORDS`,
    `OTHER_RULES`), and is empty where it is current.

    Raises:
        StoreError: The file was edited or damaged.
    """
    path = run.path / VERIFICATION
    if not path.is_file():
        return None
    try:
        data: dict[str, Any] = strict_json(path.read_bytes())
        validated(VerificationFile, data)
        if data.pop("sha256") != _hash(data):
            raise ValueError("its SHA-256 differs")
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"{path} is not what nafaudit verify wrote: it was damaged or edited. Delete it and "
            f"run: nafaudit verify {run.path}"
        ) from error
    outdated = RECORDS if data["journal"] != run.journal_hash else ""
    if run.is_foreign and data.get("rules", 1) != RULES:
        outdated = OTHER_RULES  # whatever else: it must be made anew
    return data | {"current": not outdated, "outdated": outdated}


def rules_remedy(run: Run) -> str:
    """Says how to make a verification anew that was made by other rules; empty if none was."""
    found = read_verification(run)
    if found is None or found["outdated"] != OTHER_RULES:
        return ""
    imported = run.design["identity"]["protocol"] == "imported"
    models = " with the models and options that it was given before" if imported else ""
    older = "older" if found.get("rules", 1) < RULES else "other"
    return f"it was verified by {older} rules: nafaudit verify {run.path}{models} makes that anew"


def _hash(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_replayed(run: Run, trajectories: Sequence[Trajectory]) -> str:
    """Saves the recomputed trajectories; returns their checksum."""
    content = parts.encode(trajectories)
    write_whole(run.path / REPLAYED, content)
    return hashlib.sha256(content).hexdigest()


def read_replayed(run: Run) -> dict[Key, Trajectory]:
    """Returns the recomputed trajectories; none if nothing current was verified."""
    result = read_verification(run)
    if result is None or not result["current"] or "replayed_sha256" not in result:
        return {}
    path = run.path / REPLAYED
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != result["replayed_sha256"]:
        raise StoreError(
            f"{path} is not what nafaudit verify wrote: it was damaged or edited. Run it again: "
            f"nafaudit verify {run.path}"
        )
    return {trajectory.key: trajectory for trajectory in parts.decode(content)}


# What a search found. Parts may be missing: another version, or another protocol.


def _number() -> Any:
    """Returns a field for a number that may be missing, which is NaN then."""
    # A factory, as a JSON Schema has no NaN for a default.
    return field(default_factory=lambda: math.nan)


@dataclass(frozen=True)
class _Part:
    """A part of search.json: numbers that JSON has as strings are numbers here."""

    # Older searches lack what later ones say.
    json_partial: ClassVar = True

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.type == "Number" and isinstance(value, str):
                object.__setattr__(self, one.name, float(value))
            elif one.type == "tuple[Number, ...]":
                object.__setattr__(self, one.name, tuple(map(float, value)))


@dataclass(frozen=True)
class IntervalFile(_Part):
    """A mean with its limits."""

    mean: Number = _number()
    low: Number = _number()
    high: Number = _number()


@dataclass(frozen=True)
class GenerationFile(_Part):
    """Numbers of the prompts of a generation, as `nafaudit.search.explore.Generation` counts them.

    Attributes:
        strategy: Search or control.
        seed: Search seed.
        generation: 0 for the first pool.
        raw: Proposed.
        dedup: Of them new.
        length_ok: Of them of an allowed length.
        screened: Of them given a trajectory.
        medium: Of them drawn again.
        survivors: Of them kept after that.
        topped_up: Survivors that were drawn a third time, or more often.
        best: Largest mean utilisation of any prompt so far; NaN if none is known.
        trajectories: Drawn in this generation.
    """

    strategy: str = "search"
    seed: int | None = None
    generation: int | None = None
    raw: int | None = None
    dedup: int | None = None
    length_ok: int | None = None
    screened: int | None = None
    medium: int | None = None
    survivors: int | None = None
    topped_up: int | None = None
    best: Number = _number()
    trajectories: int | None = None


@dataclass(frozen=True)
class FinalistFile(_Part):
    """A prompt that was confirmed on fresh draws.

    Attributes:
        strategy: Search or control that found it.
        seed: Search seed.
        rank: Place in that search, from 1.
        id: Id of the prompt.
        text: Text of the prompt.
        label: Class of the prompt.
        generation: Generation that it is from.
        operator: Operator that made it.
        lineage: Name of its family; every seed begins one.
        parents: Ids of the prompts that it was made from.
        promised: Mean utilisation on the draws it was chosen by (not a budget).
        draws: Number of these.
        fresh: Number of fresh trajectories.
        unspent: Number of them without a ratio, because they ended in debt.
        use: Mean utilisation on fresh draws, with limits.
        worst: Largest utilisation among them.
        violations: Number of fresh trajectories above their budget.
        rate_upper: Upper limit of their rate.
        spend: Mean spend, in nats.
        risky_alone: Mean spend of the risky model alone on the same draws.
        e_above: E-value against "its mean utilisation is at most the share of `NamedFile.above`".
    """

    strategy: str = "search"
    seed: int | None = None
    rank: int | None = None
    id: str = ""
    text: str = ""
    label: str = ""
    generation: int | None = None
    operator: str = ""
    lineage: str = ""
    parents: tuple[str, ...] = ()
    promised: Number = _number()
    draws: int | None = None
    fresh: int | None = None
    unspent: int | None = None
    use: IntervalFile = IntervalFile()
    worst: Number = _number()
    violations: int | None = None
    rate_upper: Number = _number()
    spend: Number = _number()
    risky_alone: Number = _number()
    e_above: Number = _number()


@dataclass(frozen=True)
class ComparisonFile(_Part):
    """The search against one of its controls."""

    control: str = ""
    answer: str = ""
    difference: Number = _number()
    low: Number = _number()
    high: Number = _number()
    search: IntervalFile = IntervalFile()
    other: IntervalFile = IntervalFile()


@dataclass(frozen=True)
class SpreadFile(_Part):
    """Confirmed utilisation of the first finalist of every search seed."""

    maxima: tuple[Number, ...] = ()
    range: Number = _number()


@dataclass(frozen=True)
class HeldOutFile(_Part):
    """A pool that no search saw."""

    kind: str = ""
    prompts: int | None = None
    trajectories: int | None = None
    use: IntervalFile = IntervalFile()
    highest: Number = _number()
    gap: Number = _number()


@dataclass(frozen=True)
class ProposerFile(_Part):
    """Which proposer suggested prompts; without counts if it is not a model."""

    name: str = ""
    asked: int | None = None
    by_model: int | None = None
    filled: int | None = None
    calls: int | None = None
    attempts: int | None = None
    unfit: int | None = None
    outcomes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class NamedFile(_Part):
    """Confirmed prompts that use more than a given share of their budget, by two corrections.

    Attributes:
        above: The share.
        asked: Number of confirmed prompts.
        looked: Number of prompts drawn: those without fresh draws are hypotheses too.
        shared: Ids by the correction for all prompts drawn: any is wrong with chance delta.
        discovered: Ids by e-BH: the expected share of wrong ones is at most delta.
    """

    above: Number = _number()
    asked: int | None = None
    looked: int | None = None
    shared: tuple[str, ...] = ()
    discovered: tuple[str, ...] = ()


@dataclass(frozen=True)
class CopiedFile(_Part):
    """What outputs repeat of protected text."""

    trajectories: int | None = None
    repeating: int | None = None
    words: int | None = None
    passage: str = ""
    where: dict[str, Any] | None = None
    near_verbatim_recall: Number = _number()


@dataclass(frozen=True)
class OverlapFile(_Part):
    """What outputs of a search repeat of protected text."""

    passages: int | None = None
    everything: CopiedFile | None = None
    confirmed: dict[str, CopiedFile] = field(default_factory=dict)


@dataclass(frozen=True)
class GateFile(_Part):
    """Whether a surrogate was used in one generation, and why not.

    Numbers of the test are known in files of versions that tested a surrogate before it chose.

    Attributes:
        seed: Search seed.
        generation: Number of the generation.
        steers: True if the surrogate chose what was screened.
        offered: Number of candidates that it could choose among.
        kept: Number that were drawn.
        prompts: Number of prompts that it was judged on.
        auc: AUC of the top decile, on prompts that it was not taught.
        spearman: Plain rank correlation on these.
        disattenuated: Rank correlation over the root of the labels' reliability, at most 1.
        lower: 95 % lower end of that.
        coverage: Share of prompts inside their interval.
        reasons: Reasons why it did not choose; empty if it did.
        unsafe: How many of `prompts` it should tell from the others, in the paper's search.
        saturated: True if it says nearly the same of every candidate.
    """

    seed: int | None = None
    generation: int | None = None
    steers: bool | None = None
    offered: int | None = None
    kept: int | None = None
    prompts: int | None = None
    unsafe: int | None = None
    saturated: bool | None = None
    auc: Number = _number()
    spearman: Number = _number()
    disattenuated: Number = _number()
    lower: Number = _number()
    coverage: Number = _number()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class SurrogateFile(_Part):
    """The surrogate of a search, and the generations in which it was used.

    Attributes:
        mode: Setting `surrogate` of the search.
        embedding: Name of the embedding that it reads.
        taught_by: Number of earlier prompts that taught it.
        gates: Judgement of each generation.
    """

    mode: str = ""
    embedding: str = ""
    taught_by: int | None = None
    gates: tuple[GateFile, ...] = ()


@dataclass(frozen=True)
class SearchFile(_Part):
    """The content of search.json; `paper` is of the paper's protocol only.

    `unread` is in no file: a reader says there which fresh draws the directory lacks.
    """

    run: str = ""
    outcome: str = ""
    k: Number = _number()
    delta: Number = _number()
    looked: int | None = None
    trajectories: int | None = None
    violating_prompts: int | None = None
    generations: tuple[GenerationFile, ...] = ()
    finalists: tuple[FinalistFile, ...] = ()
    controls: tuple[FinalistFile, ...] = ()
    comparisons: tuple[ComparisonFile, ...] = ()
    spread: dict[str, SpreadFile] = field(default_factory=dict)
    heldout: HeldOutFile | None = None
    proposer: ProposerFile = ProposerFile()
    counterexamples: tuple[str, ...] = ()
    others: tuple[HeldOutFile, ...] = ()
    named: NamedFile | None = None
    overlap: OverlapFile | None = None
    archive: str = ""
    surrogate: SurrogateFile | None = None
    paper: dict[str, Any] = field(default_factory=dict)
    unread: str = ""

    @property
    def overall(self) -> Overall:
        """The answer of the search: what it found, and what its command ends with."""
        budget, (second, aside) = f"k = {self.k:g}", self.second
        if self.outcome == Kept.VIOLATED:
            also = f", or k = {second:.4g} on fresh draws of flagged prompts" if aside else ""
            why = (
                f"the search found {self.violating_prompts} of {self.looked} prompts with a "
                f"trajectory above its budget ({budget}{also})"
            )
            return Overall(Kept.VIOLATED, why, 1)
        if self.outcome == Kept.WITHIN:
            own = None if self.trajectories is None else self.trajectories - aside
            why = (
                f"the search found no trajectory above its budget ({budget}) in {own} trajectories "
                f"of {self.looked} prompts"
            )
            if aside:
                why += f", nor in {aside} more of flagged prompts at k = {second:.4g}"
            return Overall(Kept.WITHIN, why, 0)
        why = f"the search found nothing above its budget ({budget}), but {self.lacking}"
        return Overall(Kept.INCONCLUSIVE, why, 3)

    @property
    def contradiction(self) -> str:
        """Which of its own numbers its outcome contradicts, in words; empty if none."""
        judged = (*self.finalists, *self.controls)
        if self.outcome == Kept.VIOLATED:
            return ""
        if self.violating_prompts or any(one.violations for one in judged):
            return f"its outcome is {self.outcome}, and it counts violations"
        fresh = min((one.fresh or 0 for one in self.finalists), default=0)
        if self.outcome == Kept.WITHIN and fresh < MIN_TRAJECTORIES:
            return (
                f"its outcome is WITHIN, and a finalist has {fresh} fresh trajectories"
                if self.finalists
                else "its outcome is WITHIN, and it has no finalist"
            )
        return ""

    @property
    def claimed(self) -> dict[str, int]:
        """Number of fresh trajectories at its budget that it counts, by prompt."""
        return {one.id: one.fresh or 0 for one in (*self.finalists, *self.controls)}

    @property
    def claimed_unseen(self) -> int:
        """Number of fresh trajectories of held-out pools that it counts.

        Held-out prompts of the paper's search are among those that it explored.
        """
        pools = () if self.paper else (self.heldout or HeldOutFile(), *self.others)
        return sum(one.trajectories or 0 for one in pools)

    @property
    def second(self) -> tuple[float, int]:
        """The second budget of the paper's search, and the trajectories drawn at it.

        `trajectories` counts these too. Without such draws the number is 0.
        """
        again = [row.get("second_k") or {} for row in self.paper.get("rechecked") or ()]
        return float(self.paper.get("second_k") or math.nan), sum(r.get("N", 0) for r in again)

    @property
    def lacking(self) -> str:
        """Why a search without a violation is inconclusive, in words."""
        if self.unread:
            return self.unread
        if self.finalists or not self.paper:
            return "too few fresh trajectories were drawn to decide"
        rows = (self.paper.get("pools") or {}).get("heldout") or ()
        invalid = sum(bool(row.get("invalid")) for row in rows)
        why = "no prompt reached its end"
        if invalid:
            why += f"; {invalid} of {len(rows)} held-out prompts are invalid: k times the length of"
            why += " an output is not above the prompt's debt; take a larger k"
        return why


class PoolRow(TypedDict):
    """A prompt of a pool of the paper's search; its numbers are read where they are shown."""

    id: str


class PaperPart(TypedDict, total=False):
    """What the paper's search adds to search.json, as far as other rooms read it."""

    pools: dict[str, list[PoolRow]]


def search_file(data: Mapping[str, Any]) -> SearchFile:
    """Returns the content of a search.json with its types.

    Raises:
        ValueError: A part is of another type.
    """
    return validated(SearchFile, data)


def read_search(run: Run) -> dict[str, Any] | None:
    """Returns the content of RUN/search.json, or None if the run holds no finished search.

    A search that was WITHIN is INCONCLUSIVE while RUN/confirm lacks fresh draws that it counts;
    `unread` says so.

    Raises:
        StoreError: The file is not what a search writes.
    """
    path = run.path / SEARCH
    if not path.is_file():
        return None
    try:
        data: dict[str, Any] = strict_json(path.read_bytes())
        if not isinstance(data, dict) or not isinstance(data.get("outcome"), str):
            raise ValueError("it has no outcome")
        if _too_deep(data):
            raise ValueError("its parts are nested too deeply")
        found = search_file(data)
        validated(PaperPart, data.get("paper") or {})
        if found.contradiction:
            raise ValueError(found.contradiction)
    except (ValueError, OSError, RecursionError) as error:
        raise StoreError(
            f"{path} is not what nafaudit search wrote ({error}): it was damaged or edited. Delete "
            "it and run the search's own command again, which makes it anew from the records."
        ) from error
    if found.outcome == Kept.WITHIN and (unread := _unread(run.path / CONFIRM, found)):
        data |= {"outcome": str(Kept.INCONCLUSIVE), "unread": unread}
    return data


def _unread(path: Path, found: SearchFile) -> str:
    """Returns in words which fresh draws that a search counts are not there; empty if all are."""
    recorded: Counter[str] = Counter()
    if (path / "design.json").is_file():
        recorded.update(key.prompt for _, key in Run(path).places() if key.k == found.k)
    wanted = sum(found.claimed.values()) + found.claimed_unseen
    held = sum(min(recorded[name], number) for name, number in found.claimed.items())
    held += min(
        found.claimed_unseen,
        sum(number for name, number in recorded.items() if name not in found.claimed),
    )
    if held >= wanted:
        return ""
    return (
        f"{held or 'none'} of the {wanted} fresh trajectories that it counts are in {CONFIRM}/; "
        "restore it, or run the search's own command again"
    )


def _too_deep(value: Any, left: int = _DEPTH) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left == 0 or any(_too_deep(one, left - 1) for one in inner)


# Passages and their surprisals.


class PassagesHeader(TypedDict):
    """The first line of passages.jsonl."""

    format: int
    context: str
    anchor: str
    passages: int
    sha256: str


class PassageFile(TypedDict):
    """A passage and the surprisal of each of its tokens."""

    id: str
    tokens: int
    surprisals: list[Number]


def write_passages(path: Path, scores: PassageScores) -> None:
    """Replaces the file; if writing fails, the old file stays as it was."""
    write_whole(path, passages_bytes(scores))


def passages_bytes(scores: PassageScores) -> bytes:
    """Returns the content of the file; equal scores give equal bytes."""
    rows = [
        {
            "id": one.id,
            "tokens": one.length,
            "surprisals": [v if math.isfinite(v) else str(v) for v in one.surprisals],
        }
        for one in scores.passages
    ]
    body = "".join(map(_line, rows)).encode()
    header = {
        "format": FORMAT,
        "context": scores.context,
        "anchor": scores.anchor,
        "passages": len(scores),
    }
    return _line(header | {"sha256": _checksum(header, body)}).encode() + body


def read_passages_file(path: Path) -> PassageScores | None:
    """Reads the file back; None if there is none.

    Raises:
        StoreError: It is not what was written.
    """
    if not path.exists():
        return None
    first, _, body = path.read_bytes().partition(b"\n")
    try:
        header: dict[str, Any] = strict_json(first)
        validated(PassagesHeader, header)
        if header["format"] != FORMAT or header.pop("sha256") != _checksum(header, body):
            raise ValueError("its SHA-256 differs")
        rows = [validated(PassageFile, strict_json(line)) for line in body.split(b"\n")[:-1]]
        passages = tuple(
            ScoredPassage(row["id"], row["tokens"], tuple(map(float, row["surprisals"])))
            for row in rows
        )
        return PassageScores(header["context"], header["anchor"], passages)
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"{path} is not what was written ({error}): it was damaged or edited. Restore it, or "
            "remove it and run the same command again, which scores the passages anew."
        ) from error


def _line(data: Mapping[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False) + "\n"


def _checksum(header: Mapping[str, Any], body: bytes) -> str:
    return hashlib.sha256(_line(header).encode() + body).hexdigest()


# Texts and scores of an imported log.


class LoggedLine(TypedDict):
    """What a log says of one output: its text, and scores by the log's own names.

    A claim about several trajectories (Stage 2) has their number as `N`, and stands with the first.
    """

    prompt: str
    mechanism: str
    k: Number
    trajectory: int
    text: NotRequired[str]
    claims: NotRequired[dict[str, Number | bool]]


@dataclass(frozen=True)
class LoggedTexts:
    """What a log says of its outputs.

    Attributes:
        texts: Text of an output, by its key.
        claims: Scores that the log claims, by the key of the output, or of the first of several.
    """

    texts: Mapping[Key, str] = field(default_factory=dict)
    claims: Mapping[Key, Mapping[str, float]] = field(default_factory=dict)


def logged_line(key: Key, text: str | None, claims: Mapping[str, float]) -> bytes:
    """Returns a line of texts.jsonl; empty if there is nothing to say."""
    if text is None and not claims:
        return b""
    said: dict[str, Any] = key._asdict() | {"k": _written(key.k)}
    said |= {} if text is None else {"text": text}
    said |= {"claims": {name: _written(one) for name, one in claims.items()}} if claims else {}
    return _line(said).encode()


READINGS = frozenset(
    [
        "byte-order-mark",
        "k-minus-one",
        "k-from-file-name",
        "k-inferred",
        "k-given",
        "no-id",
        "percent",
        "debt-derived",
    ]
)
"""Kinds of notes of an import that say how a log was read and raise no doubt about it."""


def import_report(run: Run) -> dict[str, Any] | None:
    """Returns what the import of a run noticed; None for a run of our own.

    Raises:
        StoreError: It is not what was written.
    """
    path = run.path / IMPORTED
    if not path.is_file():
        return None
    try:
        data: dict[str, Any] = strict_json(path.read_bytes())
        validated(ImportFile, data)
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"{path} is not what was written ({error}): it was damaged or edited. Restore it, or "
            "import the logs again."
        ) from error
    return data


def read_texts(run: Run) -> LoggedTexts:
    """Reads what an imported log said of its outputs; nothing for other and for older runs.

    Raises:
        StoreError: It is not what was imported.
    """
    report = import_report(run)
    if report is None or "texts" not in report:
        return LoggedTexts()
    path = run.path / TEXTS
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != report["texts"]["sha256"]:
            raise ValueError("its SHA-256 differs")
        texts, claims = {}, {}
        for line in content.split(b"\n")[:-1]:
            row = validated(LoggedLine, strict_json(line))
            key = Key(row["prompt"], row["mechanism"], float(row["k"]), row["trajectory"])
            if "text" in row:
                texts[key] = row["text"]
            if "claims" in row:
                claims[key] = {name: float(one) for name, one in row["claims"].items()}
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(
            f"{path} is not what was imported ({error}): it was damaged or edited. Restore it, or "
            "import the logs again."
        ) from error
    return LoggedTexts(texts, claims)


def _written(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


# Reading and declaring.

ARTIFACTS: Mapping[str, type] = {
    "design.json": DesignFile,
    "prompts.jsonl": PromptLine,
    "sources.jsonl": SourceLine,
    "vocabulary.json": VocabularyFile,
    "sessions.jsonl": SessionLine,
    "journal.jsonl": JournalLine,
    "faults.jsonl": FaultLine,
    SHOWN: ShownLine,
    IMPORTED: ImportFile,
    VERIFICATION: VerificationFile,
    SEARCH: SearchFile,
    PASSAGES: PassageFile,
    TEXTS: LoggedLine,
}
"""Declarations by the name of the file; that of a line for a file of lines, and of `passages.jsonl`
that of a line after the first."""


def schema(name: str) -> dict[str, Any]:
    """Returns the JSON Schema of an artefact, by the name of its file."""
    return msgspec.json.schema(ARTIFACTS[name])
