from __future__ import annotations

import math

import numpy as np
import pytest

from nafaudit.core.finding import CheckWord, Witness
from nafaudit.core.ledger import Banking
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.measures.checks import martingale
from nafaudit.measures.context import RunContext
from nafaudit.measures.table import Measures
from nafaudit.stats import clustered_mean, student_two_sided
from tests.records import ask, trajectory

FACTS = RunContext(Banking())


def drawn(
    seed: int, prompts: int, each: int = 2, length: int = 20, p: float = 0.7, true: float = 0.0
) -> list[Trajectory]:
    """Two tokens: served with p, safe with 1/2, drawn with `true` (or p itself)."""
    rng = np.random.default_rng(seed)
    charge = p * math.log(2 * p) + (1 - p) * math.log(2 - 2 * p)
    records = []
    for prompt in range(prompts):
        for number in range(each):
            first = rng.random(length) < (true or p)
            records.append(
                trajectory(
                    Key(f"p{prompt}", "m", 1.0, number),
                    [charge] * length,
                    served=np.log(np.where(first, p, 1 - p)).tolist(),
                    safe=[math.log(0.5)] * length,
                )
            )
    return records


def test_a_faithful_sampler_is_fine() -> None:
    finding = ask(martingale, drawn(0, 30), FACTS)
    assert finding.verdict == CheckWord.FINE
    assert "alarm below 0.0001" in finding.text


@pytest.mark.parametrize("true", [0.5, 0.95])
def test_a_sampler_of_another_law_is_suspect(true: float) -> None:
    finding = ask(martingale, drawn(0, 30, true=true), FACTS)
    assert finding.verdict == CheckWord.SUSPECT
    assert (finding.value > 0) == (true > 0.7)
    assert "were not drawn from the law that was charged" in finding.text


def test_a_charge_that_is_half_is_suspect() -> None:
    halved = [
        trajectory(
            one.key,
            (one.steps.charge / 2).tolist(),
            served=one.steps.served.tolist(),
            safe=one.steps.safe.tolist(),
        )
        for one in drawn(0, 40, each=4)
    ]
    assert ask(martingale, halved, FACTS).verdict == CheckWord.SUSPECT


def test_the_null_is_kept_in_a_thousand_audits() -> None:
    # At a level of 1e-4 the chance of two or more alarms in 1,000 sound audits is 0.5 %. The
    # naive t test alarms in two of three of those with p = 0.999: no rare token was drawn.
    alarms = 0
    for seed in range(250):
        for p, length in ((0.6, 5), (0.9, 5), (0.99, 10), (0.999, 20)):
            found = ask(martingale, drawn(seed, 20, each=1, length=length, p=p), FACTS)
            alarms += found.verdict == CheckWord.SUSPECT
    assert alarms <= 1


def test_text_known_by_heart_alarms_the_naive_test_but_not_ours() -> None:
    # 390 draws at 0.9999: the rare token is most likely never seen, and the sum of gains
    # varies a little only because lengths differ.
    records = [
        one
        for number, length in enumerate(range(10, 30))
        for one in drawn(number, 1, each=1, length=length, p=0.9999)
    ]
    named = [
        trajectory(
            Key(f"p{i}", "m", 1.0, 0),
            one.steps.charge.tolist(),
            served=one.steps.served.tolist(),
            safe=one.steps.safe.tolist(),
        )
        for i, one in enumerate(records)
    ]
    finding = ask(martingale, named, FACTS)
    assert finding.verdict == CheckWord.FINE
    centre, error = clustered_mean([[row.gain] for row in Measures.of(named, FACTS)])
    assert student_two_sided(centre / error, 19) < 1e-4
    assert finding.numbers["error"] > error


def test_hand_computed_mean_and_error() -> None:
    # L - Z is +1 on half of the prompts and -0.5 on the others, with p near 0: no implied part.
    records = [
        trajectory(Key(f"p{i}", "m", 1.0, 0), [1.0], served=[-40.0], safe=[-42.0 + 1.5 * (i % 2)])
        for i in range(20)
    ]
    finding = ask(martingale, records, FACTS)
    assert finding.value == 0.25
    assert finding.numbers["error"] == pytest.approx(0.75 / math.sqrt(19))
    assert finding.numbers["t"] == pytest.approx(0.25 / 0.75 * math.sqrt(19))


def test_exact_equality_is_fine() -> None:
    same = [
        trajectory(Key(f"p{i}", "m", 0.0, 0), [0.0], served=[-1.0], safe=[-1.0]) for i in range(20)
    ]
    assert ask(martingale, same, FACTS).numbers["p"] == 1.0


def test_a_forbidden_token_is_suspect_in_our_own_records() -> None:
    key = Key("z", "m", 1.0, 0)
    forbidden = trajectory(key, [0.5, 0.5], safe=[-1.0, -math.inf])
    finding = ask(martingale, [*drawn(0, 30), forbidden], FACTS)
    assert finding.verdict == CheckWord.SUSPECT
    assert finding.witness == Witness(key, 1)
    foreign = RunContext(Banking(), foreign=True)
    finding = ask(martingale, [*drawn(0, 30), forbidden], foreign)
    assert finding.verdict == CheckWord.FINE
    assert "1 trajectories have no finite" in finding.text


def test_too_little_is_unknown() -> None:
    few = ask(martingale, drawn(0, 19, each=5), FACTS)
    assert (few.verdict, few.text) == (
        CheckWord.UNKNOWN,
        "19 prompts with L - Z; the test needs 20",
    )
    silent = trajectory(Key("p", "m", 1.0, 0), [0.5], served=[math.nan])
    assert ask(martingale, [silent], FACTS).text.startswith("no trajectory records charges")


def test_clustered_mean_counts_groups_not_values() -> None:
    once = clustered_mean([[1.0], [2.0], [6.0]])
    thrice = clustered_mean([[1.0] * 3, [2.0] * 3, [6.0] * 3])
    assert once == pytest.approx(thrice)
    assert once == pytest.approx((3.0, math.sqrt(7.0 / 3)))  # variance 7, three groups
    for bad in ([[1.0]], [[1.0], []]):
        with pytest.raises(ValueError, match="at least 2 groups"):
            clustered_mean(bad)


@pytest.mark.parametrize(
    "t, df", [(12.70620, 1), (4.302653, 2), (3.182446, 3), (2.570582, 5), (2.228139, 10)]
)
def test_student_matches_the_tables(t: float, df: int) -> None:
    assert student_two_sided(t, df) == pytest.approx(0.05, abs=1e-6)
    assert student_two_sided(-t, df) == student_two_sided(t, df)


def test_student_at_its_ends() -> None:
    assert student_two_sided(0.0, 7) == 1.0
    assert student_two_sided(math.inf, 8) == 0.0
    assert student_two_sided(1.959964, 200_000) == pytest.approx(0.05, abs=1e-5)
    with pytest.raises(ValueError, match="df must be"):
        student_two_sided(1.0, 0)
