"""Studies whether search works, on simulated prompts and on a real pair.

    python -m benchmarks.search_study --simulated
    python -m benchmarks.search_study [DESIGN.toml] [--json] [--fresh 20 --heldout-draws 1 ...]

**Simulated prompts.** How often does the paper's rule flag a prompt that is nowhere near its
budget? How often does a rule find the one prompt, planted among others, that spends most? Spends
are gamma distributed. Standard deviations within prompts run from 11 over a median of 30.5 to 73
nats, as in the paper's released spends; between these three they are interpolated on a log scale.

**A real pair.** Ten searches and their controls at equal trajectories, search seeds as units: over
several seeds the differences are a sample whose median has an exact interval if seeds are
independent. Then the best prompt of them all is hidden among others, and three rules look for it:
every prompt has a bank of recorded trajectories, and a trial draws from the banks with replacement,
so that a bank is its prompt's law. The options are those of nafaudit search.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nafaudit.core.design import Extent
from nafaudit.core.errors import InputError
from nafaudit.core.options import load
from nafaudit.core.progress import OnProgress
from nafaudit.core.text import as_number
from nafaudit.paper.evaluator import UNREADY, ProxyRule, survivor_path
from nafaudit.paper.proxy import PaperRequest, PromptSpends
from nafaudit.search.candidate import Measured, utilisations_of
from nafaudit.search.confirm import SearchResult
from nafaudit.search.explore import SEARCH, STRATEGIES
from nafaudit.search.filters import start_of
from nafaudit.search.halving import halving_plan, ranked, successive_halving
from nafaudit.search.recorder import open_recorder
from nafaudit.search.search import Search
from nafaudit.search.settings import SearchSettings
from nafaudit.stats.bound import check_level
from nafaudit.stats.moments import ebb_value
from nafaudit.stats.rates import clopper_pearson
from nafaudit.store.files import write_whole
from nafaudit.views.document import Column, Document, Section, Table, percent
from nafaudit.views.search import points, write_result
from nafaudit.views.terminal import terminal

Array = NDArray[np.float64]
SIZES = {"searches": 10, "finalists": 1}
"""Ten search seeds are the fewest whose exact limits may leave out one at each end."""


@dataclass(frozen=True)
class SpendModel:
    """A model of the spends of simulated prompts.

    Attributes:
        mean: Mean spend of a prompt, in nats.
        between: Standard deviation of prompt means.
        deviations: Smallest, median and largest standard deviation within a prompt.
        budget: B of every trajectory.
        enforced: True for a decoder that stops spending at its budget.
    """

    mean: float = 190.0
    between: float = 0.0
    deviations: tuple[float, float, float] = (11.0, 30.5, 73.0)
    budget: float = 594.0
    enforced: bool = True

    def prompts(self, chance: np.random.Generator, shape: tuple[int, int]) -> tuple[Array, Array]:
        """Draws means and standard deviations of prompts, one row per trial."""
        means = self.mean + self.between * chance.standard_normal(shape)
        scale = np.interp(chance.random(shape), [0.0, 0.5, 1.0], np.log(self.deviations))
        return np.maximum(means, 1.0), np.exp(scale)

    def spends(
        self, chance: np.random.Generator, means: Array, deviations: Array, count: int
    ) -> Array:
        """Draws gamma spends with these moments; trajectories are the last axis."""
        shape = (means / deviations) ** 2
        scale = deviations**2 / means
        spends = chance.gamma(shape[..., None], scale[..., None], (*means.shape, count))
        return np.minimum(spends, self.budget) if self.enforced else spends


def proxy(spends: Array, rule: ProxyRule) -> Array:
    """Computes U_EBB with R_eff over the last axis."""
    reach = np.minimum(rule.high, np.maximum(np.ptp(spends, axis=-1), 1.0))
    variance = spends.var(axis=-1, ddof=1)
    return ebb_value(spends.mean(axis=-1), variance, spends.shape[-1], reach, rule.delta)


def paper_ratios(spends: Array, budget: float, rule: ProxyRule) -> tuple[Array, NDArray[np.int64]]:
    """Returns each prompt's final ratio and N under Algorithm 1 with a constant surrogate.

    A fast version of `evaluator.survivor_path`, for pools in rows.

    Args:
        spends: Trials x prompts x trajectories; the last axis is the nominal n.
        budget: B of every trajectory.
        rule: Constants.
    """
    trials, pool, n = spends.shape
    early = proxy(spends[..., : rule.floor], rule) / budget
    survives = early <= rule.slack
    # Without survivors all may be topped up; a constant surrogate ranks by the ratio alone.
    able = survives | ~survives.any(axis=1, keepdims=True)
    score = np.where(able, np.minimum(early, 2.0), -np.inf)
    order = np.argsort(-score, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(pool), (trials, pool)).copy(), axis=1)
    topped = able & (rank < rule.topups(pool))
    late = proxy(spends, rule) / budget
    return np.where(topped, late, early), np.where(topped, n, rule.floor)


@dataclass(frozen=True)
class Share:
    """A rate with a 95 % interval (Clopper-Pearson)."""

    hits: int
    trials: int
    trajectories: float

    @property
    def rate(self) -> float:
        """Hits over trials."""
        return self.hits / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """Limits that together miss with chance at most 0.05."""
        return clopper_pearson(self.hits, self.trials, 0.025)


@dataclass(frozen=True)
class Benign:
    """Rates at which each rule flags prompts that spend far less than their budget.

    Attributes:
        paper: Ratio above 1 after Algorithm 1.
        floor20: Ratio above 1 with at least 20 trajectories of every prompt.
        sound: A trajectory above its own budget.
    """

    paper: Share
    floor20: Share
    sound: Share


def benign_study(
    seed: int = 0, trials: int = 500, pool: int = 8, n: int = 20, model: SpendModel | None = None
) -> Benign:
    """Simulates pools of benign prompts and counts flags.

    Args:
        seed: Of the simulation.
        trials: Number of pools.
        pool: Prompts of a pool.
        n: Nominal trajectories.
        model: Spends of prompts.
    """
    model, chance = model or SpendModel(), np.random.default_rng([seed, 1])
    rule = ProxyRule(high=model.budget)
    spends = model.spends(chance, *model.prompts(chance, (trials, pool)), n)
    ratios, sizes = paper_ratios(spends, model.budget, rule)
    full = proxy(spends, rule) / model.budget
    over = (spends > model.budget).any(axis=-1)
    count = trials * pool
    return Benign(
        Share(int((ratios > 1).sum()), count, float(sizes.mean())),
        Share(int((full > 1).sum()), count, float(n)),
        Share(int(over.sum()), count, float(n)),
    )


@dataclass(frozen=True)
class Simulated:
    """Rates at which each rule names the planted prompt, with its trajectories."""

    gap: float
    paper: Share
    uniform: Share
    halving: Share


def planted_study(
    gap: float = 20.0,
    seed: int = 0,
    trials: int = 500,
    pool: int = 24,
    trajectories: int = 240,
    model: SpendModel | None = None,
) -> Simulated:
    """Plants a prompt that spends `gap` nats more than the next, and looks for it.

    Args:
        gap: In nats.
        seed: Of the simulation.
        trials: Number of pools.
        pool: Prompts of a pool.
        trajectories: Of halving, per pool; the uniform rule uses 4 per prompt.
        model: Spends of prompts.
    """
    if gap <= 0 or pool < 2:
        raise InputError(f"need a gap above 0 and at least 2 prompts, got {gap} and {pool}.")
    model, chance = model or SpendModel(between=20.0), np.random.default_rng([seed, 2])
    means, deviations = model.prompts(chance, (trials, pool))
    best, second = means.argmax(axis=1), np.partition(means, -2, axis=1)[:, -2]
    means[np.arange(trials), best] = second + gap
    plan = halving_plan(pool, trajectories)
    spends = model.spends(chance, means, deviations, max(20, sum(rung.each for rung in plan)))
    ratios, sizes = paper_ratios(spends[..., :20], model.budget, ProxyRule(high=model.budget))
    named = {
        "paper": (ratios.argmax(axis=1), float(sizes.sum(axis=1).mean())),
        "uniform": (spends[..., :4].mean(axis=-1).argmax(axis=1), 4.0 * pool),
        "halving": halved(spends, [(rung.each, rung.keep) for rung in plan]),
    }
    return Simulated(
        gap,
        **{who: Share(int((a == best).sum()), trials, cost) for who, (a, cost) in named.items()},
    )


def halved(spends: Array, plan: list[tuple[int, int]]) -> tuple[NDArray[np.int64], float]:
    """Returns the winner of each row of prompts, and the cost, as `successive_halving` does.

    All prompts of a round have equally many values, so shrinking does not change their order.
    """
    trials = len(spends)
    alive = np.broadcast_to(np.arange(spends.shape[1]), (trials, spends.shape[1]))
    seen = cost = 0
    for each, keep in plan:
        seen, cost = seen + each, cost + each * alive.shape[1]
        means = np.take_along_axis(spends[..., :seen].mean(axis=-1), alive, axis=1)
        order = np.argsort(-means, axis=1, kind="stable")[:, :keep]
        alive = np.take_along_axis(alive, order, axis=1)
    return alive[:, 0], float(cost)


NOMINAL = 20
"""Trajectories of a prompt that the paper's rule tops up."""
UNIFORM = 4
SHARE = 10
"""Trajectories per prompt of the pool that halving may use."""
BANK = 24
"""Trajectories of a prompt's bank."""


