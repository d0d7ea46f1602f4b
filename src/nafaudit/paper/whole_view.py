"""What the page of `nafaudit paper run` says, section by section, in the order of the paper."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nafaudit.core.ledger import is_baseline
from nafaudit.core.text import counted, cut
from nafaudit.measures.audit import AuditResult
from nafaudit.measures.classes import ClassRow
from nafaudit.paper.checklist import ChecklistItem
from nafaudit.paper.checklist_run import auc_words
from nafaudit.paper.printed import PrintedRow, load
from nafaudit.paper.settings import LAB_BUDGETS, LAB_LENGTH
from nafaudit.stats.moments import ebb_value
from nafaudit.store.artifacts import search_file
from nafaudit.views.about import GLOSSARY
from nafaudit.views.document import Column, Section, Table, Verdict
from nafaudit.views.search import defects_of, rho_text
from nafaudit.workload.prompts import CAPS

if TYPE_CHECKING:
    from nafaudit.paper.whole import WholePaper

BUDGETS = (3.0, 5.0)
SUPPLEMENT = 1.0
"""The paper's tight budget, in its appendix and in Stage 1 only."""
PRINTED = "The paper's"
"""How the title of a table begins that the paper prints; all others are ours."""
BEHIND = "Checklist of "
"""How the title of a part's own checklist begins, which stands behind that of the whole study."""
_TEXT = 300
"""Characters of a prompt that are shown."""

NOTATION = (
    ("p, p_s, p_r", "the law that tokens are drawn from (the served law), that of the safe and "
     "that of the risky model"),
    ("x", "a prompt"),
    ("k_t, a_t, Z_j", "what step t may spend; what it spends, the KL divergence of p from p_s; the "
     "spend of trajectory j, the sum of its a_t"),
    ("delta_init(x)", "the prefix debt of a prompt, taken off its budget before the first token"),
    ("M, N", "trajectories of a class; of a prompt"),
    ("delta", "the level of one bound; the paper's is divided among the cells of a table"),
    ("R, R_eff", "T ln |V|, the most that could be spent; the range that was seen, at least 1 and "
     "at most R"),
    ("U_EBB", "mean + sqrt(2 var ln(2/delta) / M) + 3 R ln(2/delta) / M, or with R_eff; a proxy, "
     "which decides no verdict"),
    ("width", "U_EBB less the mean"),
    ("bound on prompts", "our upper bound of a class's mean spend: prompts are its units, and its "
     "range is K; unlike U_EBB it holds at any number of prompts"),
    ("B_j, B_eff", "the budget of trajectory j, k times its length less the debt; the smallest of "
     "a prompt's trajectories, at least 0: one short answer makes it small"),
    ("rho", "U_EBB / B_eff of one prompt; none (invalid) if B_eff is 0"),
    ("certified", "the paper's word for a U_EBB within the budget: K of a class, B_eff of a "
     "prompt (rho at most 1)"),
    ("flagged", "a prompt with a rho above 1, or without one"),
    ("second k", "5/3 of a search's k, as 5 is of 3: flagged prompts are drawn again at both"),
    ("surrogate", "the classifier that guesses which prompts are within budget, and chooses by it"),
)  # fmt: skip
"""The paper's symbols, as docs/glossary.md has them."""


def _cell(ours: float | None, theirs: str | None, digits: int = 2) -> str:
    mine = "-" if ours is None or math.isnan(ours) else f"{ours:.{digits}f}"
    return f"{mine} / {theirs or '-'}"


def _written(value: object, digits: int = 2) -> str:
    if value is None or isinstance(value, str):
        return "-" if value in (None, "nan") else str(value)
    return str(value) if isinstance(value, int) else f"{value:.{digits}f}"


def _columns(first: str, *heads: str) -> tuple[Column, ...]:
    return (Column(first, words=True), *map(Column, heads))


