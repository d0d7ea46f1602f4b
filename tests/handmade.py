"""Makes run directories by hand, without a model, for tests of what is shown of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nafaudit.core.design import Decoding, Design, Extent, Identity
from nafaudit.core.trajectory import Key, Trajectory
from nafaudit.store.run import Run, open_for_writing
from nafaudit.workload import Prompt, TokenizedPrompt, workload_hash
from tests.records import trajectory

MECHANISM = "anchored:debt=positives,n=5"
BUDGETS = (0.0, 0.5, 3.0, float("inf"))
WORDS = ["the ", "old ", "mill ", "turned ", "once ", "more ", "and ", "stopped ", "café ", "\n"]
# What execution 0 writes: seven ids further every step.
REFERENCE = "".join(WORDS[i * 7 % len(WORDS)] for i in range(60)).replace("\n", "")


def vocabulary(pieces: Sequence[str]) -> dict[str, Any]:
    """A vocabulary file; its last id is the stop token and has no text."""
    shown = [piece.encode(errors="surrogatepass").decode("latin-1") for piece in pieces]
    return {"pieces": [*shown, None], "special": [len(pieces)], "stops": [len(pieces)]}


def make_run(
    path: Path,
    prompts: Sequence[Prompt],
    trajectories: Sequence[Trajectory],
    pieces: Sequence[str] = WORDS,
    *,
    length: int = 60,
    part: int = 256,
) -> Run:
    """Writes a run of our own layout."""
    tokenized = [TokenizedPrompt(p, (1, 2, 3)) for p in prompts]
    identity = Identity(
        pair={"safe": "a" * 8, "risky": "b" * 8, "dtype": "float32"},
        mechanism=MECHANISM,
        ledger="banking",
        decoding=Decoding(length),
        workload=workload_hash(tokenized),
        width=128,
        seed=7,
    )
    budgets = tuple(sorted({t.key.k for t in trajectories}))
    count = 1 + max(t.key.trajectory for t in trajectories)
    extent = Extent(budgets, count, tuple(p.id for p in prompts))
    with open_for_writing(path, Design(identity, extent), tokenized, vocabulary(pieces)) as writer:
        writer.note_session({"nafaudit": "0.1.0", "torch": "0", "started": "then"})
        for start in range(0, len(trajectories), part):
            writer.append(trajectories[start : start + part])
    return Run(path)


def executions(prompt: str, number: int, length: int, pieces: int) -> list[Trajectory]:
    """One execution under every budget: half is spent, some steps are active."""
    found = []
    for k in BUDGETS:
        charge = {0.0: 0.0, float("inf"): 2.0}.get(k, 0.5 * k)
        theta = {0.0: 0.0, float("inf"): 1.0}.get(k, 0.5)
        weights = [theta] * length
        if 0 < k < float("inf"):
            weights = [(0.0, 0.5, 1.0)[i % 3] for i in range(length)]
        tokens = [(i * 7 + number) % pieces for i in range(length - 1)] + [pieces]
        found.append(
            trajectory(
                Key(prompt, MECHANISM, k, number),
                [charge] * length,
                theta=weights,
                token=tokens,
                stopped=True,
                allowance=[float("inf")] * length if k == float("inf") else None,
            )
        )
    return found


def plain_run(path: Path, prompts: int = 12, numbers: int = 2, length: int = 40) -> Run:
    """A small sound run of a few prompts in two classes, some with a reference."""
    given = [
        Prompt(
            f"p{i:03d}",
            f"Once upon a time there was {i}",
            ("story", "fact")[i % 2],
            REFERENCE if i % 2 == 0 else "",
        )
        for i in range(prompts)
    ]
    records = [
        one
        for p in given
        for n in range(numbers)
        for one in executions(p.id, n, length, len(WORDS))
    ]
    return make_run(path, given, records)
