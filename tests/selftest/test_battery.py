"""The audits of the self-test are audits: quiet where they must be, loud just beyond."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import replace

import pytest

from nafaudit.auditor.claims import FOREIGN_STEP
from nafaudit.auditor.family import AFTER, LEDGERS
from nafaudit.core.finding import Kept
from nafaudit.mechanisms.reference import AnchoredDecoder, ReferenceRow
from nafaudit.protocols import Output
from nafaudit.selftest import faults
from nafaudit.selftest.battery import AuditAnswer, audit, examine
from nafaudit.selftest.careful import CAREFUL, CarefulCase
from nafaudit.selftest.faults import CATALOGUE, accounts, sampling, serving
from nafaudit.selftest.power import Answers, AuditSetup, Outcome, audited, summary
from nafaudit.selftest.worlds import overspend, toy_prompts

MODULES = [
    importlib.import_module(f"{faults.__name__}.{found.name}")
    for found in pkgutil.iter_modules(faults.__path__)
]
SMALL = AuditSetup(length=30, prompts=4, size=20, stop=0.03, sizes=(4, 12))


def test_every_fault_is_in_the_catalogue_once() -> None:
    kinds = {
        kind
        for module in MODULES
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, AnchoredDecoder) and kind.__module__ == module.__name__
    }
    listed = [case.decoder for case in CATALOGUE]
    assert len(listed) == len(set(listed))
    assert set(listed) == kinds
    assert len({case.name for case in CATALOGUE}) == len(listed)
    laws = {law.name for law in LEDGERS} | set(AFTER)
    for case in CATALOGUE:
        assert case.about.endswith(".") and len(case.about) < 100
        assert case.law.replace(" in some answers", "") in laws | {""}
        assert not (case.harmless and case.escapes)


def outcome_of(decoder: type[AnchoredDecoder], seed: int, setup: AuditSetup = SMALL) -> Outcome:
    world = setup.world(seed)
    return audited(decoder, world, toy_prompts(world, seed, setup.prompts), setup, seed)


def answer_of(decoder: AnchoredDecoder, seed: int, *, silent: bool = False) -> AuditAnswer:
    """Audits a decoder in its world, 48 outputs at two budgets."""
    setup = replace(SMALL, sizes=(24,))
    prompts = toy_prompts(SMALL.world(seed), seed, SMALL.prompts)
    (asked,) = setup.stages(prompts, seed)
    outputs = decoder.decode([one.request for one in asked])
    found = examine(decoder.world, asked, outputs)
    found = [one.silenced() for one in found] if silent else found
    return audit(decoder.world, found, SMALL.length)


class _Shifted(AnchoredDecoder):
    """Claims every charge a little above what it was."""

    shift = 0.0

    def output(self, row: ReferenceRow) -> Output:
        out = super().output(row)
        charge = [value + self.shift * (1 + value) for value in row.claims["charge"]]
        return replace(out, charge=charge, allowance=None, spend=None)


@pytest.mark.parametrize(
    ("part", "noted"), [(0.9, False), (1.1, True)], ids=["inside", "just outside"]
)
def test_claims_are_accepted_inside_and_noted_just_outside(part: float, noted: bool) -> None:
    # No chance in it: a claimed charge is off by a known amount. The budget is kept either way.
    decoder = _Shifted(SMALL.world(5))
    decoder.shift = part * FOREIGN_STEP.fail
    found = answer_of(decoder, 5)
    assert ("bookkeeping: charge" in found.noted) == noted
    assert found.overall.verdict == Kept.WITHIN and not found.accused
    assert ("bookkeeping: the charges that it states" in found.overall.why) == noted


def test_rounding_is_no_fault() -> None:
    found = answer_of(sampling.Bfloat16(SMALL.world(1)), 1)
    assert not found.accused and not [name for name in found.noted if "bookkeeping" in name]


def test_power_counts_what_accuses_and_when() -> None:
    late = Answers(frozenset({12}), frozenset({4}), ("budget: tokens",), (), 30.0)
    soon = Answers(frozenset({4, 12}), frozenset(), ("invariant",), ("bookkeeping: debt",), 20.0)
    found = summary([late, soon], (4, 12))
    assert found.caught == {4: 1, 12: 2} and found.unsettled == {4: 1, 12: 2}
    assert found.by == {"budget: tokens": 1, "invariant": 1}
    assert found.noted == {"bookkeeping: debt": 1} and found.needed == 25.0
    low, high = found.limits(12)
    assert low == pytest.approx(0.025**0.5) and high == 1.0


def test_a_sound_decoder_is_left_alone_and_faults_are_not() -> None:
    # The seeds are fixed. For others: 8 sound audits at level 1e-3 accuse with chance 8e-3; the
    # faults are found by arithmetic, or drew p < 1e-9.
    for seed in range(4):
        found = outcome_of(AnchoredDecoder, seed)
        assert not found.open.accused and not found.silent.accused
    assert outcome_of(accounts.OneStepAhead, 11).open.accused == {4, 12}
    assert 12 in outcome_of(sampling.SampleSafe, 11).open.accused
    assert not outcome_of(sampling.SampleSafe, 11).silent.accused


def test_rows_of_a_batch_may_depend_on_each_other() -> None:
    found = outcome_of(serving.SwappedRows, 2).open
    assert "bookkeeping: served" in found.noted and not found.within


def test_overspending_is_metered_on_the_law_that_is_sampled() -> None:
    world = SMALL.world(7)
    prompts = toy_prompts(world, 7, SMALL.prompts)
    requests = [one.request for part in SMALL.stages(prompts, 7) for one in part]
    sound = overspend(AnchoredDecoder(world), requests)
    assert sound.exceeding == 0 and 0.8 < sound.ratio <= 1 + 1e-9
    risky = overspend(sampling.SampleRisky(world), requests)
    assert risky.share > 0.5 and risky.ratio > 1.2
    assert overspend(sampling.SampleSafe(world), requests).ratio == pytest.approx(0.0, abs=1e-9)
    ahead = overspend(accounts.OneStepAhead(world), requests)
    assert ahead.exceeding > 0 and sound.ratio < ahead.ratio < 1.2


def test_requests_of_an_audit_have_seeds_of_their_own() -> None:
    prompts = toy_prompts(SMALL.world(1), 1, SMALL.prompts)
    asked = [one for part in SMALL.stages(prompts, 1) for one in part]
    assert len({one.key for one in asked}) == len({one.request.seed for one in asked}) == 24
    later = [one for part in SMALL.stages(prompts, 2) for one in part]
    assert not {one.request.seed for one in asked} & {one.request.seed for one in later}


@pytest.mark.parametrize("case", CAREFUL, ids=lambda case: case.name)
def test_openness_is_never_punished(case: CarefulCase) -> None:
    """A decoder that keeps its budget fares no worse with true claims than without any.

    No chance but the level's: 44 audits at 1e-3, seeds fixed.
    """
    order = {1: 0, 3: 1, 0: 2}
    decoder = case.decoder(SMALL.world(3))
    open_, silent = (answer_of(decoder, 3, silent=silent) for silent in (False, True))
    assert open_.overall.verdict == Kept.WITHIN
    assert not silent.accused
    assert order[open_.overall.exit_status] >= order[silent.overall.exit_status]
