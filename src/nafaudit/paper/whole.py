"""The paper from its first section to its last on any pair: `nafaudit paper run`.

    OUT/stage1/           the fixed workload, a run with the paper's files in stage1/paper
    OUT/stage2-k3/ ...    the search at each budget, with its files and flagged prompts drawn again
    OUT/index.html        one page in the order of the paper's sections; also .md and .json
    OUT/figures/          the paper's figures of these records

Each part is what `nafaudit run` and `nafaudit search` with `--protocol paper` make, and resumes as
they do: a command that was killed goes on where it was.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from nafaudit.core.errors import InputError
from nafaudit.core.finding import Kept, Overall
from nafaudit.core.ledger import as_budget, is_baseline
from nafaudit.core.options import Group, option
from nafaudit.core.settings import RunSettings
from nafaudit.core.text import counted
from nafaudit.measures.audit import AuditResult
from nafaudit.paper.checklist import (
    ChecklistItem,
    ItemAnswer,
    ItemJson,
    checklist_document,
    item_rows,
)
from nafaudit.paper.checklist_run import of_run
from nafaudit.paper.settings import LAB_BUDGETS, LAB_PAIRS
from nafaudit.paper.whole_page import page
from nafaudit.paper.whole_view import (
    BUDGETS,
    SUPPLEMENT,
    budget_of,
    defect_section,
    verdict_section,
    whole_sections,
)
from nafaudit.paper.workload import PAPER, not_clean, takes_lab
from nafaudit.store.files import make_directory, write_whole
from nafaudit.store.run import Run
from nafaudit.views.document import Column, Document, Section, Table
from nafaudit.views.markdown import markdown
from nafaudit.workload.prompts import CAPS

if TYPE_CHECKING:
    from nafaudit.views.figures import RunFigure

LAB_PROMPTS = 90
"""Prompts of the lab's first stage, a tenth of the paper's: ten minutes on two cores for all."""


@dataclass(frozen=True, kw_only=True)
class PaperRunSettings(Group):
    """Everything that `nafaudit paper run` takes."""

    data: str | None = option(
        None, "Directory with the paper's six files of prompts.", unset="the lab's", common=True
    )
    pair: str = option("lab", "A registered pair.", common=True)
    safe: str | None = option(None, "Safe checkpoint: directory or hub id.", common=True)
    risky: str | None = option(None, "Risky checkpoint: directory or hub id.", common=True)
    k: tuple[float, ...] | None = option(
        None,
        "Budgets of both stages; on the lab pair of Stage 1, as its search has 16,25 with T = 8.",
        common=True,
        metavar="K,...",
        form="numbers above 0, as 3,5",
        unset="3,5, and 1 in Stage 1",
    )
    trajectories: int = option(
        10, "Trajectories per prompt of the first stage.", least=1, common=True
    )
    limit: int | None = option(
        None, "Prompts of Stage 1.", unset=f"all; {LAB_PROMPTS} of the lab's", common=True,
        least=1,
    )  # fmt: skip
    max_new_tokens: int | None = option(
        None, "Length limit T of both stages.", unset="200; on the lab pair the search has 8"
    )
    size: Mapping[str, int] = option(
        {}, "A size of the search, as heldout_traj=20.", metavar="NAME=N", form="NAME=N",
        common=True,
    )  # fmt: skip
    fix: str | None = option(None, "The paper's own remedies, for the search.", unset="none")
    searches: int | None = option(None, "Independent searches at each budget.", unset="1")
    device: str = option("cpu", "Torch device.", common=True)
    dtype: str = option("float32", "Precision of the forward passes.")
    workers: int | None = option(None, "Processes that decode.", unset="by machine")
    out: Path = option(Path("runs/paper"), "Directory to write.", common=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for k in self.k or ():
            if is_baseline(as_budget(k)):
                raise InputError(f"the paper's budgets are above 0, got k = {k:g}.")

    @property
    def pairs(self) -> dict[str, Any]:
        """Settings of both stages, by the names of their options."""
        named: dict[str, Any] = {"data": self.data, "device": self.device, "dtype": self.dtype}
        named |= {"safe": self.safe, "risky": self.risky, "workers": self.workers}
        named |= {"max_new_tokens": self.max_new_tokens, "protocol": "paper"}
        return named | ({} if self.safe or self.pair == "lab" else {"pair": self.pair})

    @property
    def on_lab(self) -> bool:
        """True if the prompts are the lab's own."""
        return self.data is None and self.safe is None and takes_lab(RunSettings(pair=self.pair))

    @property
    def on_lab_pair(self) -> bool:
        """True if the pair is the lab's, whose search has its own k and T on any prompts."""
        return self.safe is None and self.pair in LAB_PAIRS


