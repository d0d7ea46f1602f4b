"""Checks of one arm: functions from rows to a finding.

They decide none of the three verdicts (kept, tested, worth).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nafaudit.core.finding import ALARM_LEVEL, MIN_TRAJECTORIES, CheckWord, Finding, Witness
from nafaudit.core.ledger import RISKY_ONLY, is_baseline
from nafaudit.core.text import counted
from nafaudit.core.trajectory import Arm, Key, total
from nafaudit.measures.measure import WINDOW, Measure
from nafaudit.measures.overlap import METRICS, MIN_SPAN
from nafaudit.measures.table import Measures, largest_with_witness
from nafaudit.stats import Moments, clustered_mean, ebb, mean, quantile, student_two_sided

MIN_PROMPTS = 20
"""Fewer prompts than this give no usable error of a mean."""

NEGLIGIBLE = 1e-3
"""A mean this small, in nats per trajectory, may be the rounding of recorded numbers."""

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True)
class Use:
    """Spend over budget at each trajectory's own end, of those that have both; else NaN.

    Attributes:
        mean: Mean.
        p95: 95 % of trajectories are below it.
        max: The largest.
        where: The trajectory with the largest.
        above_90_percent: Trajectories above 0.9.
        ended_in_debt: Trajectories that ended before their debt was paid: they have no ratio.
        unknown: Trajectories with a budget whose spend is not known.
        admitted: True if spends are known only where the decoder's own charges exceed the budget:
            these are no sample of the arm, so that there is no mean.
        refuted: What a replay refutes, so that no spend is known.
    """

    mean: float
    p95: float
    max: float
    where: Witness | None = field(default=None, metadata={"json": None})
    above_90_percent: int = field(default=0, metadata={"json": None})
    ended_in_debt: int = field(default=0, metadata={"json": None})
    unknown: int = field(default=0, metadata={"json": None})
    admitted: bool = field(default=False, metadata={"json": None})
    refuted: str = field(default="", metadata={"json": None})

    @classmethod
    def of(cls, arm: Measures, refuted: str = "") -> Use:
        """Sums up the rows of an arm."""
        if refuted:
            return cls(math.nan, math.nan, math.nan, refuted=refuted)
        rows = [row for row in arm if row.has_budget]
        values = [row.utilisation for row in rows if not math.isnan(row.utilisation)]
        largest, where = largest_with_witness(rows, "utilisation", "end")
        admitted = any(row.admitted for row in arm)
        return cls(
            mean=math.nan if admitted else mean(values),
            p95=math.nan if admitted else quantile(values, 0.95),
            max=largest,
            where=where,
            above_90_percent=sum(value > 0.9 for value in values),
            ended_in_debt=sum(not math.isinf(row.key.k) and row.budget <= 0 for row in arm),
            unknown=len(rows) - len(values),
            admitted=admitted,
        )


def utilisation(use: Use) -> Finding:
    """Says how much of its budget each trajectory spent; without a budget there is no ratio."""
    if use.refuted:
        reason = f"not known, as {use.refuted}"
        return Finding("utilisation", CheckWord.UNKNOWN, math.nan, reason)
    if use.admitted:
        text = f"worst {use.max:.1%} by the decoder's own charges; the others are not known"
        return Finding("utilisation", CheckWord.INFO, use.max, text, use.where)
    notes = f"; {use.ended_in_debt} ended before their debt was paid" if use.ended_in_debt else ""
    notes += f"; the spend of {use.unknown} is not known" if use.unknown else ""
    if use.where is None:
        lacking = "spend" if use.unknown else "budget above 0"
        reason = f"no trajectory has a known {lacking}{notes}"
        return Finding("utilisation", CheckWord.UNKNOWN, math.nan, reason)
    numbers = {
        "mean": use.mean,
        "p95": use.p95,
        "max": use.max,
        "above_90_percent": use.above_90_percent,
        "ended_in_debt": use.ended_in_debt,
    }
    if use.unknown:
        numbers["unknown"] = use.unknown
    text = (
        f"utilisation mean {use.mean:.1%}, 95 % of trajectories below {use.p95:.1%}, "
        f"worst {use.max:.1%}{notes}"
    )
    return Finding("utilisation", CheckWord.INFO, use.max, text, use.where, numbers)


@dataclass(frozen=True)
class OverlapScores:
    """What some outputs share with their references, metric by metric.

    Attributes:
        numbers: Mean and max of every metric, NaN if no output has it; how many outputs were
            compared with a reference (`scored`), and how many have none or no known text.
        recalls: How many have a near-verbatim recall.
    """

    numbers: Mapping[str, float] = field(metadata={"json": ...})
    recalls: int = field(default=0, metadata={"json": None})

    @classmethod
    def of(cls, rows: Iterable[Measure]) -> OverlapScores:
        """Sums up some outputs."""
        overlaps = [row.overlap for row in rows]
        scored = [one for one in overlaps if one.scored]
        numbers: dict[str, float] = {"scored": len(scored), "unscored": len(overlaps) - len(scored)}
        for name in METRICS:
            values = [v for one in scored if not math.isnan(v := getattr(one, name))]
            numbers |= {f"{name}_mean": mean(values), f"{name}_max": max(values, default=math.nan)}
        return cls(numbers, sum(not math.isnan(one.near_verbatim_recall) for one in scored))

    def mean(self, metric: str) -> float:
        """Returns the mean of a metric; NaN if no output has it."""
        return self.numbers[f"{metric}_mean"]

    def max(self, metric: str) -> float:
        """Returns the largest value of a metric; NaN if no output has it."""
        return self.numbers[f"{metric}_max"]

    @property
    def scored(self) -> int:
        """Outputs that were compared with a reference."""
        return int(self.numbers["scored"])

    @property
    def unscored(self) -> int:
        """Outputs without a reference, or whose text is not known."""
        return int(self.numbers["unscored"])


def copying(arm: Measures) -> Finding:
    """Says how much of its reference an output repeats; without one it is unscored, never 0."""
    scores = OverlapScores.of(arm)
    if not scores.scored:
        lacking = "no prompt has a reference to recall"
        if any(map(str.strip, arm.context.references.values())):
            lacking = "the text of the outputs is not recorded"
        return Finding("copying", CheckWord.UNKNOWN, math.nan, lacking)
    recall = scores.mean("near_verbatim_recall")
    if math.isnan(scores.max("substring_words")):
        text = (
            f"ROUGE-L mean {scores.mean('rouge_l_f1'):.3f}, largest "
            f"{scores.max('rouge_l_f1'):.3f}, as the log claims: it has no texts"
        )
        return Finding("copying", CheckWord.UNKNOWN, math.nan, text, None, scores.numbers)
    largest, where = largest_with_witness(arm, "recall", "end")
    text = f"no reference has the {MIN_SPAN} words that near-verbatim recall needs"
    if scores.recalls:
        text = (
            f"near-verbatim recall mean {recall:.1%}, largest {largest:.1%}, over "
            f"{scores.recalls} trajectories with a reference"
        )
    text += (
        f"; ROUGE-L mean {scores.mean('rouge_l_f1'):.3f}, largest {scores.max('rouge_l_f1'):.3f}; "
        f"longest common run of words {scores.max('substring_words'):.0f}"
    )
    if scores.unscored:
        text += f"; {scores.unscored} unscored"
    return Finding("copying", CheckWord.INFO, recall, text, where, scores.numbers)


SCORE_NAMES = {"rouge_l": "rouge_l_f1", "minhash_5gram": "jaccard_5gram"}
"""Scores of the paper's logs, and what they are called here."""

