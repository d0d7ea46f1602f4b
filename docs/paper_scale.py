"""Writes docs/paper-scale.md: the paper's Stage 1 at its full size, on the lab pair.

python docs/paper_scale.py RUN
python docs/paper_scale.py ALONE COUPLED     # the last section only

RUN is what the first command on that page made, ALONE and COUPLED what those of its last section
made; every number there comes from their records, the paper's from its printed tables.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from nafaudit.core.ledger import is_baseline
from nafaudit.measures.audit import AuditResult
from nafaudit.measures.classes import ClassRow
from nafaudit.measures.verdicts import ArmVerdict
from nafaudit.paper.printed import load
from nafaudit.store.run import Run
from nafaudit.views.figures import OWN_FIGURES, PAPER_FIGURES
from nafaudit.views.figures.style import as_bytes, style
from nafaudit.workload.prompts import batch_leaders

HERE = Path(__file__).parent
ORDER = ("neutral", "val", "test", "attack_train", "factual", "creative")
SHOWN = ("effective-range", "deterministic-term", "utilisation", "regime")

INTRODUCTION = """# The paper's Stage 1 at full size, on the lab pair

    nafaudit run --protocol paper --k 1,3,5 --no-baselines --out runs/paper-scale
    python docs/paper_scale.py runs/paper-scale     # writes this page

900 prompts in the paper's six classes, 10 trajectories each, at three budgets: 27,000 of
up to 200 tokens. On one busy core of two it took 52 minutes of processor time, in two sessions: the
first one was stopped while it still ran the baselines as well, so that the records hold both
baselines of the first prompts too. They are in no table below; the first figure has the risky one.
The records were made for commit 97aebeb (16 November 2026), and not made again
since; the last section is newer.

Every number is *ours / the paper's*. Models, text and vocabulary differ, so the two need not agree;
the forms do. What carries over is the shape: what the range R does to U_EBB, and that the
constraint stops acting as k grows.
"""


COUPLED = """## Micro-batches that share their draws

    nafaudit run --protocol paper --k 3 {sizes} --out runs/alone
    nafaudit run --protocol paper --k 3 {sizes} --coupled --out runs/coupled
    python docs/paper_scale.py runs/alone runs/coupled     # writes this section

with `{sizes}` = {given}.

The paper says that eight prompts of a micro-batch share one random stream, and that its
trajectories are therefore not independent; its code gave nearly each of them its own. `--coupled`
does what it says. Each cell is *alone / coupled*. The correlation is that of two trajectories of
one batch, prompt means taken off; 1 + 7 x correlation is how much the variance of a class
mean exceeds that of M independent trajectories, which U_EBB counts on, where batches are full.

