"""Decoders that are wrong in one way each, and the catalogue of them.

A fault is a decoder like a user's, never an edited log: what it writes and claims is what a real
decoder with that mistake would write and claim. Each overrides a method or two of the reference
decoder. The catalogue says what each does, what it breaks, which check should notice it, and why
one may be missed. Not each of them overspends: `FaultCase.exceeds` says which, and tests meter it.

To add a fault, add a class to a file of this directory and a line here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nafaudit.mechanisms.reference import AnchoredDecoder
from nafaudit.selftest.faults import accounts, banks, sampling, serving
from nafaudit.selftest.faults.tools import about, name_of, silent

# Groups of checks, by the beginning of their names.
REPLAY, SAMPLER, ACCOUNTS, OUTPUT = "replay: ", "sampler: ", "accounting", "decoder: "

Breaks = Literal["budget", "sampling", "bookkeeping", "conformity"]
"""What is wrong with a decoder, the gravest first.

budget: more is charged or served than was granted, at some prefix.
sampling: what is drawn is not what is charged and claimed.
bookkeeping: the budget is kept; something that is claimed, or the form of the answer, is wrong.
conformity: the budget is kept and the claims are true; it only differs from the anchored decoder.
    Such a decoder must not be accused.
"""


@dataclass(frozen=True)
class FaultCase:
    """One faulty decoder.

    Attributes:
        decoder: The class.
        breaks: What is wrong with it.
        expected: Beginnings of the names of checks that should notice, the likeliest first.
        within: True for a wrong sampler whose draws keep the budget all the same.
        metered: False where a step's law does not say what the drawn answers cost.
        harmless: Why a warning is enough; empty if it must be caught.
        escapes: Why 60 outputs need not show it; empty if they must.
        coupled: True if the outputs of one call depend on each other.
    """

    decoder: type[AnchoredDecoder]
    breaks: Breaks
    expected: tuple[str, ...]
    within: bool = False
    metered: bool = True
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
    def silent(self) -> type[AnchoredDecoder]:
        """Returns the same decoder, showing its tokens alone."""
        return silent(self.decoder)

    @property
    def exceeds(self) -> bool:
        """True if the laws that are drawn from cost more than was granted, at some prefix.

        Where they do not, the silent decoder is a sound one: it says nothing false.
        """
        return self.breaks == "budget" or (self.breaks == "sampling" and not self.within)

    @property
    def must_catch(self) -> bool:
        """True if the self-test fails without an alarm."""
        return not (self.harmless or self.escapes or self.breaks == "conformity")


def _sampler(
    decoder: type[AnchoredDecoder],
    *tests: str,
    within: bool = False,
    metered: bool = True,
    escapes: str = "",
) -> FaultCase:
    expected = tuple(f"{SAMPLER}{test}" for test in tests)
    return FaultCase(decoder, "sampling", expected, within, metered, escapes=escapes)


CATALOGUE: tuple[FaultCase, ...] = (
    # What is sampled is not what was served and charged.
    _sampler(sampling.SampleRisky, "likelihood"),
    _sampler(sampling.SampleSafe, "likelihood", within=True),
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
    _sampler(sampling.ThetaMinus, "gain", "likelihood", within=True),
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
    FaultCase(sampling.ThetaRoundedUp, "sampling", (f"{REPLAY}served", f"{SAMPLER}gain")),
    FaultCase(sampling.ThetaPlusTwentieth, "sampling", (f"{REPLAY}served", f"{SAMPLER}gain")),
    FaultCase(sampling.ArithmeticServed, "sampling", (f"{REPLAY}served", f"{SAMPLER}likelihood")),
    _sampler(serving.RepetitionPenalty, "likelihood"),
    _sampler(serving.BannedWords, "likelihood"),
    _sampler(serving.DeniesTheFirst, "some-steps", "likelihood"),
    _sampler(
        serving.DeniesTheLast,
        "some-steps",
        "likelihood",
        "gain",
        escapes="answers that stop early never come to it",
    ),
    _sampler(
        serving.DeniesEveryTenth,
        "some-outputs",
        "likelihood",
        "gain",
        escapes="where the budget is large, six such answers in 60 look like sound ones",
    ),
    _sampler(sampling.BadSpeculation, "likelihood", "gain"),
    _sampler(sampling.BestOfFour, "likelihood", "surprisal", "some-outputs", metered=False),
    # The randomness.
    FaultCase(
        sampling.NoiseReused,
        "sampling",
        (f"{SAMPLER}repeats", f"{SAMPLER}shared-noise"),
        metered=False,
        coupled=True,
    ),
    FaultCase(
        sampling.NoiseRepeatsEachStep,
        "sampling",
        (f"{SAMPLER}likelihood", f"{SAMPLER}rank-pit"),
        metered=False,
    ),
    FaultCase(sampling.FewSeeds, "sampling", (f"{SAMPLER}repeats",), metered=False, coupled=True),
    FaultCase(
        sampling.BatchNoise,
        "sampling",
        (f"{SAMPLER}repeats", f"{SAMPLER}shared-noise"),
        within=True,
        coupled=True,
    ),
    # The budget.
    FaultCase(accounts.NoDebt, "budget", (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(accounts.NoDebtStated, "budget", (f"{REPLAY}debt",)),
    FaultCase(accounts.DebtAdded, "budget", (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(accounts.DebtHalved, "budget", (f"{REPLAY}debt",)),
    FaultCase(accounts.DebtDoubled, "conformity", (f"{REPLAY}debt",)),
    FaultCase(accounts.DebtSummed, "conformity", (f"{REPLAY}debt",)),
    FaultCase(accounts.DebtForgiven, "budget", (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(accounts.DebtOfTheBatch, "budget", (f"{REPLAY}debt",), coupled=True),
    FaultCase(accounts.OneStepAhead, "budget", (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(accounts.OneStepBehind, "conformity", (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(accounts.KeepsItsSpend, "budget", (ACCOUNTS, f"{REPLAY}allowance"), coupled=True),
    FaultCase(accounts.ForgetsItsSpend, "budget", (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(accounts.LargerBudget, "budget", (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(accounts.FirstStepFree, "budget", ("invariant", ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(accounts.Overshoots, "budget", ("invariant", f"{REPLAY}charge")),
    FaultCase(accounts.NoBank, "conformity", (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(accounts.PooledBudget, "budget", (ACCOUNTS, f"{REPLAY}allowance"), coupled=True),
    # Whose budget, and when.
    FaultCase(banks.TwoStepsAhead, "budget", (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(banks.BankReset, "budget", (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(banks.BankRefilled, "budget", (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(banks.FifteenPercentMore, "budget", (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(banks.TwiceTheBudget, "budget", (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(banks.PreviousDebt, "budget", (f"{REPLAY}debt",), coupled=True),
    FaultCase(banks.NeighboursDebt, "budget", (f"{REPLAY}debt",), coupled=True),
    FaultCase(banks.FirstRowsDebt, "budget", (f"{REPLAY}debt",), coupled=True),
    FaultCase(banks.FirstRowsBudget, "budget", (ACCOUNTS, f"{REPLAY}allowance"), coupled=True),
    FaultCase(
        banks.InheritsTheRest,
        "budget",
        (ACCOUNTS, f"{REPLAY}allowance"),
        escapes="where answers spend all that they have, none leaves anything",
        coupled=True,
    ),
    FaultCase(banks.BooksLate, "budget", (f"{REPLAY}charge", f"{REPLAY}spend")),
    FaultCase(banks.ClipsItsCharge, "budget", (f"{REPLAY}theta", f"{REPLAY}charge")),
    FaultCase(banks.BooksTheDraw, "budget", (f"{REPLAY}spend",)),
    FaultCase(banks.HonestAlone, "budget", (ACCOUNTS, f"{REPLAY}allowance"), coupled=True),
    FaultCase(
        banks.HotPrompts,
        "budget",
        (ACCOUNTS, f"{REPLAY}allowance"),
        escapes="in 5 % of all audits of twenty prompts, none of them is such a prompt",
    ),
    FaultCase(banks.LateCheat, "budget", (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(banks.EveryTenthAnswer, "budget", (ACCOUNTS, f"{REPLAY}allowance")),
    # The charge, and what is said of it.
    FaultCase(accounts.ReverseDivergence, "budget", (f"{REPLAY}theta", f"{REPLAY}charge")),
    FaultCase(accounts.ChargesTheDraw, "budget", ("invariant", f"{REPLAY}charge")),
    FaultCase(accounts.ChargesHalf, "budget", (f"{REPLAY}charge", f"{REPLAY}spend")),
    FaultCase(accounts.UnitMixedUp, "budget", (f"{REPLAY}charge", f"{REPLAY}spend")),
    FaultCase(accounts.ChargesTwice, "bookkeeping", (ACCOUNTS, f"{REPLAY}allowance")),
    FaultCase(accounts.ClaimsTwice, "bookkeeping", (f"{REPLAY}charge", f"{REPLAY}spend")),
    FaultCase(accounts.ClaimsHalf, "budget", (f"{REPLAY}charge", f"{REPLAY}spend")),
    FaultCase(accounts.ClaimsNothing, "budget", (f"{SAMPLER}likelihood", f"{SAMPLER}gain")),
    FaultCase(accounts.TotalHalved, "bookkeeping", (f"{REPLAY}spend",)),
    FaultCase(accounts.ClaimsTheBudget, "budget", (f"{REPLAY}charge", f"{REPLAY}spend")),
    FaultCase(accounts.ClaimsAnotherToken, "bookkeeping", (f"{REPLAY}served",)),
    FaultCase(accounts.MeanCharge, "budget", (f"{REPLAY}charge", f"{REPLAY}spend"), coupled=True),
    FaultCase(accounts.MaxDivergence, "bookkeeping", (f"{REPLAY}charge", f"{REPLAY}spend")),
    # Ends and batches.
    FaultCase(serving.StopUncharged, "bookkeeping", (f"{REPLAY}charge", f"{REPLAY}spend")),
    FaultCase(serving.RunsPastItsStop, "bookkeeping", (f"{OUTPUT}after-stop",)),
    FaultCase(serving.StopsShort, "bookkeeping", (f"{OUTPUT}short",)),
    FaultCase(serving.StripsItsStop, "bookkeeping", (f"{OUTPUT}short",)),
    FaultCase(serving.StopsElsewhere, "bookkeeping", (f"{OUTPUT}short",)),
    FaultCase(serving.SwappedRows, "sampling", (REPLAY,), coupled=True),
    # The laws.
    FaultCase(
        sampling.Bfloat16,
        "budget",
        (REPLAY,),
        harmless="overspends by less than 0.1 %: rounding, which any 16-bit model has",
    ),
    FaultCase(sampling.WrongAnchor, "budget", (f"{REPLAY}charge", f"{REPLAY}theta")),
    FaultCase(sampling.WarmAnchor, "budget", (f"{REPLAY}charge", f"{REPLAY}theta")),
    FaultCase(sampling.SwappedModels, "budget", (f"{REPLAY}charge", f"{REPLAY}theta")),
    FaultCase(sampling.StaleLaws, "budget", (REPLAY,)),
    FaultCase(sampling.StaleAnchor, "budget", (REPLAY,)),
    FaultCase(sampling.SometimesStale, "sampling", (f"{SAMPLER}surprisal", f"{SAMPLER}likelihood")),
    FaultCase(sampling.ForgetsThePrompt, "budget", (f"{REPLAY}safe", f"{REPLAY}served")),
    FaultCase(sampling.ColdRisky, "bookkeeping", (f"{REPLAY}charge", f"{REPLAY}theta")),
    FaultCase(
        sampling.SilentColdRisky, "conformity", (f"{SAMPLER}surprisal", f"{SAMPLER}likelihood")
    ),
)
