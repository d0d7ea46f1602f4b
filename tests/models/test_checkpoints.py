"""What a checkpoint is permitted, and where it may lie; a hub's cache is made on the spot."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nafaudit.core.errors import InputError, UnavailableError
from nafaudit.core.trust import Trust
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