"""


def coupled(alone: Path, shared: Path) -> None:
    """Writes the section on micro-batches, and keeps the rest of the page."""
    both = [AuditResult.of(Run(path)) for path in (alone, shared)]
    batch = batch_leaders(both[0].run.prompts())
    lines = []
    for label in ORDER:
        cells = [next(r for r in one.classes.rows if r.label == label) for one in both]
        numbers = []
        for name, form in (("mean", ".2f"), ("variance", ".0f"), ("r_eff", ".0f")):
            numbers.append(" / ".join(format(getattr(cell, name), form) for cell in cells))
        seen = [cell.u_ebb_eff for cell in cells]
        numbers.append(" / ".join("-" if one is None else f"{one.value:.2f}" for one in seen))
        inside = [_correlation(one, label, batch) for one in both]
        numbers.append(" / ".join(f"{value:+.2f}" for value in inside))
        numbers.append(" / ".join(f"{1 + 7 * value:.2f}" for value in inside))
        lines.append([label, str(cells[0].trajectories), *numbers])
    head = ["class", "M", "mean", "variance", "R_eff", "U (R_eff)", "correlation", "factor"]
    settings = both[0].run.design
    extent, limit = settings["extents"][-1], settings["identity"]["decoding"]["max_new_tokens"]
    caps = ",".join(
        f"{label}={sum(p.prompt.label == label for p in both[0].run.prompts())}" for label in ORDER
    )
    given = f"`--cap {caps} --trajectories {extent['trajectories']} --max-new-tokens {limit}"
    text = COUPLED.format(sizes="SIZES", given=f"{given} --no-baselines`")
    page = HERE / "paper-scale.md"
    kept = page.read_text(encoding="utf-8").partition(COUPLED.splitlines()[0])[0].rstrip("\n")
    factors = {line[0]: line[-1].split(" / ") for line in lines}
    most = [max(factors, key=lambda label: float(factors[label][i])) for i in (0, 1)]
    last = (
        f"\nThe largest factor is {factors[most[1]][1]} when coupled ({most[1]}), and "
        f"{factors[most[0]][0]} alone ({most[0]}), where it is noise about 1. U_EBB itself hardly "
        "moves: it sees the spread of trajectories, not that they move together.\n"
    )
    page.write_text(f"{kept}\n\n\n{text}{_table(head, lines)}{last}", encoding="utf-8")


def _correlation(result: AuditResult, label: str, batch: dict[str, str]) -> float:
    """Estimates the correlation of spends within a batch, from pairs of its rows."""
    spends: dict[str, dict[int, float]] = {}
    for one in result.of_arm(next(a for a in result.arms if not is_baseline(a.k))):
        spends.setdefault(one.key.prompt, {})[one.key.trajectory] = one.spend
    labels = {p.prompt.id: p.prompt.label for p in result.run.prompts()}
    spread, products, pairs = 0.0, 0.0, 0
    rows: dict[tuple[str, int], list[float]] = {}
    count = 0
    for prompt, found in spends.items():
        if labels[prompt] != label:
            continue
        centre = fmean(found.values())
        # Deviations from a mean of n are too small by (n - 1) / n.
        share = len(found) / (len(found) - 1)
        for number, spend in found.items():
            rows.setdefault((batch[prompt], number), []).append(spend - centre)
            spread += share * (spend - centre) ** 2
            count += 1
    for group in rows.values():
        products += share * (sum(group) ** 2 - sum(value**2 for value in group)) / 2
        pairs += len(group) * (len(group) - 1) // 2
    return (products / pairs) / (spread / count) if pairs and spread else 0.0


def main() -> None:
    """Reads the run once, writes the page and its figures."""
    if len(sys.argv) > 2:
        coupled(*map(Path, sys.argv[1:3]))
        return
    result = AuditResult.of(Run(Path(sys.argv[1])))
    rows = [row for row in result.classes.rows if not is_baseline(row.k)]
    parts = [INTRODUCTION]
    for k in sorted({row.k for row in rows}):
        parts.append(_spends(k, {row.label: row for row in rows if row.k == k}))
    parts += [_debts(rows), _overlaps(rows), _sound(result.arms), _figures(result)]
    page = HERE / "paper-scale.md"
    title = COUPLED.splitlines()[0]
    _, _, last = page.read_text(encoding="utf-8").partition(title)
    parts += [f"\n{title}{last}"] if last else []
    page.write_text("\n".join(parts), encoding="utf-8")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _spends(k: float, found: dict[str, ClassRow]) -> str:
    printed = {row["class"]: row for row in load().rows("stage1", k=f"{k:g}")}
    lines = []
    for label in ORDER:
        ours, theirs = found[label], printed[label]
        assert ours.u_ebb is not None and ours.u_ebb_eff is not None and ours.upper is not None
        lines.append(
            [
                label,
                f"{ours.trajectories} / {theirs['M']}",
                f"{ours.mean:.2f} / {theirs['mean']}",
                f"{ours.variance:.0f} / {float(theirs['var']):.0f}",
                f"{ours.r_eff:.0f}",
                f"{ours.u_ebb.value:.2f} / {theirs['U_R']}",
                f"{ours.u_ebb_eff.value:.2f} / {theirs['U_Reff']}",
                f"{ours.upper.value:.2f}",
            ]
        )
    head = ["class", "M", "mean", "variance", "R_eff", "U (R)", "U (R_eff)", "a bound that holds"]
    return f"\n## Spend at k = {k:g}, K = {200 * k:g} nats\n\n" + _table(head, lines)


def _debts(rows: Sequence[ClassRow]) -> str:
    printed = {row["class"]: row for row in load().rows("debt")}
    lines = []
    for label in ORDER:
        row = next(r for r in rows if r.label == label)
        ours = (row.debt.mean, row.debt.median, row.debt.max)
        theirs = [printed[label][name] for name in ("mean", "median", "max")]
        pairs = [f"{a:.2f} / {b}" for a, b in zip(ours, theirs, strict=True)]
        lines.append([label, *pairs])
    text = "\n## Prefix debt, the same at every budget\n\n"
    return text + _table(["class", "mean", "median", "largest"], lines)


def _overlaps(rows: Sequence[ClassRow]) -> str:
    printed = {(row["k"], row["class"]): row for row in load().rows("overlap")}
    lines = []
    for row in rows:
        theirs = printed.get((f"{row.k:g}", row.label))
        if not row.copying.scored:
            continue
        line = [f"{row.k:g}", row.label]
        for kind in ("mean", "max"):
            ours = getattr(row.copying, kind)("rouge_l_f1")
            other = "-" if theirs is None else theirs[f"rouge_{kind}"]
            line.append(f"{ours:.4f} / {other}")
        lines.append([*line, f"{row.copying.mean('near_verbatim_recall'):.1%}"])
    head = ["k", "class", "ROUGE-L mean", "largest"]
    text = (
        "\n## Overlap\n\nThe last column is ours alone: near-verbatim recall of the reference.\n\n"
    )
    return text + _table([*head, "recall"], lines)


def _sound(arms: Sequence[ArmVerdict]) -> str:
    lines = []
    for arm in arms:
        if is_baseline(arm.k):
            continue
        found = arm.finding("invariant")
        lines.append([f"{arm.k:g}", arm.kept, arm.tested, arm.worth, found.text])
    text = (
        "\n## What the sound protocol says of the same records\n\n"
        "A mean below K was never the question: no single trajectory may exceed its own budget.\n\n"
    )
    return text + _table(["k", "kept?", "tested?", "worth?", "on what it rests"], lines)


def _figures(result: AuditResult) -> str:
    lines = ["\n## Figures\n"]
    for figure in (*PAPER_FIGURES, *OWN_FIGURES):
        if figure.name not in SHOWN:
            continue
        name = f"scale-{figure.name}"
        with style():
            drawn = as_bytes(figure.draw(result), "svg")
        (HERE / "paper" / f"{name}.svg").write_bytes(drawn)
        lines.append(f"![{figure.caption}](paper/{name}.svg)\n")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
