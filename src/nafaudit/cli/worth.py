"""`nafaudit certify`, `attack` and `frontier`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nafaudit.cli.output import ProgressLine, echo, remark_on_machine, resumable

if TYPE_CHECKING:
    from nafaudit.workload.passages import Passage
    from nafaudit.worth.settings import AttackSettings, CertifySettings, FrontierSettings


def _protected(
    path: Path | None, pair: str, own: str | None, command: str
) -> tuple[list[Passage], str]:
    """Returns the protected passages that a command is about, and what to call them.

    Args:
        path: File that was given, if any.
        pair: Named pair, whose passages are the default.
        own: Checkpoint that the user gave, if any; it has no default passages.
        command: Name of the command, for the error.
    """
    from nafaudit.core.errors import InputError
    from nafaudit.runner.pairs import named_pair
    from nafaudit.workload.passages import check_passages, read_passages

    if path is not None:
        return read_passages(path), str(path)
    if own is not None:
        raise InputError(
            f"your own models have no passages yet: give a file, for example nafaudit {command} "
            "passages.txt --safe PATH."
        )
    passages = named_pair(pair).passages()
    check_passages(passages, f"pair {pair}")
    return passages, f"the passages of pair {pair}"


def certify(settings: CertifySettings, *, quiet: bool, as_json: bool) -> int:
    """What does a budget say about reproducing these passages?

    Needs the safe model and the text, nothing else. Exit status 0 whatever the answer.

    Example: nafaudit certify --k 1,3

    Example: nafaudit certify passages.txt --safe models/a --window 100
    """
    pair, safe = settings.pair, settings.safe
    protected, where = _protected(settings.passages, pair, safe, "certify")

    import json

    from nafaudit.core.text import plain
    from nafaudit.runner.pairs import named_pair
    from nafaudit.views.terminal import terminal
    from nafaudit.views.worth import certificate_document, write_certificate
    from nafaudit.worth.certify import certify as score

    checkpoint = safe or named_pair(pair).locate()[0]
    progress = ProgressLine(quiet)
    found = score(checkpoint, protected, settings, progress.update)
    progress.close()
    directory = settings.out or Path("certificates") / found.hash[:10]
    files = write_certificate(found, directory)
    if as_json:
        echo(json.dumps({"directory": str(directory), **plain(found)}, indent=2))
    else:
        then = f"nafaudit frontier --pair {pair}"
        if safe is not None:
            then = f"nafaudit attack {settings.passages} --safe {safe} --risky RISKY"
        echo(terminal(certificate_document(found, where, files, most=settings.show), then))
    return found.overall.exit_status


def attack(settings: AttackSettings, *, quiet: bool, as_json: bool) -> int:
    """What can be reconstructed while every query stays in budget?

    Asks for each passage in three ways: in one answer (single), in windows after the true text
    (oracle), in windows after earlier answers (chained).

    Running the same command again resumes it. Exit status 3 if the risky model alone recalls
    too little for an attack to mean anything.

    Example: nafaudit attack --k 5,20 --limit 10 --modes oracle

    Example: nafaudit attack passages.txt --safe models/a --risky models/b
    """
    protected, where = _protected(settings.passages, settings.pair, settings.safe, "attack")

    import json

    from nafaudit.core.text import plain
    from nafaudit.views.terminal import terminal
    from nafaudit.views.worth import attack_document, write_attack
    from nafaudit.worth.attack import run_attack
    from nafaudit.worth.attack_result import attack_result

    progress = ProgressLine(quiet)
    with resumable(progress):
        attacked = run_attack(protected, settings, progress.update)
    remark_on_machine(attacked.batch_free, attacked.mixed, attacked.remark)
    found = attack_result(attacked)
    files = write_attack(found)
    text = json.dumps(plain(found), indent=2) if as_json else ""
    single = attacked.path / "single"
    then = f"nafaudit verify {single}" if single.is_dir() else "nafaudit frontier"
    echo(text or terminal(attack_document(found, where, files), then))
    return found.overall.exit_status


def frontier(settings: FrontierSettings, *, quiet: bool, as_json: bool) -> int:
    """What does each budget buy on ordinary text, and what does it give away of protected text?

    Follows both kinds of text once with both models; decodes nothing. Exit status 3 if the
    risky model or a budget makes the protected text less likely than the safe model does: then the
    risky model has not learned this text.

    Example: nafaudit frontier --mechanism anchored --mechanism renyi:2 --k 0.5,3

    Example: nafaudit frontier passages.txt --ordinary text.txt --safe models/a --risky models/b
    """
    pair, safe, risky = settings.pair, settings.safe, settings.risky
    protected, where = _protected(settings.passages, pair, safe, "frontier")
    everyday = _ordinary(settings.ordinary, pair, safe)

    import json

    from nafaudit.core.text import plain
    from nafaudit.runner.pairs import named_pair
    from nafaudit.views.terminal import terminal
    from nafaudit.views.worth import frontier_document, write_frontier
    from nafaudit.worth.frontier import frontier as follow
    from nafaudit.worth.matched import frontier_result

    checkpoints = (safe, risky) if safe and risky else named_pair(pair).locate()
    progress = ProgressLine(quiet)
    followed = follow(checkpoints, protected, everyday, settings, progress.update)
    progress.close()
    found = frontier_result(followed)
    directory = settings.out or Path("frontiers") / found.hash[:10]
    files = write_frontier(found, directory)
    if as_json:
        echo(json.dumps({"frontier": str(directory), **plain(found)}, indent=2))
    else:
        models = f"--safe {safe} --risky {risky} --prompts FILE" if safe else f"--pair {pair}"
        then = f"nafaudit run {models} --k {','.join(f'{k:g}' for k in settings.k)}"
        echo(terminal(frontier_document(found, where, files), then))
    return found.overall.exit_status


def _ordinary(path: Path | None, pair: str, safe: str | None) -> list[Passage]:
    from nafaudit.core.errors import InputError
    from nafaudit.runner.pairs import named_pair
    from nafaudit.workload.passages import read_passages

    if path is not None:
        return read_passages(path)
    found = [] if safe is not None else named_pair(pair).ordinary()
    if not found:
        what = "your own models have" if safe is not None else f"pair {pair} has"
        raise InputError(
            f"{what} no ordinary text; give --ordinary FILE: text that neither model memorised, "
            "with blank lines between passages."
        )
    return found
