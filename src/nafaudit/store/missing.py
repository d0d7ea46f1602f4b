"""Finds what a run was asked for and neither recorded nor noted as a decoder's fault.

The extents of a design say what was asked for. Where the records, or the order of the prompts, show
that more was asked than the extents say, that counts: a run from which records were taken is
unfinished.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from nafaudit.core.design import Numbers
from nafaudit.core.ledger import budget_word
from nafaudit.core.trajectory import Key
from nafaudit.store.run import Run
from nafaudit.workload import TokenizedPrompt, workload_hash

# Missing trajectories that are named.
_NAMED = 3

# Since this layout of rows an extent says which numbers it asks for, where they are not the first.
_NUMBERED = 3

Kind = Literal["workload", "grows", "seeds", "counts"]
Cell = tuple[str, float]
"""A prompt under a budget."""


@dataclass(frozen=True)
class Missing:
    """The trajectories that a run lacks.

    Attributes:
        count: Trajectories that were asked for and have no record.
        asked: All that were asked for.
        first: The first few of them, in words.
        altered: True if the prompts are not those that the design was made of.
        unasked: Records of a run by seed that no extent asks for.
    """

    count: int
    asked: int = field(metadata={"json": None})
    first: tuple[str, ...] = ()
    altered: bool = field(default=False, metadata={"json": None})
    unasked: int = field(default=0, metadata={"json": None})
    json_properties: ClassVar = ("text",)

    @property
    def brief(self) -> str:
        """How much is missing; a clause without its full stop."""
        parts = []
        if self.count:
            parts.append(
                f"{self.count} of the {self.asked} trajectories that were asked for are not "
                "recorded"
            )
        if self.altered:
            parts.append(
                "prompts.jsonl is not the workload that the design was made of, so prompts may be "
                "missing"
            )
        if self.unasked:
            parts.append(
                "design.json does not ask for all that is recorded (unasked trajectories: "
                f"{self.unasked}), so others may be missing"
            )
        return ", and ".join(parts)

    @property
    def text(self) -> str:
        """How much is missing, the first trajectories of it, and what to do."""
        named = ""
        if self.first:
            named = f" (first: {'; '.join(self.first)})"
        edited = self.altered or self.unasked
        again = "restore the directory" if edited else "run the same command again"
        return f"{self.brief}{named}; {again} to finish"


@dataclass(frozen=True)
class RequestedRecords:
    """The trajectories that a run of ours was asked for.

    Attributes:
        kind: A fixed `workload`; a run that `grows`, each prompt by its own count; one whose
            trajectories are chosen by their `seeds`, so that numbers skip; or an older one of
            these, whose extents have only `counts`.
        mechanism: Whose trajectories.
        prompts: Ids of the workload, in its order.
        extents: As the design has them.
        altered: True if the prompts are not those that the design was made of.
    """

    kind: Kind
    mechanism: str
    prompts: tuple[str, ...]
    extents: Sequence[Mapping[str, Any]]
    altered: bool = False

    def missing(self, recorded: Collection[Key], answered: Collection[Key] = ()) -> Missing | None:
        """Returns what has no record; None if everything has.

        Args:
            recorded: Keys of all records.
            answered: Those for which a decoder's fault is noted instead.
        """
        seen: dict[Cell, set[int]] = {}
        for key in (*recorded, *answered):
            if key.mechanism == self.mechanism:
                seen.setdefault((key.prompt, key.k), set()).add(key.trajectory)
        needed = self._needed(seen)
        count = unasked = 0
        first: list[str] = []
        for cell in sorted(needed):
            numbers, found = needed[cell], seen.get(cell, set())
            lacking = numbers.size - self._answering(numbers, found)
            if lacking > 0:
                count += lacking
                where = f"prompt {cell[0]!r} k = {budget_word(cell[1])}"
                if self.kind == "counts":
                    names = iter([f"{where} {lacking} trajectories"])
                else:
                    absent = (number for number in numbers if number not in found)
                    names = (f"{where} trajectory {number}" for number in absent)
                first += itertools.islice(names, _NAMED - len(first))
        if self.kind == "seeds":
            unasked = sum(
                len(found) - self._answering(needed.get(cell, Numbers()), found)
                for cell, found in seen.items()
            )
        if not (count or unasked or self.altered):
            return None
        asked = sum(numbers.size for numbers in needed.values())
        return Missing(count, asked, tuple(first), self.altered, unasked)

    def _answering(self, numbers: Numbers, found: Collection[int]) -> int:
        """Counts the found numbers that were asked for."""
        if self.kind == "counts":
            return len(found)
        return sum(number in numbers for number in found)

    def _needed(self, seen: Mapping[Cell, Collection[int]]) -> dict[Cell, Numbers]:
        """Returns which trajectories each cell must have."""
        places = {name: place for place, name in enumerate(self.prompts)}
        needed: dict[Cell, Numbers] = {}
        for extent in self.extents:
            # Only seeds may leave out numbers; other designs ignore that entry.
            exact = self.kind == "seeds"
            numbers = Numbers.of(extent) if exact else Numbers(int(extent["trajectories"]))
            names = list(extent["prompts"])
            order = [places.get(name, len(places)) for name in names]
            turned = extent.get("reordered", False) or order != sorted(order)
            if self.kind == "workload" and not turned:
                # A limit takes the first prompts; a file in another order may take others.
                names = list(dict.fromkeys([*self.prompts[: order[-1] + 1], *names]))
            for name in names:
                for k in map(float, extent["budgets"]):
                    needed[name, k] = needed.get((name, k), Numbers()) | numbers
        if self.kind in ("seeds", "counts"):
            return needed
        most_of = {cell: Numbers(max(found) + 1) for cell, found in seen.items()}
        beyond = {
            cell: numbers
            for cell, numbers in most_of.items()
            if numbers.first > needed.get(cell, Numbers()).first
        }
        if beyond and self.kind == "workload":
            # More is recorded than the design asks for, so its extents are incomplete:
            # nothing less than every prompt under every budget is whole.
            cells = needed.keys() | beyond.keys()
            most = max((*needed.values(), *beyond.values()), key=lambda numbers: numbers.first)
            last = max(places.get(name, -1) for name, _ in cells)
            names = [*self.prompts[: last + 1], *(name for name, _ in cells if name not in places)]
            return {(name, k): most for k in {k for _, k in cells} for name in names}
        return needed | beyond


def plan_of(run: Run) -> RequestedRecords | None:
    """Returns what a run was asked for; None for an import, which is as long as its log."""
    design = run.design
    identity = design["identity"]
    if identity["protocol"] == "imported":
        return None
    prompts = run.prompts()
    kind: Kind = "workload"
    if identity.get("purpose", "audit") != "audit":
        kind = "grows"
        if identity["protocol"] == "paper":
            kind = "seeds" if identity["layout"].get("rows", 0) >= _NUMBERED else "counts"
    return RequestedRecords(
        kind,
        identity["mechanism"],
        tuple(item.prompt.id for item in prompts),
        design["extents"],
        # A run that grows has nothing recorded before its extents cover its prompts.
        bool(run.journal()) and not same_prompts(prompts, design),
    )


def missing_of(run: Run) -> Missing | None:
    """Returns what a run lacks; None if it has all that was asked for."""
    plan = plan_of(run)
    lost = {fault.key for fault in run.faults() if fault.lost and fault.key is not None}
    return plan.missing(run.keys(), lost) if plan is not None else None


def same_prompts(prompts: Sequence[TokenizedPrompt], design: Mapping[str, Any]) -> bool:
    """Compares prompts with the hash that covers them: identity, or extents if they grow."""
    grown = [extent for extent in design["extents"] if "workload" in extent]
    if not grown:
        return workload_hash(prompts) == str(design["identity"]["workload"])
    by_id = {item.prompt.id: item for item in prompts}
    return all(
        by_id.keys() >= set(extent["prompts"])
        and workload_hash([by_id[name] for name in extent["prompts"]]) == extent["workload"]
        for extent in grown
    )
