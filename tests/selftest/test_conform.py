from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nafaudit.auditor.follow import replay_many
from nafaudit.auditor.replay import OnSteps, ReplayTask
from nafaudit.core.debt import DebtRule
from nafaudit.core.promise import Promise
from nafaudit.core.trajectory import Replayed
from nafaudit.mechanisms.anchored import Anchored
from nafaudit.mechanisms.reference import AnchoredDecoder, RuleDecoder
from nafaudit.mechanisms.registry import mechanism
from nafaudit.protocols import BlackBox, Request, Served, World
from nafaudit.runner.blackbox import DecoderError
from nafaudit.runner.worker import answer
from nafaudit.selftest import careful
from nafaudit.selftest import conform as suite
from nafaudit.selftest import trials as asking
from nafaudit.selftest.conform import (
    ITEMS,
    Conformance,
    ConformanceItem,
    Conforms,
    DecoderConformance,
    conform,
    judge,
)
from nafaudit.selftest.trials import Tokens, Trials, run_trials
from nafaudit.selftest.worlds import toy_prompts, toy_world
from tests.commands import call
from tests.selftest import broken

FULL = pytest.mark.full
WORLD = toy_world(3, size=60, gap=1.5, stop=0.03)
PROMPTS = {f"p{n}": toy_prompts(WORLD, n, 2, n)[1] for n in (3, 4, 5, 6, 7, 9)}


@dataclass(frozen=True)
class WorldBench:
    """A world of tables, and a decoder in this process: fast, for tests."""

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
        """Does nothing: there is no process to end."""

    def replay(
        self, written: Sequence[ReplayTask], on_steps: OnSteps, *, indebted: bool = True
    ) -> Iterator[Replayed]:
        """Recomputes outputs from the world's laws."""
        promised = mechanism("anchored", self.world.debt if indebted else DebtRule(0))
        found = replay_many(self.world, promised, written) if written else []
        for one, again in zip(written, found, strict=True):
            steps = again.replayed.trajectory.steps
            charge, theta = (
                torch.tensor(x, dtype=torch.float64) for x in (steps.charge, steps.theta)
            )
            on_steps(one, 0, Served(again.law, charge, theta), again.safe, again.risky)
            yield again.replayed


@cache
def _tried(
    decoder: type[AnchoredDecoder], held_to: str = Promise.BANKED
) -> tuple[Trials, list[str]]:
    """The trials of a decoder, and what was said meanwhile: made once for all that is asked."""
    stages: list[str] = []
    bench = WorldBench(WORLD, decoder(WORLD), PROMPTS)
    return run_trials(bench, held_to=held_to, on_stage=stages.append), stages


def _items(decoder: type[AnchoredDecoder], held_to: str = Promise.BANKED) -> list[ConformanceItem]:
    return judge(_tried(decoder, held_to)[0])  # type: ignore[arg-type]


def _answered(items: list[ConformanceItem], answer: Conforms) -> set[str]:
    return {item.name for item in items if item.answer is answer}


# False alarms of these tests: 1e-5 each by trials.ALPHA, and all seeds are fixed.


@pytest.mark.parametrize(
    "decoder", [pytest.param(AnchoredDecoder, marks=pytest.mark.full), broken.ShowsLaws]
)
def test_a_sound_decoder_keeps_every_item(decoder: type[AnchoredDecoder]) -> None:
    assert _answered(_items(decoder), Conforms.YES) == set(ITEMS)


@pytest.mark.full
def test_what_a_silent_decoder_does_not_show_is_unknown_not_broken() -> None:
    items = _items(broken.Silent)
    assert not _answered(items, Conforms.NO)
    assert _answered(items, Conforms.UNKNOWN) == {"normalises", "charges", "budget"}


@pytest.mark.parametrize(
    ("decoder", "item", "text"),
    [
        pytest.param(
            broken.Overlong,
            "terminates",
            "it wrote more tokens than it was asked for",
            marks=pytest.mark.full,
        ),
        (broken.ShowsLogits, "normalises", "mass 1.64872, not 1"),
        pytest.param(
            broken.RunsOn, "stop tokens", "1 tokens after the stop token 0", marks=pytest.mark.full
        ),
        pytest.param(
            broken.DropsItsStop, "stop tokens", "without a stop token", marks=pytest.mark.full
        ),
        pytest.param(
            broken.Unseeded,
            "repeats",
            "asked again with the same seeds, it wrote otherwise",
            marks=pytest.mark.full,
        ),
        pytest.param(broken.OneSeed, "differs", "seeds gave the same", marks=pytest.mark.full),
        pytest.param(
            broken.ByPlace,
            "batch",
            "alone it writes other tokens than in a batch",
            marks=pytest.mark.full,
        ),
        (broken.Padded, "padding", "beside prompts of other lengths"),
        (
            broken.HalfPrice,
            "charges",
            "the charges that it states, by the laws that it shows, differ",
        ),
        pytest.param(
            broken.Cold,
            "charges",
            "draws from the laws that it claims",
            marks=pytest.mark.full,
        ),
        (broken.Ahead, "budget", "24 of 24 trajectories exceed their budget"),
        pytest.param(
            broken.ZeroIsNoLimit,
            "k = 0",
            "its tokens are not the safe model's",
            marks=pytest.mark.full,
        ),
    ],
)
def test_each_broken_decoder_breaks_its_own_item_and_no_other(
    decoder: type[AnchoredDecoder], item: str, text: str
) -> None:
    items = _items(decoder)
    assert _answered(items, Conforms.NO) == {item}, [i for i in items if i.answer is Conforms.NO]
    assert text in next(i.text for i in items if i.name == item)


