"""Whatever is in a file: a run, or an error that names file and line and leaves nothing behind."""

from __future__ import annotations

import gzip
import json
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nafaudit.core.errors import InputError, StoreError
from nafaudit.store.export import export_run
from nafaudit.store.importers import SCHEMAS, ImportOptions, import_logs, source
from tests.commands import call
from tests.records import judge_run
from tests.store.importers import logs
from tests.store.importers.logs import every_schema, item, query, record, write


def refused(path: Path, match: str) -> None:
    out = path.parent / "never"
    with pytest.raises(InputError, match=match):
        import_logs([path], out)
    assert sorted(p.name for p in path.parent.iterdir()) == [path.name]


def raw(directory: Path, content: bytes, name: str = "log.jsonl") -> Path:
    directory.mkdir(exist_ok=True)
    (directory / name).write_bytes(content)
    return directory / name


def good(count: int = 1) -> bytes:
    return b"".join(json.dumps(record(f"p{i}")).encode() + b"\n" for i in range(count))


@pytest.mark.parametrize(
    "content, match",
    [
        (b"", "the file is empty"),
        (b"\n \n", "the file is empty"),
        (good(2) + good()[:300], r"log\.jsonl:3: not JSON .*cut off"),
        (good() + b"[1]\n", r"log\.jsonl:2: a JSON object is needed, got list"),
        (good() + b"\xff\xfe{\n", r"log\.jsonl:2: not UTF-8 \(byte 0"),
        (good() + b"\0\n", r"log\.jsonl:2: a NUL byte"),
        (good().decode().encode("utf-16"), r"log\.jsonl:1: a NUL byte"),
        (b"\x80abc\n", r"log\.jsonl:1: not UTF-8"),
        (good() + b"[" * 200_000 + b"\n", r"log\.jsonl:2: nested too deeply"),
        (b'{"a":' * 100_000, r"log\.jsonl:1: n"),
        (good() + b'{"k": 1, "k": 2}\n', r"log\.jsonl:2: key 'k' occurs twice"),
        (good() + b'{"k": ' + b"9" * 5000 + b"}\n", r"log\.jsonl:2: a number with too many"),
        (b'{"hello": 1}\n', r"log\.jsonl:1: no known log. Seen: hello. Known:\n  trajectories"),
        (b"{}\n", r"log\.jsonl:1: no known log. Seen: an empty object"),
        (b"[]", r"no record in it"),
        (b"[1, 2]", r"log\.jsonl:1: an object is needed here, got '1'"),
        (b'[{"spend": 1, "k": 1}\n,\n', r"log\.jsonl:3: an object is needed here, got the end"),
        (b'[{"spend": 1, "k": 1}\n', r"log\.jsonl:2: ',' is needed here, got the end"),
        (b'[{"spend": 1, "k": 1}]\nx', r"log\.jsonl:2: something follows the end"),
        (b'[{"spend": 1, "k": 1},\n{"spend": \n}]', r"log\.jsonl:3: not JSON"),
        (b"just some words\n", r"log\.jsonl: no record in it"),
        (b"just some words\nand more\n", r"log\.jsonl:2: no known log. Seen: just some words"),
        (b"id,k,spend\na,1,2\nb,1\n", r"log\.jsonl:3: 2 cells where the header has 3"),
        (b"id,k,spend\na,1,two\n", r"log\.jsonl:2: 'spend' must be a number, got 'two'"),
        (b"id,k,spend,spend\na,1,2,2\n", r"log\.jsonl:1: column 'spend' occurs twice"),
        (b'id,k,spend\n"a,1,2\n', r"log\.jsonl:2: not a table"),
        (b"id,k,spend\na," + b"1" * 200_000 + b",1\n", r"log\.jsonl:2: not a table"),
        (b"id,k,spend\na,-2,1\n", r"log\.jsonl:2: k must be at least 0"),
        (b"id,k,spend\n../../x,1,1\n", r"log\.jsonl:2: 'id' is '../../x', a path out"),
        (b"id,k,spend\n/etc/passwd,1,1\n", r"log\.jsonl:2: 'id' is '/etc/passwd', a path out"),
        (b"id,k,spend\na\x07b,1,1\n", r"log\.jsonl:2: 'id' must be printable"),
        (b"id,k,spend\n" + b"a" * 600 + b",1,1\n", r"log\.jsonl:2: 'id' must be printable"),
        (b"\x1f\x8bnot really gzip", "cannot be read"),
        (gzip.compress(good(50))[:-50], "cannot be read"),
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, content: bytes, match: str) -> None:
    refused(raw(tmp_path / "d", content), match)


@pytest.mark.parametrize(
    "part, name, value, match",
    [
        ("metadata", "prompt_id", "..\\..\\x", "a path out of its directory"),
        ("metadata", "prompt_id", "a\x00b", "must be printable"),
        ("metadata", "prompt_id", "\ud800", "half of a surrogate pair"),
        ("metadata", "prompt_id", None, "no 'metadata.prompt_id'"),
        ("metadata", "prompt_id", ["a"], "must be a string"),
        ("metadata", "split", "../up", "a path out of its directory"),
        ("metadata", "k", [1], "'k' must be a number"),
        ("metadata", "k", True, "'k' must be a number"),
        ("metadata", "trajectory_id", -1, "a whole number from 0"),
        ("metadata", "trajectory_id", 2**40, "a whole number from 0"),
        ("metadata", "trajectory_id", 1.5, "a whole number from 0"),
        ("metadata", "T_max", "many", "must be a number"),
        ("prefix_analysis", "delta_init", {}, "must be a number"),
        ("prefix_analysis", "prefix_text", 7, "must be a string"),
        ("aggregate", "total_spend", [1], "must be a number"),
        ("aggregate", "generation", "\udfff", "half of a surrogate pair"),
    ],
)
def test_wrong_types_are_refused_with_the_line(
    tmp_path: Path, part: str, name: str, value: object, match: str
) -> None:
    broken = record("p1")
    broken[part][name] = value
    (tmp_path / "d").mkdir()
    path = write(tmp_path / "d" / "log.jsonl", record("p0"), broken)
    refused(path, rf"log\.jsonl:2: .*{match}")


@pytest.mark.parametrize(
    "change, match",
    [
        ({"sampled_token_id": 2**31}, "whole number"),
        ({"sampled_token_id": "x"}, "must be a number"),
        ({"a_t": "x"}, "must be a number"),
        ({"a_t": 10**400}, "'a_t' must be a number"),
        ({"p_s_prob": -0.5}, "below 0"),
        ({"t": 7}, "out of order"),
    ],
)
def test_broken_steps_are_refused(tmp_path: Path, change: dict[str, object], match: str) -> None:
    broken = record()
    broken["per_step_log"][3] |= change
    (tmp_path / "d").mkdir()
    refused(write(tmp_path / "d" / "log.jsonl", broken), rf"log\.jsonl:1: .*{match}")


def test_a_huge_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_RECORD", 100_000)
    path = raw(tmp_path / "d", good() + b'{"a": "' + b"x" * 200_000 + b'"}\n')
    refused(path, r"log\.jsonl:2: a line of more than")


def test_an_array_on_one_line_may_be_longer_than_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MAX_RECORD", 2000)
    monkeypatch.setattr(source, "_CHUNK", 1000)
    path = tmp_path / "items_1_x.json"
    path.write_text(json.dumps([item(f"i{i}") for i in range(20)]))
    assert len(list(source.open_source(path).records())) == 20


def test_an_array_is_read_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of a chunk, also in the middle of a character."""
    path = tmp_path / "items_1_x.json"
    path.write_text(json.dumps([item(f"é{i}") for i in range(3)], indent=1, ensure_ascii=False))
    expected = list(source.open_source(path).records())
    assert len(expected) == 3
    for size in (1, 2, 3, 7, 64, 1000):
        monkeypatch.setattr(source, "_CHUNK", size)
        assert list(source.open_source(path).records()) == expected


def test_a_failure_while_writing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = raw(tmp_path / "d", good(3))

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(StoreError, match="No space left"):
            import_logs([path], path.parent / "run")
        assert [p.name for p in path.parent.iterdir()] == ["log.jsonl"]
    run = import_logs([path], path.parent / "run")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", lambda *_: full(0))
        with pytest.raises(StoreError, match="No space left"):
            export_run(run, path.parent / "out")
    assert sorted(p.name for p in path.parent.iterdir()) == ["log.jsonl", "run"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = raw(tmp_path / "d", good())
    run = import_logs([path], tmp_path / "run")
    with pytest.raises(InputError, match="exists"):
        import_logs([path], run.path)
    with pytest.raises(InputError, match="exists"):
        export_run(run, run.path)
    with pytest.raises(InputError, match=r"log\.jsonl exists"):
        export_run(run, path)
    (tmp_path / "empty").mkdir()
    assert import_logs([path], tmp_path / "empty").asked == 1


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.*cannot be read: No such file"):
        import_logs([tmp_path / "nowhere"], tmp_path / "run")
    with pytest.raises(InputError, match="not a file"):
        import_logs([tmp_path], tmp_path / "run")
    with pytest.raises(InputError, match="no log was given"):
        import_logs([], tmp_path / "run")


def survives(content: bytes, name: str, schema: str | None = None) -> bool:
    """Imports and judges, or refuses and leaves nothing; True if it imported."""
    with tempfile.TemporaryDirectory() as directory:
        path = raw(Path(directory), content, name)
        try:
            run = import_logs([path], Path(directory) / "run", ImportOptions(schema=schema))
        except (InputError, StoreError) as error:
            assert str(path) in str(error)
            assert [p.name for p in Path(directory).iterdir()] == [name]
            return False
        judge_run(run)
        export_run(run, Path(directory) / "out")
        return True


@settings(max_examples=100)
@given(st.binary(max_size=200), st.sampled_from([None, *SCHEMAS]))
@example(b"[", None)
@example(b"{", None)
@example(b'"', "table")
def test_random_bytes(content: bytes, schema: str | None) -> None:
    survives(content, "x_k1.jsonl", schema)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def places(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for key in value:
            found += places(value[key], (*path, key))
    if isinstance(value, list):
        for at, inner in enumerate(value):
            found += places(inner, (*path, at))
    return found


EXAMPLES: list[tuple[str, object]] = [
    ("trajectories", record(pads=2)),
    ("queries", query()),
    ("heldout", logs.candidate()),
    ("history", {"kl_stats_history": logs.history(1), "summary": {"final_budget_per_seq": [1, 2]}}),
    ("items", item()),
    ("table", {"id": "a", "k": 1, "spend": 1.0, "budget": 2.0, "T_max": 9, "tokens": 3}),
]


@settings(max_examples=200)
@given(st.sampled_from(EXAMPLES), st.data())
def test_a_valid_record_with_any_value_anywhere(
    example_: tuple[str, object], data: st.DataObject
) -> None:
    schema, valid = example_
    changed = json.loads(json.dumps(valid))
    where = data.draw(st.sampled_from(places(changed)))
    holder = changed
    for key in where[:-1]:
        holder = holder[key]
    if data.draw(st.booleans()):
        holder[where[-1]] = data.draw(JSON_VALUES)
    else:
        del holder[where[-1]]
    line = json.dumps(changed, ensure_ascii=True).encode()
    survives(line + b"\n" + json.dumps(valid).encode() + b"\n", "x_k1.jsonl", schema)


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.sampled_from(["cut", "flip", "drop", "swap"]))
def test_a_valid_log_with_bytes_changed(seed: int, how: str) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        valid = {name: path.read_bytes() for name, path in every_schema(Path(directory)).items()}
    content = bytearray(valid[rng.choice(sorted(valid))])
    for _ in range(rng.choice([1, 1, 3])):
        at = rng.randrange(len(content))
        if how == "cut":
            del content[at:]
            break
        if how == "flip":
            content[at] = rng.randrange(256)
        elif how == "drop":
            del content[at]
        else:
            content[at : at + 20] = content[at : at + 20][::-1]
    survives(bytes(content) or b"x", "x_k1.jsonl")


def test_the_fuzzers_examples_do_import(tmp_path: Path) -> None:
    for schema, valid in EXAMPLES:
        assert survives(json.dumps(valid).encode(), "x_k1.jsonl", schema)
    for name, path in every_schema(tmp_path / "logs").items():
        assert survives(path.read_bytes(), path.name), name


def test_rows_that_are_steps_are_not_judged_as_answers(tmp_path: Path) -> None:
    """Each answer spends 30 of 10 nats; each step alone would seem to keep the budget."""
    rows = [f"p{i},{step},0.5,1.5,10.0" for i in range(30) for step in range(20)]
    path = tmp_path / "long.csv"
    path.write_text("\n".join(["id,step,k,charge,budget", *rows]) + "\n")
    done = call("check", path, "--column", "spend=charge", cwd=tmp_path)
    assert done.returncode == 2 and "rows are steps (column 'step'" in done.stderr
    # A table that only says how many steps an answer had is one of answers.
    path.write_text(
        "\n".join(["id,step,k,charge,budget", *(f"p{i},20,0.5,1.5,10.0" for i in range(30))])
    )
    assert call("check", path, "--column", "spend=charge", cwd=tmp_path).returncode == 0
