"""Figures of a run: what is drawn is what was recorded, and what cannot be drawn says why."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from nafaudit.core.trajectory import Key
from nafaudit.measures.audit import AuditResult
from nafaudit.paper.figures import HELDOUT_FIGURES, draw_run_flagged, draw_run_heldout
from nafaudit.store.importers import ImportOptions, import_logs
from nafaudit.store.run import Run
from nafaudit.views.figures import OWN_FIGURES, PAPER_FIGURES, classes
from nafaudit.views.figures import run as drawing
from nafaudit.views.figures.style import MOST, as_bytes, looks, style
from nafaudit.workload import Prompt
from tests.commands import call
from tests.handmade import MECHANISM, make_run, plain_run
from tests.records import trajectory

BOTH = ("svg", "pdf")
FIGURES = (*PAPER_FIGURES, *HELDOUT_FIGURES, *OWN_FIGURES)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return plain_run(tmp_path_factory.mktemp("figures") / "r", length=20)


@pytest.fixture(scope="module")
def result(run: Run) -> AuditResult:
    return AuditResult.of(run)


@pytest.fixture(scope="module")
def stage2(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    """An imported Stage 2 log; ids and splits are hostile to whoever takes them for formulas."""
    path = tmp_path_factory.mktemp("stage2")
    rows = [
        {"candidate_id": f"heldout_{i} $\\frac{{$ <b>书", "k": 3, "split": "heldout $x^{$",
         "N": n, "spends": [40.0 * i + 10 * j for j in range(n)],
         "final_budgets": [500.0] * n, "delta_inits": [4.0] * n}
        for i, n in enumerate((4, 4, 20, 20))
    ]  # fmt: skip
    log = path / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return AuditResult.of(import_logs([log], path / "run", ImportOptions(max_new_tokens=168)))


def lacking(result: AuditResult) -> dict[str, str]:
    return {figure.name: why for figure in FIGURES if (why := figure.lacks(result))}


@pytest.mark.full
def test_the_command_writes_and_names_every_figure(run: Run, tmp_path: Path) -> None:
    result = call("report", run.path, "--figures", cwd=tmp_path)
    assert result.returncode == 0
    directory = run.path / "report"
    told = json.loads((directory / "report.json").read_text())["figures"]
    assert [one["name"] for one in told] == [figure.name for figure in FIGURES]
    page, text = ((directory / name).read_text() for name in ("index.html", "report.md"))
    for one in told:
        if one["name"] in ("heldout", "flagged-spend"):
            assert not one["files"]
            assert one["lacks"].startswith("not in this run: no held-out prompts")
            assert one["lacks"] in page
        else:
            assert one["files"] == [f"{one['name']}.{kind}" for kind in BOTH]
        for name in one["files"]:
            assert f'href="figures/{name}"' in page
            assert f"(figures/{name})" in text
            assert str(directory / "figures" / name) in result.stdout
            content = (directory / "figures" / name).read_bytes()
            if name.endswith("svg"):
                assert ElementTree.fromstring(content).tag.endswith("svg")
            else:
                assert content.startswith(b"%PDF")
    # Without being asked for, nothing is drawn and nothing is named.
    call("report", run.path, cwd=tmp_path)
    assert "figures/" not in (directory / "index.html").read_text()


def test_the_same_records_give_the_same_bytes(run: Run, result: AuditResult) -> None:
    def drawn(source: AuditResult) -> bytes:
        with style():
            return as_bytes(drawing.bound_against_n(source), "svg")

    assert drawn(result) == drawn(AuditResult.of(run))


def test_regime_bars_are_the_shares(result: AuditResult) -> None:
    with style():
        axes = drawing.regime(result).axes[0]
    bars = [bar.get_height() for bar in axes.patches]  # type: ignore[attr-defined]
    shares = [
        getattr(arm.regime, kind) for kind in ("forced", "active", "free") for arm in result.arms
    ]
    assert bars == pytest.approx(shares)


def test_tails_and_overlap_have_both_baselines_and_every_output(result: AuditResult) -> None:
    with style():
        tails, overlap = drawing.tails(result).axes[0], drawing.overlap(result).axes[0]
    names = ["safe only", "k = 0.5", "k = 3", "risky only"]
    assert tails.get_legend_handles_labels()[1] == names
    assert overlap.get_legend_handles_labels()[1] == names
    assert [len(np.asarray(line.get_xdata())) for line in overlap.lines] == [12] * 4
    curve = next(line for line in tails.lines if line.get_label() == "risky only")
    ratios = sorted(o.log_ratio for o in result.rows if o.key.k == math.inf)
    assert np.asarray(curve.get_xdata()).tolist() == pytest.approx(ratios)
    assert np.asarray(curve.get_ydata())[-1] == pytest.approx(1 / len(ratios))


def test_class_figures_show_the_class_table(result: AuditResult) -> None:
    with style():
        panels = classes.effective_range(result).axes
        term = classes.deterministic_term(result).axes[0]
    rows = [row for row in result.classes.rows if row.k == 0.5]
    drawn = {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in panels[0].lines}
    assert drawn["mean spend"] == pytest.approx([row.mean for row in rows])
    assert drawn["U_EBB, R_eff (proxy)"] == pytest.approx([r.u_ebb_eff.value for r in rows])  # type: ignore[union-attr]
    assert drawn["bound on prompts"] == pytest.approx([r.upper.value for r in rows])  # type: ignore[union-attr]
    risky = [row.mean for row in result.classes.rows if row.k == math.inf]
    assert drawn["risky model alone, mean"] == pytest.approx(risky)
    curve = term.lines[0]
    sizes, values = (np.asarray(a) for a in (curve.get_xdata(), curve.get_ydata()))
    reach = max(row.r_eff for row in rows)
    assert values == pytest.approx(3 * reach * math.log(2 / result.classes.delta) / sizes)


def test_bounds_shrink_to_the_last_one_of_the_report(result: AuditResult) -> None:
    from nafaudit.measures.audit import bound_rows

    with style():
        axes = drawing.bound_against_n(result).axes[1]
    drawn = {line.get_label(): np.asarray(line.get_ydata()) for line in axes.lines}
    index = next(i for i, arm in enumerate(result.arms) if arm.k == 3)
    final = {row.method: row.upper for row in bound_rows(result) if row.arm_index == index}
    assert drawn["betting (holds)"][-1] == pytest.approx(final["betting-prompts"])
    assert drawn["Student (approximate)"][-1] == pytest.approx(final["cluster-t"])


def test_a_stage_2_log_has_the_held_out_figures(stage2: AuditResult) -> None:
    found = lacking(stage2)
    assert set(found) == {"regime", "overlap", "tails"}
    assert all(found.values())
    with style(), pytest.warns(UserWarning, match="missing"):
        figures = (draw_run_heldout(stage2), draw_run_flagged(stage2))
        classy = classes.effective_range(stage2)
        for figure in (*figures, classy):
            assert ElementTree.fromstring(as_bytes(figure, "svg")) is not None
    points = np.asarray(figures[0].axes[0].lines[0].get_xdata())
    assert points.tolist() == [4, 4, 20, 20]
    # Twenty spends and a budget in the row of each of the longer ones.
    counts = [len(np.asarray(line.get_xdata())) for line in figures[1].axes[0].lines]
    assert sorted(counts) == [1, 1, 1, 1, 4, 4, 20, 20]


def run_of(path: Path, budgets: Sequence[float], charge: float = 0.25) -> AuditResult:
    prompts = [Prompt(f"p{i}", f"text {i}", "one") for i in range(3)]
    records = [
        trajectory(Key(p.id, MECHANISM, k, 0), [charge * min(k, 1.0)] * 4)
        for p in prompts
        for k in budgets
    ]
    return AuditResult.of(make_run(path, prompts, records, length=4))


def test_many_budgets_are_thinned_and_the_title_says_so(tmp_path: Path) -> None:
    result = run_of(tmp_path / "r", [0.0, *np.arange(1, 10) / 2])
    shown = [look.arm.k for look in looks(result) if not look.arm.baseline]
    assert len(shown) == MOST
    assert (shown[0], shown[-1]) == (0.5, 4.5)
    with style():
        figure = drawing.utilisation(result)
    assert len(figure.axes) == MOST
    assert f"{MOST} of 9 budgets" in figure.get_suptitle()


def test_what_cannot_be_drawn_says_why(tmp_path: Path) -> None:
    found = lacking(run_of(tmp_path / "r", [0.0]))
    assert found["utilisation"] == found["bound-n"] == "only baselines are recorded"
    assert "reference" in found["overlap"]


def test_a_run_that_spends_nothing_is_drawn(tmp_path: Path) -> None:
    result = run_of(tmp_path / "r", [1.0], charge=0.0)
    for figure in FIGURES:
        if not figure.lacks(result):
            with style():
                assert figure.draw(result).axes


def test_an_unknown_spend_is_a_reason_not_a_crash(tmp_path: Path) -> None:
    prompts = [Prompt("p", "text", "one")]
    records = [replace(trajectory(Key("p", MECHANISM, 1.0, 0), [math.nan] * 3), debt=0.0)]
    result = AuditResult.of(make_run(tmp_path / "r", prompts, records, length=3))
    for figure in FIGURES:
        if not figure.lacks(result):
            with style():
                figure.draw(result)
    assert lacking(result)["effective-range"]
    assert lacking(result)["bound-n"]
