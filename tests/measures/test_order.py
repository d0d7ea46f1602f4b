"""No finding depends on the order in which trajectories were recorded."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nafaudit.core.finding import Fault
from nafaudit.core.ledger import Banking
from nafaudit.core.trajectory import Arm, Key, Logged, Trajectory
from nafaudit.measures import verdicts
from nafaudit.measures.classes import class_table
from nafaudit.measures.context import RunContext
from nafaudit.measures.records import faults
from nafaudit.measures.table import Measures
from tests.records import trajectory

NUMBER = st.sampled_from([0.0, 0.1, 0.3, 1.0, 2.5, 1e16, 1e308, math.inf, -math.inf, math.nan])
LOGP = st.sampled_from([0.0, -1e-5, -0.1, -0.7, -3.0, -math.inf, math.nan, 0.5])


@st.composite
def records(draw: st.DrawFn) -> list[Trajectory]:
    keys = draw(
        st.sets(
            st.builds(
                Key,
                st.sampled_from([f"p{i}" for i in range(25)]),
                st.just("m"),
                st.sampled_from([0.0, 0.5, 3.0, math.inf]),
                st.integers(0, 3),
            ),
            min_size=1,
            max_size=40,
        )
    )
    found = []
    for key in sorted(keys):
        n = draw(st.integers(0, 4))

        def column(values: st.SearchStrategy[float], n: int = n) -> list[float]:
            return draw(st.lists(values, min_size=n, max_size=n))

        logged = Logged(draw(NUMBER), draw(NUMBER), draw(NUMBER), np.array(column(NUMBER)))
        found.append(
            trajectory(
                key,
                column(NUMBER),
                debt=draw(NUMBER),
                allowance=column(NUMBER),
                theta=column(st.sampled_from([0.0, 0.5, 1.0, math.nan])),
                token=[draw(st.integers(-1, 2)) for _ in range(n)],
                served=column(LOGP),
                safe=column(LOGP),
                logged=draw(st.sampled_from([None, logged])),
            )
        )
    return found


def told(found: list[Trajectory], facts: RunContext) -> str:
    rows = Measures.of(found, facts)
    table = class_table(rows)
    return repr([[arm.findings for arm in verdicts.judge(rows, table)], table])


def test_the_first_fault_is_the_first_by_key() -> None:
    keys = [Key(prompt, "m", 0.5, n) for prompt in ("b", "a") for n in (1, 0)]
    noted = [Fault("raised", f"text of {key.prompt}", key) for key in keys]
    noted += [Fault("raised", "of no single output")]
    for seen in (noted, noted[::-1]):
        (finding,) = faults(RunContext(None, faults=seen), Arm("m", 0.5))
        assert finding.value == 5 and "text of a" in finding.text
        assert finding.witness is not None and finding.witness.key == Key("a", "m", 0.5, 0)


@settings(max_examples=40, deadline=None)
@given(records(), st.randoms(use_true_random=False), st.booleans())
def test_findings_do_not_depend_on_order(
    found: list[Trajectory], random: object, foreign: bool
) -> None:
    facts = RunContext(
        Banking(),
        foreign,
        max_new_tokens=3,
        stops=frozenset({2}),
        references={"p1": "a b a b a c", "p2": "b"},
        pieces=[b"a ", b"b ", b"c "],
        labels={f"p{i}": "odd" if i % 2 else "even" for i in range(20)},
        vocabulary=3,
    )
    expected = told(found, facts)
    random.shuffle(found)  # type: ignore[attr-defined]
    assert told(found, facts) == expected
