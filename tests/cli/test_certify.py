from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from nafaudit.lab.tiny import SENTENCES
from tests.commands import call

Paths = Callable[[str], tuple[Path, Path]]
PAGE = Path(__file__).parents[2] / "docs" / "certify.md"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("certify")
    (path / "works.txt").write_text("\n\n".join(SENTENCES))
    return path


@pytest.fixture(scope="module")
def safe(tiny_pair_paths: Paths) -> str:
    return str(tiny_pair_paths("llama")[0])


def test_a_text_and_a_safe_model_are_enough(directory: Path, safe: str) -> None:
    sizes = ["--max-new-tokens", 20, "--k", "0.5,30", "--show", 2]
    done = call("certify", "works.txt", "--safe", safe, *sizes, cwd=directory)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\N{HORIZONTAL ELLIPSIS}" not in done.stdout
    assert "k = 0.5, K = 10 nats: INFORMATIVE (5 of 5 passages)" in done.stdout
    assert "k = 30, K = 600 nats: VACUOUS (5 of 5 passages)" in done.stdout
    assert "(2 of 5, worst first" in done.stdout
    for name in re.findall(r"^certificates/\S+$", done.stdout, re.MULTILINE):
        assert (directory / name).stat().st_size
    assert done.stdout.count("certificates/") == 4


def test_json_is_one_strict_object(directory: Path, safe: str) -> None:
    options = ["--safe", safe, "--json", "--quiet", "--out", "c", "--given", 3]
    done = call("certify", "works.txt", *options, cwd=directory)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    data = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(name))
    assert data["directory"] == "c"
    assert [card["k"] for card in data["cards"]] == [0.25, 1.0, 3.0, 10.0]
    assert len(data["passages"]) == 5
    assert data["given"] == 3
    assert data == {"directory": "c", **json.loads((directory / "c/certificate.json").read_text())}


def test_names_from_a_file_are_never_markup_or_control(directory: Path, safe: str) -> None:
    rows = [{"id": "[red]a\x1b[2J" + "x" * 90, "text": SENTENCES[0]}]
    (directory / "odd.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = call("certify", "odd.jsonl", "--safe", safe, cwd=directory)
    assert done.returncode == 0, done.stderr
    assert "[red]a" in done.stdout
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_reader_that_goes_away_is_no_fault(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nafaudit.cli.output import echo

    def gone(text: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("click.echo", gone)
    monkeypatch.setattr("os.dup2", lambda *_: None)  # this process still needs its output
    echo("anything")
    monkeypatch.setattr("click.echo", print)
    echo("still there")
    assert capfd.readouterr().out == "still there\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.txt"], "none.txt: No such file or directory"),
        (["--safe", "SAFE"], "give a file, for example"),
        (["works.txt", "--safe", "SAFE", "--k", "inf"], "k must be above 0 and finite"),
        (["works.txt", "--safe", "SAFE", "--temperature", "0"], "temperature must be above 0"),
        (["works.txt", "--safe", "SAFE", "--debt", "mean"], "'positives' or 'official'"),
        (["works.txt", "--safe", "SAFE", "--given", "500"], "500 are given"),
        (["works.txt", "--safe", "nowhere"], "no tokenizer could be loaded from 'nowhere'"),
        (["works.txt", "--pair", "tinny"], "did you mean 'tiny'?"),
        (["works.txt", "--safe", "nowhere", "--out", "works.txt"], "it is a file"),
    ],
)
def test_bad_input_is_refused_in_words(
    arguments: list[str], message: str, directory: Path, safe: str, tmp_path: Path
) -> None:
    (tmp_path / "works.txt").write_text((directory / "works.txt").read_text())
    words = [safe if word == "SAFE" else word for word in arguments]
    done = call("certify", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "certificates").exists()


def test_the_page_shows_what_the_command_prints(tmp_path: Path) -> None:
    """The worked example of docs/certify.md, on the lab's sixty passages."""
    done = call("certify", "--k", "1,3,10", "--show", 3, "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    example = re.search(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert example is not None
    assert [line.rstrip() for line in example[1].rstrip().splitlines()] == [
        line.rstrip() for line in done.stdout.rstrip().splitlines()
    ]
