"""One checkpoint: where it is, what it is permitted, and its tokenizer, configuration, weights."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from nafaudit.core.errors import InputError, UnavailableError, nearest
from nafaudit.core.named_objects import object_named
from nafaudit.core.settings import NO_TRUST, Trust

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
# Weights in few bits, numbers between layers in bfloat16; laws are float64 all the same.
QUANTISED = ("8bit", "4bit")
AUTO = "auto"
STATE = "state:"
"""Start of the hash of a model that was given as an object."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SNAPSHOT = re.compile(r"/snapshots/([0-9a-f]{40})/")
# What Transformers looks for in a directory, whole or as the index of several files.
_SAFE, _PICKLED, _INDEX = "model.safetensors", "pytorch_model.bin", ".index.json"
# A name that can hold neither a path nor, in what is hashed, the hash of another file.
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SPREAD = re.compile(r"shard-[0-9]+-model-")


def check_dtype(name: str) -> None:
    """Raises for a precision that is none, or that this machine cannot run."""
    if name in QUANTISED:
        if not torch.cuda.is_available() or find_spec("bitsandbytes") is None:
            raise UnavailableError(
                f"dtype {name!r} needs a CUDA GPU and the package bitsandbytes (pip install "
                "'nafaudit[gpu]'). Without them: --dtype bfloat16."
            )
    elif name not in DTYPES:
        known = (*DTYPES, *QUANTISED)
        allowed = ", ".join(known)
        raise InputError(f"unknown dtype {name!r}{nearest(name, known)} Allowed: {allowed}.")


def check_device(device: str, *, laws: bool = True) -> None:
    """Raises if tensors cannot be put on a device; `auto` spreads a model over all there are.

    Args:
        device: As PyTorch names it.
        laws: Laws are computed there too, which takes float64.
    """
    if laws and device.partition(":")[0] == "mps":
        raise UnavailableError(
            f"device {device!r} has no float64, in which laws and charges are computed. "
            "Use --device cpu, or a CUDA device."
        )
    if device == AUTO:
        if find_spec("accelerate") is None:
            raise UnavailableError(
                "device 'auto' needs the package accelerate (pip install 'nafaudit[gpu]'). "
                "Without it: --device cuda, or cpu."
            )
        return
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UnavailableError(
            f"device {device!r} cannot be used here: {_first_line(error)} Try --device cpu."
        ) from error


def load_tokenizer(path: str | Path, trust: Trust = NO_TRUST) -> Any:
    """Loads the tokenizer of a checkpoint."""
    if (given := object_named(path)) is not None:
        return given.tokenizer
    from transformers import AutoTokenizer

    _quiet_transformers()
    try:
        name, how = _where(path, trust)
        return AutoTokenizer.from_pretrained(name, **how)
    except (OSError, ValueError) as error:
        raise UnavailableError(
            f"no tokenizer could be loaded from {str(path)!r} (it is "
            f"{'a' if Path(path).is_dir() else 'no'} directory here): {_first_line(error)} Give "
            "a directory with tokenizer.json, or the id of a model on the hub."
        ) from error


def load_model(
    role: str,
    path: str | Path,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    trust: Trust = NO_TRUST,
) -> Any:
    """Loads the weights of one checkpoint.

    Args:
        role: What an error calls it.
        path: Directory or hub id, which may end in `@revision`.
        dtype: Precision of the forward passes, or `8bit`, `4bit`.
        device: Torch device, or `auto`.
        trust: What it is permitted.
    """
    if (given := object_named(path)) is not None:
        own = str(given.model.dtype).removeprefix("torch.")
        if own != dtype:
            raise InputError(
                f"the {role} model that was given is of {own}, and {dtype} is asked for; convert "
                f"it, for example with model.to(torch.{dtype})."
            )
        _require_attention(role, given.model)
        return given.model
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    check_dtype(dtype)
    check_device(device, laws=False)
    check_files(path, trust)
    _quiet_transformers()
    try:
        name, how = _where(path, trust)
        if _file(name, how, "custom_generate/generate.py") is not None:
            raise InputError(
                f"{name!r} brings generation code of its own (custom_generate), which is never "
                "run: tokens come from nafaudit's engine. Audit that code behind --decoder, or "
                "take a checkpoint without it."
            )
        model, loading = AutoModelForCausalLM.from_pretrained(
            name,
            **how,
            **_precision(dtype),
            **({"device_map": device} if device == AUTO or dtype in QUANTISED else {}),
            # None takes safetensors where there are any.
            use_safetensors=None if trust.pickle else True,
            output_loading_info=True,
        )
    except UnpicklingError as error:
        raise InputError(
            f"the weights of {str(path)!r} are a pickle file that holds more than tensors; "
            "reading it would run code, which is never done. Convert it to safetensors."
        ) from error
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UnavailableError(
            f"the {role} model could not be loaded from {str(path)!r}: {_first_line(error)} Give "
            f"a directory with config.json and model.safetensors, or a hub id.{_hint(path, trust)}"
        ) from error
    # Transformers would fill the gaps with random numbers, and the audit would be of those.
    if gaps := sorted(map(str, {*loading["missing_keys"], *loading["mismatched_keys"]})):
        raise InputError(
            f"the {role} checkpoint {str(path)!r} lacks {len(gaps)} of the model's tensors, for "
            f"example {gaps[0]}. Download or save it again."
        )
    _require_attention(role, model)
    placed = device == AUTO or dtype in QUANTISED
    return (model if placed else model.to(device)).eval()


