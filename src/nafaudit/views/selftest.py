"""The self-test's operating characteristic, a decoder's conformance, and cards of mechanisms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from nafaudit.core.text import counted
from nafaudit.stats import clopper_pearson
from nafaudit.views.document import Column, Document, Section, Table, Verdict
from nafaudit.views.markdown import escaped_line

if TYPE_CHECKING:
    from nafaudit.mechanisms.cards import CardOption, MechanismCard
    from nafaudit.selftest.conform import Conformance
    from nafaudit.selftest.run import FaultRow, SelftestResult


def selftest_document(found: SelftestResult, files: tuple[str, ...] = ()) -> Document:
    """Returns a self-test as a document.

    Args:
        found: What came out.
        files: What was written.
    """
    columns = (
        Column("fault", "name", words=True),
        Column("over", "overspend.share", "outputs truly over budget", "{:.0%}".format),
        Column("spend", "overspend.ratio", "true mean spend over mean budget", "{:.2f}x".format),
        *(Column(f"n={n}", f"power.{n}", write="{:.2f}".format) for n in found.sizes),
        Column("caught by", write=_caught_by, words=True),
    )
    places = (f"faults[{i}]" for i in range(len(found.faults)))
    note = (
        "over, spend: outputs truly over budget, true mean spend over mean budget; n=N: power "
        f"after N outputs at k = {found.budget:g}, alpha = {found.level:g}; caught by: the check "
        "that fired most often"
    )
    fewest = min(found.faults, key=lambda row: row.audits)
    least, most = (clopper_pearson(n, fewest.audits, 0.025) for n in (fewest.audits, 0))
    note += (
        f"\npower is of {counted(fewest.audits, 'audit')} of a fault, or more: with 95 % limits "
        f"1.00 is at least {least[0]:.2f}, and 0.00 at most {most[1]:.2f}"
    )
    lines = [
        f"{row.name}: {'may escape' if row.escapes else 'harmless'}: {row.escapes or row.harmless}"
        for row in found.faults
        if not row.must_catch
    ]
    sound = found.sound
    lines.append(
        f"sound decoders: {sound.alarms} false alarms in {sound.audits} audits; true rate below "
        f"{sound.upper_limit:.2%} at 95 % (nominal {sound.nominal:.2%})"
    )
    if found.bounds:
        worst = max((m for m in found.bounds if m.sound), key=lambda m: m.miss_rate / m.nominal)
        lines.append(
            f"bounds: {len(found.bounds)} tried on {found.bounds[0].samples:,} samples of every "
            f"law; worst miss rate {worst.miss_rate:.2%} ({worst.name}, nominal "
            f"{worst.nominal:.0%})"
        )
        lines += [
            f"{m.name} misses {m.miss_rate:.0%} at nominal {m.nominal:.0%}: it is the paper's "
            "proxy, not a bound"
            for m in found.bounds
            if not m.sound and m.allowed
        ]
    sections = (
        Section(table=Table.of(columns, found.faults, places), note=note),
        Section(lines=tuple(lines)),
    )
    return Document("nafaudit selftest", sections, files=files, answer=found.overall)


def _caught_by(row: FaultRow) -> str:
    if row.caught_by:
        return row.caught_by[0]
    return "warned only" if row.warned[max(row.warned)] else "nothing"


def selftest_page(found: SelftestResult, version: str) -> str:
    """Returns docs/selftest.md, the published page."""
    last, sound = found.sizes[-1], found.sound
    sizes = [f"n = {size}" for size in found.sizes]
    audits = sorted({row.audits for row in found.faults})
    held = " to ".join(str(n) for n in dict.fromkeys((audits[0], audits[-1])))
    exceptions = []
    for row in found.faults:
        if row.escapes:
            exceptions.append(f"- {row.name} may escape: {escaped_line(row.escapes)}.")
        if row.harmless:
            exceptions.append(
                f"- {row.name} is harmless, so that a warning is enough: "
                f"{escaped_line(row.harmless)}. Warned in {row.warned[last]:.0%} of audits."
            )
    lines = [
        "# What the auditor catches, and how often it raises a false alarm",
        "",
        f"Written by `{found.command}`, nafaudit {version}; seed {found.seed}.",
        "",
        "Every fault is a decoder, as a user names one with `--decoder`. It is audited "
        f"{held} times in small worlds",
        f"({found.setup.size} token ids, up to {found.setup.length} tokens an output, "
        f"{found.short.length} where claims give a fault away;",
        f"k = {found.setup.k:g}, where the budget acts at most steps)",
        "by the checks of a real run: claims against each other, against a replay, and tokens "
        "against the",
        f"replayed laws. The whole battery has a level of {found.level:g}. *Over*: share of "
        "outputs that truly spend more",
        "than their budget; *spend*: true mean spend over mean budget. Power is followed by its "
        "95 % limits",
        "(Clopper-Pearson) at the largest n. *Caught by*: what fired most. `--out FILE.json` has "
        "more numbers.",
        "",
        *_rows(
            ("fault", "what it does", "over", "spend", *sizes[1:], "limits", "caught by"),
            (_page_row(row, last) for row in found.faults),
        ),
        "",
        "\\* need not fail a check at n = 60:",
        "",
        *exceptions,
        "",
        "## False alarms",
        "",
        f"{sound.alarms} false alarms in {sound.audits} audits of sound decoders, {last} "
        f"outputs each: true rate below {sound.upper_limit:.2%} at 95 %",
        f"(Clopper-Pearson); nominal {sound.nominal:.2%}.",
        "",
        *_rows(
            ("decoder", "audits", *(f"alarms at {size}" for size in sizes), "fired"),
            (
                (
                    kind.name,
                    str(kind.audits),
                    *(str(kind.alarms[size]) for size in found.sizes),
                    ", ".join(kind.fired) or "-",
                )
                for kind in sound.kinds
            ),
        ),
        "",
        "## Bounds",
        "",
        "How often each bound missed a mean that is known, on its worst law and sample size.",
        "",
        *_rows(
            ("bound", "nominal", "miss rate", "samples", "worst law", "n", ""),
            (
                (
                    f"`{m.name}`",
                    f"{m.nominal:.2f}",
                    f"{m.miss_rate:.4f}",
                    str(m.samples),
                    m.worst_law,
                    str(m.n),
                    "as promised" if m.sound else "no bound: the paper's proxy",
                )
                for m in found.bounds
            ),
        ),
    ]
    return "\n".join(lines) + "\n"


def _page_row(row: FaultRow, last: int) -> tuple[str, ...]:
    low, high = row.limits[last]
    by = ", ".join(f"`{name}`" for name in row.caught_by[:1]) or _caught_by(row)
    return (
        escaped_line(row.name) + ("" if row.must_catch else "\\*"),
        escaped_line(row.description),
        f"{row.overspend.share:.0%}",
        f"{row.overspend.ratio:.2f}",
        *(f"{rate:.2f}" for rate in list(row.power.values())[1:]),
        f"{low:.2f}-{high:.2f}",
        by,
    )


def _rows(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns a Markdown table whose cells are Markdown themselves."""
    head = f"| {' | '.join(heads)} |".replace("|  |", "| |")
    return [head, "|---" * len(heads) + "|", *(f"| {' | '.join(row)} |" for row in rows)]


