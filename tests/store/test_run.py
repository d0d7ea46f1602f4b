from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from nafaudit.core.design import Decoding, Design, Extent, Identity
from nafaudit.core.errors import InputError, StoreError
from nafaudit.core.trajectory import Key, Logged, Trajectory
from nafaudit.measures.table import Measures
from nafaudit.store import parts
from nafaudit.store import run as store_run
from nafaudit.store.run import Run, RunWriter, open_for_writing, read_journal
from nafaudit.workload import Prompt, TokenizedPrompt
from tests import forks
from tests.kills import was_killed
from tests.records import CONTEXT, many, trajectory

ROOT = Path(__file__).parents[2]
PROMPTS = [TokenizedPrompt(Prompt("p0", "text"), (0, 5))]
DESIGN = Design(
    Identity({"safe": "a"}, "anchored", "banking", Decoding(), "hash", 256, 0),
    Extent((0.0, 1.0), 2, ("p0",)),
)


def write(path: Path, *batches: list[Trajectory], design: Design = DESIGN) -> Run:
    with open_for_writing(path, design, PROMPTS, {"tokens": ["a"], "stops": [9]}) as writer:
        for batch in batches:
            writer.append(batch)
    return Run(path)


def read(path: Path) -> list[Trajectory]:
    return list(Run(path).trajectories())


def test_every_bit_comes_back(tmp_path: Path) -> None:
    records = [
        *many(10),
        trajectory(
            Key("né", "m", float("inf"), 3),
            [0.1, float("inf")],
            theta=[float("nan"), 1e-30],
            allowance=[float("inf")] * 2,
            debt=1 / 3,
        ),
        replace(
            trajectory(Key("foreign", "m", 2.0, 0), [1.0], debt=float("nan")),
            logged=Logged(1.0, 2.0, 1.0, np.array([2.0]), np.array([1.0])),
        ),
        replace(trajectory(Key("totals", "m", 2.0, 0), []), logged=Logged(1.0, float("nan"))),
    ]
    write(tmp_path, records[:4], records[4:])
    ordered = [*records[:4], *sorted(records[4:], key=lambda one: one.key)]
    assert all(a.same_as(b) for a, b in zip(ordered, read(tmp_path), strict=True))
    assert Run(tmp_path).keys() == {record.key for record in records}
    assert Run(tmp_path).prompts() == PROMPTS


def test_prompts_come_back_whatever_they_hold(tmp_path: Path) -> None:
    odd = [TokenizedPrompt(Prompt("p0", "a\u2028b\x85c\n d", "c", "\x0b"), (0, 5))]
    with open_for_writing(tmp_path, DESIGN, odd, {}):
        pass
    assert Run(tmp_path).prompts() == odd


def test_an_empty_part_is_not_written(tmp_path: Path) -> None:
    assert read(write(tmp_path, []).path) == []


def test_the_same_identity_resumes_and_the_extent_grows(tmp_path: Path) -> None:
    write(tmp_path, many(3))
    wider = replace(DESIGN, extent=Extent((0.0, 3.0, float("inf")), 1, ("p0", "p1")))
    run = write(tmp_path, many(2, k=3.0), design=wider)
    assert len(read(tmp_path)) == 5
    # 2 of p0 at 0 and 1; 1 each of p1 at 0 and of p0, p1 at 3 and inf.
    assert run.asked == 2 * 2 + 1 + 4
    write(tmp_path, design=wider)
    assert len(run.design["extents"]) == 2


def test_the_numbers_of_an_extent_are_kept_where_they_are_not_the_first(tmp_path: Path) -> None:
    write(tmp_path)
    prompts = PROMPTS[:1]
    names = tuple(item.prompt.id for item in prompts)
    with open_for_writing(tmp_path, DESIGN, PROMPTS, {}) as writer:
        for numbers in ((9, 4), (4, 9), (1, 0, 2)):
            writer.widen(Extent((7.0,), 3, names, numbers), prompts)
    run = Run(tmp_path)
    told = [extent.get("numbers") for extent in run.design["extents"]]
    assert told == [None, [4, 9], None]
    assert run.asked == DESIGN.extent.size + 5
    assert Extent((7.0,), 3, names, (9, 4)).size == 2


@pytest.mark.parametrize("numbers", [7, ["x"], [None]])
def test_numbers_that_are_none_are_damage_that_is_named(tmp_path: Path, numbers: object) -> None:
    write(tmp_path)
    design = json.loads((tmp_path / "design.json").read_text())
    design["extents"][0]["numbers"] = numbers
    (tmp_path / "design.json").write_text(json.dumps(design))
    with pytest.raises(StoreError, match=r"design\.json is not what was written"):
        _ = Run(tmp_path).asked


def test_another_identity_is_refused_and_named(tmp_path: Path) -> None:
    write(tmp_path, many(3))
    other = replace(
        DESIGN,
        identity=replace(DESIGN.identity, seed=7, decoding=Decoding(temperature=0.5)),
    )
    with pytest.raises(InputError) as caught:
        write(tmp_path, design=other)
    assert "decoding.temperature: 1.0 in the run, 0.5 now" in str(caught.value)
    assert "seed: 0 in the run, 7 now" in str(caught.value)
    assert len(read(tmp_path)) == 3


