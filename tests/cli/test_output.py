from __future__ import annotations

import io
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from nafaudit.answers import Audit
from nafaudit.cli.output import broken, note, show
from nafaudit.core.design import Decoding, Design, Extent, Identity, ProtocolName
from nafaudit.core.progress import Progress
from nafaudit.core.text import duration
from nafaudit.core.trajectory import Key, Logged, Trajectory
from nafaudit.store.run import Run, open_for_writing
from nafaudit.views.progress import ProgressLine, describe
from nafaudit.workload import Prompt, TokenizedPrompt, workload_hash
from tests.commands import NAFAUDIT
from tests.records import trajectory

RUNS = Path(__file__).parents[1] / "runs" / "89722fc"

HALF_WAY = Progress(
    "", done=10, total=20, resumed=4, under_way=2.0, tokens=900, seconds=8.0, worst=0.983
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_says_what_is_done_how_fast_and_how_long_still() -> None:
    # 6 of this session and the worth of 2 more took 8 s; the worth of 8 is left.
    assert describe(HALF_WAY) == (
        "10/20 trajectories, 112 tokens/s, 8 s left, worst utilisation 98.3%"
    )
    start = replace(HALF_WAY, done=4, under_way=0.0, tokens=0, worst=float("-inf"))
    assert describe(start) == "4/20 trajectories"
    # Before the first trajectory ends there is a time left already.
    assert "left" in describe(replace(start, under_way=0.5, tokens=50))
    longest = replace(HALF_WAY, done=123456, total=999999, seconds=1e6, tokens=10**9)
    assert len(describe(longest)) <= 79


def test_elsewhere_than_on_a_terminal_a_plain_line_comes_every_few_seconds() -> None:
    stream = io.StringIO()
    line = ProgressLine(quiet=False, stream=stream)
    for seconds in (0.0, 1.0, 4.9, 5.0, 9.0, 10.5):
        line.update(replace(HALF_WAY, seconds=seconds))
    line.update(replace(HALF_WAY, done=20, under_way=0.0, seconds=10.6))
    line.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4  # at 0, 5, 10.5 and the end
    assert lines[-1].startswith("20/20 trajectories")
    assert "\r" not in stream.getvalue()


def test_on_a_terminal_one_line_is_rewritten() -> None:
    stream = Terminal()
    line = ProgressLine(quiet=False, stream=stream)
    line.update(HALF_WAY)
    line.update(replace(HALF_WAY, seconds=9.0, total=12))
    line.close()
    first, second = stream.getvalue().removesuffix("\n").removeprefix("\r").split("\r")
    assert len(first) == len(second) == 79
    assert "\n" not in first + second


@pytest.mark.parametrize("width", [30, 60, 80, 120])
def test_the_line_stays_within_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    stream = Terminal()
    line = ProgressLine(quiet=False, stream=stream)
    stages = ("", "k = 3, search seed 0, generation 1 of 2, screening", "x" * 150)
    for number, stage in enumerate(stages):
        line.update(replace(HALF_WAY, stage=stage, seconds=8.0 + number))
    line.close()
    shown = stream.getvalue().removesuffix("\n").removeprefix("\r").split("\r")
    assert [len(one) for one in shown] == [width - 1] * 3
    assert shown[0].startswith("10/20 trajectories")
    if width == 60:
        assert shown[0].rstrip() == "10/20 trajectories, 112 tokens/s, 8 s left"


def test_remarks_are_broken_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "nafaudit: " + "word " * 30 + "\n  indented " + "word " * 30
    note(text)
    assert capsys.readouterr().err == text + "\n"
    monkeypatch.setenv("COLUMNS", "60")
    shown = broken(text, Terminal())
    assert max(map(len, shown.split("\n"))) < 60 and shown.split() == text.split()


def test_quiet_is_quiet() -> None:
    stream = Terminal()
    line = ProgressLine(quiet=True, stream=stream)
    line.update(HALF_WAY)
    line.close()
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (7325, "2 h 2 min"), (200_000, "2 d")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("place", ["[red]run", "x[", "y[b]z [link=w]", "bell\x07"])
def test_a_hostile_name_is_no_markup_and_no_control(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("[/b]evil\x1b[31m:smile:", "m\u202e2")
    records = [
        trajectory(Key("[red]p", name, 1.0, i), [0.5] * 60, token=[i, *range(59)])
        for name in names
        for i in range(20)
    ]
    run = run_of(tmp_path / place, records, "imported")
    assert show(Audit(run, source=f"[/y]{place}"), as_json=False) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert not set(text) & {"\x1b", "\x07", "\u202e"}
    assert "[/b]evil\u27e8001B\u27e9[31m" in text and "m\u27e8202E\u27e92 k = 1" in text
    assert f"[/y]{place[:4]}" in text.replace("\n", "")


def run_of(path: Path, records: list[Trajectory], protocol: ProtocolName = "sound") -> Run:
    prompts = [TokenizedPrompt(Prompt("[red]p", "text"), (0, 5))]
    identity = Identity(
        {"safe": "a"},
        "m",
        "banking",
        Decoding(max_new_tokens=60),
        workload_hash(prompts),
        256,
        0,
        protocol=protocol,
    )
    design = Design(identity, Extent((1.0,), len(records), ("[red]p",)))
    with open_for_writing(path, design, prompts, {"tokens": ["a"], "stops": [99]}) as writer:
        writer.append(records)
    return Run(path)


def test_a_copy_gets_its_line_and_the_exit_status_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [
        trajectory(Key("[red]p", "m", 1.0, i), [0.5] * 60, token=[i, *range(59)]) for i in range(20)
    ]
    copy = trajectory(Key("[red]p", "m", 1.0, 20), [0.5] * 60, token=[3, *range(59)])
    run = run_of(tmp_path, [*records, copy])
    assert show(Audit(run), as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(line.strip() for line in lines)
    assert "k = 1: duplicates SUSPECT: 1 outputs repeat another of their prompt (210" in text
    assert "(prompt '[red]p', trajectory 20, step 0)" in text
    assert "WITHIN" in text
    assert text.count("SUSPECT") == 1


def test_a_log_of_totals_gets_one_line_of_what_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    totals = Logged(spend=5.0, budget=9.0)
    keys = [Key("[red]p", "m", 1.0, i) for i in range(20)]
    run = run_of(tmp_path, [trajectory(key, [], logged=totals) for key in keys])
    show(Audit(run), as_json=False)
    text = " ".join(capsys.readouterr().out.split())
    said = "UNKNOWN: regime, worth, copying, accounting, opening, tails,"
    assert text.count(said) == 1
    assert "--json says why" in text


def test_json_names_the_witness_of_what_is_suspect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = Key("[red]p", "m", 1.0, 0)
    run = run_of(tmp_path, [trajectory(key, [0.5] * 60, allowance=[9] * 60)])
    show(Audit(run), as_json=True)
    found = {f["check"]: f for f in json.loads(capsys.readouterr().out)["findings"]}
    assert found["accounting"]["verdict"] == "SUSPECT"
    assert found["accounting"]["numbers"]["allowance_broken"] == 1
    assert found["accounting"]["witness"] == key._asdict() | {"step": 59}
    assert found["utilisation"]["verdict"] == "INFO"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_the_screen_is_no_fault_of_ours(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*NAFAUDIT, "check", str(RUNS / "own"), "--json"],
            stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        )  # fmt: skip
    assert done.returncode == 2 and "cannot be printed: No space left" in done.stderr
    assert "Traceback" not in done.stderr
