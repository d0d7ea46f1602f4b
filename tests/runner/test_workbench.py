"""Reading what a decoder needs, and loading it here or in another process."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nafaudit.core.design import Extent
from nafaudit.core.errors import InputError
from nafaudit.core.settings import RunSettings
from nafaudit.models import pair as pairs
from nafaudit.runner.execute import requests_left
from nafaudit.runner.executors import EngineExecutor, identity_of
from nafaudit.runner.workbench import UnloadedPair, Workbench, read_inputs
from nafaudit.workload import workload_hash

Paths = Callable[[str], tuple[Path, Path]]


@pytest.fixture
def settings(tiny_pair_paths: Paths, tmp_path: Path) -> RunSettings:
    safe, risky = map(str, tiny_pair_paths("llama"))
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"id": f"p{i}", "text": f"The bread {i}", "reference": "Salt."} for i in range(3)]
    prompts.write_text("\n".join(map(json.dumps, rows)))
    sizes = {"max_new_tokens": 6, "trajectories": 1, "k": (1.0,), "batch": 4, "limit": 2}
    return RunSettings(safe=safe, risky=risky, prompts=str(prompts), **sizes)  # type: ignore[arg-type]


def test_reading_loads_no_model(settings: RunSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    inputs = read_inputs(settings)
    assert len(inputs.tokenized) == 3 and len(inputs.chosen) == 2
    needed = max(len(item.tokens) for item in inputs.tokenized) + 6
    assert inputs.spec.width >= needed
    assert inputs.spec.rows == 2 * 3  # two prompts, a budget and both baselines
    assert UnloadedPair.read(settings).spec(needed, inputs.tokenized, 6) == inputs.spec


def test_another_process_loads_the_same_from_what_it_is_sent(settings: RunSettings) -> None:
    inputs = read_inputs(settings)
    sent = pickle.loads(pickle.dumps(inputs.spec))
    assert sent == inputs.spec and len(pickle.dumps(sent)) < 5000  # no model, no tokenizer
    here, there = (
        EngineExecutor(Workbench.load(spec, mechanism))
        for spec, mechanism in ((inputs.spec, inputs.mechanism), (sent, None))
    )
    identity = identity_of(here, workload_hash(inputs.tokenized))
    assert identity.hash == identity_of(there, workload_hash(inputs.tokenized)).hash
    assert here.probe.facts == there.probe.facts
    prompts = {item.prompt.id: item for item in inputs.chosen}
    requests = requests_left(identity, Extent(settings.budgets, 1, tuple(prompts)), prompts, set())
    ours, theirs = ({t.key: t for t in one.decode(requests)} for one in (here, there))
    assert len(ours) == 6 and all(ours[key].same_as(theirs[key]) for key in theirs)


def test_a_mechanism_that_requires_passages_finds_them_in_the_spec(settings: RunSettings) -> None:
    inputs = read_inputs(replace(settings, mechanism="memfree"))
    assert inputs.spec.passages == ("Salt.",)
    assert inputs.spec.mechanism().name == inputs.mechanism.name
    assert read_inputs(settings).spec.passages == ()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"mechanism": "anchord"}, "anchored"),
        ({"dtype": "float31"}, "float31"),
        ({"max_new_tokens": 100_000}, "does not fit the pair's context"),
    ],
)
def test_what_is_wrong_is_said_before_a_model_loads(
    settings: RunSettings, given: dict[str, object], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    with pytest.raises(InputError, match=says):
        read_inputs(replace(settings, **given))  # type: ignore[arg-type]