def stage1_options(settings: PaperRunSettings) -> tuple[dict[str, Any], str]:
    """Returns options of `nafaudit run`, and which classes have fewer prompts than the paper's.

    The paper's caps are upper limits here: what there is of a smaller class is taken.
    """
    given = settings.pairs | {
        "k": settings.k or (SUPPLEMENT, *BUDGETS),
        "trajectories": settings.trajectories,
        "baselines": False,
        "out": str(settings.out / "stage1"),
    }
    if settings.on_lab:
        return given | {"limit": settings.limit or LAB_PROMPTS}, ""
    given |= {"limit": settings.limit}
    if settings.data is None:
        return given, ""
    every = dict.fromkeys(CAPS, sys.maxsize)
    there = PAPER.workload(RunSettings(data=settings.data, cap=every), exact=False)
    have = dict.fromkeys(CAPS, 0)
    for item in there.items:
        have[item.prompt.label] += 1
    if not any(have.values()):
        raise InputError(f"{settings.data} has no prompt that can be sampled; mend the files.")
    short = [f"{label} {have[label]} of {cap}" for label, cap in CAPS.items() if have[label] < cap]
    if lost := not_clean(Path(settings.data)):
        short.append(
            f"{counted(lost, 'creative record')} left out (not clean, or a score below 10)"
        )
    return given | {
        "classes": tuple(label for label in CAPS if have[label]),
        "cap": {label: min(have[label], cap) for label, cap in CAPS.items() if have[label]},
    }, ", ".join(short)


def stage2_options(settings: PaperRunSettings) -> list[dict[str, Any]]:
    """Returns options of `nafaudit search`, one set for each budget.

    The search of the lab's pair keeps its own budgets with its own T, on any prompts: at T = 8 most
    others are below the debts.
    """
    given = settings.pairs | {"size": settings.size or None, "fix": settings.fix}
    given |= {"searches": settings.searches}
    budgets = settings.k or BUDGETS
    if settings.on_lab_pair and (settings.k is None or settings.max_new_tokens is None):
        budgets = LAB_BUDGETS
    return [given | {"k": (k,), "out": str(settings.out / f"stage2-k{k:g}")} for k in budgets]


