"""How the paper's runner would have cut a class into batches: a fact about it, not about us.

It groups executions by their exact seed, buckets each group by prompt length and cuts buckets
into micro-batches of eight. A seed holds a hash of the prompt's id, so nearly every batch has
one row. Our rows are decoded as if each were alone, whatever the batch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from nafaudit.core.draws import trajectory_seeds

BATCH = 8
BUCKET_WIDTH = 32


def batch_sizes(lengths: Mapping[str, int], trajectories: int) -> Counter[int]:
    """How many batches of each size a class makes at one budget.

    Args:
        lengths: Prompt tokens by prompt id.
        trajectories: Executions per prompt.
    """
    rows: defaultdict[tuple[int, int], int] = defaultdict(int)
    for prompt, length in lengths.items():
        for seed in trajectory_seeds(prompt, trajectories):
            rows[seed, length // BUCKET_WIDTH] += 1
    sizes: Counter[int] = Counter()
    for count in rows.values():
        whole, rest = divmod(count, BATCH)
        sizes.update({BATCH: whole, rest: 1} if rest else {BATCH: whole})
    return +sizes
