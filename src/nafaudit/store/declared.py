"""Declarations of the files of a run, and the reader that holds files to them.

Each file is declared once, as the JSON that it is. Fields that a later version adds are no error; a
field of another type is. A number that is not finite is one of the strings of `Number`. The files
that are made from the records (verify.json, search.json and others) are declared in
`nafaudit.store.artifacts`, where they are made.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypedDict, TypeVar

import msgspec
from msgspec import Meta

from nafaudit.workload import Prompt, PromptSource

if TYPE_CHECKING:
    # A file has the strings; what is read from search.json has numbers.
    Number = float
else:
    Number = float | Literal["nan", "inf", "-inf"]
    """A number in JSON, which has no NaN and no infinity."""

T = TypeVar("T")

_MOST = 2**31 - 1
"""Largest count; Parquet keeps ids and numbers of trajectories in 32 bits."""

Count = Annotated[int, Meta(ge=0, le=_MOST)]
Budget = Annotated[float, Meta(ge=0)] | Literal["inf"]


class DecodingFile(TypedDict):
    """Warps and length limit within a design."""

    max_new_tokens: Count
    temperature: float
    repetition_penalty: float


class PairFile(TypedDict, total=False):
    """Hashes of a pair within a design; of an import, its logs."""

    safe: str
    risky: str
    vocabulary: str
    dtype: str
    special_ids: list[int]
    stop_ids: list[int]


class ConstantRowsFile(TypedDict):
    """Rows of every product within a design."""

    steps: Count
    prompts: Count


class IdentityFile(TypedDict):
    """All that a record depends on, within a design."""

    pair: PairFile
    mechanism: str
    ledger: str
    decoding: DecodingFile
    workload: str
    seed: int
    protocol: Literal["sound", "paper", "imported"]
    layout: dict[str, int]
    width: NotRequired[Count]
    purpose: NotRequired[str]
    promise: NotRequired[str]
    currency: NotRequired[str]
    chat: NotRequired[str]
    constant_rows: NotRequired[ConstantRowsFile | None]
    coupled: NotRequired[bool]
    held_to: NotRequired[str]


class ExtentFile(TypedDict):
    """What one session asked for, within a design."""

    budgets: list[Budget]
    trajectories: Count
    prompts: list[str]
    numbers: NotRequired[list[Count]]
    workload: NotRequired[str]
    reordered: NotRequired[bool]


class DesignFile(TypedDict):
    """Content of design.json."""

    hash: str
    anchor: str
    identity: IdentityFile
    extents: list[ExtentFile]


class VocabularyFile(TypedDict, total=False):
    """Content of vocabulary.json."""

    pieces: list[str | None]
    stops: list[int]
    size: Count


class PromptLine(TypedDict):
    """A line of prompts.jsonl."""

    prompt: Prompt
    tokens: list[int]


class SourceLine(TypedDict):
    """A line of sources.jsonl."""

    id: str
    source: PromptSource


class JournalLine(TypedDict):
    """A line of journal.jsonl."""

    part: Annotated[str, Meta(pattern=r"^[0-9]{6,}\.parquet$")]
    rows: Count
    sha256: str


class FaultLine(TypedDict):
    """A line of faults.jsonl."""

    name: str
    text: str
    key: tuple[str, str, str, str] | None
    step: Count
    lost: bool


class LawsFile(TypedDict):
    """A file of log-laws within a line of shown.jsonl."""

    file: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\.npy$")]
    steps: Count
    size: Count
    sha256: str


class ShownLine(TypedDict):
    """A line of shown.jsonl: what a black box shows of a trajectory beside its record."""

    key: tuple[str, str, str, str]
    family: NotRequired[Literal["geometric", "arithmetic"]]
    laws: NotRequired[LawsFile]


class ProbeFile(TypedDict, total=False):
    """What the probe of a session found."""

    digest: str


class MachineFile(TypedDict, total=False):
    """What a process ran on."""

    processor: str
    machine: str
    device: str
    torch: str
    probe: ProbeFile


class SessionLine(MachineFile, total=False):
    """A line of sessions.jsonl; facts of the machine that no command reads are not declared."""

    started: str
    nafaudit: str
    delta: Annotated[float, Meta(gt=0, lt=1)]
    pair: str | None
    checkpoints: list[str]
    variant: str
    safe: str | None
    risky: str | None
    workers: list[MachineFile]
    decoder_dtype: str


class ImportSource(TypedDict, total=False):
    """A log that was imported."""

    file: str
    sha256: str
    schema: str


class ImportNoteFile(TypedDict):
    """What an import noticed: how often, and where first."""

    kind: str
    count: Count
    first: str
    text: str


class ChecksumFile(TypedDict):
    """SHA-256 of a file beside import.json."""

    sha256: str


class ImportFile(TypedDict):
    """Content of import.json."""

    sources: list[ImportSource]
    notes: list[ImportNoteFile]
    not_kept: dict[str, Count]
    texts: NotRequired[ChecksumFile]


def strict_json(content: bytes) -> Any:
    """Parses strict JSON, which has no NaN; text that is no UTF-8 is a ValueError too.

    So is half of a surrogate pair, which can be written escaped and never otherwise.
    """

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not strict JSON")

    data = json.loads(content.decode(), parse_constant=refuse)
    if b"\\ud" in content.lower():
        json.dumps(data, ensure_ascii=False).encode()
    return data


def validated(kind: type[T], data: Any) -> T:
    """Returns data with the types of its declaration.

    Raises:
        ValueError: A part is of another type (`msgspec.ValidationError` is one).
    """
    return msgspec.convert(data, kind)
