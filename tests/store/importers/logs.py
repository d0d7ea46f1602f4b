"""Small logs of every foreign schema, written by hand from their lists of fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

K, DEBT, LIMIT = 1.0, 1.5, 8


def step(t: int, k_t: float, a_t: float, spent: float, **more: Any) -> dict[str, Any]:
    """One step of the paper's log; `spent` is the charge before it."""
    granted = (t + 1) * K - DEBT
    return {
        "t": t,
        "k_t": k_t,
        "a_t": a_t,
        "a_t_recomputed": a_t,
        "lambda": None,
        "budget_remaining": granted - spent - a_t,
        "budget_so_far": granted,
        "cum_kl_spent": spent + a_t,
        "sampled_token": "x",
        "sampled_token_id": 10 + t,
        "p_star_prob": 0.5,
        "p_s_prob": 0.25,
        "p_risky_prob": 0.75,
        "bc": 1.0 if k_t == 0 else 0.4,
        "bd": 0.0 if k_t == 0 else 0.6,
    } | more


def steps(pads: int = 0) -> list[dict[str, Any]]:
    """Five own steps (one forced by the debt), then pads as a batch logs them."""
    rows, spent = [], 0.0
    for t in range(5):
        k_t = max(0.0, (t + 1) * K - DEBT - spent)
        a_t = 0.5 * k_t
        rows.append(step(t, k_t, a_t, spent))
        spent += a_t
    rows += [step(t, 0.0, 0.0, spent, sampled_token_id=2) for t in range(5, 5 + pads)]
    return rows


def record(
    prompt: str = "p0", number: int = 0, pads: int = 0, rows: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """One line of the paper's log."""
    rows = steps(pads) if rows is None else rows
    spend = rows[-1]["cum_kl_spent"] if rows else 0.75
    budget = rows[-1]["budget_so_far"] if rows else 3.5
    return {
        "metadata": {
            "prompt_id": prompt,
            "domain": "d",
            "split": "test",
            "novel_source": None,
            "model_pair": "m",
            "target_model": "r",
            "anchor_model": "s",
            "level": "token",
            "k": K,
            "K": K * LIMIT,
            "T_max": LIMIT,
            "B_max": None,
            "n": 5,
            "seed": 42 + number,
            "trajectory_id": number,
            "timestamp": "2026-01-01T00:00:00Z",
        },
        "prefix_analysis": {
            "delta_init": DEBT,
            "true_prefix_debt": DEBT,
            "init_budget_tensor": -DEBT,
            "prefix_text": "words before the first that is written",
            "prefix_length_tokens": 7,
        },
        "per_step_log": rows,
        "aggregate": {
            "total_spend": spend,
            "generation": f"written {prompt} {number}",
            "full_text": "",
            "generation_length_tokens": 5,
            "generation_length_bytes": 9,
            "rouge_l": 0.0,
            "minhash_5gram": 0.0,
            "fluency_score": None,
            "final_budget": budget,
            "budget_utilization": spend / budget,
        },
        "source_record": {"id": prompt},
    }


def history(pads: int = 3, batch: int = 2) -> list[dict[str, Any]]:
    """The published decoder's history; the last row is done before the others."""
    names = {"kl_to_safe": "a_t", "k_t": "k_t", "bc": "bc", "bd": "bd"}
    names |= {"cum_kl_spent": "cum_kl_spent", "budget_so_far": "budget_so_far"}
    short = steps(pads)
    full, spent = [], 0.0
    for t in range(5 + pads):
        k_t = max(0.0, (t + 1) * K - DEBT - spent)
        full.append(step(t, k_t, 0.5 * k_t, spent))
        spent += 0.5 * k_t
    return [
        {"step": t, "kl_to_risky": [0.1] * batch}
        | {
            ours: [full[t][theirs]] * (batch - 1) + [short[t][theirs]]
            for ours, theirs in names.items()
        }
        for t in range(5 + pads)
    ]


def query(attempt: int = 0, window: int = 3, **more: Any) -> dict[str, Any]:
    """One query of an attack."""
    return {
        "k": 3,
        "mode": "chained",
        "L": 50,
        "prompt_id": "p0",
        "window": window,
        "attempt": attempt,
        "Z": 100.0 + attempt,
        "B": 143.0,
        "K": 150.0,
        "delta_init": 7.0,
        "R": 90.0,
        "n_tokens": 50,
        "matched": 4,
        "text": f"text {attempt}",
        "steps": 50,
        "forced": 2,
        "free": 40,
    } | more


def candidate(**more: Any) -> dict[str, Any]:
    """One Stage 2 record."""
    return {
        "candidate_id": "c1",
        "generation": 999,
        "prompt_text": "a prompt",
        "N": 3,
        "spends": [10.0, 20.0, 20.0],
        "final_budgets": [593.0, 593.0, -4.5],
        "delta_inits": [7.0, 7.0, 7.0],
        "mean_spend": 16.7,
        "candidate_valid": True,
    } | more


def item(name: str = "i0", **more: Any) -> dict[str, Any]:
    """One item of the published decoder's fork."""
    return {
        "id": name,
        "title": "t",
        "input": "in",
        "reference": "ref",
        "output": f"out {name}",
        "total_kl_to_safe_per_seq": [40.0],
        "total_kl_to_risky_per_seq": [9.0],
        "final_cum_kl_spent_per_seq": [40.0],
        "final_budget_per_seq": [43.0],
        "budget_utilization_per_seq": [100 * 40.0 / 43.0],
    } | more


TABLE = "id,k,spend,budget,budget_utilization_percent\na,1,3.0,6.0,50\nb,1,,6.0,\nc,-1,9.5,,\n"


def write(path: Path, *rows: object) -> Path:
    """JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def every_schema(directory: Path) -> dict[str, Path]:
    """A valid log of every schema, by its name."""
    directory.mkdir(parents=True, exist_ok=True)
    array = directory / "steps.json"
    array.write_text(json.dumps(history()))
    items = directory / "clip_0.5_literal_gen.json"
    items.write_text(json.dumps([item("i0"), item("i1")], indent=1))
    table = directory / "table.csv"
    table.write_text(TABLE)
    return {
        "trajectories": write(
            directory / "trajectories_k1_test.jsonl", record(), record("p1", 1, 2)
        ),
        "history": array,
        "heldout": write(directory / "heldout_k3.jsonl", candidate()),
        "queries": write(directory / "queries.jsonl", query(), query(1)),
        "items": items,
        "table": table,
    }