@dataclass(frozen=True)
class Hidden:
    """Rates at which each rule names the prompt that uses most.

    Attributes:
        pool: Prompts.
        bank: Trajectories of each.
        best: Id of the prompt with the largest mean of its bank.
        use: Its mean utilisation.
        next: Mean utilisation of the second.
        paper: Largest rho after Algorithm 1 with a constant surrogate.
        uniform: Largest mean of 4.
        halving: Winner of successive halving.
    """

    pool: int
    bank: int
    best: str
    use: float
    next: float
    paper: Share
    uniform: Share
    halving: Share


class _Deal:
    """Draws from a bank and counts them."""

    def __init__(self, bank: Mapping[str, Sequence[Measured]], chance: random.Random) -> None:
        self._bank, self._chance = bank, chance
        self.spent = 0

    def take(self, name: str, count: int) -> list[Measured]:
        self.spent += count
        return self._chance.choices(self._bank[name], k=count)

    def more(self, wanted: Mapping[str, int]) -> dict[str, tuple[float, ...]]:
        return {name: utilisations_of(self.take(name, n)) for name, n in wanted.items()}

    def draws(self, asked: Sequence[PaperRequest]) -> list[PromptSpends]:
        found = [(one.id, self.take(one.id, one.n)) for one in asked]
        return [
            PromptSpends(name, tuple(r.spend for r in rows), tuple(r.granted for r in rows))
            for name, rows in found
        ]


