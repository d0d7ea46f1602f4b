from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from nafaudit.core.errors import StoreError
from nafaudit.core.finding import Worth
from nafaudit.core.settings import RunSettings
from nafaudit.measures.audit import AuditResult
from nafaudit.models.checkpoints import load_tokenizer
from nafaudit.models.pair import load_pair
from nafaudit.runner.execute import run
from nafaudit.runner.recording import reference_tokens
from nafaudit.store.artifacts import PASSAGES, read_passages_file
from nafaudit.store.run import Run
from nafaudit.workload import Prompt, TokenizedPrompt, protected_prompts
from tests.records import judge_run

Paths = Callable[[str], tuple[Path, Path]]
REFERENCE = "would be ready before the bell rang."


@pytest.fixture
def settings(tiny_pair_paths: Paths, tmp_path: Path) -> RunSettings:
    safe, risky = tiny_pair_paths("llama")
    rows = [{"id": f"p{i}", "text": "The bread" * (i + 1), "reference": REFERENCE} for i in (0, 1)]
    rows.append({"id": "bare", "text": "How many lamps"})
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return RunSettings(
        safe=str(safe),
        risky=str(risky),
        prompts=str(tmp_path / "prompts.jsonl"),
        k=(0.5, 30.0),
        trajectories=1,
        max_new_tokens=6,
        out=str(tmp_path / "run"),
    )


def test_a_run_records_its_references_and_says_what_a_budget_is_worth(
    settings: RunSettings,
) -> None:
    outcome = run(replace(settings, limit=1))
    path = outcome.run.path / PASSAGES
    first = read_passages_file(path)
    assert first is not None
    assert [p.id for p in first.passages] == ["p0"]
    # Six tokens of a longer reference: no output can hold more.
    assert len(first.passages[0].surprisals) == 6 < first.passages[0].length
    words = {arm.k: (arm.worth, arm.passages.share) for arm in AuditResult.of(outcome.run).arms}
    assert words[0.5] == (Worth.INFORMATIVE, "1 of 1")
    assert words[30.0] == (Worth.VACUOUS, "1 of 1")
    # A larger extent adds to the file and leaves what was there; the same one leaves its bytes.
    outcome = run(settings)
    grown = read_passages_file(path)
    assert grown is not None
    assert [p.id for p in grown.passages] == ["p0", "p1"]
    assert grown.passages[0] == first.passages[0]
    before = path.stat().st_mtime_ns
    run(settings)
    assert path.stat().st_mtime_ns == before
    # check reads the same from the records, and notices an edit.
    again = judge_run(Run(outcome.run.path))
    assert [a.worth for a in again] == [a.worth for a in AuditResult.of(outcome.run).arms]
    path.write_bytes(path.read_bytes().replace(b'"id": "p0"', b'"id": "p9"'))
    with pytest.raises(StoreError, match="not what was written"):
        judge_run(Run(outcome.run.path))


def test_surprisals_are_those_of_the_prompts_continuation(settings: RunSettings) -> None:
    outcome = run(replace(settings, limit=1))
    scores = read_passages_file(outcome.run.path / PASSAGES)
    assert scores is not None
    assert settings.safe is not None and settings.risky is not None
    pair = load_pair(settings.safe, settings.risky)
    row = pair.tokenizer("The bread " + REFERENCE)["input_ids"]
    given = len(pair.tokenizer("The bread")["input_ids"])
    with torch.no_grad():
        law = torch.log_softmax(pair.safe(torch.tensor([row])).logits[0].double(), -1)
    slow = [-law[given - 1 + i, token].item() for i, token in enumerate(row[given : given + 6])]
    np.testing.assert_allclose(scores.passages[0].surprisals, slow, atol=1e-4)


@pytest.mark.parametrize(
    ("text", "reference", "joined"),
    [
        ("The bread", "would be", "The bread would be"),
        ("The bread", " would be", "The bread would be"),
        ("The bread\n", "would be", "The bread\nwould be"),
    ],
)
def test_a_reference_follows_its_prompt_with_one_gap(
    tiny_pair_paths: Paths, text: str, reference: str, joined: str
) -> None:
    tokenizer = load_tokenizer(tiny_pair_paths("llama")[0])
    prompt = tuple(tokenizer(text)["input_ids"])
    item = TokenizedPrompt(Prompt("p", text, "c", reference), prompt)
    tokens = reference_tokens(tokenizer, item, frozenset(tokenizer.all_special_ids))
    assert tokenizer.decode([*prompt[1:], *tokens]) == joined


def test_references_of_ordinary_classes_are_not_protected() -> None:
    def item(name: str, label: str, reference: str = "r") -> TokenizedPrompt:
        return TokenizedPrompt(Prompt(name, "t", label, reference), (0,))

    items = [item("a", "val"), item("b", "creative"), item("c", "val", " "), item("d", "songs")]
    assert [p.prompt.id for p in protected_prompts(items)] == ["a", "d"]


@pytest.mark.full
def test_the_labs_default_run_has_one_budget_that_says_nothing(tmp_path: Path) -> None:
    """24 protected references, 200 tokens: K = 50 and 200 say something, K = 2000 does not."""

    from nafaudit.core.design import Decoding
    from nafaudit.core.ledger import Banking
    from nafaudit.lab.prompts import lab_workload
    from nafaudit.measures.context import RunContext
    from nafaudit.measures.verdicts import Reach, worth
    from nafaudit.runner.recording import record_passages, score_passages
    from nafaudit.workshop.pair_facts import load_pair as load_lab

    pair = load_lab().pair
    prompts = [
        TokenizedPrompt(p, tuple(pair.tokenizer(p.text)["input_ids"]))
        for p in lab_workload().prompts[:48]
    ]
    score = partial(score_passages, pair, Decoding())
    record_passages(tmp_path, score, Decoding(), protected_prompts(prompts))
    facts = RunContext(
        Banking(), max_new_tokens=200, passages=read_passages_file(tmp_path / PASSAGES)
    )
    words = {k: Reach.of(facts, k) for k in (0.25, 1.0, 10.0)}
    assert [(reach.verdict, reach.share) for reach in words.values()] == [
        (Worth.INFORMATIVE, "24 of 24"),
        (Worth.INFORMATIVE, "24 of 24"),
        (Worth.VACUOUS, "24 of 24"),
    ]
    numbers = worth(words[1.0], facts).numbers
    assert numbers["surprisal_median"] == pytest.approx(628.6, abs=0.5)
    assert 2.7 < numbers["critical_k_min"] < numbers["critical_k_median"] < 3.6
