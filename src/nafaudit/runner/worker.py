"""The process of a black box: builds the user's decoder and answers requests, a JSON line each.

The decoder's code runs only here, so that nothing it does (exit, hang, print, take memory) can hide
or reach the auditor. `nafaudit.runner.blackbox` is the other end of the pipe.

The lines: a first one that says what to build, answered by {"ready": ...} or {"fault": ...}; then
{"requests": [...]}, answered by {"outputs": [...]} or {"fault": ...}, until the pipe closes.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import traceback
from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.errors import InputError, LawError
from nafaudit.core.processes import end_with_parent
from nafaudit.core.settings import Trust
from nafaudit.mechanisms.plugins import build, load_class, source_hash
from nafaudit.protocols import (
    DECODER_TYPES,
    STEP_CLAIMS,
    BlackBox,
    Law,
    Output,
    Request,
    World,
)

if TYPE_CHECKING:
    from nafaudit.protocols import Mechanism

_LONGEST = 400
_OWN = str(Path(__file__).resolve().parents[1])


def main() -> None:
    """Reads the first line, builds the decoder, answers until there is nothing left to read."""
    # A hanging decoder whose auditor was killed would hang for ever.
    end_with_parent()
    # Standard input and output are taken away, so that their prints cannot pass for answers.
    asked = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.stdin = os.fdopen(0, "r", encoding="utf-8", closefd=False)

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    hello = json.loads(asked.readline())
    try:
        kind, plugin, decoder = built(hello)
    except InputError as error:
        say({"fault": {"name": "build", "text": str(error)}})
        return
    say({"ready": {"source": source_hash(plugin), "kind": kind, "dtype": declared_type(decoder)}})
    born = os.getpid()
    for line in asked:
        said = answer(decoder, json.loads(line)["requests"])
        if os.getpid() != born:  # a child that their code forked must not answer too
            os._exit(0)
        say(said)


def built(hello: dict[str, Any]) -> tuple[str, object, Any]:
    """Builds what the first line names: a decoder or, where allowed, a rule as a decoder.

    A rule that chooses among whole outputs is only recognised: nothing is asked of it here.

    Returns:
        Its kind, the object whose source is recorded, and what answers.
    """
    spec, world = hello["decoder"], DescribedWorld(hello)
    if hello.get("rules") and (made := registered(spec, world.debt, world.checkpoints[0])):
        from nafaudit.mechanisms.reference import MechanismDecoder

        return "rule", made.rule, MechanismDecoder(world, made)
    found = load_class(spec, "decoder")
    if not hasattr(found, "decode") and hasattr(found, "serve") and hello.get("rules"):
        from nafaudit.mechanisms.reference import RuleDecoder

        rule = build(spec, what="rule")
        return "rule", rule, RuleDecoder(world, rule, spec)
    if hello.get("rules") and all(hasattr(found, part) for part in ("plan", "choose")):
        rule = build(spec, what="rule")
        return "sequence", rule, rule
    decoder = build(spec, world, what="decoder")
    if not callable(getattr(decoder, "decode", None)):
        raise InputError(
            f"{spec} has no method decode(requests); see nafaudit.protocols.BlackBox for "
            "what it takes and returns."
        )
    return "decoder", decoder, decoder


def declared_type(decoder: object) -> str:
    """Returns in which type a decoder says that it computes; empty if it does not, or in another.

    Decoders may have an attribute of that name that means something else.
    """
    try:
        value = getattr(decoder, "dtype", "")
        name = str(getattr(value, "__name__", value)).removeprefix("torch.")
    except Exception:  # a property of theirs may raise
        return ""
    return name if name in DECODER_TYPES else ""


def registered(spec: str, debt: DebtRule, checkpoint: str) -> Mechanism | None:
    """Returns a mechanism of ours, bound to the lab's passages; None for other names."""
    from nafaudit.mechanisms.cards import parse

    if parse(spec) is None:
        return None
    from nafaudit.mechanisms.registry import SequenceMechanism, mechanism
    from nafaudit.models.checkpoints import load_tokenizer
    from nafaudit.runner.workbench import protected_passages, resources_of

    made = mechanism(spec, debt)
    if isinstance(made, SequenceMechanism):
        raise InputError(
            f"{spec} chooses among whole outputs and serves no law at a step, so there is nothing "
            "to replay."
        )
    return made.bind(resources_of(load_tokenizer(checkpoint), protected_passages((), "lab")))


