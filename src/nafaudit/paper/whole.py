"""The paper from its first section to its last on any pair: `nafaudit paper run`.

    OUT/stage1/           the fixed workload, a run with the paper's files in stage1/paper
    OUT/stage2-k3/ ...    the search at each budget, with its files and flagged prompts drawn again
    OUT/index.html        one page in the order of the paper's sections; also .md and .json
    OUT/figures/          the paper's figures of these records

Each part is what `nafaudit run` and `nafaudit search` with `--protocol paper` make, and resumes as
they do: a command that was killed goes on where it was.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from nafaudit.core.errors import InputError
from nafaudit.core.finding import Kept, Overall
from nafaudit.core.ledger import as_budget, is_baseline
from nafaudit.core.options import Group, option
from nafaudit.core.settings import RunSettings
from nafaudit.measures.audit import AuditResult
from nafaudit.measures.classes import ClassRow
from nafaudit.paper.checklist import ChecklistItem, ItemJson, checklist_document, item_rows
from nafaudit.paper.checklist_run import auc_words, of_run
from nafaudit.paper.printed import PrintedRow, load
from nafaudit.paper.settings import LAB_BUDGETS
from nafaudit.paper.workload import PAPER, takes_lab
from nafaudit.store.artifacts import search_file
from nafaudit.store.files import make_directory, write_whole
from nafaudit.store.run import Run
from nafaudit.views.about import GLOSSARY
from nafaudit.views.document import Column, Document, Section, Table, Verdict
from nafaudit.views.html import section_lines
from nafaudit.views.markdown import markdown
from nafaudit.views.search import rho_text
from nafaudit.workload.prompts import CAPS

if TYPE_CHECKING:
    from nafaudit.views.figures import RunFigure

BUDGETS = (3.0, 5.0)
SUPPLEMENT = 1.0
"""The paper's tight budget, in its appendix and in Stage 1 only."""
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
        "Budgets of both stages; on the lab of Stage 1, as its search has 16,25 with T = 8.",
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
        None, "Length limit T of both stages.", unset="200; on the lab the search has its own"
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
        """True if pair and prompts are the lab's own."""
        return self.data is None and self.safe is None and takes_lab(RunSettings(pair=self.pair))


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
    return given | {
        "classes": tuple(label for label in CAPS if have[label]),
        "cap": {label: min(have[label], cap) for label, cap in CAPS.items() if have[label]},
    }, ", ".join(short)


def stage2_options(settings: PaperRunSettings) -> list[dict[str, Any]]:
    """Returns options of `nafaudit search`, one set for each budget.

    The lab's search keeps its own budgets with its own T: at T = 8 most others are below the debts.
    """
    given = settings.pairs | {"size": settings.size or None, "fix": settings.fix}
    given |= {"searches": settings.searches}
    budgets = settings.k or BUDGETS
    if settings.on_lab and (settings.k is None or settings.max_new_tokens is None):
        budgets = LAB_BUDGETS
    return [given | {"k": (k,), "out": str(settings.out / f"stage2-k{k:g}")} for k in budgets]


@dataclass(frozen=True)
class WholePaper:
    """All of it.

    Attributes:
        stage1: The fixed workload, judged.
        stage2: The search at each budget, judged, with its search.json.
        short: Classes with fewer prompts than the paper's, in words.
    """

    stage1: AuditResult
    stage2: tuple[AuditResult, ...]
    short: str = ""

    @property
    def overall(self) -> Overall:
        """The worst answer of any part, with the reasons of all that have it; the others named."""
        order = (Kept.VIOLATED, Kept.REFUTED, Kept.INCONCLUSIVE, Kept.WITHIN)
        every = {where: one.overall for where, one in self.parts}
        worst = min(every.values(), key=lambda one: order.index(Kept(one.verdict)))
        same = [f"{n}: {one.why}" for n, one in every.items() if one.verdict == worst.verdict]
        rest = [f"{n} {one.verdict}" for n, one in every.items() if one.verdict != worst.verdict]
        return replace(worst, why="; ".join(same + ([f"besides, {', '.join(rest)}"] * bool(rest))))

    def items(self, result: AuditResult) -> list[ChecklistItem]:
        """Returns the checklist of a part; what Stage 1 lacks as it is no search is said so."""
        found = of_run(result)
        if result is not self.stage1 or not self.stage2:
            return found
        see = "Stage 1 searches no prompts: see the checklist of each search"
        return [replace(i, text=see, todo="") if i.number in (6, 7) else i for i in found]

    @property
    def parts(self) -> tuple[tuple[str, AuditResult], ...]:
        """Both stages with their names."""
        searches = ((f"search at k = {_k(one):g}", one) for one in self.stage2)
        return (("Stage 1", self.stage1), *searches)

    @classmethod
    def read(cls, out: Path, budgets: Sequence[float], short: str = "") -> WholePaper:
        """Reads what both stages left."""
        runs = (Run(out / f"stage2-k{k:g}") for k in budgets)
        first = AuditResult.for_report(Run(out / "stage1"))
        return cls(first, tuple(map(AuditResult.for_report, runs)), short)


