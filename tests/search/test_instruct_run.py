"""Whole searches with a model as proposer: a real server, a real checkpoint, and SIGKILL."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from nafaudit.lab.tiny import ARCHITECTURES, SENTENCES, build_checkpoint, build_tokenizer
from nafaudit.search.llm_answers import FILE
from nafaudit.search.llm_chat import KEY
from nafaudit.search.search import run_search
from nafaudit.search.settings import SearchSettings
from nafaudit.store.run import Run
from nafaudit.views.search import search_json, write_result
from tests.commands import call
from tests.forks import fork
from tests.kills import was_killed
from tests.search.chat_server import MODEL, ChatServer, chat_server

SECRET = "sk-verysecret-0123456789"
Make = Callable[..., SearchSettings]
SIZES: dict[str, Any] = {
    "k": (2.0,), "max_new_tokens": 4, "pool": 4, "generations": 2, "proposals": 6, "screened": 4,
    "draws": 8, "fresh": 2, "finalists": 1, "heldout": 2, "heldout_draws": 1, "searches": 1,
    "shortest": 8,
}  # fmt: skip
# A model of random weights writes until its limit, so answers must be short.
TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


@pytest.fixture(scope="module")
def make(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_pair_paths: Callable[[str], tuple[Path, Path]],
) -> Make:
    place = tmp_path_factory.mktemp("instruct")
    safe, risky = tiny_pair_paths("llama")
    chance, words = random.Random(1), " ".join(SENTENCES).split()
    lines = [
        {"id": f"p{i}", "text": f"{chance.choice(SENTENCES)} {' '.join(chance.sample(words, 8))}."}
        for i in range(12)
    ]
    (place / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    common = {"safe": str(safe), "risky": str(risky), "prompts": str(place / "p.jsonl")}

    def settings(out: str, server: ChatServer | None = None, **more: Any) -> SearchSettings:
        if server is not None:
            more |= {"proposer": f"openai:{MODEL}", "proposer_url": server.url}
        return SearchSettings(**SIZES | common | {"out": str(place / out)} | more)

    return settings


def searched(settings: SearchSettings) -> dict[str, Any]:
    found = run_search(settings, lambda told: None)
    write_result(found)
    return search_json(found)


def killed_at(server: ChatServer, moment: int, settings: SearchSettings) -> None:
    """Searches in a child that is killed while it waits for, or has just got, an answer."""
    child = fork(lambda: run_search(settings, lambda told: None))
    hook = "before" if moment % 2 == 0 else "after"

    def strike(number: int) -> None:
        if number == moment // 2:
            os.kill(child, signal.SIGKILL)

    setattr(server, hook, strike)
    killed = was_killed(child)
    server.before = server.after = lambda number: None
    assert killed


@pytest.fixture(scope="module")
def undisturbed(make: Make) -> dict[str, Any]:
    """With a server whose answers follow from its questions."""
    with chat_server("good", "short", "torn", "good") as server:
        server.by_question = True
        return searched(make("undisturbed", server))


@pytest.mark.full
@pytest.mark.parametrize("moment", range(8))
def test_a_killed_search_ends_where_an_undisturbed_one_ends(
    moment: int, make: Make, undisturbed: dict[str, Any]
) -> None:
    with chat_server("good", "short", "torn", "good") as server:
        server.by_question = True
        settings = make(f"killed{moment}", server)
        killed_at(server, moment, settings)
        assert searched(settings) | {"run": undisturbed["run"]} == undisturbed
    assert undisturbed["proposer"]["by_model"] > 6
    assert undisturbed["proposer"]["attempts"] > undisturbed["proposer"]["calls"]


def test_answers_that_never_come_again_are_used_again(make: Make) -> None:
    """The server counts: whatever is asked twice is answered otherwise."""
    with chat_server("good", "429", "refuse", "good") as server:
        settings = make("once", server)
        killed_at(server, 4, settings)
        journal = Path(settings.out or "") / FILE
        before = journal.read_bytes()
        assert before.count(b"\n") >= 2
        result = searched(settings)
        assert journal.read_bytes().startswith(before)
    # Nobody is there any more, and nobody is needed.
    assert searched(settings) == result
    assert result["proposer"]["outcomes"]["busy"] == 1
    texts = [item.prompt.text for item in Run(Path(settings.out or "")).prompts()]
    assert any(text.startswith("Story ") for text in texts)


def test_the_command_writes_the_key_nowhere(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, SECRET)
    settings = make("x")
    models = ("--safe", settings.safe, "--risky", settings.risky, "--prompts", settings.prompts)
    sizes = [
        part
        for name, value in SIZES.items()
        for part in (f"--{name.replace('_', '-')}", value[0] if name == "k" else value)
    ]
    with chat_server("echo", "short") as server:
        who = ("--proposer", f"openai:{MODEL}", "--proposer-url", server.url)
        done = call(
            "search", *models, *sizes, *who, "--proposer-attempts", 1, "--out", "r", cwd=tmp_path
        )
        assert done.returncode == 3, done.stderr
        assert f"Bearer {SECRET}" in server.keys
        assert "filled" in done.stdout and all(len(line) <= 80 for line in done.stdout.splitlines())
        server.moves = ["401"]
        bad = call("search", *models, *sizes, *who, "--seed", 5, "--out", "s", cwd=tmp_path)
        assert bad.returncode == 2 and "wrong key [key]" in bad.stderr
    call("report", "r", cwd=tmp_path)
    said = done.stdout + done.stderr + bad.stdout + bad.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"search.json", FILE, "sessions.jsonl", "index.html"} <= {path.name for path in files}
    assert SECRET not in said
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    assert any(b"[key]" in path.read_bytes() for path in files)


@pytest.fixture(scope="module")
def instruct(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with random weights and a chat template."""
    path = tmp_path_factory.mktemp("instruct-model") / "m"
    longer = {"llama": ARCHITECTURES["llama"] | {"max_position_embeddings": 4096}}
    with mock.patch.dict(ARCHITECTURES, longer):
        build_checkpoint(path, 3)
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    return path


