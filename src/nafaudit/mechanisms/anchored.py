"""KL-anchored decoding: the largest weight of the risky law that costs at most the allowance.

p_theta ~ p_s^(1-theta) p_r^theta with the largest theta such that D_KL(p_theta || p_s) <= k_t.
The divergence D(theta) grows with theta: D' = theta Var_theta[l] with l = log p_r - log p_s.

Where one law forbids a token that the other allows, D jumps at theta = 0 or 1, because between them
p_theta allows only tokens that both laws allow. Then the law on the side of the jump that is within
the allowance is served, and part of the allowance stays unspent.

Reference: He et al., Anchored Decoding; the audited paper, section 3 (docs/paper-map.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nafaudit.mechanisms.laws import NEG_INF, gap, geodesic, kl
from nafaudit.mechanisms.solve import Solved, solve_batched, solve_row
from nafaudit.protocols import Served

# A smaller allowance is below the rounding error of a divergence, so it is taken as 0.
LEAST_ALLOWANCE = 1e-10
# Where the solve may stop: unspent <= SLACK * allowance + ABSOLUTE_SLACK.
SLACK = 1e-8
ABSOLUTE_SLACK = 1e-13
_ROUGH_SLACK = 1e-3
_ROUGH_ITERATIONS = 8
# Every third step bisects, so 180 steps halve the bracket at least 60 times.
ITERATIONS = 180
# On a GPU every test for the end waits for the device, so it is made every 8 iterations only.
_TEST_EVERY = 8


@dataclass(frozen=True)
class Anchored:
    """The rule of KL-anchored decoding; charge and allowance are in nats of KL.

    Attributes:
        batched: True to solve all rows at once; None for wherever rows are not on a CPU.
    """

    batched: bool | None = None

    def serve(
        self, prefixes: Sequence[Sequence[int]], safe: Tensor, risky: Tensor, allowance: Tensor
    ) -> Served:
        """Serves the law with the largest risky weight whose divergence is within the allowance."""
        batched = safe.device.type != "cpu" if self.batched is None else self.batched
        return (_all_rows if batched else _row_by_row)(safe, risky, allowance)


def _all_rows(safe: Tensor, risky: Tensor, allowance: Tensor) -> Served:
    """Serves all rows at once; waits for the device to know which rows need the solver."""
    cost = kl(risky, safe)
    funded = allowance >= LEAST_ALLOWANCE
    free = funded & (cost <= allowance)
    served = Served(
        torch.where(free.unsqueeze(-1), risky, safe),
        torch.where(free, cost, 0.0),
        free.to(torch.float64),
    )
    rows = (funded & ~free).nonzero().squeeze(-1)
    if not rows.numel():
        return served
    given = safe[rows], risky[rows], allowance[rows], cost[rows]
    solved, settled = solve_batched(*given)
    _put(solved, rows, served)
    left = (~settled).nonzero().squeeze(-1)
    if left.numel():
        _put(_newton_search(*(x[left] for x in given)), rows[left], served)
    return served


def _put(found: Served, rows: Tensor, served: Served) -> None:
    for column, part in zip(served, found, strict=True):
        column.index_copy_(0, rows, part)


def _row_by_row(safe: Tensor, risky: Tensor, allowance: Tensor) -> Served:
    """Serves on a CPU, where a row that is worked on alone stays in the cache."""
    gaps = gap(risky, safe)
    costs, allowed = gaps.total.tolist(), allowance.tolist()
    served = []
    for row, (cost, limit) in enumerate(zip(costs, allowed, strict=True)):
        if not limit >= LEAST_ALLOWANCE:
            served.append(Solved(safe[row], 0.0, 0.0))
        elif cost <= limit:
            served.append(Solved(risky[row], cost, 1.0))
        else:
            spread = torch.dot(gaps.weighted[row], gaps.ratio[row]).item() - cost * cost
            solved = solve_row(safe[row], gaps.ratio[row], limit, cost, spread)
            served.append(solved or _newton_search_row(safe[row], risky[row], limit, cost))
    law, charge, theta = zip(*served, strict=True)
    laws = law[0].unsqueeze(0) if len(law) == 1 else torch.stack(law)
    return Served(laws, *(torch.tensor(x, dtype=torch.float64) for x in (charge, theta)))


def _newton_search_row(safe: Tensor, risky: Tensor, allowance: float, cost: float) -> Solved:
    """Solves one row by Newton search, where the faster `solve_row` failed."""
    numbers = (torch.tensor([x], dtype=torch.float64) for x in (allowance, cost))
    law, charge, theta = _newton_search(safe.unsqueeze(0), risky.unsqueeze(0), *numbers)
    return Solved(law[0], float(charge), float(theta))


def _newton_search(safe: Tensor, risky: Tensor, allowance: Tensor, cost: Tensor) -> Served:
    """Solves rows whose risky law costs too much: roughly in float32, then in float64."""
    both = torch.isfinite(safe) & torch.isfinite(risky)
    base = torch.where(both, safe, NEG_INF)
    ratio = torch.where(both, risky - safe, 0.0)
    # D is about quadratic near 0, so sqrt(D) is about linear: this is exact for Gaussian ratios.
    start = torch.where(torch.isfinite(cost), torch.sqrt(allowance / cost), 0.5)
    single = [x.to(torch.float32) for x in (safe, base, ratio, allowance, start)]
    rough = _bracketed_newton(*single, slack=_ROUGH_SLACK, iterations=_ROUGH_ITERATIONS)
    found = rough.theta.to(torch.float64)
    start = torch.where((found > 0) & (found < 1), found, start)
    return _bracketed_newton(
        safe, base, ratio, allowance, start, slack=SLACK, iterations=ITERATIONS
    )


def _bracketed_newton(
    safe: Tensor,
    base: Tensor,
    ratio: Tensor,
    allowance: Tensor,
    start: Tensor,
    *,
    slack: float,
    iterations: int,
) -> Served:
    """Searches by bracketed Newton on sqrt(D) - sqrt(k_t); returns the best feasible law.

    Feasible means charge <= allowance by `kl` of the very law that is returned, so the promise
    does not rest on the accuracy of theta.
    """
    low, high = torch.zeros_like(start), torch.ones_like(start)
    # Every law on the common support costs at least -log(safe probability of that support).
    unreachable = -torch.logsumexp(base, dim=-1) > allowance * (1 + slack) + ABSOLUTE_SLACK
    best = Served(safe.clone(), torch.zeros_like(start), torch.zeros_like(start))
    target = torch.sqrt(allowance * (1 - slack / 2))
    enough = allowance - slack * allowance - ABSOLUTE_SLACK
    theta = torch.where((start > 0) & (start < 1), start, 0.5)
    every = 1 if safe.device.type == "cpu" else _TEST_EVERY
    for iteration in range(iterations):
        law = geodesic(base, ratio, theta)
        charge = kl(law, safe)
        feasible = charge <= allowance  # False for NaN
        better = feasible & (theta > best.theta)
        best = Served(
            torch.where(better.unsqueeze(-1), law, best.law),
            torch.where(better, charge, best.charge),
            torch.where(better, theta, best.theta),
        )
        low = torch.where(feasible, theta, low)
        high = torch.where(feasible, high, theta)
        middle = (low + high) / 2
        settled = (feasible & (charge >= enough)) | (middle <= low) | (middle >= high)
        done = settled | unreachable
        if iteration % every == every // 2 and done.all():
            break
        weight = torch.exp(law)
        mean = (weight * ratio).sum(dim=-1)
        spread = (weight * (ratio - mean.unsqueeze(-1)) ** 2).sum(dim=-1)
        root = torch.sqrt(charge)
        newton = theta + (target - root) * 2 * root / (theta * spread)
        inside = (newton > low) & (newton < high)
        step = torch.where(inside, newton, middle) if iteration % 3 != 2 else middle
        theta = torch.where(done, theta, step)
    return best
