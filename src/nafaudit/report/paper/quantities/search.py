"""What the text quotes of the prompt search: funnel, archive maximum, surrogate."""

from __future__ import annotations

import math
from itertools import pairwise

from nafaudit.report.paper.interval import Interval, average, interval, largest, smallest
from nafaudit.report.paper.quantities.registry import quantity, released
from nafaudit.report.paper.source import Paper, Row


def _validity(paper: Paper, k: int) -> float:
    rows = paper.rows("search", k=k)
    return sum(row.count("topped_up") / row.count("raw") for row in rows) / len(rows)


@quantity
def validity_k3(paper: Paper) -> float:
    """The average top-up / raw at k = 3."""
    return _validity(paper, 3)


@quantity
def validity_k5(paper: Paper) -> float:
    """The average top-up / raw at k = 5."""
    return _validity(paper, 5)


@quantity
def decoded_candidates(paper: Paper) -> float:
    """The number of candidates that reached the decoder in one search."""
    return sum(row.count("medium") for row in paper.rows("search", k=3))


@quantity
def generations(paper: Paper) -> float:
    """The number of generations in the table."""
    return len(paper.rows("search", k=3))


@quantity
def raw_per_generation(paper: Paper) -> float:
    """Calls times candidates per call, crossover included."""
    new = paper.setting("calls") * paper.setting("per_call")
    return new + paper.setting("crossover_calls") * paper.setting("per_crossover")


@quantity
def raw_from_calls(paper: Paper) -> float:
    """Generation calls times candidates per call."""
    return paper.setting("calls") * paper.setting("per_call")


@quantity
def raw_from_crossover(paper: Paper) -> float:
    """Crossover calls times candidates per call."""
    return paper.setting("crossover_calls") * paper.setting("per_crossover")


def _best(paper: Paper, k: int) -> list[Interval]:
    return [row.number("best_rho") for row in paper.rows("search", k=k)]


@quantity
def best_k3(paper: Paper) -> Interval:
    """The largest best ratio of the k = 3 search table."""
    return largest(_best(paper, 3))


@quantity
def best_k5(paper: Paper) -> Interval:
    """The largest best ratio of the k = 5 search table."""
    return largest(_best(paper, 5))


@quantity
def best_before_k5(paper: Paper) -> Interval:
    """The first best ratio of the k = 5 search table."""
    return _best(paper, 5)[0]


def _improvements(rows: list[Row]) -> list[int]:
    """Generations whose best ratio differs from the one before."""
    pairs = pairwise(rows)
    return [new.count("generation") for old, new in pairs if old["best_rho"] != new["best_rho"]]


@quantity
def improvements_k3(paper: Paper) -> float:
    """The number of generations that improve on the one before at k = 3."""
    return len(_improvements(paper.rows("search", k=3)))


@quantity
def improvements_k5(paper: Paper) -> float:
    """The number of generations that improve on the one before at k = 5."""
    return len(_improvements(paper.rows("search", k=5)))


@quantity
def generation_of_improvement_k5(paper: Paper) -> float:
    """The generation in which the k = 5 maximum improves."""
    return _improvements(paper.rows("search", k=5))[0]


@quantity
def distance_to_budget_k3(paper: Paper) -> Interval:
    """The distance of the largest k = 3 ratio from 1, in percent."""
    return (interval(1) - largest(_best(paper, 3))) * 100


def _strongest(paper: Paper, k: int) -> Row:
    return max(paper.rows("released_archive", k=k), key=lambda row: float(row["rho"]))


@released
def generation_of_maximum_k3(paper: Paper) -> float:
    """The generation of the archive maximum at k = 3, 0 being the seeds."""
    return _strongest(paper, 3).count("generation")


@released
def rise_over_seeds_k3(paper: Paper) -> Interval:
    """The k = 3 archive maximum minus the best seed."""
    seeds = paper.rows("released_archive", k=3, source="init")
    return _strongest(paper, 3).number("rho") - largest(row.number("rho") for row in seeds)


@released
def rise_over_seeds_k5(paper: Paper) -> Interval:
    """The k = 5 archive maximum minus the best seed."""
    seeds = paper.rows("released_archive", k=5, source="init")
    return _strongest(paper, 5).number("rho") - largest(row.number("rho") for row in seeds)


@released
def best_by_optimizer_k5(paper: Paper) -> Interval:
    """The best k = 5 ratio of a prompt that the optimizer model wrote, minus the table's last."""
    written = [r for r in paper.rows("released_archive", k=5) if r["source"].startswith("local")]
    return largest(row.number("rho") for row in written) - _best(paper, 5)[-1]


@released
def orwell_below_maximum(paper: Paper) -> Interval:
    """The archive maximum at k = 3 minus the archived ratio of the quoted prompt."""
    quoted = paper.row("released_archive", k=3, id="init_bookmia.00.11")
    return _strongest(paper, 3).number("rho") - quoted.number("rho")


