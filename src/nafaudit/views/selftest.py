"""The self-test's operating characteristic, a decoder's conformance, and cards of mechanisms."""

from __future__ import annotations

import math
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
        Column("breaks", "breaks", words=True),
        Column("over", "overspend.share", "outputs truly over budget", "{:.0%}".format),
        *(Column(f"n={n}", f"power.{n}", write="{:.2f}".format) for n in found.sizes),
        *(Column(f"s={n}", f"silent.{n}", write="{:.2f}".format) for n in found.sizes[-2:]),
        Column("caught by", write=_caught_by, words=True),
    )
    places = (f"faults[{i}]" for i in range(len(found.faults)))
    budgets = ", ".join(f"{k:g}" for k in found.budgets)
    note = (
        "breaks: what is wrong with it; over: outputs truly over budget; n=N: share of audits that "
        f"accuse after N outputs at each of k = {budgets}, level {found.level:g}; s=N: the same of "
        "the decoder without its claims; caught by: what accuses most often"
    )
    fewest = min(found.faults, key=lambda row: row.audits)
    least, most = (clopper_pearson(n, fewest.audits, 0.025) for n in (fewest.audits, 0))
    note += (
        f"\npower is of {counted(fewest.audits, 'audit')} of a fault: with 95 % limits 1.00 is at "
        f"least {least[0]:.2f}, and 0.00 at most {most[1]:.2f}"
    )
    lines = [
        f"{row.name}: {'may escape' if row.escapes else 'harmless'}: {row.escapes or row.harmless}"
        for row in found.faults
        if row.escapes or row.harmless
    ]
    sound = found.sound
    lines.append(
        f"sound decoders: {sound.alarms} accused in {sound.audits} audits; true rate below "
        f"{sound.upper_limit:.2%} at 95 % (level {sound.nominal:.2%})"
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
    return "a remark" if row.noted else "nothing"


def selftest_page(found: SelftestResult, version: str) -> str:
    """Returns docs/selftest.md, the published page."""
    sound = found.sound
    audits = min(row.audits for row in found.faults)
    budgets = " and ".join(f"{k:g}" for k in found.budgets)
    exceptions = []
    for row in found.faults:
        if row.escapes:
            exceptions.append(f"- {row.name} may escape: {escaped_line(row.escapes)}.")
        if row.harmless:
            exceptions.append(f"- {row.name} is harmless: {escaped_line(row.harmless)}.")
    shown = found.sizes[1:]
    lines = [
        "# What the auditor catches, and how often it accuses a sound decoder",
        "",
        f"Written by `{found.command}`, nafaudit {version}; seed {found.seed}.",
        "",
        "Every fault is a decoder, as a user names one with `--decoder`. It is audited "
        f"{audits} times, each time in a world of its own",
        f"({found.setup.size} token ids, outputs of up to {found.setup.length} tokens, k = "
        f"{budgets} judged together), by the rules of a real run,",
        "once as it is and once with its claims taken away (*silent*). *Breaks*: what is wrong "
        "with it: its budget, its sampling, or",
        "its bookkeeping; a decoder that only differs from the anchored one (*conformity*) must "
        "not be accused. *Over*: share of outputs",
        "that truly spend more than their budget. *n*: share of audits that end with status 1 "
        "after so many outputs of each budget;",
        f"an audit accuses a sound decoder at most once in {1 / found.level:,.0f} times. "
        "*Unsettled*: share of silent audits that are not WITHIN.",
        "*Best*: outputs of each budget that the best test of all would need for the silent "
        "decoder (Neyman and Pearson, against the",
        "law that keeps the budget and is hardest to tell from it; power 95 %, the level of the "
        "laws), where its law is listed. Fewer than 60",
        "outputs of a budget never refute by laws alone.",
        "",
        *_rows(
            (
                *("fault", "what it does", "breaks", "over"),
                *(f"open, n = {size}" for size in shown),
                *(f"silent, n = {size}" for size in shown),
                *("unsettled", "best", "caught by"),
            ),
            (_page_row(row, shown) for row in found.faults),
        ),
        "",
        "\\* need not be caught:",
        "",
        *exceptions,
        "",
        "## Wrong accusations",
        "",
        f"{sound.alarms} of {sound.audits} audits of sound decoders accuse: true rate below "
        f"{sound.upper_limit:.2%} at 95 %",
        f"(Clopper-Pearson); level {sound.nominal:.2%}. The decoders are of "
        "[many families](#sound-decoders), open and silent. Where a [family of",
        "known laws](kept.md#the-known-laws) is left out, no level is promised, and these audits",
        "are not counted in the rate.",
        "",
        *_rows(
            ("where", "audits", "accused", "by", "silent anchored decoder WITHIN"),
            (
                (
                    kind.name,
                    str(kind.audits),
                    str(kind.accused),
                    ", ".join(kind.by) or "-",
                    f"{kind.within} of {kind.honest}",
                )
                for kind in sound.kinds
            ),
        ),
        "",
        "## Sound decoders",
        "",
        "Each keeps the banked budget at every prefix, in its own way.",
        "",
        *_rows(
            ("decoder", "what it does"),
            ((one, escaped_line(about)) for one, about in sound.decoders.items()),
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


def _page_row(row: FaultRow, sizes: Sequence[int]) -> tuple[str, ...]:
    by = ", ".join(f"`{name}`" for name in row.caught_by[:1]) or _caught_by(row)
    needed = "-" if math.isnan(row.needed) or not row.exceeds else f"{row.needed:.0f}"
    return (
        escaped_line(row.name) + ("" if row.must_catch else "\\*"),
        escaped_line(row.description),
        row.breaks,
        f"{row.overspend.share:.0%}",
        *(f"{row.power[size]:.2f}" for size in sizes),
        *(f"{row.silent[size]:.2f}" for size in sizes),
        f"{row.unsettled[sizes[-1]]:.2f}",
        needed,
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
        lines=(
            f"decoder: {found.decoder}",
            f"promise: {found.promise}",
            *((found.likeness,) if found.likeness else ()),
        ),
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