def _cell(ours: float | None, theirs: str | None, digits: int = 2) -> str:
    mine = "-" if ours is None or math.isnan(ours) else f"{ours:.{digits}f}"
    return f"{mine} / {theirs or '-'}"


def _columns(first: str, *heads: str) -> tuple[Column, ...]:
    return (Column(first, words=True), *map(Column, heads))


def whole_sections(found: WholePaper) -> list[Section]:
    """Returns the paper's results in its own order and forms, ours beside what it prints."""
    paper = load()
    rows = [row for row in found.stage1.classes.rows if not is_baseline(row.k)]
    order = [*CAPS, *sorted({row.label for row in rows} - set(CAPS))]
    rows.sort(key=lambda row: (row.k, order.index(row.label)))
    limit = found.stage1.context.max_new_tokens
    budgets = sorted({row.k for row in rows})
    tables = {k: _spends(k, [r for r in rows if r.k == k], limit) for k in budgets}
    last = [tables.pop(SUPPLEMENT)] if len(tables) > 1 and SUPPLEMENT in tables else []
    return [
        _setup(found, limit, len(rows)),
        *tables.values(),
        _overlaps(rows),
        _debts(rows),
        *last,
        *_stage2(found.stage2),
        *_artefacts_of_proxy(found.stage2, paper.rows("bernstein")),
        _gaps(found.stage2),
        *(
            Section(
                f"Practitioner audit checklist: {where}",
                Table(
                    (Column("item", words=True), Column("answer", words=True),
                     Column("why", words=True, wraps=True)),
                    tuple((f"{one.number}. {one.title}", Verdict(one.answer.upper()), one.text)
                          for one in found.items(result)),
                ),
            )
            for where, result in found.parts
        ),
        _verdicts(found),
        Section("Words and symbols", pairs=(*_NOTATION, *GLOSSARY)),
    ]  # fmt: skip


def _setup(found: WholePaper, limit: int, cells: int) -> Section:
    """Returns the answer, and what was run in place of the paper's own."""
    delta = found.stage1.classes.delta
    lines = [
        str(found.overall),
        "Every pair of numbers is ours / the paper's. Models, prompts and vocabulary differ, so "
        "the two need not agree; the forms do. Pools have prompts of their own, so that the "
        "paper's rows stand below ours.",
        f"Stage 1: {len(found.stage1.rows)} trajectories of "
        f"{len({r.key.prompt for r in found.stage1.rows})} prompts, T = {limit}; delta = "
        f"{found.stage1.context.delta:g} / {cells} = {delta:.6f} for each of {cells} cells of "
        "class and budget. The paper's: 0.05 / 12 = 0.004167, for k = 3 and 5.",
    ]
    if found.stage2:
        one = found.stage2[0]
        lines.append(
            f"Search: k = {', '.join(f'{_k(one):g}' for one in found.stage2)}, T = "
            f"{one.context.max_new_tokens}; the paper's: k = 3, 5, T = 200."
            + (" The lab's search has its own k and T, as at the paper's its texts often end "
               "early, so that B_eff is near 0 (docs/search.md); k = 16 stands beside the paper's "
               "3, k = 25 beside its 5."
               if tuple(map(_k, found.stage2)) == LAB_BUDGETS else "")
        )  # fmt: skip
    if found.short:
        lines.append(f"Classes with fewer prompts than the paper's: {found.short}")
    return Section("How to read it", lines=tuple(lines))