@quantity
def quoted_below_table_maximum(paper: Paper) -> Interval:
    """The best ratio of the k = 3 search table minus the final ratio of the quoted prompt."""
    row = paper.row("stage2", pool="final", k=3, id="init_bookmia.00.11")
    return largest(_best(paper, 3)) - row.number("U") / row.number("B")


@released
def safe_mean_maxima(paper: Paper) -> Interval:
    """The average of the logged maxima of P(safe)."""
    return average(row.number("safe_mean_max") for row in paper.rows("released_generations"))


@released
def safe_sigma_average(paper: Paper) -> Interval:
    """The average logged sigma of P(safe)."""
    return average(row.number("safe_sigma_mean") for row in paper.rows("released_generations"))


@released
def fewest_surrogate_rows(paper: Paper) -> float:
    """The fewest rows that the surrogate was trained on."""
    return min(row.count("surrogate_rows") for row in paper.rows("released_generations"))


@released
def unsafe_share_of_training(paper: Paper) -> float:
    """The largest share of unsafe rows that a surrogate was trained on."""
    return max(1 - float(row["safe_rate"]) for row in paper.rows("released_generations"))


def _top_archived(paper: Paper, k: int) -> float:
    rows = sorted(paper.rows("released_archive", k=k), key=lambda row: -float(row["rho"]))
    stress = {row["id"] for row in paper.rows("stage2", pool="stress", k=k)}
    return len(stress & {row["id"] for row in rows[: len(stress)]})


@released
def stress_among_top_k3(paper: Paper) -> float:
    """The number of stress prompts among as many top archive prompts at k = 3."""
    return _top_archived(paper, 3)


@released
def stress_among_top_k5(paper: Paper) -> float:
    """The number of stress prompts among as many top archive prompts at k = 5."""
    return _top_archived(paper, 5)


@released
def largest_safe_sigma(paper: Paper) -> Interval:
    """The largest logged sigma of P(safe)."""
    return largest(row.number("safe_sigma_mean") for row in paper.rows("released_generations"))


def _report(paper: Paper, k: int, column: str) -> Interval:
    # Logged to 16 digits, so its rounding is of no account.
    return interval(float(paper.row("released_report", k=k)[column]))


@released
def released_gap_k3(paper: Paper) -> Interval:
    """The released gap at k = 3."""
    return _report(paper, 3, "gap")


@released
def released_gap_k5(paper: Paper) -> Interval:
    """The released gap at k = 5."""
    return _report(paper, 5, "gap")


@released
def released_validity_k3(paper: Paper) -> Interval:
    """The released validity rate at k = 3."""
    return _report(paper, 3, "validity")


@released
def released_validity_k5(paper: Paper) -> Interval:
    """The released validity rate at k = 5."""
    return _report(paper, 5, "validity")


@released
def released_best_k3(paper: Paper) -> Interval:
    """The released archive maximum at k = 3."""
    return _report(paper, 3, "best_rho")


@released
def released_best_k5(paper: Paper) -> Interval:
    """The released archive maximum at k = 5."""
    return _report(paper, 5, "best_rho")


@quantity
def raw_in_one_search(paper: Paper) -> float:
    """The number of candidates proposed in one search."""
    return sum(row.count("raw") for row in paper.rows("search", k=3))


@quantity
def decoded_in_both_searches(paper: Paper) -> float:
    """The number of candidates that reached the decoder in both searches."""
    return sum(row.count("medium") for row in paper.rows("search"))


@quantity
def surrogate_inputs(paper: Paper) -> Interval:
    """The number of inputs of a model that reads all TF-IDF features, embeddings not counted."""
    return Interval(paper.setting("tfidf_features"), math.inf)


def _archived_seeds(paper: Paper, k: int) -> int:
    """What the first surrogate was fitted to: the seeds that had entered the archive."""
    return paper.row("released_generations", k=k, generation=1).count("surrogate_rows")


@released
def archived_seeds_k3(paper: Paper) -> float:
    """The number of seeds in the archive when the k = 3 search began."""
    return _archived_seeds(paper, 3)


@released
def archived_seeds_k5(paper: Paper) -> float:
    """The number of seeds in the archive when the k = 5 search began."""
    return _archived_seeds(paper, 5)


@released
def trajectories_of_seeds(paper: Paper) -> Interval:
    """The fewest trajectories of an archived seed."""
    rows = paper.rows("released_archive", source="init")
    return smallest(interval(row.count("N")) for row in rows)


@released
def maximum_k3_is_quoted(paper: Paper) -> float:
    """One if init_bookmia.01.22 is the strongest archived prompt at k = 3."""
    return float(_strongest(paper, 3)["id"] == "init_bookmia.01.22")


@released
def maximum_k5_is_quoted(paper: Paper) -> float:
    """One if g3_fallback_7 is the strongest archived prompt at k = 5."""
    return float(_strongest(paper, 5)["id"] == "g3_fallback_7")
