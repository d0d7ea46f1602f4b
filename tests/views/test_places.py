"""A cell that says where in the JSON its value is, is right: text and JSON cannot disagree."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from nafaudit.core.text import plain
from nafaudit.measures.compare import compare
from nafaudit.selftest.conform import Conformance, ConformanceItem, Conforms
from nafaudit.store.run import Run
from nafaudit.views.compare import compare_document, comparison_json
from nafaudit.views.document import Document
from nafaudit.views.selftest import conform_document, selftest_document
from nafaudit.views.worth import frontier_document
from nafaudit.worth.matched import (
    FrontierPoint,
    FrontierResult,
    Match,
    OrdinaryText,
    PayingBudgets,
    ProtectedText,
)
from tests.runs import make
from tests.selftest.test_run import found_of
from tests.test_frozen import NEW, OLD


def frontier() -> FrontierResult:
    nan, inf = float("nan"), float("inf")
    return FrontierResult(
        "00", "0", {}, 50, OrdinaryText(2, 0.5), ProtectedText(3, 20.0), True,
        PayingBudgets(1.0, 2.0, 3.0),
        (FrontierPoint("anchored", 0.5, 0.1, 0.2, 0.9, 0.3, 4.0, 0, 0.1, 0.2),),
        (Match("renyi:2", 0.5, inf, 0.9, -1.0, nan, nan, nan, 1.0),),
    )  # fmt: skip


def conformance() -> Conformance:
    return Conformance(
        "anchored", "a:B", [ConformanceItem("budget", Conforms.NO, "it spends more")]
    )


def compared() -> tuple[Document, Any]:
    found = compare(*(Run(make.HERE / commit / "own") for commit in (OLD, NEW)))
    return compare_document(found), comparison_json(found)


CASES: dict[str, Callable[[], tuple[Document, Any]]] = {
    "compare": compared,
    "frontier": lambda: (frontier_document(frontier(), "a file", []), plain(frontier())),
    "selftest": lambda: (selftest_document(found_of()), plain(found_of())),
    "conform": lambda: (conform_document(conformance()), plain(conformance())),
}


@pytest.mark.parametrize("name", CASES)
def test_every_place_holds_the_value_that_is_shown(name: str) -> None:
    document, data = CASES[name]()
    cited = 0
    for section in document.sections:
        table = section.table
        for number, row in enumerate(table.rows if table else ()):
            assert table is not None
            for column, value in zip(table.columns, row, strict=True):
                if place := table.place(number, column):
                    assert _at(data, place) == plain(value), place
                    cited += 1
    assert cited > 2


def _at(data: Any, place: str) -> Any:
    for key, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", place):
        data = data[int(index)] if index else data[key]
    return data