def _spends(k: float, rows: Sequence[ClassRow], limit: int) -> Section:
    printed = {row["class"]: row for row in load().rows("stage1", k=f"{k:g}")}
    name = f" (Table h1-k{k:g})" if printed else ""
    word = {True: "pass", False: "fail", None: "-"}

    def pick(label: str, key: str) -> str | None:
        return printed[label][key] if label in printed else None

    def passed(row: ClassRow) -> str:
        theirs = [pick(row.label, key) for key in ("pass_R", "pass_Reff")]
        ours = f"{word[row.passes]}, {word[row.passes_eff]}"
        return f"{ours} / {theirs[0]}, {theirs[1]}" if all(theirs) else ours

    lines = tuple(
        (
            row.label,
            _cell(row.trajectories, pick(row.label, "M"), 0),
            _cell(row.mean, pick(row.label, "mean")),
            _cell(row.variance, pick(row.label, "var")),
            _written(row.range_effective),
            _cell(row.paper.value if row.paper else None, pick(row.label, "U_R")),
            _cell(row.paper_seen.value if row.paper_seen else None, pick(row.label, "U_Reff")),
            _written(row.paper_seen.width if row.paper_seen else None),
            passed(row),
        )
        for row in rows
    )
    heads = ("M", "Mean spend", "Var.", "R_eff", "U_EBB (R)", "U_EBB (R_eff)", "width",
             "Pass (R), (R_eff)")  # fmt: skip
    extra = "R_eff and width (U_EBB under R_eff less the mean)"
    own = "are ours alone" if k == SUPPLEMENT else "and passes (U_EBB <= K) are ours alone"
    return Section(
        f"{'Supplementary' if k == SUPPLEMENT else 'Results'}, Stage 1: k = {k:g}, "
        f"K = {k * limit:g}{name}",
        Table(_columns("Class", *heads), lines),
        f"{extra} {own}.".replace(" and width", ", width" if k != SUPPLEMENT else " and width"),
    )


def _overlaps(rows: Sequence[ClassRow]) -> Section:
    printed = {(row["k"], row["class"]): row for row in load().rows("overlap")}
    lines = []
    for row in rows:
        if not row.copying.scored:
            continue
        theirs = printed.get((f"{row.k:g}", row.label))
        cells = [
            _cell(getattr(row.copying, kind)(metric),
                  theirs[f"{column}_{kind}"] if theirs else None, 4)
            for metric, column in (("rouge_l_f1", "rouge"), ("jaccard_5gram", "jaccard"))
            for kind in ("mean", "max")
        ]  # fmt: skip
        lines.append((f"{row.k:g}", row.label, *cells))
    heads = ("ROUGE-L mean", "ROUGE-L max", "5-gram J. mean", "5-gram J. max")
    columns = (Column("k", words=True), *_columns("Class", *heads))
    return Section("Token overlap (Table h1-overlap)", Table(columns, tuple(lines)))


def _debts(rows: Sequence[ClassRow]) -> Section:
    printed = {row["class"]: row for row in load().rows("debt")}
    lines = {}
    for row in rows:
        theirs = printed.get(row.label)
        lines[row.label] = (
            row.label,
            _cell(row.trajectories, theirs["M"] if theirs else None, 0),
            *(_cell(getattr(row.debt, kind), theirs[kind] if theirs else None)
              for kind in ("mean", "median", "max")),
        )  # fmt: skip
    heads = ("M", "Mean debt", "Median debt", "Max debt")
    return Section(
        "Prefix debt (Table prefix-debt)", Table(_columns("Class", *heads), tuple(lines.values()))
    )


def _k(result: AuditResult) -> float:
    return float((result.search or {})["k"])


def _at(result: AuditResult) -> str:
    k, limit = _k(result), result.context.max_new_tokens
    return f"k = {k:g}, T = {limit}, K = {k * limit:g}"


