"""Settings of a search by the paper's protocol, and the prompts that it starts from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from nafaudit.core.errors import InputError, nearest
from nafaudit.core.ledger import as_budget, is_baseline
from nafaudit.core.settings import RunSettings, WorkloadSettings, protocol_option
from nafaudit.paper.embedding import TFIDF
from nafaudit.paper.evaluator import Fixes, ProxyRule
from nafaudit.paper.proxy import DELTA
from nafaudit.paper.workload import PAPER, takes_lab
from nafaudit.runner.pairs import AuditProtocol
from nafaudit.search.candidate import Candidate
from nafaudit.search.settings import SearchBasics
from nafaudit.workload import Prompt, Sourced
from nafaudit.workload.prompts import CAPS

ATTACK, HELDOUT = "attack_train", "test"
INIT = {ATTACK: 48, "factual": 24, "creative": 24}
"""The prompts that the paper's search starts from, by class."""
SECOND = 5 / 3
"""The second budget over the first: the paper's 5 over its 3."""
LAB_BUDGETS, LAB_LENGTH = (16.0, 25.0), 8
"""The lab's k in place of the paper's 3 and 5, and its T in place of 200, in this search.

At the paper's, lab texts often end early, so that B_eff is near 0 and no prompt is certified. These
show what the paper shows; benchmarks/paper_lab.py measures it, docs/search.md has its table.
"""
LAB_PAIRS = ("lab", "lab-safe2")
ARCHIVES = ("paper", "dpp", "kdpp")


