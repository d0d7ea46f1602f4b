"""`nafaudit certify`, `attack` and `frontier`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nafaudit.cli.output import printed, remark, resumable
from nafaudit.views.progress import ProgressLine

if TYPE_CHECKING:
    from nafaudit.worth.settings import AttackSettings, CertifySettings, FrontierSettings


def certify(settings: CertifySettings, *, quiet: bool, as_json: bool) -> int:
    """What does a budget say about reproducing these passages?

    Needs the safe model and the text, nothing else. Exit status 0 whatever the answer.

    Example: nafaudit certify --k 1,3

    Example: nafaudit certify passages.txt --safe models/a --window 100
    """
    from nafaudit.answers import answer_certify

    progress = ProgressLine(quiet)
    found = answer_certify(settings, progress.update, default=Path("certificates"))
    progress.close()
    then = f"nafaudit frontier --pair {settings.pair}"
    if settings.safe is not None:
        then = f"nafaudit attack {settings.passages} --safe {settings.safe} --risky RISKY"
    return printed(found, then, as_json=as_json)


def attack(settings: AttackSettings, *, quiet: bool, as_json: bool) -> int:
    """What can be reconstructed while every query stays in budget?

    Asks for each passage in three ways: in one answer (single), in windows after the true text
    (oracle), in windows after earlier answers (chained).

    Running the same command again resumes it. Exit status 3 if the risky model alone recalls
    too little for an attack to mean anything.

    Example: nafaudit attack --k 5,20 --limit 10 --modes oracle

    Example: nafaudit attack passages.txt --safe models/a --risky models/b
    """
    from nafaudit.answers import answer_attack

    progress = ProgressLine(quiet)
    with resumable(progress):
        found = answer_attack(settings, progress.update)
    for text in found.remarks:
        remark(text)
    single = found.files[-1]
    then = f"nafaudit verify {single}" if single.is_dir() else "nafaudit frontier"
    return printed(found, then, as_json=as_json)


def frontier(settings: FrontierSettings, *, quiet: bool, as_json: bool) -> int:
    """What does each budget buy on ordinary text, and what does it give away of protected text?

    Follows both kinds of text once with both models; decodes nothing. Exit status 3 if the
    risky model or a budget makes the protected text less likely than the safe model does: then the
    risky model has not learned this text.

    Example: nafaudit frontier --mechanism anchored --mechanism renyi:2 --k 0.5,3

    Example: nafaudit frontier passages.txt --ordinary text.txt --safe models/a --risky models/b
    """
    from nafaudit.answers import answer_frontier

    progress = ProgressLine(quiet)
    found = answer_frontier(settings, progress.update, default=Path("frontiers"))
    progress.close()
    safe, risky = settings.safe, settings.risky
    models = f"--pair {settings.pair}"
    if safe:
        models = f"--safe {safe} --risky {risky} --prompts FILE"
    then = f"nafaudit run {models} --k {','.join(f'{k:g}' for k in settings.k)}"
    return printed(found, then, as_json=as_json)
