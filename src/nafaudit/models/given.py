"""Models that are given as objects: their fingerprint, and how loaders find them under a name."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from nafaudit.core.errors import InputError
from nafaudit.core.named_objects import OBJECT_PREFIX, naming
from nafaudit.models.checkpoints import DTYPES, STATE, state_hash
from nafaudit.models.pair import Pair, load_pair

_NEEDED = "config, state_dict, forward, get_input_embeddings"


@dataclass(frozen=True)
class GivenModel:
    """A model in this process that loaders find under a name.

    Attributes:
        model: The model.
        tokenizer: Its tokenizer.
        hash: What identifies its weights in a design.
    """

    model: Any
    tokenizer: Any
    hash: str


def pair_of(safe: Any, risky: Any, tokenizer: Any) -> Pair:
    """Makes a pair of two loaded models and their tokenizer.

    Raises:
        InputError: They are none, or do not fit together.
    """
    for role, model in (("safe", safe), ("risky", risky)):
        if not all(hasattr(model, part) for part in _NEEDED.split(", ")):
            raise InputError(
                f"{role} is {_described(model)}, which is neither the name of a checkpoint "
                f"nor a causal language model of transformers (with {_NEEDED})."
            )
        if not hasattr(model, "generation_config"):
            raise InputError(
                f"{role} is a {type(model).__name__}, a model without a head, which gives no "
                "probabilities of tokens; load it with AutoModelForCausalLM."
            )
    if not callable(tokenizer) or not hasattr(tokenizer, "get_vocab"):
        got = "none was given" if tokenizer is None else f"got a {type(tokenizer).__name__}"
        raise InputError(
            f"two loaded models need the tokenizer of both, and {got}: "
            "load_pair(safe=model, risky=model, tokenizer=tokenizer)."
        )
    kinds = {str(model.dtype).removeprefix("torch.") for model in (safe, risky)}
    if len(kinds) > 1 or not kinds <= set(DTYPES):
        raise InputError(
            f"the models are of {' and '.join(sorted(kinds))}; give both in one of "
            f"{', '.join(DTYPES)}, for example model.to(torch.float32)."
        )
    hashes = [state_hash(model) for model in (safe, risky)]
    names = [f"{OBJECT_PREFIX}{one.removeprefix(STATE)[:12]}" for one in hashes]
    given = {
        name: GivenModel(model, tokenizer, one)
        for name, model, one in zip(names, (safe, risky), hashes, strict=True)
    }
    with naming(given):
        return load_pair(*names, dtype=kinds.pop(), device=device_of(risky),
                         safe_device=device_of(safe))  # fmt: skip


def _described(given: Any) -> str:
    """Describes a wrong object: its value if that is short, else its type."""
    if isinstance(given, tuple | list):
        few = "" if len(given) == 2 else ", and two are needed, (safe, risky)"
        return f"a {type(given).__name__} of {len(given)}{few}"
    return repr(given) if isinstance(given, int | float) else f"a {type(given).__name__}"


def device_of(model: Any) -> str:
    """Names the device of a model, as settings do: that of its first weights."""
    device = model.get_input_embeddings().weight.device
    return "cpu" if device.type == "cpu" else str(device)


def name_pair(
    pair: Any,
    options: dict[str, Any],
    things: dict[str, Any],
    remarks: list[str],
    known: Collection[str],
    *,
    alone: bool = False,
) -> None:
    """Names the models of a loaded pair: in options the names, in `things` the models by name.

    Args:
        pair: What `load_pair` returned.
        options: What was given by name; gets the names of the models.
        things: Gets the models.
        remarks: Gets what a user should know.
        known: Options that there are.
        alone: True if the safe model alone is wanted.

    Raises:
        InputError: It is no pair, or an option contradicts it.
    """
    if not isinstance(pair, Pair):
        raise InputError(
            f"a pair must be a registered name, two checkpoints or what nafaudit.load_pair "
            f"returned; got {_described(pair)}. Of two loaded models: "
            "load_pair(safe=model, risky=model, tokenizer=tokenizer)."
        )
    safe, risky = pair.checkpoints
    for name, hash_, model in (
        (safe, pair.fingerprint["safe"], pair.safe),
        (risky, pair.fingerprint["risky"], pair.risky),
    ):
        things[name] = GivenModel(model, pair.tokenizer, hash_)
    own = {"dtype": pair.fingerprint["dtype"], "device": device_of(pair.risky)}
    if not alone and device_of(pair.safe) != own["device"]:
        own["safe_device"] = device_of(pair.safe)
    for name, value in own.items():
        if name in known and options.setdefault(name, value) != value:
            raise InputError(
                f"{name} = {options[name]} is not that of the loaded pair, {value}; leave it out, "
                "or load the pair with it."
            )
    if pair.name:
        options["pair"] = pair.name
    else:
        options |= {"safe": safe} if alone else {"safe": safe, "risky": risky}
    if safe.startswith(OBJECT_PREFIX) or risky.startswith(OBJECT_PREFIX):
        remarks.append(
            "the models are objects of this process: the run records a hash of their weights, and "
            "no place to load them from. To verify it, give them again: nafaudit.verify(run, "
            "pair), or save them and give nafaudit verify --safe DIR --risky DIR."
        )
