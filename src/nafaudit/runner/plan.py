"""Plans a run: what it would take and could show; torch is imported only to time it."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nafaudit.core.design import row_width
from nafaudit.core.draws import sound_stream
from nafaudit.core.errors import InputError, UnavailableError, nearest
from nafaudit.core.finding import MIN_TRAJECTORIES, Outcome, Overall
from nafaudit.core.ledger import is_baseline
from nafaudit.core.settings import USUAL_BATCH, RunSettings
from nafaudit.core.trajectory import STEP_TYPES
from nafaudit.mechanisms.cards import check_name
from nafaudit.runner.gpu import BYTES, Arithmetic, GpuWork, gpu_of, shape_of
from nafaudit.runner.pairs import SOUND, AuditProtocol, checkpoints_of, limit_of, named_pair
from nafaudit.stats.rates import detectable_rate, trajectories_for_rate
from nafaudit.workload import TokenizedPrompt, protected_prompts

# Measured in docs/benchmarks.md; a real run takes less, because its budgets repeat each other.
BYTES_PER_STEP = 16.3
RATES = (0.01, 0.001)
# Characters of a token of English text, where no tokenizer is asked.
_CHARACTERS = 4
# Prompts that are read to time it.
_PROMPTS = 3
_MODEL_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors")


@dataclass(frozen=True)
class Timing:
    """Speed of this machine with the pair, measured on the run's own first rows.

    Attributes:
        loading: Seconds to read prompts and models.
        seconds_per_prompt: Seconds to read a prompt with both models.
        tokens_per_second: Tokens written, over all rows of a batch.
        tokens: Number of tokens that were timed.
        seconds: Time that they took.
        price: Factor by which a constant number of rows slows a full batch; 1 where rows are free.
        why: Why rows are constant; empty where they are free.
        workers: Processes that the run would share its rows among, each as fast as this one.
    """

    loading: float
    seconds_per_prompt: float
    tokens_per_second: float
    tokens: int
    seconds: float
    price: float = 1.0
    why: str = ""
    workers: int = 1


@dataclass(frozen=True)
class Plan:
    """A run that was not run.

    Attributes:
        classes: Prompts by class.
        budgets: Budgets, both baselines included.
        per_prompt: Trajectories per prompt and budget.
        longest: Length limit T.
        protected: Prompts with a protected reference; without any the third verdict is unknown.
        level: One minus the confidence of the limits below.
        timing: What was just measured; None if it could not be.
        untimed: Why nothing was measured; empty if it was.
        arithmetic: Memory and time on a GPU that was named, by data sheet.
    """

    classes: Mapping[str, int]
    budgets: tuple[float, ...]
    per_prompt: int
    longest: int
    protected: int
    level: float = 0.05
    timing: Timing | None = None
    untimed: str = ""
    arithmetic: Arithmetic | None = None

    @property
    def prompts(self) -> int:
        """Prompts of all classes."""
        return sum(self.classes.values())

    @property
    def per_budget(self) -> int:
        """Trajectories under each budget."""
        return self.prompts * self.per_prompt

    @property
    def trajectories(self) -> int:
        """Trajectories in all."""
        return self.per_budget * len(self.budgets)

    @property
    def audited(self) -> tuple[float, ...]:
        """Budgets that get a verdict."""
        return tuple(k for k in self.budgets if not is_baseline(k))

    @property
    def tokens(self) -> int:
        """Tokens, if every output is as long as it may be."""
        return self.trajectories * self.longest

    @property
    def trajectory_rate(self) -> float:
        """Upper limit of the violation rate if none of a budget's trajectories violates it."""
        return detectable_rate(self.per_budget, self.level)

    @property
    def prompt_rate(self) -> float:
        """Returns that limit with prompts as units."""
        return detectable_rate(self.prompts, self.level)

    @property
    def needed(self) -> dict[float, int]:
        """Returns the trajectories a budget that would show rates of interest."""
        return {rate: trajectories_for_rate(rate, self.level) for rate in RATES}

    @property
    def conclusive(self) -> bool:
        """True if a budget that is kept can be called WITHIN."""
        return self.per_budget >= MIN_TRAJECTORIES

    @property
    def overall(self) -> Overall:
        """Whether the run can say that a budget is kept; a plan itself does not fail."""
        word = Outcome.ENOUGH if self.conclusive else Outcome.TOO_FEW
        why = (
            f"{self.per_budget} trajectories under each budget; a verdict needs {MIN_TRAJECTORIES}"
        )
        return Overall(word, why, 0)

    @property
    def bytes_expected(self) -> float:
        """Disk that the records are likely to take, at most: outputs may stop early."""
        return self.tokens * BYTES_PER_STEP

    @property
    def bytes_at_most(self) -> int:
        """Disk that the records would take uncompressed."""
        return self.tokens * sum(np.dtype(dtype).itemsize for dtype in STEP_TYPES.values())

    @property
    def seconds(self) -> float | None:
        """Time to load and decode at most, at the speed just measured; None if it was not.

        Starting, probes of the machine and the report are not counted.
        """
        if self.timing is None:
            return None
        timing = self.timing
        reading = self.prompts * timing.seconds_per_prompt
        writing = self.tokens / timing.tokens_per_second
        return timing.loading + (reading + writing) / timing.workers


