"""The checklist: of the paper, of runs made to pass and to fail each item, and how it is shown."""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from nafaudit.cli.main import app
from nafaudit.core.design import identity_hash
from nafaudit.core.errors import InputError
from nafaudit.core.settings import RunSettings
from nafaudit.core.trajectory import Key
from nafaudit.lab.prompts import texts as lab_texts
from nafaudit.measures.audit import AuditResult
from nafaudit.measures.classes import ClassRow
from nafaudit.paper import checklist as criteria
from nafaudit.paper.checklist import (
    ChecklistItem,
    ItemAnswer,
    checklist_document,
    checklist_overall,
    out_of_step,
    ratios,
)
from nafaudit.paper.checklist_paper import of_paper
from nafaudit.paper.checklist_run import (
    LAB_K,
    LAB_LENGTH,
    executions,
    fingerprint,
    floor_item,
    of_run,
)
from nafaudit.paper.printed import load
from nafaudit.runner.pairs import checkpoints_of
from nafaudit.stats import ebb
from nafaudit.store.importers import ImportOptions, import_logs
from nafaudit.store.run import Run
from nafaudit.views.terminal import terminal
from nafaudit.workload import Prompt
from tests.commands import WITHOUT_TORCH, call, typed
from tests.handmade import MECHANISM, make_run, plain_run
from tests.paper.test_recompute import tampered
from tests.records import trajectory
from tests.runs import make

LENGTH = 5


def _run(
    path: Path,
    spends: dict[str, list[float]],
    k: float = 1.0,
    labels: tuple[str, ...] = ("a",),
    text: str = "text",
    length: int = LENGTH,
) -> Run:
    """A run whose trajectories spend the given totals, in five equal steps under a budget of 5k."""
    prompts = [Prompt(name, text, labels[i % len(labels)]) for i, name in enumerate(sorted(spends))]
    records = [
        trajectory(Key(name, MECHANISM, k, n), [spend / LENGTH] * LENGTH)
        for name, given in spends.items()
        for n, spend in enumerate(given)
    ]
    return make_run(path, prompts, records, length=length)


def _by_number(items: list[ChecklistItem]) -> dict[int, ChecklistItem]:
    assert [item.number for item in items] == [1, 2, 3, 4, 5, 6, 7]
    return {item.number: item for item in items}


def test_of_the_paper_three_claims_hold_and_one_does_not() -> None:
    items = _by_number(of_paper())
    assert {n for n, item in items.items() if item.holds} == {1, 4, 7}
    assert {n for n, item in items.items() if item.holds is False} == {5}
    assert items[2].value == 1000
    assert "attack_train" in items[2].text
    assert items[4].value == 5
    assert all(item.todo for item in items.values() if item.answer == ItemAnswer.FAIL)
    # What depends on the reading is no failure, and is counted apart.
    said = checklist_overall(list(items.values())).why
    assert said == "0 pass, 4 fail, 3 depend on the reading, 0 not applicable"


def test_the_paper_passes_an_item_when_its_numbers_do() -> None:
    """Printed otherwise, the same rules say pass: none of them is a fixed answer."""
    paper = load()
    for line, row in enumerate(paper.rows("stage2")):
        if row["rho"] != "invalid":
            paper = tampered(paper, "stage2", line, "N", "20")
    for line, row in enumerate(paper.rows("overlap")):
        mean = paper.row("stage1", **{"k": row["k"], "class": row["class"]})["mean"]
        paper = tampered(paper, "overlap", line, "rouge_mean", f"{float(mean) / 2000:.4f}")
    for line, row in enumerate(paper.rows("stage1")):
        paper = tampered(paper, "stage1", line, "M", str(max(1500, row.count("M"))))
        paper = tampered(paper, "stage1", line, "R_eff", "300.0")
    for table in ("stage2", "projection"):
        for line in range(len(paper.rows(table))):
            paper = tampered(paper, table, line, "width", "100.00")
    items = _by_number(of_paper(paper))
    assert {items[n].answer for n in (2, 3, 4, 5)} == {ItemAnswer.PASS}


