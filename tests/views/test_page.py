from __future__ import annotations

import base64
import hashlib
import json
import math
import random
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from nafaudit.core.errors import InputError
from nafaudit.core.text import detokenize, script_json, visible
from nafaudit.core.trajectory import Key
from nafaudit.measures.audit import AuditResult, prompt_rows
from nafaudit.measures.compare import compare
from nafaudit.store.artifacts import write_verification
from nafaudit.store.importers import ImportOptions, import_logs
from nafaudit.store.run import Run, RunWriter
from nafaudit.views.compare import compare_document
from nafaudit.views.document import Column, Table
from nafaudit.views.markdown import escaped_line, markdown, table_lines
from nafaudit.views.page import render, report_json, write_report
from nafaudit.views.payload import choose
from nafaudit.views.records import record_json, record_name, token_texts, typed_record
from nafaudit.workload import Prompt
from tests.handmade import BUDGETS, MECHANISM, REFERENCE, WORDS, executions, make_run, plain_run
from tests.records import trajectory

FILES = ("index.html", "report.md", "report.json")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return plain_run(tmp_path_factory.mktemp("plain") / "r")


def contents(run: Run) -> dict[str, bytes]:
    return {name: (run.path / "report" / name).read_bytes() for name in FILES}


def data_of(page: str) -> dict[str, object]:
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert block is not None
    data: dict[str, object] = json.loads(block[1], parse_constant=pytest.fail)
    return data


def test_the_report_is_a_pure_function_of_the_run(run: Run, tmp_path: Path) -> None:
    _, files = write_report(run)
    assert [path.name for path in files] == list(FILES)
    first = contents(run)
    shutil.copytree(run.path, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("report"))
    moved = Run(tmp_path / "elsewhere")
    write_report(moved)
    assert contents(moved) == first
    write_report(moved)
    assert contents(moved) == first
    for content in first.values():
        assert str(run.path).encode() not in content


def test_every_number_of_the_page_is_where_it_says(run: Run) -> None:
    report = AuditResult.of(run)
    data = json.loads(json.dumps(report_json(report)))
    page = render(report, data)
    paths = set(re.findall(r'data-path="([^"]+)"', page))
    assert len(paths) > 40
    for path in paths:
        value = data
        for name, index in re.findall(r"(\w+)|\[(\d+)\]", path):
            value = value[int(index)] if index else value[name]


def test_prompt_numbers_in_the_script_are_those_of_the_json(run: Run) -> None:
    report = AuditResult.of(run)
    data = report_json(report)
    rows = data_of(render(report, data))["rows"]
    assert isinstance(rows, list)
    assert len(rows) == len(data["prompts"]) == 48
    for row, whole in zip(rows, data["prompts"], strict=True):
        for name in ("count", "violations", "spend", "debt"):
            assert row[name] == pytest.approx(whole[name], abs=1e-7)
        assert row["rec"] == whole["worst"]["record"]