def test_a_decoder_that_raises_is_told_nothing_else() -> None:
    items = _items(broken.Raises)
    assert _answered(items, Conforms.NO) == {"terminates"}
    assert "ValueError: out of luck" in items[0].text
    assert len(_answered(items, Conforms.UNKNOWN)) == len(ITEMS) - 1


def test_every_item_is_a_test_of_the_pytest_class() -> None:
    tests = [name for name in vars(DecoderConformance) if name.startswith("test_")]
    assert len(tests) == len(ITEMS)


def test_the_command_answers_in_words_and_by_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [
        ConformanceItem("terminates", Conforms.YES, "all 3 outputs came back"),
        ConformanceItem("charges", Conforms.NO, "it charges 1 nats for a law that costs 2"),
        ConformanceItem("budget", Conforms.UNKNOWN, "it claims neither weights nor charges"),
    ]
    promise = "anchored, ledger banking, no prefix debt, k = 0.25, 1"
    monkeypatch.setattr(suite, "examine", lambda spec, **__: Conformance(promise, spec, said))
    result = call("conform", "some.module:Class", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stdout.splitlines()[0] == "BROKEN: breaks charges of 3 items; not known: budget"
    assert f"promise: {promise}" in result.stdout.splitlines()
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "it charges 1 nats for a law that costs 2" in " ".join(result.stdout.split())
    data = json.loads(call("conform", "some.module:Class", "--json", cwd=tmp_path).stdout)
    assert data["conforms"] is False
    assert data["promise"] == promise
    assert data["items"][1] == {"name": "charges", "answer": "NO", "text": said[1].text}
    said.pop(1)
    assert call("conform", "some.module:Class", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("decoder", [broken.NoDebt, pytest.param(broken.SilentNoDebt, marks=FULL)])
def test_a_debt_that_is_not_charged_is_named_and_the_sampler_is_not_blamed(
    decoder: type[AnchoredDecoder],
) -> None:
    found = {i.name: i for i in _items(decoder)}
    assert [i.name for i in found.values() if i.answer is Conforms.NO] == ["budget"]
    text = found["budget"].text
    assert "its tokens fit no debt" in text or "more is spent than was granted" in text
    assert text.endswith("If its promise has none: run it with --no-prefix-debt")
    assert "drawn from" not in text
    without = replace(WORLD, debt=DebtRule(0))
    kept = judge(run_trials(WorldBench(without, decoder(without), PROMPTS)))
    assert not _answered(kept, Conforms.NO)


def test_a_debt_that_is_counted_in_other_laws_is_told_from_none() -> None:
    trials, _ = _tried(broken.NoDebt, Promise.ANCHORED)
    # As if something warped the laws, and the models' own had no debt.
    replayed = {
        key: replace(again, other_debt=0.0, granted_otherwise=again.granted + again.trajectory.debt)
        for key, again in trials.replayed.items()
    }
    found = judge(replace(trials, replayed=replayed))
    (broke,) = [item for item in found if item.answer is Conforms.NO]
    assert broke.name == "budget" and "--no-prefix-debt" not in broke.text
    assert "none is over if the debt is counted from the models' own laws" in broke.text
    assert broke.text.endswith("If its promise is that: --debt positives-raw")


@pytest.mark.full
def test_a_debt_that_is_counted_in_other_laws_is_told_from_none_on_the_lab_pair() -> None:
    spec = f"{broken.__file__}:OwnLawsDebt"
    (broke,) = [i for i in conform(spec, promise={"temperature": 0.7}) if i.answer is Conforms.NO]
    assert broke.name == "budget" and broke.text.endswith("--debt positives-raw")
    told = conform(spec, promise={"temperature": 0.7, "debt": "positives-raw"})
    assert not _answered(told, Conforms.NO)


@pytest.mark.full
def test_without_a_budget_nothing_is_promised() -> None:
    items = {item.name: item for item in _items(broken.InfinityIsLittle)}
    assert items["k = inf"].answer is Conforms.UNKNOWN
    assert "nothing is promised without a budget" in items["k = inf"].text
    demanded = {i.name: i for i in _items(broken.InfinityIsLittle, Promise.ANCHORED)}
    assert demanded["k = inf"].answer is Conforms.NO


@pytest.mark.parametrize("kind", [careful.SpendsNineTenths, careful.Arithmetic])
def test_a_sound_decoder_of_another_rule_is_not_broken(kind: type[AnchoredDecoder]) -> None:
    """It keeps its budget; that it is not the anchored decoder stands beside that."""
    trials, _ = _tried(kind)  # type: ignore[arg-type]
    assert not _answered(judge(trials), Conforms.NO)
    assert trials.answer is not None and trials.answer.conforms.startswith(
        "conforms to anchored: NO"
    )
    assert _answered(_items(kind, Promise.ANCHORED), Conforms.NO)


def test_another_fault_is_not_put_down_to_the_debt() -> None:
    found = [i for i in _items(broken.Ahead) if i.answer is Conforms.NO]
    assert found and not any("prefix debt" in item.text for item in found)


@pytest.mark.parametrize(
    ("decoder", "item", "text"),
    [
        (
            broken.SilentThrice,
            "charges",
            "its tokens fit the promise at 3 times k, not at k: ",
        ),
        pytest.param(broken.HalfAgain, "budget", "; none is over at 1.5 times k", marks=FULL),
    ],
)
def test_another_budget_that_is_kept_is_named(
    decoder: type[AnchoredDecoder], item: str, text: str
) -> None:
    found = {i.name: i for i in _items(decoder, Promise.ANCHORED)}
    assert [i.name for i in found.values() if i.answer is Conforms.NO] == [item]
    assert text in found[item].text and "debt" not in found[item].text


def test_no_other_budget_is_named_where_none_fits() -> None:
    """A wrong sampler is not put down to the budget."""
    trials, _ = _tried(broken.Cold, Promise.ANCHORED)
    assert trials.alarms and not trials.other_promises
    assert not any("times k" in item.text for item in judge(trials))


def test_what_is_tried_is_said() -> None:
    trials, stages = _tried(broken.SilentThrice, Promise.ANCHORED)
    heads = [stage.partition(":")[0] for stage in stages]
    assert all(item in ", ".join(heads) for item in set(ITEMS) - {"normalises"})
    assert trials.other_promises == (3.0,)
    assert stages[-1].endswith("the promise at 4 times k")


@pytest.mark.full
def test_a_terminal_shows_what_is_tried(tmp_path: Path) -> None:
    """A decoder that cannot be loaded is enough: the line stands before it is."""
    ours, theirs = os.openpty()
    program = [sys.executable, "-m", "nafaudit", "conform", f"{broken.__file__}:Nowhere"]
    seen = b""
    with subprocess.Popen(program, stdout=theirs, stderr=theirs, cwd=tmp_path) as process:
        os.close(theirs)
        with contextlib.suppress(OSError):  # the other end is closed
            while block := os.read(ours, 4096):
                seen += block
    os.close(ours)
    assert b"loading the lab pair and the decoder" in seen
    assert process.returncode == 2
    done = call("conform", f"{broken.__file__}:Nowhere", cwd=tmp_path)
    assert "loading the lab pair" not in done.stdout + done.stderr


@pytest.mark.usefixtures("forked_decoders")
def test_a_timeout_says_how_many_outputs_came_before_it(tmp_path: Path) -> None:
    spec = f"{broken.__file__}:TiresLater"
    done = call("conform", spec, "--timeout", 3, "--json", cwd=tmp_path)
    item = json.loads(done.stdout)["items"][0]
    assert done.returncode == 1 and (item["name"], item["answer"]) == ("terminates", "NO")
    # Batches of 32: the second one never comes back.
    assert "it gave no answer within the time limit" in item["text"]
    assert item["text"].endswith("; 32 of 117 outputs came before it stopped answering")


@pytest.mark.full
def test_other_budgets_can_be_tried() -> None:
    bench = WorldBench(WORLD, broken.NoDebt(WORLD), PROMPTS)
    trials = run_trials(bench, active=(0.5,))
    assert {record.key.k for record in trials.main} == {0.0, 0.5, math.inf}
    assert _answered(judge(trials), Conforms.NO) == {"budget"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--k", "0"], "k must be above 0 and finite here, got 0: 0 and inf are always tried"),
        (["--k", "some"], "k must be numbers"),
        (["--debt", "mean"], "'positives' or 'official'"),
        (["--prefix-n", "-1"], "prefix-n must be at least 0"),
        (["--temperature", "0"], "temperature must be above 0"),
        (["--top-p", "0.9"], "top-p = 0.9 is refused"),
        (["--greedy"], "greedy = True is refused"),
        (["--mechanism", "best-of-n:4"], "leave out --mechanism, or name a step-level one"),
        (["--mechanism", "anchord"], "unknown mechanism 'anchord'"),
    ],
)
def test_a_promise_that_cannot_be_tested_is_refused_before_a_model_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], text: str
) -> None:
    monkeypatch.setattr(asking, "load_pair", lambda *_: pytest.fail("loaded"))
    result = call("conform", f"{broken.__file__}:NoDebt", *options, cwd=tmp_path)
    assert result.returncode == 2 and text in result.stderr, result.stderr


