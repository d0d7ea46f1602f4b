"""The rows of a run: by arm, by class, by prompt, as columns; Arrow tables of rows and steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np
import pyarrow as pa

from nafaudit.core.errors import StoreError
from nafaudit.core.finding import Kept, Witness
from nafaudit.core.ledger import is_baseline
from nafaudit.core.promise import MEANS_LEVEL, Promise
from nafaudit.core.trajectory import STEP_TYPES, Arm, Key, Steps, Trajectory
from nafaudit.measures.batch import measure_batch
from nafaudit.measures.context import RunContext
from nafaudit.measures.measure import Measure, measure, regimes, with_admission
from nafaudit.stats.betting import lower_rows
from nafaudit.store.artifacts import TOKENS, read_replayed
from nafaudit.store.missing import Missing
from nafaudit.store.parts import STEP_COLUMNS, Batch, Column, schema_of
from nafaudit.store.run import RecordPlace, Run

_TEXT, _NUMBER, _COUNT, _FLAG = pa.string(), pa.float64(), pa.int64(), pa.bool_()
_PLACE, _EITHER = "number from 0", "true or false"

MEASURE_COLUMNS = (
    Column("prompt", _TEXT, "id", "id of the prompt"),
    Column("class", _TEXT, "name", "class of the prompt"),
    Column("mechanism", _TEXT, "name", "name of the mechanism"),
    Column("k", _NUMBER, "nats per token", "budget; 0 the safe model alone, inf the risky one"),
    Column("trajectory", _COUNT, _PLACE, "number of the trajectory of this prompt"),
    Column("verdict", _TEXT, "word", "WITHIN, VIOLATED, REFUTED, INCONCLUSIVE; null at k 0, inf"),
    Column("length", _COUNT, "tokens", "tokens written"),
    Column("stopped", _FLAG, _EITHER, "whether a stop token ended it"),
    Column("debt", _NUMBER, "nats", "prefix debt"),
    Column("budget", _NUMBER, "nats", "what it may have spent at its own end; inf without limit"),
    Column("spend", _NUMBER, "nats", "total charge Z"),
    Column("use", _NUMBER, "share", "spend / budget; null where there is no such ratio"),
    Column("recall", _NUMBER, "share", "of the reference in near-verbatim spans; null unscored"),
    Column("granted", _NUMBER, "nats", "B at its end, negative while the debt is not paid"),
    Column(
        *("violated", _FLAG, _EITHER),
        "a step above its allowance, a prefix above budget; of k-naf: its prompt's mean above K",
    ),
    Column("judged", _FLAG, _EITHER, "whether nothing is missing that this needs"),
    Column("admitted", _FLAG, _EITHER, "violated by the decoder's own claimed charges"),
    Column("larger", _FLAG, _EITHER, "the log states a budget above what k and T grant"),
    Column("contested", _FLAG, _EITHER, "spent more than k and T grant, not than stated"),
    Column("excess", _NUMBER, "nats", "above the limit at the worst step; 0 if not violated"),
    Column("excess_step", _COUNT, _PLACE, "that step"),
    Column("forced", _COUNT, "tokens", "steps that served the safe law"),
    Column("active", _COUNT, "tokens", "steps that served a mixture"),
    Column("free", _COUNT, "tokens", "steps that served the risky law"),
    Column("unweighted", _COUNT, "tokens", "steps that record no weight"),
    Column("opening", _COUNT, "tokens", "leading steps that the debt left without allowance"),
    Column("log_ratio", _NUMBER, "nats", "L, sum of log p_served - log p_safe"),
    Column("gain", _NUMBER, "nats", "L - Z; its mean is 0 if tokens follow the charged law"),
    Column("gain_variance", _NUMBER, "nats squared", "least variance of L - Z by the record"),
    Column("largest_ratio", _NUMBER, "nats", "the largest term of L"),
    Column("largest_step", _COUNT, _PLACE, "its step"),
    Column("impossible_step", _COUNT, _PLACE, "where L - Z is infinite; -1 if nowhere"),
    Column("burst", _NUMBER, "ratio", "dearest window of 20 steps over the 20 k that it earns"),
    Column("burst_step", _COUNT, _PLACE, "where that window begins"),
    Column("bank", _NUMBER, "nats", "largest allowance of any step; -inf without a burst"),
    Column("log_p_served", _NUMBER, "nats", "of the whole output under the served laws"),
    Column("opening_due", _COUNT, "tokens", "leading steps granted nothing; -1 if unknown"),
    Column("opening_seen", _COUNT, "tokens", "leading steps of weight 0; -1 if unknown"),
    Column("rouge_l_f1", _NUMBER, "share", "F1 of the longest common subsequence of words"),
    Column("rouge_l_precision", _NUMBER, "share", "its length over the output's words"),
    Column("rouge_l_recall", _NUMBER, "share", "its length over the reference's words"),
    Column("jaccard_5gram", _NUMBER, "share", "shared over all distinct runs of five words"),
    Column("substring_words", _NUMBER, "words", "of the longest common substring"),
    Column("substring_characters", _NUMBER, "characters", "of the longest common substring"),
    Column("span_words", _NUMBER, "words", "in common runs of at least five words"),
    Column("gaps", _TEXT, "names", "identities that do not hold, with ; between"),
    Column("flaws", _TEXT, "names", "what is wrong with the record itself, with ; between"),
    Column("pad_steps", _COUNT, "tokens", "padding at the end"),
    Column("tokens_digest", _TEXT, "hex", "equal for equal tokens; empty if some are unknown"),
    Column("part", _TEXT, "file", "part that holds the record; empty if it is from none"),
    Column("row", _COUNT, _PLACE, "which trajectory of that part, from 0: no row of the file"),
)
"""The columns of `Measures.to_arrow`; recall is the overlap's near_verbatim_recall."""