@dataclass(frozen=True)
class Hardware:
    """GPUs to plan for.

    Attributes:
        gpu: A name in gpus.csv.
        gpus: Number of GPUs, each with a pair of its own.
        shapes: The safe and the risky model: names in shapes.csv, checkpoints or config.json
            files; those of the settings if empty.
    """

    gpu: str
    gpus: int = 1
    shapes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise InputError(f"gpus must be at least 1, got {self.gpus}.")
        if len(self.shapes) not in (0, 2):
            raise InputError(
                f"shapes must be two, safe and risky, for example --shapes "
                f"tinycomma-1.8b,llama-3.1-8b; got {', '.join(self.shapes)!r}."
            )


def plan(
    settings: RunSettings,
    *,
    seconds: float = 3.0,
    hardware: Hardware | None = None,
    protocol: AuditProtocol = SOUND,
) -> Plan:
    """Counts what the settings ask for, and times a little of it.

    Args:
        settings: What would be run; wrong prompts are an error here as there.
        seconds: How long to time decoding; 0 for not at all.
        hardware: GPUs to count memory and time for.
        protocol: What the settings' protocol has of its own.

    Raises:
        InputError: What would be run cannot be; a model or device that is not here is no error.
    """
    if not 0 <= seconds < math.inf:
        raise InputError(f"seconds must be at least 0 (0: no timing), got {seconds}.")
    prompts = protocol.workload(settings).prompts
    limit = limit_of(settings)
    chosen = prompts[:limit] if limit else prompts
    # Before anything loads: a name may be mistyped.
    check_name(settings.mechanism)
    arithmetic = _arithmetic(settings, [p.text for p in chosen], hardware) if hardware else None
    timing, untimed = _time(settings, seconds, protocol)
    return Plan(
        classes=dict(Counter(prompt.label for prompt in chosen)),
        budgets=settings.budgets,
        per_prompt=settings.trajectories,
        longest=settings.max_new_tokens,
        protected=len(protected_prompts(TokenizedPrompt(prompt, ()) for prompt in chosen)),
        timing=timing,
        untimed=untimed,
        arithmetic=arithmetic,
    )


def _arithmetic(settings: RunSettings, texts: Sequence[str], hardware: Hardware) -> Arithmetic:
    gpu = gpu_of(hardware.gpu)
    if settings.dtype not in BYTES:
        raise InputError(f"unknown dtype {settings.dtype!r}{nearest(settings.dtype, BYTES)}")
    names = hardware.shapes
    if not names and settings.safe is None:
        names = named_pair(settings.pair).shapes or ()
    safe, risky = (shape_of(name) for name in names or checkpoints_of(settings))
    lengths = [len(text) / _CHARACTERS for text in texts]
    longest = math.ceil(max(lengths)) + settings.max_new_tokens
    work = GpuWork(
        prompts=len(texts),
        prompt_tokens=sum(lengths) / len(lengths),
        rows=len(texts) * len(settings.budgets) * settings.trajectories,
        length=settings.max_new_tokens,
        width=row_width(longest),
        batch=settings.batch or USUAL_BATCH,
        sharing=len(settings.budgets),
    )
    return Arithmetic(safe, risky, settings.dtype, gpu, hardware.gpus, work)