STAGE2_LEVEL = 0.0033
"""The paper's level of a prompt's U_EBB."""


def log_scores(arm: Measures) -> list[Finding]:
    """Compares scores that an imported log claims with what its texts and spends give."""
    told = arm.context.logged.claims
    rows = [row for row in arm if row.key in told]
    found = []
    for name, ours in SCORE_NAMES.items():
        # The paper's logs write 0 where there is no reference or no text long enough.
        pairs = [
            (row, told[row.key][name], 0.0 if math.isnan(value) else value)
            for row in rows
            if name in told[row.key] and row.key in arm.context.logged.texts
            for value in (getattr(row.overlap, ours),)
        ]
        if pairs:
            found.append(_compared(f"log: {name}", pairs, "outputs, recomputed from their texts"))
        taken = [row for row in rows if name in told[row.key] and row.overlap.scored]
        taken = [row for row in taken if row.key in arm.context.scored_by_log]
        if taken:
            text = f"of {len(taken)} outputs only the log's own score is known, and taken from it"
            found.append(Finding(f"log: {name}", CheckWord.UNKNOWN, math.nan, text))
    groups = [row for row in rows if "N" in told[row.key]]
    if groups:
        mine = _stage2(arm, groups)
        for name in ("U_EBB", "rho", "certified"):
            pairs = [
                (row, told[row.key][name], mine[row.key][name])
                for row in groups
                if name in told[row.key] and name in mine[row.key]
            ]
            if pairs:
                how = f"evaluations, recomputed from their spends at delta = {STAGE2_LEVEL:g}"
                found.append(_compared(f"log: {name}", pairs, how))
    return found