def context_of(*paths: str | Path, trust: Trust = NO_TRUST) -> int:
    """Returns the positions that all checkpoints have, from their configurations alone."""
    return min(context_in(load_config(path, trust)) for path in paths)


def load_config(path: str | Path, trust: Trust = NO_TRUST) -> Any:
    """Loads a checkpoint's configuration; no weights are read."""
    if (given := object_named(path)) is not None:
        return given.model.config
    from transformers import AutoConfig

    try:
        name, how = _where(path, trust)
        return AutoConfig.from_pretrained(name, **how)
    except (OSError, ValueError) as error:
        raise UnavailableError(
            f"no model configuration could be loaded from {str(path)!r}: "
            f"{_first_line(error)} Give a directory with config.json, or a hub id."
        ) from error


def context_in(config: Any) -> int:
    """Returns the positions that a model has."""
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


def check_files(path: str | Path, trust: Trust = NO_TRUST) -> None:
    """Raises unless the weights that would load are plain files, which `weights_hash` covers.

    Missing files are left to the loader. A hub's commit covers all of its repository, so
    there only files that are not safetensors are looked for.

    Raises:
        InputError: Other files would load, or an index names what is not a file beside it.
    """
    if object_named(path) is not None:
        return
    try:
        name, how = _where(path, trust)
        if _file(name, how, "adapter_config.json") is not None:
            raise InputError(
                f"{name!r} holds an adapter (adapter_config.json), whose weights and base model "
                "would load from elsewhere. Merge it into its base model, save that, and give it."
            )
        config = load_config(path, trust)
    except (OSError, UnavailableError):
        return
    for part in (config, config.get_text_config()):
        named = getattr(part, "transformers_weights", None)
        covered = "revision" in how and str(named).endswith(".safetensors")
        if named is not None and not covered:
            raise InputError(
                f"the configuration of {name!r} names its weights itself (transformers_weights = "
                f"{named!r}). Take the key out of config.json and call the file {_SAFE}."
            )
    if "revision" in how:
        for index, ending in ((_SAFE + _INDEX, ".safetensors"), (_PICKLED + _INDEX, ".bin")):
            file = _file(name, how, index) if trust.pickle or ending == ".safetensors" else None
            if file is not None:
                _weight_map(file, ending)
        return
    directory = Path(name)
    if "configuration_files" in json.loads((directory / "config.json").read_text("utf-8")):
        raise InputError(
            f"{directory / 'config.json'} names other configurations for some versions of "
            "Transformers (configuration_files). Take the key out, or put the right one in its "
            "place."
        )
    if spread := [file.name for file in directory.iterdir() if _SPREAD.match(file.name)]:
        raise InputError(
            f"{str(directory)!r} holds {spread[0]}, a part of a distributed checkpoint, which "
            "would load in the place of all others. Save the model whole, with save_pretrained."
        )
    _weight_files(directory)


