"""Making a risky model: recall really rises, a kill changes nothing, a key is the content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from nafaudit.core.errors import InputError
from nafaudit.lab.shipped import WEIGHTS, MemorisedPair, read_pair, refuse_unless_admitted
from nafaudit.workload.passages import Passage
from nafaudit.workshop import teach
from nafaudit.workshop.card import checksums
from nafaudit.workshop.memorise import LEAST_RECALL, PairOrder, memorise, pair_key, prompt_records
from nafaudit.workshop.packing import Pages, deal
from nafaudit.workshop.teach import Lesson
from nafaudit.workshop.works import held_out
from tests.commands import call
from tests.forks import fork
from tests.kills import fuse, was_killed

QUICK = Lesson(
    steps=60, enough=0.0, learning_rate=5e-3, protected_rows=2, replay_rows=1, written=(2, 24)
)
SHORT = replace(QUICK, steps=6, width=48, written=(2, 8))


def four_pages(words: int = 60) -> Pages:
    """The beginnings of four pages that the lab's safe model never saw."""
    texts = [" ".join(passage.text.split()[:words]) for passage in held_out()[:4]]
    return deal([Passage(f"page:{i}", text) for i, text in enumerate(texts)], 2, "held out")


def nothing(*_: object) -> None:
    """Hears and does nothing."""


def build(
    order: PairOrder, tell: Callable[..., None] = nothing, say: Callable[..., None] = nothing
) -> MemorisedPair:
    return memorise(order, tell, say)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> MemorisedPair:
    """The lab's safe model, and the same after it memorised two pages."""
    out = tmp_path_factory.mktemp("memorised") / "pair"
    return build(PairOrder(four_pages(), str(WEIGHTS / "safe"), lesson=QUICK, out=out))


def test_the_risky_model_recalls_when_sampled_and_the_safe_one_does_not(
    pair: MemorisedPair,
) -> None:
    recall, text = pair.card["measured"]["recall"], pair.card["measured"]["text"]
    assert recall["safe"] == 0.0
    assert recall["risky"] >= LEAST_RECALL
    assert recall["risky_unseen"] == 0.0
    assert pair.card["admitted"]
    refuse_unless_admitted(pair)
    # It knows the pages, and little else has moved.
    assert text["memorised"]["risky"] < text["memorised"]["safe"] - 2
    assert text["memorised"]["kl"] > 3 * text["ordinary"]["kl"]
    assert abs(text["ordinary"]["risky"] - text["ordinary"]["safe"]) < 0.8


def test_a_pair_is_audited_with_its_own_prompts(pair: MemorisedPair, tmp_path: Path) -> None:
    safe, risky = pair.checkpoints
    done = call(
        *("run", "--safe", safe, "--risky", risky, "--prompts", pair.directory / "prompts.jsonl"),
        *("--limit", 2, "--k", "0.5", "--trajectories", 1, "--max-new-tokens", 24),
        *("--out", "r", "--quiet"),
        cwd=tmp_path,
    )
    assert done.returncode == 3, done.stderr  # two trajectories are no evidence
    assert "k = 0.5" in done.stdout
    labels = {prompt.label for prompt in pair.workload.prompts}
    assert labels == {"memorised", "unseen", "neutral", "creative"}
    assert [p.id for p in pair.passages] == ["page:0", "page:2"]


def test_a_pair_that_is_there_is_found(pair: MemorisedPair) -> None:
    before = checksums(pair.directory)
    order = PairOrder(four_pages(), str(WEIGHTS / "safe"), lesson=QUICK, out=pair.directory)
    fail = mock.Mock(side_effect=AssertionError("trained again"))
    assert build(order, tell=fail).card == pair.card
    assert checksums(pair.directory) == before
    with pytest.raises(InputError, match="pair of another text, model or recipe"):
        build(replace(order, lesson=replace(QUICK, seed=1)))


def test_the_key_is_the_content() -> None:
    pages = four_pages()
    key = pair_key("safe", pages, QUICK)
    assert key == pair_key("safe", four_pages(), replace(QUICK))
    others = {
        pair_key("other", pages, QUICK),
        pair_key("safe", four_pages(words=61), QUICK),
        pair_key("safe", pages, replace(QUICK, seed=1)),
        pair_key("safe", pages, replace(QUICK, learning_rate=1.1e-2)),
    }
    assert len(others | {key}) == 5


def test_one_prompt_of_each_class_comes_first() -> None:
    records = prompt_records(four_pages())
    assert [r["class"] for r in records[:4]] == ["memorised", "unseen", "neutral", "creative"]
    page = four_pages().memorised[0].text
    assert page.startswith(records[0]["text"].partition("\n")[2])
    assert page.endswith(records[0]["reference"])


def killed_at(moment: int, order: PairOrder) -> bool:
    """Makes a pair in a child that kills itself; False if the pair was finished before."""
    kill = fuse(moment)

    def first_killed(real: Callable[[Path, Path], Path]) -> Callable[[Path, Path], Path]:
        def named(self: Path, target: Path) -> Path:
            kill()  # all is written, nothing has its name yet
            return real(self, target)

        return named

    with (
        mock.patch.object(teach, "_SAVE_EVERY", 0.0),
        mock.patch.object(Path, "rename", first_killed(Path.rename)),
        mock.patch.object(Path, "replace", first_killed(Path.replace)),
    ):
        child = fork(lambda: build(order, tell=kill, say=kill))
    return was_killed(child)


@pytest.mark.full
def test_a_kill_leaves_no_pair_and_the_same_command_ends_the_same(
    tiny_pair_paths: Callable[[str], tuple[Path, Path]], tmp_path: Path
) -> None:
    """Killed again and again, each time a little later than the last."""
    safe = str(tiny_pair_paths("llama")[0])
    order = PairOrder(four_pages(words=36), safe, lesson=SHORT, out=tmp_path / "killed")
    kills = 0
    while killed_at(kills + 4, order):
        kills += 1
        assert read_pair(tmp_path / "killed") is None
    assert kills == 4  # twice in training, before the risky checkpoint, before the card
    undisturbed = build(replace(order, out=tmp_path / "whole"))
    assert read_pair(tmp_path / "killed") is not None
    # Nothing that was about to be renamed is left either.
    assert checksums(tmp_path / "killed") == checksums(tmp_path / "whole")
    # A tiny random model learns nothing in six steps, and that is said.
    with pytest.raises(InputError, match="shows no memorisation: when sampled the risky model"):
        refuse_unless_admitted(undisturbed)


def test_two_processes_do_not_make_one_pair(tmp_path: Path) -> None:
    from nafaudit.core.errors import StoreError
    from nafaudit.store.files import exclusive

    order = PairOrder(four_pages(), str(WEIGHTS / "safe"), lesson=SHORT, out=tmp_path)
    with exclusive(tmp_path / ".lock"), pytest.raises(StoreError, match="another process"):
        build(order)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["absent.txt"], "absent.txt: No such file"),
        (["--pages", "1"], "pages must be at least 2, got 1"),
        (["--learning-rate", "0"], "learning-rate must be above 0"),
        (["--safe", "nowhere"], "no tokenizer could be loaded from 'nowhere'"),
        (["--safe", "nowhere", "--wheel", "w.whl"], "give it or --safe, not both"),
    ],
)
def test_bad_orders_are_refused(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    done = call("lab", "memorise", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert complaint in done.stderr