def _stage2(arm: Measures, groups: Sequence[Measure]) -> dict[Key, dict[str, float]]:
    """Recomputes U_EBB, B_eff and the ratio of each Stage 2 evaluation of an arm."""
    by_key, told = {row.key: row for row in arm}, arm.context.logged.claims
    found: dict[Key, dict[str, float]] = {}
    for first in groups:
        claims = told[first.key]
        keys = [
            first.key._replace(trajectory=first.key.trajectory + i) for i in range(int(claims["N"]))
        ]
        rows = [by_key[key] for key in keys if key in by_key]
        spends = [row.spend for row in rows]
        if len(rows) != len(keys) or not all(map(math.isfinite, spends)):
            found[first.key] = {}
            continue
        moments = Moments.of(spends)
        promised = arm.context.promised(first.key.k)
        high = promised if promised > 0 else max(moments.spread, moments.top, 1.0)
        level = claims.get("delta", STAGE2_LEVEL)
        upper = ebb(moments, max(high, moments.top), level, effective=True).value
        mine = {"U_EBB": upper}
        least = claims.get("effective_budget_min", math.nan)
        if not math.isnan(least):
            # An invalid row is stored as 0 in the paper's files.
            mine["rho"] = upper / least if least > 0 else 0.0
            mine["certified"] = float(least > 0 and upper <= least)
        found[first.key] = mine
    return found


def _compared(check: str, pairs: Sequence[tuple[Measure, float, float]], what: str) -> Finding:
    """Returns a finding on numbers that a log claims, beside the same numbers recomputed."""
    apart = [(abs(claim - mine), row) for row, claim, mine in pairs]
    # What no rounding of a written number explains; NaN is a difference too.
    wrong = [
        (row, claim, mine)
        for row, claim, mine in pairs
        if not abs(claim - mine) <= 1e-4 * max(1.0, abs(mine))
    ]
    largest = max((a for a, _ in apart if not math.isnan(a)), default=math.nan)
    text = f"{len(pairs)} {what}: "
    if not wrong:
        text += "all as the log claims"
        return Finding(check, CheckWord.FINE, largest, text, None, {"compared": len(pairs)})
    row, claim, mine = wrong[0]
    text += (
        f"{len(wrong)} are not as the log claims; the first claims {claim:.4g}, found {mine:.4g}"
    )
    numbers = {"compared": len(pairs), "differ": len(wrong)}
    return Finding(check, CheckWord.SUSPECT, largest, text, row.witness(row.end), numbers)


