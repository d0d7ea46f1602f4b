from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from nafaudit.core.design import Decoding, Design, Extent, Identity
from nafaudit.core.errors import InputError
from nafaudit.core.ledger import budget_name
from nafaudit.core.trajectory import Key, Logged, Trajectory
from nafaudit.paper.files import write_paper_files
from nafaudit.store.export import export_run, file_word
from nafaudit.store.importers import import_logs
from nafaudit.store.importers.entry import no_steps
from nafaudit.store.run import Run, open_for_writing
from nafaudit.workload import Prompt, TokenizedPrompt
from tests.records import many, trajectory

ODD = "a/b class"


def write(path: Path, records: list[Trajectory]) -> Run:
    """A run of the sound protocol without sources or sessions, as other tools might leave it."""
    names = sorted({record.key.prompt for record in records})
    prompts = [TokenizedPrompt(Prompt(n, "x", ODD, "y"), (0, 1)) for n in names]
    identity = Identity({"safe": "a"}, "anchored", "banking", Decoding(12), "hash", 256, 0)
    budgets = tuple(sorted({record.key.k for record in records}))
    design = Design(identity, Extent(budgets, 1, tuple(names)))
    with open_for_writing(path, design, prompts, {"pieces": ["a", None, "c"], "stops": [1]}) as w:
        w.append(records)
    return Run(path)


def test_any_run_has_the_papers_files(tmp_path: Path) -> None:
    run = write(
        tmp_path / "run", [*many(25), trajectory(Key("p0", "anchored", math.inf, 0), [1.0])]
    )
    files = write_paper_files(run, tmp_path / "out")
    assert [path.name for path in files] == [
        "h1_summary.csv",
        "h1_summary.json",
        "schedule.json",
        f"trajectories_k1_{file_word(ODD)}.jsonl",
    ]
    (row,) = json.loads((tmp_path / "out" / "h1_summary.json").read_text())
    assert (row["class"], row["M"], row["K"]) == (ODD, 25, 12.0)
    assert row["R"] == 12 * math.log(3)
    first = json.loads(files[-1].read_text().splitlines()[0])
    assert first["metadata"]["seed"] is None
    assert first["source_record"] == {"id": "p0", "text": "x", "class": ODD, "reference": "y"}


def test_budgets_that_round_alike_have_files_of_their_own(tmp_path: Path) -> None:
    ks = (0.1234567, 0.1234568, 3.0)
    records = [trajectory(Key("p0", "anchored", k, 0), [0.01]) for k in ks]
    run = write(tmp_path / "run", records)
    for files in (write_paper_files(run, tmp_path / "a"), export_run(run, tmp_path / "b")):
        found = {path.name.split("_")[1]: path for path in files if path.suffix == ".jsonl"}
        assert set(found) == {"k0.1234567", "k0.1234568", "k3"}
        rows = [json.loads(path.read_text()) for path in found.values()]
        assert sorted(row["metadata"]["k"] for row in rows) == sorted(ks)
    assert len({budget_name(k) for k in ks}) == 3


def test_a_log_without_a_vocabulary_has_no_range(tmp_path: Path) -> None:
    files = write_paper_files(write(tmp_path / "run", many(25)), tmp_path / "out")
    back = import_logs([files[-1]], tmp_path / "back")
    write_paper_files(back, tmp_path / "again")
    (row,) = json.loads((tmp_path / "again" / "h1_summary.json").read_text())
    (ours,) = json.loads((tmp_path / "out" / "h1_summary.json").read_text())
    assert (row["R"], row["U_EBB_R"], row["certified_R"]) == (None, None, None)
    assert row["U_EBB"] == ours["U_EBB"]


def test_what_is_not_known_certifies_nothing(tmp_path: Path) -> None:
    bare = Trajectory(Key("p0", "anchored", 1.0, 99), 0.0, False, no_steps(), Logged())
    run = write(tmp_path / "run", [*many(3), bare])
    files = write_paper_files(run, tmp_path / "out")
    (row,) = json.loads((tmp_path / "out" / "h1_summary.json").read_text())
    assert (row["mean_Z"], row["U_EBB"], row["certified"], row["M"]) == (None, None, False, 4)
    found = [json.loads(line) for line in files[-1].read_text().splitlines()]
    (told,) = [one["aggregate"] for one in found if one["metadata"]["trajectory_id"] == 99]
    assert told["total_spend"] is None and told["budget_utilization"] is None


def test_two_mechanisms_have_no_place_in_them(tmp_path: Path) -> None:
    other = trajectory(Key("p0", "another", 1.0, 0), [0.5])
    run = write(tmp_path / "run", [*many(3), other])
    with pytest.raises(InputError, match="2 mechanisms at k = 1"):
        write_paper_files(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_files_are_replaced_whole_and_only_when_asked(tmp_path: Path) -> None:
    run, out = write(tmp_path / "run", many(3)), tmp_path / "out"
    write_paper_files(run, out)
    (out / "left over").write_text("x")
    with pytest.raises(InputError, match="exists"):
        write_paper_files(run, out)
    write_paper_files(run, out, replace=True)
    assert not (out / "left over").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_an_early_end_before_the_debt_is_paid_has_a_negative_budget(tmp_path: Path) -> None:
    # One safe token while 7.57 nats are owed: B = 3 - 7.57 < 0, and nothing was spent.
    key = Key("p0", "anchored", 3.0, 0)
    early = trajectory(key, [0.0], debt=7.57, theta=[0], allowance=[0.0], stopped=True)
    files = write_paper_files(write(tmp_path / "run", [early]), tmp_path / "out")
    total = json.loads(files[-1].read_text())["aggregate"]
    assert total["final_budget"] == pytest.approx(-4.57)
    assert total["total_spend"] == 0 and total["budget_utilization"] == 0
