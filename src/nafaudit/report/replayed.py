"""What a replay from the models said of the log, if there was one: are the numbers true?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nafaudit.checks.replayed import QUANTITIES
from nafaudit.core.finding import Answer, Kept
from nafaudit.core.text import name, visible
from nafaudit.report.data import Report
from nafaudit.report.words import budget_name

_REFUTED = (Answer.FAILED, Kept.VIOLATED)
_FINE = (Answer.FINE, Answer.INFO, Kept.WITHIN)
_EXTENT = ("recorded", "replayed", "tokens", "current")


def refuted(found: Mapping[str, Any] | None) -> bool:
    """True if a replay contradicts the log, or shows more spent than granted."""
    return found is not None and any(f["verdict"] in _REFUTED for f in found["findings"])


def basis(found: Mapping[str, Any] | None) -> str:
    """What the page's numbers rest on, in a few words."""
    if found is None:
        return "numbers as logged, not replayed"
    extent = f"{found['replayed']} of {found['recorded']} executions replayed from the models"
    if not found["current"]:
        return f"{extent} before more was recorded"
    if refuted(found):
        return f"{extent}: the log is refuted"
    return f"{extent}: the log is true" if found["replayed"] else "nothing could be replayed"


def replay_json(report: Report) -> dict[str, Any] | None:
    """How much was replayed and whether it contradicts the log, on whatever machine."""
    found = report.verification
    return found and {key: found[key] for key in _EXTENT} | {"refuted": refuted(found)}


def replay_made(report: Report) -> dict[str, Any] | None:
    """What the machine that replayed saw, in full, without where and how fast it was made."""
    found = report.verification
    return found and {key: found[key] for key in found if key not in (*_EXTENT, "run", "seconds")}


def replay_section(report: Report) -> dict[str, Any]:
    """What the template shows of a replay."""
    found = report.verification
    if found is None:
        return {
            "word": "AS LOGGED",
            "tone": "open",
            "text": "Nobody has recomputed these numbers from the models yet. The command is: "
            "nafaudit verify .",
            "rows": [],
            "remarks": [],
        }
    return {
        "word": _word(found),
        "tone": "bad" if refuted(found) else "good" if _settled(found) else "open",
        "text": _text(found),
        "rows": [
            {
                "quantity": QUANTITIES.get(quantity, quantity),
                "path": f"made.verification.deviation.{quantity}.max",
                **{level: _short(numbers[level]) for level in ("max", "warn", "fail")},
            }
            for quantity, numbers in found["deviation"].items()
        ],
        "remarks": [_remark(f) for f in found["findings"] if f["verdict"] not in _FINE]
        + [{"word": "NOTE", "tone": "open", "text": visible(note)} for note in found["notes"]],
    }


def _settled(found: Mapping[str, Any]) -> bool:
    return bool(found["current"] and found["replayed"])


def _word(found: Mapping[str, Any]) -> str:
    if refuted(found):
        return "REFUTED"
    return "REPLAYED" if _settled(found) else "INCOMPLETE"


def _text(found: Mapping[str, Any]) -> str:
    text = (
        f"{found['replayed']} of {found['recorded']} executions, {found['tokens']} tokens, were "
        "recomputed from both models, sharing nothing with the decoder but the models themselves. "
    )
    text += (
        "What was logged is contradicted; the findings below say where."
        if refuted(found)
        else "What was logged is true as far as it was replayed."
    )
    if not found["current"]:
        text += " The records have grown since; run nafaudit verify . again."
    return text


def _remark(finding: Mapping[str, Any]) -> dict[str, str]:
    k = finding["k"]
    where = "" if k is None else f"{budget_name(float(k))}, "
    witness = finding["witness"]
    at = (
        f" First at prompt {name(witness['prompt'])}, execution {witness['trajectory']}, "
        f"step {witness['step']}."
        if witness
        else ""
    )
    return {
        "word": finding["verdict"],
        "tone": "bad" if finding["verdict"] in _REFUTED else "open",
        "text": visible(f"{where}{finding['check']}: {finding['text']}.{at}"),
    }


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.1e}"
