"""The audits of the self-test are audits: quiet where they must be, loud just beyond."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import replace

import pytest

from nafaudit.auditor.claims import FOREIGN_STEP
from nafaudit.core.trajectory import Key
from nafaudit.mechanisms.reference import AnchoredDecoder, ReferenceRow
from nafaudit.protocols import Output
from nafaudit.selftest import faults
from nafaudit.selftest.battery import alarms, examine, findings, warnings
from nafaudit.selftest.faults import CATALOGUE, accounts, sampling, serving
from nafaudit.selftest.power import LEVEL, AuditSetup, Outcome, power, summary
from nafaudit.selftest.worlds import overspend

MODULES = [
    importlib.import_module(f"{faults.__name__}.{found.name}")
    for found in pkgutil.iter_modules(faults.__path__)
]
SMALL = AuditSetup(length=30, prompts=4, size=20, stop=0.03, sizes=(4, 12), together=4)


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
    for case in CATALOGUE:
        assert case.about.endswith(".") and len(case.about) < 100
        assert case.expected
        assert not (case.harmless and case.escapes)


class _Shifted(AnchoredDecoder):
    """Claims every charge a little above what it was."""

    shift = 0.0

    def output(self, row: ReferenceRow) -> Output:
        out = super().output(row)
        charge = [value + self.shift * (1 + value) for value in row.claims["charge"]]
        return replace(out, charge=charge, allowance=None, spend=None)


@pytest.mark.parametrize(
    ("part", "fires", "warns"),
    [(0.9, False, False), (1.1, False, True), (0.9, False, True), (1.1, True, True)],
    ids=["inside the warning", "just beyond it", "inside the refutation", "just beyond that"],
)
def test_claims_are_accepted_inside_and_refused_just_outside(
    part: float, fires: bool, warns: bool, request: pytest.FixtureRequest
) -> None:
    # No chance in it: a claimed charge is off by a known amount.
    level = FOREIGN_STEP.fail if "refutation" in request.node.name or fires else FOREIGN_STEP.warn
    world = SMALL.world(5)
    asked = SMALL.asked(world, 5, 0)[:4]
    decoder = _Shifted(world)
    decoder.shift = part * level
    outputs = decoder.decode([one.request for one in asked])
    found = findings(world, examine(world, asked, outputs), SMALL.length, LEVEL)
    assert ("replay: charge" in alarms(found)) == fires
    assert ("replay: charge" in (*alarms(found), *warnings(found))) == warns


def test_a_warning_is_no_alarm() -> None:
    world = SMALL.world(1)
    asked = SMALL.asked(world, 1, 0)
    outputs = sampling.Bfloat16(world).decode([one.request for one in asked])
    found = findings(world, examine(world, asked, outputs), SMALL.length, LEVEL)
    assert not alarms(found)
    assert all(name.startswith("replay: ") for name in warnings(found)) and warnings(found)


def test_power_counts_what_fired_and_when() -> None:
    fired = {4: (), 12: ("sampler: gain",)}
    found = summary(
        [
            Outcome(fired, {4: (), 12: ()}),
            Outcome({4: ("accounting",), 12: ("accounting",)}, fired),
        ],
        (4, 12),
    )
    assert found.caught == {4: 1, 12: 2} and found.warned == {4: 1, 12: 2}
    assert found.by == {"sampler: gain": 1, "accounting": 1}
    low, high = found.limits(12)
    assert low == pytest.approx(0.025**0.5) and high == 1.0


def test_a_sound_decoder_is_left_alone_and_faults_are_not() -> None:
    # The seeds are fixed. For others: 8 sound audits at level 1e-3 alarm with chance 8e-3; of
    # the faults, the first is refuted without chance, the second drew p < 1e-9 in each audit.
    assert power(AnchoredDecoder, 8, 11, SMALL).caught == {4: 0, 12: 0}
    assert power(accounts.OneStepAhead, 2, 11, SMALL).caught == {4: 2, 12: 2}
    assert power(sampling.SampleSafe, 4, 11, SMALL).caught[12] == 4


def test_batches_of_one_audit_are_kept_apart() -> None:
    # Rows of other audits in the batch would hide what a fault does to its own.
    found = power(serving.SwappedRows, 2, 2, SMALL, coupled=True)
    assert found.caught == {4: 2, 12: 2}


def test_overspending_is_metered_on_the_law_that_is_sampled() -> None:
    world = SMALL.world(7)
    requests = [one.request for one in SMALL.asked(world, 7, 0)]
    sound = overspend(AnchoredDecoder(world), requests)
    assert sound.exceeding == 0 and 0.9 < sound.ratio <= 1 + 1e-9
    risky = overspend(sampling.SampleRisky(world), requests)
    assert risky.share > 0.9 and risky.ratio > 1.5
    assert overspend(sampling.SampleSafe(world), requests).ratio == pytest.approx(0.0, abs=1e-9)
    ahead = overspend(accounts.OneStepAhead(world), requests)
    assert ahead.exceeding > 0 and 1 < ahead.ratio < 1.2


def test_keys_of_an_audit_are_its_own() -> None:
    world = SMALL.world(1)
    first, second = SMALL.asked(world, 1, 0), SMALL.asked(world, 1, 1)
    assert not {one.key for one in first} & {one.key for one in second}
    assert len({one.request.seed for one in [*first, *second]}) == 24
    assert isinstance(first[0].key, Key)