def test_what_has_no_meaning_for_whole_outputs_is_refused(tmp_path: Path) -> None:
    result = call("conform", "best-of-n:4", "--no-prefix-debt", cwd=tmp_path)
    assert result.returncode == 2 and "prefix-debt has no meaning; leave it out" in result.stderr


@pytest.mark.parametrize(
    ("decoder", "text"),
    [("nobody", "unknown decoder 'nobody'"), ("nowhere.at:All", "cannot build decoder")],
)
def test_what_cannot_be_built_is_bad_input(tmp_path: Path, decoder: str, text: str) -> None:
    result = call("conform", decoder, cwd=tmp_path)
    assert result.returncode == 2 and text in result.stderr


@pytest.mark.full
class TestReference(DecoderConformance):
    """The shipped decoder, on the lab pair, as anybody would test theirs."""

    decoder = "nafaudit.mechanisms.reference:AnchoredDecoder"

    def test_nothing_is_left_unknown(self) -> None:
        items = conform(self.decoder)
        assert _answered(items, Conforms.YES) == set(ITEMS)


@pytest.mark.full
def test_a_decoder_without_a_debt_is_held_to_the_promise_that_it_makes(tmp_path: Path) -> None:
    spec = f"{broken.__file__}:SilentNoDebt"
    kept = call("conform", spec, "--no-prefix-debt", "--temperature", "0.7", cwd=tmp_path)
    first = (
        "promise: banked; anchored, ledger banking, no prefix debt, k = 0.25, 1, temperature 0.7"
    )
    assert first in " ".join(kept.stdout.split())
    assert kept.returncode == 0, kept.stdout
    result = call("conform", spec, "--k", "4,2,1", "--json", cwd=tmp_path)
    data = json.loads(result.stdout)
    promise = "banked; anchored, ledger banking, prefix debt positives (n = 5), k = 1, 2, 4"
    assert (result.returncode, data["promise"]) == (1, promise)
    (broke,) = [item for item in data["items"] if item["answer"] == "NO"]
    assert broke["name"] == "budget" and broke["text"].endswith("--no-prefix-debt")


