"""Commands are made of their settings: what the command line takes, refuses and explains."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

import click
import pytest

from nafaudit.cli.command import Command, Verb, Verbs, place
from nafaudit.cli.main import PARTS, VERBS
from nafaudit.core.options import declared
from nafaudit.paper.settings import PaperSettings, Sizes
from nafaudit.search.settings import SearchSettings
from tests.commands import call, typed


def _verbs(table: Mapping[str, Verb | click.Group]) -> list[tuple[str, Verb]]:
    found = []
    for name, verb in table.items():
        if isinstance(verb, Verb):
            found.append((name, verb))
        else:
            assert isinstance(verb, Verbs)
            found += _verbs(verb.verbs)
    return found


@pytest.mark.parametrize(("name", "verb"), _verbs(VERBS), ids=lambda value: str(value)[:12])
def test_every_command_is_made_of_its_settings(name: str, verb: Verb) -> None:
    command = Command(name, verb)
    assert "Example: nafaudit " in (command.help or "")
    shown = [one.about for kind in verb.settings for one in declared(place(kind))]
    assert all(one.help.endswith((".", "?")) for one in shown)
    for kind in verb.settings:
        known = {one.field for one in declared(place(kind))}
        assert place(kind).unlisted <= known
        # A short help has about ten.
        assert sum(one.about.common for one in declared(place(kind))) <= 16


@pytest.mark.parametrize("words", [["--greedy"], ["--greedy", "d.toml"], ["--top-p", "0.9"]])
@pytest.mark.parametrize("command", ["run", "search", "attack", "certify", "conform"])
def test_what_acts_after_the_solve_is_refused_with_and_without_a_value(
    command: str, words: list[str], tmp_path: Path
) -> None:
    done = call(command, *words, cwd=tmp_path)
    assert done.returncode == 2 and "is refused: it " in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["runn"], "No such command 'runn'. Did you mean 'run'?"),
        (["lab", "trian"], "No such command 'trian'. Did you mean 'train'?"),
        (["run", "--batch", "many"], "Invalid value for '--batch': 'many' is not a valid integer"),
        (["import", "log.csv"], "Missing option '--out'"),
        (["import", "--out", "r"], "Missing argument 'logs...'"),
        (["attack", "--decoder", "m:D"], "No such option '--decoder'"),
        (["compare", "a", "b", "c"], "Got unexpected extra argument (c)"),
    ],
)
def test_bad_usage_is_explained(words: list[str], said: str, tmp_path: Path) -> None:
    done = call(*words, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr and "Try 'nafaudit" in done.stderr


def test_a_file_does_not_run_code_that_was_not_typed(tmp_path: Path) -> None:
    (tmp_path / "d.toml").write_text('decoder = "mine:Decoder"\n')
    said = call("run", "d.toml", cwd=tmp_path).stderr
    assert "type it too: --decoder mine:Decoder" in said


def test_options_that_most_users_need_stand_first(tmp_path: Path) -> None:
    text = call("certify", "--help-all", cwd=tmp_path).stdout
    assert re.findall(r"^  --([a-z]+)", text.split("What is audited:")[1], re.M)[:3] == [
        "pair", "safe", "k",
    ]  # fmt: skip


LONG = ("run", "search", "verify", "certify", "attack", "frontier", "plan", "paper run")


@pytest.mark.parametrize("name", [name for name, _ in _verbs(VERBS) if name in VERBS])
def test_help_shows_at_most_fifteen_options(name: str, tmp_path: Path) -> None:
    short, whole = (call(name, asked, cwd=tmp_path).stdout for asked in ("--help", "--help-all"))
    # After the last example, whose second line may begin with an option.
    lists = (text.split("Example: ")[-1].partition("\n\n")[2] for text in (short, whole))
    first, every = (re.findall(r"^  (--[a-z-]+)", text, re.M) for text in lists)
    assert len(first) <= 15
    if name in LONG:
        assert set(first) < set(every) and "--json" in first and "\nOptions:\n" in short
        assert short.count("Example: nafaudit ") == 2
        grouped = "What is audited:" in whole and "Machine and output:" in whole
        assert grouped or name == "paper run"
        assert f"Show all {len(every) - 2} options" in " ".join(short.split())
    else:
        assert short == whole and "--help-all" not in short


def test_options_of_one_protocol_of_a_search_say_so() -> None:
    """And where the other has it under another name, with its value there."""
    sound, paper = ({one.name: one for one in declared(kind) if one.name not in kind.unlisted}
                    for kind in (SearchSettings, PaperSettings))  # fmt: skip
    for mine, other, word in ((sound, paper, "Sound only: "), (paper, sound, "Paper only: ")):
        own = {name for name in mine if name not in other}
        said = {name for name, one in mine.items() if one.about.help.startswith(word)}
        # The paper's search takes these two from --init.
        assert said - {"classes", "limit"} == own
    texts = " ".join(one.default_words() for one in sound.values())
    named = re.findall(r"--size (\w+)=(\d+)", texts)
    assert len(named) == 3
    assert all(getattr(Sizes(), name) == int(value) for name, value in named)
    assert sound["delta"].default_words() == f"0.05; the paper's: {PaperSettings().delta:g}"


def test_options_of_the_help_are_in_the_order_of_use(tmp_path: Path) -> None:
    text = call("run", "--help", cwd=tmp_path).stdout
    assert re.findall(r"^  --([a-z-]+)", text, re.M) == [
        *("pair", "safe", "risky", "mechanism", "decoder", "k", "trajectories", "prompts"),
        *("limit", "protocol", "max-new-tokens", "device", "out", "json", "help-all"),
    ]


def test_commands_are_listed_in_four_groups_each_once(tmp_path: Path) -> None:
    assert list(PARTS) == ["Audit", "Adversary", "Records", "Trust"]
    assert sorted(name for names in PARTS.values() for name in names) == sorted(VERBS)
    text = call("--help", cwd=tmp_path).stdout
    assert re.findall(r"^(\w+):$", text, re.M) == ["Options", *PARTS]


@pytest.mark.parametrize("word", ["--top", "--tok-p", "--top-q", "--gredy", "--surogate", "--rey"])
def test_what_is_refused_is_not_suggested(word: str, tmp_path: Path) -> None:
    for command in ("run", "search", "attack"):
        said = call(command, word, "3", cwd=tmp_path).stderr
        assert f"No such option '{word}'" in said
        suggested = re.findall(r"'(--[a-z-]+)'", said.split("Did you mean")[-1])
        hidden = {"--top-p", "--top-k", "--min-p", "--greedy", "--surrogate"}
        assert not hidden & set(suggested) - {word}


@pytest.mark.parametrize(("name", "verb"), _verbs(VERBS), ids=lambda value: str(value)[:12])
def test_examples_of_the_help_can_be_typed(name: str, verb: Verb, tmp_path: Path) -> None:
    examples = re.findall(r"Example: (nafaudit [^\n]+)", Command(name, verb).help or "")
    assert examples
    with contextlib.chdir(tmp_path):
        for example in examples:
            typed(example)
