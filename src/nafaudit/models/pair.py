"""A Pair: a safe and a risky language model over one vocabulary, loaded and checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from nafaudit.core.errors import InputError, UnavailableError, nearest
from nafaudit.core.text import token_bytes

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


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
    """

    safe: Any
    risky: Any
    tokenizer: Any
    vocabulary: Vocabulary
    context: int
    fingerprint: Mapping[str, Any]


def torch_dtype(name: str) -> torch.dtype:
    """Returns the torch dtype of a name given by a user."""
    if name not in DTYPES:
        raise InputError(
            f"unknown dtype {name!r}{nearest(name, DTYPES)} Allowed: {', '.join(DTYPES)}."
        )
    return DTYPES[name]


def load_pair(
    safe: str | Path,
    risky: str | Path,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    stop_ids: Iterable[int] | None = None,
) -> Pair:
    """Loads two checkpoints and checks that they can be audited together.

    Only safetensors weights are read and no remote code runs.

    Args:
        safe: Directory or hub id of the safe model.
        risky: Directory or hub id of the risky model.
        dtype: Precision of the forward passes; laws are float64 whatever this is.
        device: Torch device of both models.
        stop_ids: Ids that end a row; by default every end-of-text id that the tokenizer or
            either model declares.

    Raises:
        InputError: The checkpoints are missing, or their vocabularies differ.
    """
    precision = torch_dtype(dtype)
    check_device(device)
    tokenizers = {name: load_tokenizer(path) for name, path in (("safe", safe), ("risky", risky))}
    same_vocabulary(tokenizers["safe"], tokenizers["risky"])
    tokenizer = tokenizers["safe"]
    models = {
        name: load_model(name, path, precision, device)
        for name, path in (("safe", safe), ("risky", risky))
    }
    vocabulary = read_vocabulary(tokenizer, models.values(), stop_ids)
    for name, model in models.items():
        check_rows(name, model, vocabulary)
    return Pair(
        safe=models["safe"],
        risky=models["risky"],
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        context=min(_context(model.config) for model in models.values()),
        fingerprint={
            "safe": weights_hash(safe, models["safe"]),
            "risky": weights_hash(risky, models["risky"]),
            "vocabulary": vocabulary.hash,
            "special_ids": sorted(vocabulary.special),
            "dtype": dtype,
            "stop_ids": sorted(vocabulary.stops),
        },
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


def _quiet_transformers() -> None:
    """Progress bars of a library would break up ours."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def load_tokenizer(path: str | Path) -> Any:
    """Loads the tokenizer of a checkpoint."""
    from transformers import AutoTokenizer

    _quiet_transformers()

    try:
        return AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UnavailableError(
            f"no tokenizer could be loaded from {str(path)!r} (there is "
            f"{'' if Path(path).is_dir() else 'no '}such a directory): {_first_line(error)} Give "
            "a directory with tokenizer.json, or the id of a model on the hub."
        ) from error


def token_table(tokenizer: Any) -> tuple[str | None, ...]:
    """Token strings by id, with None for ids that the tokenizer skips."""
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
        stops = frozenset(index for index in _flatten(declared) if 0 <= index < len(tokens))
    else:
        stops = frozenset(int(index) for index in stop_ids)
    if outside := sorted(index for index in stops if not 0 <= index < len(tokens)):
        raise InputError(
            f"stop ids {outside} are not among the tokenizer's ids 0 to {len(tokens) - 1}."
        )
    return Vocabulary(tokens, frozenset(tokenizer.all_special_ids), stops, _byte_level(tokenizer))


def _byte_level(tokenizer: Any) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is None or "ByteLevel" in repr(backend.decoder)


def weights_hash(path: str | Path, model: Any) -> str:
    """Content hash of a local checkpoint's configuration and weights, or the hub commit."""
    directory = Path(path)
    if not directory.is_dir():
        commit = getattr(model.config, "_commit_hash", None)
        if commit is None:
            raise InputError(f"{str(path)!r} is neither a directory nor a hub checkpoint.")
        return f"hub:{path}@{commit}"
    digest = hashlib.sha256()
    for file in sorted([directory / "config.json", *directory.glob("*.safetensors")]):
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _flatten(ids: Iterable[Any]) -> set[int]:
    found: set[int] = set()
    for entry in ids:
        if isinstance(entry, int):
            found.add(entry)
        elif entry is not None:
            found |= {int(index) for index in entry}
    return found


def load_model(name: str, path: str | Path, dtype: torch.dtype, device: str) -> Any:
    """Loads the weights of one checkpoint; `name` is what an error calls it."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            str(path),
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UnavailableError(
            f"the {name} model could not be loaded from {str(path)!r}: {_first_line(error)} Give "
            "a directory with config.json and model.safetensors, or a hub id."
        ) from error
    # Transformers would fill the gaps with random numbers, and the audit would be of those.
    if gaps := sorted(map(str, {*loading["missing_keys"], *loading["mismatched_keys"]})):
        raise InputError(
            f"the {name} checkpoint {str(path)!r} lacks {len(gaps)} of the model's tensors, for "
            f"example {gaps[0]}. Download or save it again."
        )
    layer_types = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    if getattr(model, "_is_stateful", False) or layer_types - {
        "full_attention",
        "sliding_attention",
    }:
        raise InputError(
            f"the {name} model ({type(model).__name__}) keeps a state that is not a table of "
            "keys and values, so rows of different length cannot share a batch. Only attention "
            "models are supported."
        )
    return model.to(device).eval()


def check_device(device: str) -> None:
    """Raises if tensors cannot be put on a device."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UnavailableError(
            f"device {device!r} cannot be used here: {_first_line(error)} Try --device cpu."
        ) from error


def context_of(*paths: str | Path) -> int:
    """Positions that all checkpoints have, from their configurations alone."""
    from transformers import AutoConfig

    contexts = []
    for path in paths:
        try:
            config = AutoConfig.from_pretrained(str(path), trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise UnavailableError(
                f"no model configuration could be loaded from {str(path)!r}: "
                f"{_first_line(error)} Give a directory with config.json, or a hub id."
            ) from error
        contexts.append(_context(config))
    return min(contexts)


def _context(config: Any) -> int:
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or {}
    # LongRoPE picks its factors by the longest row of a batch, so a row would feel its
    # neighbours beyond the short range.
    if rope.get("rope_type") == "longrope":
        short = rope.get("original_max_position_embeddings") or getattr(
            text, "original_max_position_embeddings", None
        )
        if short:
            return int(short)
    return int(getattr(text, "max_position_embeddings", None) or 1 << 30)


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__).rstrip(".") + "."