@pytest.mark.full
def test_a_broken_decoder_fails_on_the_lab_pair_too(tmp_path: Path) -> None:
    file = Path(broken.__file__)
    result = call("conform", f"{file}:HalfPrice", "--json", cwd=tmp_path)
    assert result.returncode == 1
    broke = [i["name"] for i in json.loads(result.stdout)["items"] if i["answer"] == "NO"]
    assert broke == ["charges"]


class _Overspends(Anchored):
    """Serves the risky law whatever is allowed, and says what that costs."""

    def serve(
        self, prefixes: Sequence[Sequence[int]], safe: Tensor, risky: Tensor, allowance: Tensor
    ) -> Served:
        free = torch.where(allowance > 0, torch.inf, 0.0).to(allowance)
        return super().serve(prefixes, safe, risky, free)


class _Lies(Anchored):
    """States half of what its law costs."""

    def serve(
        self, prefixes: Sequence[Sequence[int]], safe: Tensor, risky: Tensor, allowance: Tensor
    ) -> Served:
        law, charge, theta = super().serve(prefixes, safe, risky, allowance)
        return Served(law, charge / 2, theta)


class _Unnormalised(Anchored):
    """Serves twice a law."""

    def serve(
        self, prefixes: Sequence[Sequence[int]], safe: Tensor, risky: Tensor, allowance: Tensor
    ) -> Served:
        law, charge, theta = super().serve(prefixes, safe, risky, allowance)
        return Served(law + math.log(2), charge, theta)


@pytest.mark.parametrize(
    ("rule", "broke"),
    [
        pytest.param(Anchored, set(), marks=pytest.mark.full),
        (_Overspends, {"budget"}),
        (_Lies, {"charges"}),
        (_Unnormalised, {"normalises"}),
    ],
)
def test_a_step_level_rule_is_held_to_the_same_items(rule: type[Anchored], broke: set[str]) -> None:
    bench = WorldBench(WORLD, RuleDecoder(WORLD, rule(), rule.__name__), PROMPTS)
    # A rule is held to itself, in every number.
    trials = run_trials(bench, held_to=Promise.ANCHORED)
    assert _answered(judge(trials), Conforms.NO) == broke