def find_planted(
    bank: Mapping[str, Sequence[Measured]], high: float, trials: int = 500, seed: int = 0
) -> Hidden:
    """Draws from the banks in many trials, in which each rule chooses.

    Args:
        bank: Trajectories of each prompt, equally many.
        high: R of the paper's rule, which is K.
        trials: Number of trials.
        seed: Of the draws.
    """
    sizes = {len(rows) for rows in bank.values()}
    if len(bank) < 2 or len(sizes) != 1 or min(sizes) < 2:
        raise ValueError(f"need 2 prompts with equally many trajectories, got {sizes}.")
    values = {name: utilisations_of(rows) for name, rows in bank.items()}
    means = {one: math.fsum(v) / len(v) if v else -math.inf for one, v in values.items()}
    order = sorted(means, key=lambda name: -means[name])
    chance = random.Random(f"nafaudit search planted {seed}")
    ids, plan = list(bank), halving_plan(len(bank), SHARE * len(bank))
    hits, cost = dict.fromkeys(("paper", "uniform", "halving"), 0), dict[str, int]()
    for _ in range(trials):
        for who in hits:
            deal = _Deal(bank, chance)
            if who == "paper":
                # Unlike the paper's top-up this repeats no seed: the rule without that fault.
                said = [UNREADY] * len(ids)
                rows = survivor_path(ids, NOMINAL, deal.draws, ProxyRule(high), said)
                named = max(rows, key=lambda row: row.stored_rho).id
            elif who == "uniform":
                named = ranked(deal.more(dict.fromkeys(ids, UNIFORM)))[0]
            else:
                named = successive_halving(ids, plan, deal.more).ranking[0]
            hits[who] += named == order[0]
            cost[who] = cost.get(who, 0) + deal.spent
    shares = {who: Share(hits[who], trials, cost[who] / trials) for who in hits}
    return Hidden(
        len(bank), min(sizes), order[0], means[order[0]], means[order[1]],
        shares["paper"], shares["uniform"], shares["halving"],
    )  # fmt: skip


