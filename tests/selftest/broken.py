"""Decoders that break one item of the contract each."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import log_softmax

from nafaudit.core.debt import prefix_debt
from nafaudit.mechanisms.reference import AnchoredDecoder, ReferenceRow
from nafaudit.protocols import Law, Output, Request, World


class Raises(AnchoredDecoder):
    def decode(self, requests: Sequence[Request]) -> list[Output]:
        raise ValueError("out of luck")


class Overlong(AnchoredDecoder):
    def decode(self, requests: Sequence[Request]) -> list[Output]:
        more = [replace(r, max_new_tokens=r.max_new_tokens + 1) for r in requests]
        return super().decode(more)


class ShowsLaws(AnchoredDecoder):
    """Sound: shows the law of every step."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.shown: dict[int, list[Law]] = {}

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        self.shown.setdefault(id(row), []).append(self.shows(law))
        return law

    def shows(self, law: Law) -> Law:
        return law

    def output(self, row: ReferenceRow) -> Output:
        return replace(super().output(row), laws=np.array(self.shown.pop(id(row))))


class ShowsLogits(ShowsLaws):
    def shows(self, law: Law) -> Law:
        return law + 0.5


class RunsOn(AnchoredDecoder):
    def output(self, row: ReferenceRow) -> Output:
        tokens = row.tokens + [row.tokens[-1]] * (row.tokens[-1] in self.world.stops)
        return Output(tokens, theta=None)


class DropsItsStop(AnchoredDecoder):
    def output(self, row: ReferenceRow) -> Output:
        cut = len(row.tokens) - (row.step > 1 and row.tokens[-1] in self.world.stops)
        claims = {name: values[:cut] for name, values in row.claims.items()}
        return Output(row.tokens[:cut], charge=claims["charge"], theta=claims["theta"])


class Unseeded(AnchoredDecoder):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.generator = np.random.default_rng(5)

    def draw(self, row: ReferenceRow, law: Law) -> int:
        return int(np.argmax(law + self.generator.gumbel(size=len(law))))


class OneSeed(AnchoredDecoder):
    def decode(self, requests: Sequence[Request]) -> list[Output]:
        return super().decode([replace(request, seed=1) for request in requests])


class ByPlace(AnchoredDecoder):
    """The seed of a row is its place in the batch."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        size = len(requests)
        mixed = [replace(r, seed=(r.seed + 977 * size * i) % 2**62) for i, r in enumerate(requests)]
        return super().decode(mixed)


class Padded(AnchoredDecoder):
    """Draws as if every prompt were as long as the longest."""

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        longest = max(len(request.prompt) for request in requests)
        shifted = [replace(r, seed=(r.seed + longest - len(r.prompt)) % 2**62) for r in requests]
        return super().decode(shifted)


class HalfPrice(AnchoredDecoder):
    def output(self, row: ReferenceRow) -> Output:
        said = super().output(row)
        return replace(said, charge=[c / 2 for c in said.charge or ()])


class Cold(AnchoredDecoder):
    """Cools the law after it was charged."""

    def sampled(self, row: ReferenceRow, law: Law, safe: Law, risky: Law) -> Law:
        hot = row.request.k in (0.0, math.inf)
        return law if hot else np.asarray(log_softmax(law / 0.5))


class Ahead(AnchoredDecoder):
    """Grants itself the next three steps' budget."""

    def allowance(self, row: ReferenceRow) -> float:
        k = row.request.k
        return k if k in (0.0, math.inf) else super().allowance(row) + 3 * k


class ZeroIsNoLimit(AnchoredDecoder):
    def allowance(self, row: ReferenceRow) -> float:
        return super().allowance(row) if row.request.k else math.inf


class InfinityIsLittle(AnchoredDecoder):
    def allowance(self, row: ReferenceRow) -> float:
        return 0.1 if row.request.k == math.inf else super().allowance(row)


class OwnLawsDebt(AnchoredDecoder):
    """Sound: counts its debt in the models' own laws, whatever was promised."""

    def debt(self, request: Request) -> float:
        rows, prompt = np.arange(len(request.prompt) - 1), np.asarray(request.prompt)
        safe, risky = self.world.prefix_laws(request.prompt, raw=True)
        gains = (risky - safe)[rows, prompt[1:]]
        counted = np.array([token not in self.world.special for token in prompt[1:]], bool)
        return prefix_debt(gains, counted, self.world.debt)


class OwnLawsDebtAhead(OwnLawsDebt):
    """The same, and grants itself three steps' budget."""

    def allowance(self, row: ReferenceRow) -> float:
        k = row.request.k
        return k if k in (0.0, math.inf) else super().allowance(row) + 3 * k


class HalfOwnLawsDebt(OwnLawsDebt):
    """Charges half of that debt, and claims all of it."""

    def debt(self, request: Request) -> float:
        return super().debt(request) / 2

    def output(self, row: ReferenceRow) -> Output:
        return replace(super().output(row), debt=2 * row.debt)


class NoDebt(AnchoredDecoder):
    """Sound, if no prefix debt was promised."""

    def debt(self, request: Request) -> float:
        return 0.0


class SilentNoDebt(NoDebt):
    """The same, and claims nothing."""

    def output(self, row: ReferenceRow) -> Output:
        return Output(row.tokens)


class Silent(AnchoredDecoder):
    """Sound, and claims nothing."""

    def output(self, row: ReferenceRow) -> Output:
        return Output(row.tokens)


class HalfAgain(AnchoredDecoder):
    """Grants itself half as much again, and claims the truth of it."""

    factor = 1.5

    def allowance(self, row: ReferenceRow) -> float:
        k = row.request.k
        if k in (0.0, np.inf):
            return k
        return max(0.0, self.factor * (row.step + 1) * k - row.spent - row.debt)


class SilentThrice(HalfAgain):
    """Grants itself three times as much, and claims nothing."""

    factor = 3.0

    def output(self, row: ReferenceRow) -> Output:
        return Output(row.tokens)


class TiresLater(AnchoredDecoder):
    """Writes one token after another for the first call, and then hangs."""

    calls = 0

    def decode(self, requests: Sequence[Request]) -> list[Output]:
        self.calls += 1
        if self.calls > 1:
            time.sleep(600)
        return [Output([5] * request.max_new_tokens) for request in requests]
