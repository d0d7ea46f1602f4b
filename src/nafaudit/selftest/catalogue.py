"""The faulty decoders as data: what each is, which check should notice, and why one need not.

Adding a fault is adding a class to a file of `faults/` and a line here.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

from nafaudit.mechanisms.reference import AnchoredDecoder
from nafaudit.selftest.faults import accounts, sampling, serving

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
    _sampler(serving.SometimesGreedy, "", "likelihood"),
    _sampler(serving.SometimesUniform, "", "likelihood", "surprisal"),
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
    _sampler(serving.GreedyOpening, "", "some-steps"),
    _sampler(serving.RiskyTail, "", "gain", "likelihood", "some-steps"),
    _sampler(serving.HalfRisky, "", "likelihood"),
    _sampler(serving.SometimesRisky, "", "likelihood", "gain"),
    _sampler(serving.TriggeredRisky, "", "likelihood"),
    _sampler(serving.RareRisky, "", "some-outputs", "likelihood", "gain"),
    _sampler(
        serving.VeryRareRisky,
        "in a fifth of all audits of 60 outputs not one is faulty",
        "some-outputs",
        "likelihood",
    ),
    _sampler(sampling.BadSpeculation, "", "likelihood", "gain"),
    _sampler(sampling.BestOfFour, "", "likelihood", "surprisal", "some-outputs"),
    # The randomness.
    Case(sampling.NoiseReused, (f"{SAMPLER}repeats", f"{SAMPLER}shared-noise"), coupled=True),
    Case(sampling.NoiseRepeatsEachStep, (f"{SAMPLER}likelihood", f"{SAMPLER}rank-pit")),
    Case(sampling.FewSeeds, (f"{SAMPLER}repeats",), coupled=True),
    Case(sampling.BatchNoise, (f"{SAMPLER}repeats", f"{SAMPLER}shared-noise"), coupled=True),
    # The budget.
    Case(accounts.NoDebt, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(accounts.NoDebtStated, (f"{REPLAY}debt",)),
    Case(accounts.DebtAdded, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(accounts.DebtHalved, (f"{REPLAY}debt",)),
    Case(accounts.DebtDoubled, (f"{REPLAY}debt",)),
    Case(accounts.DebtSummed, (f"{REPLAY}debt",)),
    Case(accounts.DebtForgiven, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(accounts.DebtOfTheBatch, (f"{REPLAY}debt",), coupled=True),
    Case(accounts.OneStepAhead, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(accounts.OneStepBehind, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(accounts.KeepsItsSpend, (ACCOUNTS, f"{REPLAY}allowance"), coupled=True),
    Case(accounts.ForgetsItsSpend, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(accounts.LargerBudget, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(accounts.FirstStepFree, ("invariant", ACCOUNTS, f"{REPLAY}allowance")),
    Case(accounts.Overshoots, ("invariant", f"{REPLAY}charge")),
    Case(accounts.NoBank, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(accounts.PooledBudget, (ACCOUNTS, f"{REPLAY}allowance"), coupled=True),
    # The charge, and what is said of it.
    Case(accounts.ReverseDivergence, (f"{REPLAY}theta", f"{REPLAY}charge")),
    Case(accounts.ChargesTheDraw, ("invariant", f"{REPLAY}charge")),
    Case(accounts.ChargesHalf, (f"{REPLAY}charge", f"{REPLAY}spend")),
    Case(accounts.UnitMixedUp, (f"{REPLAY}charge", f"{REPLAY}spend")),
    Case(accounts.ChargesTwice, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(accounts.ClaimsTwice, (f"{REPLAY}charge", f"{REPLAY}spend")),
    Case(accounts.ClaimsHalf, (f"{REPLAY}charge", f"{REPLAY}spend")),
    Case(accounts.ClaimsNothing, (f"{SAMPLER}likelihood", f"{SAMPLER}gain")),
    Case(accounts.TotalHalved, (f"{REPLAY}spend",)),
    Case(accounts.ClaimsTheBudget, (f"{REPLAY}charge", f"{REPLAY}spend")),
    Case(accounts.ClaimsAnotherToken, (f"{REPLAY}served",)),
    Case(accounts.MeanCharge, (f"{REPLAY}charge", f"{REPLAY}spend"), coupled=True),
    Case(accounts.MaxDivergence, (f"{REPLAY}charge", f"{REPLAY}spend")),
    # Ends and batches.
    Case(serving.StopUncharged, (f"{REPLAY}charge", f"{REPLAY}spend")),
    Case(serving.RunsPastItsStop, (f"{OUTPUT}after-stop",)),
    Case(serving.StopsShort, (f"{OUTPUT}short",)),
    Case(serving.StripsItsStop, (f"{OUTPUT}short",)),
    Case(serving.StopsElsewhere, (f"{OUTPUT}short",)),
    Case(serving.SwappedRows, (REPLAY,), coupled=True),
    # The laws.
    Case(
        sampling.Bfloat16,
        (REPLAY,),
        harmless="overspends by less than 0.1 %: rounding, which any 16-bit model has",
    ),
    Case(sampling.WrongAnchor, (f"{REPLAY}charge", f"{REPLAY}theta")),
    Case(sampling.WarmAnchor, (f"{REPLAY}charge", f"{REPLAY}theta")),
    Case(sampling.SwappedModels, (f"{REPLAY}charge", f"{REPLAY}theta")),
    Case(sampling.StaleLaws, (REPLAY,)),
    Case(sampling.StaleAnchor, (REPLAY,)),
    Case(sampling.SometimesStale, (f"{SAMPLER}surprisal", f"{SAMPLER}likelihood")),
    Case(sampling.ForgetsThePrompt, (f"{REPLAY}safe", f"{REPLAY}served")),
    Case(sampling.ColdRisky, (f"{REPLAY}charge", f"{REPLAY}theta")),
    Case(sampling.SilentColdRisky, (f"{SAMPLER}surprisal", f"{SAMPLER}likelihood")),
)
