"""What a user may set for a run, in groups, from design file and command line.

Both use the same names; the command line wins. A wrong key or value is an error that names
the key, the value, what is allowed and the nearest good name, before any model loads.
"""

from __future__ import annotations

import re
import tomllib
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding, refuse_after_solve, reject_unknown, with_baselines
from nafaudit.core.errors import InputError, nearest
from nafaudit.core.ledger import as_budget
from nafaudit.core.numerics import check_threads
from nafaudit.core.trust import Trust

PROTOCOLS = ("sound", "paper")
VARIANTS = ("code", "text")
_ADDRESS = re.compile(r"[^\s/:]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")

DELTA = 0.05
"""How often any of a run's mean bounds may miss, all of them together."""

PROTOCOL_DEFAULTS: dict[str, dict[str, Any]] = {
    "sound": {},
    "paper": {"k": (3.0, 5.0), "trajectories": 10, "limit": 0},
}
"""What a protocol sets unless the user does. T = 200, temperature 1, prefix-n 5 are both's."""

PAIR_DEFAULTS: dict[str, dict[str, Any]] = {
    "paper": {"dtype": "bfloat16", "device": "cuda"},
    "authors": {"dtype": "bfloat16", "device": "auto"},
}
"""What a pair that needs a GPU sets unless the user does."""


@dataclass(frozen=True)
class WorkloadChoice:
    """Which prompts a run takes.

    Attributes:
        prompts: JSON Lines file of prompts; the pair's own workload if empty.
        data: Directory with the paper's six files.
        corpus: Classes of any other files, by name: the `[classes.NAME]` tables of a design file.
        classes: Only these classes; all if empty.
        cap: Most prompts of a class, by its name.
        limit: At most so many prompts; 0 for all; 48 of the lab's unless told.
    """

    prompts: str | None = None
    data: str | None = None
    corpus: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    cap: Mapping[str, int] = field(default_factory=dict)
    limit: int | None = None

    def check_workload(self) -> None:
        """Raises for a choice that contradicts itself."""
        sources = {
            "prompts": self.prompts is not None,
            "data": self.data is not None,
            "[classes.NAME] tables": bool(self.corpus),
        }
        if sum(sources.values()) > 1:
            given = " and ".join(name for name, is_given in sources.items() if is_given)
            raise InputError(f"{given} both name a workload; give one of them.")
        if self.limit is not None and self.limit < 0:
            raise InputError(f"limit must be at least 0 (0: all prompts), got {self.limit}.")
        for name in self.classes:
            if self.classes.count(name) > 1:
                raise InputError(f"class {name!r} is named twice in classes; name it once.")
        for name, most in self.cap.items():
            if most < 1:
                raise InputError(
                    f"cap of class {name!r} must be at least 1, got {most}; to leave a class out, "
                    "name the others with --classes."
                )


@dataclass(frozen=True)
class ProtocolChoice:
    """Under which protocol a run is made and reported.

    Attributes:
        protocol: `sound`, or `paper`: the paper's seeds, sizes and files.
        variant: Where the paper's text and its code differ, which of the two is followed.
        delta: Level of all mean bounds together; each gets delta / (classes x budgets).
    """

    protocol: str = "sound"
    variant: str = "code"
    delta: float = DELTA

    def check_protocol(self, seed: int) -> None:
        """Raises for a protocol that is none, or an option that it does not have."""
        for name, value, known in (
            ("protocol", self.protocol, PROTOCOLS),
            ("variant", self.variant, VARIANTS),
        ):
            if value not in known:
                raise InputError(
                    f"{name} must be {' or '.join(known)}, got {value!r}{nearest(value, known)}"
                )
        if not 0 < self.delta < 1:
            raise InputError(f"delta must be in (0, 1), got {self.delta}.")
        if self.protocol != "paper" and self.variant != "code":
            raise InputError("variant = text is a reading of the paper; it needs --protocol paper.")
        if self.protocol == "paper" and seed != 0:
            raise InputError(
                f"seed = {seed} has no effect in the paper's protocol, whose seeds follow from "
                "the prompts' ids; leave it out, or use --protocol sound."
            )


@dataclass(frozen=True)
class ClusterChoice:
    """On which machines a run decodes; changes speed only.

    Attributes:
        ray: `local` for a Ray cluster of this machine's own, `auto` or HOST:PORT for one that is
            there; this process alone if empty.
        workers: How many processes hold a pair; as many as fit if empty.
    """

    ray: str | None = None
    workers: int | None = None

    def check_cluster(self, decoder: str | None) -> None:
        """Raises for an address that is none, or for what cannot be spread."""
        if self.ray is None:
            if self.workers is not None:
                raise InputError("workers are processes of a Ray cluster: add --ray.")
            return
        if self.ray not in ("local", "auto") and not _ADDRESS.fullmatch(self.ray):
            raise InputError(
                f"ray must be local (a cluster of this machine's own), auto, or HOST:PORT of the "
                f"cluster's head, as `ray start --head` prints it; got {self.ray!r}."
            )
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers must be at least 1, got {self.workers}.")
        if decoder is not None:
            raise InputError(
                f"ray spreads our own engine; the black box {decoder!r} answers in one process of "
                "its own, on this machine. Leave out --ray."
            )