def test_item_2_of_the_paper_is_open_only_while_its_pass_criterion_is_met() -> None:
    assert _by_number(of_paper())[2].answer == ItemAnswer.DEPENDS
    above = load()
    for line in range(len(above.rows("stage1"))):
        above = tampered(above, "stage1", line, "U_Reff", "1100.00")
    assert _by_number(of_paper(above))[2].answer == ItemAnswer.FAIL


def test_the_criteria_are_the_papers() -> None:
    paper = load()
    assert paper.setting("checklist_M") == criteria.MIN_EXECUTIONS
    assert paper.setting("checklist_N") == criteria.MIN_TRAJECTORIES
    assert paper.setting("checklist_rho") == criteria.HIGH_RATIO
    assert paper.setting("delta_stage2") == criteria.PROMPT_LEVEL


def _class_rows(run: Run, count: int) -> list[ClassRow]:
    """The class rows of a small run, counted as if it were larger."""
    rows = AuditResult.of(run).classes.rows
    return [replace(row, trajectories=count) for row in rows]


def test_executions_per_class_fail_below_1500_and_pass_at_it(tmp_path: Path) -> None:
    run = _run(tmp_path / "few", {f"p{i}": [1.0] * 20 for i in range(3)})
    item = _by_number(of_run(AuditResult.of(run)))[2]
    assert (item.answer, item.value) == (ItemAnswer.FAIL, 60)
    assert "--trajectories 500" in item.todo
    assert executions(_class_rows(run, 1499)).answer == ItemAnswer.FAIL
    assert executions(_class_rows(run, 1500)).answer == ItemAnswer.PASS


def test_a_class_above_K_fails_whatever_its_size(tmp_path: Path) -> None:
    run = _run(tmp_path / "r", {"p": [5.0, 4.99] * 20})
    item = executions(_class_rows(run, 1500))
    assert item.answer == ItemAnswer.FAIL
    assert "above K in 1 of 1 cells" in item.text


def test_ratios_are_the_papers_with_a_width(tmp_path: Path) -> None:
    spends = [1.0, 2.0, 3.5, 1.5]
    report = AuditResult.of(_run(tmp_path / "r", {"p": spends, "q": [1.0]}))
    first, second = ratios(report)
    expected = ebb(spends, 5.0, 0.0033, effective=True)
    assert first.upper == pytest.approx(expected.value)
    assert first.width == pytest.approx(expected.value - 2.0)
    assert first.rho == pytest.approx(expected.value / 5.0)
    assert (first.n, first.budget) == (4, 5.0)
    assert math.isnan(second.width)


def test_floor_and_widths_fire_and_rest(tmp_path: Path) -> None:
    def floor(name: str, spends: dict[str, list[float]]) -> ChecklistItem:
        return floor_item(ratios(AuditResult.of(_run(tmp_path / name, spends))), "more", "a budget")

    # Few and scattered: rho is far above 0.9. Many and alike: it is far below.
    few: dict[str, list[float]] = {"p": [0.0, 4.0], "q": [1.0]}
    bad = _by_number(of_run(AuditResult.of(_run(tmp_path / "bad", few))))
    item = floor("few", few)
    assert (item.answer, bad[5].answer) == (ItemAnswer.FAIL, ItemAnswer.FAIL)
    assert item.value >= 1
    many = {"p": [1.0, 1.1] * 20}
    good = _by_number(of_run(AuditResult.of(_run(tmp_path / "good", many))))
    assert (floor("many", many).answer, good[5].answer) == (ItemAnswer.PASS, ItemAnswer.PASS)
    # High and well sampled passes as well: the item asks for N, not for a low ratio.
    high = floor("high", {"p": [4.9, 4.8] * 10})
    assert high.answer == ItemAnswer.PASS
    assert "0 of 1 prompts" in high.text


