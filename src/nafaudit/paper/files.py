"""Writes a run as the paper's own files, so that its readers' scripts work on it.

    trajectories_k{k:g}_{class}.jsonl   every trajectory at a budget, baselines left out
    h1_summary.json, h1_summary.csv     per budget and class: mean, variance, U_EBB
    schedule.json                       batches as the paper's runner would have cut them
    nafaudit/passages.jsonl             protected passages and their surprisals, if they are known

All of it is a function of the records, written whole or not at all, in an order that does not
depend on that of the records. Beyond the paper's fields a line has those of `store/export.py`, so
that an import of the files gives the record back.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nafaudit.core.draws import trajectory_seeds
from nafaudit.core.errors import InputError
from nafaudit.core.ledger import budget_word, is_baseline
from nafaudit.core.trajectory import Trajectory
from nafaudit.measures.common_text import NGRAM, prepare, words_of
from nafaudit.measures.overlap import ngram_jaccard, rouge_l
from nafaudit.paper.workload import batch_sizes
from nafaudit.stats import Bonferroni, Moments, ebb, effective_range, paper_range
from nafaudit.store.artifacts import PASSAGES, read_texts
from nafaudit.store.export import as_row, copy_passages, file_word
from nafaudit.store.files import whole_directory
from nafaudit.store.missing import missing_of
from nafaudit.store.run import Run
from nafaudit.workload import PromptSource
from nafaudit.workload.prompts import BATCH, BUCKET_WIDTH, CAPS, batch_leaders


class PaperScores(NamedTuple):
    """Fields of the paper's trajectory files, by its names.

    Attributes:
        rouge_l: F1 of the longest common subsequence of words.
        minhash_5gram: Exact Jaccard of 5-gram sets; in spite of its name nothing is hashed.
    """

    rouge_l: float
    minhash_5gram: float


def paper_scores(generation: str, reference: str | None) -> PaperScores:
    """Scores the whole generation against the whole reference; neither is cut.

    Words are lower-cased and split at white space. A missing reference, and a side that is too
    short, score 0 in the paper's files; `measure` leaves them without a score.
    """
    words, wanted = words_of(generation), prepare(reference or "")
    if not words or not wanted.words:
        return PaperScores(0.0, 0.0)
    _, precision, recall = rouge_l(generation, wanted)
    shared = precision + recall
    # The paper's order of operations, so that the last digits agree.
    f1 = 2 * precision * recall / shared if shared else 0.0
    long_enough = min(len(words), len(wanted.words)) >= NGRAM
    return PaperScores(f1, ngram_jaccard(generation, reference or "") if long_enough else 0.0)


def lines_of(run: Run, variant: str) -> Callable[[Trajectory], dict[str, Any]]:
    """Returns a function that makes a line in the paper's schema of a trajectory.

    Args:
        run: The run.
        variant: `text` writes the remaining budget as final budget, as in the paper's text;
            `code` the budget that was granted.
    """
    identity, pieces = run.design["identity"], run.pieces
    prompts = {prompt.prompt.id: prompt for prompt in run.prompts()}
    sources, began = run.sources(), next(iter(run.sessions), {})
    leaders = batch_leaders(run.prompts()) if identity.get("coupled") else {}
    vocabulary = {
        "tokens": [None if p is None else p.decode(errors="replace") for p in pieces],
        "pieces": pieces,
        "stops": sorted(run.stops),
        "logged": read_texts(run),
    }

    def line(trajectory: Trajectory) -> dict[str, Any]:
        key = trajectory.key
        prompt, source = prompts.get(key.prompt), sources.get(key.prompt, PromptSource(""))
        row = as_row(trajectory, prompt, identity, vocabulary)
        seed = None
        if identity["protocol"] == "paper":
            leader = leaders.get(key.prompt, key.prompt)
            seed = trajectory_seeds(leader, key.trajectory + 1)[-1]
        row["metadata"] |= {
            "domain": source.domain,
            "split": source.split or row["metadata"]["split"],
            "novel_source": source.novel_source,
            "model_pair": began.get("pair"),
            # A registered pair is known by the hashes of its weights.
            "target_model": began.get("risky") or row["metadata"]["target_model"],
            "anchor_model": began.get("safe") or row["metadata"]["anchor_model"],
            "n": began.get("prefix_n"),
            "seed": seed,
            "timestamp": began.get("started"),
        }
        if source.record:
            row["source_record"] = dict(source.record)
        total = row["aggregate"]
        spend, granted = total["total_spend"], total["final_budget"]
        reference = prompt.prompt.reference if prompt else ""
        if total["generation"] is not None or total["rouge_l"] is None:
            total |= paper_scores(total["generation"] or "", reference)._asdict()
        # 0 where the paper's files have 0, null where nothing is known.
        total["budget_utilization"] = None
        if None not in (spend, granted):
            known = abs(granted) > 1e-12 and math.isfinite(granted)
            total["budget_utilization"] = spend / granted if known else 0.0
            if variant == "text":
                total["final_budget"] = granted - spend
                row["nafaudit"]["final_budget"] = granted
        return row

    return line


Spends = dict[tuple[float, str], list[float]]


def write_paper_files(
    run: Run, out: Path, *, delta: float | None = None, replace: bool = False
) -> list[Path]:
    """Writes the files of a run; returns them.

    Args:
        run: A run of one mechanism.
        out: Directory to write.
        delta: Level of all bounds together; that of the run's last session, or 0.05.
        replace: True to replace an existing directory.

    Raises:
        InputError: `out` exists, or the run has more than one mechanism.
        StoreError: It cannot be written; earlier files are still there.
    """
    variant = (run.sessions[-1] if run.sessions else {}).get("variant", "code")
    # Bounds share delta over the requested budgets and classes, baselines left out.
    extents = run.design["extents"]
    labels = {prompt.prompt.id: prompt.prompt.label for prompt in run.prompts()}
    budgets = sorted({float(k) for extent in extents for k in extent["budgets"]})
    found = {labels[name]: None for extent in extents for name in extent["prompts"]}
    order = [*(label for label in CAPS if label in found), *(f for f in found if f not in CAPS)]
    asked = [(k, label) for k in budgets if not is_baseline(k) for label in order]
    level = Bonferroni(run.delta if delta is None else delta, max(1, len(asked))).each
    with whole_directory(out, replace=replace) as directory:
        if (run.path / PASSAGES).is_file():
            copy_passages(run, directory)
        line, spends = lines_of(run, variant), Spends()
        for k in dict.fromkeys(k for k, _ in asked):
            spends |= _write_budget(directory, line, k, run)
        rows = [
            summary(run, variant, *cell, spends[cell], level) for cell in asked if cell in spends
        ]
        if missing_of(run) is not None:
            # Of an unfinished run nothing is certified.
            nothing = {"certified": False, "certified_R": None, "certified_R_eff": None}
            rows = [row | nothing for row in rows]
        (directory / "h1_summary.json").write_text(json.dumps(rows, indent=2))
        with (directory / "h1_summary.csv").open("w", newline="", encoding="utf-8") as stream:
            names = list(rows[0]) if rows else ["class"]
            writer = csv.DictWriter(stream, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        (directory / "schedule.json").write_text(json.dumps(_schedule(run), indent=2))
        files = sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())
    return [out / name for name in files]


def _write_budget(
    directory: Path, line: Callable[[Trajectory], dict[str, Any]], k: float, run: Run
) -> Spends:
    """Writes the files of one budget, whose trajectories have to fit into memory."""
    prompts = [prompt.prompt for prompt in run.prompts()]
    places = {prompt.id: place for place, prompt in enumerate(prompts)}
    classes: defaultdict[str, list[Trajectory]] = defaultdict(list)
    mechanisms = set()
    for trajectory in run.trajectories():
        if trajectory.key.k == k:
            classes[prompts[places[trajectory.key.prompt]].label].append(trajectory)
            mechanisms.add(trajectory.key.mechanism)
    if len(mechanisms) > 1:
        raise InputError(
            f"{run.path} has {len(mechanisms)} mechanisms at k = {k:g}, and the paper's files have "
            "no place for that; use nafaudit export without --paper."
        )
    for label, found in classes.items():
        found.sort(key=lambda t: (places[t.key.prompt], t.key.trajectory))
        path = directory / f"trajectories_k{budget_word(k)}_{file_word(label)}.jsonl"
        with path.open("w", encoding="utf-8") as stream:
            for trajectory in found:
                stream.write(json.dumps(line(trajectory)) + "\n")
    return {(k, label): [t.spend for t in found] for label, found in classes.items()}


def summary(
    run: Run, variant: str, k: float, label: str, spends: Sequence[float], level: float
) -> dict[str, Any]:
    """Returns one row of the summary: the paper's fields, then U_EBB under both ranges.

    The code's U_EBB uses R_eff; that of the paper's text and of its saved summary uses R. Unknown
    values are null, and certify nothing.
    """
    limit = run.design["identity"]["decoding"]["max_new_tokens"]
    budget = k * limit if limit else math.nan
    # A foreign log has no vocabulary, hence no R.
    high = paper_range(limit, len(run.pieces)) if limit and len(run.pieces) > 1 else None
    moments = Moments.of(spends) if all(map(math.isfinite, spends)) else None
    reach = whole = seen = None
    if moments is not None:
        reach = effective_range(moments.spread, math.inf if high is None else high)
        whole = None if high is None else ebb(moments, high, level).value
        seen = ebb(moments, high or max(moments.spread, 1.0), level, effective=True).value
    chosen = whole if variant == "text" else seen
    return {
        "class": label,
        "k": k,
        "K": budget if limit else None,
        "M": len(spends),
        "mean_Z": moments and moments.mean,
        "var_Z": moments and moments.variance,
        "R": high,
        "delta": level,
        "U_EBB": chosen,
        "certified": chosen is not None and chosen <= budget,
        "R_eff": reach,
        "U_EBB_R": whole,
        "certified_R": None if whole is None else whole <= budget,
        "U_EBB_R_eff": seen,
        "certified_R_eff": None if seen is None else seen <= budget,
    }


def _schedule(run: Run) -> dict[str, Any]:
    """Returns the batches of the paper's runner, per class and budget."""
    asked = {name for extent in run.design["extents"] for name in extent["prompts"]}
    trajectories = max(extent["trajectories"] for extent in run.design["extents"])
    if run.design["identity"].get("coupled"):
        shared = batch_leaders(run.prompts())
        labels = {one.prompt.id: one.prompt.label for one in run.prompts()}
        found: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for name in asked:
            found[labels[name]][shared[name]] += 1
        classes = {
            label: {
                "executions": sum(batches.values()) * trajectories,
                "batches_by_size": {
                    size: count * trajectories
                    for size, count in sorted(Counter(batches.values()).items())
                },
            }
            for label, batches in sorted(found.items())
        }
        about = {"batch_size": BATCH, "length_bucket_width": BUCKET_WIDTH, "coupled": True}
        return {**about, "classes": classes}
    lengths: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for prompt in run.prompts():
        if prompt.prompt.id in asked:
            lengths[prompt.prompt.label][prompt.prompt.id] = len(prompt.tokens)
    return {
        "batch_size": BATCH,
        "length_bucket_width": BUCKET_WIDTH,
        "classes": {
            label: {
                "executions": len(found) * trajectories,
                "batches_by_size": dict(sorted(batch_sizes(found, trajectories).items())),
            }
            for label, found in lengths.items()
        },
    }
