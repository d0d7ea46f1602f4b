from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nafaudit.core.errors import InputError
from nafaudit.models.pair import prompt_tokenizer
from tests.commands import call

Paths = Callable[..., tuple[Path, Path]]

TEMPLATE = (
    "{{ date_string }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def chatting(tiny_pair_paths: Paths, tmp_path: Path) -> tuple[Path, Path]:
    """A pair of which only the risky model chats."""
    safe, risky = tiny_pair_paths("llama")
    place = Path(shutil.copytree(risky, tmp_path / "risky"))
    file = place / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": TEMPLATE}))
    (place / "chat_template.jinja").unlink(missing_ok=True)
    return safe, place


def test_a_prompt_is_a_users_message_in_the_risky_models_template(
    chatting: tuple[Path, Path],
) -> None:
    safe, risky = map(str, chatting)
    words = prompt_tokenizer(safe, risky, chat=True)
    plain = prompt_tokenizer(safe, risky)
    assert plain.chat == "" and len(words.chat) == 16
    written = words.tokenizer.decode(words.ids("How are you?"))
    assert written.replace(" ", "").endswith("<user>Howareyou?<assistant>")
    assert "2024" in written.replace(" ", "")  # the day is the same one every day
    assert plain.ids("How are you?") == tuple(words.tokenizer("How are you?")["input_ids"])


def test_a_pair_without_a_template_is_refused(tiny_pair_paths: Paths) -> None:
    safe, risky = map(str, tiny_pair_paths("llama"))
    with pytest.raises(InputError, match="has a chat template"):
        prompt_tokenizer(safe, risky, chat=True)


def test_a_run_in_chat_form_records_it_and_is_verified(
    chatting: tuple[Path, Path], tmp_path: Path
) -> None:
    safe, risky = map(str, chatting)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"id": "a", "text": "Tell me of the heron."}) + "\n")
    given = ["--safe", safe, "--risky", risky, "--prompts", str(prompts), "--k", "1", "--quiet"]
    given += ["--max-new-tokens", "6", "--trajectories", "1"]
    for name, extra in (("plain", []), ("chat", ["--chat-template"])):
        result = call("run", *given, *extra, "--out", name, cwd=tmp_path)
        assert result.returncode in (0, 3), result.stderr
    identity = {
        name: json.loads((tmp_path / name / "design.json").read_text())["identity"]
        for name in ("plain", "chat")
    }
    assert "chat" not in identity["plain"]
    assert identity["chat"]["chat"] == prompt_tokenizer(safe, risky, chat=True).chat
    assert identity["chat"]["workload"] != identity["plain"]["workload"]
    assert call("verify", "chat", "--quiet", cwd=tmp_path).returncode == 0
