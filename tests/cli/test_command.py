"""Commands are made of their settings: what the command line takes, refuses and explains."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import click
import pytest

from nafaudit.cli.command import Command, Verb, Verbs, place
from nafaudit.cli.main import VERBS
from nafaudit.core.options import declared
from tests.commands import call


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
    text = call("certify", "--help", cwd=tmp_path).stdout
    assert re.findall(r"^  --([a-z]+)", text.split("What is audited:")[1], re.M)[:3] == [
        "pair", "safe", "k",
    ]  # fmt: skip