def _time(
    settings: RunSettings, seconds: float, protocol: AuditProtocol
) -> tuple[Timing | None, str]:
    """Returns the timing, or None and the reason why decoding cannot be timed."""
    if seconds <= 0:
        return None, "not asked for"
    if settings.decoder is not None:
        return None, "the time of an external decoder is not known; run it on a few prompts"
    try:
        timing = time_decoding(settings, seconds, protocol)
        return timing, "" if timing else "it draws whole outputs; run it on a few prompts"
    except ImportError as error:
        if error.name not in _MODEL_PACKAGES:
            raise
        return None, f"{error.name} is not installed (pip install 'nafaudit[models]')"
    except UnavailableError as error:
        return None, str(error)


class _EnoughError(Exception):
    """Ends the timing in the middle of a row."""


def time_decoding(
    settings: RunSettings, seconds: float, protocol: AuditProtocol = SOUND
) -> Timing | None:
    """Loads the pair and decodes the run's first rows for some seconds; records nothing.

    None for a mechanism that draws whole outputs: a step of one row says nothing about it.
    """
    from nafaudit.engine.decode import Decoder
    from nafaudit.engine.prompts import PromptRequest, RowRequest
    from nafaudit.mechanisms.registry import SequenceMechanism
    from nafaudit.runner.workbench import Workbench, load_models, paying_workers, read_inputs

    start = time.monotonic()
    inputs = read_inputs(settings, protocol)
    spec = inputs.spec
    pair = load_models(
        settings, spec.checkpoints, safe_device=settings.safe_device, stops=spec.stops
    )
    loading = time.monotonic() - start
    if isinstance(inputs.mechanism, SequenceMechanism):
        return None
    workbench = Workbench.load(spec, inputs.mechanism, pair=pair)
    # As many of the run's first prompts as fill a batch, with draws of their own.
    each = min(settings.trajectories, -(-workbench.spec.batch // len(settings.budgets)))
    rows = len(settings.budgets) * each
    requests = [
        PromptRequest(
            item.prompt.id,
            item.tokens,
            tuple(
                RowRequest(k, j, sound_stream(settings.seed, "timing", item.prompt.id, j))
                for j in range(each)
                for k in settings.budgets
            ),
        )
        for item in inputs.chosen[: -(-workbench.spec.batch // rows)]
    ]

    def decode(decoder: Decoder) -> tuple[int, float]:
        """Decodes until time is up; returns tokens from the second step on, and their seconds."""
        tokens, passed, first, start = 0, 0.0, math.nan, time.monotonic()

        def on_step(rows: int) -> None:
            nonlocal tokens, passed, first
            now = time.monotonic()
            if math.isnan(first):
                # The first step allocates caches, and the prompts were read before it.
                first = now
                return
            tokens, passed = tokens + rows, now - first
            if passed > seconds:
                raise _EnoughError

        decoder.on_step = on_step
        with contextlib.suppress(_EnoughError):
            for _ in decoder.decode(requests):
                pass
        if tokens:
            return tokens, max(passed, 1e-6)
        # Every row ended at its first token.
        return len(inputs.chosen), max(time.monotonic() - start, 1e-6)

    decoder = workbench.decoder()
    assert isinstance(decoder, Decoder)
    by_length = sorted(inputs.chosen, key=lambda item: len(item.tokens))
    middle = by_length[len(by_length) // 2].tokens
    decoder.debt(middle)  # warms up
    start = time.monotonic()
    for _ in range(_PROMPTS):
        decoder.debt(middle)
    per_prompt = (time.monotonic() - start) / _PROMPTS
    tokens, passed = decode(decoder)
    workers = paying_workers(settings, spec.rows)
    timing = Timing(loading, per_prompt, tokens / passed, tokens, passed, workers=workers)
    numerics = workbench.settled.numerics
    if numerics.constant is None:
        return timing
    free = workbench.settled._replace(numerics=replace(numerics, constant=None))
    decoder = replace(workbench, settled=free).decoder()
    assert isinstance(decoder, Decoder)
    tokens, passed = decode(decoder)
    price = tokens / passed / max(timing.tokens_per_second, 1e-6)
    return replace(timing, price=price, why=numerics.why)
