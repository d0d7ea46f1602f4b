from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nafaudit.core.errors import InputError
from nafaudit.core.finding import Kept
from nafaudit.core.trajectory import Trajectory
from nafaudit.store.artifacts import import_report
from nafaudit.store.importers import ImportOptions, import_logs
from nafaudit.store.run import Run
from tests.records import judge_run
from tests.store.importers import logs
from tests.store.importers.logs import candidate, every_schema, item, query, record, write


def imported(path: Path, *more: Path, **options: Any) -> Run:
    out = path.parent / f"run-{len(list(path.parent.iterdir()))}"
    return import_logs([path, *more], out, ImportOptions(**options))


def read(run: Run) -> list[Trajectory]:
    return sorted(run.trajectories(), key=lambda one: one.key)


def notes(run: Run) -> dict[str, int]:
    report = import_report(run)
    assert report is not None
    counts: dict[str, int] = {}
    for note in report["notes"]:
        counts[note["kind"]] = counts.get(note["kind"], 0) + note["count"]
        assert note["first"]
    return counts


def not_kept(run: Run) -> set[str]:
    report = import_report(run)
    assert report is not None
    return set(report["not_kept"])


@pytest.mark.parametrize(
    "name", ["trajectories", "history", "heldout", "queries", "items", "table"]
)
def test_every_schema_is_recognised_and_judged(tmp_path: Path, name: str) -> None:
    path = every_schema(tmp_path / "logs")[name]
    run = imported(path)
    report = import_report(run)
    assert report is not None
    assert report["sources"][0]["schema"] == name
    assert report["trajectories"] == len(read(run)) == run.asked
    assert run.design["identity"]["protocol"] == "imported"
    for arm in judge_run(run):
        assert arm.kept != Kept.VIOLATED or name == "heldout"


def test_the_papers_log_comes_in_step_by_step(tmp_path: Path) -> None:
    run = imported(write(tmp_path / "trajectories_k1_test.jsonl", record("né", 3)))
    (one,) = read(run)
    assert one.key == ("né", "anchored", 1.0, 3)
    assert one.debt == logs.DEBT
    assert one.stopped  # 5 steps of at most 8
    assert one.steps.token.tolist() == [10, 11, 12, 13, 14]
    assert one.steps.charge.tolist() == [row["a_t"] for row in logs.steps()]
    assert one.steps.theta[0] == 0
    assert 0 < one.steps.theta[1] < 1
    assert one.steps.safe == pytest.approx(np.log(0.25))
    assert one.logged is not None
    assert one.logged.length == 5
    assert one.logged.granted.tolist() == [-0.5, 0.5, 1.5, 2.5, 3.5]
    assert run.design["identity"]["ledger"] == "banking"
    assert run.design["identity"]["decoding"]["max_new_tokens"] == logs.LIMIT
    assert run.prompts()[0].prompt.label == "test"
    assert notes(run) == {}
    assert "per_step_log.budget_remaining" in not_kept(run)
    assert "aggregate.rouge_l" not in not_kept(run)


def test_pad_tails_are_cut_and_counted(tmp_path: Path) -> None:
    run = imported(write(tmp_path / "a.jsonl", record("p0"), record("p1", pads=3)))
    assert [len(one) for one in read(run)] == [5, 5]
    assert read(run)[1].stopped
    assert notes(run) == {"pad-tail": 3, "batch-budget": 1}


def test_a_pad_tail_of_a_row_that_ended_in_debt(tmp_path: Path) -> None:
    """The stop was the first token, before the debt was paid: the pad token tells."""
    rows = [logs.step(t, 0.0, 0.0, 0.0, sampled_token_id=2) for t in range(6)]
    run = imported(write(tmp_path / "a.jsonl", record(rows=rows)))
    (one,) = read(run)
    assert one.steps.token.tolist() == [2]
    assert notes(run)["pad-tail"] == 5


def test_real_forced_steps_are_not_cut(tmp_path: Path) -> None:
    """A row that has spent all it was granted is forced, not done."""
    rows, spent = [], 0.0
    for t in range(8):
        k_t = max(0.0, (t + 1) * logs.K - logs.DEBT - spent)
        a_t = k_t + (4.0 if t == 2 else 0.0)  # overspends, and then has nothing left
        rows.append(logs.step(t, k_t, a_t, spent))
        spent += a_t
    assert [row["k_t"] for row in rows[3:6]] == [0.0] * 3
    run = imported(write(tmp_path / "a.jsonl", record(rows=rows[:6])))
    assert len(read(run)[0]) == 6
    assert judge_run(run)[0].kept == Kept.VIOLATED


