"""What a search needs before its first draw: prompts, models, protected text, features.

Whatever is wrong with the settings is said here, before a model loads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from nafaudit.audit.prepare import mechanism_of
from nafaudit.core.errors import InputError
from nafaudit.search.candidate import Candidate
from nafaudit.search.claim import check_claim, directory_of
from nafaudit.search.embeddings import embedder, sklearn
from nafaudit.search.evaluate import Bench, Words, load_bench, others_of, passages_of, seeds_of
from nafaudit.search.features import PromptFeatures
from nafaudit.search.instruct.chat import Chat
from nafaudit.search.instruct.choose import chat_of
from nafaudit.search.pools import Pools, divide
from nafaudit.search.settings import SearchSettings
from nafaudit.workload.passages import Passage


@dataclass(frozen=True)
class Prepared:
    """What every budget of a search shares.

    Attributes:
        settings: What was asked for.
        bench: Models and engine.
        pools: The workload, divided.
        references: What outputs are compared with, by the text of a prompt.
        passages: Protected text.
        features: What a surrogate sees; None if it is off.
        chat: A model that proposes; None for the local operators.
    """

    settings: SearchSettings
    bench: Bench
    pools: Pools
    references: Mapping[str, str]
    passages: tuple[Passage, ...]
    features: PromptFeatures | None
    chat: Chat | None

    def at(self, settings: SearchSettings) -> Prepared:
        """The same for other settings with the same decoding, such as another budget."""
        return replace(self, settings=settings, bench=replace(self.bench, settings=settings))

    @property
    def path(self) -> Path:
        """The run directory."""
        return directory_of(self.settings, self.bench.identity.hash)


def prepare(settings: SearchSettings) -> Prepared:
    """Reads prompts and loads models; whatever is wrong is said before a model loads."""
    mechanism_of(settings)
    check_claim(settings)
    sklearn("feature_extraction.text")
    prompts, passages = seeds_of(settings), passages_of(settings)
    words = Words(settings)
    others = [Candidate(p.id, p.text, p.label) for p in others_of(settings, words)]
    seeds = [Candidate(p.id, p.text, p.label) for p in prompts]
    pools = divide(seeds, settings, words.count, others)
    if len(pools.usable) < 2 or not pools.heldout:
        raise InputError(
            f"a search needs at least 3 different prompts of {settings.shortest} to "
            f"{settings.longest} tokens, the workload has "
            f"{len(pools.usable) + len(pools.heldout)}; give more, or another --shortest."
        )
    sees = embedder([one.text for one in pools.usable], settings.embedding)
    chat = chat_of(settings)
    bench = load_bench(settings, words, prompts)
    features = None
    if settings.surrogate != "off":
        features = PromptFeatures(
            bench.pair, settings.decoding, settings.debt_rule, words.ids, sees,
            context=words.width,
        )  # fmt: skip
    references = {p.text: p.reference for p in prompts if p.reference}
    return Prepared(settings, bench, pools, references, tuple(passages), features, chat)
