"""Figures: same numbers, same bytes; nobody's settings leak in or out."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import matplotlib as mpl
import pytest

from nafaudit.views.figures.style import (
    MARKERS,
    PALETTE,
    as_bytes,
    canvas,
    save,
    style,
)


def _draw(kind: str) -> bytes:
    """A small figure with a line, bars and a legend."""
    with style():
        figure, axes = canvas(2)
        axes.plot([1, 2, 3], [1, 4, 9], label="a < b")
        axes.bar([1, 2], [2, 3], hatch="///")
        axes.legend()
        return as_bytes(figure, kind)


# Drawn once where sameness is not what is tested.
_DRAWN = cache(_draw)


@pytest.mark.parametrize("kind", ["svg", "pdf"])
def test_same_numbers_same_bytes_whatever_was_set_before(kind: str) -> None:
    first = _DRAWN(kind)
    with mpl.rc_context({"font.size": 30, "lines.linewidth": 9, "svg.hashsalt": "other"}):
        assert _draw(kind) == first
        assert mpl.rcParams["font.size"] == 30


def test_another_process_on_another_day_draws_the_same() -> None:
    program = (
        "import hashlib, tests.views.test_style as t\n"
        "print(hashlib.sha256(t._draw('svg') + t._draw('pdf')).hexdigest())"
    )
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "86400", "PYTHONHASHSEED": "7"}
    shown = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
    assert shown.stdout.strip() == hashlib.sha256(_DRAWN("svg") + _DRAWN("pdf")).hexdigest()


@pytest.mark.parametrize("kind", ["svg", "pdf"])
def test_no_date_and_no_version_in_a_file(kind: str) -> None:
    content = _DRAWN(kind)
    assert mpl.__version__.encode() not in content
    assert not re.search(rb"20\d\d-\d\d-\d\d|D:20\d\d", content)


def test_saved_as_svg_and_pdf_with_dots_kept(tmp_path: Path) -> None:
    with style():
        figure, _ = canvas()
        paths = save(figure, tmp_path / "new" / "spend_k0.5")
    assert [path.name for path in paths] == ["spend_k0.5.svg", "spend_k0.5.pdf"]
    assert all(path.stat().st_size for path in paths)


def test_every_colour_has_a_marker_of_its_own() -> None:
    assert len(PALETTE) == len(MARKERS) == len(set(PALETTE)) == len(set(MARKERS))