def test_a_row_that_was_never_allowed_anything_keeps_its_steps(tmp_path: Path) -> None:
    rows = [logs.step(t, 0.0, 0.0, 0.0) | {"budget_so_far": t + 1.0} for t in range(6)]
    run = imported(write(tmp_path / "a.jsonl", record(rows=rows)))
    assert len(read(run)[0]) == 6
    assert "pad-tail" not in notes(run)


def test_a_tail_by_its_look_where_the_account_cannot_tell(tmp_path: Path) -> None:
    sure = {"p_star_prob": 0.99999, "p_s_prob": 0.99999, "k_t": 0.0, "a_t": 0.0, "bd": 0.0}
    rows = [logs.step(t, 0.0, 0.0, 0.0, sampled_token_id=9) for t in range(3)]
    rows += [logs.step(t, 0, 0, 0, sampled_token_id=2) | sure for t in range(3, 7)]
    for t, row in enumerate(rows):
        row |= {"budget_so_far": -logs.DEBT, "t": t}
    one = record(rows=rows)
    one["metadata"] |= {"k": 0, "K": 0}
    run = imported(write(tmp_path / "a.jsonl", one))
    assert read(run)[0].steps.token.tolist() == [9, 9, 9, 2]
    assert notes(run)["pad-tail-likely"] == 3


def test_stop_ids_cut_exactly(tmp_path: Path) -> None:
    run = imported(write(tmp_path / "a.jsonl", record()), stops=frozenset({12}))
    assert read(run)[0].steps.token.tolist() == [10, 11, 12]
    assert read(run)[0].stopped
    assert notes(run)["after-stop"] == 2
    assert run.stops == {12}


def test_what_is_missing_is_unknown_and_said(tmp_path: Path) -> None:
    one = record()
    for row in one["per_step_log"]:
        del row["p_risky_prob"], row["budget_so_far"]
    del one["prefix_analysis"]
    run = imported(write(tmp_path / "a.jsonl", one))
    (got,) = read(run)
    assert math.isnan(got.debt)
    assert np.isnan(got.steps.risky).all()
    assert got.logged is not None
    assert got.logged.granted.size == 0
    assert notes(run) == {"missing": 2}


def test_empty_steps_infinity_and_words_for_k(tmp_path: Path) -> None:
    risky, memfree, cpk = record("p0"), record("p1", rows=[]), record("p2", rows=[])
    risky["metadata"] |= {"k": -1, "K": math.inf}
    memfree["metadata"] |= {"k": "memfree", "K": None}
    cpk["metadata"] |= {"k": "cpk83.178", "K": 83.178}
    run = imported(write(tmp_path / "a.jsonl", risky, memfree, cpk))
    keys = [one.key for one in read(run)]
    assert keys[0] == ("p0", "anchored", math.inf, 0)
    assert keys[1] == ("p1", "memfree", math.inf, 0)
    assert keys[2][1:3] == ("cpk83.178", 83.178 / logs.LIMIT)
    found = notes(run)
    assert found["non-strict"] == 1
    assert found["k-minus-one"] == 1
    assert found["k-not-a-number"] == 2
    assert found["empty-steps"] == 2
    assert run.design["identity"]["ledger"] == "unknown"


def test_the_file_name_tells_k_if_the_record_does_not(tmp_path: Path) -> None:
    one = record()
    del one["metadata"]["k"]
    run = imported(write(tmp_path / "trajectories_k0.15_test.jsonl", one))
    assert read(run)[0].key.k == 0.15
    for k in (None, -1):
        one["metadata"]["k"] = k
        word = imported(write(tmp_path / "trajectories_ktokenswap_test.jsonl", one))
        assert read(word)[0].key.mechanism == "tokenswap"
    del one["metadata"]["k"]
    with pytest.raises(InputError, match=r"nothing\.jsonl:1: no k.*--k"):
        imported(write(tmp_path / "nothing.jsonl", one))
    assert read(imported(tmp_path / "nothing.jsonl", k=2.0))[0].key.k == 2.0


