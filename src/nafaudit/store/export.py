"""Exports a run as the paper's JSON Lines, or a table of it, so that other tools can read it.

In JSON Lines floats are written with all their digits. What the paper's schema cannot carry
(logarithms of probabilities, whether a stop token ended the row) is in fields of its own beside it,
so that importing an export gives back every record.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from nafaudit.core.errors import InputError
from nafaudit.core.ledger import budget_word, ledger_of
from nafaudit.core.text import detokenize
from nafaudit.core.trajectory import STEP_TYPES, Logged, Trajectory
from nafaudit.store.artifacts import OWN_FILES, PASSAGES, LoggedTexts, read_texts
from nafaudit.store.files import whole_directory, whole_file, write_whole
from nafaudit.store.importers.entry import claims_of
from nafaudit.store.run import Run
from nafaudit.workload import TokenizedPrompt


def export_run(run: Run, out: Path) -> list[Path]:
    """Writes `trajectories_k{k:g}_{class}.jsonl` files, and scored passages; returns them.

    Raises:
        InputError: `out` exists.
        StoreError: It cannot be written; nothing is left behind.
    """
    prompts = {prompt.prompt.id: prompt for prompt in run.prompts()}
    design = run.design["identity"]
    vocabulary = {
        "tokens": [None if p is None else p.decode(errors="replace") for p in run.pieces],
        "pieces": run.pieces,
        "stops": sorted(run.stops),
        "logged": read_texts(run),
    }
    names = set()
    with whole_directory(out) as beside:
        if (run.path / PASSAGES).is_file():
            names.add(copy_passages(run, beside))
        for trajectory in run.trajectories():
            prompt = prompts.get(trajectory.key.prompt)
            label = prompt.prompt.label if prompt is not None else "prompt"
            k = budget_word(as_paper(trajectory.key.k))
            name = f"trajectories_k{k}_{file_word(label)}.jsonl"
            names.add(name)
            row = as_row(trajectory, prompt, design, vocabulary)
            # Opened for each record: classes times budgets may be more files than may be open.
            with (beside / name).open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")
    return [out / name for name in sorted(names)]


def copy_passages(run: Run, directory: Path) -> str:
    """Writes the scored passages of a run below its logs, where an import finds them.

    Not beside them: scripts read every `*.jsonl` there as trajectories.
    """
    (directory / OWN_FILES).mkdir()
    write_whole(directory / OWN_FILES / PASSAGES, (run.path / PASSAGES).read_bytes())
    return f"{OWN_FILES}/{PASSAGES}"


def table_path(path: Path, option: str, run: Run) -> Path:
    """Checks where a table is to go.

    Raises:
        InputError: It ends neither with .parquet nor with .csv, is a directory, has none to go
            into, or would stand among the parts of the run.
    """
    if path.suffix not in (".parquet", ".csv"):
        raise InputError(
            f"{option} {path} ends with {path.suffix or 'no suffix'!r}; give a name that ends with "
            ".parquet or .csv, which decides what is written."
        )
    if path.is_dir() or not path.parent.is_dir():
        what = f"{path} is a directory" if path.is_dir() else f"there is no directory {path.parent}"
        raise InputError(f"{option}: {what}; give the name of a file in a directory that is there.")
    if path.parent.resolve() == (run.path / "parts").resolve():
        raise InputError(
            f"{option} {path} would stand among the parts of the run, whose files are its records; "
            "give a file in another directory."
        )
    return path


def write_table(table: pa.Table, path: Path) -> None:
    """Writes a table as Parquet or CSV, whole or not at all; an infinite number in CSV is `inf`.

    Raises:
        StoreError: It cannot be written.
    """
    with whole_file(path) as beside:
        if path.suffix == ".parquet":
            pq.write_table(table, beside, compression="zstd")
        else:
            pa_csv.write_csv(table, beside)


def as_paper(k: float) -> float:
    """Returns a budget as the paper's files have it: the risky model alone is -1."""
    return -1.0 if math.isinf(k) else k


