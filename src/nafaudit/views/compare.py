"""A comparison of two runs: verdicts, what moved, where trajectories part, which prompts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from nafaudit.core.ledger import budget_name
from nafaudit.core.text import counted, cut, name, plain, visible
from nafaudit.measures.compare import LEVEL, METHOD, Change, Comparison
from nafaudit.measures.pairing import ArmPair, SharedDraws
from nafaudit.stats import MIN_EVIDENCE
from nafaudit.views.document import NONE, Column, Document, Section, Table, Verdict

_MOST_PROMPTS, _MOST_CLASSES, _MOST_KEYS = 8, 12, 8
_UNSURE = f" (?): under {MIN_EVIDENCE} prompts, no evidence."
_FINGERPRINT = re.compile("[0-9a-f]{32,}")
_CHANGE = (
    Column("what", "quantity", words=True),
    Column("A", write=lambda change: _value(change.a, change.quantity.unit)),
    Column("B", write=lambda change: _value(change.b, change.quantity.unit)),
    Column("change", write=lambda row: _signed(row.change, row.quantity.unit)),
    Column("interval", write=lambda change: _interval(change)),
    Column("moved", write=lambda change: _moved(change), words=True),
    Column("n", "prompts", "prompts"),
)


def compare_document(found: Comparison) -> Document:
    """Returns a comparison as a document."""
    several = len({pair.a.mechanism for pair in found.pairing.pairs}) > 1

    def arm(row: Any) -> str:
        pair: ArmPair = getattr(row, "pair", row)
        short = f"{cut(name(pair.a.mechanism), 10)} " if several else ""
        return f"{short}{budget_name(pair.a.k)}"

    budget = Column("budget", write=arm, words=True)
    sections = [_verdicts(found, budget, arm), _quantities(found, budget)]
    if found.classes:
        sections.append(_classes(found, budget))
    sections += [_partings(found, budget), _prompts(found, budget)]
    title = f"nafaudit compare: {name(found.a.run)} with {name(found.b.run)}"
    return Document(title, tuple(sections), moved(found), _header(found), answer=found.overall)


def moved(found: Comparison) -> str:
    """Returns in a sentence or two what moved; what rests on few prompts is no evidence of it."""
    pairs = sum(len(one.by_unit) for one in found.differences)
    if pairs and pairs == sum(one.identical for one in found.differences):
        return f"All {pairs} pairs of trajectories are equal to the last bit."

    def named(shown: Iterable[Change]) -> str:
        cells = (f"{c.quantity.name} ({budget_name(c.pair.a.k)}) {c.moved}" for c in shown)
        return ", ".join(dict.fromkeys(cells))

    beyond = [c for c in found.changes if c.moved in ("up", "down")]
    shown = named(c for c in beyond if c.evidence)
    parts = [f"Beyond chance: {shown}." if shown else "No quantity is shown to have moved."]
    if unsure := named(c for c in beyond if not c.evidence):
        parts.append(f"No evidence, on fewer than {MIN_EVIDENCE} prompts: {unsure}.")
    return " ".join(parts)


def _header(found: Comparison) -> tuple[str, ...]:
    """Returns which runs are compared, what differs in their designs, and what is paired."""
    laid = found.pairing
    lines = [
        f"{letter}: {name(side.run)} (design {side.design[:10]}, {side.trajectories} trajectories)"
        for letter, side in (("A", found.a), ("B", found.b))
    ]
    lines += [
        f"incomplete: {letter}: {visible(side.missing.text)}"
        for letter, side in (("A", found.a), ("B", found.b))
        if side.missing is not None
    ]
    lines += [
        f"search of {letter}: {visible(str(side.search))}"
        for letter, side in (("A", found.a), ("B", found.b))
        if side.search is not None
    ]
    keys = [f"{key}: {_short(a)} | {_short(b)}" for key, a, b in found.design]
    lines += [f"differs: {visible(line)}" for line in keys[:_MOST_KEYS]]
    if len(keys) > _MOST_KEYS:
        lines.append(f"differs: {len(keys) - _MOST_KEYS} more; --json has all")
    lines.append(f"draws: {laid.draws} ({laid.why})")
    if laid.paired:
        how = "prompt and number" if laid.by_number else "prompt only"
        lines.append(f"paired by {how}: {counted(len(laid.prompts), 'prompt')} in both")
    else:
        lines.append("UNPAIRED: no prompt is in both, so intervals are wider and mean less")
    if laid.changed:
        lines.append(f"left out: {len(laid.changed)} ids whose text differs ({laid.changed[0]!r})")
    for letter, arms in (("A", laid.only_a), ("B", laid.only_b)):
        if arms:
            names = ", ".join(f"{arm.mechanism} {budget_name(arm.k)}" for arm in arms)
            lines.append(f"only in {letter}: {visible(names)}")
    return tuple(lines)


def _verdicts(found: Comparison, budget: Column, arm: Callable[[Any], str]) -> Section:
    def both(word: Callable[[Any], str]) -> Callable[[ArmPair], Verdict]:
        def write(pair: ArmPair) -> Verdict:
            a, b = word(pair.a), word(pair.b)
            return Verdict(b, before="" if a == b else a)

        return write

    columns = (
        budget,
        Column("kept?", write=both(lambda side: str(side.kept)), words=True),
        Column("tested?", write=both(lambda side: str(side.tested)), words=True),
        Column("worth?", write=both(lambda side: str(side.worth)), words=True),
        Column(
            "over budget",
            write=both(
                lambda s: f"{'?' if s.violations is None else s.violations}/{s.trajectories}"
            ),
        ),
    )
    table = Table.of(columns, [pair for pair in found.pairing.pairs if not pair.a.baseline])
    notes = [f"{arm(one)}: {one.check} {one.a} -> {one.b}: {one.text}" for one in found.findings]
    note = "\n".join(notes) if table.rows else "Only baselines are in both."
    return Section("Verdicts, A -> B", table, note)


def _quantities(found: Comparison, budget: Column) -> Section:
    total = len(found.changes)
    shown = {f"changes[{i}]": c for i, c in enumerate(found.changes) if c.moved != "same"}
    table = Table.of((budget, *_CHANGE), shown.values(), shown)
    same = total - len(table.rows)
    notes = [f"{same} of {total} quantities are the same."] if same else []
    if table.rows:
        notes.append(
            f"Means over prompts; n: prompts. Interval of the change, prompts as units ({METHOD}, "
            f"approximate); all {total} together miss with chance {LEVEL:g} "
            f"({LEVEL / max(1, total):.1g} each). Changes of shares are in points; L is the "
            "log-likelihood ratio, in nats."
        )
        if any(_unsure(c) for c in found.changes):
            notes[-1] += _UNSURE
    return Section("What moved", table, "\n".join(notes))


def _classes(found: Comparison, budget: Column) -> Section:
    cells = [(i, c) for i, c in enumerate(found.classes) if c.moved in ("up", "down")]
    cells.sort(key=lambda one: -abs(one[1].change) / (abs(one[1].a) + abs(one[1].b) or 1))
    shown = {f"classes[{i}]": c for i, c in cells[:_MOST_CLASSES]}
    label = Column("class", "class", write=name, words=True, most=24)
    note = f"{len(cells)} of {len(found.classes)} cells (class, budget, quantity) moved"
    if len(cells) > _MOST_CLASSES:
        note += f"; the {_MOST_CLASSES} largest of them by share. --json has all"
    table = Table.of((budget, label, *_CHANGE), shown.values(), shown)
    note += "." + (_UNSURE if any(map(_unsure, shown.values())) else "")
    return Section("By class", table, note)


def _partings(found: Comparison, budget: Column) -> Section:
    columns = (
        budget,
        Column("pairs", "pairs"),
        Column("bit-equal", "identical"),
        Column("same text", "same_tokens"),
        Column("first", "first"),
        Column("median", "median", write="{:g}".format),
        Column("charge gap", "charge_gap", write="{:.2g}".format),
    )
    places = (f"partings[{i}]" for i in range(len(found.differences)))
    table = Table.of(columns, found.differences, places)
    note = "Not compared: no pair of trajectories has steps in both."
    if table.rows:
        note = (
            "Pairs of one prompt and number. first, median: step (from 0) of the first other "
            "token, among pairs that part; charge gap: largest difference of a charge up to there."
        )
        if found.pairing.draws != SharedDraws.SHARED:
            note += f" {found.pairing.draws}: that they part says little."
    elif found.pairing.draws == SharedDraws.OTHER:
        note = f"Not compared: {found.pairing.draws}, so trajectories part by chance."
    return Section("Where trajectories part", table, note)


def _prompts(found: Comparison, budget: Column) -> Section:
    columns = [Column("prompt", "prompt", write=name, words=True, most=32), budget]
    for quantity, unit in (("spend", "nats"), ("use", "share"), ("recall", "share")):
        write = partial(_value, unit=unit)
        columns.append(Column(f"{quantity} A", f"values.{quantity}.a", write=write))
        columns.append(Column("B", f"values.{quantity}.b", write=write))
    columns.append(Column("parts at", "first_token_step"))
    ids = {row.prompt for row in found.prompts}
    shared = len(found.pairing.prompts)
    note = f"{len(ids)} of {shared} prompts differ in a number or a token, under any budget"
    if len(found.prompts) > _MOST_PROMPTS:
        note += "; those that differ most, new violations first. --json has all"
    rows = found.prompts[:_MOST_PROMPTS]
    places = (f"prompts[{i}]" for i in range(len(rows)))
    return Section("Which prompts", Table.of(columns, rows, places), note + ".")


def _interval(change: Change) -> str:
    unit, interval = change.quantity.unit, change.interval
    ends = f"[{_signed(interval.low, unit)}, {_signed(interval.high, unit)}]"
    return ends if interval.known else NONE


def _unsure(change: Change) -> bool:
    return change.moved in ("up", "down") and not change.evidence


def _moved(change: Change) -> str:
    return f"{change.moved} (?)" if _unsure(change) else change.moved


def _value(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return NONE
    if unit == "share":
        return f"{value:.1%}"
    return f"{value:.1f}" if abs(value) < 1e4 else f"{value:.1e}"


def _signed(value: float, unit: str) -> str:
    shown = _value(abs(value), unit).removesuffix("%")
    if not math.isfinite(value):
        return NONE
    small = float(shown) == 0
    sign = "" if small else "+" if value > 0 else "-"
    return sign + ("0" if value == 0 else shown)


def _short(text: str) -> str:
    """Writes a value of a design; of a fingerprint, its start."""
    return text[:10] if _FINGERPRINT.fullmatch(text) else cut(text, 60)


def comparison_json(found: Comparison) -> dict[str, Any]:
    """Returns everything that a comparison says, as strict JSON."""
    laid = found.pairing
    words = ("kept", "tested", "worth", "trajectories", "violations")
    shown: dict[str, Any] = plain(
        {
            **plain(found.overall),
            "a": found.a,
            "b": found.b,
            "conclusion": moved(found),
            "draws": laid.draws,
            "draws_why": laid.why,
            "paired": ("number" if laid.by_number else "prompt") if laid.paired else "no",
            "prompts_shared": len(laid.prompts),
            "prompts_changed": laid.changed,
            "only_a": [{"mechanism": arm.mechanism, "k": arm.k} for arm in laid.only_a],
            "only_b": [{"mechanism": arm.mechanism, "k": arm.k} for arm in laid.only_b],
            "design": [{"key": key, "a": a, "b": b} for key, a, b in found.design],
            "verdicts": [
                plain(pair)
                | {"a": {word: getattr(pair.a, word) for word in words}}
                | {"b": {word: getattr(pair.b, word) for word in words}}
                for pair in laid.pairs
            ],
            "findings": found.findings,
            "changes": found.changes,
            "classes": found.classes,
            "partings": found.differences,
            "prompts": found.prompts,
        }
    )
    return shown