def weights_hash(path: str | Path, trust: Trust = NO_TRUST) -> str:
    """Hashes a local checkpoint's configuration and weights, or returns the hub commit.

    Of the weights exactly the files that load. What a tokenizer decides is recorded elsewhere:
    the vocabulary, the special and stop ids, the prompts in token ids.
    """
    if (given := object_named(path)) is not None:
        return str(given.hash)
    directory = Path(path)
    if not directory.is_dir():
        name, how = _where(path, trust)
        return f"hub:{name}@{how['revision']}"
    digest = hashlib.sha256()
    for file in sorted([directory / "config.json", *_weight_files(directory)]):
        digest.update(file.name.encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


# What a configuration says of how a model came about, not of what it computes.
_HISTORY = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype")


def state_hash(model: Any) -> str:
    """Hashes a model in memory: its configuration, and names, types, shapes and bytes of its state.

    Equal on every device, and for a model that was saved and loaded again.
    """
    config = {k: v for k, v in model.config.to_dict().items() if k not in _HISTORY}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if not isinstance(tensor, torch.Tensor):
            raise InputError(
                f"entry {name!r} of the model's state is no tensor, so the model cannot be "
                "fingerprinted; give a checkpoint."
            )
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        whole = tensor.detach().to("cpu").contiguous().flatten()
        if whole.numel():
            digest.update(whole.view(torch.uint8).numpy().data)
    return f"{STATE}{digest.hexdigest()}"


def _weight_files(directory: Path) -> list[Path]:
    """Returns the files that Transformers loads weights from, in its order of preference.

    The index is among them only where it says what its shards do not say themselves: a tensor
    that two shards hold is read from the one that the index names when weights stay on disk.
    """
    for name, ending in ((_SAFE, ".safetensors"), (_PICKLED, ".bin")):
        if (directory / name).is_file():
            return [directory / name]
        index = directory / (name + _INDEX)
        if not index.is_file():
            continue
        places = _weight_map(index, ending)
        files = [directory / shard for shard in sorted(set(places.values()))]
        if lost := [file for file in files if not file.is_file()]:
            raise UnavailableError(
                f"{index} names {lost[0].name}, which is not beside it. Download or save the "
                "checkpoint again."
            )
        if ending == ".safetensors" and _held(files) != places:
            files.append(index)
        return files
    return []


def _weight_map(index: Path, ending: str) -> dict[str, str]:
    """Reads which file holds which tensor; raises unless each is a plain file beside it."""
    try:
        data = json.loads(index.read_text("utf-8"))
        places, about = data["weight_map"], data["metadata"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{index} is not the index of a checkpoint, with weight_map and metadata: "
            f"{_first_line(error)} Download or save the checkpoint again."
        ) from error
    if not isinstance(places, dict) or not places or not isinstance(about, dict):
        raise InputError(f"{index} names no weights. Download or save the checkpoint again.")
    for name in places.values():
        plain = isinstance(name, str) and _PLAIN.fullmatch(name) and name.endswith(ending)
        if not plain:
            raise InputError(
                f"{index} names {name!r}; the files of an index must be *{ending} beside it, in "
                "letters, digits, '-', '_' and '.'. Save the checkpoint again, with "
                "save_pretrained."
            )
    return places


def _held(files: Sequence[Path]) -> dict[str, str] | None:
    """Returns which shard holds which tensor; None if two hold one tensor or one is broken."""
    from safetensors import SafetensorError, safe_open

    held: dict[str, str] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as shard:
                names = list(shard.keys())
        except (OSError, SafetensorError):
            return None
        if held.keys() & set(names):
            return None
        held |= dict.fromkeys(names, file.name)
    return held


def repository(path: str | Path) -> str:
    """Returns a hub id without its revision."""
    return str(path).partition("@")[0]


def _where(path: str | Path, trust: Trust) -> tuple[str, dict[str, Any]]:
    """Returns a checkpoint's name, its commit, and whether its own code may run.

    Raises:
        OSError: It is no directory, and no such thing is on the hub or in its cache.
    """
    if Path(path).is_dir():
        return str(path), {"trust_remote_code": False}
    name, _, revision = str(path).partition("@")
    pinned = trust.commit_of(name)
    if pinned is not None and revision not in ("", pinned):
        raise InputError(
            f"{path!s} is not the revision whose code was permitted, {name}@{pinned}; name one."
        )
    # A branch may move while a pair loads: whatever is read is read at one commit.
    commit = pinned or revision or "main"
    if not _COMMIT.fullmatch(commit):
        from transformers.utils import cached_file

        file = cached_file(name, "config.json", revision=commit)
        found = _SNAPSHOT.search(Path(str(file)).as_posix())
        if found is None:
            raise OSError(f"the commit of {name}@{commit} could not be found out.")
        commit = found[1]
    return name, {"trust_remote_code": pinned is not None, "revision": commit}


def _file(name: str, how: dict[str, Any], file: str) -> Path | None:
    """Returns where a file of a checkpoint is; None if it has none."""
    from transformers.utils import cached_file

    found = cached_file(
        name,
        file,
        revision=how.get("revision"),
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if found is None else Path(found)


def _precision(dtype: str) -> dict[str, Any]:
    if dtype not in QUANTISED:
        return {"dtype": DTYPES[dtype]}
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_8bit=dtype == "8bit",
        load_in_4bit=dtype == "4bit",
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return {"dtype": torch.bfloat16, "quantization_config": config}


def _require_attention(role: str, model: Any) -> None:
    layer_types = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    if getattr(model, "_is_stateful", False) or layer_types - {
        "full_attention",
        "sliding_attention",
    }:
        raise InputError(
            f"the {role} model ({type(model).__name__}) keeps a state that is not a table of "
            "keys and values, so rows of different length cannot share a batch. Only attention "
            "models are supported."
        )


def _hint(path: str | Path, trust: Trust) -> str:
    """Returns what to do about weights that exist only as pickles."""
    directory = Path(path)
    pickled = directory.is_dir() and any(directory.glob("*.bin"))
    if pickled and not trust.pickle and not any(directory.glob("*.safetensors")):
        return (
            " Its weights are pickle files, which may run code when read: convert them to "
            "safetensors, or give --allow-pickle-weights if you trust their source."
        )
    return ""


def _quiet_transformers() -> None:
    """Switches off the library's progress bars, which would break up ours."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__).rstrip(".") + "."
