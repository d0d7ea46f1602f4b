"""One small audit of a fault on the lab pair: real models, the checks of the small worlds."""

from __future__ import annotations

from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.core.trajectory import Key
from nafaudit.engine.world import PairWorld
from nafaudit.lab.prompts import prompts as lab_prompts
from nafaudit.models.pair import load_pair
from nafaudit.protocols import Request
from nafaudit.runner.pairs import named_pair
from nafaudit.selftest.battery import Asked, alarms, examine, findings, warnings
from nafaudit.selftest.catalogue import Case
from nafaudit.selftest.power import LEVEL

_PROMPTS, _EACH, _LENGTH = 4, 2, 64
# The lab's budget acts here: neither model alone is served at most steps.
_K = 0.2


class LabSpot:
    """The lab pair, loaded once, and a few of its prompts."""

    def __init__(self, seed: int = 0) -> None:
        paths = named_pair("lab").locate()
        pair = load_pair(*paths)
        decoding = Decoding(max_new_tokens=_LENGTH)
        texts = [prompt.text for prompt in lab_prompts()]
        every = max(1, len(texts) // _PROMPTS)
        chosen = [tuple(pair.tokenizer(t)["input_ids"]) for t in texts[::every][:_PROMPTS]]
        width = max(map(len, chosen)) + _LENGTH
        self.world = PairWorld(
            pair, decoding, DebtRule(), width=width, batch=_PROMPTS * _EACH, checkpoints=paths
        )
        self.asked = [
            Asked(
                Key(str(number), "decoder", _K, index),
                Request(prompt, _K, (seed * 100 + number) * 16 + index, _LENGTH),
            )
            for number, prompt in enumerate(chosen)
            for index in range(_EACH)
        ]

    def fired(self, case: Case) -> tuple[str, ...]:
        """Names of the checks that failed or, for harmless faults, warned."""
        outputs = case.decoder(self.world).decode([one.request for one in self.asked])
        exhibits = examine(self.world, self.asked, outputs)
        found = findings(self.world, exhibits, _LENGTH, LEVEL)
        return alarms(found) or (warnings(found) if case.harmless else ())
