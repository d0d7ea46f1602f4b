"""A certificate, an attack and a frontier: as documents and as files that can be recomputed."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from nafaudit.core.errors import InputError
from nafaudit.core.finding import Kept, Worth
from nafaudit.core.ledger import budget_word
from nafaudit.core.text import counted, cut, name, percent, plain
from nafaudit.store.artifacts import PASSAGES, write_passages
from nafaudit.store.files import make_directory, write_whole
from nafaudit.views.document import NONE, Column, Document, Section, Table

if TYPE_CHECKING:
    from nafaudit.stats.rates import Crossing
    from nafaudit.worth.attack_result import AttackResult, BudgetRecall, Odometer
    from nafaudit.worth.certify import BudgetCertificate, Certificate
    from nafaudit.worth.matched import FrontierResult

_NAME = 22
# More columns do not fit a terminal; the files have them all.
_CERTIFIED_BUDGETS, _ATTACKED_BUDGETS, _USER_BUDGETS = 4, 8, 5


def certificate_document(
    found: Certificate, where: str, files: Sequence[Path], most: int
) -> Document:
    """Returns a certificate as a document: a card per budget, then the worst passages.

    Args:
        found: What came out.
        where: What the passages are called.
        files: What was written.
        most: Passages in the table.
    """
    rows, length = found.passages, found.max_new_tokens
    surprisals = sorted(row.surprisal for row in rows)
    lines = (
        f"{len(rows)} passages: {where}",
        f"surprisal of {found.scores.anchor}, in nats: least {surprisals[0]:.1f}, median "
        f"{median(surprisals):.1f}, most {surprisals[-1]:.1f}",
        f"before each passage: {found.scores.context}",
        f"one output has at most T = {length} tokens; K = kT, without any debt",
    )
    budgets = [card.k for card in found.cards[:_CERTIFIED_BUDGETS]]
    columns = (
        Column("passage", write=name, words=True, most=26),
        Column("tokens"),
        Column("S", meaning=f"nats of the first {length} tokens", write="{:.0f}".format),
        Column("critical k", meaning="from here on K = kT says nothing", write="{:.2f}".format),
        *(Column(f"k={k:g}", meaning="largest chance", write=_chance) for k in budgets),
    )
    table = Table(
        columns,
        tuple(
            (row.id, row.tokens, row.surprisal, row.critical_k, *row.caps[: len(budgets)])
            for row in rows[:most]
        ),
    )
    note = (
        f"S: nats of the first {length} tokens; critical k: from here on K = kT says nothing; "
        "under each k: the largest chance of reproduction that it leaves"
    )
    if most < len(rows):
        note = f"({most} of {len(rows)}, worst first; all are in the files)\n{note}"
    cards = (_card(card, found.window) for card in found.cards)
    sections = (*cards, Section(table=table, note=note))
    return Document("nafaudit certify", sections, "", lines, tuple(map(str, files)), found.overall)


def _card(card: BudgetCertificate, window: int) -> Section:
    vacuous = card.worth == Worth.VACUOUS
    n = card.vacuous if vacuous else card.passages - card.vacuous
    reached = f"{card.windows_vacuous} of {card.windows}" if card.windows else "no"
    none = vacuous and card.log10_draws <= 0
    return Section(
        f"k = {card.k:g}, K = {card.budget:g} nats: {card.worth} ({n} of {card.passages} passages)",
        pairs=(
            ("largest chance of reproduction",
             f"{_chance(card.cap_max)}; median passage {_chance(card.cap_median)}"),
            ("were K a Renyi-2 or pathwise bound",
             f"{_power(card.log10_renyi)} or {_power(card.log10_pathwise)}"),
            ("queries that it survives",
             "any number" if math.isinf(card.queries) else f"{card.queries:.0f}"),
            ("best-of-n draws that it survives", "0" if none else _power(card.log10_draws)),
            ("K alone is worth the best of", f"{_power(card.log10_best_of)} safe draws"),
            (f"windows of {window}, K = {card.window_budget:g}", f"{reached} windows vacuous"),
            ("opening tokens a debt can force", f"at most {card.forced_at_most:g}"),
        ),
    )  # fmt: skip


def _chance(value: float) -> str:
    """Returns a probability with the digits it deserves."""
    return "1" if value == 1 else f"{value:.3f}" if value >= 1e-3 else f"{value:.0e}"


def _power(exponent: float) -> str:
    """Returns 10^x, as a number where that is short."""
    if math.isinf(exponent):
        return "infinitely many" if exponent > 0 else "0"
    return f"{10**exponent:.3g}" if abs(exponent) < 4 else f"10^{exponent:.1f}"


def write_certificate(found: Certificate, directory: Path) -> list[Path]:
    """Writes certificate.json, passages.csv, passages.jsonl and cap.svg; returns their paths.

    Raises:
        InputError: The directory holds the certificate of another model or text.
    """
    from nafaudit.views.figures.worth import cap_plot

    result, table, figure = (directory / n for n in ("certificate.json", "passages.csv", "cap.svg"))
    if result.exists():
        try:
            recorded = json.loads(result.read_text(encoding="utf-8")).get("hash")
        except (ValueError, AttributeError):
            recorded = None
        if recorded != found.hash:
            raise InputError(
                f"{directory} holds a certificate of another model or text; give this one its own "
                "--out."
            )
    make_directory(directory)
    write_passages(directory / PASSAGES, found.scores)
    names = [f.name for f in fields(found.passages[0]) if f.name not in ("caps", "queries")]
    budgets = [f"{n}_k{budget_word(card.k)}" for n in ("cap", "queries") for card in found.cards]
    rows = ((*(getattr(r, n) for n in names), *r.caps, *r.queries) for r in found.passages)
    write_whole(table, _csv([*names, *budgets], rows))
    write_whole(figure, cap_plot(found))
    data = json.dumps(plain(found.overall) | plain(found), indent=2, ensure_ascii=False)
    write_whole(result, data.encode() + b"\n")
    return [result, table, directory / PASSAGES, figure]


def attack_document(found: AttackResult, where: str, files: Sequence[Path]) -> Document:
    """Returns an attack as a document: recall by way and budget, where it begins, odometers.

    Args:
        found: What came out.
        where: What the passages are called.
        files: What was written.
    """
    needed = f"{found.admission.needed:.2f}"
    alone = f"risky model alone: recall {found.admission.recall:.3f} of its single answers"
    lines = [f"{found.passages} of {found.passages_given} passages: {where}"]
    sections: tuple[Section, ...] = ()
    if found.admitted:
        least, most = found.wanted
        lines += [
            f"known of each: {found.given} tokens; wanted: {least} to {most} tokens; every query "
            f"asked {counted(found.attempts, 'time')}",
            f"{alone} (needs {needed})",
        ]
        sections = (
            _by_budget(found, "near-verbatim recall", lambda row: f"{row.recall:.3f}"),
            _by_budget(found, "longest run, words", lambda row: f"{row.span_words:.0f}"),
            _onsets(found),
            _odometers(found),
        )
    else:
        lines += [
            f"{alone}; an attack needs {needed}",
            "not admitted: this model has not memorised these passages (or was given too little "
            "of them), so what a budget does to recall cannot be seen here",
        ]
    if found.outcome == Kept.VIOLATED:
        bad, k = min((r.method.name, r.k) for r in found.rows if r.violations)
        lines.append(f"first at k = {k:g}: nafaudit check {found.attack / bad}")
    return Document(
        "nafaudit attack", sections, "", tuple(lines), tuple(map(str, files)), found.overall
    )


def _by_budget(found: AttackResult, title: str, write: Callable[[BudgetRecall], str]) -> Section:
    """Returns a row per way to attack, a column per budget, both baselines at the ends."""
    budgets = [row.k for row in found.rows if row.method == found.methods[0]]
    if len(budgets) > _ATTACKED_BUDGETS:
        budgets = [*budgets[: _ATTACKED_BUDGETS - 1], budgets[-1]]
    rows = {(row.method, row.k): row for row in found.rows}
    columns = [Column(title, words=True)]
    columns += [Column(f"k={budget_word(k)}", write=write) for k in budgets]
    cells = ((one.words, *(rows.get((one, k)) for k in budgets)) for one in found.methods)
    return Section(table=Table(tuple(columns), tuple(cells)))


def _onsets(found: AttackResult) -> Section:
    def at(crossing: Crossing) -> str:
        limits = f"limits {_number(crossing.low)} to {_number(crossing.high)}"
        if math.isinf(crossing.at):
            return f"none up to {crossing.below:g}, {limits}"
        return f"{_number(crossing.at)}, linear after {crossing.below:g}, {limits}"

    numbers = found.rows[0].certificate
    note = ""
    if numbers:
        note = (
            f"certificate of one answer (K = {numbers['T']:.0f} k, median surprisal "
            f"{numbers['surprisal_median']:.0f} nats): vacuous from k = {found.critical_k:.2f} on, "
            "for half of the passages"
        )
    return Section(
        f"recall reaches {found.target:g} at k =",
        pairs=tuple(
            (one.method.words, f"{at(one.found)}; none {percent(one.found.none)}")
            for one in found.onsets
        ),
        note=note,
    )


def _odometers(found: AttackResult) -> Section:
    shown = [one for one in found.odometers if one.method.debt == found.methods[0].debt]
    # The first total budget is nothing at all.
    budgets = [one.budget for one in shown[0].user_budgets[1 : _USER_BUDGETS + 1]]

    def row(one: Odometer) -> tuple[object, ...]:
        recalls = [user.recall for user in one.user_budgets[1 : _USER_BUDGETS + 1]]
        at = one.crossing
        limits = f"{_number(at.low)}-{_number(at.high)}"
        return (one.method.words, budget_word(one.k), *recalls, _number(at.at), limits, at.none)

    columns = (
        Column("odometer", words=True),
        Column("k"),
        *(Column(f"B={budget:g}", write="{:.3f}".format) for budget in budgets),
        Column("B*"),
        Column("limits"),
        Column("none", write=percent),
    )
    note = (
        "recall if all answers to one user, retries included, may cost B nats; B*: where it "
        f"reaches {found.target:g}; limits: 95 % over resampled passages; none: share of resamples "
        "that never reach it"
    )
    return Section(table=Table(columns, tuple(map(row, shown))), note=note)


def _number(value: float) -> str:
    if math.isinf(value):
        return "beyond"
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def write_attack(found: AttackResult) -> list[Path]:
    """Writes the files beside the runs; the same records give the same bytes."""
    from nafaudit.views.figures.worth import recall_plot

    make_directory(found.attack)
    lines = "".join(json.dumps(plain(line)) + "\n" for line in found.log)
    numbers = ("recall", "span", "queries", "spend")
    rows = (
        (row.method.mode, row.method.length, row.method.debt, row.k, one.passage,
         *(getattr(one, number) for number in numbers))
        for row in found.rows
        for one in row.got
    )  # fmt: skip
    files = {
        "queries.jsonl": lines.encode(),
        "passages.csv": _csv(["mode", "length", "debt", "k", "passage", *numbers], rows),
        **({"recall.svg": recall_plot(found)} if found.admitted else {}),
        # Last, as it says that the others are there.
        "attack.json": json.dumps(plain(found.overall) | plain(found), indent=2).encode() + b"\n",
    }
    for file, content in files.items():
        write_whole(found.attack / file, content)
    return [found.attack / file for file in ("attack.json", *list(files)[:-1])]


def frontier_document(found: FrontierResult, where: str, files: Sequence[Path]) -> Document:
    """Returns a frontier as a document: a point per mechanism and budget, then equal fidelity.

    Args:
        found: What came out.
        where: What the passages are called.
        files: What was written.
    """
    lines = (
        f"{found.protected.passages} protected passages: {where}; {found.ordinary.texts} ordinary "
        "texts",
        f"all fidelity there is: D(risky||safe) = {found.ordinary.ceiling:.3f} nats per ordinary "
        "token",
        f"risky model alone: protected text gains {found.protected.risky_leak:.1f} nats per "
        f"{found.window} tokens",
    )
    mechanism = Column("mechanism", "mechanism", write=name, words=True, most=_NAME)
    budget = Column("k", "k", write=budget_word)
    points = (
        mechanism,
        budget,
        Column("price", "price", write="{:.3f}".format),
        Column("KL", "nats", write="{:.3f}".format),
        Column("fidelity", "fidelity", write="{:.1%}".format),
        Column("paid", "price_protected", write="{:.2f}".format),
        Column("leak", "leak", write="{:.1f}".format),
        Column("free", "free", write=percent),
        Column("forced", "forced", write=percent),
    )
    places = [f"points[{i}]" for i in range(len(found.points))]
    note = (
        "price, KL: per ordinary token, in the mechanism's own currency and in nats of KL; "
        "fidelity: of D(risky||safe); paid: price per protected token; leak: nats that protected "
        "text gains per window; free, forced: risky or safe law served"
    )
    sections = [Section(table=Table.of(points, found.points, places), note=note)]
    if found.matched:
        matched = (
            mechanism,
            budget,
            Column("same k", "same_k", write="{:+.1f}".format),
            Column("fidelity", "fidelity", write="{:.1%}".format),
            Column("matched k", "matched_k", write=lambda k: f"{k:.2f}" if k < math.inf else NONE),
            Column("matched", "difference", write="{:+.1f}".format),
            Column(
                "limits",
                write=lambda m: NONE if math.isnan(m.low) else f"{m.low:+.1f} {m.high:+.1f}",
            ),
            Column("none", "none", write=percent),
        )
        places = [f"matched[{i}]" for i in range(len(found.matched))]
        note = (
            f"leak less that of {cut(name(found.points[0].mechanism), _NAME)} at k, per window: at "
            "the same k, and at the same fidelity, bought at matched k; limits: 95 % over "
            "resampled texts; none: share of resamples in which no budget buys that much"
        )
        sections.append(Section(table=Table.of(matched, found.matched, places), note=note))
    paying = found.paying_k
    conclusion = (
        f"a bank that owes the debt can pay for every prefix from k = {paying.median:.2f} on "
        f"(median; {paying.least:.2f} to {paying.most:.2f}): a boundary, not a forecast of recall"
    )
    return Document(
        "nafaudit frontier",
        tuple(sections),
        conclusion,
        lines,
        tuple(map(str, files)),
        found.overall,
    )


def write_frontier(found: FrontierResult, directory: Path) -> list[Path]:
    """Writes points.csv, matched.csv, frontier.svg and frontier.json, always the same bytes."""
    from nafaudit.views.figures.worth import frontier_plot

    make_directory(directory)
    matched = ("mechanism", "k", "matched_k", "fidelity", "same_k", "difference", "low", "high")
    tables = (
        ("points.csv", [f.name for f in fields(found.points[0])], found.points),
        ("matched.csv", [*matched, "none"], found.matched),
    )
    files = {
        file: _csv(names, ([getattr(row, n) for n in names] for row in rows))
        for file, names, rows in tables
    }
    files["frontier.svg"] = frontier_plot(found)
    data = json.dumps(plain(found.overall) | plain(found), indent=2)
    files["frontier.json"] = data.encode() + b"\n"
    for file, content in files.items():
        write_whole(directory / file, content)
    return [directory / file for file in files]


def _csv(names: Sequence[str], rows: Iterable[Iterable[Any]]) -> bytes:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return stream.getvalue().encode()
