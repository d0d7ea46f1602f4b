"""Loads prompts, pair, mechanism and arithmetic for a run, from settings or from its records.

Loading has two steps. `UnloadedPair` and `read_inputs` read settings, prompts and tokenizer, and
report what is wrong with them before a model loads. `Workbench.load` loads the models of a
`WorkbenchSpec`, which is plain data, so that another process can load the same. `load_recorded`
loads what a run was made with.

Five types hold what is known, in this order: `RunSettings` (as asked for), `UnloadedPair`
(tokenizer and sizes), `WorkbenchSpec` (what to load), `RunInputs` (prompts, mechanism and spec),
`Workbench` (loaded and probed).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from nafaudit.core.design import Decoding, differences, row_width
from nafaudit.core.errors import InputError
from nafaudit.core.ledger import ledger_of
from nafaudit.core.options import build
from nafaudit.core.processes import can_fork, free_memory, usable_cores
from nafaudit.core.settings import (
    USUAL_BATCH,
    DeviceSettings,
    RunSettings,
    Trust,
    TrustSettings,
    VerifySettings,
)
from nafaudit.engine.decode import Decoder
from nafaudit.engine.probe import Settled, settle
from nafaudit.engine.world import SequenceDecoder
from nafaudit.mechanisms.registry import SequenceMechanism, anchored_on, recorded_mechanism
from nafaudit.mechanisms.registry import mechanism as named_mechanism
from nafaudit.models.checkpoints import (
    STATE,
    check_device,
    check_dtype,
    context_of,
    repository,
    weights_hash,
)
from nafaudit.models.given import pair_of
from nafaudit.models.pair import (
    Pair,
    PromptTokenizer,
    load_pair,
    prompt_tokenizer,
    read_vocabulary,
)
from nafaudit.protocols import Mechanism, Resources
from nafaudit.runner.pairs import (
    PAIRS,
    SOUND,
    AuditProtocol,
    checkpoints_of,
    known_checkpoints,
    limit_of,
    named_pair,
)
from nafaudit.store.run import Run
from nafaudit.workload import Prompt, TokenizedPrompt, Workload, protected_prompts

# More rows than these gain little; nor should their keys and values fill the memory.
_MOST_BATCH = 192
_BATCH_BYTES = 320 << 20
# Tokens that make a process worth its start: about a second of the lab's pair.
_PAYING_TOKENS = 2048


class LoadSettings(Protocol):
    """Settings that decide how checkpoints are loaded."""

    @property
    def dtype(self) -> str:
        """Precision of the forward passes."""

    @property
    def device(self) -> str:
        """Torch device."""

    @property
    def threads(self) -> int:
        """Torch threads."""

    @property
    def trust(self) -> Trust:
        """Permissions of the checkpoints: own code, pickled weights."""


def load_models(
    settings: LoadSettings,
    checkpoints: tuple[str, str],
    *,
    safe_device: str | None = None,
    stops: Iterable[int] | None = None,
) -> Pair:
    """Loads a pair with the threads, device and precision of the settings."""
    torch.set_num_threads(settings.threads)
    return load_pair(
        *checkpoints,
        dtype=settings.dtype,
        device=settings.device,
        safe_device=safe_device,
        stop_ids=stops,
        trust=settings.trust,
    )


@dataclass(frozen=True, kw_only=True)
class ModelSettings(DeviceSettings, TrustSettings):
    """Options of a pair that is loaded for several calls."""


def open_pair(name: str, safe: Any, risky: Any, tokenizer: Any, options: Mapping[str, Any]) -> Pair:
    """Loads a registered pair or two checkpoints, or makes a pair of two loaded models.

    Args:
        name: A registered pair, if neither model is given.
        safe: A checkpoint, or a model; None if not given.
        risky: The same.
        tokenizer: Of two models that are loaded; None if not given.
        options: Those of `ModelSettings`.

    Raises:
        InputError: Something is wrong with the models, or they do not fit together.
    """
    settings = build(ModelSettings, options)
    if not isinstance(name, str):
        raise InputError(
            f"the name of a pair must be text, got a {type(name).__name__}; models are given as "
            "load_pair(safe=..., risky=...)."
        )
    if safe is None and risky is None:
        if tokenizer is not None:
            raise InputError("a tokenizer is given with two loaded models: safe= and risky=.")
        return replace(load_models(settings, named_pair(name).locate()), name=name)
    if safe is None or risky is None:
        raise InputError("safe and risky belong together: give both, or neither and a name.")
    if isinstance(safe, str | Path) and isinstance(risky, str | Path) and tokenizer is None:
        return load_models(settings, (str(safe), str(risky)))
    if options:
        raise InputError(
            f"{next(iter(options))} decides how a checkpoint is loaded; loaded models are taken "
            "as they are. Leave it out."
        )
    return pair_of(safe, risky, tokenizer)


def mechanism_of(settings: RunSettings) -> Mechanism:
    """Returns the mechanism that the settings name, before it is bound to a run's resources."""
    mechanism = named_mechanism(settings.mechanism, settings.debt_rule)
    if not isinstance(mechanism, SequenceMechanism):
        return mechanism
    if settings.decoder is not None:
        raise InputError(
            f"a decoder is held to the law of every step, which {settings.mechanism} does not "
            "have; leave out --mechanism, or name a step-level one."
        )
    return mechanism.of_length(settings.max_new_tokens)


