"""Audits a decoder by its log alone: no models, no torch.

    python examples/log_without_models.py

Writes decoder.jsonl, a log of totals as another program may have written it (one trajectory per
line), and judges it. Logs of other forms: docs/foreign-logs.md.
"""

import json
import random
from pathlib import Path

import nafaudit

TOKENS, K = 50, 0.5


def write_log(path: Path) -> None:
    """Writes six trajectories of four prompts each; one of them spends too much."""
    draw = random.Random(0)
    with path.open("w", encoding="utf-8") as log:
        for prompt in ("poem", "recipe", "review", "song"):
            for trajectory in range(6):
                spend = draw.uniform(0.4, 0.9) * K * TOKENS
                if (prompt, trajectory) == ("song", 3):
                    spend = 1.2 * K * TOKENS
                row = {"prompt_id": prompt, "trajectory": trajectory, "k": K, "spend": spend,
                       "budget": K * TOKENS, "length": TOKENS, "T_max": TOKENS}  # fmt: skip
                log.write(json.dumps(row) + "\n")


def main() -> None:
    path = Path("decoder.jsonl")
    write_log(path)
    run = nafaudit.check(path)
    print(f"{run.verdict}: {run.why}\n")

    print("prompt   trajectories   mean use   largest use   over budget")
    rows = run.measures().select(["prompt", "use", "violated"]).to_pylist()
    for prompt in sorted({row["prompt"] for row in rows}):
        own = [row for row in rows if row["prompt"] == prompt]
        use = [row["use"] for row in own]
        over = sum(row["violated"] for row in own)
        mean, most = sum(use) / len(use), max(use)
        print(f"{prompt:6}   {len(own):12}   {mean:8.2f}   {most:11.2f}   {over:11}")


if __name__ == "__main__":
    main()