def whole_sections(found: WholePaper) -> list[Section]:
    """Returns our verdicts, then the paper's results in its own order and forms beside ours."""
    rows = [row for row in found.stage1.classes.rows if not is_baseline(row.k)]
    order = [*CAPS, *sorted({row.label for row in rows} - set(CAPS))]
    rows.sort(key=lambda row: (row.k, order.index(row.label)))
    limit = found.stage1.context.max_new_tokens
    budgets = sorted({row.k for row in rows})
    tables = {k: _spends(k, [r for r in rows if r.k == k], limit) for k in budgets}
    last = [tables.pop(SUPPLEMENT)] if len(tables) > 1 and SUPPLEMENT in tables else []
    return [
        verdict_section(found),
        _setup(found, limit, len(rows)),
        *tables.values(),
        _overlaps(rows),
        _debts(rows),
        *last,
        *_progress(found.stage2),
        *_pools(found.stage2),
        *_projected(found.stage2),
        *_like_for_like(found.stage2),
        *_terms(found.stage2),
        defect_section(found),
        _gaps(found.stage2),
        _checklist("Practitioner audit checklist", found.study()),
        *(_checklist(BEHIND + where, found.items(one), True) for where, one in found.parts),
        Section("Words and symbols", pairs=(*NOTATION, *GLOSSARY)),
    ]


# The verdicts, and what was run.


def verdict_section(found: WholePaper, *, narrow: bool = False) -> Section:
    """Returns our own three answers to every part of the records, each with its own budget.

    Args:
        found: What both stages left.
        narrow: True puts what an answer rests on below the table, which fits a terminal then.
    """
    rows: list[tuple[str, float, Verdict, Verdict, Verdict, str]] = []
    unknown: dict[str, None] = {}
    for where, result in found.parts:
        shown = [(where, result)]
        if (fresh := found.fresh.get(where)) is not None:
            shown.append(("its fresh draws", fresh))
        for name, one in shown:
            for arm in one.arms:
                if arm.baseline:
                    continue
                kept, text = str(arm.kept), arm.finding("invariant").text
                if one.search is not None and str(one.overall.verdict) != kept:
                    # The search answers for its records, and may say less than they do.
                    kept = str(one.overall.verdict)
                    text += f"; {search_file(one.search).lacking}"
                share = arm.passages.share
                if not share:
                    unknown[arm.finding("worth").text] = None
                worth = Verdict(arm.worth, f"({share})" if share else "")
                rows.append((name, arm.k, Verdict(kept), Verdict(arm.tested), worth, text))
    note = (
        "A mean below K is not the promise: no single trajectory may exceed its own budget. "
        "worth?: of how many protected passages the word is true"
        + (f"; UNKNOWN: {'; '.join(unknown)}." if unknown else ".")
        + " A search's answer rests on its own draws and on its fresh ones, in its confirm/: final "
        "and flagged prompts at the same k, flagged prompts at a second k too, 5/3 of it."
        * bool(found.fresh)
    )
    title = "What our own checks say of the same records"
    columns = [Column(head, words=True) for head in ("records", "k", "kept?", "tested?", "worth?")]
    if not narrow:
        last = Column("on what it rests", words=True, wraps=True)
        cells = tuple((name, f"{k:.4g}", *words, text) for name, k, *words, text in rows)
        return Section(title, Table((*columns, last), cells), note)
    said: dict[tuple[str, str], list[str]] = {}
    for name, k, *_, text in rows:
        own = name.endswith(f"k = {k:g}")
        said.setdefault((name, text), []).extend([] if own else [f"k = {k:.4g}"])
    lines = tuple(f"{', '.join((name, *ks))}: {text}" for (name, text), ks in said.items())
    table = Table(tuple(columns), tuple((row[0], f"{row[1]:.4g}", *row[2:5]) for row in rows))
    return Section(title, table, note, lines)