@pytest.mark.parametrize(
    ("name", "other_stage"), [("own", (4, 6, 7)), ("paper", (4, 6, 7)), ("paper-search", (2,))]
)
def test_an_item_about_the_other_stage_is_not_applicable(
    name: str, other_stage: tuple[int, ...]
) -> None:
    """As the paper words them: 2 is of the fixed workload, 4 of "the adversarial stage"."""
    items = _by_number(of_run(AuditResult.for_report(Run(make.HERE / "c049abe" / name))))
    for number in other_stage:
        assert items[number].answer is ItemAnswer.NOT_APPLICABLE, items[number]
        assert items[number].todo
    asked = {2, 4, 7} - set(other_stage)
    assert all(items[n].answer is not ItemAnswer.NOT_APPLICABLE for n in asked)


def test_cells_of_equal_size_are_counted_and_none_is_called_the_smallest(tmp_path: Path) -> None:
    run = _run(tmp_path / "r", {f"p{i}": [1.0] * 20 for i in range(4)}, labels=("a", "b"))
    text = executions(list(AuditResult.of(run).classes.rows)).text
    assert text.startswith("40 trajectories in each of 2 cells of class and k; ")


def test_item_5_has_one_rule_for_the_paper_and_for_runs() -> None:
    """A width stands in the tables that people read; that --json has it is not enough."""
    for name in ("own", "paper-search"):
        item = _by_number(of_run(AuditResult.for_report(Run(make.HERE / "c049abe" / name))))[5]
        assert "--json" not in item.text and "print" in item.text
    theirs = _by_number(of_paper())[5]
    assert theirs.answer is ItemAnswer.FAIL and "per-prompt tables print a width" in theirs.text


