"""Writes the paper's search: files with its names under RUN/paper, JSON, and a document."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from nafaudit.core.text import as_number
from nafaudit.paper.loop import FALLBACK, PaperGeneration, Trail
from nafaudit.paper.proxy import ProxyItem, ProxyRow
from nafaudit.paper.search import PaperSearchResult, gap_of
from nafaudit.store.files import make_directory, write_whole
from nafaudit.views.document import Column, Document, Section, Table, nats
from nafaudit.views.search import B_EFF, defect_lines, rho_text, search_json, verdict_lines

_ID, _SHOWN = 30, 8
"""Characters of an id, and rows of a table, that a terminal shows."""

FINAL, STRESS = 999, 1000
"""Generations under which the paper files its validation pools."""


def number(value: float) -> float | None:
    """Returns a finite value; None for others, which the paper's files leave empty."""
    return float(value) if math.isfinite(value) else None


def write_files(found: PaperSearchResult) -> None:
    """Writes every file; equal records give equal bytes."""
    directory = found.found.path / "paper"
    every = files_of(found)
    make_directory(directory)
    for one in found.others:
        make_directory(directory / f"seed-{one.seed}")
        own = files_of(replace(found, trail=one, gap=gap_of(one)))
        every |= {f"seed-{one.seed}/{name}": content for name, content in own.items()}
    for name, content in every.items():
        if name.endswith(".jsonl"):
            text = "".join(json.dumps(row) + "\n" for row in content)
        else:
            text = json.dumps(content, indent=2) + "\n"
        write_whole(directory / name, text.encode())


def files_of(found: PaperSearchResult) -> dict[str, Any]:
    """Returns contents by file name, of the first search; rows for JSON Lines."""
    trail, last = found.trail, found.trail.validation.last
    rows = _TableRows(found)
    first = [item for item in trail.init if item.row.certified]
    files: dict[str, Any] = {
        "init_eval.jsonl": rows.lines(trail.init),
        "archive_after_init.json": rows.archived(first),
    }
    for one in trail.generations:
        stem = f"gen_{one.generation:02d}"
        files[f"{stem}_medfid.jsonl"] = rows.lines(one.medium)
        files[f"{stem}_topup.jsonl"] = rows.lines(one.promoted)
        failed = [item for item in one.topped if not item.row.certified]
        files[f"{stem}_topup_invalid.jsonl"] = [
            row | {"rejected_reason": "not_certified"} for row in rows.lines(failed)
        ]
        if one.generation % 2 == 0:
            files[f"{stem}_ablations.jsonl"] = [
                rows.line(item) | {"ablation": kind} for kind, item in one.ablations
            ]
    final, stress = trail.items(last.final), trail.items(last.stress)
    return files | {
        "generation_log.json": [
            generation_entry(one, found.settings.archive) for one in trail.generations
        ],
        "archive_current.json": rows.archived(trail.archive),
        "archive_history.json": rows.archived(trail.history),
        "final_validation.jsonl": rows.lines(final, FINAL),
        "final_validation_pass.jsonl": rows.lines(_passed(final), FINAL),
        "stress_validation.jsonl": rows.lines(stress, STRESS),
        "stress_validation_pass.jsonl": rows.lines(_passed(stress), STRESS),
        "heldout_validation.jsonl": rows.lines(trail.heldout),
        "final_report.json": final_report(found),
    }


def _passed(items: Sequence[ProxyItem]) -> list[ProxyItem]:
    return [item for item in items if item.row.certified]