def _setup(found: WholePaper, limit: int, cells: int) -> Section:
    """Returns what was run in place of the paper's own."""
    delta = found.stage1.classes.delta
    lines = [
        "Every pair of numbers is ours / the paper's. Models, prompts and vocabulary differ, so "
        "the two need not agree; the forms do. Pools have prompts of their own, so that the "
        "paper's rows stand below ours, behind a grey bar.",
        f"Stage 1: {len(found.stage1.rows)} trajectories of "
        f"{len({r.key.prompt for r in found.stage1.rows})} prompts, T = {limit}; delta = "
        f"{found.stage1.context.delta:g} / {cells} = {delta:.6f} for each of {cells} cells of "
        "class and budget. The paper's: 0.05 / 12 = 0.004167, for k = 3 and 5.",
    ]
    if found.stage2:
        first = found.stage2[0]
        seconds = ", ".join(f"{_paper(one)['second_k']:.4g}" for one in found.stage2)
        lines.append(
            f"Search: k = {', '.join(f'{budget_of(one):g}' for one in found.stage2)}, T = "
            f"{first.context.max_new_tokens}; the paper's: k = 3, 5, T = 200. Of each search the "
            f"flagged prompts are drawn again at its k and at a second one, k = {seconds}."
        )
        own = tuple(map(budget_of, found.stage2)) == LAB_BUDGETS
        if own and first.context.max_new_tokens == LAB_LENGTH:
            lines.append(
                "These budgets of the lab's search were chosen so that what the paper found "
                "appears: of 40 pairs of k and T that were tried (docs/search.md), k = 16 with "
                "T = 8 has held-out prompts whose ratio is above 1 at N = 4 and at most 1 at "
                "N = 20. So this search shows that these artefacts arise, not how often. At the "
                "paper's k and T the lab's texts often end early, B_eff is near 0, and no prompt "
                "is certified. k = 16 stands beside the paper's 3, k = 25 beside its 5."
            )
    if found.short:
        lines.append(f"Classes with fewer prompts than the paper's: {found.short}")
    short = dict.fromkeys(said for one in found.stage2 if (said := _paper(one).get("short")))
    if short:
        lines.append(f"Pools of the search with fewer prompts than the paper's: {'; '.join(short)}")
    return Section("How to read it", lines=tuple(lines))


