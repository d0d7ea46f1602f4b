"""Decoders that are wrong in one way each, and the catalogue of them.

A fault is a decoder like a user's, never an edited log: what it writes and claims is what a real
decoder with that mistake would write and claim. Each overrides a method or two of the reference
decoder. The catalogue says what each does, which check should notice it, and why one may be missed.
To add a fault, add a class to a file of this directory and a line here.
"""

from __future__ import annotations

from dataclasses import dataclass

from nafaudit.mechanisms.reference import AnchoredDecoder
from nafaudit.selftest.faults import accounts, sampling, serving
from nafaudit.selftest.faults.tools import about, name_of

# Groups of checks, by the beginning of their names.
REPLAY, SAMPLER, ACCOUNTS, OUTPUT = "replay: ", "sampler: ", "accounting", "decoder: "


@dataclass(frozen=True)
class FaultCase:
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
        """Returns the class's name in small letters, with hyphens."""
        return name_of(self.decoder)

    @property
    def about(self) -> str:
        """Returns one line on what it does."""
        return about(self.decoder)

    @property
    def must_catch(self) -> bool:
        """True if the self-test fails without an alarm."""
        return not (self.harmless or self.escapes)


def _sampler(decoder: type[AnchoredDecoder], *tests: str, escapes: str = "") -> FaultCase:
    return FaultCase(decoder, tuple(f"{SAMPLER}{test}" for test in tests), escapes=escapes)


