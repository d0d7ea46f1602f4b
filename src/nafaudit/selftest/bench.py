"""Where a decoder is tried: on the lab pair in its own process, or in a world of tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nafaudit.audit.blackbox import DecoderError, Session
from nafaudit.audit.decoder import launch_of
from nafaudit.audit.official import NAME as OFFICIAL
from nafaudit.audit.pairs import checkpoints_of
from nafaudit.audit.prepare import mechanism_of
from nafaudit.audit.worker import answer, registered
from nafaudit.core.debt import DebtRule
from nafaudit.core.errors import InputError
from nafaudit.core.settings import load_settings
from nafaudit.core.trajectory import Replayed
from nafaudit.engine.laws import Reader
from nafaudit.engine.replay import Seen, Written, replay_written
from nafaudit.lab.prompts import prompts as lab_prompts
from nafaudit.mechanisms.cards import parse
from nafaudit.mechanisms.doors import BlackBox, Request, World
from nafaudit.mechanisms.protocols import Mechanism, Served
from nafaudit.mechanisms.registry import mechanism
from nafaudit.mechanisms.replay import replay_in
from nafaudit.models.pair import Pair, load_pair
from nafaudit.selftest.trials import BATCH, MOST_TOKENS, Tokens

WIDTH = 192
_PROMPTS = 6
# A stop token about this frequent lets some outputs stop and others reach the limit.
_STOP_SHARE = 0.03


class LabBench:
    """The lab pair, and a decoder in a process of its own; use it as a context manager.

    One frequent token is declared a stop token, so that outputs do stop.

    Args:
        spec: Which decoder.
        python: Interpreter that runs it; ours if None.
        timeout: Seconds that an answer may take.
        promise: What a decoder promises, in the names of `Settings`.
    """

    def __init__(
        self,
        spec: str,
        *,
        python: str | None = None,
        timeout: float = 120.0,
        promise: Mapping[str, Any] | None = None,
    ) -> None:
        given = {"decoder": spec, "decoder_python": python, "decoder_timeout": timeout}
        shape = {"max_new_tokens": MOST_TOKENS, "batch": BATCH}
        self._told = dict(promise or {})
        self._settings = load_settings(None, given | shape | self._told)
        mechanism_of(self._settings)  # a wrong promise is said before a model loads
        checkpoints = checkpoints_of(self._settings)
        self._pair = load_pair(*checkpoints)
        self.size = len(self._pair.vocabulary)
        self.prompts = _prompts(self._pair)
        # The published decoder cannot take two stop tokens, so it gets the frequent one alone.
        own = frozenset() if spec == OFFICIAL else self._pair.vocabulary.stops
        self.stops = own | {_stop_token(self._pair)}
        launch = launch_of(self._settings, self._pair, checkpoints, WIDTH, rules=True)
        hello = {**launch.hello, "stops": sorted(self.stops)}
        self._session = Session(replace(launch, hello=hello))
        self._stack = ExitStack()

    def __enter__(self) -> LabBench:
        self._stack.enter_context(self._session)
        self._session.start()
        if self._is_rule and "mechanism" in self._told:
            raise InputError(
                f"{self._settings.decoder} is a rule and is held to itself; leave out --mechanism."
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ask(self, requests: Sequence[Request]) -> list[Any]:
        """Asks the decoder's process."""
        return self._session.ask(requests)

    @property
    def promises(self) -> bool:
        """False for a mechanism of ours that promises no budget."""
        found = parse(self._settings.decoder or "")
        return found is None or found.card.promise.divergence != "none"

    @property
    def chooses(self) -> bool:
        """True for somebody's rule that chooses among whole outputs; it decodes nothing here."""
        return bool(self._session.ready.get("kind") == "sequence")

    def close(self) -> None:
        """Ends the decoder's process."""
        self._session.close()

    @property
    def promise(self) -> str:
        """What the decoder is held to, in words: rule, ledger and debt."""
        promised, debt = self._promised, self._promised.debt
        owed = f"prefix debt {debt.definition} (n = {debt.n})" if debt.n else "no prefix debt"
        return f"{self._rule}, ledger {promised.ledger.spec}, {owed}"

    @property
    def debt(self) -> DebtRule:
        """The debt that is promised."""
        return self._promised.debt

    @property
    def warps(self) -> str:
        """Temperature and penalty, in words; nothing if there are none."""
        decoding = self._settings.decoding
        said = {
            "temperature": decoding.temperature,
            "repetition penalty": decoding.repetition_penalty,
        }
        return "".join(f", {name} {value:g}" for name, value in said.items() if value != 1.0)

    @property
    def _is_rule(self) -> bool:
        return bool(self._session.ready.get("kind") == "rule")

    @property
    def _rule(self) -> str:
        """A rule is held to itself, a decoder to what is promised for it."""
        return (self._settings.decoder if self._is_rule else None) or self._settings.mechanism

    @cached_property
    def _promised(self) -> Mechanism:
        debt = self._settings.debt_rule
        made = registered(self._rule, debt, checkpoints_of(self._settings)[0])
        return made or mechanism(self._rule, debt)

    def replay(
        self, written: Sequence[Written], look: Seen, *, indebted: bool = True
    ) -> Iterator[Replayed]:
        """One teacher-forced pass of both models."""
        promised = self._promised if indebted else replace(self._promised, debt=DebtRule(0))
        return replay_written(Reader(self._pair, self._settings.decoding), promised, written, look)