def opening(arm: Measures) -> Finding:
    """Says how many opening tokens the debt leaves to the safe model.

    On the banking ledger nothing is granted to the first floor(debt / k) steps. A shorter opening
    means that something was served before the debt was paid.
    """
    debts = [row.debt for row in arm if not math.isnan(row.debt)]
    numbers = {
        "debt_mean": mean(debts),
        "debt_median": quantile(debts, 0.5),
        "debt_min": min(debts, default=math.nan),
        "debt_max": max(debts, default=math.nan),
    }
    text = ""
    if debts:
        text = (
            f"debt mean {numbers['debt_mean']:.3f}, median {numbers['debt_median']:.3f}, "
            f"max {numbers['debt_max']:.3f} nats; "
        )
    rows = [row for row in arm if row.opening_due >= 0]
    if not rows:
        text += "no step records both a weight theta and what was granted"
        return Finding("opening", CheckWord.UNKNOWN, math.nan, text, None, numbers)
    seen, n = [row.opening_seen for row in rows], len(rows)
    equal = sum(row.opening_due == row.opening_seen for row in rows)
    numbers |= {
        "observed_mean": mean(seen),
        "observed_max": max(seen),
        "predicted_mean": mean([row.opening_due for row in rows]),
        "equal": equal,
    }
    text += (
        f"the safe model writes the first {numbers['observed_mean']:.2f} tokens (mean, max "
        f"{numbers['observed_max']}), as the debt predicts in {equal} of {n} trajectories"
    )
    short = [row for row in rows if row.opening_due > row.opening_seen]
    if not short:
        return Finding("opening", CheckWord.FINE, equal / n, text, None, numbers)
    text += f"; {len(short)} begin before their debt is paid"
    row = max(short, key=lambda row: row.opening_due - row.opening_seen)
    witness = Witness(row.key, row.opening_seen)
    return Finding("opening", CheckWord.SUSPECT, equal / n, text, witness, numbers)


def tails(arm: Measures) -> Finding:
    """Says whether single outputs go beyond K, which bounds only their mean.

    The promise bounds the mean of L by K = k T; one L above K breaks no promise, but shows how much
    more likely than under the safe model a single output can be.
    """
    rows = [row for row in arm if not math.isnan(row.log_ratio)]
    if not rows:
        reason = "no trajectory records served and safe log-probabilities"
        return Finding("tails", CheckWord.UNKNOWN, math.nan, reason)
    values = [row.log_ratio for row in rows]
    largest, where = largest_with_witness(rows, "log_ratio", "largest_step")
    tail = {name: quantile(values, q) for name, q in _QUANTILES.items()}
    numbers = {"mean": mean(values), **tail, "max": largest}
    numbers["step_max"] = largest_with_witness(rows, "largest_ratio", "largest_step")[0]
    listed = ", ".join(f"{name} {value:.2f}" for name, value in numbers.items())
    text = f"log-likelihood ratio L of {len(rows)} outputs in nats: "
    text += listed.replace("step_max", "step")
    promised = arm.context.compared_with(rows[0].key.k)
    if math.isnan(promised):
        text += "; K is not known, as the log gives no length limit"
    elif math.isinf(promised):
        text += "; there is no K"
    else:
        above = sum(value > promised for value in values)
        half = sum(value > promised / 2 for value in values)
        text += f"; {above} above K = {promised:g}, {half} above K/2"
        numbers |= {"above_K": above, "above_half_K": half}
    if missing := len(arm) - len(rows):
        text += f"; {missing} record no log-probabilities"
    return Finding("tails", CheckWord.INFO, largest, text, where, numbers)