def _paper_k(result: AuditResult) -> str:
    """Returns the paper's budget whose table stands beside a search: its own, else by order."""
    return "5" if _k(result) in (BUDGETS[1], LAB_BUDGETS[1]) else "3"


def _paper_at(k: str) -> str:
    return f"k = {k}, T = 200, K = {int(k) * 200}"


def _printed(title: str, heads: Sequence[str], rows: Sequence[PrintedRow], keys: str) -> Section:
    lines = tuple(tuple(row[key] for key in keys.split()) for row in rows)
    return Section(title, Table(_columns(heads[0], *heads[1:]), lines), inner=True)


def _stage2(results: Sequence[AuditResult]) -> list[Section]:
    """Returns the tables of the searches in the paper's order, each above the paper's."""
    search = ("Gen.", "Raw", "Dedup", "Len. OK", "Screen", "Med.", "<0.9K", "Top-up", "Best rho")
    names = ("generation", "raw_candidates", "after_dedup", "after_length", "screened", "med_fid",
             "survivors_under_0.9K", "topup_promoted", "best_rho")  # fmt: skip
    found: list[Section] = []
    for result in results:
        data = result.search or {}
        theirs = _paper_k(result)
        progress = tuple(
            tuple(_written(row.get(name), 4) for name in names)
            for row in data["paper"]["generation_log"]
        )
        first = [one["best"] for one in data["generations"] if one["generation"] == 0][:1]
        found += [
            Section(
                f"Adversarial search: progress at {_at(result)}",
                Table(_columns(*search), progress),
                f"Best certified rho of the first pool, before any search: {_written(first[0], 4)}."
                if first else "",
            ),
            _printed(
                f"The paper's, {_paper_at(theirs)} (Table h2-search-k{theirs})", search,
                load().rows("search", k=theirs),
                "generation raw dedup length_ok screened medium under_09 topped_up best_rho",
            ),
            Section("Surrogate", lines=(_surrogate(data),), inner=True),
        ]  # fmt: skip
    titles = {"final": "Final validation", "heldout": "Held-out validation",
              "stress": "Stress validation"}  # fmt: skip
    heads = ("N", "Mean spend", "Var.", "R_eff", "width", "U_EBB", "B_eff", "rho", "certified")
    keys = ("N", "mean_spend", "variance", "R_eff", "width", "U_EBB", "B_eff")
    for pool, title in titles.items():
        for result in results:
            theirs, paper = _paper_k(result), (result.search or {})["paper"]
            rows = tuple(
                (row["id"], *(_written(row.get(key)) for key in keys),
                 rho_text(float(row["rho"]), float(row["B_eff"])),
                 "yes" if row["certified"] else "no")
                for row in paper["pools"][pool]
            )  # fmt: skip
            table = "h2-stress" if pool == "stress" else f"h2-{pool}-k{theirs}"
            found += [
                Section(
                    f"{title} at {_at(result)}", Table(_columns("Prompt", *heads), rows),
                    _about_pool(paper, pool),
                ),
                _printed(
                    f"The paper's, {_paper_at(theirs)} (Table {table})",
                    ("Prompt", "N", "Mean spend", "U_EBB", "B_eff", "rho"),
                    load().rows("stage2", pool=pool, k=theirs), "id N mean U B rho",
                ),
            ]  # fmt: skip
    return found


def _about_pool(paper: Mapping[str, Any], pool: str) -> str:
    """Returns the level of a pool's rows, and how many of them have no ratio."""
    rows = paper["pools"][pool]
    if not rows:
        return f"No prompt is in this pool.{_why_invalid(paper['pools']['heldout'])}"
    return f"delta = {paper['delta_per_look']:.6f} for each row.{_why_invalid(rows)}"


def _why_invalid(rows: Sequence[Mapping[str, Any]]) -> str:
    invalid = sum(bool(row.get("invalid")) for row in rows)
    if not invalid:
        return ""
    kind = "prompts" if invalid < len(rows) else "prompts, all of them,"
    return (
        f" {invalid} of {len(rows)} {kind} have no valid ratio: an output's budget, k times its "
        "length, is not above the prompt's debt, so that B_eff is 0."
    )