def test_a_run_of_an_earlier_version_is_not_resumed_by_its_options(tmp_path: Path) -> None:
    layout = DESIGN.identity.layout
    earlier = {**layout, "rows": layout["rows"] - 1}
    write(tmp_path, design=replace(DESIGN, identity=replace(DESIGN.identity, layout=earlier)))
    with pytest.raises(InputError, match=r"layout\.rows: ") as raised:
        write(tmp_path)
    assert "the version of nafaudit that began it" in str(raised.value)
    assert "options" not in str(raised.value)


def test_a_journal_cut_at_any_byte_loses_at_most_its_last_line(tmp_path: Path) -> None:
    write(tmp_path / "whole", many(2), many(3, k=2.0))
    whole = (tmp_path / "whole" / "journal.jsonl").read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(len(whole) + 1):
        path = shutil.copytree(tmp_path / "whole", tmp_path / str(cut))
        (path / "journal.jsonl").write_bytes(whole[:cut])
        expected = 0 if cut < first else 2 if cut < len(whole) else 5
        assert len(read(path)) == expected
        write(path, many(1, k=9.0))
        assert len(read(path)) == expected + 1  # the torn tail did not swallow the append
        # Nothing is lost, and nothing is left where a query would count it.
        here = {part.name for part in (path / "parts").iterdir()}
        assert here == {entry["part"] for entry in Run(path).journal()}
        assert len(here) + len(list(path.glob("unjournalled/*"))) == 3


def test_a_broken_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, many(2), many(3, k=2.0))
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(b"{oops\n" + journal.read_bytes())
    with pytest.raises(StoreError, match=r"journal.jsonl:1 is not a journal entry"):
        read_journal(journal)


def spends(path: Path) -> dict[tuple[str, float, int], float]:
    """What the query of docs/format.md says of a run."""
    if not any((path / "parts").glob("*.parquet")):
        return {}
    query = "select prompt, k, trajectory, sum(charge) from '{}/parts/*.parquet' group by all"
    return {(p, k, n): spend for p, k, n, spend in duckdb.execute(query.format(path)).fetchall()}


def spent(path: Path) -> dict[tuple[str, float, int], Any]:
    """The same of what is read through the journal."""
    measures = Measures.of_run(Run(path), CONTEXT)
    return {(m.key.prompt, m.key.k, m.key.trajectory): pytest.approx(m.spend) for m in measures}


def test_a_part_without_a_journal_line_is_named_then_moved_aside(tmp_path: Path) -> None:
    """As a kill of an earlier version left it, which moved a part before it was journalled."""
    write(tmp_path, many(2))
    orphan = tmp_path / "parts" / "000002.parquet"
    orphan.write_bytes(parts.encode(many(4, k=7.0)))
    before = orphan.read_bytes()
    assert Run(tmp_path).strays() == ["000002.parquet"]
    run = write(tmp_path, many(1, k=5.0))
    assert (tmp_path / "unjournalled" / "000002.parquet").read_bytes() == before
    assert not orphan.exists()
    assert run.journal()[-1]["part"] == "000003.parquet"
    assert {t.key.k for t in read(tmp_path)} == {1.0, 5.0}
    assert spends(tmp_path) == spent(tmp_path)
    orphan.write_bytes(b"another")
    write(tmp_path, many(1, k=6.0))
    aside = sorted((tmp_path / "unjournalled").iterdir())
    assert [one.read_bytes() for one in aside] == [before, b"another"]


def test_a_part_that_cannot_be_moved_is_moved_by_the_next_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path, target: Path) -> None:
        raise StoreError("cannot")

    with open_for_writing(tmp_path, DESIGN, PROMPTS, {}) as writer:
        with monkeypatch.context() as context:
            context.setattr(store_run, "move", broken)
            with pytest.raises(StoreError):
                writer.append(many(2))
        assert read(tmp_path) == []
        before = Run(tmp_path).journal_hash
        writer.append(many(3, k=2.0))
    assert len(read(tmp_path)) == 5
    assert Run(tmp_path).journal_hash != before
    assert spends(tmp_path) == spent(tmp_path)


def test_a_journalled_part_that_is_nowhere_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, many(2), many(2, k=2.0))
    (tmp_path / "parts" / "000002.parquet").unlink()
    with pytest.raises(StoreError, match=r"000002\.parquet is in the journal but cannot be read"):
        read(tmp_path)


def test_a_run_of_the_old_format_is_continued_in_the_new_one(tmp_path: Path) -> None:
    """Readers of the journal read both; a query over both formats is an error, not a wrong sum."""
    old = ROOT / "tests" / "runs" / "c049abe" / "own"
    shutil.copytree(old, tmp_path / "r")
    run = Run(tmp_path / "r")
    before = read(run.path)
    fresh = many(3, k=77.0)
    RunWriter(run).append(fresh)
    assert all(a.same_as(b) for a, b in zip([*before, *fresh], read(run.path), strict=True))
    with pytest.raises(duckdb.Error):
        spends(run.path)