@pytest.mark.full
def test_a_model_that_writes_garbage_is_counted_and_filled(make: Make, instruct: Path) -> None:
    more: dict[str, Any] = {"proposer": f"transformers:{instruct}", "proposer_attempts": 1}
    more |= {"longest": 100, "generations": 1}
    result = searched(make("garbage", **more))
    said = result["proposer"]
    assert said["by_model"] == 0 and said["filled"] == said["asked"] == 6
    assert said["outcomes"]["truncated"] + said["outcomes"]["invalid"] == said["attempts"] == 2
    lines = (Path(result["run"]) / FILE).read_text().splitlines()
    assert all(len(json.loads(line)["text"]) > 20 for line in lines)
    # Its answers are kept, so its weights are not needed again.
    (instruct / "model.safetensors").rename(instruct / "away")
    assert searched(make("garbage", **more)) == result


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--proposer", "opnai:x"), "did you mean 'openai'"),
        (("--proposer", "openai:x"), "--proposer-url"),
        (("--proposer", "openai:x", "--proposer-url", "nowhere"), "http://127.0.0.1:8000/v1"),
        (("--proposer", "openai:x", "--proposer-url", "http://127.0.0.1:9/v1"), "no answer"),
        (("--proposer", "transformers:/nowhere/m"), "/nowhere/m"),
        (("--proposer-attempts", "0"), "proposer-attempts must be at least 1"),
        (("--proposer-timeout", "0"), "proposer-timeout"),
    ],
)
def test_bad_proposers_are_refused_before_a_model_loads(
    options: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    with mock.patch("nafaudit.models.pair.load_model", side_effect=AssertionError):
        done = call("search", *options, cwd=tmp_path)
    assert done.returncode == 2 and says in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_checkpoint_without_a_chat_template_is_no_proposer(make: Make) -> None:
    settings = make("y")
    with (
        mock.patch("nafaudit.models.pair.load_model", side_effect=AssertionError),
        pytest.raises(ValueError, match="no chat template"),
    ):
        searched(make("z", proposer=f"transformers:{settings.safe}"))


@pytest.mark.full
def test_the_papers_protocol_asks_a_model_call_by_call(make: Make, tmp_path: Path) -> None:
    from nafaudit.paper.search import run_paper_search
    from nafaudit.paper.search_view import paper_json
    from nafaudit.paper.settings import PaperSettings
    from tests.paper.test_search import SIZES as PAPER_SIZES

    chance, words = random.Random(2), " ".join(SENTENCES).split()
    lines = [
        {
            "id": f"p{i}",
            "text": f"{chance.choice(SENTENCES)} {' '.join(chance.sample(words, 8))}.",
            "class": "held" if i < 4 else "a",
        }
        for i in range(36)
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    models = make("x")
    with chat_server("good", "refuse", "good") as server:
        found = paper_json(
            run_paper_search(
                PaperSettings(
                    safe=models.safe,
                    risky=models.risky,
                    prompts=str(tmp_path / "p.jsonl"),
                    k=(60.0,),
                    max_new_tokens=6,
                    init={"a": 30},
                    heldout_class="held",
                    out=str(tmp_path / "r"),
                    size=PAPER_SIZES | {"generations": 1},
                    proposer=f"openai:{MODEL}",
                    proposer_url=server.url,
                    proposer_attempts=1,
                ),
                lambda told: None,
            )
        )
    said = found["proposer"]
    # Two calls for three prompts and one crossing for two; the second was refused.
    assert (said["calls"], said["asked"], said["by_model"], said["filled"]) == (3, 8, 5, 0)
    assert said["outcomes"]["refused"] == 1