def protected_passages(
    prompts: Iterable[TokenizedPrompt], pair: str | None = None
) -> tuple[str, ...]:
    """Returns protected text: of a registered pair, and the references of protected prompts."""
    own = PAIRS[pair].passages() if pair in PAIRS else []
    texts = [passage.text for passage in own]
    texts += [item.prompt.reference for item in protected_prompts(prompts)]
    return tuple(dict.fromkeys(texts))


def resources_of(tokenizer: Any, passages: Sequence[str]) -> Resources:
    """Returns what a mechanism may be bound to; needs no model."""

    def split(text: str) -> tuple[int, ...]:
        return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])

    return Resources(read_vocabulary(tokenizer, (), ()).pieces, split, passages)


@dataclass(frozen=True)
class WorkbenchSpec:
    """Plain data from which a workbench is loaded, here or in another process.

    Attributes:
        settings: What was asked for.
        checkpoints: The safe and the risky one.
        width: Positions per row.
        chat: What a design records of the chat template.
        stops: Ids that end a row; None for what the models declare.
        passages: Protected text, if the mechanism requires it.
        rows: Trajectories that are asked for at once; 0 if that is not known.
        batch: Rows decoded together; 0 if that is yet to be chosen.
    """

    settings: RunSettings
    checkpoints: tuple[str, str]
    width: int
    chat: str = ""
    stops: tuple[int, ...] | None = None
    passages: tuple[str, ...] = ()
    rows: int = 0
    batch: int = 0

    @property
    def shape(self) -> dict[str, Any]:
        """Returns options of the engine, none of which changes a record."""
        settings = self.settings
        return {
            "width": self.width,
            "batch": self.batch or settings.batch or USUAL_BATCH,
            "speculate": settings.speculate,
            "threaded": settings.together,
        }

    def mechanism(self) -> Mechanism:
        """Builds the mechanism, ready to serve, where prompts and tokenizer are not at hand."""
        mechanism = mechanism_of(self.settings)
        return _bound(
            mechanism, lambda: _tokenizer_of(self.settings, self.checkpoints), self.passages
        )


def row_bytes(pair: Pair, width: int) -> int:
    """Returns the memory of a row: keys and values of both models, and a step's logits."""
    found = 0
    for model in (pair.safe, pair.risky):
        config = model.config.get_text_config()
        heads = config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        shared = getattr(config, "num_key_value_heads", None) or heads
        numbers = 2 * config.num_hidden_layers * shared * size * width + 2 * len(pair.vocabulary)
        found += numbers * model.dtype.itemsize
    return found


def chosen_batch(pair: Pair, spec: WorkbenchSpec) -> int:
    """Returns how many rows to decode together, from the rows asked for and their memory.

    A step of many rows costs less for each: on the lab's pair a token of 96 rows takes two thirds
    of a token of 32. But every process should be given rows twice, so that all end together.
    """
    on_cpu = pair.risky.device.type == pair.safe.device.type == "cpu"
    if not on_cpu or spec.settings.decoder is not None:
        return USUAL_BATCH
    room = min(_BATCH_BYTES, free_memory() / 4) // row_bytes(pair, spec.width)
    if not spec.rows:  # a search or an attack: as many as a round of it has
        return int(max(USUAL_BATCH, min(room, _MOST_BATCH)))
    share = spec.rows // (2 * paying_workers(spec.settings, spec.rows))
    return int(max(USUAL_BATCH, min(share, room, _MOST_BATCH)))


