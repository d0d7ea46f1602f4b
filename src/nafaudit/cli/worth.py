"""`nafaudit certify`, `attack` and `frontier`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nafaudit.cli.echo import echo

if TYPE_CHECKING:
    from nafaudit.workload.passages import Passage
    from nafaudit.worth.attack import Told
    from nafaudit.worth.settings import AttackSettings, CertifySettings, FrontierSettings


def _protected(
    path: Path | None, pair: str, own: str | None, command: str
) -> tuple[list[Passage], str]:
    """The protected passages that a command is about, and what to call them.

    Args:
        path: File that was given, if any.
        pair: Named pair, whose passages are the default.
        own: A checkpoint of the user's own, which has none.
        command: For the error.
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


def certify(settings: CertifySettings, *, quiet: bool, as_json: bool) -> None:
    """What does a budget say about reproducing these passages?

    Needs the safe model and the text, nothing else. Exit status 0 whatever the answer.

    Example: nafaudit certify --k 1,3
    """
    pair, safe = settings.pair, settings.safe
    protected, where = _protected(settings.passages, pair, safe, "certify")

    from nafaudit.cli.certificate import print_certificate
    from nafaudit.cli.progress import CountedLine
    from nafaudit.runner.pairs import named_pair
    from nafaudit.worth.certify import certify as score
    from nafaudit.worth.files import certificate_json, write_certificate

    checkpoint = safe or named_pair(pair).locate()[0]
    progress = CountedLine(quiet, "passages")
    certification = score(checkpoint, protected, settings, progress.update)
    progress.close()
    directory = settings.out or Path("certificates") / certification.hash[:10]
    files = write_certificate(certification, directory)
    if as_json:
        import json

        echo(json.dumps({"directory": str(directory), **certificate_json(certification)}, indent=2))
    else:
        print_certificate(certification, where, files, most=settings.show)


def attack(settings: AttackSettings, *, quiet: bool, as_json: bool) -> int:
    """What can be reconstructed while every query stays in budget?

    Asks for protected passages in one answer, window after window, and along its own answers.
    Running the same command again resumes it. Exit status 3 if the risky model alone recalls
    too little for an attack to mean anything.

    Example: nafaudit attack --k 5,20 --limit 10 --modes oracle
    """
    protected, where = _protected(settings.passages, settings.pair, settings.safe, "attack")

    import json

    from nafaudit.cli.progress import ProgressLine, remark_on_machine, resumable
    from nafaudit.cli.show_attack import EXIT, attack_text
    from nafaudit.worth.attack import run_attack
    from nafaudit.worth.attack_files import attack_json, write_attack
    from nafaudit.worth.attack_result import Answered

    progress = ProgressLine(quiet)

    def tell(told: Told) -> None:
        progress.line(_describe(told), told.seconds)

    with resumable(progress):
        attacked = run_attack(protected, settings, tell)
    remark_on_machine(attacked.batch_free, attacked.mixed, attacked.remark)
    answered = Answered(attacked)
    files = write_attack(answered)
    text = json.dumps(attack_json(answered), indent=2) if as_json else ""
    echo(text or attack_text(answered, where, files))
    return EXIT[answered.outcome]


def _describe(told: Told) -> str:
    parts = [f"{told.stage}: {told.done}/{told.total} answers"]
    if told.seconds > 0:
        parts.append(f"{told.tokens / told.seconds:.0f} tokens/s")
    return ", ".join(parts)


def frontier(settings: FrontierSettings, *, quiet: bool, as_json: bool) -> int:
    """What does each budget buy on ordinary text, and what does it give away of protected text?

    Follows both kinds of text once with both models; decodes nothing. Exit status 3 if the
    protected text is less likely than under the safe model alone: then it is the wrong text.

    Example: nafaudit frontier --mechanism anchored --mechanism renyi:2 --k 0.5,3
    """
    pair, safe, risky = settings.pair, settings.safe, settings.risky
    protected, where = _protected(settings.passages, pair, safe, "frontier")
    plain = _ordinary(settings.ordinary, pair, safe)

    import json

    from nafaudit.cli.progress import CountedLine
    from nafaudit.cli.show_frontier import frontier_text
    from nafaudit.runner.pairs import named_pair
    from nafaudit.worth.frontier import frontier as follow
    from nafaudit.worth.frontier_files import frontier_json, write_frontier
    from nafaudit.worth.matched import Reading

    checkpoints = (safe, risky) if safe and risky else named_pair(pair).locate()
    progress = CountedLine(quiet, "texts")
    found = follow(checkpoints, protected, plain, settings, progress.update)
    progress.close()
    reading = Reading(found)
    directory = settings.out or Path("frontiers") / found.hash[:10]
    files = write_frontier(reading, directory)
    if as_json:
        echo(json.dumps({"frontier": str(directory), **frontier_json(reading)}, indent=2))
    else:
        echo(frontier_text(reading, where, files))
    return 0 if reading.bracketed else 3


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
