"""What decoders truly spend at every prefix: sound ones their budget, faulty ones as listed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from nafaudit.core.debt import DebtRule
from nafaudit.core.design import Decoding
from nafaudit.engine.world import PairWorld
from nafaudit.lab.prompts import prompts as lab_prompts
from nafaudit.mechanisms.reference import AnchoredDecoder
from nafaudit.models.pair import load_pair
from nafaudit.protocols import Output, Request, debt_of
from nafaudit.runner.pairs import named_pair
from nafaudit.selftest.careful import CAREFUL, CarefulCase, RenyiBudget, ShowsLaws, geodesics
from nafaudit.selftest.faults import CATALOGUE, FaultCase
from nafaudit.selftest.faults.tools import divergence, shown, silent
from nafaudit.selftest.worlds import ToyWorld, overspend, toy_prompts, toy_world, truth

WORLD = toy_world(1)
# Some tokens have no probability, the models are further apart, and nothing ends an output.
ROUGH = toy_world(3, size=20, contexts=37, gap=1.6, stop=0.0, zeros=0.1)
BUDGETS = (0.05, 0.3, 1.0)

careful = pytest.mark.parametrize("case", CAREFUL, ids=lambda case: case.name)
faulty = pytest.mark.parametrize("case", CATALOGUE, ids=lambda case: case.name)


def asked(world: ToyWorld, k: float, prompts: int = 8, each: int = 4) -> list[Request]:
    return [
        Request(prompt, k, 40 * i + j, 40)
        for i, prompt in enumerate(toy_prompts(world, 1, prompts))
        for j in range(each)
    ]


@careful
def test_a_sound_decoder_keeps_its_budget_at_every_prefix(case: CarefulCase) -> None:
    for world in (WORLD, ROUGH):
        for k in BUDGETS:
            found = overspend(case.decoder(world), asked(world, k, 4, 1))
            assert found.prefixes == found.exceeding == 0 and found.worst == 0.0


@careful
def test_a_sound_decoder_keeps_the_promise_over_all_that_it_may_write(case: CarefulCase) -> None:
    # Summed over every output, without a meter or a draw.
    for seed in range(3):
        world = toy_world(seed, size=4, contexts=11, gap=2.0, stop=0.2)
        prompt = toy_prompts(world, seed, 2)[1]
        found = truth(case.decoder(world), Request(prompt, 0.5, seed, 4))
        assert found.divergence <= max(0.0, 4 * 0.5 - debt_of(world, prompt)) + 1e-9
        assert found.divergence == pytest.approx(found.mean(lambda leaf: leaf.true_spend), abs=1e-9)
        if case.decoder is not RenyiBudget:
            assert found.divergence == pytest.approx(found.mean(lambda leaf: leaf.spend), abs=1e-9)


@careful
def test_an_open_decoder_says_the_truth(case: CarefulCase) -> None:
    requests = [*asked(WORLD, 0.3, 3, 2), Request((1, 2, 3), math.inf, 5, 12)]
    for request, said in zip(requests, case.decoder(WORLD).decode(requests), strict=True):
        laws = _laws(said, request)
        drawn = np.arange(len(laws)), np.asarray(said.tokens)
        assert said.served is not None and np.allclose(laws[drawn], said.served, atol=1e-9)
        assert said.debt == debt_of(WORLD, request.prompt)
        assert (said.laws is not None) == issubclass(case.decoder, ShowsLaws)
        if said.charge is None:
            assert case.decoder is RenyiBudget and said.spend is None and said.allowance is None
            continue
        anchors = _models(request, said.tokens)[0]
        costs = [divergence(*pair) for pair in zip(laws, anchors, strict=True)]
        assert np.allclose(costs, said.charge, atol=1e-9)
        assert said.spend == pytest.approx(math.fsum(costs), abs=1e-8)
        assert said.allowance is not None
        assert np.all(np.asarray(said.charge) <= np.asarray(said.allowance) + 1e-9)


def _models(request: Request, tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    text = [*request.prompt, *tokens]
    return WORLD.laws([text[: len(request.prompt) + i] for i in range(len(tokens))])


def _laws(said: Output, request: Request) -> np.ndarray:
    """Returns the law of every step, as it is shown or as the weight has it."""
    if said.laws is not None:
        assert said.theta is None
        return said.laws
    assert said.theta is not None
    return geodesics(*_models(request, said.tokens), np.asarray(said.theta))


@careful
def test_neighbours_and_claims_do_not_show_in_the_tokens(case: CarefulCase) -> None:
    requests = [*asked(WORLD, 0.3, 3, 2), *asked(WORLD, 0.0, 1, 2)]
    together = case.decoder(WORLD).decode(requests)
    for request, output in zip(requests, together, strict=True):
        (alone,) = case.silent(WORLD).decode([request])
        assert list(alone.tokens) == list(output.tokens)
        assert alone == Output(alone.tokens)
        if request.k == 0:
            assert not any(output.charge or ())
            safe = AnchoredDecoder(WORLD).decode([request])[0]
            assert list(safe.tokens) == list(output.tokens)


def test_only_the_anchored_decoder_conforms() -> None:
    assert [case.decoder for case in CAREFUL if case.conforms] == [AnchoredDecoder]
    assert len({case.name for case in CAREFUL}) == len(CAREFUL) >= 20
    assert not {case.name for case in CAREFUL} & {case.name for case in CATALOGUE}
    requests = asked(WORLD, 0.3)
    sound = [list(one.tokens) for one in AnchoredDecoder(WORLD).decode(requests)]
    for case in CAREFUL[1:]:
        assert sound != [list(one.tokens) for one in case.decoder(WORLD).decode(requests)]
        assert case.about.endswith(".") and len(case.about) < 100


def test_a_decoder_shows_what_it_is_asked_to_show() -> None:
    request = asked(WORLD, 0.3)[0]
    (whole,) = AnchoredDecoder(WORLD).decode([request])
    (some,) = shown(AnchoredDecoder, "theta", "debt")(WORLD).decode([request])
    assert some == Output(whole.tokens, theta=whole.theta, debt=whole.debt)
    assert silent(AnchoredDecoder).__name__ == "SilentAnchoredDecoder"


@faulty
def test_a_fault_exceeds_its_budget_or_not_as_the_catalogue_says(case: FaultCase) -> None:
    worst = 0.0
    for k in BUDGETS[1:] + BUDGETS[:1]:
        if worst > 0:
            break
        # One answer of ten has to be among them, where it matters.
        requests = asked(WORLD, k, each=4 if case.exceeds else 1)
        worst = overspend(case.decoder(WORLD), requests).worst
    assert (worst > 0) == (case.exceeds and case.metered)


def test_only_wrong_samplers_have_remarks_on_what_they_spend() -> None:
    for case in CATALOGUE:
        assert case.breaks == "sampling" or (case.metered and not case.within)
        assert case.metered or not case.within
        assert not (case.breaks == "conformity" and case.must_catch)


@pytest.fixture(scope="module")
def lab() -> tuple[PairWorld, list[Request]]:
    length = 20
    paths = named_pair("lab").locate()
    pair = load_pair(*paths)
    texts = [prompt.text for prompt in lab_prompts()]
    prompts = [tuple(pair.tokenizer(text)["input_ids"]) for text in texts[::300]]
    world = PairWorld(
        pair,
        Decoding(max_new_tokens=length),
        DebtRule(),
        width=max(map(len, prompts)) + length,
        batch=2 * len(prompts),
        checkpoints=paths,
    )
    return world, [Request(p, k, i, length) for i, p in enumerate(prompts) for k in (0.2, 1.0)]


@careful
def test_a_sound_decoder_keeps_its_budget_on_the_lab_pair(
    case: CarefulCase, lab: tuple[PairWorld, list[Request]]
) -> None:
    world, requests = lab
    found = overspend(case.decoder(world), requests)
    assert found.prefixes == found.exceeding == 0 and found.worst == 0.0
