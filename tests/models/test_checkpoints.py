"""What a checkpoint is permitted, and where it may lie; a hub's cache is made on the spot."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nafaudit.core.errors import InputError, UnavailableError
from nafaudit.core.settings import Trust
from nafaudit.models.checkpoints import load_model, repository, weights_hash
from nafaudit.models.pair import Pair, load_pair

Paths = Callable[..., tuple[Path, Path]]
COMMIT, OTHER = "ab" * 20, "cd" * 20

PINLESS = ["me/own", "me/own@main", f"own@{COMMIT}", f"me/own@{COMMIT[:12]}"]
# A repository whose model is not the library's: loading it means to run this file.
OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own"

class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, Path], Path]:
    """Puts a checkpoint where Transformers keeps what it fetched; returns the directory."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    modules = tmp_path / "modules"
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(modules))
    monkeypatch.syspath_prepend(str(modules))

    def put(name: str, commit: str, source: Path) -> Path:
        repo = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
        (repo / "refs").mkdir(parents=True, exist_ok=True)
        (repo / "refs" / "main").write_text(commit)
        return Path(shutil.copytree(source, repo / "snapshots" / commit))

    return put


def _logits(pair: Pair) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = pair.risky(torch.tensor([[5, 6, 7]])).logits
    return logits


def test_a_hub_id_loads_at_its_revision_and_is_recorded_by_commit(
    hub: Callable[[str, str, Path], Path], tiny_pair_paths: Paths
) -> None:
    safe, risky = tiny_pair_paths("llama")
    hub("me/safe", COMMIT, safe)
    hub("me/risky", OTHER, safe)
    hub("me/risky", COMMIT, risky)  # main
    pair = load_pair("me/safe", "me/risky")
    assert pair.fingerprint["risky"] == f"hub:me/risky@{COMMIT}"
    assert torch.equal(_logits(pair), _logits(load_pair(safe, risky)))
    older = load_pair("me/safe", f"me/risky@{OTHER}")
    assert older.fingerprint["risky"] == f"hub:me/risky@{OTHER}"
    assert torch.equal(_logits(older), _logits(load_pair(safe, safe)))
    assert repository(f"me/risky@{OTHER}") == "me/risky"
    with pytest.raises(UnavailableError, match="me/none"):
        load_pair("me/safe", "me/none")


def test_code_of_a_repository_runs_only_if_named_at_a_commit(
    hub: Callable[[str, str, Path], Path], tiny_pair_paths: Paths
) -> None:
    _, risky = tiny_pair_paths("llama")
    place = hub("me/own", COMMIT, risky)
    (place / "modeling_own.py").write_text(OWN_CODE)
    config = json.loads((place / "config.json").read_text())
    config |= {
        "model_type": "own",
        "architectures": ["OwnModel"],
        "auto_map": {
            "AutoConfig": "modeling_own.OwnConfig",
            "AutoModelForCausalLM": "modeling_own.OwnModel",
        },
    }
    (place / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError):
        load_pair("me/own", "me/own")
    with pytest.raises(InputError):
        load_pair("me/own", "me/own", trust=Trust((f"me/another@{COMMIT}",)))
    with pytest.raises(InputError, match="not the revision whose code was permitted"):
        load_pair(f"me/own@{OTHER}", "me/own", trust=Trust((f"me/own@{COMMIT}",)))
    pair = load_pair("me/own", "me/own", trust=Trust((f"me/own@{COMMIT}",)))
    assert type(pair.risky).__name__ == "OwnModel"
    assert torch.equal(_logits(pair), _logits(load_pair(risky, risky)))


@pytest.mark.parametrize(
    "entry", ["me/own", "me/own@main", f"own@{COMMIT}", f"me/own@{COMMIT[:12]}"]
)
def test_a_commit_is_forty_digits(entry: str) -> None:
    with pytest.raises(InputError, match="owner/name@commit"):
        Trust((entry,))


