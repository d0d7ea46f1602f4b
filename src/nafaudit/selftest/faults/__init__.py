"""Decoders that are wrong in one way each, and the catalogue of them.

A fault is a decoder like a user's, never an edited log: what it writes and claims is what a real
decoder with that mistake would write and claim. Each overrides a method or two of the reference
decoder. The catalogue says what each does, what it breaks, whether the auditor knows its law, and
why one may be missed. Not each overspends: `FaultCase.exceeds` says which, and tests meter it.

To add a fault, add a class to a file of this directory and a line here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nafaudit.mechanisms.reference import AnchoredDecoder
from nafaudit.selftest.faults import accounts, banks, sampling, serving
from nafaudit.selftest.faults.tools import about, name_of, silent

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
        law: Name of its own law in the auditor's family, if it is listed there.
        within: True for a wrong sampler whose draws keep the budget all the same.
        metered: False where a step's law does not say what the drawn answers cost.
        harmless: Why a warning is enough; empty if it must be caught.
        escapes: Why 60 outputs need not show it; empty if they must.
    """

    decoder: type[AnchoredDecoder]
    breaks: Breaks
    law: str = ""
    within: bool = False
    metered: bool = True
    harmless: str = ""
    escapes: str = ""

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


CATALOGUE: tuple[FaultCase, ...] = (
    # What is sampled is not what was served and charged.
    FaultCase(sampling.SampleRisky, "sampling", law="the risky model alone"),
    FaultCase(sampling.SampleSafe, "sampling", law="the safe model alone", within=True),
    FaultCase(sampling.Tempered, "sampling"),
    FaultCase(sampling.SlightlyTempered, "sampling"),
    FaultCase(sampling.Heated, "sampling"),
    FaultCase(serving.TopP, "sampling", law="top-p 0.95 after 1 k"),
    FaultCase(serving.TopK, "sampling"),
    FaultCase(serving.MinP, "sampling", law="min-p 0.05 after 1 k"),
    FaultCase(serving.LooseTopP, "sampling", law="top-p 0.99 after 1 k"),
    FaultCase(serving.EpsilonCut, "sampling"),
    FaultCase(serving.Typical, "sampling"),
    FaultCase(sampling.Greedy, "sampling", law="greedy choice after 1 k"),
    FaultCase(serving.SometimesGreedy, "sampling", law="5% greedy choice after 1 k"),
    FaultCase(serving.SometimesUniform, "sampling"),
    FaultCase(
        sampling.ArithmeticMixture, "sampling", law="arithmetic mixture at the geometric weight"
    ),
    FaultCase(sampling.ThetaPlus, "sampling", law="weight +0.1 at every step"),
    FaultCase(
        sampling.ThetaPlusSmall,
        "sampling",
        escapes="its tokens are too close to sound ones: several hundred outputs are needed",
    ),
    FaultCase(
        sampling.CoarseWeights,
        "sampling",
        escapes="the same as theta + 0.025 on average: several hundred outputs are needed",
    ),
    FaultCase(sampling.ThetaMinus, "sampling", within=True),
    FaultCase(serving.PenaltyAfter, "sampling"),
    FaultCase(serving.NoRepeatedPairs, "sampling"),
    FaultCase(serving.StopSuppressed, "sampling"),
    FaultCase(serving.StopsFavoured, "sampling"),
    FaultCase(serving.GreedyOpening, "sampling"),
    FaultCase(serving.RiskyTail, "sampling"),
    FaultCase(serving.HalfRisky, "sampling"),
    FaultCase(serving.SometimesRisky, "sampling"),
    FaultCase(serving.TriggeredRisky, "sampling"),
    FaultCase(serving.RareRisky, "sampling", law="the risky model alone in some answers"),
    FaultCase(
        serving.VeryRareRisky,
        "sampling",
        escapes="in a fifth of all audits of 60 outputs not one is faulty",
    ),
    FaultCase(sampling.ThetaRoundedUp, "sampling", law="weights rounded up to tenths"),
    FaultCase(sampling.ThetaPlusTwentieth, "sampling", law="weight +0.05"),
    FaultCase(
        sampling.ArithmeticServed, "sampling", law="arithmetic mixture at the geometric weight"
    ),
    FaultCase(serving.RepetitionPenalty, "sampling", law="penalty 1.2 after 1 k"),
    FaultCase(serving.BannedWords, "sampling"),
    FaultCase(serving.DeniesTheFirst, "sampling", law="the first token risky"),
    FaultCase(
        serving.DeniesTheLast,
        "sampling",
        law="the last tenth risky",
        escapes="answers that stop early never come to it",
    ),
    FaultCase(
        serving.DeniesEveryTenth,
        "sampling",
        law="the risky model alone in some answers",
        escapes="where the budget is large, six such answers in 60 look like sound ones",
    ),
    FaultCase(sampling.BadSpeculation, "sampling"),
    FaultCase(sampling.BestOfFour, "sampling", metered=False),
    # The randomness.
    FaultCase(sampling.NoiseReused, "sampling", metered=False),
    FaultCase(sampling.NoiseRepeatsEachStep, "sampling", metered=False),
    FaultCase(sampling.FewSeeds, "sampling", metered=False),
    FaultCase(sampling.BatchNoise, "sampling", within=True),
    # The budget.
    FaultCase(accounts.NoDebt, "budget", law="no debt"),
    FaultCase(accounts.NoDebtStated, "budget", law="no debt"),
    FaultCase(accounts.DebtAdded, "budget", law="the debt added"),
    FaultCase(accounts.DebtHalved, "budget", law="0.5 times the debt"),
    FaultCase(accounts.DebtDoubled, "conformity", law="2 times the debt"),
    FaultCase(accounts.DebtSummed, "conformity", law="5 times the debt"),
    FaultCase(accounts.DebtForgiven, "budget", law="debt forgotten after ten steps"),
    FaultCase(accounts.DebtOfTheBatch, "budget", law="the mean debt of its batch"),
    FaultCase(accounts.OneStepAhead, "budget", law="budget one step early"),
    FaultCase(accounts.OneStepBehind, "conformity", law="budget one step late"),
    FaultCase(accounts.KeepsItsSpend, "budget"),
    FaultCase(accounts.ForgetsItsSpend, "budget", law="spend forgotten every 10 steps"),
    FaultCase(accounts.LargerBudget, "budget", law="1.05 k"),
    FaultCase(accounts.FirstStepFree, "budget", law="the first token risky"),
    FaultCase(accounts.Overshoots, "budget"),
    FaultCase(accounts.NoBank, "conformity", law="no bank"),
    FaultCase(accounts.PooledBudget, "budget", law="a budget that its batch shares"),
    # Whose budget, and when.
    FaultCase(banks.TwoStepsAhead, "budget", law="budget two steps early"),
    FaultCase(banks.BankReset, "budget", law="spend forgotten every 10 steps"),
    FaultCase(banks.BankRefilled, "budget", law="bank refilled every 10 steps"),
    FaultCase(banks.FifteenPercentMore, "budget", law="1.15 k"),
    FaultCase(banks.TwiceTheBudget, "budget", law="2 k"),
    FaultCase(banks.PreviousDebt, "budget", law="the previous request's debt"),
    FaultCase(banks.NeighboursDebt, "budget", law="the next request's debt"),
    FaultCase(banks.FirstRowsDebt, "budget", law="the debt of its batch's first row"),
    FaultCase(banks.FirstRowsBudget, "budget", law="the spend of its batch's first row"),
    FaultCase(
        banks.InheritsTheRest,
        "budget",
        law="the last answer's bank inherited",
        escapes="where answers spend all that they have, none leaves anything",
    ),
    FaultCase(banks.BooksLate, "budget", law="charges booked one step late"),
    FaultCase(banks.ClipsItsCharge, "budget", law="1.3 times each allowance, booked as one"),
    FaultCase(banks.BooksTheDraw, "budget", law="charges booked as the token's log-ratio"),
    FaultCase(banks.HonestAlone, "budget", law="2 k"),
    FaultCase(
        banks.HotPrompts,
        "budget",
        escapes="in 5 % of all audits of twenty prompts, none of them is such a prompt",
    ),
    FaultCase(banks.LateCheat, "budget", law="the last tenth risky"),
    FaultCase(banks.EveryTenthAnswer, "budget", law="the risky model alone in some answers"),
    # The charge, and what is said of it.
    FaultCase(accounts.ReverseDivergence, "budget", law="KL of the safe law from the served one"),
    FaultCase(accounts.ChargesTheDraw, "budget", law="charges booked as the token's log-ratio"),
    FaultCase(accounts.ChargesHalf, "budget"),
    FaultCase(accounts.UnitMixedUp, "budget"),
    FaultCase(accounts.ChargesTwice, "bookkeeping"),
    FaultCase(accounts.ClaimsTwice, "bookkeeping"),
    FaultCase(accounts.ClaimsHalf, "budget"),
    FaultCase(accounts.ClaimsNothing, "budget", law="2 k"),
    FaultCase(
        accounts.TotalHalved,
        "bookkeeping",
        escapes="a total cannot be recomputed without the laws of its steps",
    ),
    FaultCase(accounts.ClaimsTheBudget, "budget"),
    FaultCase(accounts.ClaimsAnotherToken, "bookkeeping"),
    FaultCase(accounts.MeanCharge, "budget"),
    FaultCase(accounts.MaxDivergence, "bookkeeping"),
    # Ends and batches.
    FaultCase(serving.StopUncharged, "bookkeeping"),
    FaultCase(serving.RunsPastItsStop, "bookkeeping"),
    FaultCase(serving.StopsShort, "bookkeeping"),
    FaultCase(serving.StripsItsStop, "bookkeeping"),
    FaultCase(serving.StopsElsewhere, "bookkeeping"),
    FaultCase(serving.SwappedRows, "sampling"),
    # The laws.
    FaultCase(
        sampling.Bfloat16,
        "budget",
        harmless="overspends by less than 0.1 %: rounding, which any 16-bit model has",
    ),
    FaultCase(sampling.WrongAnchor, "budget"),
    FaultCase(sampling.WarmAnchor, "budget"),
    FaultCase(sampling.SwappedModels, "budget"),
    FaultCase(sampling.StaleLaws, "budget"),
    FaultCase(sampling.StaleAnchor, "budget"),
    FaultCase(sampling.SometimesStale, "sampling"),
    FaultCase(sampling.ForgetsThePrompt, "budget"),
    FaultCase(sampling.ColdRisky, "bookkeeping"),
    FaultCase(sampling.SilentColdRisky, "conformity"),
)