def paying_workers(settings: RunSettings, rows: int) -> int:
    """Returns how many processes to decode some rows with: as asked for, or as many as pay.

    A fork takes a few hundredths of a second, but a small batch costs more for each row. Code of a
    plug-in is forked only if the user asks for workers: it may have threads of its own.
    """
    if settings.ray is not None:  # a worker of a cluster is one process
        return 1
    if settings.workers is not None:
        return max(1, min(settings.workers, rows))
    on_cpu = settings.device == "cpu" and (settings.safe_device or "cpu") == "cpu"
    alone = settings.threads > 1 or settings.together or ":" in settings.mechanism
    if alone or not on_cpu or not can_fork():
        return 1
    pay = min(rows // USUAL_BATCH, rows * settings.max_new_tokens // _PAYING_TOKENS)
    return max(1, min(usable_cores(), pay))


@dataclass(frozen=True)
class UnloadedPair:
    """A pair before its weights load.

    Attributes:
        settings: What was asked for.
        checkpoints: The safe and the risky one.
        mechanism: What is audited, not yet bound to resources.
        tokenizer: Splits prompts.
        context: Positions that both models have.
        protocol: What decides where a row ends.
    """

    settings: RunSettings
    checkpoints: tuple[str, str]
    mechanism: Mechanism
    tokenizer: PromptTokenizer
    context: int
    protocol: AuditProtocol = SOUND

    @classmethod
    def read(cls, settings: RunSettings, protocol: AuditProtocol = SOUND) -> UnloadedPair:
        """Reads a pair's tokenizer and size.

        Raises:
            InputError: Mechanism, precision, device or checkpoints cannot be what is asked for.
        """
        mechanism = mechanism_of(settings)
        check_dtype(settings.dtype)
        if settings.ray is None:  # the driver of a cluster need not have what its workers have
            check_device(settings.device)
            check_device(settings.safe_device or settings.device)
        checkpoints = checkpoints_of(settings)
        tokenizer = _tokenizer_of(settings, checkpoints)
        context = context_of(*checkpoints, trust=settings.trust)
        return cls(settings, checkpoints, mechanism, tokenizer, context, protocol)

    def tokenized(self, prompts: Iterable[Prompt]) -> list[TokenizedPrompt]:
        """Returns prompts with their token ids."""
        return [TokenizedPrompt(prompt, self.tokenizer.ids(prompt.text)) for prompt in prompts]

    def spec(self, needed: int, prompts: Sequence[TokenizedPrompt], rows: int = 0) -> WorkbenchSpec:
        """Returns what to load.

        Args:
            needed: Positions that the longest prompt and its output take.
            prompts: The whole workload: a mechanism may require its protected references.
            rows: Trajectories that will be asked for at once; 0 if that is not known.
        """
        settings, end = self.settings, self.tokenizer.tokenizer.eos_token_id
        stops = self.protocol.stops(settings, None if end is None else int(end))
        passages: tuple[str, ...] = ()
        if self.mechanism.requires is not None:
            pair = settings.pair if settings.safe is None else None
            passages = protected_passages(prompts, pair)
        width, chat = row_width(needed, self.context), self.tokenizer.chat
        return WorkbenchSpec(settings, self.checkpoints, width, chat, stops, passages, rows)

    def bound(self, passages: Sequence[str]) -> Mechanism:
        """Returns the mechanism, ready to serve."""
        return _bound(self.mechanism, lambda: self.tokenizer, passages)


def _bound(
    mechanism: Mechanism, tokenizer: Callable[[], PromptTokenizer], passages: Sequence[str]
) -> Mechanism:
    """Returns the mechanism, ready to serve; the tokenizer is read only if it is required."""
    if mechanism.requires is None:
        return mechanism
    return mechanism.bind(resources_of(tokenizer().tokenizer, passages))


def _tokenizer_of(settings: RunSettings, checkpoints: tuple[str, str]) -> PromptTokenizer:
    return prompt_tokenizer(
        *checkpoints,
        chat=settings.chat_template,
        # The paper says that prompts are split by the risky model's tokenizer; its code does not.
        by_risky=settings.variant == "text",
        trust=settings.trust,
    )


@dataclass(frozen=True)
class RunInputs:
    """Inputs of a run: what it is to decode, and what to load for it; no model is loaded yet.

    Attributes:
        workload: All prompts that the run could have.
        tokenized: The same in token ids.
        chosen: Those that a limit leaves.
        mechanism: What is audited, ready to serve.
        spec: What to load.
    """

    workload: Workload
    tokenized: list[TokenizedPrompt]
    chosen: list[TokenizedPrompt]
    mechanism: Mechanism
    spec: WorkbenchSpec


def read_inputs(settings: RunSettings, protocol: AuditProtocol = SOUND) -> RunInputs:
    """Reads the prompts of a run.

    Raises:
        InputError: Something is wrong with prompts or settings.
    """
    workload = protocol.workload(settings)
    pair = UnloadedPair.read(settings, protocol)
    tokenized = pair.tokenized(workload.prompts)
    where = {name: source.where for name, source in workload.sources.items()}
    if empty := [p.prompt.id for p in tokenized if not p.tokens]:
        raise InputError(f"{where[empty[0]]}: prompt {empty[0]!r} has no tokens; leave it out.")
    longest = max(tokenized, key=lambda p: len(p.tokens))
    needed = len(longest.tokens) + settings.max_new_tokens
    if needed > pair.context:
        raise InputError(
            f"{where[longest.prompt.id]}: prompt {longest.prompt.id!r} has "
            f"{len(longest.tokens)} tokens; with {settings.max_new_tokens} new ones "
            f"it does not fit the pair's context of {pair.context}. Lower --max-new-tokens or "
            "leave the prompt out."
        )
    limit = limit_of(settings)
    chosen = tokenized[:limit] if limit else tokenized
    rows = len(chosen) * len(settings.budgets) * settings.trajectories
    spec = pair.spec(needed, tokenized, rows)
    return RunInputs(workload, tokenized, chosen, pair.bound(spec.passages), spec)


@dataclass(frozen=True)
class ProbeResult:
    """Result of the probe of a machine before a run.

    Attributes:
        batch_free: True if records do not depend on their batch.
        facts: For the session's line.
    """

    batch_free: bool
    facts: dict[str, Any]

    @property
    def digest(self) -> str:
        """Hash of the probe's records, equal on machines that compute the same bits."""
        return str(self.facts["probe"]["digest"])


@dataclass(frozen=True)
class Workbench:
    """A pair and a mechanism, loaded, with the arithmetic that this machine was found to need.

    Attributes:
        spec: What it was loaded from.
        pair: The models.
        mechanism: What is audited.
        decoding: Warps and length limit.
        settled: By which arithmetic it decodes, and what was seen of that.
    """

    spec: WorkbenchSpec
    pair: Pair
    mechanism: Mechanism
    decoding: Decoding
    settled: Settled

    @classmethod
    def load(
        cls,
        spec: WorkbenchSpec,
        mechanism: Mechanism | None = None,
        decoding: Decoding | None = None,
        *,
        depends: str = "",
        pair: Pair | None = None,
    ) -> Workbench:
        """Loads the models and probes the machine.

        Args:
            spec: What to load.
            mechanism: What is audited, ready to serve; that of the spec if None.
            decoding: Warps and length limit; those of the settings if None.
            depends: Why rows must be constant, if another machine found that they must.
            pair: The models, if they are loaded already.
        """
        settings = spec.settings
        mechanism, decoding = mechanism or spec.mechanism(), decoding or settings.decoding
        if pair is None:
            pair = load_models(
                settings, spec.checkpoints, safe_device=settings.safe_device, stops=spec.stops
            )
        if not spec.batch:
            spec = replace(spec, batch=settings.batch or chosen_batch(pair, spec))
        settled = settle(pair, mechanism, decoding, depends=depends, **spec.shape)
        return cls(spec, pair, mechanism, decoding, settled)

    @property
    def probe(self) -> ProbeResult:
        """Returns the result of the probe, for a session's line."""
        probe, numerics = self.settled.probe, self.settled.numerics
        facts = {"probe": asdict(probe), "arithmetic": numerics.facts()}
        return ProbeResult(probe.batch_free, facts)

    @property
    def vocabulary(self) -> dict[str, Any]:
        """Returns what token ids stand for, as a run keeps it."""
        vocabulary = self.pair.vocabulary
        return {
            # Bytes, written as Latin-1: a token may be half a character.
            "pieces": [p if p is None else p.decode("latin-1") for p in vocabulary.pieces],
            "special": sorted(vocabulary.special),
            "stops": sorted(vocabulary.stops),
        }

    def decoder(self) -> Decoder | SequenceDecoder:
        """Builds our own decoder, of steps or of whole outputs as the mechanism asks."""
        numerics, shape = self.settled.numerics, self.spec.shape
        if isinstance(self.mechanism, SequenceMechanism):
            size: Any = {"width": shape["width"], "batch": shape["batch"]}
            return SequenceDecoder(
                self.pair, self.mechanism, self.decoding, **size, numerics=numerics
            )
        return Decoder(self.pair, self.mechanism, self.decoding, **shape, numerics=numerics)


def load_recorded(run: Run, options: VerifySettings) -> tuple[Mechanism, Pair]:
    """Loads what a run's records are replayed with: the mechanism it promises, and its models.

    Args:
        run: Whose design names both. An imported log is held to KL-anchored decoding, with what
            the user says of the rest.
        options: Where the models are, and which code may run.

    Raises:
        InputError: The promise is not known, or the models are not there or are others.
    """
    identity = run.design["identity"]
    imported = identity["protocol"] == "imported"
    if not imported:
        name = identity.get("promise") or identity["mechanism"]
        mechanism = recorded_mechanism(name, plugin=options.plugin, typed=options.mechanism)
    elif options.plugin is not None:
        raise InputError(f"{run.path} is an imported log, which no plug-in made; leave out plugin.")
    elif (ledger := ledger_of(identity["ledger"])) is None:
        raise InputError(
            f"{run.path} is an imported log whose budget rule is not known "
            f"({identity['ledger']!r}), so no allowance can be recomputed. Import it again with "
            "--ledger banking if that is its rule; nafaudit check judges it as logged."
        )
    elif options.pair is None and options.safe is None:
        raise InputError(
            f"{run.path} is an imported log, which does not say where its models are. Give "
            "--safe and --risky, or --pair."
        )
    else:
        mechanism = anchored_on(ledger, options.debt_rule)
    safe, risky = _recorded_checkpoints(run, options)
    recorded = identity["pair"]
    how: dict[str, Any] = {"stop_ids": run.stops or None}
    if not imported:
        how = {"stop_ids": recorded["stop_ids"], "dtype": recorded["dtype"]}
        # Models that were objects are known by their state, whatever file that is in now.
        how["by_state"] = str(recorded["safe"]).startswith(STATE)
    pair = load_pair(safe, risky, device=options.device, trust=options.trust, **how)
    if not imported and (found := differences(dict(pair.fingerprint), recorded)):
        raise InputError(
            f"the models at {safe} and {risky} are not those of {run.path}; they differ in\n  "
            + "\n  ".join(found)
            + "\nGive the run's own checkpoints with --safe and --risky."
        )
    own = next((s["pair"] for s in run.sessions if s.get("pair")), None)
    passages = protected_passages(run.prompts(), own)
    return mechanism.bind(resources_of(pair.tokenizer, passages)), pair


def _recorded_checkpoints(run: Run, options: VerifySettings) -> tuple[str, str]:
    """Finds the checkpoints: as given, as recorded, or a registered pair with their hashes."""
    if options.safe is not None and options.risky is not None:
        return options.safe, options.risky
    if options.pair is not None:
        return named_pair(options.pair).locate()
    recorded = run.design["identity"]["pair"]

    def pinned(path: str, role: str) -> str | None:
        """Returns a checkpoint that has the recorded hash; a hub id at the recorded commit."""
        want = str(recorded[role])
        if want.startswith("hub:"):  # whatever its branches did since; no hub is asked
            same = want.startswith(f"hub:{repository(path)}@")
            return want.removeprefix("hub:") if same else None
        try:
            return path if Path(path).is_dir() and weights_hash(path) == want else None
        except (OSError, InputError):  # not there, or not whole
            return None

    sessions = [tuple(s["checkpoints"]) for s in run.sessions if s.get("checkpoints")]
    for safe, risky in itertools.chain(reversed(sessions), known_checkpoints()):
        places = pinned(safe, "safe"), pinned(risky, "risky")
        if places[0] is not None and places[1] is not None:
            return places[0], places[1]
    if str(recorded["safe"]).startswith(STATE):
        raise InputError(
            f"{run.path} was made with models that were objects of a Python process: it holds a "
            "hash of their weights and no place to load them from. Give them again in Python, "
            "nafaudit.verify(run, pair), or save them with save_pretrained and give the "
            "directories with --safe and --risky."
        )
    last = f" (last at {' and '.join(sessions[-1])})" if sessions else ""
    raise InputError(
        f"the models of {run.path}{last} are not there, or their weights changed: no checkpoint "
        f"with the recorded hashes was found. Give them with --safe and --risky."
    )