def test_generation_code_of_a_checkpoint_is_refused(
    hub: Callable[[str, str, Path], Path], tiny_pair_paths: Paths, tmp_path: Path
) -> None:
    safe, risky = tiny_pair_paths("llama")
    local = Path(shutil.copytree(risky, tmp_path / "local"))
    fetched = hub("me/odd", COMMIT, risky)
    for place in (local, fetched):
        (place / "custom_generate").mkdir()
        (place / "custom_generate" / "generate.py").write_text("raise SystemExit('it ran')")
    for name in (str(local), "me/odd"):
        with pytest.raises(InputError, match="generation code of its own"):
            load_pair(safe, name, trust=Trust((f"me/odd@{COMMIT}",)))


def test_pickled_weights_are_read_only_on_request(tiny_pair_paths: Paths, tmp_path: Path) -> None:
    safe, risky = tiny_pair_paths("llama")
    place = Path(shutil.copytree(risky, tmp_path / "pickled"))
    torch.save(load_file(place / "model.safetensors"), place / "pytorch_model.bin")
    (place / "model.safetensors").unlink()
    with pytest.raises(UnavailableError, match="--allow-pickle-weights"):
        load_pair(safe, place)
    pair = load_pair(safe, place, trust=Trust(pickle=True))
    assert torch.equal(_logits(pair), _logits(load_pair(safe, risky)))
    before = weights_hash(place)
    torch.save({}, place / "pytorch_model.bin")
    assert weights_hash(place) != before


def test_a_pickle_that_would_run_code_is_refused_even_then(
    tiny_pair_paths: Paths, tmp_path: Path
) -> None:
    safe, risky = tiny_pair_paths("llama")
    place = Path(shutil.copytree(risky, tmp_path / "evil"))
    (place / "model.safetensors").unlink()

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "ran",))  # type: ignore[return-value]

    torch.save({"lm_head.weight": Evil()}, place / "pytorch_model.bin")
    with pytest.raises(InputError, match="would run code"):
        load_pair(safe, place, trust=Trust(pickle=True))
    assert not (tmp_path / "ran").exists()


def test_a_model_spread_by_auto_says_the_same(tiny_pair_paths: Paths) -> None:
    safe, risky = tiny_pair_paths("llama")
    assert torch.equal(
        _logits(load_pair(safe, risky, device="auto")), _logits(load_pair(safe, risky))
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_what_needs_a_gpu_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"needs a CUDA GPU .*bfloat16"):
        load_model("safe", tmp_path / "nowhere", dtype="4bit")
    with pytest.raises(UnavailableError, match="device 'cuda' cannot be used here"):
        load_model("safe", tmp_path / "nowhere", device="cuda")
    with pytest.raises(InputError, match=r"unknown dtype 'bf16'.*8bit, 4bit"):
        load_model("safe", tmp_path / "nowhere", dtype="bf16")


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def _sharded(source: Path, place: Path, names: tuple[str, str] = SHARDS) -> Path:
    """The same checkpoint in two files and an index, as save_pretrained writes it."""
    shutil.copytree(source, place)
    tensors = load_file(place / "model.safetensors")
    (place / "model.safetensors").unlink()
    split = {key: names[number % 2] for number, key in enumerate(sorted(tensors))}
    for name in names:
        part = {key: tensors[key] for key, where in split.items() if where == name}
        save_file(part, place / name, metadata={"format": "pt"})
    _write_index(place, split)
    return place


def _write_index(
    place: Path, places: Mapping[str, object], name: str = "model.safetensors"
) -> None:
    data = {"metadata": {"total_size": 0}, "weight_map": dict(places)}
    (place / f"{name}.index.json").write_text(json.dumps(data))


def _configured(place: Path, **keys: object) -> None:
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | keys))


