"""Settings of a search by the paper's protocol, and the prompts that it starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from nafaudit.core.errors import InputError, nearest
from nafaudit.core.ledger import as_budget, is_baseline
from nafaudit.core.settings import RunSettings, WorkloadSettings, protocol_option
from nafaudit.paper.evaluator import Fixes, ProxyRule
from nafaudit.paper.proxy import DELTA
from nafaudit.paper.workload import PAPER, takes_lab
from nafaudit.search.candidate import Candidate
from nafaudit.search.settings import SearchBasics
from nafaudit.workload import Prompt, Sourced
from nafaudit.workload.prompts import CAPS, FILES, read_records

ATTACK, HELDOUT = "attack_train", "test"
SECOND = 5 / 3
"""The second budget over the first: the paper's 5 over its 3."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of the paper's search, by the names of its configuration.

    The last four are ours: rounds of validation and trajectories of an ablation, which its
    configuration does not name, and numbers of flagged prompts and their fresh trajectories.
    """

    init_traj: int = 12
    med_fid_traj: int = 10
    topup_traj: int = 16
    final_traj: int = 20
    heldout_traj: int = 20
    stress_traj: int = 30
    generations: int = 4
    calls_per_generation: int = 8
    candidates_per_call: int = 8
    crossover_calls_per_generation: int = 3
    crossover_candidates_per_call: int = 4
    prescreen_keep: int = 48
    med_fid_keep: int = 24
    topup_keep: int = 6
    archive_keep: int = 24
    ablation_random: int = 0
    ablation_no_surrogate: int = 4
    final_keep: int = 6
    heldout_keep: int = 8
    stress_keep: int = 4
    adaptive_eval_min_traj: int = 4
    surrogate_epochs: int = 80
    final_rounds: int = 5
    ablation_traj: int = 8
    recheck_keep: int = 24
    recheck_traj: int = 20

    def __post_init__(self) -> None:
        none = ("generations", "crossover_calls_per_generation", "recheck_keep")
        for name, value in vars(self).items():
            # A spread needs two spends; no seed of the paper's follows an offset of 1.
            least = 2 if name.endswith("_traj") else 1
            least = 0 if name in none or (name.startswith("ablation_") and least == 1) else least
            if value < least:
                raise InputError(f"size {name} must be at least {least}, got {value}.")

    @classmethod
    def of(cls, given: Mapping[str, int]) -> Sizes:
        """Returns the paper's sizes with some changed."""
        known = [one.name for one in fields(cls)]
        for name in given:
            if name not in known:
                raise InputError(
                    f"unknown size {name!r}{nearest(name, known)} Known: {', '.join(known)}."
                )
        return cls(**given)


