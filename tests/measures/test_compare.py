"""Two runs side by side: what moved is found, what did not is not, and chance is said."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.design import identity_hash
from nafaudit.core.finding import Overall
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.measures.compare import compare, paired, unpaired
from nafaudit.measures.pairing import (
    MACHINE_SLACK,
    SharedDraws,
    Trace,
    first_difference,
    shared_draws,
)
from nafaudit.store.importers import ImportOptions, import_logs
from nafaudit.store.run import Run
from nafaudit.views.compare import compare_document
from nafaudit.views.html import page
from nafaudit.views.terminal import terminal
from nafaudit.workload import Prompt
from tests.commands import call
from tests.handmade import BUDGETS, MECHANISM, REFERENCE, WORDS, executions, make_run
from tests.records import trajectory
from tests.runs import make

LENGTH = 24


def records(prompts: int = 24, numbers: int = 2) -> list[Trajectory]:
    return [
        one
        for i in range(prompts)
        for n in range(numbers)
        for one in executions(f"p{i:03d}", n, LENGTH, len(WORDS))
    ]


def workload(count: int = 24, suffix: str = "") -> list[Prompt]:
    labels = ("story", "fact")
    return [
        Prompt(f"p{i:03d}", f"Once upon {i}{suffix}", labels[i % 2], REFERENCE)
        for i in range(count)
    ]


def edit(run: Run, change: Callable[[dict[str, Any]], None]) -> Run:
    """Another identity over the same records, as if another version had written them."""
    path = run.path / "design.json"
    design = json.loads(path.read_text())
    change(design["identity"])
    design["hash"] = identity_hash(design["identity"])
    path.write_text(json.dumps(design))
    return run


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("compare") / "a", workload(), records())


@pytest.fixture
def copy(base: Run, tmp_path: Path) -> Run:
    shutil.copytree(base.path, tmp_path / "b")
    return Run(tmp_path / "b")


def other(tmp_path: Path, change: Callable[[Trajectory], Trajectory], **options: Any) -> Run:
    return make_run(tmp_path / "b", workload(), [change(one) for one in records()], **options)


def spending(one: Trajectory, factor: float) -> Trajectory:
    """The same execution at another price; its allowances follow."""
    if not 0 < one.key.k < math.inf:
        return one
    steps = one.steps
    return trajectory(
        one.key,
        (steps.charge * factor).tolist(),
        theta=steps.theta.tolist(),
        token=steps.token.tolist(),
        stopped=one.stopped,
    )


def test_a_run_does_not_differ_from_its_copy(base: Run, copy: Run) -> None:
    found = compare(base, copy)
    assert found.overall.exit_status == 0
    assert found.pairing.draws == SharedDraws.SHARED
    assert found.pairing.by_number
    assert {change.moved for change in (*found.changes, *found.classes)} == {"same"}
    assert not found.prompts
    assert not found.design
    for one in found.differences:
        assert one.identical == one.same_tokens == len(one.by_unit) == 48
    assert "equal to the last bit" in terminal(compare_document(found))


def test_what_moved_is_found_with_its_size(base: Run, tmp_path: Path) -> None:
    def change(one: Trajectory) -> Trajectory:
        # By an amount that depends on the prompt, so that intervals have a width.
        return spending(one, 1.2 + 0.01 * int(one.key.prompt[1:]))

    found = compare(base, other(tmp_path, change))
    assert found.overall.exit_status == 0
    by_name = {(c.pair.a.k, c.quantity.name): c for c in found.changes}
    spend = by_name[0.5, "spend"]
    truth = 0.25 * LENGTH * (0.2 + 0.01 * 11.5)
    assert spend.change == pytest.approx(truth)
    assert spend.interval.low < truth < spend.interval.high
    assert spend.moved == "up"
    assert spend.evidence
    assert spend.prompts == 24
    assert spend.trajectories == 48
    assert by_name[0.5, "use"].change == pytest.approx(0.5 * (0.2 + 0.115))
    assert by_name[0.5, "active"].moved == by_name[0.5, "recall"].moved == "same"
    assert by_name[0.0, "spend"].moved == by_name[math.inf, "spend"].moved == "same"
    assert (0.0, "active") not in by_name
    assert {c.label for c in found.classes} == {"story", "fact"}
    assert found.prompts[0].prompt == "p023"
    for one in found.differences:
        assert one.same_tokens == 48
        assert one.identical == (48 if one.pair.a.baseline else 0)


def test_a_new_violation_is_named_first_and_is_exit_1(base: Run, tmp_path: Path) -> None:
    def change(one: Trajectory) -> Trajectory:
        if one.key != Key("p007", MECHANISM, 0.5, 1):
            return one
        steps = one.steps
        token, charge = steps.token.copy(), steps.charge.copy()
        token[5:] = (token[5:] + 1) % len(WORDS)
        charge[20] = 40.0
        return replace(one, steps=replace(steps, token=token, charge=charge))

    run = other(tmp_path, change)
    result = call("compare", base.path, run.path, "--json", cwd=tmp_path)
    assert result.returncode == 1
    data = json.loads(result.stdout, parse_constant=pytest.fail)
    worst = data["prompts"][0]
    assert (worst["prompt"], worst["k"]) == ("p007", 0.5)
    assert worst["violations"] == [0, 1]
    assert worst["first_token_step"] == 5
    assert "violates k = 0.5" in data["why"]
    parted = [p for one in data["partings"] for p in one["parted"]]
    assert parted == [{"prompt": "p007", "trajectory": 1, "token_step": 5, "charge_step": None}]
    # The other way round nothing got worse.
    assert call("compare", run.path, base.path, cwd=tmp_path).returncode == 0


def test_a_violated_budget_that_only_one_run_has_is_not_kept_by_the_other(tmp_path: Path) -> None:
    """Neither said of A: that it keeps, or breaks, what it was not run at."""
    for name in ("own", "violated"):
        shutil.copytree(make.HERE / "c049abe" / name, tmp_path / name)
    done = call("compare", "own", "violated", "--json", cwd=tmp_path)
    data = json.loads(done.stdout)
    assert (done.returncode, data["verdict"]) == (1, "VIOLATED")
    assert data["why"].startswith("B violates k = 0.1, which is not in A; ")


def test_a_verdict_that_is_no_longer_known_is_exit_3(base: Run, tmp_path: Path) -> None:
    few = make_run(tmp_path / "few", workload(4), records(4))
    found = compare(base, few)
    assert found.overall.exit_status == 3
    assert not any(change.evidence for change in found.changes)
    assert compare(few, base).overall.exit_status == 0


def test_mechanisms_are_matched_by_budget(base: Run, tmp_path: Path) -> None:
    renamed = [replace(one, key=one.key._replace(mechanism="else:Rule")) for one in records()]
    found = compare(base, make_run(tmp_path / "b", workload(), renamed))
    assert [pair.arms[1].mechanism for pair in found.pairing.pairs] == ["else:Rule"] * len(BUDGETS)
    assert not found.pairing.only_a
    assert not found.pairing.only_b
    assert {change.moved for change in found.changes} == {"same"}


def test_other_seeds_pair_prompts_but_no_executions(base: Run, copy: Run) -> None:
    found = compare(base, edit(copy, lambda identity: identity.update(seed=8)))
    assert found.pairing.draws == SharedDraws.OTHER
    assert found.pairing.paired
    assert not found.pairing.by_number
    assert not found.differences
    assert ("seed", "7", "8") in found.design
    assert "part by chance" in terminal(compare_document(found))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, SharedDraws.SHARED),
        ({"mechanism": "another", "ledger": "other"}, SharedDraws.SHARED),
        ({"purpose": "confirm"}, SharedDraws.OTHER),
        ({"protocol": "paper"}, SharedDraws.OTHER),
        ({"protocol": "imported"}, SharedDraws.UNKNOWN),
        ({"promise": "banking"}, SharedDraws.OTHER),
        ({"layout": {"draws": 99}}, SharedDraws.OTHER),
        ({"pair": {"vocabulary": "else"}}, SharedDraws.OTHER),
    ],
)
def test_whether_draws_are_shared(base: Run, change: dict[str, Any], expected: SharedDraws) -> None:
    identity = base.design["identity"]
    assert shared_draws(identity, identity | change)[0] == expected
    assert shared_draws(identity | change, identity)[0] == expected


def test_the_papers_draws_know_no_seed_and_black_boxes_share_seeds(base: Run) -> None:
    paper = base.design["identity"] | {"protocol": "paper"}
    assert shared_draws(paper, paper | {"seed": 99})[0] == SharedDraws.SHARED
    box = base.design["identity"] | {"promise": "banking"}
    assert shared_draws(box, box | {"mechanism": "else"})[0] == SharedDraws.SEEDS


def test_an_id_with_another_text_is_another_prompt(base: Run, tmp_path: Path) -> None:
    prompts = [*workload()[:20], *workload(suffix="!")[20:]]
    found = compare(base, make_run(tmp_path / "b", prompts, records()))
    assert found.pairing.changed == ("p020", "p021", "p022", "p023")
    assert {change.prompts for change in found.changes} == {20}


def test_logs_of_totals_are_compared_by_prompt(tmp_path: Path) -> None:
    def log(name: str, shift: float, prefix: str = "q") -> Run:
        rows = [{"id": f"{prefix}{i}", "k": 1, "Z": 10 + i % 7 + shift, "B": 50} for i in range(30)]
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return import_logs([path], tmp_path / name, ImportOptions())

    first = log("first", 0.0)
    found = compare(first, log("second", 1.0))
    assert found.pairing.draws == SharedDraws.UNKNOWN
    assert not found.differences
    (spend,) = (c for c in found.changes if c.quantity.name == "spend")
    assert spend.change == pytest.approx(1.0)
    # Paired by prompt, every difference is 1; unpaired, the spread of prompts is in the way.
    assert spend.interval.high - spend.interval.low < 1e-9
    assert spend.moved == "up"
    apart = compare(first, log("third", 1.0, prefix="r"))
    assert not apart.pairing.paired
    assert apart.overall == Overall("INCONCLUSIVE", "the runs have no prompt in common", 3)
    assert "UNPAIRED" in terminal(compare_document(apart))
    (spend,) = (c for c in apart.changes if c.quantity.name == "spend")
    assert spend.change == pytest.approx(1.0)
    assert spend.moved == "unclear"


def test_nothing_in_common_is_bad_input(base: Run, tmp_path: Path) -> None:
    only = [one for one in records() if one.key.k == 0.5]
    moved = [replace(one, key=one.key._replace(k=7.0)) for one in only]
    run = make_run(tmp_path / "b", workload(), moved)
    result = call("compare", base.path, run.path, cwd=tmp_path)
    assert result.returncode == 2
    assert "k = 0.5" in result.stderr
    assert "k = 7" in result.stderr
    assert call("compare", cwd=tmp_path).returncode == 2


def test_the_text_fits_a_terminal_and_quotes_names(base: Run, tmp_path: Path) -> None:
    evil = "\x1b[31m<script>alert(1)</script>|" + "x" * 90
    prompts = [replace(p, id=p.id + evil, label=p.label + evil) for p in workload()]

    def named(run: list[Trajectory]) -> list[Trajectory]:
        return [replace(one, key=one.key._replace(prompt=one.key.prompt + evil)) for one in run]

    a = make_run(tmp_path / "a", prompts, named(records()))
    shifted = [spending(one, 1.5 + 0.001 * one.key.trajectory) for one in named(records())]
    b = make_run(tmp_path / "b", prompts, shifted)
    result = call("compare", a.path.name, b.path.name, "--out", "out", cwd=tmp_path)
    assert result.returncode == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "\x1b" not in result.stdout
    text = (tmp_path / "out" / "compare.md").read_text()
    assert "<script>" not in text
    assert "<script>" not in (tmp_path / "out" / "compare.html").read_text()
    again = json.loads(call("compare", "a", "b", "--json", cwd=tmp_path).stdout)
    # Without --out the files have a place of their own, and the page is named.
    page = tmp_path / again.pop("report")
    assert page.read_bytes() == (tmp_path / "out" / "compare.html").read_bytes()
    assert again == json.loads((tmp_path / "out" / "compare.json").read_text())


def test_what_rests_on_few_prompts_is_not_called_beyond_chance(tmp_path: Path) -> None:
    """Twelve prompts move by amounts that vary little: an interval without 0, and no evidence."""
    few = list(records(12, 1))
    moved = [spending(one, 1.5 + 0.001 * int(one.key.prompt[1:])) for one in few]
    a = make_run(tmp_path / "a", workload(12), few)
    b = make_run(tmp_path / "b", workload(12), moved)
    found = compare(a, b)
    (spend,) = [c for c in found.changes if (c.pair.a.k, c.quantity.name) == (0.5, "spend")]
    assert spend.moved == "up" and not spend.evidence
    text = " ".join(terminal(compare_document(found)).split())
    assert "up (?)" in text and "Beyond chance" not in text
    assert "No evidence, on fewer than 20 prompts: spend (k = 0.5) up" in text


def test_two_prompts_that_move_alike_have_no_interval(tmp_path: Path) -> None:
    two = list(records(4, 1))
    a = make_run(tmp_path / "a", workload(4), two)
    b = make_run(tmp_path / "b", workload(4), [spending(one, 1.5) for one in two])
    found = compare(a, b)
    cells = [c for c in found.classes if (c.pair.a.k, c.quantity.name) == (0.5, "spend")]
    assert [c.prompts for c in cells] == [2, 2]
    for cell in cells:
        assert cell.change > 1 and not cell.interval.known and cell.moved == "unclear"
    # Twenty that do are another matter.
    every = compare(
        make_run(tmp_path / "c", workload(), records()),
        make_run(tmp_path / "d", workload(), [spending(one, 1.5) for one in records()]),
    )
    (spend,) = [c for c in every.changes if (c.pair.a.k, c.quantity.name) == (0.5, "spend")]
    assert spend.interval.known and spend.moved == "up" and spend.evidence


def test_the_two_latest_runs_are_the_default(base: Run, copy: Run, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(base.path, runs / "one")
    assert "need 2 runs" in call("compare", cwd=tmp_path).stderr
    shutil.copytree(copy.path, runs / "two")
    result = call("compare", cwd=tmp_path)
    assert result.returncode == 0
    assert "A: runs/" in result.stdout


def slow_parting(a: Trace, b: Trace) -> tuple[int | None, int | None]:
    """Step by step, as one would by hand."""
    token_step = charge_step = None
    for t in range(max(len(a.token), len(b.token))):
        if t >= len(a.token) or t >= len(b.token):
            token_step = t
            break
        x, y = float(a.charge[t]), float(b.charge[t])
        if charge_step is None and abs(x - y) > MACHINE_SLACK * (1 + min(x, y)):
            charge_step = t
        if a.token[t] != b.token[t]:
            token_step = t
            break
    return token_step, charge_step


TRACES = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0.0, 1.0, 1.0 + 1e-6])), max_size=6)


@given(TRACES, TRACES)
def test_partings_agree_with_a_slow_twin(
    one: Sequence[tuple[int, float]], two: Sequence[tuple[int, float]]
) -> None:
    def trace(pairs: Sequence[tuple[int, float]]) -> Trace:
        tokens = np.array([t for t, _ in pairs], np.int32)
        charges = np.array([c for _, c in pairs], np.float64)
        return Trace(tokens, charges, tokens.tobytes() + charges.tobytes())

    a, b = trace(one), trace(two)
    found = first_difference(("p", 0), a, b)
    assert (found.token_step, found.charge_step) == slow_parting(a, b)
    assert found.identical == (list(one) == list(two))


def test_intervals_cover_as_often_as_they_say() -> None:
    # 400 audits of 24 and 40 prompts at level 0.2. A miss rate of 0.2 gives more than 120
    # misses, or fewer than 44, with chance 1.3e-6 (binomial); unpaired ones are wider than that.
    rng = np.random.default_rng(3)
    missed = {"paired": 0, "unpaired": 0}
    for _ in range(400):
        ours, theirs = rng.normal(0, 1, 24), rng.normal(0.5, 3, 40)
        alone = unpaired(ours.tolist(), theirs.tolist(), 0.2)
        missed["unpaired"] += not alone.low <= 0.5 <= alone.high
        together = paired((rng.normal(0.5, 1, 24)).tolist(), 0.2)
        missed["paired"] += not together.low <= 0.5 <= together.high
    assert 44 <= missed["paired"] <= 120
    assert 0 < missed["unpaired"] <= 120
    assert paired([1.0] * 24, 0.05).low == pytest.approx(1.0)
    assert math.isnan(paired([1.0], 0.05).low)


def test_a_search_answers_with_its_own_verdict(tmp_path: Path) -> None:
    """Its arms are of the draws that it chose by, and these keep the budget in all three."""
    sides = {}
    finalist = {"id": "f", "fresh": 20, "violations": 0}
    for word, more in (
        ("WITHIN", {"finalists": [finalist]}),
        ("INCONCLUSIVE", {"finalists": [finalist | {"fresh": 5}]}),
        ("VIOLATED", {"violating_prompts": 1, "looked": 9}),
    ):
        run = sides[word] = make_run(tmp_path / word, workload(), records())
        (run.path / "search.json").write_text(json.dumps({"outcome": word, "k": 3.0} | more))
    fresh = [one for n in range(20) for one in executions("f", n, LENGTH, len(WORDS))]
    make_run(sides["WITHIN"].path / "confirm", [Prompt("f", "Once")], fresh)
    for a, b, word, status in (
        ("WITHIN", "WITHIN", "FINE", 0),
        ("WITHIN", "INCONCLUSIVE", "INCONCLUSIVE", 3),
        ("INCONCLUSIVE", "WITHIN", "FINE", 0),
        ("INCONCLUSIVE", "VIOLATED", "VIOLATED", 1),
        ("VIOLATED", "VIOLATED", "FINE", 0),
    ):
        answer = compare(sides[a], sides[b]).overall
        assert (answer.verdict, answer.exit_status) == (word, status), (a, b)
    shown = terminal(compare_document(compare(sides["WITHIN"], sides["INCONCLUSIVE"])))
    assert "search of B: INCONCLUSIVE: the search found nothing above its budget" in shown


def test_a_page_names_both_runs_and_a_budget_that_is_newly_violated_is_bad(tmp_path: Path) -> None:
    kept = make_run(tmp_path / "kept", workload(), records())
    over = [
        replace(one, steps=replace(one.steps, charge=one.steps.charge * 4))
        if one.key.k == 3.0
        else one
        for one in records()
    ]
    found = compare(kept, make_run(tmp_path / "over", workload(), over))
    assert found.overall.verdict == "VIOLATED"
    shown = page(compare_document(found))
    assert '<td class="bad">WITHIN -&gt; VIOLATED</td>' in shown
    for tag in ("title", "h1"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", shown)
        assert str(tmp_path / "kept") in text and str(tmp_path / "over") in text