@pytest.mark.parametrize("declared", [{"constraint": "pathwise"}, {"initial_bank": 5.0}])
def test_another_rule_is_judged_by_its_own_grants(
    tmp_path: Path, declared: dict[str, object]
) -> None:
    one = record()
    one["metadata"] |= declared
    run = imported(write(tmp_path / "a.jsonl", one))
    assert run.design["identity"]["ledger"] == "unknown"
    assert notes(run) == {"other-rule": 1}


def test_echo_duplicates_and_repeats(tmp_path: Path) -> None:
    one, two, again = record("p", 0), record("p", 1), record("p", 1)
    one["aggregate"]["generation"] = "the first that is written, and so on"
    two["metadata"]["seed"] = one["metadata"]["seed"]
    again["aggregate"]["generation"] = two["aggregate"]["generation"]
    run = imported(write(tmp_path / "a.jsonl", one, two, again))
    assert [trajectory.key.trajectory for trajectory in read(run)] == [0, 1, 2]
    assert notes(run) == {
        "prompt-echo": 1,
        "duplicate-seed": 1,
        "duplicate-text": 1,
        "duplicate-spend": 2,
        "repeated": 1,
    }


def test_units_and_copies_that_disagree(tmp_path: Path) -> None:
    percent, odd, debts, long = record("a"), record("b"), record("c"), record("d")
    percent["aggregate"]["budget_utilization"] *= 100
    odd["aggregate"]["budget_utilization"] = 7.0
    odd["per_step_log"][1]["a_t_recomputed"] += 0.1
    debts["prefix_analysis"]["init_budget_tensor"] = -9.0
    long["metadata"]["T_max"] = 4
    run = imported(write(tmp_path / "a.jsonl", percent, odd, debts, long))
    assert notes(run) == {
        "percent": 1,
        "utilisation-differs": 1,
        "recomputed-differs": 1,
        "debt-differs": 1,
        "too-long": 1,
        "length-limits": 1,
    }
    assert run.design["identity"]["decoding"]["max_new_tokens"] == 0


