"""What a run was asked for, and what of it is neither recorded nor noted as a decoder's fault.

The extents of a design say it. Where the records, or the order of the prompts, show that more
was asked than the extents say, that counts: a run from which records were taken is unfinished.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nafaudit.core.ledger import budget_word
from nafaudit.core.trajectory import Key
from nafaudit.store.run import Run
from nafaudit.workload import TokenizedPrompt, workload_hash

# Missing trajectories that are named.
_NAMED = 3

Cell = tuple[str, float]
"""A prompt under a budget."""


@dataclass(frozen=True)
class Missing:
    """What a run lacks.

    Attributes:
        count: Trajectories that were asked for and have no record.
        asked: All that were asked for.
        first: The first few of them, in words.
        altered: True if the prompts are not those that the design was made of.
    """

    count: int
    asked: int
    first: tuple[str, ...] = ()
    altered: bool = False

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
        return ", and ".join(parts)

    @property
    def text(self) -> str:
        """The same, with what is missing first and what to do."""
        named = ""
        if self.first:
            named = f" (first: {'; '.join(self.first)})"
        again = "restore the directory" if self.altered else "run the same command again"
        return f"{self.brief}{named}; {again} to finish"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"count": self.count, "first": list(self.first), "text": self.text}


@dataclass(frozen=True)
class Plan:
    """What a run of ours was asked for.

    Attributes:
        kind: A fixed `workload`; a run that `grows`, each prompt by its own count; or one whose
            trajectories are chosen by their `seeds`, so that numbers skip.
        mechanism: Whose trajectories.
        prompts: Ids of the workload, in its order.
        extents: As the design has them.
        altered: True if the prompts are not those that the design was made of.
    """

    kind: Literal["workload", "grows", "seeds"]
    mechanism: str
    prompts: tuple[str, ...]
    extents: Sequence[Mapping[str, Any]]
    altered: bool = False

    def missing(self, recorded: Collection[Key], answered: Collection[Key] = ()) -> Missing | None:
        """What has no record; None if everything has.

        Args:
            recorded: Keys of all records.
            answered: Those for which a decoder's fault is noted instead.
        """
        numbers: dict[Cell, set[int]] = {}
        for key in (*recorded, *answered):
            if key.mechanism == self.mechanism:
                numbers.setdefault((key.prompt, key.k), set()).add(key.trajectory)
        needed = self._needed(numbers)
        count = 0
        first: list[str] = []
        for cell, most in sorted(needed.items()):
            found = numbers.get(cell, set())
            if most > len(found):
                count += most - len(found)
                first += self._named(cell, most, found, _NAMED - len(first))
        if not count and not self.altered:
            return None
        return Missing(count, sum(needed.values()), tuple(first), self.altered)

    def _needed(self, numbers: Mapping[Cell, set[int]]) -> dict[Cell, int]:
        """How many trajectories each cell must have."""
        places = {name: place for place, name in enumerate(self.prompts)}
        needed: dict[Cell, int] = {}
        for extent in self.extents:
            names = list(extent["prompts"])
            order = [places.get(name, len(places)) for name in names]
            turned = extent.get("reordered", False) or order != sorted(order)
            if self.kind == "workload" and not turned:
                # A limit takes the first prompts; a file in another order may take others.
                names = list(dict.fromkeys([*self.prompts[: order[-1] + 1], *names]))
            for name in names:
                for k in map(float, extent["budgets"]):
                    needed[name, k] = max(needed.get((name, k), 0), extent["trajectories"])
        if self.kind == "seeds":
            return needed
        seen = {cell: max(found) + 1 for cell, found in numbers.items()}
        beyond = {cell: most for cell, most in seen.items() if most > needed.get(cell, 0)}
        if beyond and self.kind == "workload":
            # More is recorded than the design asks for, so its extents are not to be believed:
            # nothing less than every prompt under every budget is whole.
            cells = needed.keys() | beyond.keys()
            most = max(*needed.values(), *beyond.values())
            last = max(places.get(name, -1) for name, _ in cells)
            names = [*self.prompts[: last + 1], *(name for name, _ in cells if name not in places)]
            return {(name, k): most for k in {k for _, k in cells} for name in names}
        return needed | beyond

    def _named(self, cell: Cell, most: int, found: set[int], room: int) -> list[str]:
        """What a cell lacks, in words; no more than there is room for."""
        where = f"prompt {cell[0]!r} k = {budget_word(cell[1])}"
        if self.kind == "seeds":
            return [f"{where} {most - len(found)} trajectories"][:room]
        lacking = (number for number in range(most) if number not in found)
        return [f"{where} trajectory {number}" for number in itertools.islice(lacking, room)]


def plan_of(run: Run) -> Plan | None:
    """What a run was asked for; None for an import, as a log is as long as it is."""
    design = run.design
    identity = design["identity"]
    if identity["protocol"] == "imported":
        return None
    prompts = run.prompts()
    return Plan(
        _kind(identity),
        identity["mechanism"],
        tuple(item.prompt.id for item in prompts),
        design["extents"],
        # A run that grows has nothing recorded before its extents vouch for its prompts.
        bool(run.journal()) and not same_prompts(prompts, design),
    )


def missing_of(run: Run) -> Missing | None:
    """What a run lacks; None if it has all that was asked for."""
    plan = plan_of(run)
    lost = {fault.key for fault in run.faults() if fault.lost and fault.key is not None}
    return plan.missing(run.keys(), lost) if plan is not None else None


def same_prompts(prompts: Sequence[TokenizedPrompt], design: Mapping[str, Any]) -> bool:
    """A run's prompts are vouched for by its identity; a search's, which grow, by its extents."""
    grown = [extent for extent in design["extents"] if "workload" in extent]
    if not grown:
        return workload_hash(prompts) == str(design["identity"]["workload"])
    by_id = {item.prompt.id: item for item in prompts}
    return all(
        by_id.keys() >= set(extent["prompts"])
        and workload_hash([by_id[name] for name in extent["prompts"]]) == extent["workload"]
        for extent in grown
    )


def _kind(identity: Mapping[str, Any]) -> Literal["workload", "grows", "seeds"]:
    if identity.get("purpose", "audit") == "audit":
        return "workload"
    return "seeds" if identity["protocol"] == "paper" else "grows"
