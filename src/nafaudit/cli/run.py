"""`nafaudit run` and `nafaudit plan`."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

import click

from nafaudit.cli.output import echo, printed, remark, resumable, show
from nafaudit.views.progress import ProgressLine

if TYPE_CHECKING:
    from nafaudit.core.settings import GatedRunSettings, PlanSettings


_OF_A_PLAN = ("gpu", "gpus", "shapes", "seconds", "as_json")
"""Options that a run does not have."""


def run(settings: GatedRunSettings, *, quiet: bool, as_json: bool) -> int:
    """Does the mechanism stay in budget over a fixed workload?

    Writes a run directory and its report; running the same command again resumes it.

    Example: nafaudit run --k 0.5,3 --trajectories 2

    Example: nafaudit run --decoder mine.py:Decoder --prompts prompts.jsonl
    """
    from nafaudit.answers import answer_run

    progress = ProgressLine(quiet)
    with resumable(progress):
        found = answer_run(settings, progress.update, remark)
    for text in found.remarks:
        remark(text)
    if settings.protocol == "paper" and not as_json and (found.path / "paper").is_dir():
        echo(f"the paper's files: {found.path / 'paper'}")
    return show(found, settings, "nafaudit run", as_json=as_json)


def plan(settings: PlanSettings, *, as_json: bool) -> int:
    """How many trajectories, how long, what could be detected?

    Decodes for a few seconds and records nothing; without torch or models it still counts.

    Example: nafaudit plan --trajectories 10 --limit 0

    Example: nafaudit plan --pair paper --protocol paper --gpu h100 --gpus 8
    """
    from nafaudit.answers import answer_plan
    from nafaudit.core.finding import MIN_TRAJECTORIES

    found = answer_plan(settings)
    then = f"nafaudit run{_given(click.get_current_context())}"
    if not found.result.conclusive:
        least = math.ceil(MIN_TRAJECTORIES / found.result.prompts)
        then = f"the same with --trajectories {least} or more, or with more prompts"
    return printed(found, then, as_json=as_json)


def _given(context: click.Context) -> str:
    """Returns what a plan was given, as words for a run, with a space before them."""
    words: list[str] = []
    for one in context.command.params:
        value = context.params.get(one.name or "")
        if value in (None, (), False) or one.name in _OF_A_PLAN:
            continue
        for each in value if isinstance(value, tuple) else (value,):
            flag = [one.opts[0]] if isinstance(one, click.Option) else []
            words += flag if each is True else [*flag, _word(each)]
    return "".join(f" {shlex.quote(word)}" for word in words)


def _word(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
