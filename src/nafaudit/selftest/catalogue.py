"""The faulty decoders as data: what each is, which check should notice, and why one need not.

Adding a fault is adding a class to `faults.py` or `more_faults.py` and a line here.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

from nafaudit.mechanisms.reference import AnchoredDecoder
from nafaudit.selftest import faults as f
from nafaudit.selftest import more_faults as m

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
    _sampler(f.SampleRisky, "", "likelihood"),
    _sampler(f.SampleSafe, "", "likelihood"),
    _sampler(f.Tempered, "", "surprisal", "likelihood"),
    _sampler(f.SlightlyTempered, "", "surprisal", "likelihood"),
    _sampler(f.Heated, "", "surprisal", "likelihood"),
    _sampler(f.TopP, "", "likelihood"),
    _sampler(f.TopK, "", "likelihood"),
    _sampler(f.MinP, "", "likelihood"),
    _sampler(m.LooseTopP, "", "likelihood"),
    _sampler(m.EpsilonCut, "", "likelihood"),
    _sampler(m.Typical, "", "likelihood"),
    _sampler(f.Greedy, "", "likelihood"),
    _sampler(f.SometimesGreedy, "", "likelihood"),
    _sampler(f.SometimesUniform, "", "likelihood", "surprisal"),
    _sampler(f.ArithmeticMixture, "", "likelihood"),
    _sampler(f.ThetaPlus, "", "gain", "likelihood"),
    _sampler(
        f.ThetaPlusSmall,
        "its tokens are too close to sound ones: several hundred outputs are needed",
        "gain",
        "likelihood",
    ),
    _sampler(
        f.CoarseWeights,
        "the same as theta + 0.025 on average: several hundred outputs are needed",
        "gain",
        "likelihood",
    ),
    _sampler(f.ThetaMinus, "", "gain", "likelihood"),
    _sampler(f.PenaltyAfter, "", "likelihood"),
    _sampler(m.NoRepeatedPairs, "", "likelihood"),
    _sampler(f.StopSuppressed, "", "likelihood"),
    _sampler(m.StopsFavoured, "", "likelihood"),
    _sampler(f.GreedyOpening, "", "some-steps"),
    _sampler(f.RiskyTail, "", "gain", "likelihood", "some-steps"),
    _sampler(m.HalfRisky, "", "likelihood"),
    _sampler(m.SometimesRisky, "", "likelihood", "gain"),
    _sampler(m.TriggeredRisky, "", "likelihood"),
    _sampler(f.RareRisky, "", "some-outputs", "likelihood", "gain"),
    _sampler(
        m.VeryRareRisky,
        "in a fifth of all audits of 60 outputs not one is faulty",
        "some-outputs",
        "likelihood",
    ),
    _sampler(m.BadSpeculation, "", "likelihood", "gain"),
    _sampler(m.BestOfFour, "", "likelihood", "surprisal", "some-outputs"),
    # The randomness.
    Case(f.NoiseReused, (f"{SAMPLER}repeats", f"{SAMPLER}shared-noise"), coupled=True),
    Case(f.NoiseRepeatsEachStep, (f"{SAMPLER}likelihood", f"{SAMPLER}rank-pit")),
    Case(f.FewSeeds, (f"{SAMPLER}repeats",), coupled=True),
    Case(m.BatchNoise, (f"{SAMPLER}repeats", f"{SAMPLER}shared-noise"), coupled=True),
    # The budget.
    Case(f.NoDebt, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(f.NoDebtStated, (f"{REPLAY}debt",)),
    Case(f.DebtAdded, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(f.DebtHalved, (f"{REPLAY}debt",)),
    Case(f.DebtDoubled, (f"{REPLAY}debt",)),
    Case(m.DebtSummed, (f"{REPLAY}debt",)),
    Case(m.DebtForgiven, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(f.DebtOfTheBatch, (f"{REPLAY}debt",), coupled=True),
    Case(f.OneStepAhead, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(f.OneStepBehind, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(f.KeepsItsSpend, (ACCOUNTS, f"{REPLAY}allowance"), coupled=True),
    Case(f.ForgetsItsSpend, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(f.LargerBudget, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(f.FirstStepFree, ("invariant", ACCOUNTS, f"{REPLAY}allowance")),
    Case(f.Overshoots, ("invariant", f"{REPLAY}charge")),
    Case(m.NoBank, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(m.PooledBudget, (ACCOUNTS, f"{REPLAY}allowance"), coupled=True),
    # The charge, and what is said of it.
    Case(f.ReverseDivergence, (f"{REPLAY}theta", f"{REPLAY}charge")),
    Case(f.ChargesTheDraw, ("invariant", f"{REPLAY}charge")),
    Case(f.ChargesHalf, (f"{REPLAY}charge", f"{REPLAY}spend")),
    Case(f.UnitMixedUp, (f"{REPLAY}charge", f"{REPLAY}spend")),
    Case(f.ChargesTwice, (ACCOUNTS, f"{REPLAY}allowance")),
    Case(f.ClaimsTwice, (f"{REPLAY}charge", f"{REPLAY}spend")),
    Case(f.ClaimsHalf, (f"{REPLAY}charge", f"{REPLAY}spend")),
    Case(f.ClaimsNothing, (f"{SAMPLER}likelihood", f"{SAMPLER}gain")),
    Case(m.TotalHalved, (f"{REPLAY}spend",)),
    Case(m.ClaimsTheBudget, (f"{REPLAY}charge", f"{REPLAY}spend")),
    Case(m.ClaimsAnotherToken, (f"{REPLAY}served",)),
    Case(f.MeanCharge, (f"{REPLAY}charge", f"{REPLAY}spend"), coupled=True),
    Case(m.MaxDivergence, (f"{REPLAY}charge", f"{REPLAY}spend")),
    # Ends and batches.
    Case(f.StopUncharged, (f"{REPLAY}charge", f"{REPLAY}spend")),
    Case(f.RunsPastItsStop, (f"{OUTPUT}after-stop",)),
    Case(f.StopsShort, (f"{OUTPUT}short",)),
    Case(m.StripsItsStop, (f"{OUTPUT}short",)),
    Case(m.StopsElsewhere, (f"{OUTPUT}short",)),
    Case(m.SwappedRows, (REPLAY,), coupled=True),
    # The laws.
    Case(
        f.Bfloat16,
        (REPLAY,),
        harmless="overspends by less than 0.1 %: rounding, which any 16-bit model has",
    ),
    Case(f.WrongAnchor, (f"{REPLAY}charge", f"{REPLAY}theta")),
    Case(f.WarmAnchor, (f"{REPLAY}charge", f"{REPLAY}theta")),
    Case(f.SwappedModels, (f"{REPLAY}charge", f"{REPLAY}theta")),
    Case(f.StaleLaws, (REPLAY,)),
    Case(m.StaleAnchor, (REPLAY,)),
    Case(m.SometimesStale, (f"{SAMPLER}surprisal", f"{SAMPLER}likelihood")),
    Case(m.ForgetsThePrompt, (f"{REPLAY}safe", f"{REPLAY}served")),
    Case(m.ColdRisky, (f"{REPLAY}charge", f"{REPLAY}theta")),
    Case(m.SilentColdRisky, (f"{SAMPLER}surprisal", f"{SAMPLER}likelihood")),
)