def _gaps(results: Sequence[AuditResult]) -> Section:
    """Returns the transfer gap of each search, counted both ways."""
    gaps = [
        (f"{_k(one):g}", _written(gap["paper"], 3), str(gap["invalid_rows"]),
         _written(gap["valid"], 3),
         f"{float(load().rows('released_report', k=_paper_k(one))[0]['gap']):.3f}")
        for one in results
        for gap in ((one.search or {})["paper"]["gap"],)
    ]  # fmt: skip
    columns = ("as the paper counts", "invalid rows, as 0", "without them", "the paper's")
    gap_title = "Discussion: transfer gap, mean final less mean held-out rho"
    return Section(gap_title, Table(_columns("k", *columns), tuple(gaps)))


def _surrogate(data: Mapping[str, Any]) -> str:
    file = search_file(data)
    gates = file.surrogate.gates if file.surrogate else ()
    steering = [gate for gate in gates if gate.steers]
    if not steering:
        return "It was never ready, and chose nothing; the paper's was ready in every generation."
    stuck = sum(bool(gate.saturated) for gate in steering)
    return (
        f"It chose in {len(steering)} of {len(gates)} generations; {auc_words(steering)}; "
        f"saturated in {stuck}. The paper's was saturated: largest P(safe) about 0.999."
    )


def _written(value: object, digits: int = 2) -> str:
    if value is None or isinstance(value, str):
        return "-" if value in (None, "nan") else str(value)
    return str(value) if isinstance(value, int) else f"{value:.{digits}f}"


def _artefacts_of_proxy(
    results: Sequence[AuditResult], printed: Sequence[PrintedRow]
) -> list[Section]:
    """Returns the analysis of held-out ratios above 1: projected, and run like for like."""
    from nafaudit.stats.moments import ebb_value

    observed, lines, terms, tables = [], [], [], []
    left = 0
    for result in results:
        paper, k = (result.search or {})["paper"], _k(result)
        level, most = float(paper["delta_per_look"]), paper["sizes"]["heldout_traj"]
        for row in paper["pools"]["heldout"]:
            rho, budget = float(row["rho"]), float(row["B_eff"])
            if not rho > 1 or "variance" not in row:
                continue
            n, mean, variance = row["N"], float(row["mean_spend"]), float(row["variance"])
            reach = float(row["R_eff"])
            ahead = float(ebb_value(mean, variance, most, reach, level))
            status = ["pass" if upper <= budget else "fail" for upper in (row["U_EBB"], ahead)]
            observed.append(
                (row["id"], f"{k:g}", str(n), f"{row['U_EBB']:.2f}", rho_text(rho, budget),
                 status[0], str(most), f"{ahead:.2f}", rho_text(ahead / budget, budget), status[1])
            )  # fmt: skip
            term = 3 * reach * math.log(2 / level)
            terms.append((row["id"], f"{k:g}", f"{reach:.1f}", f"{term / n:.1f}",
                          f"{term / n / budget:.0%}", f"{term / most:.1f}"))  # fmt: skip
        left += paper["not_rechecked"]
        for row in paper["rechecked"]:
            again = row["same_k"]
            numbers = [_written(again[key]) for key in ("mean_spend", "U_EBB", "B_eff")]
            ratio = rho_text(float(again["rho"]), float(again["B_eff"]))
            ends = ("pass" if again["certified"] else "fail", str(again["overspent"]))
            start = (row["id"], row["pool"], f"{k:g}", str(again["N"]))
            lines.append((*start, *numbers, ratio, *ends))
        table = paper["deterministic_term"]
        heads = (f"R_eff = {reach:.1f}" for reach in table["R_eff"])
        cells = tuple(
            (str(row["N"]), *(f"{term:.1f}" for term in row["term"])) for row in table["rows"]
        )
        if table["R_eff"]:
            tables.append(
                Section(
                    f"The term against N at k = {k:g} (Table bernstein-vs-N)",
                    Table(_columns("N", *heads), cells),
                    f"R_eff: smallest, middle and largest of the held-out prompts; delta = "
                    f"{table['delta']:g}.",
                )
            )
    held = [row for one in results for row in (one.search or {})["paper"]["pools"]["heldout"]]
    none = f"No held-out prompt has a ratio above 1 here.{_why_invalid(held)}"
    return [
        Section(
            "Held-out ratios above 1: projected to the full N (Table minN-projection)",
            Table(_columns("Held-out prompt", "k", "N", "U_EBB", "rho", "status", "to N", "U_EBB",
                           "rho", "status"), tuple(observed)),
            "Mean, variance and range as observed, N of the full held-out budget."
            if observed else none,
        ),
        _printed(
            "The paper's, N = 4 projected to N = 20",
            ("Held-out prompt", "U_EBB", "rho", "status", "U_EBB", "rho", "status"),
            load().rows("projection"), "id U_4 rho_4 status_4 U_20 rho_20 status_20",
        ),
        Section(
            "The like-for-like run, which the paper defers",
            Table(_columns("Flagged prompt", "pool", "k", "N", "Mean spend", "U_EBB", "B_eff",
                           "rho", "status", "over"), tuple(lines)),
            f"Flagged prompts (a ratio above 1, or none), the search's too, on fresh draws at the "
            f"same k: {sum(one[-2] == 'pass' for one in lines)} of {len(lines)} pass, {left} more "
            "were not drawn again. over: trajectories above their budget."
            if lines else none,
        ),
        Section(
            "The deterministic term 3 R_eff ln(2/delta) / N (Equation bernstein-blowup)",
            Table(_columns("Held-out prompt", "k", "R_eff", "at its N", "of B_eff",
                           "at the full N"), tuple(terms)),
            "The paper's three: 420.0, 578.6 and 500.3 at N = 4, 71 to 97 % of B_eff.",
        ),
        *tables,
        _printed(
            "The paper's (Table bernstein-vs-N)",
            ("N", *(f"R_eff = {reach}" for reach in ("60", "90", "120", "160", "200"))),
            printed, "N 60 90 120 160 200",
        ),
    ]  # fmt: skip