# Stage 1.


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

    def saved(row: ClassRow) -> str:
        wide, seen = (pick(row.label, key) for key in ("U_R", "U_Reff"))
        theirs = f"{float(wide) - float(seen):.0f}" if wide and seen else None
        both = row.u_ebb is not None and row.u_ebb_eff is not None
        ours = row.u_ebb.value - row.u_ebb_eff.value if both else None  # type: ignore[union-attr]
        return _cell(ours, theirs, 0)

    lines = tuple(
        (
            row.label,
            _cell(row.trajectories, pick(row.label, "M"), 0),
            _cell(row.mean, pick(row.label, "mean")),
            _cell(row.variance, pick(row.label, "var")),
            _written(row.r_eff),
            _cell(row.u_ebb.value if row.u_ebb else None, pick(row.label, "U_R")),
            _cell(row.u_ebb_eff.value if row.u_ebb_eff else None, pick(row.label, "U_Reff")),
            _written(row.u_ebb_eff.width if row.u_ebb_eff else None),
            saved(row),
            _written(row.upper.value if row.upper else None),
            passed(row),
        )
        for row in rows
    )
    heads = ("M", "Mean spend", "Var.", "R_eff", "U_EBB (R)", "U_EBB (R_eff)", "width",
             "saved by R_eff", "bound on prompts", "Pass (R), (R_eff)")  # fmt: skip
    own = "R_eff, width (U_EBB under R_eff less the mean) and bound on prompts"
    passes = "" if k == SUPPLEMENT else ", and passes (U_EBB <= K),"
    return Section(
        f"{'Supplementary' if k == SUPPLEMENT else 'Results'}, Stage 1: k = {k:g}, "
        f"K = {k * limit:g}{name}",
        Table(_columns("Class", *heads), lines),
        f"{own}{passes} are ours alone. saved by R_eff: U_EBB under R less U_EBB under R_eff, "
        "which the paper's Figure 4 prints above its bars.",
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


# Stage 2.


def budget_of(result: AuditResult) -> float:
    """Returns the budget that a search looked at."""
    return float((result.search or {})["k"])


def _paper(result: AuditResult) -> dict[str, Any]:
    found: dict[str, Any] = (result.search or {})["paper"]
    return found


def _at(result: AuditResult) -> str:
    k, limit = budget_of(result), result.context.max_new_tokens
    return f"k = {k:g}, T = {limit}, K = {k * limit:g}"


def _paper_k(result: AuditResult) -> str:
    """Returns the paper's budget whose table stands beside a search: its own, else by order."""
    return "5" if budget_of(result) in (BUDGETS[1], LAB_BUDGETS[1]) else "3"


def _paper_at(k: str) -> str:
    return f"k = {k}, T = 200, K = {int(k) * 200}"


def _printed(title: str, heads: Sequence[str], rows: Sequence[PrintedRow], keys: str) -> Section:
    lines = tuple(tuple(row[key] for key in keys.split()) for row in rows)
    return Section(title, Table(_columns(heads[0], *heads[1:]), lines), inner=True)


def _progress(results: Sequence[AuditResult]) -> list[Section]:
    """Returns what the searches tried and reached, each above the paper's."""
    names = ("generation", "raw_candidates", "after_dedup", "after_length", "screened", "med_fid",
             "survivors_under_0.9K", "topup_promoted", "best_rho",
             "candidate_validity_rate")  # fmt: skip
    found: list[Section] = []
    for result in results:
        data, paper, theirs = result.search or {}, _paper(result), _paper_k(result)
        text = paper.get("variant") == "text"
        heads = ("Gen.", "Raw", "Dedup", "Len. OK", "Screen", "Med.",
                 "<0.9K" if text else "<0.9 B_eff", "Top-up", "Best rho")  # fmt: skip
        progress = tuple(
            tuple(_written(row.get(name), 4 if name == "best_rho" else 3) for name in names)
            for row in paper["generation_log"]
        )
        first = [one["best"] for one in data["generations"] if one["generation"] == 0][:1]
        note = []
        if first:
            note.append(
                f"Best certified rho of the first pool, before any search: {_written(first[0], 4)}."
            )
        if not text:
            note.append(
                "<0.9 B_eff: prompts with U_EBB at most 0.9 of their own B_eff, which the paper's "
                "code tests; its table is headed <0.9K."
            )
        mean = (paper.get("report") or {}).get("candidate_validity_rate_mean")
        printed = float(load().rows("released_report", k=theirs)[0]["validity"])
        if mean is not None:
            note.append(
                "Validity rate: candidates that reach top-up with a valid ratio, of all proposed; "
                f"on average {mean:.3f}, the paper's {printed:.3f}."
            )
        lines = [_surrogate(data), *_archive_best(result)]
        found += [
            Section(
                f"Adversarial search: progress at {_at(result)}",
                Table(_columns(*heads, "Validity rate"), progress), " ".join(note),
            ),
            _printed(
                f"{PRINTED}, {_paper_at(theirs)} (Table h2-search-k{theirs})",
                ("Gen.", "Raw", "Dedup", "Len. OK", "Screen", "Med.", "<0.9K", "Top-up",
                 "Best rho"),
                load().rows("search", k=theirs),
                "generation raw dedup length_ok screened medium under_09 topped_up best_rho",
            ),
            Section("Surrogate and archive maximum", lines=tuple(lines), inner=True),
        ]  # fmt: skip
    return found


def _surrogate(data: Mapping[str, Any]) -> str:
    file = search_file(data)
    gates = file.surrogate.gates if file.surrogate else ()
    steering = [gate for gate in gates if gate.steers]
    if not steering:
        return (
            "The surrogate was never ready, and chose nothing; the paper's was ready in every "
            "generation."
        )
    stuck = sum(bool(gate.saturated) for gate in steering)
    return (
        f"The surrogate chose in {len(steering)} of {len(gates)} generations; "
        f"{auc_words(steering)}; saturated in {stuck}. The paper's was saturated: largest P(safe) "
        "about 0.999."
    )


def _archive_best(result: AuditResult) -> list[str]:
    """Returns the archived prompt with the largest ratio in a sentence, as its file has it."""
    path = result.run.path / "paper" / "archive_current.json"
    rows = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    if not rows:
        return ["The archive is empty: no prompt was certified."]
    best = max(rows, key=lambda row: float(row["rho"]))
    said = " ".join(str(best["prompt_text"]).split())
    return [
        f"Archive maximum: {best['candidate_id']}, rho {float(best['rho']):.4f} at N = {best['N']}"
        f", of generation {best['generation']}: \u201c{cut(said, _TEXT)}\u201d"
    ]


_POOLS = {"final": "Final validation", "heldout": "Held-out validation",
          "stress": "Stress validation"}  # fmt: skip


def _pools(results: Sequence[AuditResult]) -> list[Section]:
    """Returns the tables of the validation pools in the paper's order, each above the paper's."""
    found: list[Section] = []
    heads = ("N", "Mean spend", "Var.", "R_eff", "width", "U_EBB", "B_eff", "rho", "certified")
    keys = ("N", "mean_spend", "variance", "R_eff", "width", "U_EBB", "B_eff")
    for pool, title in _POOLS.items():
        for result in results:
            theirs = _paper_k(result)
            rows = tuple(
                (row["id"], *(_written(row.get(key)) for key in keys),
                 rho_text(float(row["rho"]), float(row["B_eff"])),
                 "yes" if row["certified"] else "no")
                for row in _paper(result)["pools"][pool]
            )  # fmt: skip
            table = "h2-stress" if pool == "stress" else f"h2-{pool}-k{theirs}"
            found += [
                Section(
                    f"{title} at {_at(result)}", Table(_columns("Prompt", *heads), rows),
                    " ".join(about_pool(result.search or {}, pool)),
                ),
                _printed(
                    f"{PRINTED}, {_paper_at(theirs)} (Table {table})",
                    ("Prompt", "N", "Mean spend", "U_EBB", "B_eff", "rho"),
                    load().rows("stage2", pool=pool, k=theirs), "id N mean U B rho",
                ),
            ]  # fmt: skip
    return found


def about_pool(data: Mapping[str, Any], pool: str) -> list[str]:
    """Returns what a reader needs to know of a pool: level, size, what was dropped or repeated.

    Args:
        data: The content of search.json.
        pool: `final`, `heldout` or `stress`.
    """
    paper = data["paper"]
    rows, sizes, held = paper["pools"][pool], paper["sizes"], paper["pools"]["heldout"]
    if not rows:
        why = "No prompt is in this pool: no prompt of the search was certified and stayed so."
        return [why, *_why_invalid(held, "held-out prompts")] if pool != "heldout" else [why]
    said = [f"delta = {paper['delta_per_look']:.6f} for each row.", *_why_invalid(rows, "prompts")]
    equal = sum(float(row.get("variance", math.nan)) == 0.0 for row in rows)
    if equal:
        all_of = "each" if equal > 1 else "it"
        said.append(
            f"Var. 0.00 ({counted(equal, 'row')}): all trajectories of {all_of} spend the same, "
            "and R_eff is its least value, 1."
        )
    keep = sizes.get(f"{pool}_keep", len(rows))
    if pool == "final" and len(rows) < keep:
        said.append(
            f"The pool has at most {keep} prompts: archived ones that no other beats in both rho "
            f"and distance to its nearest. {counted(len(rows), 'prompt is', 'prompts are')} such; "
            "it is not filled up, and the paper's k = 5 pool has five too."
        )
    if pool == "heldout":
        said += _allocation(data, rows, sizes["heldout_traj"])
    if pool == "stress":
        said += _repeated(rows, paper["pools"]["final"])
    return [*said, *_dropped(paper, pool)]


def _why_invalid(rows: Sequence[Mapping[str, Any]], kind: str) -> list[str]:
    invalid = sum(bool(row.get("invalid")) for row in rows)
    if not invalid:
        return []
    many = "" if invalid < len(rows) else ", all of them,"
    return [
        f"{invalid} of {len(rows)} {kind}{many} have no valid ratio: an output's budget, k times "
        "its length, is not above the prompt's debt, so that B_eff is 0."
    ]


def _allocation(data: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], most: int) -> list[str]:
    """Returns why every held-out prompt has the full N, if so: Algorithm 1 may leave it at 4."""
    file = search_file(data)
    gates = file.surrogate.gates if file.surrogate else ()
    if any(row["N"] < most for row in rows) or (gates and gates[-1].steers):
        return []
    return [
        f"Every prompt has the full N = {most}: the surrogate, by whose scores Algorithm 1 chooses "
        "whom to leave at 4, was not ready, and then none is left there."
    ]


