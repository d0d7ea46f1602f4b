from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from nafaudit.core.finding import CheckWord
from nafaudit.core.ledger import Banking
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.measures.checks import copying
from nafaudit.measures.context import RunContext
from nafaudit.measures.table import Measures
from tests.records import trajectory

PIECES = [f"w{i} ".encode() for i in range(60)]
REFERENCE = " ".join(f"w{i}" for i in range(40))
FACTS = RunContext(Banking(), references={"p": REFERENCE, "short": "w1 w2"}, pieces=PIECES)


def output(prompt: str, tokens: list[int], number: int = 0) -> Trajectory:
    made = trajectory(Key(prompt, "m", 1.0, number), [0.1] * len(tokens))
    return replace(made, steps=replace(made.steps, token=np.array(tokens, np.int32)))


def test_recall_of_the_reference() -> None:
    rows = Measures.of(
        [
            output("p", list(range(40)), 0),
            output("p", list(range(20)), 1),
            output("p", list(range(40, 60)), 2),
        ],
        FACTS,
    )
    assert rows.column("recall") == [1.0, 0.5, 0.0]
    assert copying(rows).value == pytest.approx(0.5)
    found = copying(rows)
    assert found.witness is not None
    assert found.witness.key.trajectory == 0
    assert "mean 50.0%, largest 100.0%, over 3 trajectories" in found.text


def test_every_metric_is_among_the_numbers() -> None:
    rows = Measures.of(
        [output("p", list(range(40)), 0), output("p", [*range(10), *range(40, 60)], 1)], FACTS
    )
    numbers = copying(rows).numbers
    assert numbers["scored"] == 2
    assert numbers["rouge_l_recall_mean"] == pytest.approx((1 + 10 / 40) / 2)
    assert numbers["rouge_l_f1_max"] == 1
    assert numbers["substring_words_mean"] == 25
    assert numbers["span_words_max"] == 40
    assert numbers["jaccard_5gram_mean"] == pytest.approx((1 + 6 / (36 + 26 - 6)) / 2)


def test_without_a_reference_an_output_is_unscored_not_zero() -> None:
    rows = Measures.of([output("unknown", list(range(40)))], FACTS)
    assert not rows[0].overlap.scored
    assert math.isnan(copying(rows).value)
    assert copying(rows).verdict == CheckWord.UNKNOWN


def test_a_short_reference_has_no_recall_but_the_other_metrics() -> None:
    rows = Measures.of([output("short", [5, 1, 2])], FACTS)
    assert math.isnan(rows[0].recall)
    found = copying(rows)
    assert math.isnan(found.value)
    assert math.isnan(found.numbers["near_verbatim_recall_max"])
    assert math.isnan(found.numbers["jaccard_5gram_mean"])
    assert found.numbers["rouge_l_recall_mean"] == 1
    assert "no reference has the 20 words" in found.text


def test_unscored_outputs_lower_no_mean() -> None:
    rows = Measures.of([output("p", list(range(40))), output("unknown", list(range(40)))], FACTS)
    assert copying(rows).value == 1
    assert "; 1 unscored" in copying(rows).text


def test_without_a_vocabulary_nothing_is_scored() -> None:
    rows = Measures.of([output("p", list(range(40)))], replace(FACTS, pieces=()))
    found = copying(rows)
    assert found.verdict == CheckWord.UNKNOWN
    assert found.text == "the text of the outputs is not recorded"
