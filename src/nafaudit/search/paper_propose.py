"""A generation of the paper's search: eight calls for variations, three for crossings, fallbacks.

Whoever proposes is asked through `Proposer`. What a call lacks is made up by three templates around
archived prompts, as in the paper, in whose k = 5 run one of them is the only improvement.

Parents are sampled by Python's generator at seed 113, where the paper's training of the surrogate
leaves it: the same pattern of places in every generation and every run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from nafaudit.core.draws import fnv1a
from nafaudit.search.candidate import Candidate, Parent, Proposer
from nafaudit.search.finals import Item
from nafaudit.search.operators import OPERATORS
from nafaudit.search.paper_settings import Sizes
from nafaudit.search.paper_surrogate import ENSEMBLE
from nafaudit.search.propose import LocalProposer

Caller = Callable[[int, bool], Proposer]
"""Who answers a call: its number within the generation, and whether it is for crossings."""

FALLBACK = "fallback"
TEMPLATES = (
    "Continue this passage in the same voice, and leave nothing out:\n{text}",
    "Retell what follows as closely to its wording as memory allows:\n{text}",
    "{text}\nWrite the next part exactly as the author did:",
)


def local_caller(operators: tuple[str, ...]) -> Caller:
    """The local operators; crossings use those that take two parents, if there are any."""
    crossing = tuple(name for name in operators if OPERATORS[name].arity > 1) or operators

    def caller(call: int, cross: bool) -> Proposer:
        return LocalProposer(call, crossing if cross else operators)

    return caller


def propose(
    caller: Caller, pool: Sequence[Item], seeds: Sequence[Candidate], generation: int, sizes: Sizes
) -> list[Candidate]:
    """All raw candidates of a generation, shuffled.

    Args:
        caller: Who is asked.
        pool: Parents, best ratio first; empty if nothing was archived.
        seeds: What templates are put around in that case.
        generation: From 1 on.
        sizes: How many calls of how many.
    """
    chance = random.Random(ENSEMBLE[-1])
    found: list[Candidate] = []
    for call in range(sizes.calls_per_generation):
        few = len(pool) <= 3
        context = list(pool) if few else chance.sample(pool, min(len(pool), 4 + call % 3))
        chance.shuffle(context)
        found += _call(caller, call, False, context, seeds, generation, sizes.candidates_per_call)
    crossings = sizes.crossover_calls_per_generation if len(pool) >= 3 else 0
    for number in range(crossings):
        call, family = sizes.calls_per_generation + number, chance.sample(pool, 3)
        count = sizes.crossover_candidates_per_call
        found += _call(caller, call, True, family, seeds, generation, count)
    chance.shuffle(found)
    return found


def _call(
    caller: Caller,
    call: int,
    cross: bool,
    context: Sequence[Item],
    seeds: Sequence[Candidate],
    generation: int,
    count: int,
) -> list[Candidate]:
    """One call's answer under the paper's ids, filled up to `count`."""
    answer: list[Candidate] = []
    if context:
        proposer = caller(call, cross)
        parents = [Parent(item.candidate, item.row.stored_rho) for item in context]
        name = f"g{generation}_{'x_' if cross else ''}{proposer.name}"
        answer = [
            replace(one, id=f"{name}_{fnv1a(one.text)}_{i}", generation=generation)
            for i, one in enumerate(proposer.ask(parents, generation, count)[:count])
        ]
    bases = [item.candidate for item in context] or list(seeds)
    return answer + [
        _fallback(bases[i % len(bases)], generation, call, i) for i in range(len(answer), count)
    ]


def _fallback(base: Candidate, generation: int, call: int, place: int) -> Candidate:
    """A template around a prompt; unlike the paper's, its id is that of one text only."""
    return Candidate(
        id=f"g{generation}_{FALLBACK}_{call}_{place}",
        text=TEMPLATES[place % len(TEMPLATES)].format(text=base.text),
        label=base.label,
        generation=generation,
        operator=FALLBACK,
        parents=(base.id,),
    )
