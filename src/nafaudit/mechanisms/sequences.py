"""Draws drafts for a mechanism that chooses among whole outputs, or among blocks of them.

Best-of-n and CP-k serve no law at a step; what they promise holds for the output as a whole. So
they get drafts: whole outputs that this module draws, from the safe model, or from the risky model
where the output's log-ratio is at most a cap. They choose one. Whatever the choice, an output y
that is one of n safe drafts or of m capped risky ones has

    q(y) <= (n + m e^cap) p_safe(y),

so the charge is log(n + m e^cap), computed here from the plan and never by the mechanism. With
blocks the same is done every L tokens, and charged every time. With metered drafts each draft is
drawn by the pathwise rule instead of from the safe model, so that its own log-ratio R(y) is
bounded, and log n + R(y) is charged. Shipped rules are in `choosing.py`;
`nafaudit.protocols.SequenceRule` declares what a rule must have.

References:
    Vyas, Kakade, Barak (2023), On provable copyright protection for generative models: CP-k.
    Beirami et al. (2024), Theoretical guarantees on the best-of-n alignment policy.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from nafaudit.core.draws import Stream, gumbel, sound_stream
from nafaudit.core.errors import LawError
from nafaudit.core.ledger import Banking, Payment
from nafaudit.mechanisms.divergences import Pathwise
from nafaudit.protocols import Draft, Drafts, Law, Plan, SequenceRule, World


def decode_by_choice(
    world: World, rule: SequenceRule, name: str, prompt: tuple[int, ...], k: float, stream: Stream
) -> tuple[Draft, NDArray[np.float64]]:
    """Draws drafts as the rule plans; returns the chosen output and the charge of each token.

    Args:
        world: The two models.
        rule: Rule that plans and chooses; a plug-in's too.
        name: Name of the rule, for errors.
        prompt: Token ids.
        k: Nats per token; the budget is k times the length limit.
        stream: Key of the draws.

    Raises:
        LawError: The rule raised, planned more than the budget pays for, or chose what was not
            drawn; the message names it.
    """
    length = world.decoding.max_new_tokens
    budget = k * length
    plan = checked_plan(rule, name, budget, length)
    parts: list[Draft] = []
    charges: list[NDArray[np.float64]] = []
    written: tuple[int, ...] = ()
    for number in range(plan.blocks(length)):
        most_tokens = min(plan.block or length, length - len(written))
        sources = _DraftSources(plan, stream, number)
        chosen = checked_choice(rule, name, _draw(world, (*prompt, *written), sources, most_tokens))
        charge = chosen.served - chosen.safe if plan.metered else np.zeros(len(chosen.tokens))
        charge[0] += plan.cost
        parts.append(chosen)
        charges.append(charge)
        written = (*written, *chosen.tokens)
        if written[-1] in world.stops:
            break
    return _joined(parts), np.concatenate(charges)


def checked_plan(rule: SequenceRule, name: str, budget: float, length: int) -> Plan:
    """Returns the rule's plan for outputs of at most `length` tokens, if the budget pays for it."""
    try:
        plan = _copy_of_plan(rule.plan(budget))
        most = plan.most(length)
    except (Exception, SystemExit) as error:  # reported under the plug-in's name
        raise LawError(f"{name}: plan raised {type(error).__name__}: {error}") from error
    if most > budget + 1e-9:
        raise LawError(f"{name} plans to spend {most:.6g} nats of a budget of {budget:.6g}.")
    return plan


def checked_choice(rule: SequenceRule, name: str, drafts: Drafts) -> Draft:
    """Returns what the rule chooses, as it was drawn."""
    try:
        shown = _copies(drafts)
        chosen = rule.choose(shown)
    except (Exception, SystemExit) as error:
        raise LawError(f"{name}: choose raised {type(error).__name__}: {error}") from error
    pairs = zip((*shown.safe, *shown.risky), (*drafts.safe, *drafts.risky), strict=True)
    for copy, original in pairs:
        if chosen is copy:
            return original
    raise LawError(f"{name} chose an output that is not among its drafts.")


def _joined(parts: Sequence[Draft]) -> Draft:
    tokens = tuple(token for part in parts for token in part.tokens)
    columns = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("safe", "risky", "served")
    )
    return Draft(tokens, *columns)


def _copy_of_plan(given: Plan) -> Plan:
    """Returns a new `Plan` with the rule's numbers, so that a rule cannot override the cost."""
    counts = operator.index(given.safe), operator.index(given.risky)
    return Plan(*counts, float(given.cap), operator.index(given.block), float(given.metered))


def _copies(drafts: Drafts) -> Drafts:
    """Returns copies that a rule may change; the originals are what is recorded."""
    safe, risky = (
        tuple(
            Draft(draft.tokens, draft.safe.copy(), draft.risky.copy(), draft.served.copy())
            for draft in group
        )
        for group in (drafts.safe, drafts.risky)
    )
    return Drafts(safe, risky)


class _DraftSources:
    """Law and noise that each draft of a plan is drawn with."""

    def __init__(self, plan: Plan, stream: Stream, block: int) -> None:
        self.plan = plan
        self.names = ["safe"] * plan.safe + ["risky"] * plan.risky
        # The words below are hashed into the draws: they must not change.
        where = f"block {block}" if block else ""
        self.streams = [
            sound_stream(stream.key, f"{kind} draft", where, i) for i, kind in enumerate(self.names)
        ]
        self._accounts = [Banking().open(plan.metered, 0.0) for _ in self.names]

    def laws(self, rows: Sequence[int], safe: Law, risky: Law) -> Law:
        """Returns the law that each row draws from."""
        if not self.plan.metered:
            is_risky = np.array([self.names[row] == "risky" for row in rows])
            return np.where(is_risky[:, None], risky, safe)
        granted = [self._accounts[row].allowance() for row in rows]
        allowance = torch.tensor(granted, dtype=torch.float64)
        anchor, other = (torch.from_numpy(np.ascontiguousarray(law)) for law in (safe, risky))
        served = Pathwise().serve([()] * len(rows), anchor, other, allowance)
        return np.asarray(served.law.numpy())

    def pay(self, row: int, ratio: float, token: int) -> None:
        """Charges a metered draft's account with the log-ratio of a token that it drew."""
        self._accounts[row].pay(Payment(ratio, ratio, token))


def _draw(world: World, prefix: tuple[int, ...], sources: _DraftSources, length: int) -> Drafts:
    """Draws all drafts of a plan, one step of each at a time; drafts are independent."""
    plan, count = sources.plan, len(sources.names)
    tokens: list[list[int]] = [[] for _ in range(count)]
    logs: list[list[tuple[float, float, float]]] = [[] for _ in range(count)]
    rows = list(range(count))
    for step in range(length):
        safe, risky = world.laws([(*prefix, *tokens[row]) for row in rows])
        served = sources.laws(rows, safe, risky)
        for at, row in enumerate(rows):
            token = int(np.argmax(served[at] + gumbel(sources.streams[row], step, world.size)))
            tokens[row].append(token)
            seen = tuple(float(law[at, token]) for law in (safe, risky, served))
            logs[row].append(seen)  # type: ignore[arg-type]
            sources.pay(row, seen[2] - seen[0], token)
        rows = [row for row in rows if tokens[row][-1] not in world.stops]
        if not rows:
            break
    drafts = [
        Draft(tuple(written), *np.array(log, np.float64).T)
        for written, log in zip(tokens, logs, strict=True)
    ]
    passed = [draft for draft in drafts[plan.safe :] if draft.ratio <= plan.cap]
    return Drafts(tuple(drafts[: plan.safe]), tuple(passed))