@pytest.mark.parametrize(
    ("spend", "overlap", "odd"),
    [
        ({"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 0.1, "b": 0.2, "c": 0.3}, set()),
        ({"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 0.3, "b": 0.2, "c": 0.1}, {"a", "c"}),
        ({"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 0.0, "b": 0.0, "c": 0.0}, set()),
        ({"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 0.3, "c": 0.31}, set()),
        ({"a": 1.0, "b": 2.0}, {}, set()),
    ],
)
def test_out_of_step(spend: dict[str, float], overlap: dict[str, float], odd: set[str]) -> None:
    assert set(out_of_step(spend, overlap)) == odd


def test_item_3_counts_cells_of_class_and_k_and_classes() -> None:
    (theirs,) = [one for one in of_paper() if one.number == 3]
    assert theirs.text.startswith("3 of 10 cells of class and k, in 2 classes, out of step by")
    (ours,) = [i for i in of_run(AuditResult.of(Run(make.HERE / "c049abe" / "own")), path="a b")
               if i.number == 3]  # fmt: skip
    assert ours.text.startswith("5 of 10 cells of class and k, in 5 classes, out of step by")
    assert ours.todo.endswith(": nafaudit report 'a b'")


def test_small_differences_in_overlap_are_none() -> None:
    spend, overlap = {"a": 1.0, "b": 3.0}, {"a": 0.009, "b": 0.0}
    assert set(out_of_step(spend, overlap, least=0.0)) == {"a", "b"}
    assert not out_of_step(spend, overlap)
    assert out_of_step(spend, overlap, least=0.0)["a"] == "low spend, high overlap"


def _with_anchor(run: Run, path: Path, **pair: str) -> Run:
    shutil.copytree(run.path, path)
    design: dict[str, Any] = json.loads((path / "design.json").read_text())
    design["identity"]["pair"] |= pair
    design["hash"] = identity_hash(design["identity"])
    (path / "design.json").write_text(json.dumps(design))
    return Run(path)


def test_two_anchors_are_compared_on_benign_prompts(tmp_path: Path) -> None:
    near = _run(tmp_path / "near", {"p": [1.0] * 3, "q": [2.0] * 3})
    report = AuditResult.of(near)
    assert _by_number(of_run(report))[1].answer == ItemAnswer.NOT_APPLICABLE
    same = AuditResult.of(_with_anchor(near, tmp_path / "same", safe="z"))
    item = _by_number(of_run(report, same))[1]
    assert (item.answer, item.value) == (ItemAnswer.PASS, 0.0)
    far = _run(tmp_path / "far", {"p": [1.5] * 3, "q": [2.2] * 3})
    item = _by_number(of_run(report, AuditResult.of(_with_anchor(far, tmp_path / "f2", safe="z"))))[
        1
    ]
    assert item.answer == ItemAnswer.FAIL
    assert item.value == pytest.approx(3.7 / 3.0 - 1)


def test_a_second_anchor_must_be_one(tmp_path: Path) -> None:
    run = _run(tmp_path / "r", {"p": [1.0]})
    with pytest.raises(InputError, match="the same safe model"):
        of_run(AuditResult.of(run), AuditResult.of(run))
    other = _with_anchor(run, tmp_path / "o", safe="z", risky="y")
    with pytest.raises(InputError, match="another pair"):
        of_run(AuditResult.of(run), AuditResult.of(other))


def test_the_labs_own_anchors_are_recognised(tmp_path: Path) -> None:
    from nafaudit.models.checkpoints import weights_hash

    second = checkpoints_of(RunSettings(pair="lab-safe2"))
    safe, risky = checkpoints_of(RunSettings())
    assert second[1] == risky
    assert Path(second[0]).is_dir()
    hashes = json.loads((Path(safe).parent / "card.json").read_text())["sha256"]
    pair = {"safe": weights_hash(safe), "risky": weights_hash(risky)}
    assert pair == {role: fingerprint(hashes, role) for role in pair}

    def first(name: str, **about: Any) -> ChecklistItem:
        run = _with_anchor(_run(tmp_path / name, {"p": [1.0]}, **about), tmp_path / f"{name}-lab",
                           **pair)  # fmt: skip
        return _by_number(of_run(AuditResult.of(run)))[1]

    text = min(lab_texts())
    item = first("lab", text=text, length=LAB_LENGTH)
    assert item.answer == ItemAnswer.PASS
    assert item.value < 0.05
    # What was measured of the lab says nothing of other prompts, nor of other budgets and lengths.
    for item, why in ((first("data", length=LAB_LENGTH), "these are others"),
                      (first("T", text=text), "at T = 200, and this run has T = 5"),
                      (first("k", text=text, k=16.0, length=LAB_LENGTH),
                       "at k = 1 alone, and this run has k = 16")):  # fmt: skip
        assert item.answer is ItemAnswer.NOT_APPLICABLE
        assert why in item.text and "nafaudit checklist . --anchor ../anchor2" in item.todo


def test_what_was_measured_of_the_lab_had_this_k_and_T() -> None:
    from nafaudit.workshop import memorise, pair_facts

    made = inspect.signature(memorise.LabDecoder.__init__).parameters["new_tokens"].default
    assert (pair_facts.SPEND_BUDGET, made) == (LAB_K, LAB_LENGTH)


def test_a_run_of_other_budgets_besides_is_not_what_was_measured(tmp_path: Path) -> None:
    """As of a run with k = 0.25, 1, 10 and T = 24, of which 50.8 nats cannot be spent."""
    run = json.loads(call("run", *LAB_FEW, "--quiet", "--json", cwd=tmp_path).stdout)["run"]
    item = json.loads(call("checklist", run, "--json", cwd=tmp_path).stdout)["items"][0]
    assert item["answer"] == "not applicable"
    assert item["text"].endswith("and this run has k = 0.25, 1 and T = 4")
    assert item["to_pass"] == (
        "nafaudit run --pair lab-safe2 --protocol sound --limit 3 --k 0.25,1 --max-new-tokens 4 "
        f"--trajectories 1 --out {run}-anchor2, then nafaudit checklist {run} --anchor "
        f"{run}-anchor2"
    )
    for words in re.findall(COMMAND, item["to_pass"]):
        done = call(*words.split()[1:], "--json", cwd=tmp_path)
        assert done.returncode in (0, 1, 3), done.stderr
    compared = json.loads(done.stdout)["items"][0]
    assert compared["answer"] in ("pass", "fail") and "the worst budget" in compared["text"]


def test_shown_in_80_columns_as_json_and_in_the_report(tmp_path: Path) -> None:
    run = plain_run(tmp_path / "a-directory-with-a-name")
    items = of_run(AuditResult.of(run))
    assert max(map(len, terminal(checklist_document(items)).split("\n"))) <= 80
    assert max(map(len, terminal(checklist_document(of_paper())).split("\n"))) <= 80
    shown = CliRunner().invoke(app, ["checklist", str(run.path), "--json"])
    assert shown.exit_code == 0
    data = json.loads(shown.stdout)
    assert [row["item"] for row in data["items"]] == [1, 2, 3, 4, 5, 6, 7]
    assert {row["answer"] for row in data["items"]} <= set(ItemAnswer)
    assert all({"width", "mean", "rho", "n"} <= set(row) for row in data["prompts"])
    assert CliRunner().invoke(app, ["report", str(run.path)]).exit_code in (0, 3)
    page = (run.path / "report" / "index.html").read_text()
    written = json.loads((run.path / "report" / "report.json").read_text())
    # In the report commands are typed inside the run.
    shown_items = json.dumps(data["items"]).replace(f"{run.path}-anchor2", "../anchor2")
    assert written["checklist"] == json.loads(shown_items.replace(str(run.path), "."))
    assert all(
        row["title"] in (run.path / "report" / "report.md").read_text() for row in data["items"]
    )
    assert page.count("not applicable</span>") == sum(
        item.answer == ItemAnswer.NOT_APPLICABLE for item in items
    )


def test_of_the_paper_on_the_command_line(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["checklist", "--paper"])
    assert shown.exit_code == 0
    assert "claims about itself that hold: 1, 4, 7; that do not: 5;" in shown.stdout
    both = CliRunner().invoke(app, ["checklist", str(tmp_path), "--paper"])
    assert isinstance(both.exception, InputError)


def test_a_log_with_totals_only_is_answered_as_far_as_it_goes(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    lines = ["prompt_id,spend,k,length"] + [f"q{i % 3},{i / 10},1,50" for i in range(30)]
    log.write_text("\n".join(lines))
    imported = import_logs([log], tmp_path / "run", ImportOptions(max_new_tokens=50))
    with pytest.raises(InputError, match="does not say its models"):
        of_run(AuditResult.of(imported), AuditResult.of(imported))
    items = _by_number(of_run(AuditResult.of(imported)))
    assert items[1].answer == items[3].answer == ItemAnswer.NOT_APPLICABLE
    assert items[2].answer == ItemAnswer.FAIL
    assert items[5].answer == ItemAnswer.PASS


def test_a_run_of_baselines_alone_has_nothing_to_answer(tmp_path: Path) -> None:
    run = _run(tmp_path / "r", {"p": [0.0, 0.0]}, k=0.0)
    assert {item.answer for item in of_run(AuditResult.of(run))} == {ItemAnswer.NOT_APPLICABLE}


def test_paper_and_checklist_run_without_torch(tmp_path: Path) -> None:
    run = _run(tmp_path / "r", {"p": [1.0, 2.0]})
    code = [sys.executable, "-c", WITHOUT_TORCH]
    for arguments in (["paper", "--json"], ["checklist", str(run.path)]):
        done = call(*arguments, cwd=tmp_path, code=code)
        assert done.returncode == 0, done.stderr


# Remedies

# A comma inside a word is the command's, as in --k 1,3.
COMMAND = r"nafaudit (?:[^,;:()]|,(?=\S))*"
RUNS = ("own", "violated", "paper", "box", "imported", "sequence", "search", "paper-search")


@pytest.mark.parametrize("name", (*RUNS, "attack"))
def test_every_remedy_can_be_typed(name: str, tmp_path: Path) -> None:
    run = Run(make.HERE / "c049abe" / make.RUN_OF.get(name, name))
    items = of_run(AuditResult.for_report(run))
    assert any(item.todo for item in items)
    commands = []
    for item in items:
        if name == "imported":
            assert "the same run" not in item.todo
        for option in re.findall(r"the same (?:run|search) with ([^,;:]+)", item.todo):
            commands.append(f"nafaudit {make.COMMANDS[name]} {option}")
        commands += (found := re.findall(COMMAND, item.todo))
        found += re.findall(r"the same (?:run|search) with [^,;:]+", item.todo)
        for one in found:  # a test below follows it
            assert any(one.startswith(known) for known in FOLLOWED), one
        # No option stands outside of a command.
        rest = re.sub(r"the same (run|search) with[^,;:()]*", "", item.todo)
        rest = re.sub(COMMAND, "", rest)
        assert "--" not in rest, item.todo
    assert commands
    shutil.copytree(make.HERE / "workload", tmp_path / "workload")
    with contextlib.chdir(tmp_path):
        for command in commands:
            assert typed(command) is not None, command


# Commands of remedies, as the tests below type them; numbers and what follows them left out.
FOLLOWED = {
    *("the same run with --k", "the same run with --trajectories", "the same search with --k"),
    *("the same run with --pair", "the same run with --safe"),
    *("the same search with --fix", "the same search with --searches"),
    *("nafaudit run --k", "nafaudit run --pair", "nafaudit run --prompts", "nafaudit run --data"),
    *("nafaudit checklist", "nafaudit check .", "nafaudit report .", "nafaudit import LOG"),
    *("nafaudit search --protocol", "nafaudit search --searches"),
}
# Sizes of what a remedy leaves free.
TINY = ("--pair", "tiny", "--limit", 2, "--max-new-tokens", 2)
FEW = ("--limit", 3, "--max-new-tokens", 4, "--trajectories", 1)
LAB_FEW = ("--k", "0.25,1", *FEW)
PAPER_SEARCH = make.COMMANDS["paper-search"].split()[3:]
SEARCH = make.COMMANDS["search"].replace(" --searches 1", "").split()[1:]


class Remedied:
    """A run in a place of its own, and the remedies of its checklist, typed there."""

    def __init__(self, place: Path, *words: object) -> None:
        self.place, self.words = place, words
        place.mkdir(exist_ok=True)
        for name in ("prompts.jsonl", "workload"):
            (place / name).symlink_to(make.HERE / name)
        self.run = self.made(*words)

    def item(self, number: int, run: str = "", *more: object) -> dict[str, Any]:
        """What the checklist says of an item."""
        done = call("checklist", run or self.run, *more, "--json", cwd=self.place)
        return dict(json.loads(done.stdout)["items"][number - 1])

    def follow(self, number: int, *sizes: object, which: int = 0, **names: str) -> dict[str, Any]:
        """Types a command of an item's remedy; returns the item of the run that came of it."""
        todo = self.item(number)["to_pass"]
        found = re.findall(r"(?:the same (?:run|search) with|nafaudit [a-z])[^,;:()]*", todo)
        assert found, todo
        assert any(found[which].startswith(known) for known in FOLLOWED)
        kind, _, given = found[which].partition(" with ")
        words = [*self.words, *given.split()] if given else kind.split()[1:]
        return self.item(number, self.made(*(names.get(str(w), w) for w in words), *sizes))

    def made(self, *words: object) -> str:
        """Runs a command; returns the directory of its run."""
        quiet = () if words[0] == "import" else ("--quiet",)
        done = call(*words, *quiet, "--json", cwd=self.place)
        assert done.returncode in (0, 1, 3), done.stderr
        return str(json.loads(done.stdout)["run"])


def test_remedies_of_few_answers_are_followed(tmp_path: Path) -> None:
    few = Remedied(tmp_path, "run", "--k", 1, *TINY, "--trajectories", 1)
    assert (few.item(5)["answer"], few.item(4)["answer"]) == ("fail", "not applicable")
    assert few.follow(5)["answer"] == "pass"


@pytest.mark.full
def test_remedies_of_the_floor_are_followed(tmp_path: Path) -> None:
    """Of a run: a search; of a search whose debts leave no budget: a larger k."""
    few = Remedied(tmp_path, "run", "--k", 1, *TINY)
    assert few.follow(4, *PAPER_SEARCH)["answer"] == "pass"
    words = make.COMMANDS["paper-search"].replace("--k 40 ", "").split()
    searched = Remedied(tmp_path / "a", *words, "--k", 0.01)
    searched.words = tuple(words)  # a second --k would search both
    assert searched.item(4)["text"] == "no prompt has a ratio"
    assert "have fewer than 20 trajectories" in searched.follow(4)["text"]


def test_remedies_of_a_run_without_a_budget_are_followed(tmp_path: Path) -> None:
    alone = Remedied(tmp_path, "run", "--k", 0, *TINY)
    assert {alone.item(n)["to_pass"] for n in (2, 5)} == {"nafaudit run --k 1,3,5"}
    assert alone.follow(2, *TINY)["answer"] == "fail"
    run = json.loads(call("run", "--k", "1,3,5", *TINY, "--json", cwd=tmp_path).stdout)["run"]
    assert {alone.item(n, run)["answer"] for n in (2, 5)} == {"fail", "pass"}


def test_the_remedy_of_one_anchor_is_followed(tmp_path: Path) -> None:
    """Of prompts in a file, and of a pair that is not the lab's; the lab's prompts: above."""
    lab = Remedied(tmp_path, "run", "--prompts", "prompts.jsonl", "--k", 1, *FEW)
    same, compared = _commands(lab.item(1)["to_pass"])
    lab.made(*lab.words, *same.split())
    found = lab.item(1, *compared.split()[1:])
    assert found["answer"] in ("pass", "fail") and "k = 1, the worst budget" in found["text"]
    tiny = Remedied(tmp_path / "a", "run", "--k", 1, *TINY)
    same, compared = _commands(tiny.item(1)["to_pass"])
    safe, risky = checkpoints_of(RunSettings(pair="tiny"))
    shutil.copytree(safe, tmp_path / "other")
    weights = load_file(tmp_path / "other" / "model.safetensors")
    save_file({name: 1.01 * one for name, one in weights.items()},
              tmp_path / "other" / "model.safetensors", {"format": "pt"})  # fmt: skip
    names = {"SAFE2": tmp_path / "other", "RISKY": risky, "FILE": "sentences.jsonl"}
    rows = [item.prompt for item in Run(tmp_path / "a" / tiny.run).prompts()]
    lines = [json.dumps({"id": row.id, "text": row.text, "class": row.label}) for row in rows]
    (tmp_path / "a" / "sentences.jsonl").write_text("\n".join(lines))
    tiny.made(*tiny.words, *(names.get(word, word) for word in same.split()))
    found = tiny.item(1, *compared.split()[1:])
    assert found["answer"] in ("pass", "fail") and "k = 1, the worst budget" in found["text"]


def _commands(todo: str) -> tuple[str, str]:
    """What a second run has of its own, and the command that compares both."""
    (same,) = re.findall(r"the same run with ([^,;:]+)", todo)
    (compared,) = re.findall(r"nafaudit (checklist [^,;:()]*)", todo)
    return same, compared


def test_the_remedy_of_one_anchor_of_a_search_is_followed(tmp_path: Path) -> None:
    searched = Remedied(tmp_path, "run", "--k", 1, *TINY)  # a place
    stored = make.HERE / "c049abe" / "search"
    todo = searched.item(1, str(stored))["to_pass"]
    first, other, compared = re.findall(COMMAND, todo)
    for words in (first, other):
        searched.made(*(w if w != "FILE" else "prompts.jsonl" for w in words.split()[1:]))
    found = searched.item(1, *compared.split()[2:])
    assert found["answer"] in ("pass", "fail") and "k = 1, the worst budget" in found["text"]


@pytest.mark.parametrize("which", [0, 1])
def test_remedies_of_a_run_without_references_are_followed(which: int, tmp_path: Path) -> None:
    tiny = Remedied(tmp_path, "run", "--k", 1, *TINY)
    names = {"FILE": "prompts.jsonl", "DIRECTORY": "workload"}
    caps = [] if which == 0 else [w for name in make.CLASSES for w in ("--cap", f"{name}=1")]
    sizes = ("--k", 3, "--max-new-tokens", 4, "--limit", 0, "--trajectories", 1, *caps)
    found = tiny.follow(3, *sizes, which=which, **names)
    assert found["answer"] in ("pass", "fail") and "by ROUGE-L in thirds" in found["text"]


def test_remedies_that_say_what_to_read_show_it(tmp_path: Path) -> None:
    shutil.copytree(make.HERE / "c049abe" / "own", tmp_path / "own")
    (item,) = [i for i in of_run(AuditResult.of(Run(tmp_path / "own"))) if i.number == 3]
    (over,) = [executions(_class_rows(Run(tmp_path / "own"), 1500))]
    for todo in (item.todo, over.todo):
        # No run changes these answers, so that no remedy is promised.
        assert todo.startswith("look at ")
        assert f"to pass: {todo}" not in terminal(checklist_document([replace(item, todo=todo)]))
        (words,) = re.findall(COMMAND, todo)
        done = call(*words.split()[1:], cwd=tmp_path / "own")
        assert done.returncode == 0, done.stderr
        shown = done.stdout + (tmp_path / "own" / "report" / "report.md").read_text()
        assert "attack_train" in shown


def test_the_remedy_of_a_log_without_its_length_is_followed(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("prompt_id,spend,k\n" + "".join(f"q{i % 3},0.5,1\n" for i in range(1500)))
    read = Remedied(tmp_path, "import", log, "--out", "first")
    assert read.item(2)["answer"] == "not applicable"
    assert read.follow(2, LOG=str(log), NEW="second")["answer"] == "pass"


@pytest.mark.full
def test_the_remedy_of_few_trajectories_is_followed(tmp_path: Path) -> None:
    few = Remedied(tmp_path, "run", "--k", 1, *TINY)
    assert few.item(2)["to_pass"].startswith("the same run with --trajectories 750")
    found = few.follow(2)
    assert found["text"].startswith("fewest trajectories: 1500, ") and found["value"] == 1500


@pytest.mark.full
def test_remedies_of_searches_are_followed(tmp_path: Path) -> None:
    """The sizes are those of the stored searches; a remedy leaves them free."""
    tiny = Remedied(tmp_path, "run", "--k", 1, *TINY)
    assert tiny.item(6)["to_pass"] == "nothing to pass: no surrogate is relied on"
    assert tiny.follow(7, *SEARCH)["answer"] == "pass"
    searched = Remedied(tmp_path / "a", "search", *SEARCH, "--searches", 1)
    assert searched.follow(7, *SEARCH)["answer"] == "pass"
    assert searched.follow(4, *PAPER_SEARCH)["answer"] == "pass"


@pytest.mark.full
@pytest.mark.parametrize("number", [4, 7])
def test_remedies_of_the_papers_search_are_followed(number: int, tmp_path: Path) -> None:
    searched = Remedied(tmp_path, *make.COMMANDS["paper-search"].split())
    assert searched.item(number)["answer"] == "fail"
    assert searched.follow(number)["answer"] == "pass"


def test_item_3_has_one_rule_for_the_paper_and_for_runs() -> None:
    """By near-verbatim recall, which the paper does not have, this run passed."""
    own = Run(make.HERE / "c049abe" / "own")
    (item,) = [one for one in of_run(AuditResult.of(own)) if one.number == 3]
    (theirs,) = [one for one in of_paper() if one.number == 3]
    for one in (item, theirs):
        assert "by ROUGE-L in thirds" in one.text and not one.text.startswith("0 ")
    # The same rule finds classes in both; of a claim it does not decide.
    assert (item.answer, theirs.answer) == (ItemAnswer.FAIL, ItemAnswer.DEPENDS)


def test_our_own_tables_have_what_items_2_and_5_ask_for(tmp_path: Path) -> None:
    shutil.copytree(make.HERE / "c049abe" / "own", tmp_path / "own")
    call("report", "own", cwd=tmp_path)
    report = (tmp_path / "own" / "report" / "report.md").read_text()
    spend = "prompts | mean spend | variance | R_eff | U_EBB (R) | U_EBB (R_eff) | U width | K |"
    overlap = "debt | median | max | ROUGE | max | 5-gram | max | recall |"
    for heads in (spend, overlap, "spend | U_EBB | width | worst use |"):
        assert heads.replace("_", r"\_") in report or heads in report
    page = (tmp_path / "own" / "report" / "index.html").read_text()
    for column in ("variance", "U_EBB_eff.width", "debt.median", "overlap.jaccard_5gram_max"):
        assert f'"{column}"' in page
    shown = call("check", "own", cwd=tmp_path).stdout
    assert "spend   var  R_eff" in shown and "5-gram    max  recall" in shown