_OWN = ("archive", "embedding")
"""Options that the sound search refuses and this one has."""


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
    """Settings of `nafaudit search --protocol paper`; `one_by_one` has those of each budget."""

    later: ClassVar[Mapping[str, Any]] = {"searches": 1, "archive_rule": None, "embedding": TFIDF}
    refused: ClassVar[Mapping[str, str]] = {
        name: why for name, why in SearchBasics.refused.items() if name not in _OWN
    }

    protocol: str = protocol_option("paper", "The paper's search.", choices=("sound", "paper"))
    delta: float = protocol_option(
        DELTA, "Level of each U_EBB, and of all limits.", above=0, below=1
    )
    init: Mapping[str, int] = protocol_option(
        INIT,
        "Paper only: prompts that it starts from.",
        metavar="CLASS=N,...",
        form="CLASS=N, for example --init test=24",
        unset="up to attack_train=48,factual=24,creative=24",
    )
    heldout_class: str = protocol_option(HELDOUT, "Paper only: class of the held-out pool.")
    size: Mapping[str, int] = protocol_option(
        {},
        "Paper only: other sizes than its own, by its names: generations=1,init_traj=4.",
        metavar="NAME=N,...",
        form="NAME=N, for example --size generations=1",
    )
    fix: str = protocol_option(
        "",
        "Paper only: its own remedies: min-n (20 draws where a first rho is above 0.9), width, "
        "reff, delta.",
        metavar="NAME,...",
        unset="none",
    )
    searches: int = protocol_option(1, "Independent searches; the paper's has one.", least=1)
    archive_rule: str | None = protocol_option(
        None, "Paper only: which prompts stay: paper (its greedy rule), dpp (likeliest set of a "
        "k-DPP), kdpp (an exact draw from it).", choices=ARCHIVES,
        unset="paper; dpp with --variant text", name="archive",
    )  # fmt: skip
    embedding: str = protocol_option(
        TFIDF, "Paper only: embedding of prompts: tfidf, or a Sentence-Transformers checkpoint by "
        "directory or hub id, as the paper's sentence-transformers/sentence-t5-base.",
    )  # fmt: skip
    topup_fraction: float = protocol_option(
        0.5, "Paper only: share of a pool that is topped up; its k = 5 table needs 0.75."
    )
    second_k: float | None = protocol_option(
        None, "Paper only: second budget for flagged prompts.", unset="5/3 of k, as 5 is of 3"
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
        if self.second_k is not None and len(self.k) > 1:
            raise InputError(
                "second-k is for one budget, got k = "
                f"{', '.join(f'{k:g}' for k in self.k)}; leave it out, or search one budget."
            )
        if len(self.k) == 1 and (is_baseline(self.second) or self.second == self.budget):
            raise InputError(
                f"second-k must be a budget above 0 other than k = {self.budget:g}, got "
                f"{self.second_k}."
            )

    def check_budgets(self) -> None:
        """Requires budgets above 0, each once."""
        if not self.k or any(map(is_baseline, self.k)) or len(set(self.k)) < len(self.k):
            raise InputError(
                f"a search looks at budgets above 0, each once, got k = "
                f"{', '.join(map(str, self.k))}; give one, or several as in --k 3,5."
            )

    @classmethod
    def of_protocol(cls, protocol: str) -> dict[str, Any]:
        """Returns no further defaults: those of a run are for a fixed workload."""
        return {}

    @classmethod
    def defaults(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what the pair and the variant set unless the user does.

        The lab has a k and T of its own. The paper's text has two retries of a call to its
        optimiser, thus three attempts; in its code they are two attempts in all.
        """
        found = super().defaults(given)
        if "safe" not in given and given.get("pair", "lab") in LAB_PAIRS:
            found |= {"k": LAB_BUDGETS[:1], "max_new_tokens": LAB_LENGTH}
        return found | {"proposer_attempts": 3 if given.get("variant") == "text" else 2}

    @property
    def one_by_one(self) -> tuple[PaperSettings, ...]:
        """Settings of each budget's own search, in OUT/k-3 and so on if there are several."""
        if len(self.k) == 1:
            return (self,)
        return tuple(
            replace(self, k=(k,), out=str(Path(self.out) / f"k-{k:g}") if self.out else None)
            for k in self.k
        )

    @property
    def fixes(self) -> Fixes:
        """The remedies that are switched on."""
        return Fixes.parse(self.fix)

    @property
    def search_seeds(self) -> tuple[int, ...]:
        """Seeds of the searches; 0 is the paper's."""
        return tuple(range(self.searches))

    @property
    def archive(self) -> str:
        """Archive rule in use."""
        return self.archive_rule or ("dpp" if self.variant == "text" else "paper")

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
            delta=self.fixes.level(self.delta),
            floor=self.sizes.adaptive_eval_min_traj,
            fraction=self.topup_fraction,
            rounding="text" if self.variant == "text" else "code",
            fixes=self.fixes,
        )


@dataclass(frozen=True)
class PaperPools:
    """The prompts of the paper's search, chosen without chance.

    Attributes:
        init: Prompts that it starts from.
        heldout: Prompts that it never sees.
        items: Both as the workload has them, with their sources.
        short: What the paper's sizes lack here, in words; empty if nothing.
    """

    init: tuple[Candidate, ...]
    heldout: tuple[Candidate, ...]
    items: tuple[Sourced, ...]
    short: str = ""

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """The workload's prompts of both pools."""
        return tuple(item.prompt for item in self.items)


def paper_pools(settings: PaperSettings, protocol: AuditProtocol = PAPER) -> PaperPools:
    """Chooses the pools of the prompts that a protocol reads; loads no model.

    A class of the first pool is taken in the workload's order, which for the paper's files is by
    id; the held-out pool in the order of its file. The paper's own sizes are upper limits: data
    with fewer prompts gives smaller pools. Sizes that the user gives must be met.

    Raises:
        InputError: They are not; it names every class that is short, and what to give.
    """
    init, keep, label = settings.init, settings.sizes.heldout_keep, settings.heldout_class
    have = _by_class(settings, protocol, init, init)
    first = [item for name, count in init.items() for item in have.get(name, [])[:count]]
    taken = {item.prompt.id for item in first}
    # Every prompt of its class: a cap would choose by id.
    pool = _by_class(settings, protocol, [label], {label: sys.maxsize}).get(label, [])
    left = [item for item in pool if item.prompt.id not in taken]
    lacking = {n: (len(have.get(n, [])), c) for n, c in init.items() if len(have.get(n, [])) < c}
    wrong = []
    if lacking and (init != INIT or not first):
        found = ", ".join(f"{name} {n} of {count}" for name, (n, count) in lacking.items())
        fits = ",".join(f"{n}={min(c, len(have[n]))}" for n, c in init.items() if have.get(n))
        able = f"--init {fits}" if fits else "--init CLASS=N with classes that have prompts"
        wrong.append(f"the search cannot start from what was asked for ({found}): {able}")
    if len(left) < keep and ("heldout_keep" in settings.size or not left):
        able = f"--size heldout_keep={len(left)}" if left else "another --heldout-class"
        wrong.append(
            f"the held-out pool has {len(left)} of {keep} prompts of class {label!r} that the "
            f"search does not start from: {able}"
        )
    if wrong:
        known = {name: len(found) for name, found in _by_class(settings, protocol).items()}
        counts = ", ".join(f"{name} {known[name]}" for name in sorted(known))
        raise InputError(f"{'; and '.join(wrong)}. The workload has {counts or 'no prompts'}.")
    if len(left) < keep:
        lacking[f"held-out {label}"] = (len(left), keep)

    def line(item: Sourced) -> int:
        """Returns the line in its file; 0 without a file, which keeps the order."""
        number = item.source.where.rpartition(":")[2]
        return int(number) if number.isdecimal() else 0

    held = sorted(left, key=line)[:keep]
    return PaperPools(
        tuple(_named(item.prompt, "init", f"seed_{item.prompt.id}") for item in first),
        tuple(_named(item.prompt, "heldout", f"heldout_{item.prompt.id}") for item in held),
        (*first, *held),
        ", ".join(f"{name} {n} of {count}" for name, (n, count) in lacking.items()),
    )


def _by_class(
    settings: PaperSettings,
    protocol: AuditProtocol,
    classes: Collection[str] = (),
    cap: Mapping[str, int] | None = None,
) -> dict[str, list[Sourced]]:
    """Returns prompts by class; of the paper's files only those of these classes are read."""
    chosen = {one.name: getattr(settings, one.name) for one in fields(WorkloadSettings)}
    chosen |= {n: getattr(settings, n) for n in ("pair", "safe", "risky", "protocol", "variant")}
    found: dict[str, list[Sourced]] = {}
    ours = protocol is PAPER
    if ours and (settings.data is not None or takes_lab(settings)):
        names = tuple(dict.fromkeys(name for name in classes if name in CAPS))
        if classes and not names:
            return found
        limits = dict.fromkeys(CAPS, sys.maxsize) | dict(cap or {})
        chosen |= {"classes": names, "cap": {n: limits[n] for n in names or CAPS}}
    asked = RunSettings(**chosen)
    there = PAPER.workload(asked, exact=False) if ours else protocol.workload(asked)
    for item in there.items:
        found.setdefault(item.prompt.label, []).append(item)
    return found


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
