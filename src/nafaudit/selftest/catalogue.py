"""The faulty decoders as data: what each is, which check should notice, and why one need not.

Adding a fault is adding a class to a file of `faults/` and a line here.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

from nafaudit.mechanisms.reference import AnchoredDecoder
from nafaudit.selftest.faults import (
    budget,
    charge,
    ends,
    laws,
    randomness,
    sampling,
    seldom,
    serving,
)

# Groups of checks, by the beginning of their names.
REPLAY, SAMPLER, ACCOUNTS, OUTPUT = "replay: ", "sampler: ", "accounting", "decoder: "


@dataclass(frozen=True)
class Case:
    """One faulty decoder.

    Attributes:
        decoder: The class.
        expected: Beginnings of the names of checks that should notice, the likeliest first.
        harmless: Why a warning is enough; empty if it must be caught.
        escapes: Why 60 outputs need not show it; empty if they must.
        coupled: True if the outputs of one call depend on each other.
    """

    decoder: type[AnchoredDecoder]
    expected: tuple[str, ...]
    harmless: str = ""
    escapes: str = ""
    coupled: bool = False

    @property
    def name(self) -> str:
        """The class's name in small letters."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", self.decoder.__name__).lower()

    @property
    def about(self) -> str:
        """One line on what it does."""
        return (inspect.getdoc(self.decoder) or "").splitlines()[0]

    @property
    def must_catch(self) -> bool:
        """True if the audit fails its self-test without it."""
        return not (self.harmless or self.escapes)


def _sampler(decoder: type[AnchoredDecoder], escapes: str = "", *tests: str) -> Case:
    return Case(decoder, tuple(f"{SAMPLER}{test}" for test in tests) or (SAMPLER,), "", escapes)


