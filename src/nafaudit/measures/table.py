"""The rows of a run: by arm, by class, by prompt, as columns, as an Arrow table."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

from nafaudit.core.errors import StoreError
from nafaudit.core.finding import Witness
from nafaudit.core.trajectory import Arm, Key, Trajectory
from nafaudit.measures.context import RunContext
from nafaudit.measures.measure import Measure, measure, with_admission
from nafaudit.measures.overlap import METRICS
from nafaudit.store.artifacts import read_replayed
from nafaudit.store.missing import Missing
from nafaudit.store.run import RecordPlace, Run

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class Measures(Sequence[Measure]):
    """The rows of a run, or of a part of it, in the order of their keys.

    Attributes:
        rows: One per trajectory.
        context: What is known of the run; of an arm, what is known of that arm.
    """

    rows: tuple[Measure, ...] = field(repr=False)
    context: RunContext = field(repr=False)

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory], context: RunContext) -> Measures:
        """Measures every trajectory once, in any order.

        Raises:
            StoreError: A trajectory was recorded twice.
        """
        return cls.sorted((measure(one, context) for one in trajectories), context)

    @classmethod
    def of_run(cls, run: Run, context: RunContext | None = None) -> Measures:
        """Measures the records that verdicts rest on: as recorded, or, of a black box, as replayed.

        Raises:
            StoreError: A trajectory was recorded twice.
        """
        known = context or RunContext.of(run)
        truth = read_replayed(run) if "promise" in run.design["identity"] else {}
        # Where tokens do not come from the promised laws, a replay by them contradicts no charge.
        other = {float(f["k"]) for f in known.failed if f["check"].startswith("sampler: ")}

        def row(place: RecordPlace, claimed: Trajectory) -> Measure:
            replayed = truth.get(claimed.key)
            if replayed is None:
                return measure(claimed, known, place)
            found = measure(replayed, known, place)
            if claimed.key.k in other:
                return with_admission(found, claimed, replayed, known)
            return found

        found = cls.sorted((row(place, one) for place, one in run.located()), known)
        if not known.failed:
            return found
        # What a refuted program spent is known only where it is convicted.
        convicted = {one.key.arm for one in found if one.violated and not one.admitted}
        return replace(
            found,
            rows=tuple(
                one if one.admitted or one.key.arm in convicted else replace(one, spend=math.nan)
                for one in found
            ),
        )

    @classmethod
    def sorted(cls, rows: Iterable[Measure], context: RunContext) -> Measures:
        """Brings rows into the order of their keys.

        Raises:
            StoreError: Two rows have one key.
        """
        found = sorted(rows, key=lambda row: row.key)
        for one, following in itertools.pairwise(found):
            if one.key == following.key:
                raise StoreError(
                    f"trajectory {tuple(one.key)} is recorded twice, which no run of ours does; "
                    "the directory was edited or merged. Restore it, or start again with another "
                    "--out."
                )
        return cls(tuple(found), context)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Measure: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Measure, ...]: ...

    def __getitem__(self, index: int | slice) -> Measure | tuple[Measure, ...]:
        return self.rows[index]

    def __iter__(self) -> Iterator[Measure]:
        return iter(self.rows)

    @cached_property
    def arms(self) -> dict[Arm, Measures]:
        """The rows of every arm, from the smallest budget up."""
        found: dict[Arm, list[Measure]] = {}
        for row in self.rows:
            found.setdefault(row.key.arm, []).append(row)
        return {
            arm: Measures(tuple(found[arm]), self.context.of_budget(arm.k)) for arm in sorted(found)
        }

    @cached_property
    def lost(self) -> frozenset[Key]:
        """Outputs that a decoder failed to deliver: they have no row, but they count."""
        failed = {f.key for f in self.context.faults if f.lost and f.key is not None}
        return frozenset(failed - {row.key for row in self.rows})

    @cached_property
    def missing(self) -> Missing | None:
        """What the run was asked for and has neither a row nor a fault; None if it has all."""
        plan = self.context.plan
        return None if plan is None else plan.missing([row.key for row in self.rows], self.lost)

    def of_arm(self, arm: Arm) -> Measures:
        """Returns the rows of one arm; none if all its outputs were lost."""
        return self.arms.get(arm) or Measures((), self.context.of_budget(arm.k))

    def by(self, column: str) -> dict[str, Measures]:
        """Groups the rows by a column or a part of the key, such as `label` or `prompt`."""
        found: dict[str, list[Measure]] = {}
        for row in self.rows:
            source = row.key if column in Key._fields else row
            found.setdefault(getattr(source, column), []).append(row)
        return {value: Measures(tuple(rows), self.context) for value, rows in found.items()}

    def column(self, name: str) -> list[float]:
        """Returns one number of every row."""
        return [getattr(row, name) for row in self.rows]

    def to_arrow(self) -> pyarrow.Table:
        """Returns a table of one row per trajectory, null where a number is not known."""
        import pyarrow as pa

        def cells(values: Iterable[Any]) -> list[Any]:
            # Only NaN is not equal to itself.
            return [None if value != value else value for value in values]

        plain = [f.name for f in fields(Measure) if f.name not in _NESTED]
        columns = {name: cells(getattr(r.key, name) for r in self.rows) for name in Key._fields}
        for name in (*plain, "utilisation", "gain"):
            columns[name] = cells(getattr(row, name) for row in self.rows)
        for name in METRICS:
            columns[name] = cells(getattr(row.overlap, name) for row in self.rows)
        columns["digest"] = [row.digest.hex() for row in self.rows]
        columns["gaps"] = [sorted(row.broken_identities) for row in self.rows]
        columns["flaws"] = [sorted(row.flaws) for row in self.rows]
        return pa.table(columns)


_NESTED = (
    *("key", "digest", "broken_identities", "flaws"),
    *("compared", "recorded", "absent", "overlap", "place"),
)


def largest_with_witness(
    rows: Iterable[Measure], value: str, step: str
) -> tuple[float, Witness | None]:
    """Returns the largest known value and where it is; NaN if none is. Ties go to the first key."""
    known = (row for row in rows if not math.isnan(getattr(row, value)))
    best = max(known, key=lambda row: float(getattr(row, value)), default=None)
    if best is None:
        return math.nan, None
    return getattr(best, value), Witness(best.key, getattr(best, step))
