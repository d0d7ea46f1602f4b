"""A disk that fails costs what was not journalled yet, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from nafaudit.core.errors import StoreError
from nafaudit.core.trajectory import Trajectory
from nafaudit.store.files import check_room, make_directory
from nafaudit.store.run import Run, open_for_writing, read_journal
from tests.disks import can_mount, on_a_full_disk, on_a_read_only_disk, run_there
from tests.records import many
from tests.store import victim as recorder
from tests.store.victim import DESIGN, PROMPTS, VOCABULARY, record, work

RUN = Path("r")


def victim() -> None:
    recorder.main(RUN)


def begin(directory: Path, *batches: list[Trajectory]) -> Path:
    """A run with some parts, in a directory of its own."""
    directory.mkdir()
    with open_for_writing(directory / RUN, DESIGN, PROMPTS, VOCABULARY) as writer:
        for batch in batches:
            writer.append(batch)
    return directory


def holds(path: Path, expected: list[Trajectory]) -> bool:
    found = {one.key: one for one in Run(path).trajectories()}
    return len(found) >= len(expected) and all(one.same_as(found[one.key]) for one in expected)


def test_a_disk_that_fills_up_anywhere(tmp_path: Path) -> None:
    recorded = work()[:4]
    failed = 0
    for room in range(0, 40 * 4096, 4096):
        at = begin(tmp_path / str(room), recorded[:2], recorded[2:])
        before = (at / RUN / "journal.jsonl").read_bytes()
        done = on_a_full_disk(victim, RUN, room, cwd=at)
        assert (at / RUN / "journal.jsonl").read_bytes().startswith(before)
        assert holds(at / RUN, recorded)
        assert not list((at / RUN).rglob(".*")), "a failed write leaves no temporary file"
        if done.returncode == 0:
            break
        failed += 1
        assert done.returncode == 2, done.stderr
        assert ("No space left" if can_mount() else "File too large") in done.stderr
        assert "What was recorded before is safe" in done.stderr
        record(at / RUN)
        assert holds(at / RUN, work())
    assert done.returncode == 0, done.stderr
    assert failed >= (3 if can_mount() else 1)  # the design, the session, a part


def test_a_disk_that_fills_up_within_a_journal_line(tmp_path: Path) -> None:
    # So many parts that the journal is the largest file: the limit then meets it alone.
    earlier = [many(1, k=10.0 + i) for i in range(80)]
    at = begin(tmp_path / "x", *earlier)
    journal = at / RUN / "journal.jsonl"
    before = journal.read_bytes()
    assert len(before) > max(p.stat().st_size for p in (at / RUN / "parts").iterdir()) + 500
    for room in (0, 1, 50):
        done = run_there(victim, at, file_limit=len(before) + room)
        assert done.returncode == 2
        assert "journal.jsonl" in done.stderr
        assert journal.read_bytes() == before, "the start of a line was left behind"
    record(at / RUN)
    assert holds(at / RUN, [*(one for batch in earlier for one in batch), *work()])


def test_a_read_only_run_can_be_read_but_not_continued(tmp_path: Path) -> None:
    at = begin(tmp_path / "x", work()[:4])
    done = on_a_read_only_disk(victim, RUN, cwd=at)
    assert done.returncode == 2
    assert "cannot write" in done.stderr
    assert not can_mount() or "Read-only file system" in done.stderr
    assert holds(at / RUN, work()[:4])


@pytest.mark.parametrize("place", ["file/r", "file"])
def test_a_place_where_no_directory_can_be(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot write"):
        record(tmp_path / place)


def test_a_damaged_part_stops_a_resume_and_leaves_the_rest(tmp_path: Path) -> None:
    at = begin(tmp_path / "x", work()[:2], work()[2:4])
    part = at / RUN / "parts" / "000001.parquet"
    content = part.read_bytes()
    part.write_bytes(content[:-1])
    done = run_there(victim, at)
    assert done.returncode == 2
    assert "000001.parquet is not what was journalled" in done.stderr
    assert len(read_journal(at / RUN / "journal.jsonl")) == 2
    part.write_bytes(content)
    record(at / RUN)
    assert holds(at / RUN, work())


def test_a_file_in_the_way_is_no_matter_of_room(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        for look in (make_directory, check_room):
            with pytest.raises(StoreError, match="it is a file, or lies below one; name another"):
                look(place)
    check_room(tmp_path / "new" / "below")
    assert not (tmp_path / "new").exists()