STEP_ADDITIONS = (
    Column("class", _TEXT, "name", "class of the prompt"),
    Column("text", _TEXT, "text", "what the token stands for; null if not known"),
    Column(
        *("regime", _TEXT, "word"),
        "forced: the safe law; active: neither; free: the risky law; unknown: no weight",
    ),
)
"""What `steps_table` adds to the columns of a part."""

_FIELDS = tuple(
    column.name
    for column in MEASURE_COLUMNS
    if column.name in Measure.__dataclass_fields__ and column.name != "flaws"
)


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
        return cls.sorted(measure_batch(Batch.of(trajectories), context), context)

    @classmethod
    def of_run(cls, run: Run, context: RunContext | None = None) -> Measures:
        """Measures the records that verdicts rest on: as recorded, or, of a black box, as replayed.

        Raises:
            StoreError: A trajectory was recorded twice.
        """
        known = context or RunContext.of(run)
        truth = read_replayed(run) if "promise" in run.design["identity"] else {}
        # Where tokens do not come from the promised laws, a replay by them contradicts no charge.
        kinds = ("sampler: ", "budget: ", "sampling: ")
        named = (f for f in known.failed if f["check"].startswith(kinds) and f["k"] is not None)
        other = {float(f["k"]) for f in named}

        def rows(part: str, batch: Batch) -> Iterable[Measure]:
            places = [RecordPlace(part, row) for row in range(len(batch))]
            if not truth:
                return measure_batch(batch, known, places)
            return map(row, places, batch)

        def row(place: RecordPlace, claimed: Trajectory) -> Measure:
            replayed = truth.get(claimed.key)
            if replayed is None:
                return measure(claimed, known, place)
            found = measure(replayed, known, place)
            if claimed.key.k in other:
                return with_admission(found, claimed, replayed, known)
            return found

        found = cls.sorted((one for part in run.batches() for one in rows(*part)), known)
        # The steps of a silent decoder are the promised law's, which its tokens may not fit.
        said = {arm: known.said(arm, TOKENS) for arm in found.arms}
        unlike = {
            arm
            for arm, one in said.items()
            if one is not None and not (one.numbers["shown"] or one.numbers["as_promised"])
        }
        if unlike:
            blank = (_without_steps(one) if one.key.arm in unlike else one for one in found)
            found = replace(found, rows=tuple(blank))
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
        ordered = tuple(found)
        if context.held_to == Promise.K_NAF:
            ordered = _by_mean(ordered, context)
        return cls(ordered, context)

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

    def to_arrow(self) -> pa.Table:
        """Returns a table of one row per trajectory, with the columns of `MEASURE_COLUMNS`.

        Null where a number is not known. Each field names its unit in its metadata.
        """
        schema = schema_of(MEASURE_COLUMNS)
        refuted = bool(self.context.failed)
        rows = [_cells(row, refuted=refuted) for row in self.rows]
        # Only NaN is not equal to itself.
        return pa.table(
            {
                name: [None if row[name] != row[name] else row[name] for row in rows]
                for name in schema.names
            },
            schema=schema,
        )


class PromptMean(NamedTuple):
    """What the answers to one prompt spend in the mean, beside what Eq. 1 grants it."""

    rows: tuple[Measure, ...]
    mean: float
    limit: float
    lower: float

    @property
    def name(self) -> str:
        """The prompt's id."""
        return self.rows[0].key.prompt


def prompt_means(rows: Iterable[Measure], context: RunContext) -> list[PromptMean]:
    """Returns prompts of every budget with the mean of their totals and a lower limit of it.

    K = k T less the debt. All limits together miss with chance `ACCUSED_AT`; they hold whatever the
    answers' totals are distributed like, and need many answers of a prompt. Empty without T.
    """
    groups: dict[tuple[Arm, str], list[Measure]] = {}
    for row in rows:
        if not is_baseline(row.key.k) and not math.isnan(row.spend):
            groups.setdefault((row.key.arm, row.key.prompt), []).append(row)
    found = []
    for (arm, _), group in groups.items():
        debt = max([0.0, *(row.debt for row in group if not math.isnan(row.debt))])
        limit = max(0.0, context.promised(arm.k) - debt)
        if math.isnan(context.promised(arm.k)):
            continue
        spends = np.maximum([row.spend for row in group], 0.0)
        lower = float(lower_rows(spends[None, :], math.inf, MEANS_LEVEL / len(groups))[0])
        # Where nothing may be spent, anything is more, as no total is below 0.
        lower = float(spends.mean()) if not limit else lower
        found.append(PromptMean(tuple(group), float(spends.mean()), limit, lower))
    return found