class _TableRows:
    """Evaluated prompts in the paper's schema."""

    def __init__(self, found: PaperSearchResult) -> None:
        self._found = found
        self._lineages = {item.candidate.id: item.lineage for item in found.trail.searched}

    def lines(
        self, items: Iterable[ProxyItem], generation: int | None = None
    ) -> list[dict[str, Any]]:
        return [self.line(item, generation) for item in items]

    def line(self, item: ProxyItem, generation: int | None = None) -> dict[str, Any]:
        """Returns a logged evaluation; `nafaudit` has fields that the paper's files lack."""
        row = item.row
        debt = self._found.debts[item.candidate.id]
        return (
            self._about(item, generation)
            | {
                "spends": list(row.draws.spends),
                "final_budgets": [number(value) for value in row.draws.budgets],
                "delta_inits": [debt] * row.n,
                "mean_spend": row.moments.mean,
                "var_spend": row.moments.variance,
                "final_budget_mean": number(math.fsum(row.draws.budgets) / row.n),
                "timestamp": self._found.started,
                "rho_num": number(row.upper),
                "rho_den": number(row.budget),
                "raw_rho": number(row.rho),
                "candidate_valid": row.valid,
                "invalid_reason": row.invalid_reason or None,
            }
            | {"nafaudit": row_facts(row) | {"seeds": list(row.draws.seeds)}}
        )

    def archived(self, items: Iterable[ProxyItem]) -> list[dict[str, Any]]:
        return [
            self._about(item, None)
            | {
                "rationale": item.candidate.operator,
                "novelty_tag": _tag(item),
                "expected_rho": None,
            }
            for item in items
        ]

    def _about(self, item: ProxyItem, generation: int | None) -> dict[str, Any]:
        one, row, source = item.candidate, item.row, item.candidate.operator
        # As a candidate, a prompt is the search's own, wherever it came from.
        domain, split = "adversarial", "generated"
        if source in ("init", "heldout") and generation is None:
            domain, split = self._found.origins.get(one.lineage, (one.label, one.label))
        if source not in ("init", "heldout", FALLBACK):
            source = str(self._found.found.proposer.get("name", "local"))
        return {
            "candidate_id": one.id,
            "lineage_id": item.lineage,
            "generation": one.generation if generation is None else generation,
            "source": source,
            "domain": domain,
            "split": split,
            "prompt_text": one.text,
            "N": row.n,
            "U_EBB": number(row.upper),
            "rho": row.stored_rho,
            **({"width": number(row.width)} if self._found.settings.fixes.width else {}),
            "certified": row.certified,
            "delta_init_mean": self._found.debts[one.id],
            "effective_budget_min": number(row.budget),
            "parent_ids": list(one.parents),
            "parent_lineage_ids": [self._lineages.get(name, name) for name in one.parents],
        }


def _tag(item: ProxyItem) -> str:
    """Returns the paper's coarse structural tag of a prompt."""
    text = item.candidate.text.lower()
    if "continue" in text or "complete" in text:
        return "continuation"
    if ":" in text:
        return "instructional"
    if '"' in text:
        return "dialogue"
    return "excerpt" if "chapter" in text or "excerpt" in text else "semantic"


def row_facts(row: ProxyRow) -> dict[str, Any]:
    """Returns what the paper's tables leave out: the proxy's width, copies and violations."""
    return {
        "width": number(row.width),
        "repeated_seeds": row.draws.repeated_seeds,
        "overspent": row.overspent,
    }


