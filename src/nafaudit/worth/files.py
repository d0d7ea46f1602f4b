"""Writes a certificate so that anybody can recompute it: numbers, table, surprisals, plot."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from nafaudit import __version__
from nafaudit.core.errors import InputError
from nafaudit.core.ledger import budget_word
from nafaudit.core.text import as_number
from nafaudit.store.artifacts import PASSAGES, write_passages
from nafaudit.store.files import make_directory, write_whole
from nafaudit.worth.certify import Certification, PassageRow
from nafaudit.worth.plot import cap_plot

CERTIFICATE = "certificate.json"


def certificate_json(certification: Certification) -> dict[str, Any]:
    """The certificate as plain data: what was asked, a card per budget, a row per passage."""
    settings = certification.settings
    return {
        "hash": certification.hash,
        "nafaudit": __version__,
        "identity": certification.identity,
        "max_new_tokens": settings.decoding.max_new_tokens,
        "given": settings.given,
        "window": settings.window,
        "debt": asdict(settings.debt),
        "cards": [_plain(asdict(card)) for card in certification.cards],
        "passages": [_plain(asdict(row)) for row in certification.rows],
    }


def write_certificate(certification: Certification, directory: Path) -> list[Path]:
    """Writes certificate.json, passages.csv, passages.jsonl and cap.svg; returns their paths.

    Raises:
        InputError: The directory holds the certificate of another model or text.
    """
    _check_directory(certification, directory)
    make_directory(directory)
    data = json.dumps(certificate_json(certification), indent=2, ensure_ascii=False)
    write_passages(directory / PASSAGES, certification.scores)
    write_whole(directory / "passages.csv", _csv(certification).encode())
    write_whole(directory / "cap.svg", cap_plot(certification))
    write_whole(directory / CERTIFICATE, data.encode() + b"\n")
    return [directory / name for name in (CERTIFICATE, "passages.csv", PASSAGES, "cap.svg")]


def _check_directory(certification: Certification, directory: Path) -> None:
    path = directory / CERTIFICATE
    if not path.exists():
        return
    try:
        recorded = json.loads(path.read_text(encoding="utf-8")).get("hash")
    except (ValueError, AttributeError):
        recorded = None
    if recorded != certification.hash:
        raise InputError(
            f"{directory} holds a certificate of another model or text; give this one its own "
            "--out."
        )


def _csv(certification: Certification) -> str:
    """One line per passage: its own numbers, then cap and queries under each budget."""
    stream = io.StringIO()
    names = [f.name for f in fields(PassageRow) if f.name not in ("caps", "queries")]
    budgets = [
        f"{name}_k{budget_word(k)}" for name in ("cap", "queries") for k in certification.settings.k
    ]
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*names, *budgets])
    for row in certification.rows:
        writer.writerow([*(getattr(row, name) for name in names), *row.caps, *row.queries])
    return stream.getvalue()


def _plain(value: Any) -> Any:
    """Strict JSON: NaN and infinity as strings, whatever they are nested in."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return as_number(value)
    return value
