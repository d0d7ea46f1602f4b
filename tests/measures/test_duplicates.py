from __future__ import annotations

import math

import numpy as np
import pytest

from nafaudit.core.finding import ALARM_LEVEL, CheckWord, Witness
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.measures.checks import duplicates
from tests.records import ask, trajectory


def wrote(prompt: str, number: int, token: list[int], logp: float = -1.0) -> Trajectory:
    key = Key(prompt, "m", 1.0, number)
    return trajectory(key, [0.0] * len(token), token=token, served=[logp] * len(token))


def test_a_long_copy_is_suspect() -> None:
    text = list(range(50))
    records = [wrote("p", 0, text), wrote("p", 1, [1, 2]), wrote("p", 2, text)]
    finding = ask(duplicates, records)
    assert finding.verdict == CheckWord.SUSPECT
    assert finding.witness == Witness(Key("p", "m", 1.0, 2), 0)
    assert finding.numbers["log10_p"] == pytest.approx((-50 + math.log(3)) / math.log(10))
    assert "1 outputs repeat another of their prompt (3 pairs)" in finding.text
    assert "trajectory 2 after 0 with 50 tokens, happens with p <= 5.8e-22" in finding.text


def test_a_short_or_likely_text_may_repeat() -> None:
    short = [wrote("p", i, [7, 9], logp=-3.1) for i in range(2)]
    finding = ask(duplicates, short)
    assert finding.verdict == CheckWord.FINE
    assert finding.value == pytest.approx(math.exp(-6.2))
    certain = [wrote("p", i, list(range(200)), logp=0.0) for i in range(9)]
    assert ask(duplicates, certain).value == 1.0


def test_every_pair_looked_at_is_paid_for() -> None:
    logp = math.log(ALARM_LEVEL / 2)
    copy = [wrote("p", i, [5], logp=logp) for i in range(2)]
    assert ask(duplicates, copy).verdict == CheckWord.SUSPECT
    others = [wrote("q", i, [i]) for i in range(3)]  # three more pairs
    assert ask(duplicates, [*copy, *others]).verdict == CheckWord.FINE


def test_equal_texts_of_two_prompts_are_none() -> None:
    records = [wrote(p, i, [*range(50), i]) for p in "pq" for i in range(2)]
    assert ask(duplicates, records).text == "no output repeats another of its prompt (2 pairs)"


def test_an_impossibly_small_chance_still_prints() -> None:
    records = [wrote("p", i, list(range(400)), logp=-5.0) for i in range(2)]
    finding = ask(duplicates, records)
    assert "p <= 10^-869" in finding.text
    assert finding.value == 0.0


def test_what_is_missing_is_named() -> None:
    assert "no trajectory records tokens" in ask(duplicates, [wrote("p", 0, [-1])]).text
    assert "one trajectory per prompt" in ask(duplicates, [wrote("p", 0, [1])]).text
    silent = [wrote("p", i, list(range(50)), logp=math.nan) for i in range(2)]
    finding = ask(duplicates, silent)
    assert finding.verdict == CheckWord.UNKNOWN
    assert "is not known without served log-probabilities" in finding.text


def test_an_absurd_logarithm_is_read_alike_in_any_order() -> None:
    records = [wrote("p", i, [1, 2], logp=logp) for i, logp in enumerate((-1.0, math.inf))]
    assert ask(duplicates, records) == ask(duplicates, records[::-1])


def test_independent_draws_raise_no_alarm() -> None:
    # 300 audits of 10 draws of two tokens out of 20: many repeat, none is suspect. The
    # chance of any alarm is at most 300 x 1e-4.
    rng = np.random.default_rng(0)
    law = np.arange(1, 21) / 210
    repeats = 0
    for _ in range(300):
        records = []
        for i in range(10):
            token = rng.choice(20, 2, p=law)
            served = np.log(law[token]).tolist()
            key = Key("p", "m", 1.0, i)
            records.append(trajectory(key, [0.0] * 2, token=token.tolist(), served=served))
        finding = ask(duplicates, records)
        assert finding.verdict == CheckWord.FINE
        repeats += finding.numbers["repeated"] > 0
    assert repeats > 10
