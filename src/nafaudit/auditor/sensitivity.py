"""How small an overspend the sampler tests would have seen in these very trajectories.

A black box can make its claims agree with its promise, and tokens that pass the tests may still
come from a decoder that overspends. So audits are simulated: at every replayed step, tokens are
drawn from the law that a decoder with a larger budget would have served there, and the tests look
at these instead of the tokens that were written. The prefixes stay those of the run. Tests that
need whole outputs (shared noise, repeats, ranks, single steps) are left out, so that the real
battery sees at least as much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nafaudit.auditor.alternatives import drawn_scores
from nafaudit.auditor.replay import Replayer, ReplayTask
from nafaudit.auditor.sampler import SHARES, contrast_p, likelihood_p, some_outputs_p, summed
from nafaudit.core.draws import sound_stream, uniforms, words
from nafaudit.core.finding import CheckWord, Finding
from nafaudit.core.trajectory import Key
from nafaudit.protocols import Mechanism, Served
from nafaudit.store.artifacts import OVERSPEND

FACTORS = (1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 4.0, 10.0)
"""Multiples of k that are simulated."""
AUDITS = 60
"""Simulated audits of each factor."""
PROBABILITY = 0.95


class Sensitivity:
    """Simulated audits of one arm, fed the laws of its replay.

    Args:
        mechanism: The promise.
        alpha: Level of the battery of sampler tests.
        factors: Multiples of k, from the smallest up.
    """

    def __init__(
        self, mechanism: Mechanism, alpha: float, factors: Sequence[float] = FACTORS
    ) -> None:
        self._mechanism, self._alpha, self._factors = mechanism, alpha, factors
        self._generous: dict[Key, list[Replayer]] = {}
        self._sums: dict[Key, dict[str, NDArray[np.float64]]] = {}

    def feed(
        self, task: ReplayTask, first: int, served: Served, safe: Tensor, risky: Tensor
    ) -> None:
        """Takes the steps of one trajectory from `first` on, in order.

        Args:
            task: The trajectory, with its debt.
            first: Number of the first step.
            served: What a sound decoder serves.
            safe: Log-laws of the safe model.
            risky: Log-laws of the risky model.
        """
        key = task.key
        if key not in self._generous:
            silent = replace(task, theta=None, stream=None, other_debt=None)
            self._generous[key] = [
                Replayer(self._mechanism, replace(silent, key=key._replace(k=key.k * factor)))
                for factor in self._factors
            ]
        stream = sound_stream(0, "sensitivity", key.prompt, key.trajectory)
        steps = [uniforms(words(stream, first + step, AUDITS)) for step in range(len(safe))]
        noise = torch.from_numpy(np.stack(steps)).to(safe.device)
        drawn = []
        for replayer in self._generous[key]:
            law = torch.cat([block.law for block in replayer.feed(safe, risky)])
            running = torch.cumsum(torch.exp(law), dim=-1)
            token = torch.searchsorted(running, noise * running[:, -1:])
            drawn.append(token.clamp(max=law.shape[-1] - 1))
        scores = drawn_scores(served.law, safe, risky, served.theta, torch.cat(drawn, dim=-1))
        found = summed(scores)
        before = self._sums.get(key)
        self._sums[key] = found if before is None else {n: before[n] + found[n] for n in found}
        if first + len(safe) == len(task.tokens):
            del self._generous[key]

    def pop(self, key: Key) -> dict[str, NDArray[np.float64]] | None:
        """Removes and returns the sums of a trajectory; None if it has none."""
        return self._sums.pop(key, None)

    def add(self, key: Key, sums: dict[str, NDArray[np.float64]]) -> None:
        """Takes the sums of a trajectory, also from another process."""
        self._sums[key] = sums

    def powers(self) -> dict[float, float]:
        """Returns the share of simulated audits that refute, by factor."""
        if not self._sums:
            return {}
        keys = sorted(self._sums)
        # [audits, trajectories, numbers]
        sums = {
            name: np.stack([self._sums[key][name] for key in keys], axis=1)
            for name in ("ratios", "tilts", "surprisal", "gain")
        }
        found = {
            "likelihood": likelihood_p(sums["ratios"]),
            "some-outputs": some_outputs_p(sums["ratios"]),
            "surprisal": contrast_p(sums["surprisal"]),
            "gain": contrast_p(sums["gain"]),
            "gain-cgf": likelihood_p(sums["tilts"]),
        }
        fired = np.any([p <= SHARES[name] * self._alpha for name, p in found.items()], axis=0)
        rates = fired.reshape(len(self._factors), AUDITS).mean(axis=1)
        return dict(zip(self._factors, rates.tolist(), strict=True))

    def finding(self, claims: bool = False) -> Finding:
        """Returns the smallest factor that would have been seen; infinite if none would.

        Args:
            claims: True if the decoder claims something of what it served.
        """
        powers, n = self.powers(), len(self._sums)
        seen = next((f for f, rate in powers.items() if rate >= PROBABILITY), math.inf)
        most = f"{max(self._factors):g}"
        if math.isinf(seen):
            text = (
                f"not even {most} times k would have been seen with {PROBABILITY:.0%} probability"
            )
        else:
            text = (
                f"a decoder that grants itself {seen:g} times k"
                f"{' and claims what k gives' if claims else ''} would have been refuted with "
                f"{PROBABILITY:.0%} probability, a smaller overspend perhaps not"
            )
        text += f" (simulated from the replayed laws of {n} trajectories)"
        numbers = {"executions": float(n), "claims": float(claims)} | {
            f"power at {f:g}": p for f, p in powers.items()
        }
        return Finding(OVERSPEND, CheckWord.INFO, seen, text, None, numbers)
