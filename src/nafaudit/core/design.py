"""The frozen description of a run: what decides each record, and how many there are.

The *identity* is hashed and names the run; the *extent* may grow, and a resumed run fills the
difference. Everything a record depends on belongs to the identity, nothing else does.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from nafaudit.core import draws
from nafaudit.core.errors import InputError
from nafaudit.core.ledger import KL, UNSAID, as_budget
from nafaudit.core.numerics import ConstantRows

RECORD_VERSION = 1

ProtocolName = Literal["sound", "paper", "imported"]
# Raised when a change to the row layout or to a built-in rule changes recorded bits.
ROWS_LAYOUT = 3
RULES_VERSION = 3
# Since 2 each budget of a black box has seeds of its own.
REQUESTS_LAYOUT = 2
_WIDTH_STEP = 64

# Of a field that came after runs were recorded: at its default it is left out of the JSON, so that
# these runs keep their hash.
LATER: Mapping[str, Any] = {"later": True}


@dataclass(frozen=True)
class Decoding:
    """The warps of both logit vectors before the solve, and where a row ends.

    Attributes:
        max_new_tokens: T: a row ends there or at its own stop token.
        temperature: Divides both logit vectors.
        repetition_penalty: Above 1, divides the positive logits of tokens that already occur
            and multiplies their negative ones, in both vectors, before the temperature.
    """

    max_new_tokens: int = 200
    temperature: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise InputError(f"max-new-tokens must be at least 1, got {self.max_new_tokens}.")
        if not 0 < self.temperature < float("inf"):
            raise InputError(
                f"temperature must be above 0, got {self.temperature}. "
                "Greedy decoding is refused under a budget: it serves a law that was not charged."
            )
        if not 0 < self.repetition_penalty < float("inf"):
            raise InputError(f"repetition-penalty must be above 0, got {self.repetition_penalty}.")

    @property
    def warps(self) -> bool:
        """True if the laws differ from the models' own."""
        return self.temperature != 1.0 or self.repetition_penalty != 1.0

    @property
    def anchor(self) -> str:
        """The law that a charge is measured against, in words, for the record."""
        if not self.warps:
            return "the safe model"
        return (
            f"the safe model at temperature {self.temperature:g} and repetition penalty "
            f"{self.repetition_penalty:g}, which is not the safe model itself"
        )


@dataclass(frozen=True)
class ImportedDecoding(Decoding):
    """The decoding behind an imported log, of which at most the length limit is known.

    Attributes:
        max_new_tokens: T; 0 if the log does not say.
    """

    max_new_tokens: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 0:
            raise InputError(f"max-new-tokens must be at least 0, got {self.max_new_tokens}.")

    @property
    def anchor(self) -> str:
        """The law that the log itself calls the safe model."""
        return "whatever the log's own decoder calls the safe model"


def recorded_layout(*, boxed: bool = False) -> dict[str, int]:
    """Returns the versions of whatever decides a recorded bit.

    Args:
        boxed: True where a black box is asked, whose requests have a layout too.
    """
    found = {
        "draws": draws.LAYOUT,
        "record": RECORD_VERSION,
        "rows": ROWS_LAYOUT,
        "rules": RULES_VERSION,
    }
    return found | ({"requests": REQUESTS_LAYOUT} if boxed else {})


