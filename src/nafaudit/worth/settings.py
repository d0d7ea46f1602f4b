"""What a user may set for an attack, beside everything that a run can be told."""

from __future__ import annotations

from dataclasses import dataclass

from nafaudit.core.errors import InputError, nearest
from nafaudit.core.ledger import is_baseline
from nafaudit.core.settings import Settings

MODES = ("single", "oracle", "chained")
ADMISSION = 0.10
"""Recall of the risky model alone below which an attack says nothing about a mechanism."""


@dataclass(frozen=True)
class AttackSettings(Settings):
    """Everything `nafaudit attack` can be told; the names of `nafaudit run` mean the same here.

    Attributes:
        k: Budgets in nats per token; both baselines are always added.
        trajectories: How often each query is asked.
        limit: At most so many passages, spread evenly over those given; 0 for all.
        given: Tokens of each passage that the attacker knows.
        modes: Ways to ask: `single`, which is always there, `oracle` and `chained`.
        window: Tokens that one query of a window attack asks for.
        ablation: True to attack without the prefix debt as well.
        target: Near-verbatim recall whose budget is looked for.
        user_budgets: Total nats that one user may spend, for the odometer.
    """

    k: tuple[float, ...] = (1.0, 5.0, 10.0, 20.0)
    trajectories: int = 2
    limit: int | None = 16
    given: int = 25
    modes: tuple[str, ...] = MODES
    window: tuple[int, ...] = (50,)
    ablation: bool = True
    target: float = ADMISSION
    user_budgets: tuple[float, ...] = (100.0, 200.0, 400.0, 800.0, 1600.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.given < 1:
            raise InputError(f"given must be at least 1 token, got {self.given}.")
        for name in self.modes:
            if name not in MODES:
                raise InputError(
                    f"unknown mode {name!r}{nearest(name, MODES)} Known: {', '.join(MODES)}."
                )
        if not self.window or min(self.window) < 1:
            raise InputError(f"window must be at least 1 token, got {self.window}.")
        if not 0 < self.target < 1:
            raise InputError(f"target is a recall between 0 and 1, got {self.target}.")
        if not self.user_budgets or min(self.user_budgets) <= 0:
            raise InputError(
                f"user-budget must be above 0 nats, got {', '.join(map(str, self.user_budgets))}."
            )
        if all(is_baseline(k) for k in self.k):
            raise InputError("an attack needs a budget above 0, for example --k 1,5,10,20.")
        if self.protocol != "sound" or self.decoder is not None:
            raise InputError(
                "an attack decodes with our own engine under the protocol sound; leave out "
                "protocol and decoder."
            )
        object.__setattr__(self, "user_budgets", tuple(sorted(set(self.user_budgets))))
        object.__setattr__(self, "window", tuple(sorted(set(self.window))))

    @property
    def debts(self) -> tuple[bool, ...]:
        """With the prefix debt, and without it."""
        if not self.prefix_debt:
            return (False,)
        return (True, False) if self.ablation else (True,)