def conform_document(found: Conformance) -> Document:
    """Returns a decoder's conformance as a document."""
    columns = (
        Column("item", "name", words=True),
        Column("kept?", "answer", write=lambda answer: Verdict(str(answer)), words=True),
        Column("what was seen", "text", words=True, wraps=True),
    )
    places = (f"items[{i}]" for i in range(len(found.items)))
    return Document(
        "nafaudit conform",
        (Section(table=Table.of(columns, found.items, places)),),
        lines=(f"decoder: {found.decoder}", f"promise: {found.promise}"),
        answer=found.overall,
    )


def mechanisms_document(cards: Iterable[MechanismCard]) -> Document:
    """Returns what can be audited: a card for each mechanism."""
    sections = (
        Section(
            card.name,
            pairs=(
                ("rule", card.formula),
                ("charge", card.currency),
                ("promise", card.guarantee),
                ("tight", "reached by some pair of models" if card.promise.tight else "-"),
                ("reference", card.reference),
                *(("option", _option(option)) for option in card.options),
            ),
        )
        for card in cards
    )
    return Document("nafaudit mechanisms", tuple(sections))


def _option(option: CardOption) -> str:
    value = option.default
    written = f"{value:g}" if isinstance(value, int | float) else value
    default = f"; default {written}" if written else ""
    return f"{option.name}: {option.text} ({option.allowed}{default})"
