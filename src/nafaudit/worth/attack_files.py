"""An attack as files: attack.json, the query log, a row per passage, and a figure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nafaudit import __version__
from nafaudit.stats import mean
from nafaudit.core.text import as_number
from nafaudit.stats.rates import Crossing
from nafaudit.store.files import make_directory, write_whole
from nafaudit.worth.attack_plot import recall_plot
from nafaudit.worth.attack_result import Answered, Odometer, Row
from nafaudit.worth.attack_run import Method
from nafaudit.worth.settings import ADMISSION

RESULT, QUERIES, TABLE, FIGURE = "attack.json", "queries.jsonl", "passages.csv", "recall.svg"


def attack_json(answered: Answered) -> dict[str, Any]:
    """Everything that an attack says; strict JSON, NaN and infinity as strings."""
    attacked = answered.attacked
    settings = attacked.settings
    return {
        "attack": str(attacked.path),
        "design": attacked.design,
        "nafaudit": __version__,
        "outcome": str(answered.outcome),
        "admitted": attacked.admitted,
        "admission": {"recall": attacked.admission, "needed": ADMISSION},
        "mechanism": settings.mechanism,
        "passages": len(attacked.texts),
        "passages_given": attacked.given,
        "given": settings.given,
        "attempts": settings.trajectories,
        "target": settings.target,
        "violations": answered.violations,
        "rows": [_row(row) for row in answered.rows],
        "onsets": [_method(one.method) | _crossing(one.found) for one in answered.onsets],
        "odometers": [_odometer(one) for one in answered.odometers],
        "runs": [str(log.path) for log in attacked.logs],
        **({"mixed": attacked.mixed} if attacked.mixed else {}),
    }


def write_attack(answered: Answered) -> list[Path]:
    """Writes the files beside the runs; the same records give the same bytes."""
    directory = answered.attacked.path
    make_directory(directory)
    data = json.dumps(attack_json(answered), indent=2)
    lines = "".join(json.dumps(line) + "\n" for line in _queries(answered))
    write_whole(directory / QUERIES, lines.encode())
    write_whole(directory / TABLE, _csv(answered).encode())
    names = [RESULT, QUERIES, TABLE]
    if answered.attacked.admitted:
        write_whole(directory / FIGURE, recall_plot(answered))
        names.append(FIGURE)
    write_whole(directory / RESULT, data.encode() + b"\n")
    return [directory / name for name in names]


def _method(method: Method) -> dict[str, Any]:
    return {"mode": method.mode, "length": method.length, "debt": method.debt}


def _row(row: Row) -> dict[str, Any]:
    return _method(row.method) | {
        "k": as_number(row.k),
        "recall": row.recall,
        "passages_recalled": sum(one.recall > 0 for one in row.got),
        "span_words": row.span,
        "queries": mean([one.queries for one in row.got]),
        "spend": as_number(row.spend),
        "trajectories": row.trajectories,
        "violations": row.violations,
        "kept": row.kept,
        "tested": row.tested,
        "worth": str(row.worth.verdict),
        "certificate": {name: as_number(value) for name, value in row.worth.numbers.items()},
    }


def _crossing(found: Crossing) -> dict[str, Any]:
    return {name: as_number(value) for name, value in asdict(found).items()}


def _odometer(one: Odometer) -> dict[str, Any]:
    return _method(one.method) | {
        "k": one.k,
        "user_budgets": [
            {
                "budget": budget,
                "recall": mean([user.recall for user in users]),
                "cut": mean([float(user.cut) for user in users]),
                "queries": mean([user.queries for user in users]),
                "spend": mean([user.spend for user in users]),
            }
            for budget, users in one.users.items()
        ],
        "crossing": _crossing(one.found),
    }


def _queries(answered: Answered) -> Iterator[dict[str, Any]]:
    """The query log: one line per answer, in the order of each user; no text."""
    for log in answered.attacked.logs:
        for k, users in log.asked.items():
            for passage, asked in users.items():
                for one in asked:
                    for answer in one.answers:
                        yield {
                            "mode": log.path.name,
                            "k": as_number(k),
                            "prompt_id": passage,
                            "window": one.query.window,
                            "attempt": answer.place.attempt,
                            "query": one.query.item.prompt.id,
                            "L": log.method.length,
                            "delta_init": answer.debt,
                            "K": as_number(k * log.method.length),
                            "B": as_number(answer.budget),
                            "Z": as_number(answer.spend),
                            "R": as_number(answer.ratio),
                            "n_tokens": answer.length,
                            "forced": answer.forced,
                            "free": answer.free,
                            "matched": _matched(answer.tokens, one.query.wanted),
                        }


def _matched(tokens: tuple[int, ...], wanted: tuple[int, ...]) -> int:
    """Opening tokens that are the true ones."""
    pairs = enumerate(zip(tokens, wanted, strict=False))
    return next((i for i, (one, other) in pairs if one != other), min(len(tokens), len(wanted)))


def _csv(answered: Answered) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    numbers = ("recall", "span", "queries", "spend")
    writer.writerow(["mode", "length", "debt", "k", "passage", *numbers])
    for row in answered.rows:
        where = (row.method.mode, row.method.length, row.method.debt, row.k)
        for one in row.got:
            writer.writerow([*where, one.passage, *(getattr(one, name) for name in numbers)])
    return stream.getvalue()