CATALOGUE: tuple[Case, ...] = (
    # What is sampled is not what was served and charged.
    _sampler(sampling.SampleRisky, "", "likelihood"),
    _sampler(sampling.SampleSafe, "", "likelihood"),
    _sampler(sampling.Tempered, "", "surprisal", "likelihood"),
    _sampler(sampling.SlightlyTempered, "", "surprisal", "likelihood"),
    _sampler(sampling.Heated, "", "surprisal", "likelihood"),
    _sampler(serving.TopP, "", "likelihood"),
    _sampler(serving.TopK, "", "likelihood"),
    _sampler(serving.MinP, "", "likelihood"),
    _sampler(serving.LooseTopP, "", "likelihood"),
    _sampler(serving.EpsilonCut, "", "likelihood"),
    _sampler(serving.Typical, "", "likelihood"),
    _sampler(sampling.Greedy, "", "likelihood"),
    _sampler(seldom.SometimesGreedy, "", "likelihood"),
    _sampler(seldom.SometimesUniform, "", "likelihood", "surprisal"),
    _sampler(sampling.ArithmeticMixture, "", "likelihood"),
    _sampler(sampling.ThetaPlus, "", "gain", "likelihood"),
    _sampler(
        sampling.ThetaPlusSmall,
        "its tokens are too close to sound ones: several hundred outputs are needed",
        "gain",
        "likelihood",
    ),
    _sampler(
        sampling.CoarseWeights,
        "the same as theta + 0.025 on average: several hundred outputs are needed",
        "gain",
        "likelihood",
    ),
    _sampler(sampling.ThetaMinus, "", "gain", "likelihood"),
    _sampler(serving.PenaltyAfter, "", "likelihood"),
    _sampler(serving.NoRepeatedPairs, "", "likelihood"),
    _sampler(serving.StopSuppressed, "", "likelihood"),
    _sampler(serving.StopsFavoured, "", "likelihood"),
    _sampler(seldom.GreedyOpening, "", "some-steps"),
    _sampler(seldom.RiskyTail, "", "gain", "likelihood", "some-steps"),
    _sampler(seldom.HalfRisky, "", "likelihood"),
    _sampler(seldom.SometimesRisky, "", "likelihood", "gain"),
    _sampler(seldom.TriggeredRisky, "", "likelihood"),
    _sampler(seldom.RareRisky, "", "some-outputs", "likelihood", "gain"),
    _sampler(
        seldom.VeryRareRisky,
        "in a fifth of all audits of 60 outputs not one is faulty",
        "some-outputs",
        "likelihood",
    ),
    _sampler(sampling.BadSpeculation, "", "likelihood", "gain"),
    _sampler(sampling.BestOfFour, "", "likelihood", "surprisal", "some-outputs"),
    # The randomness.
    Case(randomness.NoiseReused, (f"{SAMPLER}repeats", f"{SAMPLER}shared-noise"), coupled=True),
    Case(randomness.NoiseRepeatsEachStep, (f"{SAMPLER}likelihood", f"{SAMPLER}rank-pit")),
    Case(randomness.FewSeeds, (f"{SAMPLER}repeats",), coupled=True),
    Case(randomness.BatchNoise, (f"{SAMPLER}repeats", f"{SAMPLER}shared-noise"), coupled=True),
    # The budget.
    Case(budget.NoDebt, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(budget.NoDebtStated, (f"{REPLAY}debt",)),
    Case(budget.DebtAdded, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(budget.DebtHalved, (f"{REPLAY}debt",)),
    Case(budget.DebtDoubled, (f"{REPLAY}debt",)),
    Case(budget.DebtSummed, (f"{REPLAY}debt",)),
    Case(budget.DebtForgiven, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(budget.DebtOfTheBatch, (f"{REPLAY}debt",), coupled=True),
    Case(budget.OneStepAhead, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(budget.OneStepBehind, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(budget.KeepsItsSpend, (ACCOUNTS, f"{REPLAY}allowance"), coupled=True),
    Case(budget.ForgetsItsSpend, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(budget.LargerBudget, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(budget.FirstStepFree, ("invariant", ACCOUNTS, f"{REPLAY}allowance")),
    Case(budget.Overshoots, ("invariant", f"{REPLAY}charge")),
    Case(budget.NoBank, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(budget.PooledBudget, (ACCOUNTS, f"{REPLAY}allowance"), coupled=True),
    # The charge, and what is said of it.
    Case(charge.ReverseDivergence, (f"{REPLAY}theta", f"{REPLAY}charge")),
    Case(charge.ChargesTheDraw, ("invariant", f"{REPLAY}charge")),
    Case(charge.ChargesHalf, (f"{REPLAY}charge", f"{REPLAY}spend")),
    Case(charge.UnitMixedUp, (f"{REPLAY}charge", f"{REPLAY}spend")),
    Case(charge.ChargesTwice, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(charge.ClaimsTwice, (f"{REPLAY}charge", f"{REPLAY}spend")),
    Case(charge.ClaimsHalf, (f"{REPLAY}charge", f"{REPLAY}spend")),
    Case(charge.ClaimsNothing, (f"{SAMPLER}likelihood", f"{SAMPLER}gain")),
    Case(charge.TotalHalved, (f"{REPLAY}spend",)),
    Case(charge.ClaimsTheBudget, (f"{REPLAY}charge", f"{REPLAY}spend")),
    Case(charge.ClaimsAnotherToken, (f"{REPLAY}served",)),
    Case(charge.MeanCharge, (f"{REPLAY}charge", f"{REPLAY}spend"), coupled=True),
    Case(charge.MaxDivergence, (f"{REPLAY}charge", f"{REPLAY}spend")),
    # Ends and batches.
    Case(ends.StopUncharged, (f"{REPLAY}charge", f"{REPLAY}spend")),
    Case(ends.RunsPastItsStop, (f"{OUTPUT}after-stop",)),
    Case(ends.StopsShort, (f"{OUTPUT}short",)),
    Case(ends.StripsItsStop, (f"{OUTPUT}short",)),
    Case(ends.StopsElsewhere, (f"{OUTPUT}short",)),
    Case(ends.SwappedRows, (REPLAY,), coupled=True),
    # The laws.
    Case(
        laws.Bfloat16,
        (REPLAY,),
        harmless="overspends by less than 0.1 %: rounding, which any 16-bit model has",
    ),
    Case(laws.WrongAnchor, (f"{REPLAY}charge", f"{REPLAY}theta")),
    Case(laws.WarmAnchor, (f"{REPLAY}charge", f"{REPLAY}theta")),
    Case(laws.SwappedModels, (f"{REPLAY}charge", f"{REPLAY}theta")),
    Case(laws.StaleLaws, (REPLAY,)),
    Case(laws.StaleAnchor, (REPLAY,)),
    Case(laws.SometimesStale, (f"{SAMPLER}surprisal", f"{SAMPLER}likelihood")),
    Case(laws.ForgetsThePrompt, (f"{REPLAY}safe", f"{REPLAY}served")),
    Case(laws.ColdRisky, (f"{REPLAY}charge", f"{REPLAY}theta")),
    Case(laws.SilentColdRisky, (f"{SAMPLER}surprisal", f"{SAMPLER}likelihood")),
)