STRAYS = (
    "000001 (conflicted copy).parquet",
    "1x.parquet",
    "000001.parquet~",
    "7.parquet",
    "b\udcff",
)


def test_strays_among_the_parts_are_named_and_neither_read_nor_overwritten(tmp_path: Path) -> None:
    write(tmp_path, many(2))
    place = tmp_path / "parts"
    part = (place / "000001.parquet").read_bytes()
    for name in (*STRAYS, ".DS_Store"):
        (place / name).write_bytes(part)
    (place / "000900.parquet").mkdir()
    (place / "copies").mkdir()
    run = write(tmp_path, many(1, k=10.0))
    assert run.journal()[-1]["part"] == "000901.parquet"
    assert len(read(tmp_path)) == 3
    assert run.strays() == sorted((*STRAYS, "000900.parquet", "copies"))
    assert all((place / name).read_bytes() == part for name in STRAYS)


@pytest.mark.parametrize("name", ["../../secret.parquet", "x.parquet", 1, None])
def test_a_journal_names_only_parts(tmp_path: Path, name: object) -> None:
    write(tmp_path, many(2))
    journal = tmp_path / "journal.jsonl"
    journal.write_text(json.dumps({"part": name, "rows": 1, "sha256": ""}) + "\n")
    with pytest.raises(StoreError, match=r"journal.jsonl:1 is not a journal entry"):
        read_journal(journal)


@pytest.mark.parametrize("damage", ["edited", "missing"])
def test_a_damaged_part_is_named(tmp_path: Path, damage: str) -> None:
    write(tmp_path, many(2))
    part = tmp_path / "parts" / "000001.parquet"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content) if damage == "edited" else part.unlink()
    with pytest.raises(StoreError, match=r"000001\.parquet"):
        read(tmp_path)


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    def second() -> None:
        with pytest.raises(StoreError) as refused:
            write(tmp_path)
        sys.stdout.write(str(refused.value))

    with open_for_writing(tmp_path, DESIGN, PROMPTS, {}):
        child = forks.run(second, tmp_path)
    assert child.returncode == 0, child.stderr
    assert "is being written by another process" in child.stdout


def test_a_directory_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run directory"):
        Run(tmp_path)
    for name in ("k-1", "k-2", "k-3", "k-4"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "design.json").touch()
    with pytest.raises(InputError, match=r"runs in it: .*k-1, .*k-2, .*k-3, or one of 1 more"):
        Run(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b"\xff", b"7", b'{"a": 1}\n', None])
@pytest.mark.parametrize("name", ["design.json", "prompts.jsonl", "vocabulary.json"])
def test_a_damaged_file_is_named_and_is_no_fault_of_ours(
    name: str, content: bytes | None, tmp_path: Path
) -> None:
    run = write(tmp_path, many(2))
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(StoreError, match=f"{name} is not what was written .*Restore it"):
        _ = run.design, run.prompts(), run.stops, run.pieces


@pytest.mark.parametrize("name", ["sessions.jsonl", "sources.jsonl", "faults.jsonl"])
def test_a_damaged_line_is_named(name: str, tmp_path: Path) -> None:
    run = write(tmp_path, many(2))
    (tmp_path / name).write_bytes(b"[1]\n")
    with pytest.raises(StoreError, match=f"{name} is not what was written"):
        _ = run.sessions, run.sources(), run.faults()


def test_records_of_another_layout_are_not_guessed_at(tmp_path: Path) -> None:
    layout = {**DESIGN.identity.layout, "record": 99}
    design = replace(DESIGN, identity=replace(DESIGN.identity, layout=layout))
    with pytest.raises(StoreError, match=r"layout 99, and this nafaudit reads layout 1; use"):
        _ = write(tmp_path, many(2), design=design).design


def test_a_full_disk_loses_nothing_that_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, many(2))

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with open_for_writing(tmp_path, DESIGN, PROMPTS, {}) as writer:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="No space left"):
            writer.append(many(3, k=2.0))
        monkeypatch.undo()
        writer.append(many(3, k=2.0))
    assert len(read(tmp_path)) == 5


def test_killed_at_any_moment_every_journalled_part_is_whole(tmp_path: Path) -> None:
    def work() -> None:
        with open_for_writing(tmp_path, DESIGN, PROMPTS, {}) as writer:
            for i in itertools.count():
                writer.append(many(3, k=float(i)))

    before = 0
    for delay in (0.0, 0.013, 0.05, 0.11):
        child = forks.fork(work)
        deadline = time.monotonic() + 30
        journal = tmp_path / "journal.jsonl"
        while (journal.stat().st_size if journal.exists() else 0) <= before:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        assert was_killed(child)
        entries, told = Run(tmp_path).journal(), read_journal(journal)
        assert told[: len(entries)] == entries
        assert len(told) - len(entries) <= 1  # the last one may be journalled and not yet there
        assert len(read(tmp_path)) == sum(entry["rows"] for entry in entries)
        assert len(list((tmp_path / "parts").glob("*.parquet"))) == len(entries)
        before = journal.stat().st_size