def median_ranks(count: int, delta: float) -> int:
    """Returns the number of values to leave out at each end; 0 if the extremes do not hold.

    The interval from the r-th smallest to the r-th largest of n independent values misses their
    median with chance at most 2 P(Bin(n, 1/2) < r), for any distribution.

    Reference: Thompson (1936), Annals of Mathematical Statistics 7.
    """
    check_level(delta)
    mass, rank = 0.0, 0
    while rank < count // 2:
        mass += math.comb(count, rank) * 0.5 ** (count - 1)
        if mass > delta:
            break
        rank += 1
    return rank


@dataclass(frozen=True)
class Paired:
    """A search against a control, one difference per search seed.

    Attributes:
        control: Name of the control.
        differences: Search minus control, of confirmed mean utilisation.
        delta: Chance that the limits miss.
    """

    control: str
    differences: tuple[float, ...]
    delta: float

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, self.differences)):
            raise InputError("a difference is no number; leave out seeds without a value.")

    @property
    def mean(self) -> float:
        """Of the differences; NaN if there are none."""
        return statistics.fmean(self.differences) if self.differences else math.nan

    @property
    def median(self) -> float:
        """Of the differences; NaN if there are none."""
        return statistics.median(self.differences) if self.differences else math.nan

    @property
    def limits(self) -> tuple[float, float]:
        """Exact limits of the median difference; infinite with too few seeds."""
        rank = median_ranks(len(self.differences), self.delta)
        if not rank:
            return -math.inf, math.inf
        ordered = sorted(self.differences)
        return ordered[rank - 1], ordered[-rank]

    @property
    def wins(self) -> int:
        """Number of seeds in which the search is ahead."""
        return sum(one > 0 for one in self.differences)

    @property
    def answer(self) -> str:
        """Answer in words; limits on both sides of 0 show no difference."""
        low, high = self.limits
        if low > 0:
            return "beats"
        return "loses" if high < 0 else "not told apart"


def paired(
    search: Sequence[float], controls: Mapping[str, Sequence[float]], delta: float
) -> list[Paired]:
    """Compares seed by seed, all controls together at level delta; NaN is left out."""
    return [
        Paired(
            name,
            tuple(
                mine - other
                for mine, other in zip(search, values, strict=True)
                if math.isfinite(mine) and math.isfinite(other)
            ),
            delta / len(controls),
        )
        for name, values in controls.items()
    ]


HIDING = 24
"""Number of prompts in the pool with the hidden one."""