@dataclass(frozen=True, kw_only=True)
class PaperSettings(SearchBasics):
    """Settings of `nafaudit search --protocol paper`."""

    protocol: str = protocol_option("paper", "The paper's search.", choices=("sound", "paper"))
    delta: float = protocol_option(DELTA, "Level of all limits together.", above=0, below=1)
    init: Mapping[str, int] = protocol_option(
        {ATTACK: 48, "factual": 24, "creative": 24},
        "Prompts that it starts from.",
        metavar="CLASS=N,...",
        form="CLASS=N, for example --init test=24",
        unset="attack_train=48,factual=24,creative=24",
    )
    heldout_class: str = protocol_option(HELDOUT, "Class of the held-out pool.")
    size: Mapping[str, int] = protocol_option(
        {},
        "Other sizes than the paper's, by its names: generations=1,init_traj=4.",
        metavar="NAME=N,...",
        form="NAME=N, for example --size generations=1",
    )
    fix: str = protocol_option(
        "",
        "The paper's own recommendation: min-n, at least 20 draws where a first rho is above 0.9.",
        metavar="NAME",
        unset="none",
    )
    topup_fraction: float = protocol_option(
        0.5, "Share of a pool that is topped up; its k = 5 table needs 0.75."
    )
    second_k: float | None = protocol_option(
        None, "Second budget for flagged prompts.", unset="5/3 of k, as 5 is of 3"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol != "paper":
            raise InputError(f"these are settings of the protocol paper, got {self.protocol!r}.")
        _ = self.sizes, self.rule(1)
        if self.classes or self.cap or self.limit or self.trajectories != RunSettings.trajectories:
            raise InputError(
                "classes, cap, limit and trajectories are not for a search of the paper's "
                "protocol: --init CLASS=N and --heldout-class choose its prompts, --size its "
                "trajectories."
            )
        if not self.init or min(self.init.values()) < 1:
            raise InputError("init must be CLASS=N with N at least 1, for example --init test=24.")
        if is_baseline(self.second) or self.second == self.budget:
            raise InputError(
                f"second-k must be a budget above 0 other than k = {self.budget:g}, got "
                f"{self.second_k}."
            )

    @classmethod
    def of_protocol(cls, protocol: str) -> dict[str, Any]:
        """Returns no further defaults: those of a run are for a fixed workload."""
        return {}

    @property
    def archive(self) -> str:
        """Archive rule in use."""
        return "paper"

    @property
    def surrogate(self) -> str:
        """Surrogate in use."""
        return "paper"

    @property
    def sizes(self) -> Sizes:
        """Sizes of the search."""
        return Sizes.of(self.size)

    @property
    def second(self) -> float:
        """The second budget of flagged prompts."""
        return as_budget(SECOND * self.budget if self.second_k is None else self.second_k)

    @property
    def total(self) -> float:
        """K = k T."""
        return self.budget * self.max_new_tokens

    def rule(self, high: float) -> ProxyRule:
        """Returns the evaluator's constants.

        Args:
            high: R of the proxy.
        """
        return ProxyRule(
            high=high,
            delta=self.delta,
            floor=self.sizes.adaptive_eval_min_traj,
            fraction=self.topup_fraction,
            rounding="text" if self.variant == "text" else "code",
            fixes=Fixes.parse(self.fix),
        )


@dataclass(frozen=True)
class PaperPools:
    """The prompts of the paper's search, chosen without chance.

    Attributes:
        init: Prompts that it starts from.
        heldout: Prompts that it never sees.
        prompts: The workload's prompts of both.
    """

    init: tuple[Candidate, ...]
    heldout: tuple[Candidate, ...]
    prompts: tuple[Prompt, ...]


def paper_pools(settings: PaperSettings) -> PaperPools:
    """Chooses the pools; loads no model.

    A class of the first pool is taken in the workload's order, which for the paper's files is by
    id; the held-out pool in the order of its file.
    """
    # The workload of a run, with the caps that the pools need.
    chosen = {one.name: getattr(settings, one.name) for one in fields(WorkloadSettings)}
    names = ("pair", "safe", "risky", "protocol", "variant")
    chosen |= {n: getattr(settings, n) for n in names} | {"cap": _caps(settings)}
    items = PAPER.workload(RunSettings(**chosen)).items
    by_class: dict[str, list[Sourced]] = {}
    for item in items:
        by_class.setdefault(item.prompt.label, []).append(item)
    first: list[Sourced] = []
    for label, count in settings.init.items():
        have = by_class.get(label, [])
        if len(have) < count:
            raise InputError(
                f"the search starts from {count} prompts of class {label!r}, the workload has "
                f"{len(have)} ({_counts(by_class)}); say what to start from with --init CLASS=N."
            )
        first += have[:count]
    taken = {item.prompt.id for item in first}
    left = [i for i in by_class.get(settings.heldout_class, []) if i.prompt.id not in taken]
    keep = settings.sizes.heldout_keep
    if len(left) < keep:
        raise InputError(
            f"the held-out pool takes {keep} prompts of class {settings.heldout_class!r} that the "
            f"search does not start from, the workload has {len(left)} ({_counts(by_class)}); "
            "give another --heldout-class, or --size heldout_keep=N."
        )

    def line(item: Sourced) -> int:
        """Returns the line in its file; 0 without a file, which keeps the order."""
        number = item.source.where.rpartition(":")[2]
        return int(number) if number.isdecimal() else 0

    held = sorted(left, key=line)[:keep]
    return PaperPools(
        tuple(_named(item.prompt, "init", f"seed_{item.prompt.id}") for item in first),
        tuple(_named(item.prompt, "heldout", f"heldout_{item.prompt.id}") for item in held),
        tuple(item.prompt for item in (*first, *held)),
    )


def _caps(settings: PaperSettings) -> dict[str, int]:
    """Returns caps of the paper's classes: the numbers needed, and all of the held-out class."""
    if settings.data is None and not takes_lab(settings):
        return {}
    cap = {name: n for name, n in settings.init.items() if name in CAPS}
    label = settings.heldout_class
    if settings.data is not None and label in FILES:
        records = read_records(Path(settings.data) / FILES[label], "a file of the paper's")
        cap[label] = max(1, sum(1 for _ in records))
    elif label in cap:
        cap[label] += settings.sizes.heldout_keep
    return cap


def _counts(by_class: Mapping[str, Sequence[Sourced]]) -> str:
    return "it has " + ", ".join(f"{name} {len(by_class[name])}" for name in sorted(by_class))


def _named(prompt: Prompt, kind: str, lineage: str) -> Candidate:
    return Candidate(f"{kind}_{prompt.id}", prompt.text, prompt.label, 0, kind, (), lineage)


def check_lengths(pools: PaperPools, count: Callable[[str], int], longest: int) -> None:
    """Refuses prompts that do not fit beside T new tokens, as the paper has no filter here."""
    for one in (*pools.init, *pools.heldout):
        if count(one.text) > longest:
            raise InputError(
                f"prompt {one.id!r} has {count(one.text)} tokens, more than --longest {longest}; "
                "raise it, or leave the prompt out."
            )
