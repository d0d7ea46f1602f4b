from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nafaudit.core.errors import InputError
from nafaudit.core.settings import RunSettings
from nafaudit.paper.workload import PAPER, paper_lab_workload, paper_workload, read_paper
from nafaudit.workload import Workload
from nafaudit.workload.prompts import CAPS, FILES, HEADER, Record
from nafaudit.workshop.workload import write_workload
from tests.commands import typed
from tests.workload.files import Rows, small, write

ONE = dict.fromkeys(CAPS, 1)


def of(rows: Rows, cap: int | dict[str, int] = 1, variant: str = "code") -> Workload:
    caps = dict.fromkeys(CAPS, cap) if isinstance(cap, int) else cap
    records = {
        label: [Record(f"{FILES[label]}:{i + 1}", i, row) for i, row in enumerate(found)]
        for label, found in rows.items()
    }
    return paper_workload(records, [label for label in CAPS if label in rows], caps, variant)


def ids(workload: Workload, label: str) -> list[str]:
    return [prompt.id for prompt in workload.prompts if prompt.label == label]


def one(label: str, row: dict[str, Any], variant: str = "code") -> Any:
    (item,) = of({label: [row]}, {label: 1}, variant).items
    return item


def test_caps_are_the_papers() -> None:
    assert list(CAPS) == ["neutral", "val", "test", "attack_train", "factual", "creative"]
    assert list(CAPS.values()) == [200, 150, 150, 100, 150, 150]


def test_six_files_are_read_and_capped(tmp_path: Path) -> None:
    workload = read_paper(write(tmp_path, small(5)), cap=dict.fromkeys(CAPS, 3))
    assert Counter(p.label for p in workload.prompts) == dict.fromkeys(CAPS, 3)
    # In turn, so that a limit is fair.
    assert [p.label for p in workload.prompts[:6]] == list(CAPS)
    assert ids(workload, "val") == ["val.00", "val.01", "val.02"]
    # Blank lines are skipped but counted: records stand on every second line.
    assert ids(workload, "factual") == [
        "fact_00000_Person 0",
        "fact_00002_Person 1",
        "fact_00004_Person 2",
    ]
    assert ids(workload, "creative") == ["s0", "s1", "s2"]
    where = {p.id: s.where for p, s in ((i.prompt, i.source) for i in workload.items)}
    assert where["val.01"] == f"{tmp_path / FILES['val']}:3"


def test_the_lab_fills_every_cap_from_its_own_files(tmp_path: Path) -> None:
    write_workload(tmp_path)
    read, own = read_paper(tmp_path), paper_lab_workload()
    assert read.prompts == own.prompts
    assert Counter(p.label for p in own.prompts) == CAPS
    assert len(own.items) == 900


def test_only_some_classes_need_only_their_files(tmp_path: Path) -> None:
    rows = {label: found for label, found in small().items() if label in ("val", "factual")}
    workload = read_paper(write(tmp_path, rows), ["factual", "val"], {"val": 2, "factual": 1})
    assert [p.label for p in workload.prompts] == ["val", "factual", "val"]
    with pytest.raises(InputError, match=r"copybench_attack_train.jsonl: No such file"):
        read_paper(tmp_path)


@pytest.mark.parametrize(
    ("label", "row", "text"),
    [
        ("val", {"prefix": "a", "raw_text": "b", "prompt_text": "c"}, HEADER + "a"),
        ("val", {"prefix": "", "raw_text": "b", "prompt_text": "c"}, HEADER + "b"),
        ("val", {"raw_text": None, "prompt_text": "c", "prompt": "d"}, HEADER + "c"),
        ("test", {"prefix": [], "prompt": " d "}, HEADER + " d "),
        ("neutral", {"raw_text": "b"}, HEADER + "b"),
        ("creative", {"prompt_text": "a", "input": "b"}, HEADER + "a"),
        ("creative", {"input": "b", "metadata": {"title": "c"}}, HEADER + "b"),
        ("creative", {"metadata": {"title": "c"}}, HEADER + "c"),
        ("factual", {"prompt_text": " a ", "factscore_prompt": "b"}, "a"),
        ("factual", {"factscore_prompt": "b", "hundredw_prompt": "c"}, "b"),
        ("factual", {"hundredw_prompt": "c", "around_100": "d"}, "c"),
        ("factual", {"around_100": "d", "one_fact_prompt": "e"}, "d"),
        ("factual", {"factscore_prompt": "", "one_fact_prompt": "e\n"}, "e"),
    ],
)
def test_text_cascades(label: str, row: dict[str, Any], text: str) -> None:
    assert one(label, row).prompt.text == text


