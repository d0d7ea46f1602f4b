"""Which prompts the paper's search starts from and holds out: the first of their classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from nafaudit.core.errors import InputError
from nafaudit.core.settings import Settings, WorkloadChoice
from nafaudit.runner.pairs import named_pair, workload_of
from nafaudit.search.candidate import Candidate
from nafaudit.search.paper_settings import PaperSettings
from nafaudit.workload import Prompt, Sourced
from nafaudit.workload.prompts import CAPS, FILES, read_records


@dataclass(frozen=True)
class PaperPools:
    """The prompts of the paper's search, chosen without chance.

    Attributes:
        init: What it starts from.
        heldout: What it never sees.
        prompts: The workload's prompts behind both.
    """

    init: tuple[Candidate, ...]
    heldout: tuple[Candidate, ...]
    prompts: tuple[Prompt, ...]


def paper_pools(settings: PaperSettings) -> PaperPools:
    """Chooses the pools; reads no model.

    A class of the first pool is taken in the workload's order, which for the paper's files is by
    id; the held-out pool in the order of its file.
    """
    items = workload_of(_workload(settings)).items
    by_class: dict[str, list[Sourced]] = {}
    for item in items:
        by_class.setdefault(item.prompt.label, []).append(item)
    first = [item for label, n in settings.init.items() for item in _first(by_class, label, n)]
    taken = {item.prompt.id for item in first}
    left = [i for i in by_class.get(settings.heldout_class, []) if i.prompt.id not in taken]
    keep = settings.sizes.heldout_keep
    if len(left) < keep:
        raise InputError(
            f"the held-out pool takes {keep} prompts of class {settings.heldout_class!r} that the "
            f"search does not start from, the workload has {len(left)} ({_counts(by_class)}); "
            "give another --heldout-class, or --size heldout_keep=N."
        )
    held = sorted(left, key=_line)[:keep]
    return PaperPools(
        tuple(_named(item.prompt, "init", f"seed_{item.prompt.id}") for item in first),
        tuple(_named(item.prompt, "heldout", f"heldout_{item.prompt.id}") for item in held),
        tuple(item.prompt for item in (*first, *held)),
    )


def _workload(settings: PaperSettings) -> Settings:
    """The same workload as a run's, with the caps that the pools need."""
    chosen = {one.name: getattr(settings, one.name) for one in fields(WorkloadChoice)}
    names = ("pair", "safe", "risky", "protocol", "variant")
    return Settings(**chosen | {n: getattr(settings, n) for n in names} | {"cap": _caps(settings)})


def _caps(settings: PaperSettings) -> dict[str, int]:
    """Of the paper's classes as many as are wanted, and all of the held-out one."""
    own = settings.prompts is not None or bool(settings.corpus) or settings.safe is not None
    if settings.data is None and (own or named_pair(settings.pair).paper is None):
        return {}
    cap = {name: n for name, n in settings.init.items() if name in CAPS}
    label = settings.heldout_class
    if settings.data is not None and label in FILES:
        records = read_records(Path(settings.data) / FILES[label], "a file of the paper's")
        cap[label] = max(1, sum(1 for _ in records))
    elif label in cap:
        cap[label] += settings.sizes.heldout_keep
    return cap


def _first(by_class: Mapping[str, Sequence[Sourced]], label: str, count: int) -> Sequence[Sourced]:
    have = by_class.get(label, [])
    if len(have) < count:
        raise InputError(
            f"the search starts from {count} prompts of class {label!r}, the workload has "
            f"{len(have)} ({_counts(by_class)}); say what to start from with --init CLASS=N."
        )
    return have[:count]


def _counts(by_class: Mapping[str, Sequence[Sourced]]) -> str:
    found = Counter({label: len(items) for label, items in by_class.items()})
    return "it has " + ", ".join(f"{label} {n}" for label, n in sorted(found.items()))


def _line(item: Sourced) -> int:
    """Its line in its file; 0 if it came from none, which leaves the order as it was."""
    number = item.source.where.rpartition(":")[2]
    return int(number) if number.isdecimal() else 0


def _named(prompt: Prompt, kind: str, lineage: str) -> Candidate:
    return Candidate(f"{kind}_{prompt.id}", prompt.text, prompt.label, 0, kind, (), lineage)


def check_lengths(pools: PaperPools, count: Callable[[str], int], longest: int) -> None:
    """Raises for a prompt that does not fit beside T new tokens; the paper has no filter here."""
    for one in (*pools.init, *pools.heldout):
        if count(one.text) > longest:
            raise InputError(
                f"prompt {one.id!r} has {count(one.text)} tokens, more than --longest {longest}; "
                "raise it, or leave the prompt out."
            )
