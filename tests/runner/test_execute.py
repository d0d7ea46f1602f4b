"""What is asked for and not yet recorded."""

from __future__ import annotations

from dataclasses import replace

from nafaudit.core.design import Decoding, Extent, Identity
from nafaudit.core.draws import row_stream
from nafaudit.core.trajectory import Key
from nafaudit.runner.execute import requests_left
from nafaudit.workload import Prompt, TokenizedPrompt

IDENTITY = Identity(
    pair={}, mechanism="m", ledger="banking", decoding=Decoding(), workload="", width=8, seed=3
)
PROMPTS = {name: TokenizedPrompt(Prompt(name, name), (1, i)) for i, name in enumerate("abc")}


def test_every_row_of_an_extent_is_asked_for_once_with_its_own_draws() -> None:
    first, second = requests_left(IDENTITY, Extent((0.5, 2.0), 2, ("b", "a")), PROMPTS, set())
    assert (first.prompt, first.tokens) == ("b", (1, 1)) and second.prompt == "a"
    assert [(row.k, row.trajectory) for row in first.rows] == [(0.5, 0), (2.0, 0), (0.5, 1), (2, 1)]
    # Budgets share their draws; prompts and executions do not.
    streams = [row.stream for row in (*first.rows, *second.rows)]
    assert streams[0] == streams[1] == row_stream("sound", 3, "audit", "b", 0)
    assert len(set(streams)) == 4


def test_what_is_recorded_is_not_asked_for_again() -> None:
    extent = Extent((0.5, 2.0), 2, ("a", "b"))
    recorded = {Key("a", "m", 0.5, 0), Key("b", "another mechanism", 0.5, 0)}
    a, b = requests_left(IDENTITY, extent, PROMPTS, recorded)
    assert [(row.k, row.trajectory) for row in a.rows] == [(2.0, 0), (0.5, 1), (2.0, 1)]
    assert len(b.rows) == 4
    whole = {Key(name, "m", k, i) for name in "ab" for k in (0.5, 2.0) for i in range(2)}
    assert [request.rows for request in requests_left(IDENTITY, extent, PROMPTS, whole)] == [(), ()]


def test_an_extent_may_ask_for_some_executions_only() -> None:
    extent = Extent((2.0,), 9, ("c",), numbers=(7, 4, 7))
    (request,) = requests_left(replace(IDENTITY, purpose="search"), extent, PROMPTS, set())
    assert [row.trajectory for row in request.rows] == [4, 7]
    assert request.rows[0].stream == row_stream("sound", 3, "search", "c", 4)