@dataclass(frozen=True)
class WholePaper:
    """All of it.

    Attributes:
        stage1: The fixed workload, judged.
        stage2: The search at each budget, judged, with its search.json.
        short: Classes with fewer prompts than the paper's, in words.
        fresh: The fresh draws of a search, judged, by the name of its part; none if it drew none.
    """

    stage1: AuditResult
    stage2: tuple[AuditResult, ...]
    short: str = ""
    fresh: Mapping[str, AuditResult] = field(default_factory=dict)

    @property
    def overall(self) -> Overall:
        """The worst answer of any part, with the reasons of all that have it; the others named."""
        order = (Kept.VIOLATED, Kept.REFUTED, Kept.INCONCLUSIVE, Kept.WITHIN)
        every = {where: one.overall for where, one in self.parts}
        worst = min(every.values(), key=lambda one: order.index(Kept(one.verdict)))
        same = [f"{n}: {one.why}" for n, one in every.items() if one.verdict == worst.verdict]
        rest = [f"{n} {one.verdict}" for n, one in every.items() if one.verdict != worst.verdict]
        return replace(worst, why="; ".join(same + ([f"besides, {', '.join(rest)}"] * bool(rest))))

    def items(self, result: AuditResult, *, here: bool = False) -> list[ChecklistItem]:
        """Returns the checklist of a part; what belongs to the other stage says where it is.

        Args:
            result: The part.
            here: True names the part in commands as it is found from here, and not from OUT.
        """
        first = result is self.stage1
        every = of_run(result, path=str(result.run.path) if here else result.run.path.name)
        see = "it is about a search: see the checklist of each search"
        if not first:
            see = "it is about the fixed workload: see the checklist of Stage 1"
        if first and not self.stage2:
            return every
        numbers = (4, 6, 7) if first else (2,)
        return [replace(i, text=see, todo="") if i.number in numbers else i for i in every]

    def study(self, *, here: bool = False) -> list[ChecklistItem]:
        """Returns the checklist of the whole study: each item from the stage it is about.

        Of several searches all have to pass; one that an item does not apply to is left out.

        Args:
            here: As of `items`.
        """
        whole = self.items(self.stage1, here=here)
        every = [(budget_of(one), self.items(one, here=here)) for one in self.stage2]
        for number in (4, 5, 6, 7) if every else ():
            mine = [(k, items[number - 1]) for k, items in every]
            answers = [item.answer for _, item in mine]
            for worst in (ItemAnswer.FAIL, ItemAnswer.PASS, ItemAnswer.NOT_APPLICABLE):
                if worst in answers:
                    break
            told = list(dict.fromkeys(item.text for _, item in mine))
            text = told[0]
            if len(told) > 1:
                text = "; ".join(f"search at k = {k:g}: {item.text}" for k, item in mine)
            chosen = next(item for _, item in mine if item.answer is worst)
            whole[number - 1] = replace(chosen, text=text)
        return whole

    @property
    def parts(self) -> tuple[tuple[str, AuditResult], ...]:
        """Both stages with their names."""
        searches = ((f"search at k = {budget_of(one):g}", one) for one in self.stage2)
        return (("Stage 1", self.stage1), *searches)

    @classmethod
    def read(cls, out: Path, budgets: Sequence[float], short: str = "") -> WholePaper:
        """Reads what both stages left."""
        first = AuditResult.for_report(Run(out / "stage1"))
        runs = [Run(out / f"stage2-k{k:g}") for k in budgets]
        fresh = {
            f"search at k = {k:g}": AuditResult.of(Run(run.path / "confirm"))
            for k, run in zip(budgets, runs, strict=True)
            if (run.path / "confirm" / "design.json").is_file()
        }
        return cls(first, tuple(map(AuditResult.for_report, runs)), short, fresh)


_BESIDE: dict[str, tuple[str, ...]] = {
    "effective-range": ("Results", "Supplementary"),
    "deterministic-term": ("The term", "The deterministic term"),
    "heldout": ("Held-out validation",),
    "flagged-spend": ("The like-for-like run",),
}
"""By figure, beginnings of section titles: it stands after the last section with such a title."""

_LABELS = {
    "heldout": "Figure 1, heldout",
    "flagged-spend": "Figure 2, spend",
    "deterministic-term": "Figure 3, bernstein",
    "effective-range": "Figure 4, reff",
}
"""Number and label of the paper's figure that a figure of ours is like."""


class SectionJson(TypedDict):
    """A section of the page; a cell of its table is what the page shows, as `ours / the paper's`.

    `lines` are paragraphs; `columns` and `rows` are there if it has a table.
    """

    title: str
    lines: list[str]
    columns: NotRequired[list[str]]
    rows: NotRequired[list[list[str]]]
    note: NotRequired[str]


class ChecklistsJson(TypedDict):
    """The paper's checklist of the whole study, of Stage 1, and of each search."""

    study: list[ItemJson]
    stage1: list[ItemJson]
    stage2: list[list[ItemJson]]


class WholePaperJson(TypedDict):
    """Of `paper run`, and of OUT/paper.json. Paths are relative to OUT."""

    verdict: str
    why: str
    exit_status: int
    stage1: str
    stage2: list[str]
    sections: list[SectionJson]
    checklist: ChecklistsJson
    figures: list[str]
    files: list[str]