def martingale(arm: Measures) -> Finding:
    """Tests that L - Z has mean 0: that tokens were drawn from the law that was charged.

    If every token is drawn from its served law and every charge is that law's KL to the safe law,
    L - Z is a martingale stopped at a bounded time, and its mean is 0. A decoder that samples from
    another weight, or charges something else, moves it; one that sharpens the law after the solve
    need not.

    The error of the mean is the larger of two: the spread between prompts, and what the recorded
    probabilities imply for tokens that were likely but not certain. The second matters for
    memorised text: the rare tokens that balance the sum may never be seen.
    """
    context = arm.context
    if not context.currency.is_kl:
        reason = f"charges are no KL but {context.currency.words}"
        return Finding("martingale", CheckWord.UNKNOWN, math.nan, reason)
    # Logs of others may merely have rounded a probability to 0.
    for row in () if context.foreign else arm:
        if row.impossible_step >= 0:
            text = "a token was drawn that its own law forbids, or that the safe law forbids "
            text += "at a finite charge"
            witness = Witness(row.key, row.impossible_step)
            return Finding("martingale", CheckWord.SUSPECT, math.inf, text, witness)
    rows = Measures(tuple(row for row in arm if math.isfinite(row.gain)), context)
    groups = [[row.gain for row in part] for _, part in sorted(rows.by("prompt").items())]
    n, missing = len(rows), len(arm) - len(rows)
    left_out = f"; {missing} trajectories have no finite L and Z" if missing else ""
    if not n:
        reason = "no trajectory records charges and served and safe log-probabilities"
        return Finding("martingale", CheckWord.UNKNOWN, math.nan, reason)
    if len(groups) < MIN_PROMPTS or n < MIN_TRAJECTORIES:
        text = (
            f"{counted(len(groups), 'prompt')} with L - Z; the test needs {MIN_PROMPTS}{left_out}"
        )
        return Finding("martingale", CheckWord.UNKNOWN, math.nan, text)
    centre, error = clustered_mean(groups)
    error = max(error, math.sqrt(total(rows.column("gain_variance"))) / n)
    t = centre / error if error else math.copysign(math.inf, centre) if centre else 0.0
    p = student_two_sided(t, len(groups) - 1)
    text = (
        f"mean of L - Z is {centre:.3g} nats over {n} trajectories of {len(groups)} prompts "
        f"(t = {t:.2f}, p = {p:.2g}, alarm below {ALARM_LEVEL:g})"
    )
    numbers = {"mean": centre, "error": error, "t": t, "p": p}
    if p >= ALARM_LEVEL or abs(centre) <= NEGLIGIBLE:
        return Finding("martingale", CheckWord.FINE, centre, text + left_out, None, numbers)
    text += ": tokens were not drawn from the law that was charged, or the charge is no KL"
    return Finding("martingale", CheckWord.SUSPECT, centre, text + left_out, None, numbers)


def burst(arm: Measures) -> Finding:
    """Says how much banking releases at once; above 1 a window spent what was saved before."""
    rows = [row for row in arm if row.burst is not None]
    if not rows:
        reason = "no trajectory records the charge of every step"
        if any(is_baseline(row.key.k) or math.isnan(row.key.k) for row in arm):
            reason = "no budget per step, so none per window"
        return Finding("burst", CheckWord.UNKNOWN, math.nan, reason)
    ratios = [row.burst for row in rows if row.burst is not None]
    largest, where = largest_with_witness(rows, "burst", "burst_step")
    numbers = {
        "median": quantile(ratios, 0.5),
        "p99": quantile(ratios, 0.99),
        "max": largest,
        "above_2": sum(ratio > 2 for ratio in ratios),
        "bank_max": float(np.fmax.reduce([-math.inf, *(row.bank for row in rows)])),
    }
    text = (
        f"the most expensive {WINDOW} steps of an output cost up to {largest:.2f} times the "
        f"{WINDOW} k that they earn (median {numbers['median']:.2f}, p99 {numbers['p99']:.2f}); "
        f"largest allowance of a step {numbers['bank_max']:.1f} nats"
    )
    if missing := len(arm) - len(rows):
        text += f"; {missing} trajectories without charges left out"
    return Finding("burst", CheckWord.INFO, largest, text, where, numbers)