@pytest.mark.parametrize("label", list(CAPS))
def test_the_text_has_the_prefix_line_before_excerpts_only(label: str) -> None:
    row = {"prompt_text": "a"}
    excerpt = label in ("val", "test", "attack_train")
    assert one(label, row, "text").prompt.text == (HEADER if excerpt else "") + "a"


@pytest.mark.parametrize(
    ("label", "row", "name"),
    [
        ("val", {"prompt_id": "p", "source_excerpt_id": "x"}, "p"),
        ("val", {"prompt_id": 7, "source_excerpt_id": "x"}, "7"),
        ("val", {"prompt_id": "", "source_excerpt_id": "x"}, "x"),
        ("val", {"prompt_id": 0}, "val_00000"),
        ("creative", {"metadata": {"submission_id": "s"}}, "s"),
        ("creative", {}, "creative_00000"),
        ("factual", {"prompt_id": "p", "entity": "E"}, "p"),
        ("factual", {"entity": "E"}, "fact_00000_E"),
        ("factual", {}, "fact_00000_entity_00000"),
    ],
)
def test_id_cascades(label: str, row: dict[str, Any], name: str) -> None:
    assert one(label, row | {"prompt_text": "t"}).prompt.id == name


@pytest.mark.parametrize(
    ("label", "row", "reference", "novel"),
    [
        ("val", {"reference": "a", "reference_text": "b"}, "a", None),
        ("val", {"reference_text": "b", "source_novel": "n"}, "b", "n"),
        ("neutral", {"reference_text": "", "novel_source": "m", "source_novel": "n"}, "", "m"),
        ("creative", {"reference": "a", "novel_source": "m"}, "a", "m"),
        ("factual", {"expected_answer": "a", "wikipedia_text": "b", "entity": "E"}, "a", "E"),
        ("factual", {"wikipedia_text": "b", "source_novel": "n", "entity": "E"}, "b", "n"),
        ("factual", {"reference": "unused"}, "", "entity_00000"),
    ],
)
def test_reference_and_source_cascades(
    label: str, row: dict[str, Any], reference: str, novel: str | None
) -> None:
    item = one(label, row | {"prompt_text": "t"})
    assert (item.prompt.reference, item.source.novel_source) == (reference, novel)
    assert item.source.record == row | {"prompt_text": "t"}


def test_a_records_own_split_and_domain_win() -> None:
    moved = {"prompt_id": "m", "prompt_text": "t", "split": "test", "domain": "law"}
    rows = {"val": [{"prompt_text": "v"}, moved], "test": [{"prompt_text": "u"}]}
    workload = of(rows, {"val": 1, "test": 2})
    assert ids(workload, "test") == ["m", "test_00000"]
    source = workload.sources["m"]
    assert (source.split, source.domain) == ("test", "law")


def test_quartiles_of_debt() -> None:
    # 16 records, debts 0..15 against the order of their ids; the cuts are 4, 8 and 12.
    rows = [
        {"prompt_id": f"a{i:02d}", "prompt_text": "t", "debt_init_estimated": float(15 - i)}
        for i in range(16)
    ]
    chosen = ids(of({"attack_train": rows}, {"attack_train": 8}), "attack_train")
    # Quartiles hold debts 0..4, 5..8, 9..12 and 13..15; two of each, the first by id.
    assert chosen == ["a11", "a12", "a07", "a08", "a03", "a04", "a00", "a01"]
    few = rows[:7] + [{"prompt_id": f"z{i}", "prompt_text": "t"} for i in range(9)]
    assert ids(of({"attack_train": few}, {"attack_train": 8}), "attack_train") == [
        *(f"a{i:02d}" for i in range(7)),
        "z0",
    ]