def write_whole_paper(found: WholePaper, out: Path) -> list[Path]:
    """Writes index.html, paper.md, paper.json and figures; returns the files, the page first."""
    from nafaudit.paper.figures import HELDOUT_FIGURES, TERM_FIGURE
    from nafaudit.views.figures import PAPER_FIGURES
    from nafaudit.views.figures.style import as_bytes, style

    sections = whole_sections(found)
    figures: list[tuple[str, str, int]] = []
    make_directory(out / "figures")
    # The paper's term is that of its search: with the delta and N of a prompt, not of a class.
    wanted: list[tuple[str, str, RunFigure, AuditResult]] = [
        *((one.name, "Stage 1", one, found.stage1)
          for one in PAPER_FIGURES if one.name != TERM_FIGURE.name),
        *((f"{one.name}-k{k:g}", f"Stage 2 at k = {k:g}", one, result)
          for result in found.stage2 for k in (budget_of(result),)
          for one in (*HELDOUT_FIGURES, TERM_FIGURE)),
    ]  # fmt: skip
    for name, where, figure, result in wanted:
        if figure.lacks(result):
            continue
        with style():
            drawn = as_bytes(figure.draw(result), "svg")
        write_whole(out / "figures" / f"{name}.svg", drawn)
        places = [i for i, one in enumerate(sections) if one.title.startswith(_BESIDE[figure.name])]
        caption = f"{figure.caption[:1].upper()}{figure.caption[1:]}, {where}"
        caption += f" (the paper's {_LABELS[figure.name]})"
        figures.append((caption, f"{name}.svg", places[-1]))
    files = [path.relative_to(out) for place in sorted(out.glob("stage*"))
             for path in sorted((place / "paper").glob("*")) if path.is_file()]  # fmt: skip
    held: dict[Path, list[str]] = {}
    for path in files:
        held.setdefault(path.parent, []).append(path.name)
    written = Section(
        "The paper's files of these runs",
        Table(
            (Column("directory", words=True), Column("files", words=True, wraps=True)),
            tuple((str(place), ", ".join(names)) for place, names in held.items()),
        ),
    )
    title = "An empirical audit of k-NAF budget accounting, on this pair"
    document = Document(title, (*sections, written), answer=found.overall)
    pictures = "\n".join(f"\n![{caption}](figures/{file})" for caption, file, _ in figures)
    overall = found.overall
    data: WholePaperJson = {
        "verdict": str(overall.verdict),
        "why": overall.why,
        "exit_status": overall.exit_status,
        "stage1": str(found.stage1.run.path.relative_to(out)),
        "stage2": [str(one.run.path.relative_to(out)) for one in found.stage2],
        "sections": [_section_json(one) for one in sections],
        "checklist": {
            "study": item_rows(found.study()),
            "stage1": item_rows(found.items(found.stage1)),
            "stage2": [item_rows(found.items(one)) for one in found.stage2],
        },
        "figures": [f"figures/{file}" for _, file, _ in figures],
        "files": [str(path) for path in files],
    }
    contents = {
        "index.html": page(title, found, sections, figures, out, held),
        "paper.md": markdown(document) + f"\n## Figures\n{pictures}\n",
        "paper.json": json.dumps(data, indent=1, ensure_ascii=False) + "\n",
    }
    for name, content in contents.items():
        write_whole(out / name, content.encode())
    return [out / name for name in contents]


def _section_json(section: Section) -> SectionJson:
    found: SectionJson = {"title": section.title, "lines": list(section.lines)}
    if section.table is not None:
        found["columns"] = [column.head for column in section.table.columns]
        found["rows"] = [[str(cell) for cell in row] for row in section.table.cells()]
    if section.note:
        found["note"] = section.note
    return found


def summary_document(found: WholePaper, files: Sequence[Path]) -> Document:
    """Returns what a terminal shows: verdicts, defects, the study's checklist, where the page is.

    The checklist of a part is on the page; `nafaudit checklist` shows it too.
    """
    listed = checklist_document(found.study(here=True)).sections[0].lines
    parts = ", ".join(str(one.run.path) for _, one in found.parts)
    own = f"the checklist of a part: nafaudit checklist DIRECTORY, one of {parts}"
    sections = (
        verdict_section(found, narrow=True),
        defect_section(found),
        Section("Checklist of the whole study", lines=(*listed, own)),
    )
    return Document("nafaudit paper run", sections, files=tuple(map(str, files)),
                    answer=found.overall)  # fmt: skip
