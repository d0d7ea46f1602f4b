"""Everything a report shows, collected from a run in one stream over its parts.

What is shown follows from this structure alone, so that a page, its Markdown and its JSON
cannot disagree. A new table is a field here and a few lines in the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nafaudit.checks.check import Facts
from nafaudit.checks.classes import ClassTable
from nafaudit.checks.verdict import ArmResult, classes_of, facts_of, gaps_of, judge, truth_of
from nafaudit.core.trajectory import Arm, Trajectory
from nafaudit.report.outline import Outline, Outliner
from nafaudit.store.artifacts import read_search, read_verification
from nafaudit.store.gaps import Missing
from nafaudit.store.run import Run
from nafaudit.workload import Prompt


@dataclass(frozen=True)
class Report:
    """A run, judged and outlined.

    Attributes:
        run: Where the records are.
        facts: What checks know of the run.
        arms: Every check of every arm, from the smallest budget up.
        outlines: Every trajectory in a few numbers, in the order of their keys.
        prompts: The workload by id.
        classes: What each class of prompts spends under each budget.
        verification: What a replay from the models found; None if there was none.
        search: What a search found, as RUN/search.json has it; None if there was none.
    """

    run: Run
    facts: Facts
    arms: tuple[ArmResult, ...]
    outlines: tuple[Outline, ...]
    prompts: dict[str, Prompt]
    classes: ClassTable
    verification: dict[str, Any] | None = None
    search: dict[str, Any] | None = None

    @property
    def gaps(self) -> Missing | None:
        """What the run was asked for and does not have; None if it has all."""
        return gaps_of(self.run, self.arms)

    def of(self, arm: ArmResult) -> list[Outline]:
        """The outlines of one arm."""
        return self.by_arm.get(Arm(arm.mechanism, arm.k), [])

    @cached_property
    def by_arm(self) -> dict[Arm, list[Outline]]:
        """Outlines by arm, each in the order of their keys."""
        found: dict[Arm, list[Outline]] = {}
        for one in self.outlines:
            found.setdefault(one.key.arm, []).append(one)
        return found


def collect(run: Run) -> Report:
    """Judges and outlines a run; every part is read once."""
    facts = facts_of(run)
    outliner = Outliner(facts)
    truth = truth_of(run)

    def placed() -> Iterator[Trajectory]:
        for outliner.place, trajectory in run.located():
            yield truth.get(trajectory.key, trajectory)

    arms = tuple(judge(placed(), facts, outliner.watch))
    outlines = sorted(outliner.outlines, key=lambda one: one.key)
    prompts = {p.prompt.id: p.prompt for p in run.prompts()}
    return Report(
        run,
        facts,
        arms,
        tuple(outlines),
        prompts,
        classes_of(arms),
        read_verification(run),
        read_search(run),
    )
