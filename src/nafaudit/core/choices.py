"""Groups of settings: which prompts, under which protocol, on which machines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nafaudit.core.errors import InputError, nearest

PROTOCOLS = ("sound", "paper")
VARIANTS = ("code", "text")
_ADDRESS = re.compile(r"[^\s/:]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")

DELTA = 0.05
"""How often any of a run's mean bounds may miss, all of them together."""

PROTOCOL_DEFAULTS: dict[str, dict[str, Any]] = {
    "sound": {},
    "paper": {"k": (3.0, 5.0), "trajectories": 10, "limit": 0},
}
"""What a protocol sets unless the user does. T = 200, temperature 1, prefix-n 5 are both's."""

PAIR_DEFAULTS: dict[str, dict[str, Any]] = {
    "paper": {"dtype": "bfloat16", "device": "cuda"},
    "authors": {"dtype": "bfloat16", "device": "auto"},
}
"""What a pair that needs a GPU sets unless the user does."""


@dataclass(frozen=True)
class WorkloadChoice:
    """Which prompts a run takes.

    Attributes:
        prompts: JSON Lines file of prompts; the pair's own workload if empty.
        data: Directory with the paper's six files.
        corpus: Classes of any other files, by name: the `[classes.NAME]` tables of a design file.
        classes: Only these classes; all if empty.
        cap: Most prompts of a class, by its name.
        limit: At most so many prompts; 0 for all; 48 of the lab's unless told.
    """

    prompts: str | None = None
    data: str | None = None
    corpus: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    cap: Mapping[str, int] = field(default_factory=dict)
    limit: int | None = None

    def check_workload(self) -> None:
        """Raises for a choice that contradicts itself."""
        sources = {
            "prompts": self.prompts is not None,
            "data": self.data is not None,
            "[classes.NAME] tables": bool(self.corpus),
        }
        if sum(sources.values()) > 1:
            given = " and ".join(name for name, is_given in sources.items() if is_given)
            raise InputError(f"{given} both name a workload; give one of them.")
        if self.limit is not None and self.limit < 0:
            raise InputError(f"limit must be at least 0 (0: all prompts), got {self.limit}.")
        for name in self.classes:
            if self.classes.count(name) > 1:
                raise InputError(f"class {name!r} is named twice in classes; name it once.")
        for name, most in self.cap.items():
            if most < 1:
                raise InputError(
                    f"cap of class {name!r} must be at least 1, got {most}; to leave a class out, "
                    "name the others with --classes."
                )


@dataclass(frozen=True)
class ProtocolChoice:
    """Under which protocol a run is made and reported.

    Attributes:
        protocol: `sound`, or `paper`: the paper's seeds, sizes and files.
        variant: Where the paper's text and its code differ, which of the two is followed.
        delta: Level of all mean bounds together; each gets delta / (classes x budgets).
    """

    protocol: str = "sound"
    variant: str = "code"
    delta: float = DELTA

    def check_protocol(self, seed: int) -> None:
        """Raises for a protocol that is none, or an option that it does not have."""
        for name, value, known in (
            ("protocol", self.protocol, PROTOCOLS),
            ("variant", self.variant, VARIANTS),
        ):
            if value not in known:
                raise InputError(
                    f"{name} must be {' or '.join(known)}, got {value!r}{nearest(value, known)}"
                )
        if not 0 < self.delta < 1:
            raise InputError(f"delta must be in (0, 1), got {self.delta}.")
        if self.protocol != "paper" and self.variant != "code":
            raise InputError("variant = text is a reading of the paper; it needs --protocol paper.")
        if self.protocol == "paper" and seed != 0:
            raise InputError(
                f"seed = {seed} has no effect in the paper's protocol, whose seeds follow from "
                "the prompts' ids; leave it out, or use --protocol sound."
            )


@dataclass(frozen=True)
class ClusterChoice:
    """On which machines a run decodes; changes speed only.

    Attributes:
        ray: `local` for a Ray cluster of this machine's own, `auto` or HOST:PORT for one that is
            there; this process alone if empty.
        workers: How many processes hold a pair; as many as fit if empty.
    """

    ray: str | None = None
    workers: int | None = None

    def check_cluster(self, decoder: str | None) -> None:
        """Raises for an address that is none, or for what cannot be spread."""
        if self.ray is None:
            if self.workers is not None:
                raise InputError("workers are processes of a Ray cluster: add --ray.")
            return
        if self.ray not in ("local", "auto") and not _ADDRESS.fullmatch(self.ray):
            raise InputError(
                f"ray must be local (a cluster of this machine's own), auto, or HOST:PORT of the "
                f"cluster's head, as `ray start --head` prints it; got {self.ray!r}."
            )
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers must be at least 1, got {self.workers}.")
        if decoder is not None:
            raise InputError(
                f"ray spreads our own engine; the black box {decoder!r} answers in one process of "
                "its own, on this machine. Leave out --ray."
            )
