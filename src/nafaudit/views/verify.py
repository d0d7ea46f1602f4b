"""A verification: deviations of the claims, what is refuted, and what was replayed."""

from __future__ import annotations

from nafaudit.core.finding import CheckWord, Kept
from nafaudit.core.ledger import budget_name, budgets_and_baselines
from nafaudit.store.artifacts import (
    CONFORMS,
    DEBT_COUNTS,
    QUANTITIES,
    TOKENS,
    ArmFinding,
    Verification,
)
from nafaudit.views.document import Column, Document, Section, Table

_FINE = (CheckWord.FINE, CheckWord.INFO, CheckWord.UNKNOWN, Kept.WITHIN)


def verification_document(found: Verification, kept: str, *files: str) -> Document:
    """Returns a verification as a document.

    Args:
        found: What came out.
        kept: Where it was written, or why it was not.
        files: What else was written.
    """
    columns = (
        Column("quantity", words=True),
        Column("largest", write="{:.1e}".format),
        Column("warn", write="{:.0e}".format),
        Column("fail", write="{:.0e}".format),
        Column("what was compared", words=True),
    )
    rows = (
        (quantity, numbers["max"], numbers["warn"], numbers["fail"], QUANTITIES[quantity])
        for quantity, numbers in found.deviation.items()
    )
    table = Table(columns, tuple(rows))
    note = "deviations in nats, divided by 1 plus the size of the number" if table.rows else ""
    lines = []
    for one in found.findings:
        if one.finding.check == "replay: budget":
            lines.append(f"budget: {one.finding.verdict}, {one.finding.text}")
    for one in found.findings:
        if one.finding.check == DEBT_COUNTS and one.arm is not None:
            lines.append(f"debt, {budget_name(one.arm.k)}: {one.finding.text}")
    fits = dict.fromkeys(one.finding.text for one in found.findings if one.finding.check == TOKENS)
    lines += [f"tokens: {text}" for text in fits if text]
    lines += [one.finding.text for one in found.findings if one.finding.check == CONFORMS]
    if tests := [one for one in found.findings if one.finding.check.startswith("sampler: ")]:
        fired = sum(one.finding.verdict == CheckWord.FAILED for one in tests)
        arms = budgets_and_baselines(arm.k for arm in {one.arm for one in tests} if arm)
        level = sum(one.finding.numbers.get("level", 0.0) for one in tests)
        lines.append(
            f"sampler: {fired} of {len(tests)} tests fired ({arms}, {level:.2g} for all of them "
            "together)"
        )
    lines += [_line(one) for one in found.findings if one.finding.verdict not in _FINE]
    lines += [f"note: {note}" for note in found.notes]
    rate = found.tokens / found.seconds if found.seconds > 0 else 0.0
    lines.append(
        f"{found.trajectories} of {found.recorded} trajectories, {found.tokens} tokens replayed "
        f"in {found.seconds:.1f} s ({rate:.0f} a second)"
    )
    sections = (*([Section(table=table, note=note)] if table.rows else []),
                Section(lines=tuple(lines)))  # fmt: skip
    return Document(
        "nafaudit verify",
        sections,
        files=(f"result: {kept}", *files),
        answer=found.overall,
    )


def _line(one: ArmFinding) -> str:
    finding = one.finding
    arm = f"{budget_name(one.arm.k)}: " if one.arm else ""
    where = ""
    if finding.witness is not None:
        key = finding.witness.key
        where = f" (first at prompt {key.prompt!r}, {budget_name(key.k)}, {finding.witness.at})"
    return f"{arm}{finding.check} {finding.verdict}: {finding.text}{where}"