class DescribedWorld:
    """The world that the first line describes; it loads models when a law is asked for."""

    def __init__(self, hello: dict[str, Any]) -> None:
        self.size: int = hello["size"]
        self.stops, self.special = frozenset(hello["stops"]), frozenset(hello["special"])
        self.decoding, self.debt = Decoding(**hello["decoding"]), DebtRule(**hello["debt"])
        self.checkpoints: tuple[str, str] = tuple(hello["checkpoints"])
        self._hello = hello

    def laws(self, prefixes: Sequence[Sequence[int]]) -> tuple[Law, Law]:
        """Returns next-token log-laws, safe and risky, after each prefix."""
        return self._loaded.laws(prefixes)

    def prefix_laws(self, tokens: Sequence[int], *, raw: bool = False) -> tuple[Law, Law]:
        """Returns the log-laws after tokens[:1], tokens[:2], ..."""
        return self._loaded.prefix_laws(tokens, raw=raw)

    along = prefix_laws  # its old name, which recorded decoders call

    @cached_property
    def _loaded(self) -> World:
        import torch

        from nafaudit.engine.proof import numerics_of
        from nafaudit.engine.world import PairWorld
        from nafaudit.models.pair import load_pair

        hello = self._hello
        torch.set_num_threads(hello["threads"])
        pair = load_pair(
            *self.checkpoints,
            dtype=hello["dtype"],
            device=hello["device"],
            stop_ids=hello["stops"],
            trust=Trust(tuple(hello["remote_code"]), hello["pickle"]),
        )
        shape: dict[str, Any] = {"width": hello["width"], "batch": hello["batch"]}
        models, depends = (pair.safe, pair.risky), hello.get("depends", "")
        numerics = numerics_of(models, **shape, depends=depends)
        shape |= {"checkpoints": self.checkpoints, "numerics": numerics}
        return PairWorld(pair, self.decoding, self.debt, **shape)


def answer(decoder: BlackBox, requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns what the decoder answers to some requests, as plain data."""
    asked = [Request(tuple(r["prompt"]), r["k"], r["seed"], r["max_new_tokens"]) for r in requests]
    try:
        # One too many is enough to know; a generator may never end.
        outputs = list(islice(decoder.decode(asked), len(asked) + 1))
    except LawError as error:  # a rule served what is not a law
        return {"fault": {"name": "law", "text": str(error)}}
    except (Exception, SystemExit) as error:  # all that their code raises is its fault
        return {"fault": {"name": "raised", "text": _described(error)}}
    try:
        said = {"outputs": [plain(output) for output in outputs]}
        json.dumps(said)
        return said
    except Exception as error:  # reading a decoder's object may raise
        return {"fault": {"name": "shape", "text": f"{type(error).__name__}: {error}"}}


def plain(output: Output) -> dict[str, Any]:
    """Returns an output as JSON can carry it; laws as the base64 of little-endian float32."""
    said: dict[str, Any] = {"tokens": _listed(output.tokens)}
    for name in (*STEP_CLAIMS, "debt", "spend"):
        if (value := getattr(output, name, None)) is not None:
            said[name] = _listed(value)
    family = getattr(output, "family", None)
    if family is not None:
        said["family"] = family if isinstance(family, str) else _listed(family)
    laws = getattr(output, "laws", None)
    if laws is not None:
        table = np.asarray(laws, np.float64)
        said["law_shape"] = list(table.shape)
        with np.errstate(over="ignore"):
            said["laws"] = base64.b64encode(table.astype("<f4").tobytes()).decode("ascii")
    return said


def _listed(value: Any) -> Any:
    """Returns a number or a list of numbers, from any type of array."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        if all(type(entry) in (int, float) for entry in value):
            return list(value)
        return [_listed(entry) for entry in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    raise TypeError(f"a {type(value).__name__} is neither a number nor a list of them")


def _described(error: BaseException) -> str:
    """Returns type, message and place of an exception on one line."""
    try:
        text = " ".join(str(error).split())  # runs their code too
    except Exception:
        text = "its message cannot be read"
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} ..."
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(_OWN)] or frames
    where = f" ({Path(theirs[-1].filename).name}, line {theirs[-1].lineno})" if theirs else ""
    return f"{type(error).__name__}: {text}{where}"


if __name__ == "__main__":
    main()