@dataclass(frozen=True)
class Settings(WorkloadChoice, ProtocolChoice, ClusterChoice):
    """Everything `nafaudit run` can be told; prompts, protocol and machines are in the bases.

    Attributes:
        pair: Name of a pair, unless `safe` and `risky` name checkpoints.
        safe: Directory or hub id of the safe model.
        risky: Directory or hub id of the risky model.
        mechanism: What is audited; for a decoder, what it promises.
        decoder: A black box that is audited in the place of our engine.
        decoder_python: Interpreter that runs it; ours if empty.
        decoder_timeout: Seconds that its answer to a batch may take.
        k: Budgets in nats per token.
        baselines: False leaves out both baselines, which the paper does not have.
        trajectories: Executions per prompt and budget.
        max_new_tokens: Length limit T.
        temperature: On both models, before the solve.
        repetition_penalty: On both models, before the solve.
        prefix_n: How many prompt tokens make up the prefix debt.
        prefix_debt: False switches the debt off.
        debt: Definition of the debt.
        seed: Run seed.
        batch: Rows decoded together; changes speed only.
        threads: Torch threads of a process, 1 or 2; two only where they change no bit.
        device: Torch device.
        safe_device: Another one for the safe model, if it has its own.
        together: Both models step at once, a thread each; changes speed only.
        speculate: Tokens that the safe model guesses ahead; changes speed only.
        dtype: Precision of the forward passes.
        chat_template: True puts prompts into the model's chat template.
        remote_code: Hub repositories whose own code may run, each `owner/name@commit`.
        allow_pickle_weights: True reads weights that are not safetensors.
        mixed: True continues a run that a machine of other arithmetic began.
        out: Run directory; named after the design if empty.
    """

    pair: str = "lab"
    safe: str | None = None
    risky: str | None = None
    mechanism: str = "anchored"
    decoder: str | None = None
    decoder_python: str | None = None
    decoder_timeout: float = 300.0
    k: tuple[float, ...] = (0.25, 1.0, 10.0)
    baselines: bool = True
    trajectories: int = 2
    max_new_tokens: int = 200
    temperature: float = 1.0
    repetition_penalty: float = 1.0
    prefix_n: int = 5
    prefix_debt: bool = True
    debt: str = "positives"
    seed: int = 0
    batch: int = 32
    threads: int = 1
    device: str = "cpu"
    safe_device: str | None = None
    together: bool = False
    speculate: int = 0
    dtype: str = "float32"
    chat_template: bool = False
    remote_code: tuple[str, ...] = ()
    allow_pickle_weights: bool = False
    mixed: bool = False
    out: str | None = None

    def __post_init__(self) -> None:
        if (self.safe is None) != (self.risky is None):
            raise InputError("safe and risky belong together: give both, or neither and a --pair.")
        for name in ("trajectories", "batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")
        processes = f" More cores are used by processes: --ray --workers {self.threads}."
        check_threads(self.threads, processes)
        if not 0 <= self.speculate <= 64:
            raise InputError(
                f"speculate must be 0 (off) to 64 tokens, got {self.speculate}; 2 to 4 is usual."
            )
        if self.speculate and self.together:
            raise InputError(
                "speculate and together exclude each other: the risky model reads what the safe "
                "one has guessed."
            )
        if not self.k:
            raise InputError("no budget was given; use --k, for example --k 1,3,5.")
        self.check_workload()
        self.check_protocol(self.seed)
        self.check_cluster(self.decoder)
        if not self.decoder_timeout > 0:
            raise InputError(
                f"decoder-timeout must be above 0 seconds, got {self.decoder_timeout}."
            )
        if self.decoder_python is not None and self.decoder is None:
            raise InputError("decoder-python runs a decoder: name it with --decoder.")
        if not self.baselines and self.protocol != "paper":
            raise InputError(
                "no-baselines is for --protocol paper, which has none: without the two models "
                "alone nobody can tell what a budget changed."
            )
        with_baselines(list(self.k))
        _ = self.decoding, self.debt_rule, self.trust

    @classmethod
    def defaults_of(cls, protocol: str) -> dict[str, Any]:
        """What a protocol sets unless the user does."""
        return PROTOCOL_DEFAULTS.get(protocol, {})

    @property
    def decoding(self) -> Decoding:
        """Warps and length limit."""
        return Decoding(self.max_new_tokens, self.temperature, self.repetition_penalty)

    @property
    def debt_rule(self) -> DebtRule:
        """The prefix debt."""
        return DebtRule(self.prefix_n if self.prefix_debt else 0, self.debt)  # type: ignore[arg-type]

    @property
    def trust(self) -> Trust:
        """What checkpoints are permitted."""
        return Trust(self.remote_code, self.allow_pickle_weights)

    @property
    def budgets(self) -> tuple[float, ...]:
        """Budgets with both baselines, from the smallest up."""
        every = with_baselines(list(self.k))
        return every if self.baselines else tuple(k for k in every if k in map(as_budget, self.k))


