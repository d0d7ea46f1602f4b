"""What a run decodes and with what: read first, without a model, then loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nafaudit.core.design import row_width
from nafaudit.core.errors import InputError
from nafaudit.core.settings import Settings
from nafaudit.mechanisms.registry import SequenceMechanism
from nafaudit.mechanisms.registry import mechanism as named_mechanism
from nafaudit.models.checkpoints import check_device, check_dtype, context_of
from nafaudit.models.pair import Pair, Wording, load_pair, wording
from nafaudit.protocols import Mechanism
from nafaudit.runner.material import material, material_of
from nafaudit.runner.pairs import checkpoints_of, limit_of, workload_of
from nafaudit.workload import TokenizedPrompt, Workload


@dataclass(frozen=True)
class Order:
    """What a decoder is built of: plain data, so that another machine can build the same one.

    Attributes:
        settings: What was asked for.
        checkpoints: The safe and the risky one.
        stops: Ids that end a row; None for whatever the models declare.
        width: Positions per row.
        passages: Protected text, if the mechanism cannot do without.
    """

    settings: Settings
    checkpoints: tuple[str, str]
    stops: tuple[int, ...] | None
    width: int
    passages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """What a run was asked to decode; no model is loaded yet.

    Attributes:
        workload: All prompts that the run could have.
        tokenized: The same in token ids.
        chosen: Those that a limit leaves.
        mechanism: What is audited.
        order: What decodes it.
        chat: What a design records of the chat template.
    """

    workload: Workload
    tokenized: list[TokenizedPrompt]
    chosen: list[TokenizedPrompt]
    mechanism: Mechanism
    order: Order
    chat: str

    @property
    def width(self) -> int:
        """Positions per row."""
        return self.order.width


def read(settings: Settings) -> Asked:
    """Reads the prompts; whatever is wrong is said here, before a model loads."""
    workload = workload_of(settings)
    mechanism = mechanism_of(settings)
    check_dtype(settings.dtype)
    if settings.ray is None:  # the driver of a cluster need not have what its workers have
        check_device(settings.device)
        check_device(settings.safe_device or settings.device)
    safe, risky = checkpoints_of(settings)
    words = wording_of(settings, safe, risky)
    tokenizer = words.tokenizer
    tokenized = [TokenizedPrompt(p, words.ids(p.text)) for p in workload.prompts]
    context = context_of(safe, risky, trust=settings.trust)
    width = _width(workload, tokenized, settings.max_new_tokens, context)
    stops = stop_ids_of(settings, tokenizer)
    limit = limit_of(settings)
    own = settings.pair if settings.safe is None else None
    given = material_of(tokenizer, tokenized, own)
    order = Order(
        settings,
        (safe, risky),
        None if stops is None else tuple(stops),
        width,
        () if mechanism.requires is None else tuple(given.passages),
    )
    chosen = tokenized[:limit] if limit else tokenized
    mechanism = mechanism.bind(given)
    return Asked(workload, tokenized, chosen, mechanism, order, words.chat)


def ordered_mechanism(order: Order) -> Mechanism:
    """The mechanism of an order, ready to serve, where the workload is not at hand."""
    mechanism = mechanism_of(order.settings)
    if mechanism.requires is None:
        return mechanism
    tokenizer = wording_of(order.settings, *order.checkpoints).tokenizer
    return mechanism.bind(material(tokenizer, order.passages))


def load(order: Order) -> Pair:
    """Loads the models of an order, with its number of threads."""
    settings = order.settings
    torch.set_num_threads(settings.threads)
    return load_pair(
        *order.checkpoints,
        dtype=settings.dtype,
        device=settings.device,
        safe_device=settings.safe_device,
        stop_ids=order.stops,
        trust=settings.trust,
    )


def wording_of(settings: Settings, safe: str, risky: str) -> Wording:
    """How prompts become token ids."""
    return wording(
        safe,
        risky,
        chat=settings.chat_template,
        # The paper says that prompts are split by the risky model's tokenizer; its code does not.
        by_risky=settings.variant == "text",
        trust=settings.trust,
    )


def mechanism_of(settings: Settings) -> Mechanism:
    """What is audited, as the settings name it."""
    mechanism = named_mechanism(settings.mechanism, settings.debt_rule)
    if not isinstance(mechanism, SequenceMechanism):
        return mechanism
    if settings.decoder is not None:
        raise InputError(
            f"a decoder is held to the law of every step, which {settings.mechanism} does not "
            "have; leave out --mechanism, or name a step-level one."
        )
    return mechanism.of_length(settings.max_new_tokens)


def vocabulary_table(pair: Pair) -> dict[str, Any]:
    """What token ids stand for, as a run keeps it."""
    return {
        # Bytes, written as Latin-1: a token may be half a character.
        "pieces": [p if p is None else p.decode("latin-1") for p in pair.vocabulary.pieces],
        "special": sorted(pair.vocabulary.special),
        "stops": sorted(pair.vocabulary.stops),
    }


def stop_ids_of(settings: Settings, tokenizer: Any) -> list[int] | None:
    """The paper's decoder ends a row at the tokenizer's own end of text and nowhere else."""
    if settings.protocol != "paper" or tokenizer.eos_token_id is None:
        return None
    return [int(tokenizer.eos_token_id)]


def _width(workload: Workload, prompts: Sequence[TokenizedPrompt], new: int, context: int) -> int:
    """Positions per row: the longest prompt of the whole workload and T new tokens."""
    where = {name: source.where for name, source in workload.sources.items()}
    if empty := [p.prompt.id for p in prompts if not p.tokens]:
        raise InputError(f"{where[empty[0]]}: prompt {empty[0]!r} has no tokens; leave it out.")
    longest = max(prompts, key=lambda p: len(p.tokens))
    needed = len(longest.tokens) + new
    if needed > context:
        raise InputError(
            f"{where[longest.prompt.id]}: prompt {longest.prompt.id!r} has "
            f"{len(longest.tokens)} tokens; with {new} new ones "
            f"it does not fit the pair's context of {context}. Lower --max-new-tokens or leave "
            "the prompt out."
        )
    return row_width(needed, context)