def test_queries_of_one_passage_are_prompts_of_their_own(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", query(), query(1), query(0, 4, k=-1, B=math.inf))
    run = imported(path)
    first, second, third = read(run)
    assert first.key == ("p0 mode=chained L=50 window=3", "q", 3.0, 0)
    assert second.key.trajectory == 1
    assert third.key.k == math.inf
    assert first.logged is not None
    assert (first.spend, first.logged.budget, first.logged.length) == (100.0, 143.0, 50.0)
    assert first.debt == 7.0
    assert not_kept(run) == {"K", "R", "matched", "steps", "forced", "free"}


def test_stage_two_lists_become_trajectories(tmp_path: Path) -> None:
    run = imported(write(tmp_path / "heldout_k3.jsonl", candidate(), candidate(N=None)))
    records = read(run)
    assert [one.key.trajectory for one in records] == list(range(6))
    assert [one.spend for one in records[:3]] == [10.0, 20.0, 20.0]
    assert records[2].logged is not None
    assert records[2].logged.budget == -4.5
    assert notes(run)["duplicate-spend"] == 4
    # Nothing may be spent on a negative budget.
    assert judge_run(run)[0].violations == 2
    with pytest.raises(InputError, match=r"x_k3\.jsonl:1: N = 5, but 'spends' has 3"):
        imported(write(tmp_path / "x_k3.jsonl", candidate(N=5)))
    with pytest.raises(InputError, match=r":2: 'delta_inits' has 1"):
        imported(write(tmp_path / "y_k3.jsonl", candidate(), candidate(delta_inits=[1])))


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_history_is_one_trajectory_per_row(tmp_path: Path, wrapped: bool) -> None:
    steps = logs.history(pads=3, batch=3)
    data: object = steps
    if wrapped:
        total = {
            "final_cum_kl_spent_per_seq": steps[-1]["cum_kl_spent"],
            "final_budget_per_seq": steps[-1]["budget_so_far"],
            "budget_utilization_per_seq": [
                100 * spent / budget
                for spent, budget in zip(
                    steps[-1]["cum_kl_spent"], steps[-1]["budget_so_far"], strict=True
                )
            ],
        }
        data = {"kl_stats_history": steps, "summary": total, "ids": ["a", "b", "c"]}
    path = tmp_path / "history.json"
    path.write_text(json.dumps(data, indent=1))
    run = imported(path)
    records = read(run)
    assert [len(one) for one in records] == [8, 8, 5]
    assert [one.debt for one in records] == [logs.DEBT] * 3
    assert {one.key.k for one in records} == {1.0}
    found = notes(run)
    assert found["pad-tail"] == 3
    assert found["k-inferred"] == 3
    assert found.get("percent", 0) == (3 if wrapped else 0)
    assert found.get("no-id", 0) == (0 if wrapped else 3)
    if wrapped:
        assert records[0].logged is not None
        assert records[0].logged.budget == 8 * logs.K - logs.DEBT
    assert all(arm.kept != Kept.VIOLATED for arm in judge_run(run))


def test_items_know_rule_and_budget_from_their_file(tmp_path: Path) -> None:
    path = tmp_path / "reversekl_0.5_literal_gen.json"
    path.write_text(json.dumps([item("a"), item("b", final_budget_per_seq=41.5)]))
    run = imported(path, max_new_tokens=100)
    first, second = read(run)
    assert first.key == ("a", "reversekl", 0.5, 0)
    assert (first.debt, second.debt) == (7.0, 8.5)
    assert notes(run) == {
        "debt-derived": 2,
        "k-from-file-name": 2,
        "percent": 1,
        "utilisation-differs": 1,
    }
    one = tmp_path / "anchored_5.json"
    one.write_text(json.dumps(item(), indent=2))
    assert read(imported(one))[0].key.k == 5.0


def test_a_table_with_named_columns(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "\ufeffname;weird;allowed;Prefix_Debt;K;tokens\r\nx;1,5;9;2;200;7\r\n".replace("1,5", "1.5")
    )
    with pytest.raises(InputError, match=r"no known log. Seen: name, weird, allowed.*Known:"):
        imported(path, k=2.0)
    columns = {"spend": "weird", "budget": "allowed"}
    run = imported(path, k=2.0, columns=columns, mechanism="m")
    (one,) = read(run)
    assert one.key == ("x", "m", 2.0, 0)
    assert one.logged is not None
    assert (one.spend, one.logged.budget, one.debt, one.logged.length) == (1.5, 9.0, 2.0, 7.0)
    assert notes(run) == {"byte-order-mark": 1, "k-given": 1}
    with pytest.raises(InputError, match=r"no column 'wierd'; did you mean 'weird'\?"):
        imported(path, k=2.0, columns={"spend": "wierd"}, schema="table")
    with pytest.raises(InputError, match=r"unknown name 'spendd'; did you mean 'spend'\?"):
        imported(path, k=2.0, columns={"spendd": "weird"}, schema="table")


def test_a_table_as_json_lines_gzipped(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{i}", "k": 1, "Z": 5.0 + i, "B": 5.5, "rule": "r"} for i in range(25)]
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    run = imported(path)
    (arm,) = judge_run(run)
    assert (arm.mechanism, arm.kept) == ("r", Kept.VIOLATED)
    assert arm.violations == 24


def test_a_word_for_k_in_a_table_names_the_mechanism(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    run = imported(write(path, {"id": "a", "k": "memfree", "Z": 1.0, "B": None, "more": [1]}))
    assert read(run)[0].key == ("a", "memfree", math.inf, 0)
    assert notes(run)["k-not-a-number"] == 1
    assert not_kept(run) == {"more"}


def test_a_budget_that_nobody_told_is_not_within(tmp_path: Path) -> None:
    path = tmp_path / "t_k1.csv"
    path.write_text("id,spend\n" + "".join(f"p{i},0.0\n" for i in range(40)))
    run = imported(path)
    assert judge_run(run)[0].kept == Kept.INCONCLUSIVE
    assert notes(run)["missing"] == 80  # budget and debt


def test_several_logs_make_one_run(tmp_path: Path) -> None:
    paths = every_schema(tmp_path / "logs")
    run = imported(paths["table"], paths["items"], paths["trajectories"])
    assert len(read(run)) == 3 + 2 + 2
    assert run.design["identity"]["ledger"] == "unknown"


def test_a_forced_schema_is_what_is_read(tmp_path: Path) -> None:
    path = every_schema(tmp_path / "logs")["queries"]
    run = imported(path, schema="table")
    assert read(run)[0].key.prompt == "p0"
    with pytest.raises(InputError, match=r"queries\.jsonl:1: a Stage 2 record needs"):
        imported(path, schema="heldout")
    with pytest.raises(InputError, match="schema must be one of trajectories"):
        imported(path, schema="quries")
