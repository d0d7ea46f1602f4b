"""Groups of options that commands share, and the settings of `nafaudit run`.

A class inherits the groups that its command has, the last of them first in the help.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding, with_baselines
from nafaudit.core.errors import InputError
from nafaudit.core.finding import FAIL_ON, MIN_TRAJECTORIES, Thresholds
from nafaudit.core.ledger import as_budget
from nafaudit.core.numerics import check_threads
from nafaudit.core.options import Group, option
from nafaudit.core.promise import PROMISES, check_promise, held_to

# The sections that several commands have.
audited_option = partial(option, section="What is audited")
prompts_option = partial(option, section="Prompts")
protocol_option = partial(option, section="Protocol")
decoding_option = partial(option, section="Decoding")
machine_option = partial(option, section="Machine and output")
ci_option = partial(option, section="For CI")

BUDGETS_FORM = "numbers, for example --k 1,3,5 (inf or -1: risky model only)"
_PINNED = re.compile(r"[^\s@]+/[^\s@]+@[0-9a-f]{40}")
_ADDRESS = re.compile(r"[^\s/:]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")

promise_option = partial(option, choices=PROMISES)
"""What a black box or a log is held to; a group says what is so if it is left out."""

DELTA = 0.05
"""How often any of a run's mean bounds may miss, all of them together."""

PAIR_DEFAULTS: dict[str, dict[str, Any]] = {
    "paper": {"dtype": "bfloat16", "device": "cuda"},
    "authors": {"dtype": "bfloat16", "device": "auto"},
}
"""What a pair that needs a GPU sets unless the user does."""


@dataclass(frozen=True, kw_only=True)
class PairSettings(Group):
    """Which two models."""

    pair: str = audited_option("lab", "A registered pair.", common=True)
    safe: str | None = audited_option(None, "Safe checkpoint: directory or hub id.", common=True)
    risky: str | None = audited_option(None, "Risky checkpoint: directory or hub id.", common=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.safe is None) != (self.risky is None):
            raise InputError("safe and risky belong together: give both, or neither and a --pair.")


@dataclass(frozen=True)
class Trust:
    """Permissions that the user gives.

    Attributes:
        remote_code: Hub repositories whose own modelling code may run, each at one commit:
            `owner/name@` and its 40 hexadecimal digits.
        pickle: True if weights may be read from pickle files where there are no safetensors.
    """

    remote_code: tuple[str, ...] = ()
    pickle: bool = False

    def __post_init__(self) -> None:
        for entry in self.remote_code:
            if not _PINNED.fullmatch(entry):
                raise InputError(
                    f"remote-code must be owner/name@commit with the commit's 40 hexadecimal "
                    f"digits, got {entry!r}. A branch or a tag can change after you read the code."
                )

    def commit_of(self, repository: str) -> str | None:
        """Returns the commit at which a repository's code may run; None if it may not."""
        pinned = dict(entry.rsplit("@", 1) for entry in self.remote_code)
        return pinned.get(repository)


NO_TRUST = Trust()
"""Safetensors and the library's own code."""


@dataclass(frozen=True, kw_only=True)
class TrustSettings(Group):
    """What checkpoints are permitted beyond being numbers."""

    remote_code: tuple[str, ...] = audited_option(
        (), "Let this repository's own code run.", metavar="OWNER/NAME@COMMIT", unset="none"
    )
    allow_pickle_weights: bool = audited_option(False, "Read weights that are not safetensors.")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.trust

    @property
    def trust(self) -> Trust:
        """What checkpoints are permitted."""
        return Trust(self.remote_code, self.allow_pickle_weights)