def test_a_quartile_that_is_short_is_filled_up_by_id() -> None:
    rows = [
        {"prompt_id": f"a{i}", "prompt_text": "t", "debt_init_estimated": 1.0} for i in range(6)
    ]
    assert ids(of({"attack_train": rows}, {"attack_train": 5}), "attack_train") == [
        f"a{i}" for i in range(5)
    ]


def test_shares_of_every_source() -> None:
    rows = [
        {"prompt_id": f"{name}{i}", "entity": name, "prompt_text": "t"}
        for name, n in (("c", 1), ("a", 4), ("b", 4))
        for i in range(n)
    ]
    # Shares of 3, 3 and 2; c has one only, so the next of a fills up.
    assert ids(of({"factual": rows}, {"factual": 8}), "factual") == [
        "a0", "a1", "a2", "b0", "b1", "b2", "c0", "a3",
    ]  # fmt: skip


def test_uncleaned_and_unliked_stories_are_left_out() -> None:
    rows: list[dict[str, Any]] = [
        {"prompt_id": "a", "prompt_text": "t", "score": 9},
        {"prompt_id": "b", "prompt_text": "t", "cleaning_passed": False},
        {"prompt_id": "c", "prompt_text": "t", "metadata": {"score": "10"}},
        {"prompt_id": "d", "prompt_text": "t", "score": 0},
        {"prompt_id": "e", "prompt_text": "t", "cleaning_passed": None},
    ]
    assert ids(of({"creative": rows}, {"creative": 3}), "creative") == ["c", "d", "e"]
    with pytest.raises(InputError, match=r"creative 3 of 4 \(creative.jsonl\).* --cap creative=3"):
        of({"creative": rows}, {"creative": 4})


@given(st.permutations(range(12)), st.integers(1, 12))
def test_the_order_of_a_file_does_not_matter(order: list[int], cap: int) -> None:
    rows = [{"prompt_id": f"n{i:02d}", "prompt_text": "t"} for i in order]
    assert ids(of({"neutral": rows}, {"neutral": cap}), "neutral") == [
        f"n{i:02d}" for i in range(cap)
    ]


def _drop(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def _bytes(name: str, content: bytes) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        (directory / name).write_bytes(content)

    return change


def _row(name: str, **fields: Any) -> Callable[[Path], None]:
    return _bytes(name, json.dumps({"prompt_id": "p", "prompt_text": "t"} | fields).encode())


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (_drop("neutral.jsonl"), r"neutral\.jsonl: No such file.*creative\.jsonl"),
        (_bytes("neutral.jsonl", b'{"prompt": 1'), r"neutral\.jsonl:1: not JSON .*column"),
        (_bytes("neutral.jsonl", b'\n\n["t"]'), r"neutral\.jsonl:3: a JSON object is needed"),
        (_bytes("neutral.jsonl", b'{"a":1}\n{"prompt":"\xff"}'), r"jsonl:2: not UTF-8.*iconv"),
        (_bytes("neutral.jsonl", b'{"prompt":"t","x":NaN}'), r"jsonl:1: NaN in a record.*finite"),
        (_bytes("neutral.jsonl", b'{"x":[-Infinity]}'), r"jsonl:1: -Infinity in a record"),
        (_bytes("neutral.jsonl", b'{"x":-1e999}'), r"jsonl:1: -1e999 in a record.*finite"),
        (_bytes("neutral.jsonl", b'{"x":' + b"9" * 5000 + b"}"), r"jsonl:1: .*must be finite"),
        (_bytes("neutral.jsonl", b'{"x":' + b"[" * 9999), r"jsonl:1: .* nested too deeply; mend"),
        (_bytes("neutral.jsonl", b'{"prompt_id":"p"}'), r"jsonl:1: no prompt: 'prefix', 'raw_"),
        (_row("neutral.jsonl", prompt_text=" \n"), r"neutral\.jsonl:1: no prompt"),
        (_row("neutral.jsonl", prompt_text=["t"]), r"jsonl:1: prompt 'prompt_text' must be a st"),
        (_row("neutral.jsonl", reference=7), r"jsonl:1: reference 'reference' must be a string"),
        (_row("neutral.jsonl", prompt_text="\ud800"), r"jsonl:1: .* half of a surrogate pair"),
        (_row("creative.jsonl", score="many"), r"creative\.jsonl:1: 'score' must be a finite"),
        (_row("copybench_attack_train.jsonl", debt_init_estimated=True), r"jsonl:1: 'debt_init"),
        (_row("neutral.jsonl", prompt_id="val.00"), r"jsonl:1: prompt id 'val\.00' occurs twice"),
        (_bytes("neutral.jsonl", b""), r"neutral 0 of 1 .*--classes val,test,attack_train,f"),
    ],
)
def test_bad_input_is_named_with_file_line_and_remedy(
    tmp_path: Path, break_it: Callable[[Path], None], said: str
) -> None:
    directory = write(tmp_path / "data", small())
    assert len(read_paper(directory, cap=ONE).items) == 6
    break_it(directory)
    with pytest.raises(InputError, match=f"(?s){said}"):
        read_paper(directory, cap=ONE)


