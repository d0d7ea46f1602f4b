"""Tests whether a mechanism that chooses among whole outputs keeps its promise, by summing.

It serves no law at a step, so there is none to replay on the lab pair. Instead the exact law of
what it writes is computed in small worlds, over all drafts that can be drawn, with the rule's own
`plan` and `choose`. Outputs of `mechanisms.sequences.decode_by_choice`, which audits run, are then
compared with that law.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import chisquare

from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.draws import Stream
from nafaudit.core.errors import LawError
from nafaudit.core.ledger import Account, Banking, Payment
from nafaudit.mechanisms.divergences import Pathwise
from nafaudit.mechanisms.registry import SequenceMechanism
from nafaudit.mechanisms.sequences import checked_choice, checked_plan, decode_by_choice
from nafaudit.protocols import Draft, Drafts, Law, Plan, SequenceRule
from nafaudit.selftest.conform import Answered, ConformanceItem, Conforms
from nafaudit.selftest.worlds import ToyWorld, toy_world

Tokens = tuple[int, ...]
Outputs = dict[Tokens, float]
# A draft in the making: its tokens, their log-probabilities, and the account that pays for them.
_Open = tuple[Tokens, list[tuple[float, float, float]], Account]

PROMPT = (1, 2, 1)
SLACK = 1e-9
# Nats of each choice: enough for two, three and four safe drafts.
_SHARES = (math.log(2), math.log(3), math.log(4))
# A law is summed over at most this many combinations of drafts of one choice.
_MOST_WAYS = 6_000
_WRITTEN = 300
# A sound rule is called unsound once in a million trials.
_RARE = 1e-6


@dataclass(frozen=True, eq=False)
class ForkedWorld(ToyWorld):
    """Both models write token 1 except at some places, so that long outputs are still few.

    Attributes:
        forks: Lengths of a prefix after which there is a choice.
    """

    forks: frozenset[int] = frozenset()

    def laws(self, prefixes: Sequence[Sequence[int]]) -> tuple[Law, Law]:
        """Returns next-token log-laws after each prefix."""
        open_ = np.array([len(prefix) in self.forks for prefix in prefixes])[:, None]
        fixed = np.where(np.arange(self.size) == 1, 0.0, -np.inf)
        safe, risky = super().laws(prefixes)
        return np.where(open_, safe, fixed), np.where(open_, risky, fixed)


def conform_choosing(made: SequenceMechanism, name: str) -> list[ConformanceItem]:
    """Tries a sequence-level mechanism in small worlds and answers for every item.

    Args:
        made: The mechanism.
        name: Its name in messages.
    """
    try:
        trials = list(_trials(made, name))
        paid = [one for one in trials if one.budget > 0]
        answers = {
            "plans": (Conforms.YES, f"no plan costs more than its budget, of {len(trials)}"),
            "chooses": (Conforms.YES, "one of its drafts, however they fall"),
            "repeats": _repeats(paid, name),
            "promise": _promise(paid),
            # Of the largest budget, whose law is the furthest from the safe model's.
            "written": _written(paid[-1], name),
            "k = 0": _zero([one for one in trials if one.budget == 0]),
        }
    except LawError as error:
        answers = {"plans" if " plan" in str(error) else "chooses": (Conforms.NO, str(error))}
    return [ConformanceItem(item, *answer) for item, answer in answers.items()]


@dataclass(frozen=True)
class _ChoiceTrial:
    """One world and budget, and the exact law of what is written there; None if too large."""

    world: ToyWorld
    rule: SequenceRule
    budget: float
    plan: Plan
    law: Outputs | None
    safe: Outputs

    @property
    def k(self) -> float:
        return self.budget / self.world.decoding.max_new_tokens

    def decode(self, name: str, seed: int) -> tuple[Draft, NDArray[np.float64]]:
        """Decodes one output as audits do; returns it and the charge of each token."""
        return decode_by_choice(self.world, self.rule, name, PROMPT, self.k, Stream(seed))


def _trials(made: SequenceMechanism, name: str) -> Iterator[_ChoiceTrial]:
    for share, seed in product((*_SHARES, 0.0), range(3)):
        block = checked_plan(made.of_length(2).sequence, name, 2 * _SHARES[-1], 2).block
        length, starts = 2 * block or 2, (0, block) if block else (0,)
        rule, budget = made.of_length(length).sequence, share * len(starts)
        # A choice at both ends of a block, or as few as can be summed over.
        for ends, size in (((0, max(block, 2) - 1), 3), ((0,), 3), ((0,), 2)):
            if seed == 0:  # two models that want different tokens
                likely = np.array([[0.001, 0.989, 0.01]])[:, :size]
                safe = np.log(likely / likely.sum())
                risky = safe[:, ::-1].copy()
            else:
                random = toy_world(seed, size=size, contexts=11, gap=2.0, stop=0.0)
                safe, risky = random.safe, random.risky
            forks = frozenset(len(PROMPT) + start + end for start in starts for end in ends)
            stops, decoding = frozenset({0}), Decoding(length)
            world = ForkedWorld(safe, risky, stops, DebtRule(0), decoding, forks)
            plan = checked_plan(rule, name, budget, length)
            ways = world.size ** (len(ends) * (plan.safe + plan.risky))
            if ways <= _MOST_WAYS:
                break
        law = _law(world, rule, name, plan) if ways <= _MOST_WAYS else None
        yield _ChoiceTrial(world, rule, budget, plan, law, _safe_law(world))


def _law(world: ToyWorld, rule: SequenceRule, name: str, plan: Plan) -> Outputs:
    """Returns the exact law of what is written, over all drafts of every block."""
    length = world.decoding.max_new_tokens
    law: Outputs = {(): 1.0}
    for _ in range(plan.blocks(length)):
        grown: Outputs = {}
        for before, mass in law.items():
            if before and before[-1] in world.stops:
                grown[before] = mass
                continue
            most = min(plan.block or length, length - len(before))
            for y, chance in _chosen(world, rule, name, plan, (*PROMPT, *before), most).items():
                grown[(*before, *y)] = mass * chance
        law = grown
    return law


def _chosen(
    world: ToyWorld, rule: SequenceRule, name: str, plan: Plan, prefix: Tokens, most: int
) -> Outputs:
    """Returns the exact law of one choice."""
    safe = _drafts(world, prefix, most, "safe", plan.metered)
    risky = _drafts(world, prefix, most, "risky", 0.0) if plan.risky else []
    law: Counter[Tokens] = Counter()
    for drawn in product(*[safe] * plan.safe, *[risky] * plan.risky):
        chance = math.exp(math.fsum(float(draft.served.sum()) for draft in drawn))
        under = tuple(draft for draft in drawn[plan.safe :] if draft.ratio <= plan.cap)
        chosen = checked_choice(rule, name, Drafts(drawn[: plan.safe], under))
        law[chosen.tokens] += chance  # type: ignore[assignment]
    return dict(law)


def _drafts(world: ToyWorld, prefix: Tokens, most: int, kind: str, k: float) -> list[Draft]:
    """Returns every draft that can be drawn, with the log-probability of each token."""
    open_: list[_Open] = [((), [], Banking().open(k, 0.0))]
    found = []
    while open_:
        tokens, logs, account = open_.pop()
        safe, risky = world.laws([(*prefix, *tokens)])
        served = risky if kind == "risky" else safe
        if k:
            allowance = torch.tensor([account.allowance()], dtype=torch.float64)
            anchor, other = torch.from_numpy(safe), torch.from_numpy(risky)
            served = Pathwise().serve([()], anchor, other, allowance).law.numpy()
        for token in np.flatnonzero(served[0] > -np.inf).tolist():
            seen = float(safe[0, token]), float(risky[0, token]), float(served[0, token])
            paid = copy.deepcopy(account)
            paid.pay(Payment(seen[2] - seen[0], seen[2] - seen[0], token))
            grown = (*tokens, token), [*logs, seen], paid
            if len(grown[0]) == most or token in world.stops:
                found.append(Draft(grown[0], *np.array(grown[1]).T))
            else:
                open_.append(grown)
    return found


def _safe_law(world: ToyWorld) -> Outputs:
    drafts = _drafts(world, PROMPT, world.decoding.max_new_tokens, "safe", 0.0)
    return {draft.tokens: math.exp(float(draft.served.sum())) for draft in drafts}


def _repeats(trials: Sequence[_ChoiceTrial], name: str) -> Answered:
    for trial in trials:
        for seed in range(5):
            one, other = (trial.decode(name, seed)[0].tokens for _ in range(2))
            if one != other:
                text = f"with equal drafts it chose {one}, then {other}"
                return Conforms.NO, text
    return Conforms.YES, f"{5 * len(trials)} outputs are the same, token for token"


def _promise(trials: Sequence[_ChoiceTrial]) -> Answered:
    known = [(trial, trial.law) for trial in trials if trial.law is not None]
    if not known:
        text = "it plans more drafts than can be summed over"
        return Conforms.UNKNOWN, text
    nearest, count = 0.0, 0
    for trial, law in known:
        most = trial.plan.most(trial.world.decoding.max_new_tokens)
        count += len(law)
        for y, chance in law.items():
            ratio = math.log(chance) - math.log(trial.safe[y]) if y in trial.safe else math.inf
            nearest = max(nearest, ratio / trial.budget)
            if ratio > most + SLACK:
                text = f"output {y} is e^{ratio:.6g} times likelier, charged {most:.6g} nats"
                return Conforms.NO, text
    text = (
        f"no output of {count} is likelier than charged, summed over all drafts; the nearest "
        f"reaches {nearest:.1%} of its budget"
    )
    return Conforms.YES, text


def _written(trial: _ChoiceTrial, name: str) -> Answered:
    """Tests whether outputs follow the law that was summed up, and are charged within budget."""
    drawn: Counter[Tokens] = Counter()
    for seed in range(_WRITTEN):
        draft, charge = trial.decode(name, seed)
        drawn[draft.tokens] += 1
        if (spent := float(np.cumsum(charge).max())) > trial.budget + SLACK:
            text = f"{spent:.6g} nats are charged of a budget of {trial.budget:.6g}"
            return Conforms.NO, text
    if trial.law is None:
        return Conforms.UNKNOWN, "its law is out of reach; charges keep the budget"
    if strange := set(drawn) - set(trial.law):
        return Conforms.NO, f"it wrote {min(strange)}, which its law cannot"
    # Cells with few expected outputs are joined, so that the test's law is near enough.
    large = [y for y, chance in trial.law.items() if chance * _WRITTEN >= 5]
    seen = np.array([*(drawn[y] for y in large), 0.0])
    due = np.array([*(trial.law[y] * _WRITTEN for y in large), 0.0])
    seen[-1], due[-1] = _WRITTEN - seen.sum(), _WRITTEN - due.sum()
    kept = due > 1e-6
    p = float(chisquare(seen[kept], due[kept] * seen[kept].sum() / due[kept].sum()).pvalue)
    if p < _RARE:
        text = f"{_WRITTEN} outputs do not fit the law of its choices (p = {p:.1g})"
        return Conforms.NO, text
    return Conforms.YES, f"{_WRITTEN} outputs fit the law of its choices, in budget"


def _zero(trials: Sequence[_ChoiceTrial]) -> Answered:
    for trial in trials:
        law = trial.law or {}
        gap = max(abs(law.get(y, 0.0) - chance) for y, chance in trial.safe.items())
        if gap > SLACK:
            return Conforms.NO, f"an output's chance is off by {gap:.2g}"
    return Conforms.YES, "the law of its outputs is the safe model's"
