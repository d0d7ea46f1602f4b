"""Whole attacks on a tiny pair, which has memorised nothing: machinery, verdicts, kills."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from nafaudit.core.errors import InputError
from nafaudit.core.text import plain
from nafaudit.core.trajectory import Trajectory
from nafaudit.lab.tiny import SENTENCES
from nafaudit.store.artifacts import read_passages_file
from nafaudit.store.run import Run
from nafaudit.views.worth import write_attack
from nafaudit.workload.passages import Passage
from nafaudit.worth.attack import run_attack
from nafaudit.worth.attack_result import AttackResult, attack_result
from nafaudit.worth.settings import AttackSettings
from tests.commands import call
from tests.kills import kill_at, moments_of

Paths = Callable[[str], tuple[Path, Path]]
SIZES: dict[str, Any] = {
    "k": (2.0,), "given": 6, "window": (36,), "max_new_tokens": 72, "limit": 3, "ablation": False,
}  # fmt: skip
OVERSPENDS = """
from nafaudit.mechanisms.anchored import Anchored

class Over:
    def serve(self, prefixes, safe, risky, allowance):
        return Anchored().serve(prefixes, safe, risky, 2 * allowance)
"""


def passages() -> list[Passage]:
    chance, words = random.Random(5), " ".join(SENTENCES).split()
    return [Passage(f"p{i}", " ".join(chance.choices(words, k=34))) for i in range(12)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("attack")
    (directory / "p.txt").write_text("\n\n".join(one.text for one in passages()))
    (directory / "over.py").write_text(OVERSPENDS)
    return directory


@pytest.fixture(scope="module")
def settings(place: Path, tiny_pair_paths: Paths) -> Callable[..., AttackSettings]:
    safe, risky = tiny_pair_paths("llama")

    def make(out: str, **more: Any) -> AttackSettings:
        given = {"safe": str(safe), "risky": str(risky), "out": str(place / out)}
        return AttackSettings(**SIZES | given | more)

    return make


@pytest.fixture(scope="module")
def opened() -> Iterator[None]:
    """The gate is for models that have memorised something; here the machinery is tested."""
    with mock.patch("nafaudit.worth.attack.ADMISSION", 0.0):
        yield


def attacked(settings: AttackSettings) -> AttackResult:
    found = attack_result(run_attack(passages(), settings, lambda told: None))
    write_attack(found)
    return found


@pytest.fixture(scope="module")
def undisturbed(settings: Callable[..., AttackSettings], opened: None) -> tuple[AttackResult, int]:
    """An attack that nobody disturbed, and how many moments it has."""
    return moments_of(lambda: attacked(settings("whole")))


@pytest.fixture(scope="module")
def whole(undisturbed: tuple[AttackResult, int]) -> AttackResult:
    return undisturbed[0]


@pytest.fixture(scope="module")
def moments(undisturbed: tuple[AttackResult, int]) -> int:
    return undisturbed[1]


def records(path: Path) -> dict[tuple[object, ...], Trajectory]:
    return {tuple(one.key): one for one in Run(path).trajectories()}


def test_a_pair_that_recalls_nothing_is_not_attacked(place: Path, tiny_pair_paths: Paths) -> None:
    safe, risky = tiny_pair_paths("llama")
    models = ("--safe", safe, "--risky", risky)
    options = (*models, "--given", 6, "--max-new-tokens", 72, "--limit", 3)
    done = call("attack", "p.txt", *options, "--out", "gate", "--quiet", cwd=place)
    assert done.returncode == 3 and "not admitted: this model" in done.stdout
    # Nothing was spent on budgets that could not have said anything.
    assert {one.key.k for one in Run(place / "gate" / "single").trajectories()} == {math.inf}
    assert not (place / "gate" / "oracle50").exists()
    data = json.loads((place / "gate" / "attack.json").read_text())
    assert data["admitted"] is False and data["outcome"] == "INCONCLUSIVE"


def test_every_answer_is_an_ordinary_record_and_every_number_follows(
    place: Path, whole: AttackResult
) -> None:
    names = {path.name for path in whole.runs}
    assert names == {"single", "oracle36", "chained36"}
    data = plain(whole)
    # Six answers of a budget are too few for a verdict; the lab has enough, below.
    assert data["outcome"] == "INCONCLUSIVE" and data["violations"] == 0
    lines = [json.loads(line) for line in (place / "whole" / "queries.jsonl").open()]
    held = {name: records(place / "whole" / name) for name in names}
    assert len(lines) == sum(row["trajectories"] for row in data["rows"])
    assert len(lines) == sum(map(len, held.values()))
    for line in lines:
        mechanism = next(iter(held[line["mode"]]))[1]
        key = (line["query"], mechanism, float(line["k"]), line["attempt"])
        one = held[line["mode"]][key]
        assert line["Z"] == one.spend and line["n_tokens"] == len(one)
        if line["k"] == 2.0:
            assert line["Z"] <= line["B"] * (1 + 1e-6) + 1e-6
            assert line["B"] == pytest.approx(max(0.0, 2 * len(one) - one.debt))
    assert all("text" not in line for line in lines)
    # A chain's second prompt is the first and what was kept of its answers.
    prompts = {one.prompt.id: one.tokens for one in Run(place / "whole" / "chained36").prompts()}
    chained = held["chained36"]
    first, second = prompts["p0@0"], prompts["p0@36/k2"]
    outputs = [t.steps.token.tolist() for key, t in chained.items() if key[0] == "p0@0"]
    assert list(second[len(first) :]) in [out[: len(second) - len(first)] for out in outputs]


def test_its_runs_can_be_checked_and_verified(place: Path, whole: AttackResult) -> None:
    for name in ("single", "oracle36", "chained36"):
        done = call("check", place / "whole" / name, "--json", cwd=place)
        kept = {row["kept"] for row in json.loads(done.stdout)["verdicts"]}
        assert kept <= {"WITHIN", "INCONCLUSIVE"}
    done = call("verify", "whole/chained36", "--sample", 4, "--sampler", 0, "--quiet", cwd=place)
    assert done.returncode == 0, done.stdout
    # The query log is one of the schemas that `check` reads.
    log = call("check", "whole/queries.jsonl", "--json", cwd=place)
    assert log.returncode in (0, 3), log.stderr
    assert all(row["violations"] == 0 for row in json.loads(log.stdout)["verdicts"])


def test_ways_to_attack_share_their_draws(place: Path, whole: AttackResult) -> None:
    single, oracle, chained = (
        records(place / "whole" / name) for name in ("single", "oracle36", "chained36")
    )
    shared = [key for key in oracle if str(key[0]).endswith("@0")]
    assert len(shared) == 18
    for key in shared:
        assert oracle[key].same_as(chained[key])
        tokens = single[key].steps.token[:36].tolist()
        assert tokens == oracle[key].steps.token.tolist()


@pytest.mark.full
def test_nothing_depends_on_the_batch(
    place: Path, settings: Callable[..., AttackSettings], whole: AttackResult
) -> None:
    again = attacked(settings("again", batch=5))
    for name in ("queries.jsonl", "passages.csv", "recall.svg"):
        one, other = (place / out / name for out in ("whole", "again"))
        assert one.read_bytes() == other.read_bytes()
    mine, theirs = (plain(one) for one in (again, whole))
    assert {**mine, "attack": 0, "runs": 0} == {**theirs, "attack": 0, "runs": 0}


# While the gate is recorded, in the single answers, with an oracle, in a chain.
@pytest.mark.parametrize(
    "share", [0.8, *(pytest.param(s, marks=pytest.mark.full) for s in (0.2, 0.35, 0.5, 0.65, 0.95))]
)
def test_a_killed_attack_ends_where_an_undisturbed_one_ends(
    share: float,
    place: Path,
    settings: Callable[..., AttackSettings],
    whole: AttackResult,
    moments: int,
) -> None:
    out = f"killed{share}"
    kill_at(round(share * moments), lambda: attacked(settings(out)))
    attacked(settings(out))
    for name in ("single", "oracle36", "chained36"):
        one, other = records(place / out / name), records(place / "whole" / name)
        assert one.keys() == other.keys()
        assert all(one[key].same_as(other[key]) for key in one)


@pytest.mark.full
def test_more_passages_and_budgets_continue_the_same_attack(
    place: Path, settings: Callable[..., AttackSettings], opened: None
) -> None:
    small = {"modes": ("single",), "trajectories": 1}
    attacked(settings("grown", **small, limit=2))
    before = set(records(place / "grown" / "single"))
    grown = attacked(settings("grown", **small, limit=3, ablation=True, k=(2.0, 4.0)))
    after = set(records(place / "grown" / "single"))
    assert before < after
    # Without its debt a budget is another mechanism; a model alone owes nothing either way.
    free = records(place / "grown" / "single-nodebt")
    assert {key[2] for key in free} == {2.0, 4.0} and all(one.debt == 0 for one in free.values())
    assert {row.k for row in grown.rows} == {0.0, 2.0, 4.0, math.inf}
    assert call("check", place / "grown" / "single", "--json", cwd=place).returncode in (0, 3)


def test_a_violation_is_the_result(
    place: Path,
    settings: Callable[..., AttackSettings],
    opened: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(place)
    bad = attacked(settings("bad", mechanism="over.py:Over", modes=("single",), k=(0.5,), limit=2))
    assert plain(bad)["outcome"] == "VIOLATED" and bad.violations > 0
    assert call("check", place / "bad" / "single", cwd=place).returncode == 1


def slow_cap(surprisal: float, budget: float) -> float:
    """The largest p with d(p || e^-S) <= K, by bisection on its definition."""

    def divergence(p: float) -> float:
        rest = (1 - p) * (math.log1p(-p) - math.log1p(-math.exp(-surprisal))) if p < 1 else 0.0
        return p * (math.log(p) + surprisal) + rest

    if divergence(1.0) <= budget:
        return 1.0
    low, high = math.exp(-surprisal), 1.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if divergence(middle) <= budget else (low, middle)
    return low


def test_the_certificate_is_vacuous_from_where_the_maths_says(
    place: Path, settings: Callable[..., AttackSettings], whole: AttackResult
) -> None:
    scores = read_passages_file(whole.runs[0] / "passages.jsonl")
    assert scores is not None and len(scores) == 3
    length = whole.methods[0].length
    surprisals = [one.surprisal(length) for one in scores.passages]

    def is_vacuous(k: float) -> bool:
        return 2 * sum(slow_cap(s, k * length) == 1.0 for s in surprisals) >= len(surprisals)

    low, high = 0.0, 100.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if is_vacuous(middle) else (middle, high)
    assert whole.critical_k == pytest.approx(high, rel=1e-9)
    sides = {"modes": ("single",), "trajectories": 1, "k": (high * 0.999, high * 1.001)}
    found = attacked(settings("threshold", **sides))
    verdicts = [row.worth for row in found.rows]
    assert verdicts == ["INFORMATIVE", "INFORMATIVE", "VACUOUS", "VACUOUS"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--modes", "oracel"), "oracle"),
        (("--k", "0"), "budget above 0"),
        (("--window", "5.5"), "whole numbers"),
        (("--mechanism", "anchord"), "anchored"),
        (("--target", "2"), "target"),
        (("--user-budget", "many"), "user-budget"),
        (("--given", "140"), "words"),
        (("--given", "500"), "--given"),
        (("none.txt",), "none.txt"),
        (("--max-new-tokens", "0"), "max-new-tokens"),
    ],
)
def test_bad_input_is_said_before_a_model_loads(
    options: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    with mock.patch("nafaudit.models.pair.load_model", side_effect=AssertionError):
        done = call("attack", *options, cwd=tmp_path)
    assert done.returncode == 2 and says in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.full
def test_on_the_lab_recall_rises_from_the_safe_model_to_the_risky_one(tmp_path: Path) -> None:
    options = ("--k", "1,5,20", "--limit", 10, "--modes", "oracle")
    done = call("attack", *options, "--json", "--quiet", "--out", tmp_path / "a", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["violations"] == 0 and data["admission"]["recall"] > 0.5
    for mode in ("single", "oracle"):
        rows = [row for row in data["rows"] if row["mode"] == mode and row["debt"]]
        recalls = [row["recall"] for row in rows]
        assert recalls == sorted(recalls)
        assert recalls[0] == 0 and recalls[1] < 0.05 and recalls[-1] > 0.6
    # Without the debt the same budget gives away more (0.50 against 0.30 at k = 5).
    free = next(r for r in data["rows"] if r["k"] == 5 and not r["debt"] and r["mode"] == "single")
    owed = next(r for r in data["rows"] if r["k"] == 5 and r["debt"] and r["mode"] == "single")
    assert free["recall"] > owed["recall"]


def test_an_attack_goes_on_with_another_choice_of_debts_and_says_whose_bits_it_mixes(
    place: Path, settings: Callable[..., AttackSettings], opened: None
) -> None:
    small = {"modes": ("single",), "trajectories": 1, "limit": 1}
    attacked(settings("debts", **small, prefix_debt=False))
    # The same machine, which is not taken for another one.
    both = attacked(settings("debts", **small, ablation=True))
    assert {path.name for path in both.runs} == {"single", "single-nodebt"}
    assert not both.mixed and "mixed" not in plain(both)
    sessions = place / "debts" / "single-nodebt" / "sessions.jsonl"
    first, *others = map(json.loads, sessions.read_text().splitlines())
    first["probe"]["digest"] = "of another CPU"
    sessions.write_text("".join(json.dumps(one) + "\n" for one in (first, *others)))
    with pytest.raises(InputError, match="another arithmetic"):
        attacked(settings("debts", **small, ablation=True))
    mixed = attacked(settings("debts", **small, ablation=True, mixed=True))
    assert "2 different arithmetics" in plain(mixed)["mixed"]
