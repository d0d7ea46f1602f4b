"""A pair of models, a safe model alone, and text to token ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from nafaudit.core.errors import InputError
from nafaudit.core.settings import NO_TRUST, Trust
from nafaudit.core.text import token_bytes
from nafaudit.models.checkpoints import (
    check_device,
    check_dtype,
    check_files,
    context_in,
    context_of,
    load_model,
    load_tokenizer,
    state_hash,
    weights_hash,
)


@dataclass(frozen=True)
class Vocabulary:
    """Token ids and what they mean; ids are the truth, text is for people.

    Attributes:
        tokens: Token string by id; None where the tokenizer has no such id.
        special: Ids that owe no prefix debt.
        stops: Ids that end a row.
        byte_level: True if tokens write bytes in the alphabet of byte-level BPE.
    """

    tokens: tuple[str | None, ...]
    special: frozenset[int]
    stops: frozenset[int]
    byte_level: bool = True

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def pieces(self) -> list[bytes | None]:
        """The bytes of every token; none for special tokens, which are not text."""
        return [
            None
            if token is None or index in self.special
            else token_bytes(token, byte_level=self.byte_level)
            for index, token in enumerate(self.tokens)
        ]

    @property
    def hash(self) -> str:
        """SHA-256 of the id -> token map."""
        return hashlib.sha256(json.dumps(self.tokens).encode()).hexdigest()


@dataclass(frozen=True)
class Pair:
    """Two loaded models that may be decoded together.

    Attributes:
        safe: The model that never saw the protected text.
        risky: The model that did.
        tokenizer: Shared tokenizer (the safe model's, as in the paper's code).
        vocabulary: Its ids, and which of them stop a row.
        context: Positions that both models have.
        fingerprint: What identifies the pair in a design: content hashes, dtype, stop ids.
        checkpoints: Where the models were loaded from, or the names of objects.
        name: Of a registered pair; empty for another one.
    """

    safe: Any = field(repr=False)
    risky: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    vocabulary: Vocabulary = field(repr=False)
    context: int
    fingerprint: Mapping[str, Any]
    checkpoints: tuple[str, str] = ("", "")
    name: str = ""


def load_pair(
    safe: str | Path,
    risky: str | Path,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    safe_device: str | None = None,
    stop_ids: Iterable[int] | None = None,
    trust: Trust = NO_TRUST,
    by_state: bool = False,
) -> Pair:
    """Loads two checkpoints and checks that they can be audited together.

    Args:
        safe: Directory or hub id of the safe model; an id may end in `@revision`.
        risky: Directory or hub id of the risky model.
        dtype: Precision of the forward passes; laws are float64 whatever this is.
        device: Torch device of both models.
        safe_device: Another one for the safe model.
        stop_ids: Ids that end a row; by default every end-of-text id that the tokenizer or
            either model declares.
        trust: What the checkpoints may contain; by default safetensors and no code.
        by_state: True to identify the models as objects are, whatever files they come from.

    Raises:
        InputError: The checkpoints are missing, or their vocabularies differ.
    """
    check_dtype(dtype)
    devices = {"safe": safe_device or device, "risky": device}
    for name in devices.values():
        check_device(name)
    places = (("safe", safe), ("risky", risky))
    for _, path in places:
        check_files(path, trust)
    tokenizers = {role: load_tokenizer(path, trust) for role, path in places}
    same_vocabulary(tokenizers["safe"], tokenizers["risky"])
    tokenizer = tokenizers["safe"]
    models = {
        role: load_model(role, path, dtype=dtype, device=devices[role], trust=trust)
        for role, path in places
    }
    vocabulary = read_vocabulary(tokenizer, models.values(), stop_ids)
    for name, model in models.items():
        check_rows(name, model, vocabulary)
    return Pair(
        safe=models["safe"],
        risky=models["risky"],
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        context=min(context_in(model.config) for model in models.values()),
        fingerprint={
            **{
                role: state_hash(models[role]) if by_state else weights_hash(path, trust)
                for role, path in places
            },
            "vocabulary": vocabulary.hash,
            "special_ids": sorted(vocabulary.special),
            "dtype": dtype,
            "stop_ids": sorted(vocabulary.stops),
        },
        checkpoints=(str(safe), str(risky)),
    )


def check_rows(name: str, model: Any, vocabulary: Vocabulary) -> None:
    """Raises unless a model can score every id of a tokenizer."""
    heads = (model.get_input_embeddings(), model.get_output_embeddings())
    rows = min(head.weight.shape[0] for head in heads)
    if rows < len(vocabulary):
        raise InputError(
            f"the {name} model has {rows} embedding rows for a tokenizer of "
            f"{len(vocabulary)} ids; it cannot score every token. Use the checkpoint that "
            "belongs to this tokenizer."
        )


def token_table(tokenizer: Any) -> tuple[str | None, ...]:
    """Returns token strings by id, with None for ids that the tokenizer skips."""
    by_id: dict[int, str] = {index: token for token, index in tokenizer.get_vocab().items()}
    return tuple(by_id.get(index) for index in range(max(by_id) + 1))


def same_vocabulary(safe: Any, risky: Any) -> None:
    """Raises unless both tokenizers map every id to the same token."""
    ours, theirs = token_table(safe), token_table(risky)
    if ours == theirs:
        return
    shared = sum(a == b and a is not None for a, b in zip(ours, theirs, strict=False))
    raise InputError(
        f"the two models do not share a vocabulary: {len(ours)} and {len(theirs)} ids, of which "
        f"{shared} mean the same token. A budget between their laws has no meaning. Choose a "
        "safe model trained with the risky model's tokenizer."
    )


def read_vocabulary(
    tokenizer: Any, models: Iterable[Any], stop_ids: Iterable[int] | None = None
) -> Vocabulary:
    """Collects the ids of a tokenizer and every id that ends a text."""
    tokens = token_table(tokenizer)
    if stop_ids is None:
        declared = [tokenizer.eos_token_id]
        for model in models:
            declared += [model.config.eos_token_id, model.generation_config.eos_token_id]
        # A declared id outside the tokenizer can never be drawn, so it stops nothing.
        ids = [[one] if isinstance(one, int) else one for one in declared if one is not None]
        stops = frozenset(int(index) for index in chain(*ids) if 0 <= index < len(tokens))
    else:
        stops = frozenset(int(index) for index in stop_ids)
    if outside := sorted(index for index in stops if not 0 <= index < len(tokens)):
        raise InputError(
            f"stop ids {outside} are not among the tokenizer's ids 0 to {len(tokens) - 1}."
        )
    backend = getattr(tokenizer, "backend_tokenizer", None)
    byte_level = backend is None or "ByteLevel" in repr(backend.decoder)
    return Vocabulary(tokens, frozenset(tokenizer.all_special_ids), stops, byte_level)


@dataclass(frozen=True)
class Anchor:
    """One loaded model.

    Attributes:
        model: The safe model.
        tokenizer: Its tokenizer.
        vocabulary: Its ids.
        context: Positions that it has.
        fingerprint: What identifies it: content hashes and dtype.
    """

    model: Any
    tokenizer: Any
    vocabulary: Vocabulary
    context: int
    fingerprint: Mapping[str, Any]


def load_anchor(
    path: str | Path,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    trust: Trust = NO_TRUST,
) -> Anchor:
    """Loads one checkpoint.

    Raises:
        InputError: The checkpoint is missing or cannot score every token.
    """
    tokenizer = load_tokenizer(path, trust)
    model = load_model("safe", path, dtype=dtype, device=device, trust=trust)
    vocabulary = read_vocabulary(tokenizer, [model])
    check_rows("safe", model, vocabulary)
    return Anchor(
        model=model,
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        context=context_of(path, trust=trust),
        fingerprint={
            "safe": weights_hash(path, trust),
            "vocabulary": vocabulary.hash,
            "dtype": dtype,
        },
    )


# Llama's templates name the day; a prompt must not depend on when it is read.
_DATE = "26 Jul 2024"


@dataclass(frozen=True)
class PromptTokenizer:
    """A tokenizer, and the chat template that prompts are put into.

    Attributes:
        tokenizer: Splits text into ids.
        template: Jinja source of the template; empty for prompts as they stand.
    """

    tokenizer: Any
    template: str = ""
    _known: dict[str, tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)

    def ids(self, text: str) -> tuple[int, ...]:
        """Returns the token ids of a prompt; each text is split once."""
        if text not in self._known:
            self._known[text] = tuple(
                self.tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}],
                    chat_template=self.template,
                    add_generation_prompt=True,
                    tokenize=True,
                    return_dict=False,
                    date_string=_DATE,
                )
                if self.template
                else self.tokenizer(text)["input_ids"]
            )
        return self._known[text]

    def count(self, text: str) -> int:
        """Returns how many token ids a prompt has."""
        return len(self.ids(text))

    @property
    def chat(self) -> str:
        """What a design records of the template: the start of its SHA-256, or nothing."""
        return hashlib.sha256(self.template.encode()).hexdigest()[:16] if self.template else ""


def prompt_tokenizer(
    safe: str,
    risky: str,
    *,
    chat: bool = False,
    by_risky: bool = False,
    trust: Trust = NO_TRUST,
) -> PromptTokenizer:
    """Reads the tokenizer of a pair; loads no weights.

    Args:
        safe: The safe checkpoint, whose tokenizer splits prompts as in the paper's code.
        risky: The risky checkpoint, whose template is taken first: it is the one that chats.
        chat: True to put prompts into a template.
        by_risky: True to split prompts by the risky model's tokenizer, as the paper's text says.
        trust: What the checkpoints are permitted.
    """
    tokenizer = load_tokenizer(risky if by_risky else safe, trust)
    if not chat:
        return PromptTokenizer(tokenizer)
    for place in (risky, safe):
        template = load_tokenizer(place, trust).chat_template
        # Some models have several templates by name.
        found = template.get("default") if isinstance(template, dict) else template
        if found:
            return PromptTokenizer(tokenizer, str(found))
    raise InputError(
        f"neither {risky} nor {safe} has a chat template, so prompts cannot be put into one; "
        "leave out --chat-template, or take an instruct model."
    )
