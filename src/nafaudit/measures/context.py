"""What is known of a run beyond its trajectories: budgets, tolerances, the text of an output."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.finding import (
    CheckWord,
    Fault,
    Finding,
    Kept,
    foreign_tolerance,
    own_tolerance,
    replayed_tolerance,
)
from nafaudit.core.ledger import (
    KL,
    Banking,
    Currency,
    Ledger,
    currency_of,
    is_baseline,
    ledger_of,
    most_granted,
    rate_behind,
    recorded_currency,
)
from nafaudit.core.passage import PassageScores
from nafaudit.core.promise import judged_by
from nafaudit.core.settings import DELTA
from nafaudit.core.text import detokenize
from nafaudit.core.trajectory import Arm, Key, Trajectory
from nafaudit.measures.overlap import PreparedReferences
from nafaudit.store.artifacts import (
    PASSAGES,
    LoggedTexts,
    read_passages_file,
    read_replayed,
    read_texts,
    read_verification,
    rules_remedy,
)
from nafaudit.store.missing import RequestedRecords, plan_of
from nafaudit.store.run import Run

NO_CLASS = "prompt"
"""Class of a prompt that names none."""


@dataclass(frozen=True)
class RunContext:
    """What the numbers of a trajectory depend on beyond its own record.

    Attributes:
        ledger: What grants budget; None if it is not known here.
        foreign: True for an imported log and for a black box: their numbers are claims.
        max_new_tokens: Length limit T; 0 if not known.
        stops: Token ids that end a row; empty if not known.
        references: Text that a prompt's outputs are compared with, by prompt id.
        pieces: What each token id stands for; empty if not known.
        passages: The protected passages and their surprisals; None if none were scored.
        labels: Class of each prompt; a prompt that is not in it has the class `NO_CLASS`.
        vocabulary: How many tokens there are, |V|; 0 if not known.
        faults: What a black-box decoder did wrong.
        claimed: True if the numbers are a black box's claims and have not been recomputed, or not
            by today's rules; of a log only if it once was verified.
        verified: What a verification of a black box found, if there was one.
        outdated: How to make a verification anew that counts as none, as other rules made it; empty
            if there is no such.
        held_to: What a black box or a log is judged by (`nafaudit.core.promise`); empty for our own
            engine, and where a log's own numbers are used.
        failed: The findings of a verification that contradict the records, of any kind of run.
        suspected: Its findings between noise and refutation.
        delta: How often any of the bounds of class means may miss, all together.
        currency: What charges are counted in.
        own_seeds: True if each budget of a black box was asked with seeds of its own.
        plan: What was asked for; None if it is not known.
        logged: What an imported log says of its outputs: texts, and scores that it claims.
        chosen: True if a search chose, by what it saw, what to draw next.
    """

    ledger: Ledger | None
    foreign: bool = False
    max_new_tokens: int = 0
    stops: frozenset[int] = frozenset()
    references: Mapping[str, str] = field(default_factory=dict)
    pieces: Sequence[bytes | None] = ()
    passages: PassageScores | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    vocabulary: int = 0
    faults: Sequence[Fault] = ()
    claimed: bool = False
    verified: Mapping[str, Any] | None = None
    outdated: str = ""
    held_to: str = ""
    failed: Sequence[Mapping[str, Any]] = ()
    suspected: Sequence[Mapping[str, Any]] = ()
    delta: float = DELTA
    currency: Currency = field(default_factory=lambda: currency_of(KL))
    own_seeds: bool = False
    plan: RequestedRecords | None = None
    logged: LoggedTexts = field(default_factory=LoggedTexts, repr=False)
    chosen: bool = False

    @classmethod
    def of(cls, run: Run) -> RunContext:
        """Reads what a run's own files say of it."""
        identity = run.design["identity"]
        boxed = "promise" in identity
        prompts, pieces = [tokenized.prompt for tokenized in run.prompts()], run.pieces
        verified = read_verification(run)
        if verified is not None and not verified["current"]:
            verified = None
        found = (verified or {}).get("findings", ())
        outdated = rules_remedy(run)
        # What a black box overspent by its replay is in its rows already.
        bad = (CheckWord.FAILED,) if boxed else (CheckWord.FAILED, Kept.VIOLATED)
        return cls(
            ledger=ledger_of(identity["ledger"], pieces),
            foreign=run.is_foreign,
            max_new_tokens=identity["decoding"]["max_new_tokens"],
            stops=run.stops,
            passages=read_passages_file(run.path / PASSAGES),
            references={prompt.id: prompt.reference for prompt in prompts},
            pieces=pieces,
            labels={prompt.id: prompt.label for prompt in prompts},
            vocabulary=run.vocabulary_size,
            faults=run.faults(),
            claimed=bool(outdated) or (boxed and read_replayed(run).keys() != run.keys()),
            verified=verified if boxed else None,
            outdated=outdated,
            held_to=(verified or {}).get("promise") or judged_by(identity),
            failed=[f for f in found if f["verdict"] in bad],
            suspected=[f for f in found if f["verdict"] == CheckWord.SUSPECT],
            delta=run.delta,
            currency=recorded_currency(identity),
            own_seeds="requests" in identity["layout"],
            plan=plan_of(run),
            logged=read_texts(run),
            chosen=identity.get("purpose") == "search",
        )

    @cached_property
    def prepared(self) -> PreparedReferences:
        """The references, ready to be compared with many outputs."""
        return PreparedReferences(self.references)

    @cached_property
    def surprisals(self) -> tuple[float, ...]:
        """S of every passage that is scored as far as an output can reach, smallest first."""
        scored = self.passages.passages if self.passages else ()
        values = (passage.surprisal(self.max_new_tokens) for passage in scored)
        return tuple(sorted(value for value in values if not math.isnan(value)))

    @cached_property
    def scored_by_log(self) -> frozenset[Key]:
        """Outputs with a score that the log claims and no text to compute it from.

        The paper's logs write 0 where there is no reference. So a prompt of which every output is
        claimed to share nothing counts as unscored, unless its reference is known.
        """
        told = {
            key: claims
            for key, claims in self.logged.claims.items()
            if "rouge_l" in claims and key not in self.logged.texts
        }
        real = {key.prompt for key, claims in told.items() if claims["rouge_l"] > 0}
        real |= {prompt for prompt, text in self.references.items() if text.strip()}
        return frozenset(key for key in told if key.prompt in real)

    def label(self, prompt: str) -> str:
        """Returns the class of a prompt."""
        return self.labels.get(prompt, NO_CLASS)

    def text(self, key: Key, tokens: NDArray[np.int32]) -> str | None:
        """Returns the text of an output; None if the record does not have it."""
        if not self.pieces or not tokens.size:
            return self.logged.texts.get(key)
        return detokenize(tokens, self.pieces)

    def of_budget(self, k: float) -> RunContext:
        """Returns the context of one arm: our baselines bank KL, as no mechanism acts there."""
        return self._baseline if is_baseline(k) else self

    @cached_property
    def _baseline(self) -> RunContext:
        found = replace(self, ledger=Banking(), currency=currency_of(KL))
        # One store of prepared references serves all arms.
        vars(found)["prepared"] = self.prepared
        return found

    def said(self, arm: Arm, check: str) -> Finding | None:
        """Returns what a verification says of an arm with a budget, or of the whole run."""
        for data in (self.verified or {}).get("findings", ()):
            named, k = data.get("mechanism") or arm.mechanism, data["k"]
            if data["check"] != check or named != arm.mechanism or is_baseline(arm.k):
                continue
            if k is None or float(k) == arm.k:
                known = {n: v for n, v in data["numbers"].items() if v is not None}
                numbers = {name: float(known.get(name, math.nan)) for name in data["numbers"]}
                value = math.nan if data["value"] is None else float(data["value"])
                return Finding(check, data["verdict"], value, data["text"], None, numbers)
        return None

    @property
    def theta_tolerance(self) -> float:
        """How far from 0 or 1 a weight still counts as that; our own records are exact."""
        return 1e-6 if self.foreign else 0.0

    def tolerance(self, limit: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns by how many nats rounding may make a limit seem exceeded."""
        slack = foreign_tolerance(limit) if self.foreign else own_tolerance(limit)
        if self.verified is not None and "spend" in self.verified["deviation"]:
            # What the pair's own noise allows a replayed sum, and a step of it.
            sums, step = (float(self.verified["deviation"][n]["fail"]) for n in ("spend", "charge"))
            return np.maximum(slack, replayed_tolerance(limit, sums, step))
        return slack

    def clamp_spends(self, spends: Iterable[float], budget: float) -> list[float]:
        """Returns spends without what rounding carried past 0 or K; any other unchanged."""
        slack = float(self.tolerance(np.array([budget]))[0])
        return [
            min(max(spend, 0.0), budget) if -slack <= spend <= budget + slack else spend
            for spend in spends
        ]

    def granted(self, trajectory: Trajectory) -> NDArray[np.float64] | None:
        """Returns B_t at every step: by the ledger, else as logged, else None."""
        if self.ledger is not None and not math.isnan(trajectory.debt):
            key, tokens = trajectory.key, trajectory.steps.token
            return self.ledger.accrued(key.k, trajectory.debt, tokens)
        logged = trajectory.logged
        return logged.granted if logged is not None and logged.granted.size else None

    def budget_ceiling(self, trajectory: Trajectory) -> NDArray[np.float64]:
        """Returns the most that can have been granted at every step; at the end, without steps.

        The least of what the ledger grants, what the log says it granted, and K = kT: a claim
        cannot raise it. A debt that is unknown or negative counts as none, and k is read as its
        digits and the budget allow where there are only totals. Infinite where nothing limits
        it.
        """
        key, logged, n = trajectory.key, trajectory.logged, len(trajectory)
        limits = np.full(n or 1, np.inf)
        if math.isinf(key.k):
            return limits
        if logged is not None and n and logged.granted.size == n:
            limits = np.fmin(limits, logged.granted)
        if logged is not None and not n:
            limits = np.fmin(limits, logged.budget)
        if logged is not None:
            limits = np.fmin(limits, logged.contested)
        if self.ledger is not None:
            debt = 0.0 if math.isnan(trajectory.debt) else max(0.0, trajectory.debt)
            if n:
                limits = np.fmin(limits, self.ledger.accrued(key.k, debt, trajectory.steps.token))
            lengths, k = (self.max_new_tokens, _length(trajectory)), key.k
            if logged is not None and not n:
                k = rate_behind(k, logged.budget, debt, lengths)
            for length in lengths:
                if length:
                    limits = np.fmin(limits, most_granted(self.ledger, k, debt, length))
        return np.asarray(np.maximum(limits, 0.0))

    def stated(self, trajectory: Trajectory) -> NDArray[np.float64] | None:
        """Returns the ceiling if the log's own budget is used, an initial credit included.

        None where that is not contested: the log states no more than k and T grant, or the user
        said which one counts.
        """
        key, logged, n = trajectory.key, trajectory.logged, len(trajectory)
        if logged is None or math.isnan(logged.contested):
            return None
        if n and logged.granted.size != n:
            return None
        limits = logged.granted if n else np.array([logged.budget])
        if self.ledger is not None:
            debt = 0.0 if math.isnan(trajectory.debt) else trajectory.debt
            if n:
                limits = np.fmin(limits, self.ledger.accrued(key.k, debt, trajectory.steps.token))
            elif length := _length(trajectory):
                k = rate_behind(key.k, logged.budget, debt, (length,))
                limits = np.fmin(limits, most_granted(self.ledger, k, debt, length))
        return np.asarray(np.maximum(limits, 0.0))

    def promised(self, k: float) -> float:
        """Returns K: the most that an output of T tokens without debt may be charged, in nats.

        kT for the banking ledger. NaN if T or the ledger is not known.
        """
        if self.ledger is None or not self.max_new_tokens or not self.currency.promised:
            return math.nan
        return most_granted(self.ledger, k, 0.0, self.max_new_tokens)

    def compared_with(self, k: float) -> float:
        """Returns what spends are compared with: K if it is promised, else kT; NaN without T.

        A mechanism that promises no budget, and a log of an unknown ledger, have only the latter.
        """
        promised = self.promised(k)
        if math.isnan(promised) and self.max_new_tokens:
            return k * self.max_new_tokens
        return promised

    def has_budget(self, trajectory: Trajectory) -> bool:
        """Returns True if the ceiling is the budget itself, not only an upper limit of it."""
        logged, n = trajectory.logged, len(trajectory)
        if math.isinf(trajectory.key.k):
            return True
        known = self.ledger is not None and not math.isnan(trajectory.debt)
        if known and (n or _length(trajectory)):
            return True
        if logged is None:
            return False
        if n:
            return bool(logged.granted.size == n and np.isfinite(logged.granted).all())
        return math.isfinite(logged.budget)


def _length(trajectory: Trajectory) -> int:
    """Returns how many tokens a log of totals says were written; 0 if it does not say."""
    logged = trajectory.logged
    if logged is None or len(trajectory) or not 0 < logged.length < 1e9:
        return 0
    return int(logged.length)