def _as_ever(directory: Path) -> str:
    """The hash of an ordinary checkpoint, as stored runs have it."""
    digest = hashlib.sha256()
    for file in sorted([directory / "config.json", *directory.glob("*.safetensors")]):
        digest.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def test_the_hash_of_an_ordinary_checkpoint_is_what_it_was(
    tiny_pair_paths: Paths, tmp_path: Path
) -> None:
    _, risky = tiny_pair_paths("llama")
    whole = Path(shutil.copytree(risky, tmp_path / "whole"))
    assert weights_hash(whole) == _as_ever(whole)
    sharded = _sharded(risky, tmp_path / "sharded")
    assert weights_hash(sharded) == _as_ever(sharded)
    assert torch.equal(_logits(load_pair(risky, sharded)), _logits(load_pair(risky, risky)))
    # A hub's cache keeps names as links to contents.
    linked = tmp_path / "linked"
    linked.mkdir()
    (tmp_path / "blobs").mkdir()
    for number, file in enumerate(sharded.iterdir()):
        blob = shutil.copy(file, tmp_path / "blobs" / f"{number:040x}")
        (linked / file.name).symlink_to(blob)
    assert weights_hash(linked) == weights_hash(sharded)
    assert torch.equal(_logits(load_pair(risky, linked)), _logits(load_pair(risky, risky)))


@pytest.mark.parametrize(
    "name",
    [
        "sub/w.safetensors",
        "../above.safetensors",
        "./w.safetensors",
        "{absolute}/above.safetensors",
        "w.dat",
        "w.bin",
        "w.SAFETENSORS",
        "..",
        "a\\w.safetensors",
        "w\u00e9.safetensors",
        "",
        3,
        ["w.safetensors"],
    ],
)
def test_an_index_names_plain_files_beside_it(
    name: object, tiny_pair_paths: Paths, tmp_path: Path
) -> None:
    """Beside it lie the weights that were hashed before; what it names would load."""
    safe, risky = tiny_pair_paths("llama")
    place = Path(shutil.copytree(risky, tmp_path / "odd"))
    tensors = load_file(safe / "model.safetensors")
    (place / "model.safetensors").rename(place / "decoy.safetensors")
    (place / "sub").mkdir()
    for file in (place / "sub" / "w.safetensors", tmp_path / "above.safetensors"):
        save_file(tensors, file, metadata={"format": "pt"})
    torch.save(tensors, place / "w.dat")
    torch.save(tensors, place / "w.bin")
    told = name.format(absolute=tmp_path) if isinstance(name, str) else name
    _write_index(place, dict.fromkeys(tensors, told))
    for trust in (Trust(), Trust(pickle=True)):
        with pytest.raises(InputError, match=r"must be \*\.safetensors beside it"):
            load_pair(safe, place, trust=trust)
    with pytest.raises(InputError):
        weights_hash(place)


def test_the_hash_covers_the_files_that_load(tiny_pair_paths: Paths, tmp_path: Path) -> None:
    safe, risky = tiny_pair_paths("llama")
    place = Path(shutil.copytree(risky, tmp_path / "two"))
    (place / "model.safetensors").rename(place / "one.safetensors")
    shutil.copy(safe / "model.safetensors", place / "other.safetensors")
    keys = load_file(place / "one.safetensors")
    hashes, laws = set(), []
    for name in ("one.safetensors", "other.safetensors"):
        _write_index(place, dict.fromkeys(keys, name))
        hashes.add(weights_hash(place))
        laws.append(_logits(load_pair(safe, place)))
    assert not torch.equal(*laws)
    assert len(hashes) == 2
    # A whole file beside an index is what loads; the others may be anything.
    shutil.copy(risky / "model.safetensors", place)
    (place / "config.json").write_bytes((risky / "config.json").read_bytes())
    assert weights_hash(place) == _as_ever(risky)
    assert torch.equal(_logits(load_pair(safe, place)), laws[0])


def test_an_index_that_chooses_between_two_shards_is_hashed(
    tiny_pair_paths: Paths, tmp_path: Path
) -> None:
    _, risky = tiny_pair_paths("llama")
    place = _sharded(risky, tmp_path / "twice")
    for name in SHARDS:
        shutil.copy(risky / "model.safetensors", place / name)
    hashes = set()
    for name in SHARDS:
        other = next(one for one in SHARDS if one != name)
        keys = sorted(load_file(risky / "model.safetensors"))
        _write_index(place, dict.fromkeys(keys, name) | {keys[0]: other})
        hashes.add(weights_hash(place))
    assert len(hashes) == 2


def _adapter(place: Path) -> None:
    (place / "adapter_config.json").write_text('{"base_model_name_or_path": "me/base"}')