def test_the_policy_names_exactly_the_inline_script_and_style(run: Run) -> None:
    page = render(report := AuditResult.of(run), report_json(report))
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert "unsafe" not in policy[1]
    assert policy[1].startswith("default-src &#39;none&#39;")
    for element in ("script", "style"):
        body = re.search(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
        assert body is not None
        digest = base64.b64encode(hashlib.sha256(body[1].encode()).digest()).decode()
        assert f"{element}-src &#39;sha256-{digest}&#39;" in policy[1]
    assert not re.search(r"\son\w+=|\sstyle=|src=|javascript:|https?://(?!www\.w3\.org)", page)


def test_redacted_files_hold_no_text(run: Run) -> None:
    report = AuditResult.of(run)
    shown, hidden = (render(report, report_json(report), redact=redact) for redact in (False, True))
    for text in ("Once upon a time", "the stopped once", "caf\u00e9"):
        assert text in shown
        assert text not in hidden
    data = data_of(hidden)
    assert data["pieces"] == []
    assert all("tok" not in record for record in data["view"])  # type: ignore[attr-defined]
    assert "all text is hidden" in hidden


def test_a_violation_is_on_top_of_everything(tmp_path: Path) -> None:
    prompts = [Prompt(f"p{i}", "x") for i in range(30)]
    records = [one for p in prompts for one in executions(p.id, 0, 20, len(WORDS))]
    key = Key("p7", MECHANISM, 0.5, 0)
    charge = [0.2] * 10 + [9.0] + [0.0] * 9
    broken = trajectory(key, charge, token=[0] * 20, theta=[0.5] * 20)
    run = make_run(tmp_path / "r", prompts, [broken if r.key == key else r for r in records])
    report, files = write_report(run)
    page = files[0].read_text()
    assert "The promise was broken at k = 0.5." in page
    assert prompt_rows(report)[0].prompt == "p7"
    assert prompt_rows(report)[0].violations == 1
    data = data_of(page)
    view = data["view"]
    assert isinstance(view, list)
    first = view[data["first"]]  # type: ignore[call-overload]
    names = data["prompts"]
    assert isinstance(names, list)
    assert names[first["p"]]["id"] == "p7"
    assert re.search(rf'<a href="#t{data["first"]}\.10">See it happen', page)
    assert "| p7 | prompt | k = 0.5 | 1 | 1 |" in files[1].read_text()


def test_where_there_is_no_room_the_worst_and_a_sample_are_chosen(run: Run) -> None:
    report = AuditResult.of(run)
    assert len(choose(report, 10**9)) == len(report.rows) == 96
    chosen = choose(report, 30_000)
    assert 4 <= len(chosen) < 60
    # A choice brings its siblings under every other budget along.
    units = {(one.key.prompt, one.key.trajectory) for one in chosen}
    assert len(chosen) == 4 * len(units)
    # Something is shown however little room there is: what the first finding points at.
    pointed = [f.witness.key for arm in report.arms for f in arm.findings if f.witness]
    assert {one.key.prompt for one in choose(report, 0)} == {pointed[0].prompt}


def test_a_page_that_would_be_too_large_shows_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = plain_run(tmp_path / "r")
    monkeypatch.setattr("nafaudit.views.page.LARGEST", 140_000)
    report = AuditResult.of(run)
    page = render(report, report_json(report))
    assert len(page.encode()) < 140_000
    shown = data_of(page)["view"]
    assert isinstance(shown, list)
    assert 0 < len(shown) < 96
    assert f"{len(shown)} of 96 trajectories are shown in full" in page


def test_a_record_is_printed_as_it_is_on_disk(run: Run) -> None:
    (place, wanted), *_ = run.located()
    record = record_json(run, f"{place.part}:{place.row}")
    assert record["prompt"] == wanted.key.prompt
    assert record["steps"]["charge"] == wanted.steps.charge.tolist()
    for wrong in ("000001.parquet:99999", "nowhere:0", "000001.parquet", "000001.parquet:-1"):
        with pytest.raises(InputError, match=r"give PROMPT@K#TRAJECTORY .*, or PART:ROW"):
            record_json(run, wrong)


def test_every_record_has_a_name_that_finds_it(run: Run) -> None:
    report = AuditResult.of(run)
    for one in report.rows[::7]:
        record = record_json(run, record_name(report, one))
        told = record["prompt"], record["mechanism"], float(record["k"]), record["trajectory"]
        assert told == one.key
    first = Key("p000", MECHANISM, 3.0, 1)
    assert first.name() == "p000@3#1"
    for same in ("p000@3#1", "p000@3.00#1", f"p000@{MECHANISM}@3#01"):
        assert record_json(run, same)["trajectory"] == 1
    for wrong, said in (
        ("p000@3#9", r"Of 'p000' there are K = 0, 0.5, 3, inf and trajectories up to 1\."),
        ("p00@3#1", "There is no prompt 'p00'; the first ids are 'p000', 'p001'"),
        ("p000@three#1", "There are: 000001.parquet"),
        ("p000#1", "give PROMPT@K#TRAJECTORY"),
    ):
        with pytest.raises(InputError, match=said):
            record_json(run, wrong)


def test_odd_ids_and_several_mechanisms_have_names_too(tmp_path: Path) -> None:
    ids = ["a b", "it's", "x@0.5#0", "x", "@#", "y@m", "\u202ebidi", "l" * 200]
    records = [
        trajectory(Key(name, mechanism, k, 0), [0.1 * i], token=[1])
        for i, name in enumerate(ids)
        for mechanism in ("m", "other@1f")
        for k in (0.5, 1e-7, math.inf)
    ]
    run = make_run(tmp_path / "r", [Prompt(name, "x") for name in ids], records)
    report = AuditResult.of(run)
    for one in report.rows:
        found = record_json(run, record_name(report, one))
        assert (found["prompt"], found["mechanism"]) == (one.key.prompt, one.key.mechanism)
        (typed,) = shlex.split(typed_record(report, one))
        assert record_json(run, typed) == found
        assert typed.isprintable() and len(typed) <= 120
    with pytest.raises(InputError, match=r"names 2 records .*: a b@m@0.5#0 \(000001.parquet:7\);"):
        record_json(run, "a b@0.5#0")


def test_only_made_tells_how_records_were_written(tmp_path: Path) -> None:
    """Order of records and size of parts; numbers whose sum depends on the order of adding."""
    prompts = [Prompt(f"p{i}", "x", "cd"[i % 2], REFERENCE) for i in range(24)]
    charges = [0.1, 0.7, 1e-9, 0.3, 1 / 3]
    records = [
        trajectory(
            Key(prompt.id, MECHANISM, k, n),
            [charge * (1 + i / 7 + n) for charge in charges],
            debt=0.01 * i,
            token=[i % 5, 1, 2, 3, 4],
            theta=[0.5] * 5,
            safe=[-1.7 * charge - i for charge in charges],
        )
        for i, prompt in enumerate(prompts)
        for k in BUDGETS
        for n in range(2)
    ]
    draw, told = random.Random(7), []
    for number, part in enumerate((256, 7, 1)):
        run = make_run(tmp_path / str(number), prompts, records, part=part)
        data = report_json(AuditResult.of(run))
        made = data.pop("made")
        assert len(made["parts"]) == math.ceil(len(records) / part)
        told.append(json.dumps(data, sort_keys=True))
        draw.shuffle(records)
        draw.shuffle(prompts)
    assert told[0] == told[1] == told[2]
    assert "parquet" not in told[0]


def test_a_log_of_totals_has_a_report(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    lines = ["prompt_id,spend,k,length"] + [f"q{i},{i / 10},1,50" for i in range(30)]
    log.write_text("\n".join(lines))
    imported = import_logs([log], tmp_path / "run", ImportOptions(max_new_tokens=50))
    _, files = write_report(imported)
    page = files[0].read_text()
    assert data_of(page)["view"] == []
    assert "Audit of a log" in page


@given(st.text(max_size=80))
def test_nothing_ends_a_script_element(text: str) -> None:
    shown = script_json({"x": visible(text)})
    assert not set("<>&\u2028\u2029") & set(shown)
    assert json.loads(shown)["x"] == visible(text)
    visible(text).encode()


@given(st.lists(st.integers(-2, 6), max_size=20))
def test_token_texts_join_to_what_the_output_says(tokens: list[int]) -> None:
    pieces = [b"a ", "é".encode()[:1], "é".encode()[1:], None, "\U0001f600".encode()[:2], b"<b>"]
    texts = "".join(text for text, special in token_texts(tokens, pieces) if not special)
    whole = detokenize(tokens, pieces)
    # A character cut off at the very end is one replacement mark that no token completes.
    assert whole in (texts, texts + "\ufffd")


MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
ADDRESS = re.compile(r"(https?|ftp)://|www\.|(?<!\\)@[\w-]+\.", re.IGNORECASE)
HOSTILE = (
    "<img src=http://x.example/a.png onerror=alert(1)>", "![x](http://x.example/a.png)",
    "[a](javascript:alert(1))", "[a]: http://x.example", "<http://x.example>", "www.x.example",
    "http://x.example", "a@x.example", "`code`", "``", "a | b", "\\| \\", "**b** _i_ __b__ ~~s~~",
    "<!-- c -->", "<![CDATA[x]]>", "</td></table><script>x</script>", "&lt;b&gt; &#60; &copy; &",
    "line\n\n# heading\n", "# h", "> q", "- i", "+ i", "1. i", "12) i", "---", "- - -", "===",
    "C #", "a\tb\r\nc\x0b\x0cd\u2028e\x85f", "\x00\x1b[31m\u202e", "$x$", "[^1]", "[ ] t",
    "    indented",
)  # fmt: skip


def rendered(line: str) -> str:
    """The text that stands in the only block of some Markdown, which must have no inner markup."""
    inlines = [token for token in MARKDOWN.parse(line) if token.type == "inline"]
    children = [child for token in inlines for child in token.children or ()]
    assert {child.type for child in children} <= {"text"}, line
    return "".join(child.content for child in children)


def shows(text: str, most: set[str], before: str = "", after: str = "") -> None:
    expected = " ".join(visible(text).split())
    line = before + escaped_line(text) + after
    kinds = {token.type.rpartition("_")[0] or token.type for token in MARKDOWN.parse(line)}
    assert kinds <= most | {"inline"}, line
    assert rendered(line) == before.lstrip("#- ") + expected + after


@given(st.text(max_size=60) | st.lists(st.sampled_from(HOSTILE)).map(" ".join))
def test_markdown_shows_the_text_and_makes_nothing_of_it(text: str) -> None:
    shown = escaped_line(text)
    assert not ADDRESS.search(shown)
    assert not re.search("<[a-z/!?]", shown, re.IGNORECASE)
    shows(text, {"paragraph"})
    shows(text, {"paragraph", "bullet_list", "list_item"}, "- ", ", next")
    shows(text, {"heading"}, "## ")
    if text.strip():
        cells = "\n".join(table_lines(Table((Column("a"), Column("b")), ((text, "x"),))))
        found = [token.content for token in MARKDOWN.parse(cells) if token.type == "td_open"]
        assert len(found) == 2
        assert rendered(cells) == "ab" + " ".join(visible(text).split()) + "x"


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_in_markdown(text: str) -> None:
    test_markdown_shows_the_text_and_makes_nothing_of_it.hypothesis.inner_test(text)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text",
    ["anchored", "R_eff <= 3", "p_served", "renyi:2", "box.py:Low@b99b7dbae2f5", "-0.5", "+0.37",
     "13.04", "A -> B", "Q&A", "k = 0.25, K = 50 (#3)"],
)  # fmt: skip
def test_ordinary_names_stay_as_they_are_in_markdown(text: str) -> None:
    assert escaped_line(text) == text


def test_a_log_with_hostile_names_makes_no_markup(tmp_path: Path) -> None:
    # A name that leads out of a directory, or cannot be printed, is refused.
    names = [name for name in HOSTILE if name.isprintable() and not name.startswith("\\")]
    rows = [
        {"prompt_id": f"x{name} {i}", "mechanism": name, "class": name, "spend": 40.0, "k": 1,
         "length": 50}
        for name in names
        for i in range(2)
    ]  # fmt: skip
    log = tmp_path / "log.jsonl"
    runs = []
    for kept in (rows, rows[-2:]):
        log.write_text("".join(json.dumps(row) + "\n" for row in kept))
        place = tmp_path / f"run{len(kept)}"
        runs.append(import_logs([log], place, ImportOptions(max_new_tokens=50)))
    _, files = write_report(runs[0])
    found = markdown(compare_document(compare(*runs)))
    for page in (files[1].read_text(), found):
        tokens = [child for token in MARKDOWN.parse(page) for child in token.children or ()]
        assert not {"image", "link_open", "html_inline", "em_open"} & {one.type for one in tokens}
        assert not [token for token in MARKDOWN.parse(page) if token.type == "html_block"]
        assert not ADDRESS.search(page)
        text = "".join(one.content for one in tokens)
        assert "<img src=http://x.example" in text and "![x](http://x.example/a.png)" in text


def test_class_numbers_are_where_they_say(run: Run) -> None:
    report = AuditResult.of(run)
    data = json.loads(json.dumps(report_json(report)))
    page = data_of(render(report, data))
    rows, columns = page["classes"], page["classColumns"]
    assert isinstance(rows, list)
    assert isinstance(columns, list)
    assert len(rows) == 8
    assert [row["label"] for row in rows] == ["fact"] * 4 + ["story"] * 4
    for row in rows:
        for _, path, *_ in columns:
            if row[path] is None or row[path] == "inf":
                continue
            value = data["classes"][int(row["path"][len("classes[") : -1])]
            for name in path.split("."):
                value = value[name]
            assert row[path] == pytest.approx(value, abs=1e-5), (row, path)


def replay(verdict: str) -> dict[str, object]:
    finding = {
        "mechanism": None, "k": None, "check": "replay: charge", "verdict": verdict, "value": 1.0,
        "numbers": {}, "text": "charge of each step: off by 1 nat",
        "witness": {"prompt": "p003", "k": 3.0, "trajectory": 1, "step": 4},
    }  # fmt: skip
    deviation = {"charge": {"max": 1.0, "warn": 4e-5, "fail": 2e-4}}
    return {"run": "/tmp/somewhere", "design": "x", "recorded": 96, "replayed": 96, "tokens": 3840,
            "seconds": 1.5, "deviation": deviation, "notes": [], "findings": [finding]}  # fmt: skip


def test_a_replay_is_shown_and_a_refuted_log_is_never_called_kept(tmp_path: Path) -> None:
    run = plain_run(tmp_path / "r")
    page = write_report(run)[1][0]
    assert "numbers as logged, not replayed" in page.read_text()
    write_verification(run, replay("FINE"))
    files = write_report(run)[1]
    said = "96 of 96 trajectories replayed from the models: what was claimed is true"
    assert said in page.read_text()
    assert "refutes" not in page.read_text()
    assert b"/tmp/somewhere" not in b"".join(path.read_bytes() for path in files)
    write_verification(run, replay("FAILED"))
    files = write_report(run)[1]
    shown = page.read_text()
    assert "A replay from the models refutes the record" in shown
    assert "It is not what was promised" in shown
    assert "Yes, in every trajectory" not in shown
    assert "First at prompt p003, trajectory 1, step 4." in shown
    assert "REFUTED" in files[1].read_text()
    told = json.loads(files[2].read_text())
    assert told["verification"] == {
        "recorded": 96, "replayed": 96, "tokens": 3840, "current": True, "outdated": "",
        "refuted": True,
    }  # fmt: skip
    assert told["made"]["verification"]["deviation"]["charge"]["max"] == 1.0
    assert 'data-path="made.verification.deviation.charge.max"' in shown
    RunWriter(run).append(executions("p000", 7, 5, len(WORDS))[:1])
    write_report(run)
    assert "before more was recorded" in page.read_text()


def test_absurd_numbers_make_a_page_all_the_same(tmp_path: Path) -> None:
    odd = [math.nan, math.inf, -math.inf, 1e300, -5.0, 0.0, 1e-300]
    prompts = [Prompt(f"p{i}", "x", "c", REFERENCE) for i in range(7)]
    records = [
        trajectory(
            Key(prompt.id, MECHANISM, k, 0),
            odd[i:] + odd[:i],
            debt=odd[i],
            allowance=odd,
            theta=[min(odd[i], 3e38), 0.0, 1.0, 0.5, math.nan, 0.1, 0.2],
            served=[-1.0, odd[i] if abs(odd[i]) < 1e30 else -math.inf, *[-2.0] * 5],
            token=[3, -1, 99, 0, 1, 2, 5],
        )
        for i, prompt in enumerate(prompts)
        for k in (0.0, 0.5, math.inf)
    ]
    _, files = write_report(make_run(tmp_path / "r", prompts, records))
    assert len(data_of(files[0].read_text())["view"]) == 21  # type: ignore[arg-type]
    json.loads(files[2].read_text(), parse_constant=pytest.fail)


def test_what_nothing_is_claimed_of_is_said_once(tmp_path: Path) -> None:
    run = plain_run(tmp_path / "r")
    data: dict[str, Any] = dict(replay("FINE"))
    names = ("debt", "charge", "theta")
    data["findings"] = [
        data["findings"][0]
        | {"check": f"replay: {name}", "verdict": "UNKNOWN", "witness": None, "k": None,
           "text": f"{name} of each step: nothing is claimed of it"}
        for name in names
    ]  # fmt: skip
    write_verification(run, data)
    shown = write_report(run)[1][0].read_text()
    assert "Nothing is claimed of: debt, charge, theta." in shown
    assert "nothing is claimed of it" not in shown
