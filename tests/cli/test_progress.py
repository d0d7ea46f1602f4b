from __future__ import annotations

import io
from dataclasses import replace

import pytest

from nafaudit.cli.progress import ProgressLine, describe
from nafaudit.core.progress import Progress
from nafaudit.core.text import duration

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