def generation_entry(one: PaperGeneration, rule: str = "paper") -> dict[str, Any]:
    """Returns an entry of the paper's generation log.

    Args:
        one: The generation.
        rule: Archive rule in use.
    """
    admission, said, quotas = one.admission, one.predictions, one.screened.quotas
    surrogate = {
        name: number(value) if isinstance(value, float) else value
        for name, value in asdict(one.diagnostics).items()
    }
    return {
        "generation": one.generation,
        "raw_candidates": admission.raw,
        "after_dedup": admission.after_dedup,
        "after_length": admission.after_length,
        "screened": len(one.screened.kept),
        "med_fid": len(one.medium),
        "survivors_under_0.9K": one.survivors,
        "topup_promoted": len(one.promoted),
        "candidate_validity_rate": len(one.promoted) / max(1, admission.raw),
        "invalid_topup_count": len(one.topped) - len(one.promoted),
        "surrogate": surrogate,
        "surrogate_screen": {
            "mode": "surrogate" if one.steered.steers else "first",
            "ready": one.steered.steers,
            "length_ok": admission.after_length,
            "keep_n": len(one.screened.kept),
            "exploit_k": quotas[0],
            "boundary_k": quotas[1],
            "explore_k": quotas[2],
            "safe_mean_max": max((one.safe for one in said), default=None),
            "safe_mean_min": min((one.safe for one in said), default=None),
            "safe_sigma_mean": _mean([one.spread for one in said]),
            "margin_mean": _mean([one.margin for one in said]),
        },
        "dpp": {"mode": "greedy", "quality_weight": 0.5, "diversity_weight": 0.5}
        if rule == "paper"
        else {"mode": rule},
        "best_rho": max((item.row.rho for item in one.archive), default=None),
    }


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def final_report(found: PaperSearchResult) -> dict[str, Any]:
    """Returns the content of the paper's last file."""
    trail, last = found.trail, found.trail.validation.last
    final, stress = trail.items(last.final), trail.items(last.stress)
    rates = [generation_entry(one)["candidate_validity_rate"] for one in trail.generations]
    violations: list[Mapping[str, Any]] = [
        {"candidate_id": item.candidate.id, "rho": item.row.stored_rho}
        for item in (*final, *stress)
        if not item.row.certified
    ]
    return {
        "K": found.settings.total,
        "max_rho_archive": max((item.row.rho for item in trail.left), default=None),
        "final_candidates_evaluated": len(final),
        "final_candidates_passed": len(_passed(final)),
        "final_pass_rate": len(_passed(final)) / len(final) if final else None,
        "stress_candidates_evaluated": len(stress),
        "stress_candidates_passed": len(_passed(stress)),
        "heldout_generalization_gap": number(found.gap.paper),
        "candidate_validity_rate_mean": _mean(rates),
        "violations": violations,
    }


def paper_json(found: PaperSearchResult) -> dict[str, Any]:
    """Returns strict JSON: the keys of the sound protocol, then `paper`."""
    settings, trail = found.settings, found.trail
    last = trail.validation.last
    pools = {
        "final": trail.items(last.final),
        "stress": trail.items(last.stress),
        "heldout": trail.heldout,
    }
    return search_json(found.found) | {
        "paper": {
            "variant": settings.variant,
            "fix": settings.fix,
            "topup_fraction": settings.topup_fraction,
            "sizes": vars(settings.sizes),
            **({"short": found.short} if found.short else {}),
            "R": found.high,
            "delta_per_look": settings.fixes.level(settings.delta),
            "embedding": found.embedding,
            "archive_rule": settings.archive,
            "archive_maxima": [
                {"seed": one.seed, "max_rho": as_number(archive_maximum(one))}
                for one in (trail, *found.others)
            ],
            "generation_log": [
                generation_entry(one, settings.archive) for one in trail.generations
            ],
            "projection": projection_of(found),
            "deterministic_term": deterministic_of(found),
            "report": final_report(found),
            "pools": {name: [_item(item) for item in items] for name, items in pools.items()},
            "ablations": [
                {"generation": one.generation, "ablation": kind} | _item(item)
                for one in trail.generations
                for kind, item in one.ablations
            ],
            "rounds": len(trail.validation.rounds),
            "disqualified": [item.candidate.id for item in trail.validation.disqualified],
            "gap": {
                "paper": as_number(found.gap.paper),
                "valid": as_number(found.gap.valid),
                "invalid_rows": found.gap.invalid,
            },
            "flagged": {
                pool: {"flagged": flagged, "prompts": prompts}
                for pool, (flagged, prompts) in found.flagged.pools.items()
            },
            "second_k": settings.second,
            "rechecked": [
                {
                    "id": one.flag.item.candidate.id,
                    "pool": one.flag.pool,
                    "flagged": _row(one.flag.item.row),
                    "same_k": _row(one.same),
                    "second_k": _row(one.other),
                }
                for one in found.rechecks
            ],
            "not_rechecked": len(found.flagged.flags) - len(found.rechecks),
            "findings": [
                {
                    "check": one.check,
                    "verdict": str(one.verdict),
                    "value": as_number(one.value),
                    "text": one.text,
                    "numbers": {name: as_number(value) for name, value in one.numbers.items()},
                }
                for one in found.findings
            ],
        }
    }


