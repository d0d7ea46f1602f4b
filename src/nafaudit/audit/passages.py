"""Scores a run's protected references once, so that its records can say what a budget is worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nafaudit.core.design import Decoding
from nafaudit.core.passage import PassageScores, ScoredPassage
from nafaudit.engine.lanes import Scorer
from nafaudit.models.pair import Pair
from nafaudit.store.artifacts import PASSAGES, read_passages_file, write_passages
from nafaudit.workload import TokenizedPrompt

CONTEXT = "the prompt as the run gives it; a space if neither it nor the reference has one there"


def record_passages(
    path: Path,
    score: Callable[[Sequence[TokenizedPrompt]], list[ScoredPassage]],
    decoding: Decoding,
    prompts: Sequence[TokenizedPrompt],
) -> None:
    """Writes the surprisals of the prompts' references, as far as an output can reach.

    What is recorded already stays; the file is written only if something is new.

    Args:
        path: Run directory.
        score: Asks the safe model.
        decoding: Warps of the law that charges are against.
        prompts: Those with a protected reference.
    """
    recorded = read_passages_file(path / PASSAGES)
    known = {p.id: p for p in recorded.passages} if recorded else {}
    if added := score([item for item in prompts if item.prompt.id not in known]):
        passages = (*known.values(), *added)
        write_passages(path / PASSAGES, PassageScores(CONTEXT, decoding.anchor, passages))


def score_passages(
    pair: Pair, decoding: Decoding, prompts: Sequence[TokenizedPrompt]
) -> list[ScoredPassage]:
    """The surprisals themselves; a reference without tokens has none.

    Args:
        pair: Whose safe model is asked.
        decoding: Warps of the law that charges are against, and the length limit T.
        prompts: Those with a protected reference.
    """
    scorer = Scorer(pair.safe, pair.vocabulary, decoding, context=pair.context)
    scored = (_score(scorer, pair, item, decoding.max_new_tokens) for item in prompts)
    return [passage for passage in scored if passage is not None]


def _score(scorer: Scorer, pair: Pair, item: TokenizedPrompt, longest: int) -> ScoredPassage | None:
    tokens = reference_tokens(pair.tokenizer, item, pair.vocabulary.special)
    if not tokens:
        return None
    surprisals = scorer.surprisals(item.tokens, tokens[:longest])
    return ScoredPassage(item.prompt.id, len(tokens), tuple(surprisals.tolist()))


def reference_tokens(
    tokenizer: Any, item: TokenizedPrompt, special: frozenset[int]
) -> tuple[int, ...]:
    """The ids that follow the prompt's own if its reference is written after it."""
    prompt, reference = item.prompt.text, item.prompt.reference
    gap = "" if prompt[-1:].isspace() or reference[:1].isspace() else " "
    joined = list(tokenizer(prompt + gap + reference)["input_ids"])
    while joined and joined[-1] in special:
        joined.pop()
    size = len(item.tokens)
    if tuple(joined[:size]) == item.tokens:
        return tuple(joined[size:])
    # The prompt's last token would merge with the reference; the decoder cannot take it back.
    return tuple(tokenizer(gap + reference, add_special_tokens=False)["input_ids"])