def test_an_id_twice_in_a_file_is_found_behind_the_cap(tmp_path: Path) -> None:
    rows = small(4)
    rows["val"][3]["prompt_id"] = "val.02"
    directory = write(tmp_path, rows)
    with pytest.raises(InputError, match=r"val\.jsonl:7: .*'val\.02' occurs twice \(first: .*:5\)"):
        read_paper(directory, cap=ONE)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    directory = write(tmp_path, small())
    path = directory / FILES["val"]
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert "val.00" in ids(read_paper(directory, cap=ONE), "val")


@pytest.mark.parametrize(("classes", "cap"), [(["vall"], {}), ([], {"vall": 1})])
def test_an_unknown_class_is_answered_with_the_nearest(
    tmp_path: Path, classes: list[str], cap: dict[str, int]
) -> None:
    with pytest.raises(InputError, match=r"no class 'vall'; did you mean 'val'\?"):
        read_paper(write(tmp_path, small()), classes, cap or ONE)


def test_every_class_that_is_short_is_named_at_once_and_the_remedy_works(tmp_path: Path) -> None:
    """The option of the message, pasted, gives a workload; so does the one for empty files."""
    rows = small(5)
    directory = write(tmp_path, rows)
    for empty in ((), ("creative", "val")):
        for label in empty:
            (directory / FILES[label]).write_text("\n")
        with pytest.raises(InputError) as refused:
            read_paper(directory, cap={"neutral": 2})
        said = str(refused.value)
        short = [label for label in CAPS if label != "neutral"]
        assert all(f"{label} {0 if label in empty else 5} of " in said for label in short)
        words = said.split(": ")[-1].split()
        pasted = typed(f"nafaudit run --protocol paper --data {directory} {' '.join(words)}")
        assert isinstance(pasted, RunSettings)
        found = Counter(p.label for p in PAPER.workload(pasted).prompts)
        assert found == {c: 2 if c == "neutral" else 5 for c in CAPS if c not in empty}


def test_a_class_that_is_short_names_every_file_of_its_prompts(tmp_path: Path) -> None:
    """A record's own split may put it into another class than its file's."""
    for name in FILES.values():
        (tmp_path / name).write_text("")
    rows = [{"prompt_id": "v0", "prefix": "A text"}]
    (tmp_path / "copybench_val.jsonl").write_text(json.dumps(rows[0]) + "\n")
    moved = {"prompt_id": "t0", "prefix": "Another text", "split": "val"}
    (tmp_path / "copybench_test.jsonl").write_text(json.dumps(moved) + "\n")
    with pytest.raises(InputError, match=r"val 2 of 150 \(copybench_val.jsonl, copybench_test"):
        read_paper(tmp_path)


def test_records_without_a_prompt_are_named_all_at_once(tmp_path: Path) -> None:
    for name in FILES.values():
        (tmp_path / name).write_text('{"prompt_id": "a"}\n\n{"prompt_id": "b"}\n')
    with pytest.raises(InputError, match=r"^12 records have no prompt: ") as error:
        read_paper(tmp_path)
    said = str(error.value)
    assert all(f"{name}, lines 1, 3 (" in said for name in FILES.values())
    assert "'factscore_prompt'" in said and "'metadata.title'" in said
