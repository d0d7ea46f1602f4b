"""The operating characteristic as data, as a table for people, and as the page in docs/."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from nafaudit.selftest.catalogue import Case
from nafaudit.selftest.power import LEVEL, SIZES, Alarms, Arena, Power, Sound, is_sound, pooled
from nafaudit.selftest.worlds import Overspend
from nafaudit.stats.coverage import Miss
from nafaudit.views.markdown import plain_text

# What a fault must reach at the largest size.
ENOUGH = 0.95


@dataclass(frozen=True)
class Row:
    """What came out for one fault.

    Attributes:
        case: The fault.
        power: How often it was caught.
        overspend: What it truly costs.
        lab: Checks that fired on the lab pair; None if it was not tried there.
    """

    case: Case
    power: Power
    overspend: Overspend
    lab: tuple[str, ...] | None = None

    @property
    def rate(self) -> float:
        """Power at the largest size; a warning counts where the fault is harmless."""
        if self.case.harmless:
            return self.power.warned[SIZES[-1]] / self.power.audits
        return self.power.rate(SIZES[-1])

    @property
    def as_expected(self) -> bool:
        """True if it was caught, by a check that was expected to, or need not be."""
        if self.case.escapes:
            return True
        if self.rate < ENOUGH:
            return False
        fired = [*self.power.by] if not self.case.harmless else [*self.case.expected]
        return any(name.startswith(self.case.expected) for name in fired)


@dataclass(frozen=True)
class Selftest:
    """Everything that `nafaudit selftest` found out.

    Attributes:
        rows: Of every fault that was tried.
        sound: Audits of sound decoders.
        bounds: Worst miss rate of every bound.
        seed: Of everything random.
        full: True for the published form.
        arena: Where wrong samplers were audited.
        short: Where the other faults were.
    """

    rows: Sequence[Row]
    sound: Sequence[Sound]
    bounds: Sequence[Miss]
    seed: int
    full: bool
    arena: Arena
    short: Arena

    @property
    def alarms(self) -> Alarms:
        """False alarms of all sound audits."""
        return pooled(list(self.sound))

    @property
    def missed(self) -> list[Row]:
        """Faults that escaped and should not have."""
        return [row for row in self.rows if not row.as_expected]

    @property
    def passed(self) -> bool:
        """True if every fault is caught that must be, and nobody cries wolf."""
        bounds = all(is_sound(miss) for miss in self.bounds)
        return not self.missed and self.alarms.consistent and bounds

    @property
    def command(self) -> str:
        """What makes this table."""
        words = ["nafaudit", "selftest", *(["--full"] if self.full else [])]
        return shlex.join([*words, *(["--seed", str(self.seed)] if self.seed else [])])


def as_json(found: Selftest) -> dict[str, Any]:
    """One object, as `--json` prints it."""
    return {
        "passed": found.passed,
        "level": LEVEL,
        "budget": found.arena.k,
        "faults": [_row_json(row) for row in found.rows],
        "sound": {
            "audits": found.alarms.audits,
            "alarms": found.alarms.alarms,
            "upper_limit": found.alarms.upper,
            "nominal": found.alarms.nominal,
            "kinds": [
                {
                    "name": kind.name,
                    "audits": kind.power.audits,
                    "alarms": {str(n): count for n, count in kind.power.caught.items()},
                    "fired": dict(kind.power.by),
                }
                for kind in found.sound
            ],
        },
        "bounds": [
            {
                "name": miss.bound,
                "nominal": miss.delta,
                "miss_rate": miss.rate,
                "samples": miss.samples,
                "worst_law": miss.null,
                "n": miss.n,
                "sound": miss.sound,
            }
            for miss in found.bounds
        ],
    }


def _row_json(row: Row) -> dict[str, Any]:
    case, power = row.case, row.power
    return {
        "name": case.name,
        "description": case.about,
        "expected_check": list(case.expected),
        "caught_by": list(power.by),
        "power": {str(size): power.rate(size) for size in SIZES},
        "limits": {str(size): list(power.limits(size)) for size in SIZES},
        "audits": power.audits,
        "warned": {str(size): power.warned[size] / power.audits for size in SIZES},
        "harmless": case.harmless,
        "escapes": case.escapes,
        "overspend": {"share": row.overspend.share, "ratio": row.overspend.ratio},
        "lab": None if row.lab is None else list(row.lab),
        "as_expected": row.as_expected,
    }


def as_text(found: Selftest) -> str:
    """A table of at most 80 columns."""
    head = f"{'fault':<24}{'over':>5}{'spend':>7}  " + "".join(f"{f'n={n}':>6}" for n in SIZES)
    lines = [f"{head}  caught by"]
    for row in found.rows:
        rates = "".join(f"{row.power.rate(size):>6.2f}" for size in SIZES)
        over, spend = row.overspend.share, row.overspend.ratio
        line = f"{row.case.name:<24}{over:>5.0%}{spend:>6.2f}x  {rates}  {_by(row, 20)}"
        lines.append(line.rstrip())
    lines.append(
        "over, spend: outputs truly over budget, true mean spend over mean budget; n:\n"
        f"power after so many outputs at k = {found.arena.k:g}, alpha = {LEVEL:g}; caught by: "
        "the check\nthat fired most often"
    )
    return "\n".join([*lines, "", *_remarks(found), _verdict(found)])


def _remarks(found: Selftest) -> list[str]:
    lines = []
    for row in found.rows:
        reason = row.case.escapes or row.case.harmless
        if reason:
            kind = "may escape" if row.case.escapes else "harmless"
            lines += wrap(f"{row.case.name}: {kind}: {reason}", 79)
    alarms = found.alarms
    lines.append(
        f"sound decoders: {alarms.alarms} false alarms in {alarms.audits} audits; true rate below "
        f"{alarms.upper:.2%}\nat 95 % (nominal {alarms.nominal:.2%})"
    )
    if found.bounds:
        worst = max((m for m in found.bounds if m.sound), key=lambda m: m.rate / m.delta)
        lines.append(
            f"bounds: {len(found.bounds)} tried on {found.bounds[0].samples:,} samples of every "
            f"law; worst miss\nrate {worst.rate:.2%} ({worst.bound}, nominal {worst.delta:.0%})"
        )
        lines += [
            f"{m.bound} misses {m.rate:.0%} at nominal {m.delta:.0%}: it is the paper's proxy, "
            "not a bound"
            for m in found.bounds
            if not m.sound and is_sound(m)
        ]
    return lines


def _verdict(found: Selftest) -> str:
    must = [row for row in found.rows if row.case.must_catch]
    caught = sum(row.as_expected for row in must)
    word = "PASSED" if found.passed else "FAILED"
    text = f"{word}: {caught} of {len(must)} faults that must be caught are, at n = {SIZES[-1]}"
    if found.missed:
        names = ", ".join(row.case.name for row in found.missed)
        text += "\n" + "\n".join(wrap(f"not caught: {names}", 79))
    return text


def _by(row: Row, most: int) -> str:
    if not row.power.by:
        warned = row.power.warned[SIZES[-1]]
        return "warned only" if warned else "nothing"
    return next(iter(row.power.by))[:most]


def as_markdown(found: Selftest, version: str) -> str:
    """The published page."""
    sizes = " | ".join(f"n = {size}" for size in SIZES)
    audits = sorted({row.power.audits for row in found.rows})
    held = " to ".join(str(n) for n in dict.fromkeys((audits[0], audits[-1])))
    lines = [
        "# What the auditor catches, and how often it cries wolf",
        "",
        f"Written by `{found.command}`, nafaudit {version}; seed {found.seed}.",
        "",
        f"Every fault is a decoder behind the door of `--decoder`. It is audited {held} times in "
        f"small worlds",
        f"({found.arena.size} token ids, up to {found.arena.length} tokens an output, "
        f"{found.short.length} where claims give a fault away;",
        f"k = {found.arena.k:g}, where the budget acts at most steps)",
        "by the checks of a real run: claims against each other, against a replay, and tokens "
        "against the",
        f"replayed laws. The whole battery has a level of {LEVEL:g}. *Over*: share of outputs "
        "that truly spend more",
        "than their budget; *spend*: true mean spend over mean budget. Power is followed by its "
        "95 % limits",
        "(Clopper-Pearson) at the largest n. *Lab*: what fired in one small audit on the lab pair.",
        "",
        f"| fault | what it does | over | spend | {sizes} | limits | caught by | lab |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(_markdown_row(row) for row in found.rows),
        "",
        *_markdown_exceptions(found),
        "## False alarms",
        "",
        *_markdown_sound(found),
        "## Bounds",
        "",
        *_markdown_bounds(found),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_row(row: Row) -> str:
    rates = " | ".join(f"{row.power.rate(size):.2f}" for size in SIZES)
    low, high = row.power.limits(SIZES[-1])
    by = ", ".join(f"`{name}`" for name in list(row.power.by)[:3]) or _by(row, 40)
    lab = "-" if row.lab is None else ", ".join(f"`{name}`" for name in row.lab[:2]) or "nothing"
    mark = "\\*" if not row.case.must_catch else ""
    name, about = plain_text(row.case.name), plain_text(row.case.about)
    return (
        f"| {name}{mark} | {about} | {row.overspend.share:.0%} | "
        f"{row.overspend.ratio:.2f} | {rates} | {low:.2f}-{high:.2f} | {by} | {lab} |"
    )


def _markdown_exceptions(found: Selftest) -> list[str]:
    lines = ["\\* need not fail a check at n = 60:", ""]
    for row in found.rows:
        if row.case.escapes:
            lines.append(f"- {row.case.name} may escape: {plain_text(row.case.escapes)}.")
        if row.case.harmless:
            share = row.power.warned[SIZES[-1]] / row.power.audits
            lines.append(
                f"- {row.case.name} is harmless, so that a warning is enough: "
                f"{plain_text(row.case.harmless)}. "
                f"Warned in {share:.0%} of audits."
            )
    return [*lines, ""]


def _markdown_sound(found: Selftest) -> list[str]:
    alarms = found.alarms
    lines = [
        f"{alarms.alarms} false alarms in {alarms.audits} audits of sound decoders, {SIZES[-1]} "
        f"outputs each: true rate below {alarms.upper:.2%} at 95 %",
        f"(Clopper-Pearson); nominal {alarms.nominal:.2%}.",
        "",
        "| decoder | audits | " + " | ".join(f"alarms at n = {n}" for n in SIZES) + " | fired |",
        "|---|---|---|---|---|---|",
    ]
    for kind in found.sound:
        counts = " | ".join(str(kind.power.caught[size]) for size in SIZES)
        fired = ", ".join(kind.power.by) or "-"
        lines.append(f"| {kind.name} | {kind.power.audits} | {counts} | {fired} |")
    return [*lines, ""]


def _markdown_bounds(found: Selftest) -> list[str]:
    lines = [
        "How often each bound missed a mean that is known, on its worst law and sample size.",
        "",
        "| bound | nominal | miss rate | samples | worst law | n | |",
        "|---|---|---|---|---|---|---|",
    ]
    for miss in found.bounds:
        word = "as promised" if miss.sound else "no bound: the paper's proxy"
        lines.append(
            f"| `{miss.bound}` | {miss.delta:.2f} | {miss.rate:.4f} | {miss.samples} | "
            f"{miss.null} | {miss.n} | {word} |"
        )
    return [*lines, ""]