def file_word(label: str) -> str:
    """Writes a class as part of a file's name: itself if harmless, else marked with a hash."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", label)[:60]
    if plain == label and label:
        return plain
    return f"{plain}-{sha256(label.encode()).hexdigest()[:8]}"


def as_row(
    trajectory: Trajectory,
    prompt: TokenizedPrompt | None,
    identity: Mapping[str, Any],
    vocabulary: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns one trajectory in the paper's schema."""
    key, k = trajectory.key, trajectory.key.k
    limit = identity["decoding"]["max_new_tokens"] or None
    pieces = vocabulary.get("pieces")
    logged: LoggedTexts = vocabulary.get("logged") or LoggedTexts()
    text = detokenize(trajectory.steps.token, pieces) if pieces else logged.texts.get(key)
    scores = logged.claims.get(key, {})
    claims = claims_of(trajectory, ledger_of(identity["ledger"]))
    use = claims.spend / claims.budget if claims.budget > 0 else math.nan
    length = claims.length
    is_count = math.isfinite(length) and length == int(length) and math.copysign(1.0, length) > 0
    own = prompt.prompt if prompt else None
    return {
        "metadata": {
            "prompt_id": key.prompt,
            "domain": None,
            "split": prompt.prompt.label if prompt else "prompt",
            "novel_source": None,
            "model_pair": None,
            "target_model": identity["pair"].get("risky"),
            "anchor_model": identity["pair"].get("safe"),
            "level": "token",
            "k": as_paper(k),
            "K": k * limit if limit and math.isfinite(k) else (k if math.isinf(k) else None),
            "T_max": limit,
            "B_max": None,
            "n": None,
            "seed": None,
            "trajectory_id": key.trajectory,
            "timestamp": None,
        },
        "prefix_analysis": {
            "delta_init": _plain(trajectory.debt),
            "true_prefix_debt": _plain(trajectory.debt),
            "init_budget_tensor": _plain(-trajectory.debt),
            "prefix_text": prompt.prompt.text if prompt else None,
            "prefix_length_tokens": len(prompt.tokens) or None if prompt else None,
            "prefix_token_ids": list(prompt.tokens) if prompt else [],
        },
        "per_step_log": list(_steps(trajectory, claims, vocabulary.get("tokens", ()))),
        "aggregate": {
            "total_spend": _plain(claims.spend),
            "generation": text,
            "full_text": prompt.prompt.text + text if prompt and text is not None else None,
            "generation_length_tokens": int(length) if is_count else _plain(length),
            "generation_length_bytes": None if text is None else len(text.encode()),
            "rouge_l": scores.get("rouge_l"),
            "minhash_5gram": scores.get("minhash_5gram"),
            "fluency_score": None,
            "final_budget": _plain(claims.budget),
            "budget_utilization": _plain(use),
        },
        "source_record": None
        if own is None
        else {"id": own.id, "text": own.text, "class": own.label, "reference": own.reference},
        "nafaudit": {
            "mechanism": key.mechanism,
            "ledger": identity["ledger"],
            "stopped": trajectory.stopped,
            "stops": list(vocabulary.get("stops", ())),
            "logged": trajectory.logged is not None,
        }
        | ({} if math.isnan(claims.contested) else {"contested": claims.contested}),
    }


def _steps(
    trajectory: Trajectory, claims: Logged, words: Sequence[str | None]
) -> Iterator[dict[str, Any]]:
    columns = {name: getattr(trajectory.steps, name).tolist() for name in STEP_TYPES}
    for t, token in enumerate(columns["token"]):
        at = {name: column[t] for name, column in columns.items()}
        step = {
            "t": t,
            "k_t": _plain(at["allowance"]),
            "a_t": _plain(at["charge"]),
            "a_t_recomputed": _plain(at["charge"]),
            "lambda": None,
            "sampled_token": words[token] if 0 <= token < len(words) else None,
            "sampled_token_id": token if token >= 0 else None,
            "p_star_prob": _plain(_exp(at["served"])),
            "p_s_prob": _plain(_exp(at["safe"])),
            "p_risky_prob": _plain(_exp(at["risky"])),
            "bc": _plain(1.0 - at["theta"]),
            "bd": _plain(at["theta"]),
            "log_p_star": _plain(at["served"]),
            "log_p_s": _plain(at["safe"]),
            "log_p_risky": _plain(at["risky"]),
        }
        if claims.granted.size:
            step["budget_so_far"] = _plain(claims.granted[t].item())
        if claims.cumulative.size:
            step["cum_kl_spent"] = _plain(claims.cumulative[t].item())
        if claims.granted.size and claims.cumulative.size:
            step["budget_remaining"] = _plain(
                claims.granted[t].item() - claims.cumulative[t].item()
            )
        yield step


def _exp(logarithm: float) -> float:
    return math.exp(min(logarithm, 0.0)) if not math.isnan(logarithm) else math.nan


def _plain(value: float) -> float | None:
    """Returns None for NaN; infinity stays, as in the paper's files."""
    return None if math.isnan(value) else value