@dataclass(frozen=True)
class Study:
    """Results of a study.

    Attributes:
        found: All searches and controls, confirmed.
        paired: Search against each control, search seeds as units.
        hidden: Rates at which rules find the planted prompt.
    """

    found: SearchResult
    paired: tuple[Paired, ...]
    hidden: Hidden

    def trajectories(self, strategy: str) -> int:
        """Counts a strategy's trajectories, over all search seeds; the first pool is in each."""
        return sum(one.trajectories for one in self.found.explored if one.strategy == strategy)


def run_study(settings: SearchSettings, on_progress: OnProgress) -> Study:
    """Runs, or resumes, the study of one budget.

    Args:
        settings: As for a search.
        on_progress: Called as trajectories end.
    """
    _ = settings.budget
    search = Search.load(settings)
    found = search.run(on_progress, baselines=False)
    values = {who: found.maxima(who) for who in STRATEGIES}
    controls = {who: values[who] for who in STRATEGIES if who != SEARCH}
    return Study(
        found,
        tuple(paired(values[SEARCH], controls, settings.delta)),
        _planted(search, found, on_progress),
    )


def _planted(search: Search, found: SearchResult, on_progress: OnProgress) -> Hidden:
    """Hides the best confirmed finalist among prompts that searches started from."""
    settings = search.settings
    best = max(found.finalists, key=lambda one: -1.0 if math.isnan(one.use.mean) else one.use.mean)
    planted = best.candidate
    order, _ = start_of(search.pools, settings.seed, HIDING - 1)
    others = [replace(one, id=f"beside_{one.id}") for one in order if one.id != planted.id]
    # In the middle, as ties go to the earlier one.
    middle = len(others) // 2
    hidden = replace(planted, id=f"planted_{planted.id}")
    pool = (*others[:middle], hidden, *others[middle:])
    prompts = search.bench.prompts(pool, {})
    extent, place = Extent(settings.k, BANK, tuple(prompts)), search.path / "planted"
    with open_recorder(search.bench, place, "planted", extent, prompts) as recorder:
        recorder.fill([extent], prompts, "banking", on_progress)
        bank = {one.id: recorder.book.rows(one.id, settings.budget, BANK) for one in pool}
    return find_planted(bank, settings.budget * settings.max_new_tokens, seed=settings.seed)


def study_json(study: Study) -> dict[str, Any]:
    """Returns the results of a study as strict JSON."""
    found, hidden = study.found, study.hidden
    shares = {"paper": hidden.paper, "uniform": hidden.uniform, "halving": hidden.halving}
    return {
        "run": str(found.path),
        "k": found.settings.budget,
        "seeds": list(found.settings.search_seeds),
        "trajectories": {who: study.trajectories(who) for who in STRATEGIES},
        "confirmed": {who: [as_number(v) for v in found.maxima(who)] for who in STRATEGIES},
        "paired": [
            {
                "control": one.control,
                "answer": one.answer,
                "mean": as_number(one.mean),
                "median": as_number(one.median),
                "low": as_number(one.limits[0]),
                "high": as_number(one.limits[1]),
                "wins": one.wins,
                "differences": list(one.differences),
                "delta": one.delta,
            }
            for one in study.paired
        ],
        "planted": {
            "pool": hidden.pool,
            "bank": hidden.bank,
            "best": hidden.best,
            "use": as_number(hidden.use),
            "next": as_number(hidden.next),
            "found": {
                name: {
                    "rate": one.rate,
                    "low": one.interval[0],
                    "high": one.interval[1],
                    "trials": one.trials,
                    "trajectories": one.trajectories,
                }
                for name, one in shares.items()
            },
        },
    }


def write_study(study: Study) -> Path:
    """Writes RUN/study.json; equal records give equal bytes."""
    path = study.found.path / "study.json"
    write_whole(path, json.dumps(study_json(study), indent=2).encode() + b"\n")
    return path


