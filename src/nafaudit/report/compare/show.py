"""A comparison on a terminal, as Markdown and for machines."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nafaudit.report.compare.changes import LEVEL, METHOD, Change
from nafaudit.report.compare.comparison import Comparison, PromptChange
from nafaudit.report.compare.diverge import Partings
from nafaudit.report.compare.pairing import ArmPair, Draws
from nafaudit.report.markdown import plain_text, table
from nafaudit.report.result import as_number
from nafaudit.report.text import cut, name, visible
from nafaudit.views.words import budget_name

_WIDTH = 79
_MOST_PROMPTS, _MOST_CLASSES, _MOST_KEYS = 8, 12, 8
_EMPTY = "-"
_NARROWEST = 8
_FINGERPRINT = re.compile("[0-9a-f]{32,}")


@dataclass(frozen=True)
class Section:
    """A table with a title and what has to be said below it."""

    title: str
    heads: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    note: str = ""


def as_text(found: Comparison) -> str:
    """What moved, in at most 80 columns."""
    lines = [wrapped for line in _header(found) for wrapped in _wrapped(line)] + [""]
    for section in sections(found):
        lines += [section.title, *(_aligned(section) if section.rows else [])]
        lines += [*_wrapped(section.note), ""] if section.note else [""]
    return "\n".join([*lines, *_wrapped(conclusion(found))])


def as_markdown(found: Comparison) -> str:
    """The same as Markdown; all names are quoted, none is markup."""
    lines = ["# nafaudit compare", "", plain_text(conclusion(found)), ""]
    lines += [f"- {plain_text(line)}" for line in _header(found)]
    for section in sections(found):
        lines += ["", f"## {section.title}", ""]
        if section.rows:
            rows = [[plain_text(cell) for cell in row] for row in section.rows]
            lines += [*table(section.heads, rows), ""]
        lines += [plain_text(section.note)] if section.note else []
    return "\n".join(lines) + "\n"


def conclusion(found: Comparison) -> str:
    """The comparison in a sentence or two."""
    worse, unsure = found.newly_violated, found.newly_open
    parts = []
    if worse:
        names = ", ".join(budget_name(arm.k) for arm in worse)
        parts.append(f"B violates {names}, which A does not.")
    if unsure:
        names = ", ".join(budget_name(arm.k) for arm in unsure)
        parts.append(f"A keeps {names}; B's records do not decide it.")
    for letter, gaps in found.unfinished:
        parts.append(f"{letter} is unfinished: {visible(gaps.brief)}.")
    if not parts:
        parts.append("Nothing got worse: B violates no budget that A does not.")
    moved = [c for c in found.overall if c.moved in ("up", "down")]
    pairs = sum(len(one.of) for one in found.partings)
    if pairs and pairs == sum(one.identical for one in found.partings):
        parts.append(f"All {pairs} pairs of executions are equal to the last bit.")
    elif moved:
        cells = ", ".join(
            dict.fromkeys(f"{c.quantity.name} ({budget_name(c.pair.a.k)}) {c.moved}" for c in moved)
        )
        parts.append(f"Beyond chance: {cells}.")
    else:
        parts.append("No quantity moved beyond what chance explains.")
    return " ".join(parts)


def sections(found: Comparison) -> Iterator[Section]:
    """The tables, in the order in which they are read."""
    yield _verdicts(found)
    yield _quantities(found)
    if found.classes:
        yield _classes(found)
    yield _partings(found)
    yield _prompts(found)


def _header(found: Comparison) -> list[str]:
    """Who is compared, what differs in their designs, and what is paired."""
    laid = found.laid
    lines = [
        f"{letter}: {name(str(side.run.path))} (design {side.run.design['hash'][:10]}, "
        f"{len(side.outlines)} executions)"
        for letter, side in (("A", found.a), ("B", found.b))
    ]
    lines += [f"incomplete: {letter}: {visible(gaps.text)}" for letter, gaps in found.unfinished]
    keys = [f"{key}: {_short(a)} | {_short(b)}" for key, a, b in found.design]
    lines += [f"differs: {visible(line)}" for line in keys[:_MOST_KEYS]]
    if len(keys) > _MOST_KEYS:
        lines.append(f"differs: {len(keys) - _MOST_KEYS} more; --json has all")
    lines.append(f"draws: {laid.draws} ({laid.why})")
    if laid.paired:
        how = "prompt and number" if laid.by_number else "prompt only"
        lines.append(f"paired by {how}: {len(laid.prompts)} prompts in both")
    else:
        lines.append("UNPAIRED: no prompt is in both, so intervals are wider and mean less")
    if laid.changed:
        lines.append(f"left out: {len(laid.changed)} ids whose text differs ({laid.changed[0]!r})")
    for letter, arms in (("A", laid.only_a), ("B", laid.only_b)):
        if arms:
            names = ", ".join(f"{arm.mechanism} {budget_name(arm.k)}" for arm in arms)
            lines.append(f"only in {letter}: {visible(names)}")
    return lines


def _verdicts(found: Comparison) -> Section:
    rows = []
    for pair in found.laid.pairs:
        if not pair.a.is_baseline:
            words = zip(_words(pair, "a"), _words(pair, "b"), strict=True)
            rows.append([_name(found, pair), *(_arrow(a, b) for a, b in words)])
    notes = [
        f"{_name(found, one.pair)}: {one.check} {one.a} -> {one.b}: {one.text}"
        for one in found.findings
    ]
    heads = ("budget", "kept?", "tested?", "worth?", "over budget")
    note = "\n".join(notes) if rows else "Only baselines are in both."
    return Section("Verdicts, A -> B", heads, rows, note)


def _words(pair: ArmPair, side: str) -> list[str]:
    arm = getattr(pair, side)
    over = f"{arm.invariant.violations}/{arm.invariant.trajectories}"
    return [str(arm.kept), str(arm.tested), str(arm.worth), over]


def _arrow(a: str, b: str) -> str:
    return a if a == b else f"{a} -> {b}"


def _quantities(found: Comparison) -> Section:
    heads = ("budget", "what", "A", "B", "change", "interval", "moved", "n")
    rows = [
        [_name(found, c.pair), c.quantity.name, *_numbers(c), _said(c), str(c.prompts)]
        for c in found.overall
        if c.moved != "same"
    ]
    same = len(found.overall) - len(rows)
    level = LEVEL / max(1, len(found.overall))
    few = any(not c.evidence for c in found.overall)
    note = f"{same} of {len(found.overall)} quantities are the same.\n" if same else ""
    if not rows:
        return Section("What moved", heads, rows, note.strip())
    note += (
        f"Means over prompts; n: prompts. Interval of the change, prompts as units ({METHOD}, "
        f"approximate); all {len(found.overall)} together miss with chance {LEVEL:g} ({level:.1g} "
        "each). Changes of shares are in points; L is the log-likelihood ratio, in nats."
    )
    if few:
        note += " (?): under 20 prompts, no evidence."
    return Section("What moved", heads, rows, note)


def _classes(found: Comparison) -> Section:
    heads = ("budget", "class", "what", "A", "B", "change", "interval", "moved", "n")
    moved = [c for c in found.classes if c.moved in ("up", "down")]
    ranked = sorted(moved, key=lambda c: -abs(c.difference) / (abs(c.a) + abs(c.b) or 1))
    rows = [
        [
            _name(found, c.pair),
            cut(name(c.label), 24),
            c.quantity.name,
            *_numbers(c),
            _said(c),
            str(c.prompts),
        ]
        for c in ranked[:_MOST_CLASSES]
    ]
    note = f"{len(moved)} of {len(found.classes)} cells (class, budget, quantity) moved"
    if len(moved) > _MOST_CLASSES:
        note += f"; the {_MOST_CLASSES} largest of them by share. --json has all"
    return Section("By class", heads, rows, note + ".")


def _partings(found: Comparison) -> Section:
    heads = ("budget", "pairs", "bit-equal", "same text", "first", "median", "charge gap")
    rows = [
        [
            _name(found, one.pair),
            str(len(one.of)),
            str(one.identical),
            str(one.same_tokens),
            str(one.token_steps[0]) if one.token_steps else _EMPTY,
            f"{one.median_step:g}" if one.token_steps else _EMPTY,
            f"{one.charge_gap:.2g}",
        ]
        for one in found.partings
    ]
    if rows:
        note = (
            "Pairs of one prompt and number. first, median: step (from 0) of the first other "
            "token, among pairs that part; charge gap: largest difference of a charge up to there."
        )
        if found.laid.draws != Draws.SHARED:
            note += f" {found.laid.draws}: that they part says little."
    elif found.laid.draws == Draws.OTHER:
        note = f"Not compared: {found.laid.draws}, so executions part by chance."
    else:
        note = "Not compared: no pair of executions has steps in both."
    return Section("Where executions part", heads, rows, note)


def _prompts(found: Comparison) -> Section:
    heads = ("prompt", "budget", "spend A", "B", "use A", "B", "recall A", "B", "parts at")
    rows = [
        [
            cut(name(row.prompt), 32),
            _name(found, row.pair),
            *(_value(x, "nats") for x in _both(row, "spend")),
            *(_value(x, "share") for x in _both(row, "use")),
            *(_value(x, "share") for x in _both(row, "recall")),
            _EMPTY if row.token_step is None else str(row.token_step),
        ]
        for row in found.prompts[:_MOST_PROMPTS]
    ]
    ids = {row.prompt for row in found.prompts}
    note = f"{len(ids)} of {len(found.laid.prompts)} prompts moved, under any budget"
    if len(found.prompts) > _MOST_PROMPTS:
        note += "; those that moved most, new violations first. --json has all"
    return Section("Which prompts", heads, rows, note + ".")


def _both(row: PromptChange, quantity: str) -> tuple[float, float]:
    side = row.values[quantity]
    return side.a, side.b


def _name(found: Comparison, pair: ArmPair) -> str:
    several = len({one.a.mechanism for one in found.laid.pairs}) > 1
    short = f"{cut(name(pair.a.mechanism), 10)} " if several else ""
    return f"{short}{budget_name(pair.a.k)}"


def _numbers(change: Change) -> list[str]:
    unit, interval = change.quantity.unit, change.interval
    ends = f"[{_signed(interval.low, unit)}, {_signed(interval.high, unit)}]"
    return [
        _value(change.a, unit),
        _value(change.b, unit),
        _signed(change.difference, unit),
        ends if interval.known else _EMPTY,
    ]


def _said(change: Change) -> str:
    unsure = change.moved in ("up", "down") and not change.evidence
    return f"{change.moved} (?)" if unsure else change.moved


def _value(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return _EMPTY
    if unit == "share":
        return f"{value:.1%}"
    return f"{value:.1f}" if abs(value) < 1e4 else f"{value:.1e}"


def _signed(value: float, unit: str) -> str:
    shown = _value(abs(value), unit).removesuffix("%")
    if not math.isfinite(value):
        return _EMPTY
    small = float(shown) == 0
    sign = "" if small else "+" if value > 0 else "-"
    return sign + ("0" if value == 0 else shown)


def _short(text: str) -> str:
    """A value of a design; of a fingerprint, its start."""
    return text[:10] if _FINGERPRINT.fullmatch(text) else cut(text, 60)


def _wrapped(text: str) -> list[str]:
    lines = []
    for line in text.split("\n"):
        lines += textwrap.wrap(visible(line), _WIDTH, subsequent_indent="  ") or [""]
    return lines


def _aligned(section: Section) -> list[str]:
    """Columns side by side; words to the left, numbers to the right, long words cut."""
    rows = [section.heads, *section.rows]
    columns = range(len(section.heads))
    widths = [max(len(row[i]) for row in rows) for i in columns]
    words = [all(any(c.isalpha() for c in row[i]) for row in section.rows) for i in columns]
    while sum(widths) + 2 * (len(widths) - 1) > _WIDTH:
        widest = max((i for i in columns if words[i]), key=lambda i: widths[i])
        if widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
    return ["  ".join(map(_cell, row, widths, words)).rstrip() for row in rows]


def _cell(text: str, width: int, word: bool) -> str:
    shown = cut(text, width)
    return shown.ljust(width) if word else shown.rjust(width)


def as_json(found: Comparison) -> dict[str, Any]:
    """Everything, as strict JSON."""
    laid = found.laid
    return {
        "a": _side(found, "a"),
        "b": _side(found, "b"),
        "conclusion": conclusion(found),
        "exit_status": found.exit_status,
        "draws": str(laid.draws),
        "why": laid.why,
        "paired": "number" if laid.paired and laid.by_number else "prompt" if laid.paired else "no",
        "prompts_shared": len(laid.prompts),
        "prompts_changed": list(laid.changed),
        "only_a": [_arm(arm.mechanism, arm.k) for arm in laid.only_a],
        "only_b": [_arm(arm.mechanism, arm.k) for arm in laid.only_b],
        "design": [{"key": key, "a": a, "b": b} for key, a, b in found.design],
        "verdicts": [_pair(p) | {"a": _verdict(p, "a"), "b": _verdict(p, "b")} for p in laid.pairs],
        "findings": [
            _pair(f.pair) | {"check": f.check, "a": f.a, "b": f.b, "text": f.text}
            for f in found.findings
        ],
        "changes": [_change(c) for c in found.overall],
        "classes": [_change(c) | {"class": c.label} for c in found.classes],
        "partings": [_parting(one) for one in found.partings],
        "prompts": [_prompt(row) for row in found.prompts],
    }


def _side(found: Comparison, which: str) -> dict[str, Any]:
    side = getattr(found, which)
    return {"run": str(side.run.path), "design": side.run.design["hash"]} | {
        "executions": len(side.outlines),
        "missing": None if side.gaps is None else side.gaps.to_json(),
    }


def _arm(mechanism: str, k: float) -> dict[str, Any]:
    return {"mechanism": mechanism, "k": as_number(k)}


def _pair(pair: ArmPair) -> dict[str, Any]:
    return {"k": as_number(pair.a.k), "mechanisms": [pair.a.mechanism, pair.b.mechanism]}


def _verdict(pair: ArmPair, side: str) -> dict[str, Any]:
    arm = getattr(pair, side)
    return {
        "kept": str(arm.kept),
        "tested": str(arm.tested),
        "worth": str(arm.worth),
        "trajectories": arm.invariant.trajectories,
        "violations": arm.invariant.violations,
    }


def _change(change: Change) -> dict[str, Any]:
    return _pair(change.pair) | {
        "quantity": change.quantity.name,
        "unit": change.quantity.unit,
        "meaning": change.quantity.meaning,
        "a": as_number(change.a),
        "b": as_number(change.b),
        "change": as_number(change.difference),
        "low": as_number(change.interval.low),
        "high": as_number(change.interval.high),
        "level": change.interval.level,
        "method": METHOD,
        "prompts": change.prompts,
        "executions": change.executions,
        "moved": change.moved,
        "evidence": change.evidence,
    }


def _parting(one: Partings) -> dict[str, Any]:
    parted = [p for p in one.of.values() if p.token_step is not None or p.charge_step is not None]
    return _pair(one.pair) | {
        "pairs": len(one.of),
        "identical": one.identical,
        "same_tokens": one.same_tokens,
        "first": one.token_steps[0] if one.token_steps else None,
        "median": as_number(one.median_step),
        "charge_gap": as_number(one.charge_gap),
        "parted": [
            {
                "prompt": p.prompt,
                "trajectory": p.number,
                "token_step": p.token_step,
                "charge_step": p.charge_step,
            }
            for p in sorted(parted, key=lambda p: (p.prompt, p.number))
        ],
    }


def _prompt(row: PromptChange) -> dict[str, Any]:
    return _pair(row.pair) | {
        "prompt": row.prompt,
        "class": row.label,
        "violations": list(row.violations),
        "first_token_step": row.token_step,
        "values": {
            quantity: {"a": as_number(side.a), "b": as_number(side.b)}
            for quantity, side in row.values.items()
        },
    }