def _repeated(rows: Sequence[Mapping[str, Any]], final: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns how many stress rows are final rows once more, as half of the paper's are."""
    keys = ("id", "N", "mean_spend", "variance", "R_eff", "B_eff")
    have = {tuple(row.get(key) for key in keys) for row in final}
    same = [row["id"] for row in rows if tuple(row.get(key) for key in keys) in have]
    if not same:
        return []
    return [
        f"{len(same)} of {len(rows)} rows ({', '.join(same)}) repeat the final pool spend for "
        "spend, as both begin with the same seeds: the same trajectories, shown twice, and not "
        "tested on fresh draws. Of the paper's eight stress rows four do (docs/paper.md, 12)."
    ]


def _dropped(paper: Mapping[str, Any], pool: str) -> list[str]:
    """Returns which prompts a validation pool lost before its last round, which is the table's."""
    gone = set(paper.get("disqualified") or ())
    failed = [row for row in paper.get("rechecked") or ()
              if row["pool"] == pool and row["id"] in gone]  # fmt: skip
    if pool == "heldout" or not failed:
        return []
    named = ", ".join(
        f"{row['id']} (rho {rho_text(float(row['flagged']['rho']))} at N = {row['flagged']['N']})"
        for row in failed
    )
    them = "it is" if len(failed) == 1 else "they are"
    return [
        f"Not in the table: {named}. A prompt that fails is removed with its family and the pools "
        f"are chosen again, {counted(int(paper['rounds']), 'round')} here; as in the paper's files "
        f"the table is the last round, so that no failure can stand in it. Among flagged prompts "
        f"{them} drawn again, below."
    ]


# Ratios above 1.


def _projected(results: Sequence[AuditResult]) -> list[Section]:
    """Returns held-out ratios above 1, projected to the full N as the paper does."""
    observed = []
    for result in results:
        paper, k = _paper(result), budget_of(result)
        level, most = float(paper["delta_per_look"]), paper["sizes"]["heldout_traj"]
        for row in _above_one(paper):
            n, mean, budget = row["N"], float(row["mean_spend"]), float(row["B_eff"])
            ahead = float(ebb_value(mean, float(row["variance"]), most, float(row["R_eff"]), level))
            status = ["pass" if upper <= budget else "fail" for upper in (row["U_EBB"], ahead)]
            observed.append(
                (row["id"], f"{k:g}", str(n), f"{row['U_EBB']:.2f}", f"{row['U_EBB'] - mean:.2f}",
                 rho_text(float(row["rho"]), budget), status[0], str(most), f"{ahead:.2f}",
                 f"{ahead - mean:.2f}", rho_text(ahead / budget, budget), status[1])
            )  # fmt: skip
    return [
        Section(
            "Held-out ratios above 1: projected to the full N (Table minN-projection)",
            Table(_columns("Held-out prompt", "k", "N", "U_EBB", "width", "rho", "status", "to N",
                           "U_EBB", "width", "rho", "status"), tuple(observed)),
            "Mean, variance and range as observed, N of the full held-out budget."
            if observed else _none_above(results),
        ),
        _printed(
            f"{PRINTED}, N = 4 projected to N = 20",
            ("Held-out prompt", "U_EBB", "rho", "status", "U_EBB", "rho", "status"),
            load().rows("projection"), "id U_4 rho_4 status_4 U_20 rho_20 status_20",
        ),
    ]  # fmt: skip


def _above_one(paper: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = paper["pools"]["heldout"]
    return [row for row in rows if float(row["rho"]) > 1 and "variance" in row]


def _none_above(results: Sequence[AuditResult]) -> str:
    held = [row for one in results for row in _paper(one)["pools"]["heldout"]]
    why = _why_invalid(held, "held-out prompts")
    return " ".join(["No held-out prompt has a ratio above 1 here.", *why])


def _like_for_like(results: Sequence[AuditResult]) -> list[Section]:
    """Returns flagged prompts on fresh draws: the held-out ones, then those of the search."""
    lines: list[tuple[str, ...]] = []
    words: dict[str, list[bool]] = {}
    debts: list[float] = []
    failed: list[str] = []
    left = 0
    for result in results:
        paper, k = _paper(result), budget_of(result)
        owed = {row.key.prompt: row.debt for row in result.rows}
        left += paper["not_rechecked"]
        for row in paper["rechecked"]:
            again, other = row["same_k"], row["second_k"]
            debt, budget = owed.get(row["id"], math.nan), float(again["B_eff"])
            debts.append(debt)
            keys = ("mean_spend", "U_EBB", "width", "B_eff")
            numbers = (_written(debt), *(_written(again.get(key)) for key in keys))
            words.setdefault(row["pool"], []).append(bool(again["certified"]))
            if not again["certified"] and budget > 0 and not math.isnan(debt):
                shortest = counted(round((budget + debt) / k), "token")
                failed.append(f"{row['id']}: {budget:.1f}, an answer of {shortest}")
            lines.append(
                (row["id"], row["pool"], f"{k:g}", str(again["N"]), *numbers,
                 rho_text(float(again["rho"]), budget), "pass" if again["certified"] else "fail",
                 rho_text(float(other["rho"]), float(other["B_eff"])),
                 f"{again['overspent']} + {other['overspent']}")
            )  # fmt: skip
    heads = ("pool", "k", "N", "debt", "Mean spend", "U_EBB", "width", "B_eff", "rho", "status",
             "rho at 5/3 k", "over")  # fmt: skip
    held = tuple(one for one in lines if one[1] == "heldout")
    rest = tuple(one for one in lines if one[1] != "heldout")
    counts = ", ".join(
        f"{'held-out' if pool == 'heldout' else pool} {sum(good)} of {len(good)}"
        for pool, good in words.items()
    )
    passed = f"Of those drawn again pass at the same k, by pool: {counts}; {left} more were not " \
             "drawn again."  # fmt: skip
    about = (
        "rho at 5/3 k: of as many draws at the second k. over: trajectories above their budget, at "
        "k and at the second k."
    )
    known = [debt for debt in debts if not math.isnan(debt)]
    if known:
        passed += f" Their debts are {min(known):.2f} to {max(known):.2f} nats."
    why = []
    if failed:
        why.append(
            "B_eff of those that fail is the budget of their shortest answer, which one of N draws "
            f"is enough for ({'; '.join(failed[:4])}{' ...' if len(failed) > 4 else ''}), while "
            f"U_EBB is of all of them: at N = {min(int(one[3]) for one in lines)} too a rho above "
            "1 is no overspending."
        )
    none = _none_above(results)
    found = [
        Section(
            "The like-for-like run, which the paper defers",
            Table(_columns("Held-out prompt", *heads), held),
            f"Flagged held-out prompts on fresh draws at the same k. {passed} {about}"
            if held else f"{none} {passed}" if rest else none,
        )
    ]  # fmt: skip
    if rest:
        found.append(
            Section(
                "The same of flagged prompts of the search",
                Table(_columns("Flagged prompt", *heads), rest),
                " ".join(
                    ["pool: where it was flagged (stress: in a round before the last).", about,
                     *why]
                ),
                inner=True,
            )
        )  # fmt: skip
    elif why:
        found[0] = Section(
            found[0].title, found[0].table, " ".join([found[0].note, *why])
        )  # fmt: skip
    return found


def _terms(results: Sequence[AuditResult]) -> list[Section]:
    """Returns the deterministic term of held-out prompts, and against the paper's N."""
    printed = load().rows("bernstein")
    counts = [int(row["N"]) for row in printed]
    terms, tables = [], []
    for result in results:
        paper, k = _paper(result), budget_of(result)
        level, most = float(paper["delta_per_look"]), paper["sizes"]["heldout_traj"]
        for row in _above_one(paper):
            n, reach, budget = row["N"], float(row["R_eff"]), float(row["B_eff"])
            term = 3 * reach * math.log(2 / level)
            terms.append((row["id"], f"{k:g}", f"{reach:.1f}", f"{term / n:.1f}",
                          f"{term / n / budget:.0%}", f"{term / most:.1f}"))  # fmt: skip
        table = paper["deterministic_term"]
        # Prompts of equal range have one column.
        reaches = {f"{float(reach):.1f}": float(reach) for reach in table["R_eff"]}
        if not reaches:
            continue
        fixed = 3 * math.log(2 / float(table["delta"]))
        cells = tuple(
            (str(n), *(f"{fixed * reach / n:.1f}" for reach in reaches.values())) for n in counts
        )
        tables.append(
            Section(
                f"The term against N at k = {k:g} (Table bernstein-vs-N)",
                Table(_columns("N", *(f"R_eff = {text}" for text in reaches)), cells),
                "R_eff: smallest, middle and largest of the held-out prompts, equal ones once; "
                f"delta = {table['delta']:g}. N as in the paper's table.",
            )
        )
    return [
        Section(
            "The deterministic term 3 R_eff ln(2/delta) / N (Equation bernstein-blowup)",
            Table(_columns("Held-out prompt", "k", "R_eff", "at its N", "of B_eff",
                           "at the full N"), tuple(terms)),
            "The paper's three: 420.0, 578.6 and 500.3 at N = 4, 71 to 97 % of B_eff.",
        ),
        *tables,
        _printed(
            f"{PRINTED} (Table bernstein-vs-N)",
            ("N", *(f"R_eff = {reach}" for reach in ("60", "90", "120", "160", "200"))),
            printed, "N 60 90 120 160 200",
        ),
    ]  # fmt: skip


def defect_section(found: WholePaper) -> Section:
    """Returns the named defects of the paper's protocol that occurred in our searches."""
    rows = tuple(
        (f"{budget_of(one):g}", what, text)
        for one in found.stage2
        for what, text in defects_of(one.search or {})
    )
    columns = (Column("k", words=True), Column("defect", words=True),
               Column("what was found", words=True, wraps=True))  # fmt: skip
    return Section(
        "Named defects of the protocol that occurred",
        Table(columns, rows),
        "Each is explained in docs/search.md; none is about the decoder, and none decides a "
        "verdict." if rows else "None of the protocol's known defects occurred.",
    )  # fmt: skip


def _gaps(results: Sequence[AuditResult]) -> Section:
    """Returns the transfer gap of each search, counted both ways."""
    gaps = [
        (f"{budget_of(one):g}", _written(gap["paper"], 3), _written(gap["valid"], 3),
         str(gap["invalid_rows"]),
         f"{float(load().rows('released_report', k=_paper_k(one))[0]['gap']):.3f}")
        for one in results
        for gap in (_paper(one)["gap"],)
    ]  # fmt: skip
    heads = ("invalid rows as 0", "without them", "number of invalid rows", "the paper's")
    title = "Discussion: transfer gap, mean final less mean held-out rho"
    return Section(
        title,
        Table(_columns("k", *heads), tuple(gaps)),
        "The paper counts a held-out row without a ratio as 0, which the first number does too.",
    )


def _checklist(title: str, items: Sequence[ChecklistItem], inner: bool = False) -> Section:
    columns = (Column("item", words=True), Column("answer", words=True),
               Column("why", words=True, wraps=True))  # fmt: skip
    rows = tuple(
        (f"{one.number}. {one.title}", Verdict(one.answer.upper()), one.text) for one in items
    )
    note = "" if inner else (
        "Each item is answered from the stage it is about: 1 to 3 from Stage 1, 4 to 7 from the "
        "searches. What would pass it: nafaudit checklist on the directory of that part."
    )  # fmt: skip
    return Section(title, Table(columns, rows), note, inner=inner)