@dataclass(frozen=True)
class Identity:
    """All that a record depends on.

    Attributes:
        pair: Content fingerprints of the models and tokenizer, dtype and stop ids.
        mechanism: Name of the mechanism, with what decides its laws.
        ledger: Specification of its ledger, so that records can be checked without it.
        decoding: Warps and length limit.
        workload: SHA-256 of the prompts.
        width: Cache positions per row; part of the identity because attention over another
            width may differ in the last bit.
        seed: Run seed.
        purpose: What the draws are for; another purpose gives fresh draws.
        protocol: Which audit; it decides the key of every draw.
        promise: Mechanism whose ledger and debt are a black box's budget; empty for a mechanism of
            our engine.
        held_to: What a black box, or a log, is judged by (`nafaudit.core.promise`): banked, k-naf,
            anchored, or the name of a mechanism. Empty for our engine, and where it was not said.
        currency: What a charge is counted in (`nafaudit.core.ledger`).
        chat: Hash of the chat template that prompts were put into; empty for none.
        constant_rows: Rows of every product where their number matters; None where it does not.
        coupled: True if the rows of a micro-batch of the paper's share one stream of draws.
        layout: Versions of whatever decides a recorded bit.
    """

    pair: Mapping[str, Any]
    mechanism: str
    ledger: str
    decoding: Decoding
    workload: str
    width: int
    seed: int
    purpose: str = "audit"
    protocol: ProtocolName = "sound"
    promise: str = field(default="", metadata=LATER)
    currency: str = KL
    chat: str = field(default="", metadata=LATER)
    constant_rows: ConstantRows | None = field(default=None, metadata=LATER)
    coupled: bool = field(default=False, metadata=LATER)
    held_to: str = field(default="", metadata=LATER)
    layout: Mapping[str, int] = field(default_factory=recorded_layout)

    def to_json(self) -> dict[str, Any]:
        """Returns plain data, equal for equal identities."""
        data: dict[str, Any] = json.loads(json.dumps(asdict(self), sort_keys=True))
        for part, written in ((self, data), (self.decoding, data["decoding"])):
            for one in fields(part):
                if one.metadata.get("later") and getattr(part, one.name) == one.default:
                    del written[one.name]
        if self.currency in UNSAID:
            del data["currency"]  # for the same reason: runs that charge KL, or whole outputs
        return data

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON."""
        return identity_hash(self.to_json())


def identity_hash(data: Mapping[str, Any]) -> str:
    """Computes the SHA-256 of an identity as plain data, by which a run is known."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Names every key at which two identities differ, with both values."""
    found = []
    for key in sorted({*ours, *theirs}):
        mine, other = ours.get(key), theirs.get(key)
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            found += differences(mine, other, f"{prefix}{key}.")
        elif mine != other:
            found.append(f"{prefix}{key}: {other!r} in the run, {mine!r} now")
    return found


@dataclass(frozen=True)
class Extent:
    """The part of the design that is to be recorded; it may grow between resumes.

    Attributes:
        budgets: k values, baselines included: 0 is the safe model alone, inf the risky one.
        trajectories: Trajectories per prompt and budget, those of earlier extents included.
        prompts: Ids of the prompts, in workload order.
        numbers: Which trajectories this extent asks for; empty for 0 .. trajectories-1.
    """

    budgets: tuple[float, ...]
    trajectories: int
    prompts: tuple[str, ...]
    numbers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.budgets:
            raise InputError("no budget was given; use --k, for example --k 1,3,5.")
        if self.trajectories < 1:
            raise InputError(f"trajectories must be at least 1, got {self.trajectories}.")
        if not self.prompts:
            raise InputError("no prompt is left to run; raise --limit or check the prompt file.")
        numbers = tuple(sorted(set(self.numbers)))
        if numbers and numbers[-1] + 1 == len(numbers) == self.trajectories:
            numbers = ()  # so that the same numbers are written in one way
        object.__setattr__(self, "numbers", numbers)

    @property
    def size(self) -> int:
        """Number of trajectories."""
        each = len(self.numbers) or self.trajectories
        return len(self.budgets) * each * len(self.prompts)


@dataclass(frozen=True)
class Numbers:
    """Numbers of the trajectories of a prompt under a budget: the first ones, and others beyond.

    Attributes:
        first: Count of numbers 0, 1, 2, ...
        others: Those beyond.
    """

    first: int = 0
    others: frozenset[int] = frozenset()

    @staticmethod
    def of(extent: Mapping[str, Any]) -> Numbers:
        """Returns the numbers that an extent of a design file asks for."""
        if numbers := extent.get("numbers"):
            return Numbers(0, frozenset(map(int, numbers)))
        return Numbers(int(extent["trajectories"]))

    @property
    def size(self) -> int:
        """Their count."""
        return self.first + len(self.others)

    def __or__(self, more: Numbers) -> Numbers:
        first = max(self.first, more.first)
        return Numbers(first, frozenset(n for n in self.others | more.others if n >= first))

    def __contains__(self, number: int) -> bool:
        return number < self.first or number in self.others

    def __iter__(self) -> Iterator[int]:
        return itertools.chain(range(self.first), sorted(self.others))


@dataclass(frozen=True)
class Design:
    """Identity and extent of a run."""

    identity: Identity
    extent: Extent


def row_width(positions: int, context: int | None = None) -> int:
    """Returns the positions of a row: rounded up to an even shape, within a pair's context."""
    width = -(-positions // _WIDTH_STEP) * _WIDTH_STEP
    return width if context is None else min(width, context)


def with_baselines(ks: list[float]) -> tuple[float, ...]:
    """Adds both baselines, drops repeats, sorts from safe-only to risky-only."""
    return tuple(sorted({0.0, float("inf"), *(as_budget(k) for k in ks)}))
