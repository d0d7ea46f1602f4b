"""JSON Schemas of what every command prints with --json."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict, get_type_hints

from nafaudit.cli.command import place
from nafaudit.core.errors import InputError, nearest
from nafaudit.core.schema import schema_of, with_members
from nafaudit.measures.audit import BoundRow
from nafaudit.measures.classes import ClassRow
from nafaudit.measures.compare import Change, FindingChange, PromptChange, Side
from nafaudit.measures.pairing import ArmPair, Differences
from nafaudit.measures.verdicts import ArmVerdict
from nafaudit.paper.checklist import ItemJson, PromptRatio
from nafaudit.runner.plan import Timing
from nafaudit.store.artifacts import FindingFile, SearchFile
from nafaudit.store.missing import Missing

_ARM = with_members(mechanism=str, k=float)


class Answer(TypedDict):
    """The one answer of a command, first in its JSON."""

    verdict: str
    why: str
    exit_status: int


_ANSWER = with_members(**get_type_hints(Answer))
SearchJson = Annotated[SearchFile, (*_ANSWER, *with_members(report=NotRequired[str]))]
"""JSON of `search` at one budget."""


class EmptyObject(TypedDict):
    """An object without members; `Annotated` adds those of the command."""


class AuditJson(Answer):
    """JSON of `run` and `check`."""

    run: str
    design: str
    asked: int
    missing: Missing | None
    verdicts: list[ArmVerdict]
    classes: list[Annotated[ClassRow, with_members(worst=bool)]]
    findings: list[FindingFile]
    report: NotRequired[str]


class ReplayCountsJson(TypedDict):
    """How much of a run was replayed, whether of its present records, and what that refuted."""

    recorded: int
    replayed: int
    tokens: int
    current: bool
    outdated: str
    refuted: Any


class PromptJson(TypedDict):
    """A prompt under a budget."""

    prompt: str
    label: str
    mechanism: str
    k: float
    count: int
    violations: int
    debt: float
    spend: float
    proxy: float
    width: float
    utilisation: float
    worst_utilisation: float
    ratio: float
    recall: float
    active: float
    worst: dict[str, Any]


class ReportJson(AuditJson):
    """JSON of `report`, also in RUN/report/report.json."""

    summary: str
    # The verdicts of each budget in sentences.
    words: list[dict[str, Any]]
    bounds: list[Annotated[BoundRow, _ARM]]
    prompts: list[PromptJson]
    checklist: list[ItemJson]
    verification: ReplayCountsJson | None
    # The design of the run, which decides every record.
    decided: dict[str, Any]
    search: NotRequired[dict[str, Any]]
    # How the records were made: extents, sessions, parts, and the rest of the replay.
    made: dict[str, Any]


class VerifyJson(Answer):
    """JSON of `verify`."""

    run: str
    design: str
    rules: int
    promise: str
    recorded: int
    replayed: int
    tokens: int
    seconds: float
    deviation: dict[str, dict[str, float]]
    notes: list[str]
    findings: list[FindingFile]
    replayed_sha256: NotRequired[str]
    file: str | None
    report: NotRequired[str]
    fresh: NotRequired[dict[str, Any]]


class ArmJson(TypedDict):
    """An arm by its name."""

    mechanism: str
    k: float


class CompareJson(Answer):
    """JSON of `compare`."""

    a: Side
    b: Side
    conclusion: str
    draws: str
    draws_why: str
    report: NotRequired[str | None]
    paired: str
    prompts_shared: int
    prompts_changed: list[str]
    only_a: list[ArmJson]
    only_b: list[ArmJson]
    design: list[dict[str, str]]
    verdicts: list[Annotated[ArmPair, with_members(a=dict[str, Any], b=dict[str, Any])]]
    findings: list[FindingChange]
    changes: list[Change]
    classes: list[Change]
    # For each budget: how many pairs of trajectories differ, and from which step on.
    partings: list[Differences]
    prompts: list[PromptChange]


class PlanJson(Answer):
    """JSON of `plan`."""

    prompts: int
    classes: dict[str, int]
    budgets: list[float]
    trajectories_per_prompt: int
    trajectories_per_budget: int
    trajectories: int
    tokens_at_most: int
    conclusive: bool
    protected_prompts: int
    level: float
    upper_limit_if_none: dict[str, float]
    trajectories_to_see: dict[str, int]
    bytes: dict[str, int]
    seconds: float | None
    timing: Timing | None
    untimed: str | None
    arithmetic: dict[str, Any] | None


class NoteJson(TypedDict):
    """A kind of remark on an import: what was noticed, dropped or read in another way."""

    kind: str
    count: int
    first: str
    text: str


class ImportJson(TypedDict):
    """JSON of `import`."""

    run: str
    sources: list[dict[str, str]]
    trajectories: int
    steps: int
    prompts: int
    ledger: str
    notes: list[NoteJson]
    not_kept: dict[str, int]


class ExportJson(TypedDict):
    """JSON of `export`."""

    run: str
    files: list[str]
    missing: Missing | None


class ClaimJson(TypedDict):
    """A claim of the paper, and what it is recomputed to."""

    point: str | None
    where: str
    printed: str
    reading: str
    computed: float
    low: float
    high: float
    released: Any
    text: str
    group: NotRequired[str]
    sentence: NotRequired[str]
    what_changes: NotRequired[str]


class PaperJson(Answer):
    """JSON of `paper`."""

    cells: int
    agree: int
    points: int
    disagree: list[ClaimJson]
    depends: list[ClaimJson]
    agreeing: list[ClaimJson]
    not_checkable: list[dict[str, str]]
    counterfactuals: dict[str, list[dict[str, Any]]]
    figures: list[str]


class ChecklistJson(Answer):
    """JSON of `checklist`."""

    run: str
    items: list[ItemJson]
    prompts: list[PromptRatio]
    missing: Missing | None


class SweepJson(Answer):
    """JSON of `search` over several budgets."""

    run: str
    outcome: str
    delta: float
    budgets: list[dict[str, Any]]


class SearchesJson(Answer):
    """JSON of `search --protocol paper` at several budgets: what each search prints."""

    searches: list[SearchJson]


class ProductJson(TypedDict):
    """A product with its digest, and whether that is the golden one."""

    product: str
    digest: str | None
    golden: str
    agrees: bool


class DigestSetJson(TypedDict):
    """Digests of all products under one set of environment variables."""

    set: str
    environment: dict[str, str]
    agrees: bool
    agreeing: int
    failure: str | None
    products: list[ProductJson]


class DigestsJson(TypedDict):
    """JSON of `lab digests`."""

    machine: dict[str, Any]
    golden: dict[str, str]
    sets: list[DigestSetJson]
    conclusion: list[str]


# Result types by command, each with the members that the command adds. They are imported when
# they are asked for, as some need torch.
_TYPES_BY_IMPORT_PATH: dict[str, tuple[str, tuple[tuple[str, Any], ...]]] = {
    "certify": ("worth.certify:Certificate", (*_ANSWER, *with_members(directory=str))),
    "attack": ("worth.attack_result:AttackResult", _ANSWER),
    "frontier": ("worth.matched:FrontierResult", (*_ANSWER, *with_members(frontier=str))),
    "conform": ("selftest.conform:Conformance", _ANSWER),
    "selftest": ("selftest.run:SelftestResult", _ANSWER),
    "paper run": ("paper.whole:WholePaperJson", ()),
    "lab memorise": ("lab.shipped:PairCard", with_members(directory=str)),
}
_DECLARED: dict[str, Any] = {
    "run": AuditJson,
    "search": SearchJson | SweepJson | SearchesJson,
    "check": AuditJson,
    "verify": VerifyJson,
    "report": ReportJson,
    "compare": CompareJson,
    "plan": PlanJson,
    "import": ImportJson,
    "export": ExportJson,
    "paper": PaperJson,
    "checklist": ChecklistJson,
    "lab digests": DigestsJson,
}
COMMANDS = (*_DECLARED, *_TYPES_BY_IMPORT_PATH, "mechanisms")
"""Commands with --json."""


def schema_for(command: str, *, strict: bool = False) -> dict[str, Any]:
    """Returns the JSON Schema of what a command prints with --json.

    Args:
        command: Its name, as `lab digests`.
        strict: Allow no members that are not declared; a later version may add some.

    Raises:
        InputError: There is no such command, or it prints no JSON.
    """
    if command not in COMMANDS:
        near = nearest(command, COMMANDS)
        raise InputError(
            f"there is no command {command!r} with --json{near} Known: "
            f"{', '.join(sorted(COMMANDS))}."
        )
    kind: Any
    if command == "mechanisms":
        cards = with_members(mechanisms=list[place("mechanisms.cards:MechanismCard")])  # type: ignore[misc]
        kind = Annotated[EmptyObject, cards]
    elif command in _TYPES_BY_IMPORT_PATH:
        where, more = _TYPES_BY_IMPORT_PATH[command]
        kind = Annotated[place(where), more]
    else:
        kind = _DECLARED[command]
    return schema_of(kind, f"nafaudit {command} --json", strict=strict)