Kind = TypeVar("Kind", bound=Settings)


def load_settings(design: Path | None, overrides: Mapping[str, Any]) -> Settings:
    """Merges defaults, a design file and the command line, in this order.

    Args:
        design: A TOML file with the names of `Settings`, or None.
        overrides: Values from the command line; None means not given.
    """
    return load_settings_of(Settings, design, overrides)


def load_settings_of(kind: type[Kind], design: Path | None, overrides: Mapping[str, Any]) -> Kind:
    """The same for a command that can be told more: `kind` adds its own names."""
    given: dict[str, Any] = {}
    if design is not None:
        given |= _read_toml(design, kind)
    given |= {name: value for name, value in overrides.items() if value is not None}
    # The published decoder has a debt of its own; held to another, it would seem to overspend. It
    # counts it in the models' own laws, which differ from those it serves only where these are
    # warped: elsewhere the shorter name, under which its runs have always been kept.
    if given.get("decoder") == "anchoreddecode":
        warped = any(given.get(name, 1.0) != 1.0 for name in ("temperature", "repetition_penalty"))
        given.setdefault("debt", "official-raw" if warped else "official")
    # An unknown protocol or pair has no defaults; what is wrong with it is said later.
    of_pair = {} if "safe" in given else PAIR_DEFAULTS.get(given.get("pair", "lab"), {})
    return kind(**kind.defaults_of(given.get("protocol", "sound")) | of_pair | given)


def _read_toml(path: Path, kind: type[Settings]) -> dict[str, Any]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}; give a TOML file with the names of the command's options."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a TOML file: {error}.") from error
    named = {key.replace("-", "_"): value for key, value in data.items()}
    for key in data:
        if "-" in key and key.replace("-", "_") in data:
            raise InputError(
                f"{path}: {key} and {key.replace('-', '_')} are one key; give it once."
            )
    refuse_after_solve(named)
    if isinstance(named.get("classes"), dict):
        # `classes = [...]` chooses classes, `[classes.NAME]` says what they are.
        named["corpus"] = named.pop("classes")
    hints = get_type_hints(kind)
    reject_unknown(named, tuple(hints), str(path))
    return {key: _convert(path, key, value, hints[key]) for key, value in named.items()}


def _convert(path: Path, key: str, value: Any, hint: Any) -> Any:
    """Checks a TOML value against the type of its setting."""
    if key == "k":
        values = value if isinstance(value, list) else [value]
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            return tuple(float(v) for v in values)
        raise InputError(f"{path}: k must be a number or a list of numbers, got {value!r}.")
    if key in _TABLES:
        return _TABLES[key](path, value)
    allowed = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if float in allowed and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, allowed) and not (isinstance(value, bool) and bool not in allowed):
        return value
    names = " or ".join(kind.__name__ for kind in allowed if kind is not type(None))
    raise InputError(f"{path}: {key} must be {names}, got {value!r}.")


def _names(key: str) -> Callable[[Path, Any], tuple[str, ...]]:
    def read(path: Path, value: Any) -> tuple[str, ...]:
        if isinstance(value, list) and all(isinstance(name, str) for name in value):
            return tuple(value)
        raise InputError(f"{path}: {key} must be a list of names, got {value!r}.")

    return read


def _class_names(path: Path, value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return tuple(names)
    raise InputError(
        f"{path}: classes must be a list of names, or [classes.NAME] tables with file and prompt, "
        f"got {value!r}."
    )


def _caps(path: Path, value: Any) -> dict[str, int]:
    if isinstance(value, dict) and all(type(most) is int for most in value.values()):
        return value
    raise InputError(f"{path}: cap must be a table such as cap.neutral = 20, got {value!r}.")


def _sizes(path: Path, value: Any) -> dict[str, int]:
    if isinstance(value, dict) and all(type(count) is int for count in value.values()):
        return value
    raise InputError(f"{path}: init and size are tables of whole numbers, got {value!r}.")


def _corpus(path: Path, value: Any) -> dict[str, dict[str, Any]]:
    """The tables of classes, with file names as seen from the design file."""
    if not isinstance(value, dict) or not all(isinstance(table, dict) for table in value.values()):
        raise InputError(f"{path}: each class must be a table [classes.NAME], got {value!r}.")
    tables = {name: dict(table) for name, table in value.items()}
    for table in tables.values():
        if isinstance(table.get("file"), str):
            table["file"] = str(path.parent / table["file"])
    return tables


_TABLES: dict[str, Callable[[Path, Any], Any]] = {
    "classes": _class_names,
    "cap": _caps,
    "operators": _names("operators"),
    "remote_code": _names("remote_code"),
    "init": _sizes,
    "size": _sizes,
    "corpus": _corpus,
}
