"""What an import noticed, dropped or read in another way than it was written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

# What each kind of note means. Nothing is dropped or reinterpreted without one of these.
KINDS = {
    "byte-order-mark": "file starts with a byte order mark; skipped",
    "non-strict": "NaN or Infinity, which strict JSON does not have; read as such",
    "k-minus-one": "k = -1; read as the risky model alone (k = inf)",
    "k-not-a-number": "k is a word; read as the mechanism's name, with k = K / T if both are "
    "known and no budget (inf) otherwise",
    "k-from-file-name": "record without k; read off the file's name",
    "k-inferred": "record without k; read off the growth of budget_so_far",
    "k-given": "record without k; as given on the command line",
    "no-id": "record without an id; named after its file and place",
    "other-rule": "log names a rule that is not the paper's bank; budgets are judged as logged",
    "empty-steps": "record with totals but no steps",
    "missing": "field missing or null; unknown (NaN), not 0",
    "pad-tail": "step after the row's end, by its account: nothing granted although budget was "
    "left; cut",
    "pad-tail-likely": "step after the row's end, by its look: one token again and again, "
    "certain and free; cut",
    "after-stop": "step after a stop token; cut",
    "too-long": "trajectory longer than its T_max",
    "prompt-echo": "generation starts with the tail of its own prompt",
    "percent": "utilisation in percent; compared with spend / budget as such",
    "utilisation-differs": "utilisation is neither spend / budget nor that in percent",
    "batch-budget": "final budget is not the one at the row's own length but a longer one's; kept "
    "as a claim",
    "recomputed-differs": "a_t_recomputed differs from a_t; a_t is kept",
    "debt-differs": "two fields give different debts; the first is kept",
    "debt-derived": "debt as k T - final budget",
    "debt-negative": "negative debt, which raises the budget above k T; a spend between the two is "
    "judged only by --ledger banking (k T) or --ledger unknown (the log's budget)",
    "budget-above-kT": "final budget above what k and T grant; a spend between the two is judged "
    "only by --ledger banking (k T) or --ledger unknown (the log's budget)",
    "spend-differs": "another column that could be the spend says otherwise; the one that was "
    "named is kept, else the larger, as either judges alike",
    "totals-differ": "two totals give different spends; the larger is kept, and neither if only "
    "one of them is within the budget",
    "repeated": "trajectory number used twice for one prompt and budget; renumbered",
    "duplicate-spend": "spend equal to another trajectory's of the prompt and budget",
    "duplicate-seed": "seed equal to another trajectory's of the prompt and budget",
    "duplicate-text": "text equal to another trajectory's of the prompt and budget",
    "prompt-differs": "prompt id with two texts or classes; the first is kept",
    "length-limits": "record with another T_max than the first; T is unknown for the run",
    "claims-differ": "totals of an export that do not follow from its own steps; kept as claims",
}


@dataclass
class Note:
    """One kind of thing that was noticed."""

    count: int = 0
    first: str = ""
    detail: str = ""


@dataclass
class Hygiene:
    """Counts what an import noticed; each kind with the first place it was seen."""

    notes: dict[tuple[str, str], Note] = field(default_factory=dict)
    not_kept: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, where: str, detail: str = "", count: int = 1) -> None:
        """Counts something; `detail` tells kinds of one kind apart (a field's name)."""
        if not count:
            return
        if kind not in KINDS:
            raise ValueError(f"unknown kind of note {kind!r}.")
        note = self.notes.setdefault((kind, detail), Note(first=where, detail=detail))
        note.count += count

    def count(self, kind: str) -> int:
        """How many of a kind."""
        return sum(note.count for (name, _), note in self.notes.items() if name == kind)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "notes": [
                {"kind": kind, "count": n.count, "first": n.first, "text": _sentence(kind, n)}
                for (kind, _), n in sorted(self.notes.items())
            ],
            "not_kept": dict(sorted(self.not_kept.items())),
        }


def _sentence(kind: str, note: Note) -> str:
    return f"{note.detail}: {KINDS[kind]}" if note.detail else KINDS[kind]


def describe(report: dict[str, Any]) -> list[str]:
    """The lines of a report, for people."""
    lines = [
        f"{note['count']} x {note['kind']}: {note['text']} (first: {note['first']})"
        for note in report["notes"]
    ]
    if report["not_kept"]:
        lines.append("not kept: " + ", ".join(report["not_kept"]))
    return lines