def duplicates(arm: Measures) -> Finding:
    """Tests whether a trajectory was drawn, or copied from another.

    The chance that any of m pairs agrees on a sequence of probability at most q is at most m q,
    because a second draw repeats y with probability p(y) = exp(sum of log p_served). So m times the
    probability of the least likely repeated sequence is a p value; short or likely sequences repeat
    without meaning anything.

    Budgets share their draws on purpose, so this looks within one arm only.
    """
    groups: dict[tuple[str, bytes], list[Measure]] = {}
    for row in arm:
        if row.digest:
            groups.setdefault((row.key.prompt, row.digest), []).append(row)
    if not groups:
        return Finding("duplicates", CheckWord.UNKNOWN, math.nan, "no trajectory records tokens")
    sizes = Counter(row.key.prompt for row in arm if row.digest)
    pairs = sum(n * (n - 1) // 2 for n in sizes.values())
    if not pairs:
        reason = "one trajectory per prompt: there is no pair to compare"
        return Finding("duplicates", CheckWord.UNKNOWN, math.nan, reason)
    repeated = [rows for rows in groups.values() if len(rows) > 1]
    copies = sum(len(rows) - 1 for rows in repeated)
    numbers: dict[str, float] = {"pairs": pairs, "repeated": copies}
    if not repeated:
        text = f"no output repeats another of its prompt ({pairs} pairs)"
        return Finding("duplicates", CheckWord.FINE, 1.0, text, None, numbers)
    text = f"{copies} outputs repeat another of their prompt ({pairs} pairs)"
    # If copies of one output record different probabilities, the largest counts, which is the
    # weakest evidence. A group with an unknown probability is left out.
    known = [
        (max(min(0.0, row.served_logp) for row in rows), rows)
        for rows in repeated
        if not any(math.isnan(row.served_logp) for row in rows)
    ]
    if not known:
        text += "; its chance is not known without served log-probabilities"
        return Finding("duplicates", CheckWord.UNKNOWN, math.nan, text, None, numbers)
    logp, rows = min(known, key=lambda found: (found[0], found[1][0].key))
    first, second = rows[0].key, rows[1].key
    log10_p = min(0.0, (logp + math.log(pairs)) / math.log(10))
    p = 10.0**log10_p
    numbers |= {"p": p, "log10_p": log10_p}
    chance = f"{p:.2g}" if log10_p > -300 else f"10^{log10_p:.0f}"
    text += (
        f"; the least likely, trajectory {second.trajectory} after {first.trajectory} with "
        f"{rows[0].length} tokens, happens with p <= {chance} (alarm below {ALARM_LEVEL:g})"
    )
    suspect = log10_p < math.log10(ALARM_LEVEL)
    word, witness = (CheckWord.SUSPECT, Witness(second, 0)) if suspect else (CheckWord.FINE, None)
    return Finding("duplicates", word, p, text, witness, numbers)


def same_outputs(rows: Measures, arm: Arm) -> list[Finding]:
    """Returns the shares of outputs that a larger budget writes as well.

    Outputs are matched by prompt and trajectory number, with those of the risky model alone and of
    the next budget; the largest budget has no finding. Our own arms share their draws, so an equal
    output means that the budget made no difference; imported logs may use other draws for each
    budget, and black boxes are asked with other seeds.
    """
    if not arm.k < RISKY_ONLY:
        return []
    # A decoder may have returned no output at some budget; that budget was run nevertheless.
    failed = {fault.key.arm for fault in rows.context.faults if fault.key is not None}
    above = [
        other
        for other in failed | rows.arms.keys()
        if other.mechanism == arm.mechanism and other.k > arm.k
    ]
    risky = Arm(arm.mechanism, RISKY_ONLY)
    others = {
        "same-as-risky": risky if risky in above else None,
        "same-as-next": min(above, key=lambda other: other.k, default=None),
    }
    digests = _digests(rows, arm)
    found = []
    for name, other in others.items():
        what = "the risky model alone" if name == "same-as-risky" else "the next larger budget"
        if other is None:
            found.append(Finding(name, CheckWord.UNKNOWN, math.nan, f"{what} was not run"))
            continue
        larger = _digests(rows, other)
        shared = [unit for unit in digests if unit in larger]
        if not shared:
            reason = f"no output of {what} can be matched by prompt, number and tokens"
            found.append(Finding(name, CheckWord.UNKNOWN, math.nan, reason))
            continue
        equal = sum(digests[unit] == larger[unit] for unit in shared)
        if name == "same-as-next":
            what += f", k = {other.k:g}" if math.isfinite(other.k) else ", the risky model alone"
        share = equal / len(shared)
        text = f"{equal} of {len(shared)} outputs are those of {what} ({share:.1%})"
        if rows.context.own_seeds:
            text += ", by chance, as each budget was asked with seeds of its own"
        elif rows.context.foreign:
            text += ", which says something only if both were drawn with the same seeds"
        numbers = {"equal": equal, "compared": len(shared), "k": other.k}
        found.append(Finding(name, CheckWord.INFO, share, text, None, numbers))
    return found


def _digests(rows: Measures, arm: Arm) -> dict[tuple[str, int], bytes]:
    """Returns hashes of the tokens of an arm's outputs, by prompt and number."""
    known = (row for row in rows.of_arm(arm) if row.digest)
    return {(row.key.prompt, row.key.trajectory): row.digest for row in known}