def archive_maximum(trail: Trail) -> float:
    """Returns the largest ratio of a search's last archive; NaN if it is empty."""
    return max((item.row.rho for item in trail.archive), default=math.nan)


def projection_of(found: PaperSearchResult) -> list[dict[str, Any]]:
    """Projects held-out prompts with a ratio above 1 to their nominal N, as the paper does.

    Mean, variance, R_eff and delta stay; `fresh_rho` is what fresh draws of that N gave instead,
    where they were drawn.
    """
    n = found.settings.sizes.heldout_traj
    fresh = {one.flag.item.candidate.id: one.same for one in found.rechecks}
    rows = [item.row for item in found.trail.heldout]
    return [
        {
            "id": row.id,
            "N": row.n,
            "U_EBB": as_number(row.upper),
            "rho": as_number(row.rho),
            "projected_N": n,
            "projected_U_EBB": as_number(row.projected(n)),
            "projected_rho": as_number(row.projected(n) / row.budget),
            "fresh_N": fresh[row.id].n if row.id in fresh else None,
            "fresh_rho": as_number(fresh[row.id].rho) if row.id in fresh else None,
        }
        for row in rows
        if row.valid and row.rho > 1 and row.n < n
    ]


def deterministic_of(found: PaperSearchResult) -> dict[str, Any]:
    """Tabulates 3 R_eff ln(2 / delta) / N for the held-out prompts, at the search's sizes.

    The columns are the smallest, the median and the largest R_eff of these prompts.
    """
    rows = sorted((item.row for item in found.trail.heldout), key=lambda row: row.reach)
    sizes = found.settings.sizes
    counts = sorted({
        sizes.adaptive_eval_min_traj, sizes.init_traj, sizes.med_fid_traj, sizes.topup_traj,
        sizes.final_traj, sizes.heldout_traj, sizes.stress_traj,
    })  # fmt: skip
    shown = [rows[i] for i in (0, len(rows) // 2, len(rows) - 1)] if rows else []
    return {
        "delta": found.settings.fixes.level(found.settings.delta),
        "R_eff": [as_number(row.reach) for row in shown],
        "rows": [{"N": n, "term": [as_number(row.deterministic(n)) for row in shown]}
                 for n in counts],
    }  # fmt: skip


def write_paper_result(found: PaperSearchResult) -> None:
    """Writes RUN/search.json and RUN/paper; equal records give equal bytes."""
    write_files(found)
    path = found.found.path / "search.json"
    write_whole(path, json.dumps(paper_json(found), indent=2).encode() + b"\n")


def _row(row: ProxyRow) -> dict[str, Any]:
    return {
        "N": row.n,
        "mean_spend": as_number(row.moments.mean),
        "variance": as_number(row.moments.variance),
        "R_eff": as_number(row.reach),
        "U_EBB": as_number(row.upper),
        "width": as_number(row.width),
        "B_eff": as_number(row.budget),
        "rho": as_number(row.rho),
        "certified": row.certified,
        "invalid": row.invalid_reason,
        "repeated_seeds": row.draws.repeated_seeds,
        "overspent": row.overspent,
    }


def _item(item: ProxyItem) -> dict[str, Any]:
    return {"id": item.candidate.id, "generation": item.candidate.generation} | _row(item.row)


def paper_document(found: PaperSearchResult, plugin: str = "") -> Document:
    """Returns what a terminal shows: its tables, what is wrong with it, and the verdict.

    Args:
        found: The search.
        plugin: Options of `nafaudit verify` for this mechanism.
    """
    trail, settings, rounds = found.trail, found.settings, found.trail.validation
    wide = settings.fixes.width

    def ratio(row: ProxyRow | None) -> str:
        """Returns a row's rho, with the width in nats if that fix is on."""
        if row is None or not row.valid:
            return "invalid"
        return f"{rho_text(row.rho)} ({nats(row.width)})" if wide else rho_text(row.rho)

    def best(items: Sequence[ProxyItem]) -> str:
        return ratio(max((i.row for i in items if i.row.certified), key=_rho, default=None))

    # Its own columns; generation 0 is the first pool.
    passed = sum(item.row.certified for item in trail.init)
    generations: list[tuple[object, ...]] = [
        (0, len(trail.init), *(None,) * 5, passed, best(trail.init), trail.init_trajectories),
    ]
    for one in trail.generations:
        admission = one.admission
        counts = (admission.raw, admission.after_dedup, admission.after_length)
        late = (len(one.screened.kept), len(one.medium), one.survivors, len(one.promoted))
        generations.append((one.generation, *counts, *late, best(one.archive), one.trajectories))
    counted = ("raw", "dedup", "length", "screen", "medium", "<0.9", "top-up")
    columns = (
        Column("gen", words=True),
        *map(Column, counted),
        *map(Column, ("best rho", "drawn")),
    )
    pools = [
        (pool, item.candidate.id, row.n, row.moments.mean, row.upper, row.width, row.budget,
         rho_text(row.rho))
        for pool, items in (("final", trail.items(rounds.last.final)),
                            ("stress", trail.items(rounds.last.stress)),
                            ("held-out", trail.heldout))
        for item in items
        for row in (item.row,)
    ]  # fmt: skip
    prompt = Column("prompt", words=True, most=_ID)
    numbers = (Column(head, write=nats) for head in ("mean", "U_EBB", "width", "B_eff"))
    pool_columns = (Column("pool", words=True), prompt, Column("N"), *numbers, Column("rho"))
    # Flagged prompts: as flagged, then on fresh draws at both budgets.
    rechecks, n = found.rechecks, settings.sizes.recheck_traj
    fresh = (f"N={n}, k={k:.4g}" for k in (settings.budget, settings.second))
    flagged_columns = (
        Column("flagged", words=True),
        prompt,
        Column("N"),
        *(Column(head, write=nats) for head in ("mean", "U_EBB", "B_eff")),
        *map(Column, ("rho", *fresh, "over")),
    )
    flagged = [
        (one.flag.pool, one.flag.item.candidate.id, row.n, row.moments.mean, row.upper, row.budget,
         *map(ratio, (row, one.same, one.other)), one.same.overspent + one.other.overspent)
        for one in rechecks[:_SHOWN]
        for row in (one.flag.item.row,)
    ]  # fmt: skip
    shares = ", ".join(
        f"{pool} {bad} of {total}" for pool, (bad, total) in found.flagged.pools.items() if total
    )
    lines = [
        "rho = U_EBB / B_eff is the paper's proxy, and much of it may be its width; it decides "
        "nothing here. invalid: a trajectory ended before its debt was paid",
        f"flagged (rho above 1, or invalid): {shares}",
    ]
    if found.short:
        lines.insert(0, f"the data have fewer prompts than the paper's pools: {found.short}")
    if rechecks:
        more = len(rechecks) - _SHOWN
        same, other = (sum(one.same.certified for one in rechecks),
                       sum(one.other.certified for one in rechecks))  # fmt: skip
        over = sum(one.same.overspent + one.other.overspent for one in rechecks)
        lines.append(
            f"like for like, fresh draws{f' ({more} not shown)' if more > 0 else ''}: {same} of "
            f"{len(rechecks)} pass at the same k, {other} of {len(rechecks)} at k = "
            f"{settings.second:.4g}; {over} of their trajectories exceed their budget; "
            f"{len(found.flagged.flags) - len(rechecks)} flagged prompts not looked at again"
        )
    gaps = ["unknown" if math.isnan(gap) else f"{gap:+.3f}"
            for gap in (found.gap.paper, found.gap.valid)]  # fmt: skip
    lines += [
        f"validation: {len(rounds.rounds)} round(s), {len(rounds.disqualified)} prompts "
        "disqualified with their families",
        f"generalisation gap: {gaps[0]} with {found.gap.invalid} invalid held-out rows as 0, "
        f"{gaps[1]} without",
    ]
    if settings.fixes.words:
        lines += ["the paper's remedies:", *(f"  {text}" for text in settings.fixes.words)]
    if found.others:
        maxima = ", ".join(f"{archive_maximum(one):.3f}" for one in (trail, *found.others))
        lines.append(
            f"archive maximum of each of {1 + len(found.others)} searches: {maxima}; tables are "
            "of the first, with the paper's seeds"
        )
    # Whether the surrogate chose, and whether it should have.
    steps = [step for _, step in found.found.steered]
    chose = sum(step.steers for step in steps)
    said = "chose nothing, as there was no generation"
    if steps:
        said = f"chose in {chose} of {len(steps)} generations"
        if idle := [step for step in steps if not step.steers]:
            said += f" (generation {idle[-1].generation}: {'; '.join(idle[-1].reasons)})"
        if chose:
            known = [one for one in steps if one.steers and not math.isnan(one.auc)]
            worst = min(known, key=lambda one: one.auc, default=None)
            if worst is not None:
                said += (
                    f"; lowest AUC on prompts it never saw: {worst.auc:.2f} ({worst.unsafe} of "
                    f"{worst.judged} unsafe, generation {worst.generation})"
                )
            if chose > len(known):
                said += f"; no AUC in {chose - len(known)}, where these are all of one class"
            stuck = sum(one.saturated for one in steps)
            said += f"; saturated in {stuck} of {len(steps)}" if stuck else "; never saturated"
    lines.append(f"surrogate on {found.embedding}: {said}")
    # Defects that occurred, one line each: the first place, and how many there are.
    defects = defect_lines((one.check, str(one.verdict), one.text) for one in found.findings)
    lines.append(
        "defects of the protocol that occurred (none is about the decoder):"
        if defects
        else "none of the protocol's known defects occurred"
    )
    lines += [f"  {check}: {text}" for check, text in defects]
    aside = sum(one.other.n for one in rechecks)
    lines += verdict_lines(found.found, plugin, "--size recheck_traj=20", (settings.second, aside))
    lines.append(f"search directory: {found.found.path}")
    # What the paper computes of its own rows: more trajectories, and the term that they shrink.
    ahead = [
        (row["id"], row["N"], row["U_EBB"], rho_text(float(row["rho"])), row["projected_N"],
         row["projected_U_EBB"], rho_text(float(row["projected_rho"])))
        for row in projection_of(found)
    ]  # fmt: skip
    ahead_columns = (
        replace(prompt, head="projected to a larger N"), Column("N"), Column("U_EBB", write=nats),
        Column("rho"), Column("to N"), Column("U_EBB", write=nats), Column("rho"),
    )  # fmt: skip
    terms = deterministic_of(found)
    term_columns = (
        Column("3 R_eff ln(2/delta) / N", words=True),
        *(Column(f"R_eff {nats(reach)}", write=nats) for reach in terms["R_eff"]),
    )
    terms_rows = [(f"N = {row['N']}", *row["term"]) for row in terms["rows"] if row["term"]]
    tables = (
        (columns, generations, ""), (pool_columns, pools, ""),
        (flagged_columns, flagged, f"mean to rho: as flagged. {B_EFF}"),
        (ahead_columns, ahead, ""), (term_columns, terms_rows if ahead else [], ""),
    )  # fmt: skip
    sections = [
        Section(table=Table(tuple(heads), tuple(rows)), note=note)
        for heads, rows, note in tables
        if rows
    ]
    return Document("nafaudit search", (*sections, Section(lines=tuple(lines))))


def _rho(row: ProxyRow) -> float:
    return row.rho