def _prompts(pair: Pair) -> dict[str, Tokens]:
    """Prompts of the lab, spread over their lengths."""
    tokenized = [(p.id, tuple(pair.tokenizer(p.text)["input_ids"])) for p in lab_prompts()]
    fitting = [t for t in tokenized if len(t[1]) + MOST_TOKENS <= WIDTH]
    fitting.sort(key=lambda prompt: (len(prompt[1]), prompt[0]))
    places = np.linspace(0, len(fitting) - 1, _PROMPTS).round().astype(int)
    return dict(fitting[place] for place in places)


def _stop_token(pair: Pair) -> int:
    """A token of ordinary text, about as frequent as the end of a sentence."""
    counts: Counter[int] = Counter(
        token for p in lab_prompts() for token in pair.tokenizer(p.text)["input_ids"]
    )
    known = {t: n for t, n in counts.items() if t not in pair.vocabulary.special}
    total = sum(known.values())
    return min(known, key=lambda token: (abs(known[token] / total - _STOP_SHARE), token))


@dataclass(frozen=True)
class WorldBench:
    """A world of tables, and a decoder in this process: fast, and with nothing to wait for."""

    world: World
    decoder: BlackBox
    prompts: dict[str, Tokens]

    @property
    def size(self) -> int:
        """Number of token ids."""
        return self.world.size

    @property
    def stops(self) -> frozenset[int]:
        """Ids that end an output."""
        return self.world.stops

    def ask(self, requests: Sequence[Request]) -> list[Any]:
        """Asks the decoder itself."""
        said = answer(self.decoder, [vars(request) for request in requests])
        if "fault" in said:
            raise DecoderError(said["fault"]["name"], said["fault"]["text"])
        outputs: list[Any] = said["outputs"]
        if len(outputs) != len(requests):
            raise DecoderError("count", f"{len(outputs)} outputs for {len(requests)} requests")
        return outputs

    def close(self) -> None:
        """Nothing to end."""

    def replay(
        self, written: Sequence[Written], look: Seen, *, indebted: bool = True
    ) -> Iterator[Replayed]:
        """Feeds the world's laws to the replay, one output at a time."""
        promised = mechanism("anchored", self.world.debt if indebted else DebtRule(0))
        for one in written:
            tokens = one.tokens.tolist()
            second, law = replay_in(
                self.world, promised, one.key, one.prompt, tokens, _listed(one.theta)
            )
            along = self.world.along((*one.prompt, *tokens[:-1]))
            safe, risky = (torch.from_numpy(x[len(one.prompt) - 1 :].copy()) for x in along)
            steps = second.trajectory.steps
            charge, theta = (
                torch.tensor(x, dtype=torch.float64) for x in (steps.charge, steps.theta)
            )
            look(one.key, 0, Served(law, charge, theta), safe, risky)
            yield second


def _listed(theta: NDArray[np.floating] | None) -> list[float] | None:
    return None if theta is None else [float(value) for value in theta]