CATALOGUE: tuple[FaultCase, ...] = (
    # What is sampled is not what was served and charged.
    _sampler(sampling.SampleRisky, "likelihood"),
    _sampler(sampling.SampleSafe, "likelihood"),
    _sampler(sampling.Tempered, "surprisal", "likelihood"),
    _sampler(sampling.SlightlyTempered, "surprisal", "likelihood"),
    _sampler(sampling.Heated, "surprisal", "likelihood"),
    _sampler(serving.TopP, "likelihood"),
    _sampler(serving.TopK, "likelihood"),
    _sampler(serving.MinP, "likelihood"),
    _sampler(serving.LooseTopP, "likelihood"),
    _sampler(serving.EpsilonCut, "likelihood"),
    _sampler(serving.Typical, "likelihood"),
    _sampler(sampling.Greedy, "likelihood"),
    _sampler(serving.SometimesGreedy, "likelihood"),
    _sampler(serving.SometimesUniform, "likelihood", "surprisal"),
    _sampler(sampling.ArithmeticMixture, "likelihood"),
    _sampler(sampling.ThetaPlus, "gain", "likelihood"),
    _sampler(
        sampling.ThetaPlusSmall,
        "gain",
        "likelihood",
        escapes="its tokens are too close to sound ones: several hundred outputs are needed",
    ),
    _sampler(
        sampling.CoarseWeights,
        "gain",
        "likelihood",
        escapes="the same as theta + 0.025 on average: several hundred outputs are needed",
    ),
    _sampler(sampling.ThetaMinus, "gain", "likelihood"),
    _sampler(serving.PenaltyAfter, "likelihood"),
    _sampler(serving.NoRepeatedPairs, "likelihood"),
    _sampler(serving.StopSuppressed, "likelihood"),
    _sampler(serving.StopsFavoured, "likelihood"),
    _sampler(serving.GreedyOpening, "some-steps"),
    _sampler(serving.RiskyTail, "gain", "likelihood", "some-steps"),
    _sampler(serving.HalfRisky, "likelihood"),
    _sampler(serving.SometimesRisky, "likelihood", "gain"),
    _sampler(serving.TriggeredRisky, "likelihood"),
    _sampler(serving.RareRisky, "some-outputs", "likelihood", "gain"),
    _sampler(
        serving.VeryRareRisky,
        "some-outputs",
        "likelihood",
        escapes="in a fifth of all audits of 60 outputs not one is faulty",
    ),
    _sampler(sampling.BadSpeculation, "likelihood", "gain"),
    _sampler(sampling.BestOfFour, "likelihood", "surprisal", "some-outputs"),
    # The randomness.
    FaultCase(sampling.NoiseReused, (f"{SAMPLER}repeats", f"{SAMPLER}shared-noise"), coupled=True),
    FaultCase(sampling.NoiseRepeatsEachStep, (f"{SAMPLER}likelihood", f"{SAMPLER}rank-pit")),
    FaultCase(sampling.FewSeeds, (f"{SAMPLER}repeats",), coupled=True),
    FaultCase(sampling.BatchNoise, (f"{SAMPLER}repeats", f"{SAMPLER}shared-noise"), coupled=True),
    # The budget.
    FaultCase(accounts.NoDebt, (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(accounts.NoDebtStated, (f"{REPLAY}debt",)),
    FaultCase(accounts.DebtAdded, (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(accounts.DebtHalved, (f"{REPLAY}debt",)),
    FaultCase(accounts.DebtDoubled, (f"{REPLAY}debt",)),
    FaultCase(accounts.DebtSummed, (f"{REPLAY}debt",)),
    FaultCase(accounts.DebtForgiven, (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(accounts.DebtOfTheBatch, (f"{REPLAY}debt",), coupled=True),
    FaultCase(accounts.OneStepAhead, (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(accounts.OneStepBehind, (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(accounts.KeepsItsSpend, (ACCOUNTS, f"{REPLAY}allowance"), coupled=True),
    FaultCase(accounts.ForgetsItsSpend, (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(accounts.LargerBudget, (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(accounts.FirstStepFree, ("invariant", ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(accounts.Overshoots, ("invariant", f"{REPLAY}charge")),
    FaultCase(accounts.NoBank, (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(accounts.PooledBudget, (ACCOUNTS, f"{REPLAY}allowance"), coupled=True),
    # The charge, and what is said of it.
    FaultCase(accounts.ReverseDivergence, (f"{REPLAY}theta", f"{REPLAY}charge")),
    FaultCase(accounts.ChargesTheDraw, ("invariant", f"{REPLAY}charge")),
    FaultCase(accounts.ChargesHalf, (f"{REPLAY}charge", f"{REPLAY}spend")),
    FaultCase(accounts.UnitMixedUp, (f"{REPLAY}charge", f"{REPLAY}spend")),
    FaultCase(accounts.ChargesTwice, (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(accounts.ClaimsTwice, (f"{REPLAY}charge", f"{REPLAY}spend")),
    FaultCase(accounts.ClaimsHalf, (f"{REPLAY}charge", f"{REPLAY}spend")),
    FaultCase(accounts.ClaimsNothing, (f"{SAMPLER}likelihood", f"{SAMPLER}gain")),
    FaultCase(accounts.TotalHalved, (f"{REPLAY}spend",)),
    FaultCase(accounts.ClaimsTheBudget, (f"{REPLAY}charge", f"{REPLAY}spend")),
    FaultCase(accounts.ClaimsAnotherToken, (f"{REPLAY}served",)),
    FaultCase(accounts.MeanCharge, (f"{REPLAY}charge", f"{REPLAY}spend"), coupled=True),
    FaultCase(accounts.MaxDivergence, (f"{REPLAY}charge", f"{REPLAY}spend")),
    # Ends and batches.
    FaultCase(serving.StopUncharged, (f"{REPLAY}charge", f"{REPLAY}spend")),
    FaultCase(serving.RunsPastItsStop, (f"{OUTPUT}after-stop",)),
    FaultCase(serving.StopsShort, (f"{OUTPUT}short",)),
    FaultCase(serving.StripsItsStop, (f"{OUTPUT}short",)),
    FaultCase(serving.StopsElsewhere, (f"{OUTPUT}short",)),
    FaultCase(serving.SwappedRows, (REPLAY,), coupled=True),
    # The laws.
    FaultCase(
        sampling.Bfloat16,
        (REPLAY,),
        harmless="overspends by less than 0.1 %: rounding, which any 16-bit model has",
    ),
    FaultCase(sampling.WrongAnchor, (f"{REPLAY}charge", f"{REPLAY}theta")),
    FaultCase(sampling.WarmAnchor, (f"{REPLAY}charge", f"{REPLAY}theta")),
    FaultCase(sampling.SwappedModels, (f"{REPLAY}charge", f"{REPLAY}theta")),
    FaultCase(sampling.StaleLaws, (REPLAY,)),
    FaultCase(sampling.StaleAnchor, (REPLAY,)),
    FaultCase(sampling.SometimesStale, (f"{SAMPLER}surprisal", f"{SAMPLER}likelihood")),
    FaultCase(sampling.ForgetsThePrompt, (f"{REPLAY}safe", f"{REPLAY}served")),
    FaultCase(sampling.ColdRisky, (f"{REPLAY}charge", f"{REPLAY}theta")),
    FaultCase(sampling.SilentColdRisky, (f"{SAMPLER}surprisal", f"{SAMPLER}likelihood")),
)
