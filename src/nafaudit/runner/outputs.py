"""Reads the outputs of a black box: outputs become records, what is wrong becomes faults.

Its tokens are kept as they are, up to their own stop. Its numbers are kept as claims.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.finding import Fault
from nafaudit.core.trajectory import (
    FAMILIES,
    STEP_TYPES,
    Key,
    Logged,
    Shown,
    Steps,
    Trajectory,
)
from nafaudit.protocols import STEP_CLAIMS, Request

# A shown law may miss a mass of 1, or its own token's claimed log-probability, by this much.
_MASS_SLACK = 1e-4
# Numbers of shown laws whose mass is summed up at once, in float64.
_CHUNK = 1 << 20
_CLAIM_SLACK = 1e-3


@dataclass(frozen=True)
class ReadOutput:
    """One output, read.

    Attributes:
        trajectory: Its record; None if there is nothing that could be recorded.
        faults: What is wrong with it.
    """

    trajectory: Trajectory | None
    faults: tuple[Fault, ...]


def read_output(
    raw: Any, key: Key, request: Request, size: int, stops: frozenset[int]
) -> ReadOutput:
    """Reads one raw output of a decoder.

    Args:
        raw: Tokens and claims as the worker sent them, each a number or a list of numbers.
        key: Key of the output.
        request: What was asked for.
        size: Number of token ids.
        stops: Ids that end an output.
    """
    faults: list[Fault] = []
    tokens = _tokens(raw, key, size, faults)
    if tokens is None:
        return ReadOutput(None, tuple(faults))
    kept = _kept(tokens, key, request, stops, faults)
    columns = {name: _claim(raw, name, key, len(tokens), faults) for name in STEP_CLAIMS}
    laws = _laws(raw, key, (len(tokens), size), faults)
    if laws is not None:
        given = laws[np.arange(len(tokens)), tokens].tolist()
        if raw.get("served") is None:
            columns["served"] = given  # a law that is shown claims what it gives the token
        _check_served(given, columns["served"], key, faults)
    family = _family(raw, key, faults)
    if family is None:
        columns["theta"] = [math.nan] * len(tokens)  # of what it is a weight is not known
    shown = Shown(None if laws is None else laws[:kept], family or "")
    with np.errstate(over="ignore"):
        steps = Steps(
            token=np.array(tokens[:kept], np.int32),
            **{
                name: np.array(column[:kept], np.float64).astype(STEP_TYPES[name])
                for name, column in columns.items()
            },
        )
    debt, spend = (_number(raw, name, key, faults) for name in ("debt", "spend"))
    stopped = tokens[kept - 1] in stops
    logged = Logged(spend=spend, length=float(len(tokens)))
    has_shown = shown.laws is not None or shown.family
    record = Trajectory(key, debt, stopped, steps, logged, shown if has_shown else None)
    return ReadOutput(record, tuple(faults))


def _tokens(raw: Any, key: Key, size: int, faults: list[Fault]) -> list[int] | None:
    tokens = raw.get("tokens") if isinstance(raw, Mapping) else None
    if not isinstance(tokens, list) or any(type(token) is not int for token in tokens):
        faults.append(Fault("shape", "tokens are not a list of integers", key, lost=True))
        return None
    if not tokens:
        faults.append(Fault("empty", "an output has no token, not even a stop", key, lost=True))
        return None
    for step, token in enumerate(tokens):
        if not 0 <= token < size:
            text = f"token id {token} is not one of 0 to {size - 1}"
            faults.append(Fault("token", text, key, step, lost=True))
            return None
    return tokens


def _kept(
    tokens: list[int], key: Key, request: Request, stops: frozenset[int], faults: list[Fault]
) -> int:
    """Returns how many tokens count: none after the first stop, none beyond the limit."""
    most = request.max_new_tokens
    end = next((i + 1 for i, token in enumerate(tokens) if token in stops), len(tokens))
    if end < len(tokens):
        text = f"{len(tokens) - end} tokens after the stop token {tokens[end - 1]}"
        faults.append(Fault("after-stop", text, key, end))
    if end > most:
        faults.append(Fault("length", f"{end} tokens, {most} were asked for", key, most))
    elif end < most and tokens[end - 1] not in stops:
        text = f"ended after {end} of {most} tokens without a stop token"
        faults.append(Fault("short", text, key, end - 1))
    return min(end, most)


def _claim(
    raw: Mapping[str, Any], name: str, key: Key, length: int, faults: list[Fault]
) -> list[float]:
    """Returns a claimed column; all NaN if there is no usable claim."""
    silent = [math.nan] * length
    column = raw.get(name)
    if column is None:
        return silent
    if not isinstance(column, list) or not all(map(_is_number, column)):
        faults.append(Fault("shape", f"{name} is not a list of numbers", key))
        return silent
    if len(column) != length:
        text = f"{name} has {len(column)} entries for {length} tokens"
        faults.append(Fault("shape", text, key))
        return silent
    missing = [step for step, value in enumerate(column) if math.isnan(value)]
    # A rule without a weight has none at any step; a hole in a column is something else.
    if missing and not (name == "theta" and len(missing) == length):
        faults.append(Fault("nan", f"{name} is NaN at {len(missing)} steps", key, missing[0]))
    return [float(value) for value in column]


def _number(raw: Mapping[str, Any], name: str, key: Key, faults: list[Fault]) -> float:
    value = raw.get(name)
    if value is None:
        return math.nan
    if not _is_number(value):
        faults.append(Fault("shape", f"{name} is not a number", key))
        return math.nan
    if math.isnan(value):
        faults.append(Fault("nan", f"{name} is NaN", key))
    return float(value)


def _family(raw: Mapping[str, Any], key: Key, faults: list[Fault]) -> str | None:
    """Returns the family that theta is a weight in, empty if none is named; None if not known."""
    said = raw.get("family")
    if said is None:
        return ""
    if isinstance(said, str) and said in FAMILIES:
        return said
    text = f"family {said!r:.60} is none of {', '.join(FAMILIES)}, so its theta is not used"
    faults.append(Fault("family", text, key))
    return None


def _laws(
    raw: Mapping[str, Any], key: Key, shape: tuple[int, int], faults: list[Fault]
) -> NDArray[np.float32] | None:
    """Returns the shown log-laws, if they have the right shape and each has mass 1; else None."""
    said, content = raw.get("law_shape"), raw.get("laws")
    if said is None and content is None:
        return None
    if said != list(shape):
        shown = tuple(said) if isinstance(said, list) else said
        faults.append(Fault("shape", f"laws have shape {shown!r:.60}, not {shape}", key))
        return None
    try:
        data = base64.b64decode(content, validate=True) if isinstance(content, str) else b""
    except ValueError:
        data = b""
    if len(data) != 4 * shape[0] * shape[1]:
        faults.append(Fault("shape", f"laws are not {shape[0]} x {shape[1]} numbers", key))
        return None
    laws = np.frombuffer(data, "<f4").reshape(shape).astype(np.float32, copy=False)
    rows = max(1, _CHUNK // shape[1])
    for start in range(0, shape[0], rows):
        with np.errstate(over="ignore", invalid="ignore"):
            masses = np.exp(laws[start : start + rows].astype(np.float64)).sum(axis=1)
        wrong = ~(np.abs(masses - 1) < _MASS_SLACK)  # NaN fails it too
        if wrong.any():
            at = int(np.argmax(wrong))
            text = f"the law it shows has mass {masses[at]:g}, not 1"
            faults.append(Fault("law", text, key, start + at))
            return None
    return laws


def _check_served(given: list[float], served: list[float], key: Key, faults: list[Fault]) -> None:
    """Tests that a shown law gives each token the probability that is claimed for it."""
    for step, (law, said) in enumerate(zip(given, served, strict=True)):
        if abs(law - said) > _CLAIM_SLACK:
            text = f"the law it shows gives its token log p {law:.4f}, it claims {said:.4f}"
            faults.append(Fault("law", text, key, step))
            return


def _is_number(value: Any) -> bool:
    # An integer too large for a float is not a number of nats.
    if isinstance(value, int):
        return not isinstance(value, bool) and value.bit_length() < 1024
    return isinstance(value, float)