def _by_mean(rows: tuple[Measure, ...], context: RunContext) -> tuple[Measure, ...]:
    """Judges rows by Eq. 1: those of a prompt whose mean is surely above K are violated."""
    over: dict[Key, float] = {}
    for one in prompt_means(rows, context):
        slack = float(context.tolerance(np.array([one.limit]))[0])
        if one.lower > one.limit + slack:
            over |= {row.key: one.mean - one.limit for row in one.rows}
    return tuple(
        row
        if is_baseline(row.key.k)
        else replace(row, violated=row.key in over, excess=over.get(row.key, 0.0), excess_step=0)
        for row in rows
    )


def _without_steps(row: Measure) -> Measure:
    """Returns the row of an output whose steps are not known."""
    if row.violated:
        return row
    return replace(
        row,
        spend=math.nan,
        forced=0,
        active=0,
        free=0,
        unweighted=row.length,
        log_ratio=math.nan,
        largest_ratio=math.nan,
        gain_variance=math.nan,
        burst=None,
        bank=-math.inf,
        opening_due=-1,
        opening_seen=-1,
        compared=(),
    )


def _cells(row: Measure, *, refuted: bool) -> dict[str, Any]:
    """Returns the numbers of a row by the names of `MEASURE_COLUMNS`."""
    verdict: Kept | None = None if is_baseline(row.key.k) else Kept.WITHIN
    if row.violated:
        verdict = Kept.VIOLATED
    elif verdict and refuted and math.isnan(row.spend):
        verdict = Kept.REFUTED
    elif verdict and not row.judged:
        verdict = Kept.INCONCLUSIVE
    named = {name: getattr(row, name) for name in _FIELDS}
    return {
        **named,
        **row.key._asdict(),
        **row.overlap.numbers,
        "class": row.label,
        "verdict": verdict,
        "use": row.utilisation,
        "recall": row.recall,
        "gain": row.gain,
        "log_p_served": row.served_logp,
        "gaps": ";".join(sorted(row.broken_identities)),
        "flaws": ";".join(sorted(row.flaws)),
        "tokens_digest": row.digest.hex(),
        "part": row.place.part,
        "row": row.place.row,
    }


def steps_table(run: Run, context: RunContext | None = None) -> pa.Table:
    """Returns one row per token: the record, with class, text and regime, sorted by key and step.

    Of a black box these are its claims; a replay's numbers are in RUN/replayed.parquet. What only
    totals are known of has a row without step. Each field names its unit in its metadata.

    Args:
        run: The run.
        context: What is known of it, where that was read already.
    """
    known = context or RunContext.of(run)
    table = run.table()
    steps = {
        name: np.asarray(table[column].fill_null(0).to_numpy(), STEP_TYPES[name])
        for name, column in STEP_COLUMNS.items()
    }
    there = table["step"].is_valid().to_numpy()
    forced, _, free, missing = regimes(Steps(**steps), known)
    which = np.where(forced, 0, np.where(missing, 3, np.where(free, 2, 1)))
    words = pa.array(["forced", "active", "free", "unknown"])
    pieces = [None if piece is None else piece.decode(errors="replace") for piece in known.pieces]
    token = steps["token"]
    inside = there & (token >= 0) & (token < len(pieces))
    prompts = table["prompt"].combine_chunks().dictionary_encode()
    labels = pa.array([known.label(prompt) for prompt in prompts.dictionary.to_pylist()])
    added = (
        (STEP_ADDITIONS[0], labels.take(prompts.indices)),
        (
            STEP_ADDITIONS[1],
            pa.array(pieces, pa.string()).take(pa.array(np.where(inside, token, 0), mask=~inside)),
        ),
        (STEP_ADDITIONS[2], words.take(pa.array(which, mask=~there))),
    )
    for column, values in added:
        table = table.append_column(schema_of([column]).field(0), pa.chunked_array([values]))
    return table.replace_schema_metadata(None)


def largest_with_witness(
    rows: Iterable[Measure], value: str, step: str
) -> tuple[float, Witness | None]:
    """Returns the largest known value and where it is; NaN if none is. Ties go to the first key."""
    known = (row for row in rows if not math.isnan(getattr(row, value)))
    best = max(known, key=lambda row: float(getattr(row, value)), default=None)
    if best is None:
        return math.nan, None
    return getattr(best, value), best.witness(getattr(best, step))
