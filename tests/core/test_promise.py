"""What a black box or a log is held to, and what contradicts it."""

from __future__ import annotations

from typing import Any

import pytest

from nafaudit.core.errors import InputError
from nafaudit.core.options import load
from nafaudit.core.promise import PROMISES, held_to, judged_by
from nafaudit.core.settings import ConformSettings, RunSettings, VerifySettings
from nafaudit.search.settings import SearchSettings
from nafaudit.store.importers.entry import CheckSettings, ImportOptions
from nafaudit.worth.settings import AttackSettings

ANCHORED, RENYI = "anchored:debt=positives,n=5", "renyi:alpha=2:debt=positives,n=5"
BOXED = {"protocol": "sound", "mechanism": "box:Class@00", "ledger": "banking"}
LOG = {"protocol": "imported", "mechanism": "theirs", "ledger": "banking"}


@pytest.mark.parametrize(
    ("promise", "mechanism", "expected"),
    [
        (None, "anchored", "banked"),
        (None, ANCHORED, "banked"),
        ("banked", ANCHORED, "banked"),
        ("k-naf", "anchored", "k-naf"),
        ("anchored", ANCHORED, "anchored"),
        (None, "renyi:2", "renyi:2"),
        (None, RENYI, RENYI),
        (None, "anchored:bank=5", "anchored:bank=5"),
        ("anchored", "anchored:bank=5", "anchored:bank=5"),
        (None, "mine:Rule@ab:debt=positives,n=0", "mine:Rule@ab:debt=positives,n=0"),
    ],
)
def test_a_black_box_is_held_to_one_thing(
    promise: str | None, mechanism: str, expected: str
) -> None:
    assert held_to(promise, mechanism) == expected


@pytest.mark.parametrize(
    ("promise", "mechanism"),
    [("banked", "renyi"), ("k-naf", RENYI), ("anchored", "renyi:2"), ("banked", "anchored:bank=5")],
)
def test_a_promise_and_another_mechanism_contradict_each_other(
    promise: str, mechanism: str
) -> None:
    with pytest.raises(InputError, match=r"contradict each other.*Leave out --promise"):
        held_to(promise, mechanism)


@pytest.mark.parametrize("promise", PROMISES)
def test_our_own_engine_has_the_promise_of_its_mechanism(promise: str) -> None:
    with pytest.raises(InputError, match=r"mechanism = renyi.*Leave out --promise"):
        load(RunSettings, None, {"promise": promise, "mechanism": "renyi"})
    for settings in (SearchSettings, AttackSettings):
        with pytest.raises(InputError):
            load(settings, None, {"promise": promise})
    made = {"protocol": "sound", "mechanism": ANCHORED, "ledger": "banking"}
    with pytest.raises(InputError, match="Leave out --promise"):
        judged_by(made, promise)
    assert judged_by(made) == ""


def test_settings_say_what_a_decoder_is_held_to() -> None:
    def of(**given: Any) -> str:
        return load(RunSettings, None, {"decoder": "mine:Decoder", **given}).held_to(ANCHORED)

    assert [of(), of(promise="k-naf"), of(promise="anchored")] == ["banked", "k-naf", "anchored"]
    assert load(RunSettings, None, {}).held_to(ANCHORED) == ""
    with pytest.raises(InputError, match="promise = banked and mechanism = renyi"):
        of(promise="banked", mechanism="renyi")
    for kind in (RunSettings, VerifySettings, ConformSettings, CheckSettings):
        with pytest.raises(InputError, match="promise"):
            load(kind, None, {"promise": "renyi", "decoder": "a:B"} if kind is RunSettings
                 else {"promise": "renyi"})  # fmt: skip


def test_a_design_says_what_it_is_held_to_or_the_default_holds() -> None:
    old = BOXED | {"promise": ANCHORED}
    assert judged_by(old) == "banked"
    assert judged_by(old, "k-naf") == "k-naf"
    assert judged_by(BOXED | {"promise": RENYI}) == RENYI
    assert judged_by(old | {"held_to": "anchored"}) == "anchored"
    assert judged_by(old | {"held_to": "anchored"}, "banked") == "banked"
    with pytest.raises(InputError, match="contradict"):
        judged_by(BOXED | {"promise": RENYI}, "banked")


def test_a_log_is_held_to_k_nats_a_token_where_that_is_its_rule() -> None:
    assert judged_by(LOG) == "banked"
    assert judged_by(LOG | {"held_to": "k-naf"}) == "k-naf"
    assert judged_by(LOG | {"ledger": "unknown"}) == ""
    for ledger in ("unknown", "paths"):
        with pytest.raises(InputError, match="Add --ledger banking"):
            judged_by(LOG | {"ledger": ledger}, "anchored")
        with pytest.raises(InputError, match=f"ledger = {ledger} contradict"):
            ImportOptions(promise="anchored", ledger=ledger)
    assert ImportOptions(promise="anchored", ledger="banking").given