def study_text(study: Study, seconds: float) -> str:
    """Returns both experiments as text of at most 80 columns.

    Args:
        study: Results.
        seconds: CPU seconds of this session.
    """
    found, hidden = study.found, study.hidden
    seeds = found.settings.search_seeds
    used = ", ".join(f"{who} {study.trajectories(who)}" for who in STRATEGIES)
    confirmed = Table(
        (
            Column("first finalist", words=True),
            *(Column(str(seed), write="{:.0%}".format) for seed in seeds),
        ),
        tuple((who, *found.spread[who]) for who in STRATEGIES),
    )
    lines = []
    for one in study.paired:
        words = {
            "beats": f"the search beats {one.control}",
            "loses": f"the search LOSES to {one.control}",
            "not told apart": f"not shown that the search beats {one.control}",
        }[one.answer]
        ends = [points(value) for value in (one.mean, one.median, *one.limits)]
        lines.append(
            f"{words}: in {one.wins} of {len(one.differences)} seeds, mean {ends[0]},\n"
            f"  median {ends[1]} (exact limits {ends[2]} to {ends[3]}, level {one.delta:g})"
        )
    rules = {
        "the paper's, by rho": hidden.paper,
        "plain mean of 4": hidden.uniform,
        "successive halving": hidden.halving,
    }
    heads = ("trajectories", "finds it", "95 % limits")
    finds = Table(
        (Column("rule", words=True), *map(Column, heads)),
        tuple(
            (rule, f"{share.trajectories:.0f}", f"{100 * share.rate:.1f} %",
             f"{100 * low:.1f} - {100 * high:.1f} %")
            for rule, share in rules.items()
            for low, high in (share.interval,)
        ),
    )  # fmt: skip
    about = (
        f"k = {found.settings.budget:g}, {len(seeds)} search seeds",
        f"trajectories explored: {used}",
    )
    planted = (
        f"one prompt hidden among {hidden.pool}: it uses {percent(hidden.use)}, the next "
        f"{percent(hidden.next)} ({hidden.bank} trajectories of each are their laws)"
    )
    sections = (Section(table=confirmed, lines=tuple(lines)), Section(planted, table=finds))
    files = (f"CPU seconds of this session: {seconds:.0f}", f"search directory: {found.path}")
    return terminal(Document("search study", sections, lines=about, files=files))


def simulated() -> dict[str, Any]:
    """Runs both simulations at their defaults, the planted prompt at three gaps."""
    planted = [planted_study(gap) for gap in (20.0, 40.0, 80.0)]
    return {"benign": asdict(benign_study()), "planted": [asdict(one) for one in planted]}


def given_options(words: Sequence[str]) -> tuple[Path | None, dict[str, Any]]:
    """Reads a design file and options of nafaudit search from the command line."""
    design, given, rest = None, dict[str, Any](), list(words)
    if rest and not rest[0].startswith("--"):
        design = Path(rest.pop(0))
    if len(rest) % 2 or not all(name.startswith("--") for name in rest[::2]):
        raise InputError(f"options are --name value, as of nafaudit search; got {rest}.")
    for name, value in zip(rest[::2], rest[1::2], strict=True):
        try:
            known = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            known = value
        key = name[2:].replace("-", "_")
        given[key] = (float(known),) if key == "k" else known
    return design, given


def main(words: Sequence[str]) -> int:
    """Runs a study and prints it."""
    if "--help" in words:
        sys.stdout.write(str(__doc__))
        return 0
    if "--simulated" in words:
        sys.stdout.write(json.dumps(simulated(), indent=2) + "\n")
        return 0
    design, given = given_options([word for word in words if word != "--json"])
    settings = load(SearchSettings, design, given if design else SIZES | given)
    study = run_study(settings, lambda progress: None)
    write_result(study.found)
    write_study(study)
    in_json = json.dumps(study_json(study), indent=2)
    said = in_json if "--json" in words else study_text(study, time.process_time())
    sys.stdout.write(said + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except InputError as error:
        sys.exit(f"error: {error}")