def _explicit(place: Path) -> None:
    (place / "sub").mkdir()
    shutil.copy(place / "model.safetensors", place / "sub")
    _configured(place, transformers_weights="sub/model.safetensors")


def _explicit_pickle(place: Path) -> None:
    torch.save(load_file(place / "model.safetensors"), place / "adapter_model.bin")
    _configured(place, transformers_weights="adapter_model.bin")


def _aliased(place: Path) -> None:
    _configured(
        place, attribute_map={"transformers_weights": "other"}, other="sub/model.safetensors"
    )


def _other_configuration(place: Path) -> None:
    shutil.copy(place / "config.json", place / "config.4.0.0.json")
    _configured(place, configuration_files=["config.4.0.0.json"])


def _distributed(place: Path) -> None:
    shutil.copy(place / "model.safetensors", place / "shard-00001-model-00001-of-00001.safetensors")


def _no_map(place: Path) -> None:
    (place / "model.safetensors").unlink()
    (place / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}')


def _empty_map(place: Path) -> None:
    (place / "model.safetensors").unlink()
    _write_index(place, {})


def _absent(place: Path) -> None:
    (place / "model.safetensors").unlink()
    _write_index(place, {"a": "b.safetensors"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_adapter, "holds an adapter"),
        (_explicit, "transformers_weights = 'sub/model.safetensors'"),
        (_explicit_pickle, "transformers_weights = 'adapter_model.bin'"),
        (_aliased, "names its weights itself"),
        (_other_configuration, "configuration_files"),
        (_distributed, "distributed checkpoint"),
        (_no_map, "is not the index of a checkpoint"),
        (_empty_map, "names no weights"),
        (_absent, "b.safetensors, which is not beside it"),
    ],
)
def test_weights_from_other_files_than_are_hashed_are_refused(
    change: Callable[[Path], None],
    said: str,
    tiny_pair_paths: Paths,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before either model loads."""
    safe, risky = tiny_pair_paths("llama")
    place = Path(shutil.copytree(risky, tmp_path / "odd"))
    change(place)

    def none(*_: object, **__: object) -> Any:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("nafaudit.models.pair.load_model", none)
    for trust in (Trust(), Trust(pickle=True)):
        with pytest.raises(InputError, match=said):
            load_pair(safe, place, trust=trust)


def test_an_index_of_pickles_names_plain_files_too(tiny_pair_paths: Paths, tmp_path: Path) -> None:
    safe, risky = tiny_pair_paths("llama")
    place = Path(shutil.copytree(risky, tmp_path / "pickled"))
    tensors = load_file(place / "model.safetensors")
    (place / "model.safetensors").unlink()
    torch.save(tensors, place / "pytorch_model-00001-of-00001.bin")
    torch.save(tensors, tmp_path / "above.bin")
    allowed = Trust(pickle=True)
    _write_index(
        place, dict.fromkeys(tensors, "pytorch_model-00001-of-00001.bin"), "pytorch_model.bin"
    )
    pair = load_pair(safe, place, trust=allowed)
    assert torch.equal(_logits(pair), _logits(load_pair(safe, risky)))
    _write_index(place, dict.fromkeys(tensors, "../above.bin"), "pytorch_model.bin")
    with pytest.raises(InputError, match=r"must be \*\.bin beside it"):
        load_pair(safe, place, trust=allowed)


def test_no_pickle_loads_from_the_hub_under_another_name(
    hub: Callable[[str, str, Path], Path], tiny_pair_paths: Paths
) -> None:
    safe, risky = tiny_pair_paths("llama")
    place = hub("me/odd", COMMIT, risky)
    tensors = load_file(place / "model.safetensors")
    (place / "model.safetensors").unlink()
    torch.save(tensors, place / "w.dat")
    _write_index(place, dict.fromkeys(tensors, "w.dat"))
    with pytest.raises(InputError, match=r"names 'w\.dat'"):
        load_pair(safe, "me/odd")
    (place / "model.safetensors.index.json").unlink()
    torch.save(tensors, place / "adapter_model.bin")
    _configured(place, transformers_weights="adapter_model.bin")
    with pytest.raises(InputError, match="names its weights itself"):
        load_pair(safe, "me/odd")