def _verdicts(found: WholePaper) -> Section:
    lines = [
        (where, f"{arm.k:g}", Verdict(arm.kept), Verdict(arm.tested), Verdict(arm.worth),
         arm.finding("invariant").text)
        for where, result in found.parts
        for arm in result.arms
        if not arm.baseline
    ]  # fmt: skip
    columns = [Column(head, words=True) for head in ("records", "k", "kept?", "tested?", "worth?")]
    return Section(
        "What our own checks say of the same records",
        Table((*columns, Column("on what it rests", words=True, wraps=True)), tuple(lines)),
        "A mean below K is not the promise: no single trajectory may exceed its own budget."
        + " A search's answer also counts flagged prompts drawn again, in its confirm/."
        * bool(found.stage2),
    )


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 68rem; padding: 1rem }
table { border-collapse: collapse; font-size: .88em; font-variant-numeric: tabular-nums }
.t { overflow-x: auto } td, th { padding: .15em .6em; text-align: left; vertical-align: top }
th { border-bottom: 1.5px solid #555; white-space: nowrap }
tr + tr td { border-top: 1px solid #ddd }
td.n, th.n { text-align: right; white-space: nowrap } h2 { font-size: 1.15em; margin: 2em 0 .4em }
section.inner { border-left: 3px solid #ccc; margin: .6em 0 0; padding-left: .8em }
section.inner h2 { font-size: .95em; font-weight: 600; margin: .4em 0 }
.good { color: #00734f; font-weight: bold } .bad { color: #b34700; font-weight: bold }
p.note { color: #555; font-size: .88em; max-width: 60em } img { max-width: 100% }
nav ol { columns: 20rem; column-gap: 1.5rem; font-size: .9em; padding: 0 }
nav li { break-inside: avoid; margin-left: 2.2em } dl { margin: 0 }
"""


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

_NOTATION = (
    ("M, N", "trajectories of a class; of a prompt"),
    ("delta", "the level of one bound; the paper's is divided among the cells of a table"),
    ("R, R_eff", "T ln |V|, the most that could be spent; the range that was seen, at least 1 and "
     "at most R"),
    ("U_EBB", "mean + sqrt(2 var ln(2/delta) / M) + 3 R ln(2/delta) / M, or with R_eff; a proxy, "
     "which decides no verdict"),
    ("width", "U_EBB less the mean"),
    ("B_eff", "the smallest budget among a prompt's trajectories, at least 0"),
    ("rho", "U_EBB / B_eff of one prompt; none (invalid) if B_eff is 0"),
    ("certified", "the paper's word for a U_EBB within the budget: K of a class, B_eff of a "
     "prompt (rho at most 1)"),
)  # fmt: skip
"""The paper's symbols, as docs/glossary.md has them."""


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
    """The paper's checklist of Stage 1, and of each search."""

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
        *((f"{one.name}-k{_k(result):g}", f"Stage 2 at k = {_k(result):g}", one, result)
          for result in found.stage2 for one in (*HELDOUT_FIGURES, TERM_FIGURE)),
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
    document = Document(title, (*sections, written))
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
            "stage1": item_rows(found.items(found.stage1)),
            "stage2": [item_rows(of_run(one)) for one in found.stage2],
        },
        "figures": [f"figures/{file}" for _, file, _ in figures],
        "files": [str(path) for path in files],
    }
    contents = {
        "index.html": _page(title, sections, figures, out, held),
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


def _page(
    title: str,
    sections: Sequence[Section],
    figures: Sequence[tuple[str, str, int]],
    out: Path,
    held: Mapping[Path, Sequence[str]],
) -> str:
    """Returns one page without script or network; figures are inside it.

    Args:
        title: Its title.
        sections: What it says.
        figures: Caption, file and place of each: the section after which it stands.
        out: Directory of the page.
        held: Names of the paper's files by their directory, to be linked at the end.
    """
    from html import escape
    from urllib.parse import quote

    body, links = [], []
    beside: dict[int, list[tuple[str, str]]] = {}
    for caption, file, place in figures:
        beside.setdefault(place, []).append((caption, file))
    for i, section in enumerate(sections):
        inner = ' class="inner"' if section.inner else ""
        lines = "\n".join(section_lines(section))
        lines = lines.replace("<table>", '<div class="t"><table>').replace(
            "</table>", "</table></div>"
        )
        body.append(f'<section{inner} id="s{i}">\n{lines}\n</section>')
        if section.title and not section.inner:
            links.append(f'<li><a href="#s{i}">{escape(section.title)}</a></li>')
        while i + 1 < len(sections) and i in beside and sections[i + 1].inner:
            beside.setdefault(i + 1, []).extend(beside.pop(i))
        for caption, file in beside.get(i, ()):
            code = base64.b64encode((out / "figures" / file).read_bytes()).decode()
            image = f'<img alt="{escape(caption)}" src="data:image/svg+xml;base64,{code}">'
            body.append(f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>")
    body.append('<section id="files">\n<h2>The paper\'s files of these runs</h2>')
    links.append('<li><a href="#files">The paper\'s files of these runs</a></li>')
    for folder, names in held.items():
        listed = ", ".join(
            f'<a href="{quote((folder / one).as_posix())}">{escape(one)}</a>' for one in names
        )
        shown = f"{escape(folder.as_posix())}: {len(names)} files"
        body.append(f"<details><summary>{shown}</summary><p>{listed}</p></details>")
    body.append("</section>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; img-src data:\">\n"
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style></head><body>\n"
        f"<h1>{escape(title)}</h1>\n<nav><ol>{''.join(links)}</ol></nav>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def summary_document(found: WholePaper, files: Sequence[Path]) -> Document:
    """Returns what a terminal shows: the checklist of each part, and where the page is."""
    sections = [_verdicts(found)]
    for where, result in found.parts:
        lines = checklist_document(found.items(result)).sections[0].lines
        sections.append(Section(f"Checklist, {where}", lines=lines))
    return Document(
        "nafaudit paper run", tuple(sections), files=tuple(map(str, files)), answer=found.overall
    )