@dataclass(frozen=True, kw_only=True)
class PromiseSettings(Group):
    """Which promise is audited, at which budgets, and how often."""

    mechanism: str = audited_option("anchored", "Name, or package.module:Class.", common=True)
    decoder: str | None = audited_option(
        None, "A black box: package.module:Class, file.py:Class, anchoreddecode.", common=True
    )
    decoder_python: str | None = audited_option(
        None, "Interpreter that runs the decoder.", unset="this one"
    )
    decoder_timeout: float = audited_option(
        300.0, "Seconds for its answer to a batch.", above=0, unit=" seconds"
    )
    promise: str | None = promise_option(
        None, "What a decoder is held to: banked, k-naf or anchored.", section="What is audited",
        unset="banked, or the --mechanism",
    )  # fmt: skip
    k: tuple[float, ...] = audited_option(
        (0.25, 1.0, 10.0), "Budgets in nats per token.", metavar="K,...", form=BUDGETS_FORM,
        common=True,
    )  # fmt: skip
    trajectories: int = audited_option(
        2, "Answers drawn per prompt and budget.", least=1, common=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.k:
            raise InputError("no budget was given; use --k, for example --k 1,3,5.")
        with_baselines(list(self.k))
        if self.decoder_python is not None and self.decoder is None:
            raise InputError("decoder-python runs a decoder: name it with --decoder.")
        check_promise(self.promise, self.decoder, self.mechanism)

    def held_to(self, mechanism: str) -> str:
        """Returns what the decoder is held to; empty for our own engine.

        Args:
            mechanism: Full name of the mechanism that gives its budgets.
        """
        return "" if self.decoder is None else held_to(self.promise, mechanism)


def _read_corpus(value: Any, name: str, path: Path) -> dict[str, dict[str, Any]]:
    """Reads the tables of classes, with file names as seen from the design file."""
    if not isinstance(value, dict) or not all(isinstance(table, dict) for table in value.values()):
        raise InputError(f"{path}: each class must be a table [classes.NAME], got {value!r}.")
    tables = {name: dict(table) for name, table in value.items()}
    for table in tables.values():
        if isinstance(table.get("file"), str):
            table["file"] = str(path.parent / table["file"])
    return tables


@dataclass(frozen=True, kw_only=True)
class WorkloadSettings(Group):
    """Which prompts a run takes; `corpus` are the `[classes.NAME]` tables of a design file."""

    prompts: str | None = prompts_option(
        None, "JSON Lines file of prompts.", unset="the pair's own", common=True
    )
    limit: int | None = prompts_option(
        None, "Largest number of prompts; 0 for all.", least=0, unit=" (0: all prompts)",
        unset="48 of the lab's", common=True,
    )  # fmt: skip
    data: str | None = prompts_option(None, "Directory with the paper's six files of prompts.")
    classes: tuple[str, ...] = prompts_option(
        (), "Only these classes.", metavar="NAME,...", unset="all",
        file_form="a list of names, or [classes.NAME] tables with file and prompt",
    )  # fmt: skip
    cap: Mapping[str, int] = prompts_option(
        {}, "Most prompts of each class: neutral=10,val=10.", metavar="CLASS=N,...",
        form="CLASS=N, for example --cap neutral=20",
        file_form="a table such as cap.neutral = 20",
    )  # fmt: skip
    corpus: Mapping[str, Mapping[str, Any]] = prompts_option(
        {}, "Classes of any other files, by name.", read=_read_corpus
    )
    chat_template: bool = prompts_option(False, "Put prompts into the model's chat template.")

    def __post_init__(self) -> None:
        super().__post_init__()
        sources = {"prompts": self.prompts, "data": self.data, "[classes.NAME] tables": self.corpus}
        given = [name for name, value in sources.items() if value not in (None, {})]
        if len(given) > 1:
            raise InputError(f"{' and '.join(given)} both name a workload; give one of them.")
        for name in self.classes:
            if self.classes.count(name) > 1:
                raise InputError(f"class {name!r} is named twice in classes; name it once.")
        for name, most in self.cap.items():
            if most < 1:
                raise InputError(
                    f"cap of class {name!r} must be at least 1, got {most}; to leave a class out, "
                    "name the others with --classes."
                )


@dataclass(frozen=True, kw_only=True)
class ProtocolSettings(Group):
    """Under which protocol a run is made and reported."""

    protocol: str = protocol_option(
        "sound", "sound, or paper: its seeds, k 3,5, 10 each, its files.",
        choices=("sound", "paper"), common=True,
    )  # fmt: skip
    variant: str = protocol_option(
        "code", "Where the paper's text and code differ: code or text.", choices=("code", "text")
    )
    coupled: bool = protocol_option(
        False, "Micro-batches of 8 share their draws, as in the paper's text."
    )
    baselines: bool = protocol_option(
        True, "Run each model alone too; only the paper goes without."
    )
    delta: float = protocol_option(
        DELTA, "Level of all mean bounds together, over classes x budgets.", above=0, below=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol != "paper" and self.variant != "code":
            raise InputError("variant = text is a reading of the paper; it needs --protocol paper.")
        if self.coupled and self.protocol != "paper":
            raise InputError(
                "coupled is how the paper describes its own draws; it needs --protocol paper."
            )
        if not self.baselines and self.protocol != "paper":
            raise InputError(
                "no-baselines is for --protocol paper, which has none: without the two models "
                "alone it cannot be seen what a budget changed."
            )


_AFTER = "Use temperature or repetition-penalty, which act on both models before the solve."
_TRUNCATES = f"it truncates the law after it was charged. {_AFTER}"


@dataclass(frozen=True, kw_only=True)
class DecodingSettings(Group):
    """What happens to both logit vectors before the solve, and the prefix debt."""

    refused: ClassVar[Mapping[str, str]] = {
        "top_k": _TRUNCATES,
        "top_p": _TRUNCATES,
        "min_p": _TRUNCATES,
        "typical_p": _TRUNCATES,
        "greedy": "it serves a point mass, whose divergence is -log p_safe(y), not the charge. "
        + _AFTER,
        "do_sample": "greedy decoding serves a point mass, whose divergence is not the charge. "
        + _AFTER,
        "num_beams": f"beam search serves a law that no step was charged for. {_AFTER}",
        "logits_processor": "whatever acts after the solve changes the served law unseen. "
        + _AFTER,
    }

    max_new_tokens: int = decoding_option(200, "Length limit T.", common=True)
    temperature: float = decoding_option(1.0, "On both models, before the solve.")
    repetition_penalty: float = decoding_option(1.0, "On both models, before the solve.")
    prefix_n: int = decoding_option(5, "Prompt tokens that make up the debt.")
    prefix_debt: bool = decoding_option(True, "Charge prompts a prefix debt.")
    debt: str = decoding_option(
        "positives", "positives or official; with -raw, before temperature."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # Their own checks name the option.
        _ = self.decoding, self.debt_rule

    @property
    def decoding(self) -> Decoding:
        """Warps and length limit."""
        return Decoding(self.max_new_tokens, self.temperature, self.repetition_penalty)

    @property
    def debt_rule(self) -> DebtRule:
        """The prefix debt."""
        return DebtRule(self.prefix_n if self.prefix_debt else 0, self.debt)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class DeviceSettings(Group):
    """Where and in which precision models are computed."""

    threads: int = machine_option(1, "Torch threads, 1 or 2; two where no bit changes.")
    device: str = machine_option("cpu", "Torch device.", common=True)
    dtype: str = machine_option("float32", "Precision of the forward passes.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_threads(self.threads)


# Rows decoded together where nothing speaks for more.
USUAL_BATCH = 32


@dataclass(frozen=True, kw_only=True)
class MachineSettings(DeviceSettings):
    """Where and how fast a run decodes; of these only seed and precision change a record."""

    seed: int = machine_option(0, "Run seed.")
    batch: int | None = machine_option(
        None, "Rows decoded together; changes speed only.", least=1, unset="by rows and memory"
    )
    mixed: bool = machine_option(False, "Continue a run that a machine of other arithmetic began.")
    safe_device: str | None = machine_option(
        None, "Another device for the safe model.", unset="the same"
    )
    together: bool = machine_option(
        False, "Both models step at once; changes speed only.", unset="-"
    )
    speculate: int = machine_option(0, "Tokens that the safe model guesses ahead; speed only.")
    ray: str | None = machine_option(
        None, "Decode on a Ray cluster: this machine's own, auto, or HOST:PORT.",
        metavar="[ADDRESS]", bare="local",
    )  # fmt: skip
    workers: int | None = machine_option(
        None, "Processes that decode; changes speed only.", least=1, unset="as many as pay"
    )
    out: str | None = machine_option(
        None, "Run directory.", unset="runs/run-<design hash>", common=True
    )

    def __post_init__(self) -> None:
        if self.threads > 2:
            check_threads(
                self.threads,
                f" More cores are used by processes: --workers {self.threads}.",
            )
        super().__post_init__()
        if not 0 <= self.speculate <= 64:
            raise InputError(
                f"speculate must be 0 (off) to 64 tokens, got {self.speculate}; 2 to 4 is usual."
            )
        if self.speculate and self.together:
            raise InputError(
                "speculate and together exclude each other: the risky model reads what the safe "
                "one has guessed."
            )
        if self.ray is None:
            self._check_local_workers()
        elif self.ray not in ("local", "auto") and not _ADDRESS.fullmatch(self.ray):
            raise InputError(
                f"ray must be local (a cluster of this machine's own), auto, or HOST:PORT of the "
                f"cluster's head, as `ray start --head` prints it; got {self.ray!r}."
            )

    def _check_local_workers(self) -> None:
        if (self.workers or 1) == 1:
            return
        if self.threads > 1:
            raise InputError(
                f"workers = {self.workers} and threads = {self.threads} exclude each other: a "
                "worker has one thread. Leave out --threads."
            )
        if self.device != "cpu" or (self.safe_device or "cpu") != "cpu":
            raise InputError(
                f"workers = {self.workers} share the models in memory, which a device such as "
                f"{self.device!r} does not allow; add --ray, which gives each a device."
            )


@dataclass(frozen=True, kw_only=True)
class RunSettings(
    MachineSettings,
    DecodingSettings,
    ProtocolSettings,
    WorkloadSettings,
    TrustSettings,
    PromiseSettings,
    PairSettings,
):
    """Everything that `nafaudit run` takes."""

    unlisted: ClassVar[frozenset[str]] = frozenset({"corpus"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol == "paper" and self.seed != 0:
            raise InputError(
                f"seed = {self.seed} has no effect in the paper's protocol, whose seeds follow "
                "from the prompts' ids; leave it out, or use --protocol sound."
            )
        if self.coupled and self.decoder is not None:
            raise InputError(
                f"coupled rows share our own engine's draws; the black box {self.decoder!r} draws "
                "by itself. Leave out --coupled."
            )
        if (self.workers or 1) > 1 and self.decoder is not None:
            raise InputError(
                f"workers decode with our own engine; the black box {self.decoder!r} answers in "
                "one process of its own. Leave out --workers."
            )
        if self.ray is not None and self.decoder is not None:
            raise InputError(
                f"ray spreads our own engine; the black box {self.decoder!r} answers in one "
                "process of its own, on this machine. Leave out --ray."
            )

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what a protocol, a pair or a decoder sets unless the user does."""
        found = cls.of_protocol(given.get("protocol", "sound"))
        if "safe" not in given:
            # An unknown pair has no defaults; what is wrong with it is said later.
            found |= PAIR_DEFAULTS.get(given.get("pair", "lab"), {})
        # The published decoder has a debt of its own; held to another, it would seem to overspend.
        # It counts it in the models' own laws, which differ from those it serves only where these
        # are warped: elsewhere the shorter name, under which its runs have always been kept.
        if given.get("decoder") == "anchoreddecode":
            warps = ("temperature", "repetition_penalty")
            warped = any(given.get(name, 1.0) != 1.0 for name in warps)
            found["debt"] = "official-raw" if warped else "official"
        return found

    @classmethod
    def of_protocol(cls, protocol: str) -> dict[str, Any]:
        """Returns what a protocol sets; T = 200, temperature 1 and prefix-n 5 are those of both."""
        if protocol == "paper":
            return {"k": (3.0, 5.0), "trajectories": 10, "limit": 0}
        return {}

    @property
    def budgets(self) -> tuple[float, ...]:
        """Budgets with both baselines, from the smallest up."""
        every = with_baselines(list(self.k))
        return every if self.baselines else tuple(k for k in every if k in map(as_budget, self.k))


@dataclass(frozen=True, kw_only=True)
class JunitSettings(Group):
    """A file for CI."""

    junit: Path | None = ci_option(
        None, "Also write the answer as a JUnit XML file, for CI.", metavar="FILE"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # Said before minutes are spent.
        if self.junit is not None and (self.junit.is_dir() or not self.junit.parent.is_dir()):
            raise InputError(
                f"junit {self.junit} cannot be written: name a file in an existing directory."
            )


@dataclass(frozen=True, kw_only=True)
class GateSettings(JunitSettings):
    """Thresholds that decide the answer of a command, and a file for CI."""

    fail_on: tuple[str, ...] = ci_option(
        (), "Fail, with status 1, on these words too: suspect, idle, vacuous.", metavar="WORD,...",
        choices=FAIL_ON, form="words of suspect, idle, vacuous, as --fail-on suspect,idle",
        unset="none",
    )  # fmt: skip
    min_executions: int | None = ci_option(
        None, "Trajectories that every budget needs for a verdict.",
        least=MIN_TRAJECTORIES, why="Fewer say nothing about a mechanism.", unset="20",
    )  # fmt: skip

    @property
    def thresholds(self) -> Thresholds:
        """What is asked of the answer beyond the budgets."""
        return Thresholds(self.fail_on, self.min_executions or 0)


@dataclass(frozen=True, kw_only=True)
class GatedRunSettings(GateSettings, RunSettings):
    """Everything that `nafaudit run` takes on the command line: a run, and what CI asks of it."""


@dataclass(frozen=True, kw_only=True)
class PlanSettings(RunSettings):
    """Everything that `nafaudit plan` takes; a design file may have all options of a run."""

    unlisted: ClassVar[frozenset[str]] = frozenset({
        *("decoder", "decoder_python", "decoder_timeout", "promise", "remote_code"),
        *("allow_pickle_weights", "corpus", "chat_template", "variant", "coupled", "baselines"),
        *("delta", "temperature", "repetition_penalty", "prefix_n", "prefix_debt", "debt", "seed"),
        *("mixed", "safe_device", "together", "speculate", "ray", "workers", "out"),
    })  # fmt: skip

    gpu: str | None = machine_option(
        None, "Count memory and time on this GPU, for example h100.", common=True
    )
    gpus: int = machine_option(1, "How many, each with its own pair.", common=True)
    shapes: tuple[str, ...] = machine_option(
        (), "Models to count: names, or config.json files.", metavar="SAFE,RISKY"
    )
    seconds: float = machine_option(3.0, "How long to time decoding; 0: not at all.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gpu is None and (self.shapes or self.gpus != 1):
            raise InputError(
                "gpus and shapes are for counting on a GPU: name it, for example h100."
            )


_log_option = partial(option, section="Of an imported log")


@dataclass(frozen=True, kw_only=True)
class VerifySettings(GateSettings, TrustSettings):
    """Everything that `nafaudit verify` takes."""

    run: Path | None = option(
        None, "Run directory; the latest under runs/ if left out.", argument=True
    )
    pair: str | None = audited_option(None, "A registered pair.", common=True)
    safe: str | None = audited_option(None, "Safe checkpoint, if it moved.", common=True)
    risky: str | None = audited_option(None, "Risky checkpoint, if it moved.", common=True)
    plugin: Path | None = audited_option(
        None, "Source of the plug-in that the run was made by; it is compared, then run.",
        metavar="FILE",
    )  # fmt: skip
    promise: str | None = promise_option(
        None, "What a black box or a log is held to: banked, k-naf or anchored.",
        section="What is audited", unset="as it was made",
    )  # fmt: skip
    sample: int = audited_option(0, "Number of trajectories to replay; 0: all.", common=True)
    scored: int | None = audited_option(
        None, "Trajectories per budget for the sampler tests; 0: none.",
        name="sampler", unset="20; of a black box or a log 240, or 60 if conformity is asked",
    )  # fmt: skip
    debt: str | None = _log_option(None, "positives or official, each also with -raw.")
    prefix_n: int | None = _log_option(None, "Prompt tokens in the debt; 0: none.")
    temperature: float | None = _log_option(None, "On both models.")
    repetition_penalty: float | None = _log_option(None, "On both models.")
    device: str = machine_option("cpu", "Torch device.", common=True)
    threads: int = machine_option(1, "Torch threads.", least=1)
    workers: int | None = machine_option(
        None, "Processes that replay; changes speed only.", least=1, unset="as many as pay"
    )
    # No option: what the user gave for the run just now, whose code may run.
    mechanism: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample < 0 or (self.scored is not None and self.scored < 0):
            raise InputError("sample and sampler must be at least 0 (sample 0: all).")
        if (self.safe is None) != (self.risky is None):
            raise InputError("safe and risky belong together: give both, or neither.")
        if (self.workers or 1) > 1 and (self.threads > 1 or self.device != "cpu"):
            raise InputError(
                f"workers = {self.workers} are for one thread each on the CPU; leave out "
                "--workers, or --threads and --device."
            )
        for word in self.fail_on:
            if word != "suspect":
                raise InputError(
                    f"fail-on {word} is for run and check; a verification can be suspect only."
                )
        _ = self.debt_rule, self.decoding

    @property
    def of_log(self) -> dict[str, Any]:
        """What was said of an imported log's decoder."""
        names = ("debt", "prefix_n", "temperature", "repetition_penalty")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @property
    def debt_rule(self) -> DebtRule:
        """The debt that an imported log's decoder promised."""
        return DebtRule(self.of_log.get("prefix_n", 5), self.of_log.get("debt", "positives"))

    @property
    def decoding(self) -> Decoding:
        """Warps of an imported log's decoder."""
        warps = ("temperature", "repetition_penalty")
        return Decoding(**{name: self.of_log[name] for name in warps if name in self.of_log})


@dataclass(frozen=True, kw_only=True)
class ConformSettings(JunitSettings):
    """Everything that `nafaudit conform` takes; what is None is as the decoder's promise has it."""

    refused: ClassVar[Mapping[str, str]] = DecodingSettings.refused

    decoder: str = option(
        "nafaudit.mechanisms.reference:AnchoredDecoder",
        "package.module:Class, file.py:Class, anchoreddecode, or a mechanism's name.",
        argument=True,
    )
    decoder_python: str | None = audited_option(
        None, "Interpreter that runs it.", unset="this one", common=True
    )
    timeout: float = audited_option(120.0, "Seconds that an answer may take.", common=True)
    mechanism: str | None = audited_option(
        None, "Name, or package.module:Class.", unset="anchored", common=True
    )
    promise: str | None = promise_option(
        None, "What a decoder is held to: banked, k-naf or anchored.", section="What is audited",
        unset="banked, or the --mechanism",
    )  # fmt: skip
    k: tuple[float, ...] | None = audited_option(
        None, "Budgets in nats per token, beside 0 and inf.", metavar="K,...", form=BUDGETS_FORM,
        unset="0.25,1", common=True,
    )  # fmt: skip
    temperature: float | None = decoding_option(
        None, "On both models, before the solve.", unset="1", common=True
    )
    repetition_penalty: float | None = decoding_option(
        None, "On both models, before the solve.", unset="1", common=True
    )
    prefix_n: int | None = decoding_option(
        None, "Prompt tokens that make up the debt.", unset="5", common=True
    )
    prefix_debt: bool | None = decoding_option(
        None, "Charge prompts a prefix debt.", unset="yes", common=True
    )
    debt: str | None = decoding_option(
        None, "positives or official; with -raw, before temperature.", unset="positives",
        common=True,
    )  # fmt: skip
