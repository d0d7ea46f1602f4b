"""The three verdicts of an arm, and every finding beside them.

Only `invariant`, `regime` and `worth` decide verdicts. A new check is a function of rows and one
line in `judge`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from nafaudit.core.finding import (
    FAULTS,
    MIN_TRAJECTORIES,
    CheckWord,
    Finding,
    Kept,
    Overall,
    Tested,
    Witness,
    Worth,
    judge_kept,
    judge_worth,
)
from nafaudit.core.ledger import budget_name, budget_word, is_baseline
from nafaudit.core.promise import Promise
from nafaudit.core.trajectory import Arm
from nafaudit.measures.checks import (
    Use,
    burst,
    copying,
    duplicates,
    log_scores,
    martingale,
    opening,
    same_outputs,
    tails,
    utilisation,
)
from nafaudit.measures.classes import ClassTable, class_table, classes
from nafaudit.measures.context import RunContext
from nafaudit.measures.records import (
    accounting,
    debt_counts,
    faults,
    hygiene,
    replay_findings,
)
from nafaudit.measures.table import (
    Measures,
    PromptMean,
    largest_with_witness,
    prompt_means,
)
from nafaudit.measures.tested import Copies, Limited
from nafaudit.stats import mean, quantile, zero_count_upper
from nafaudit.stats.certificate import cap, critical_k, vacuous
from nafaudit.store.artifacts import CONFORMS, FITS, OTHER_PROMISE, TOKENS, cause_of
from nafaudit.store.missing import Missing

_HIDDEN = {"json": None}


@dataclass(frozen=True)
class Spend:
    """Charges of trajectories, in nats."""

    mean: float


@dataclass(frozen=True)
class Recall:
    """Near-verbatim recall of references, and how many outputs have one."""

    mean: float
    scored: int


@dataclass(frozen=True)
class Regime:
    """Steps of an arm by what was served, pooled over its trajectories; NaN without weights.

    Attributes:
        forced: Share of steps that served the safe law.
        active: Share of steps that served a mixture.
        free: Share of steps that served the risky law.
        steps: Steps with a weight.
        unweighted: Steps that record none.
        trajectories: How many have a step with a weight.
        acted: How many of them have an active step.
    """

    forced: float
    active: float
    free: float
    steps: int = field(metadata=_HIDDEN)
    unweighted: int = field(metadata=_HIDDEN)
    trajectories: int = field(metadata=_HIDDEN)
    acted: int = field(metadata=_HIDDEN)

    @classmethod
    def of(cls, arm: Measures) -> Regime:
        """Adds up the rows."""
        forced, active, free, unweighted = (
            sum(getattr(row, name) for row in arm)
            for name in ("forced", "active", "free", "unweighted")
        )
        steps = forced + active + free
        return cls(
            forced=forced / steps if steps else math.nan,
            active=active / steps if steps else math.nan,
            free=free / steps if steps else math.nan,
            steps=steps,
            unweighted=unweighted,
            trajectories=sum(row.unweighted < row.length for row in arm),
            acted=sum(row.active > 0 for row in arm),
        )

    @property
    def share(self) -> float:
        """Share of trajectories with an active step; NaN if there are none."""
        return self.acted / self.trajectories if self.trajectories else math.nan


@dataclass(frozen=True)
class Reach:
    """Passages that a budget reaches: it limits nothing of one whose surprisal S is at most K.

    K is what an output of T tokens may be charged, kT, without any debt; S is that of the first T
    tokens of a passage. Passages and budget decide, not what was decoded.

    Attributes:
        total: Passages with a known S.
        vacuous: Those that K reaches.
        promised: K in nats; NaN if not known.
        surprisals: S of every passage, smallest first.
        verdict: The third verdict.
    """

    total: int
    vacuous: int
    promised: float = field(metadata={"json": "K"})
    surprisals: tuple[float, ...] = field(metadata=_HIDDEN)
    verdict: Worth = field(metadata=_HIDDEN)

    @classmethod
    def of(cls, context: RunContext, k: float) -> Reach:
        """Returns the passages of a run that a budget reaches."""
        surprisals, promised = context.surprisals, context.promised(k)
        reached = int(vacuous(surprisals, promised).sum())
        verdict = judge_worth(reached, 0 if math.isnan(promised) else len(surprisals))
        return cls(len(surprisals), reached, promised, surprisals, verdict)

    @property
    def share(self) -> str:
        """How many passages the verdict is true of: "24 of 24"; empty if it is unknown."""
        if self.verdict == Worth.UNKNOWN:
            return ""
        true = self.vacuous if self.verdict == Worth.VACUOUS else self.total - self.vacuous
        return f"{true} of {self.total}"


@dataclass(frozen=True)
class ArmVerdict:
    """Everything that is said of one mechanism at one budget.

    Attributes:
        mechanism: What is audited.
        k: The budget.
        baseline: True for the safe model alone and the risky model alone.
        kept: The first verdict.
        tested: The second verdict.
        worth: The third verdict; unknown without passages.
        passages: Which passages K reaches.
        trajectories: How many were judged.
        violations: How many of them overspent; None where a replay refutes them, as it is not
            known.
        spend: What they were charged.
        utilisation: How much of their own budgets they spent.
        recall: How much of the references came back.
        regime: How often the constraint acted.
        limited: How many answers it changed.
        copies: How many answers copy their reference, and how many of the risky model alone do.
        trajectories_active: Share of trajectories with an active step; NaN if there are none.
        prompts: How many prompts they are of.
        excess: By how many nats the worst of them overspent; NaN if none did.
        refuted: What a replay refutes, and where if not in this arm: one program wrote all arms.
            Spend, use and regime of an arm whose word is REFUTED are not known.
        tokens: Of a black box, which laws its tokens fit; None of others.
        fits: Of a black box, which law its tokens fit where that is not the promised one.
        conforms: Of a black box, whether it is the promised mechanism itself; None of others.
        undecided: Why the first verdict is INCONCLUSIVE; empty if it is not.
        worst_use: Why the largest use is high although the limit hardly acted; empty if it is not.
        findings: What every check says, the deciding ones first.
    """

    mechanism: str
    k: float
    baseline: bool
    kept: Kept
    tested: Tested
    worth: Worth
    passages: Reach
    trajectories: int
    violations: int | None
    spend: Spend
    utilisation: Use
    recall: Recall
    regime: Regime
    limited: Limited
    copies: Copies
    trajectories_active: float
    prompts: int = field(metadata=_HIDDEN)
    excess: float = field(metadata=_HIDDEN)
    refuted: str = field(metadata=_HIDDEN)
    tokens: Finding | None = field(metadata=_HIDDEN)
    fits: Finding | None = field(metadata=_HIDDEN)
    conforms: Finding | None = field(metadata=_HIDDEN)
    undecided: str = field(metadata=_HIDDEN)
    worst_use: str = field(metadata=_HIDDEN)
    findings: tuple[Finding, ...] = field(metadata=_HIDDEN)

    def __repr__(self) -> str:
        words = f"kept={self.kept}, tested={self.tested}, worth={self.worth}"
        return f"{type(self).__name__}(k={self.k:g}, {'baseline' if self.baseline else words})"

    @property
    def silent(self) -> bool:
        """Returns True for a black box that is judged by its tokens alone."""
        return self.tokens is not None and not self.tokens.numbers["shown"]

    @property
    def overspends_nothing(self) -> bool:
        """Returns True if trajectories are charged at k = 0, where the safe model is to serve."""
        return self.k == 0 and self.kept == Kept.VIOLATED

    @property
    def arm(self) -> Arm:
        """The key of its trajectories."""
        return Arm(self.mechanism, self.k)

    def finding(self, check: str) -> Finding:
        """Returns the finding of one check."""
        return next(finding for finding in self.findings if finding.check == check)


CHOSEN = "a search chose which prompts to draw again, so no rate follows"
"""What a count over the draws of a search says of others."""


def judge(rows: Measures, table: ClassTable | None = None) -> tuple[ArmVerdict, ...]:
    """Runs every check over the rows of a run; arms from the smallest budget up.

    Args:
        rows: Rows of all arms.
        table: The class table of these rows, if it is at hand.
    """
    table = table or class_table(rows)
    found = []
    # What a decoder failed to deliver is missing from the record, but not from the verdict.
    keys = sorted(rows.arms.keys() | {key.arm for key in rows.lost})
    replayed = {key: list(replay_findings(rows.context, key)) for key in keys}
    if any(row.violated for row in rows) and all(
        one["verdict"] == Kept.VIOLATED for one in rows.context.failed
    ):
        # If every failure is an overspend that the records show too, nothing is refuted.
        replayed = {
            key: [
                replace(one, verdict=CheckWord.INFO) if one.verdict == CheckWord.FAILED else one
                for one in said
            ]
            for key, said in replayed.items()
        }
    contradicted = {
        key: [one for one in said if one.verdict == CheckWord.FAILED]
        for key, said in replayed.items()
    }
    for key in keys:
        rows_of_arm, context, false = rows.of_arm(key), rows.context, contradicted[key]
        denied = _check_names(false)
        # Logs of several decoders may stand in one run: only arms of one name are of one program.
        where = [
            other for other in keys if contradicted[other] and other.mechanism == key.mechanism
        ]
        if not false and where:
            names = _check_names([one for other in where for one in contradicted[other]])
            budgets = dict.fromkeys(budget_name(other.k) for other in where)
            denied = f"{names} at {', '.join(budgets)}, and one program wrote every arm"
        lost = sum(one.arm == key for one in rows.lost)
        tokens, likeness = context.said(key, TOKENS), context.said(key, CONFORMS)
        kept = invariant(rows_of_arm, lost, denied, debt_counts(context, key), rows.missing, tokens)
        acted, reach = Regime.of(rows_of_arm), Reach.of(rows_of_arm.context, key.k)
        limited, copies = Limited.of(rows, key), Copies.of(rows, key)
        broken = [row for row in rows_of_arm if row.violated]
        recalls = [row.recall for row in rows_of_arm if not math.isnan(row.recall)]
        # A replay stands for a decoder only as far as the decoder did what it promised.
        refuted = kept.verdict == Kept.REFUTED
        # A silent decoder's steps are those of the promised law only where its tokens fit that.
        unlike = tokens is not None and not (
            tokens.numbers["shown"] or tokens.numbers["as_promised"]
        )
        why = f"a replay refutes {denied}" if refuted else "its tokens do not fit the promised law"
        use = Use.of(rows_of_arm, why if refuted or unlike else "")
        if refuted or unlike:
            limited = replace(limited, verdict=Tested.UNKNOWN)
        served = regime(acted, limited, copies, refuted=refuted or unlike)
        if refuted or unlike:
            acted = replace(acted, forced=math.nan, active=math.nan, free=math.nan)
        spend = math.nan if refuted or unlike or use.admitted else mean(rows_of_arm.column("spend"))
        of_steps = [
            accounting(rows_of_arm),
            opening(rows_of_arm),
            tails(rows_of_arm),
            martingale(rows_of_arm),
            burst(rows_of_arm),
            duplicates(rows_of_arm),
        ]
        if tokens is not None:
            of_steps = [_unsuspected(one, tokens) for one in of_steps]
        findings = (
            kept,
            served,
            worth(reach, rows_of_arm.context),
            utilisation(use),
            copying(rows_of_arm),
            *log_scores(rows_of_arm),
            *of_steps,
            hygiene(rows_of_arm),
            *same_outputs(rows, key),
            classes(table, key),
            *faults(context, key),
            *replayed[key],
            *(one for one in (tokens, likeness) if one is not None),
        )
        found.append(
            ArmVerdict(
                mechanism=key.mechanism,
                k=key.k,
                baseline=is_baseline(key.k),
                kept=Kept(kept.verdict),
                tested=limited.verdict,
                worth=reach.verdict,
                passages=reach,
                trajectories=len(rows_of_arm),
                violations=None if refuted else len(broken),
                spend=Spend(spend),
                utilisation=use,
                recall=Recall(mean(recalls), len(recalls)),
                regime=acted,
                limited=limited,
                copies=copies,
                trajectories_active=math.nan if refuted or unlike else acted.share,
                prompts=len({row.key.prompt for row in rows_of_arm}),
                excess=largest_with_witness(broken, "excess", "excess_step")[0],
                refuted=denied,
                tokens=tokens,
                fits=context.said(key, FITS),
                conforms=likeness,
                undecided=_undecided(rows_of_arm, key, lost, rows.missing, tokens)
                if kept.verdict == Kept.INCONCLUSIVE
                else "",
                worst_use=_worst_use(rows_of_arm) if limited.verdict == Tested.IDLE else "",
                findings=findings,
            )
        )
    return tuple(found)


def _unsuspected(one: Finding, tokens: Finding) -> Finding:
    """Returns a check of the steps of a black box, without suspicion that it does not deserve.

    How a decoder opens is a matter of conformity. Of one that shows nothing the steps are those of
    the law that it promised, which is the auditor's own number.
    """
    silent = not tokens.numbers["shown"]
    if one.verdict != CheckWord.SUSPECT or not (silent or one.check == "opening"):
        return one
    why = "no fault: a decoder may spend later, or less, than it is granted"
    if silent:
        why = "no fault: the steps are those of the law that it promised, and it shows none"
    return replace(one, verdict=CheckWord.INFO, text=f"{one.text}; {why}")


def _undecided(
    arm: Measures, key: Arm, lost: int, missing: Missing | None, tokens: Finding | None
) -> str:
    """Says in a few words why the records of an arm do not decide whether it kept its budget."""
    context, n = arm.context, len(arm)
    reasons = [context.outdated] if context.outdated else []
    if not context.currency.promised:
        reasons.append("the mechanism promises no budget")
    if lost:
        # Each output once, also if it was asked for again.
        last = {
            fault.key: fault.name
            for fault in context.faults
            if fault.lost and fault.key is not None and fault.key.arm == key
        }
        names = Counter(last.values())
        said = ", ".join(f"{FAULTS[name]}: {count}" for name, count in names.items())
        reasons.append(
            f"{lost} of {n + lost} outputs never came ({said}); the same command asks again"
        )
    if context.claimed and not context.outdated:
        reasons.append("its numbers are its own claims, and nafaudit verify has not replayed them")
    if missing is not None:
        reasons.append("the run is unfinished")
    contested = sum(row.contested for row in arm)
    if contested:
        reasons.append(f"{contested} of {n} spent more than k T, within a larger budget they state")
    unjudged = sum(not row.judged and not row.contested for row in arm)
    if unjudged and not context.outdated:
        reasons.append(
            f"{unjudged} of {n} trajectories have a number that is missing, negative or "
            "contradicted by their own totals"
        )
    if context.held_to == Promise.K_NAF and (tokens is None or tokens.numbers["shown"]):
        above = sum(one.mean > one.limit for one in prompt_means(arm, context))
        if above:
            reasons.append(f"{above} prompts are above K in the mean, none of them surely")
    if n < MIN_TRAJECTORIES and not lost:
        reasons.append(f"{n} trajectories, where a verdict needs {MIN_TRAJECTORIES}")
    if tokens is not None and tokens.verdict == Kept.INCONCLUSIVE and not context.claimed:
        reasons.append(tokens.text)
    return "; ".join(reasons)


def _worst_use(arm: Measures) -> str:
    """Explains a largest use near 100 % of an arm whose limit hardly acted; empty if it is less."""
    known = [row for row in arm if row.has_budget and not math.isnan(row.utilisation)]
    row = max(known, key=lambda one: one.utilisation, default=None)
    if row is None or is_baseline(row.key.k) or row.utilisation < 0.95:
        return ""
    debt = f", because of the debt of {row.debt:.3g}" if row.debt > 0 else ""
    use, budget = f"{row.utilisation:.1%}", f"{row.budget:.3g}"
    return f"The largest use, {use}, is of a budget that was {budget} nats{debt}."


def _check_names(findings: Sequence[Finding]) -> str:
    """Names of checks, those of one kind together: "claims: charge; sampler: gain, repeats"."""
    kinds: dict[str, list[str]] = {}
    for finding in findings:
        if finding.check == OTHER_PROMISE:
            continue
        kind, _, check = finding.check.partition(": ")
        kinds.setdefault(kind, []).append(check)
    return "; ".join(
        f"{kind}: {', '.join(dict.fromkeys(checks))}" for kind, checks in kinds.items()
    )


def overall_of(arms: Sequence[ArmVerdict]) -> Overall:
    """Returns the answer of an audit: 0 within, 1 violated or refuted, 3 inconclusive.

    Baselines promise no budget. A black box that is refuted at k = 0 or inf did not serve the model
    that it was asked for.
    """

    def budgets(word: Kept) -> str:
        found = [arm.k for arm in arms if not arm.baseline and arm.kept == word]
        return ", ".join(dict.fromkeys(f"k = {budget_word(k)}" for k in found))

    failed = [one for arm in arms for one in arm.findings if one.verdict == CheckWord.FAILED]
    told = [one for one in failed if one.check == OTHER_PROMISE]
    told += [arm.fits for arm in arms if arm.fits is not None]
    instead = "".join(f"; {text}" for text in dict.fromkeys(one.text for one in told))
    # Whoever is charged at k = 0 did not serve the safe model alone.
    none = "k = 0" if any(arm.overspends_nothing for arm in arms) else ""
    if broken := ", ".join(filter(None, (none, budgets(Kept.VIOLATED)))):
        wrong = "budget: " if any(arm.tokens is not None for arm in arms) else ""
        return Overall(Kept.VIOLATED, f"{wrong}the promise was broken at {broken}{instead}", 1)
    if any(arm.refuted for arm in arms):
        cause = cause_of((one.check, one.text) for one in failed)
        names = _check_names(failed)
        # Where conformity is demanded, that is the answer.
        unlike = [arm.conforms for arm in arms if arm.conforms is not None and arm.tokens is None]
        demanded = next((one.text for one in unlike if not one.value), "")
        why = f"a replay refutes what was written or claimed ({names}){instead}"
        why = cause or demanded or why
        return Overall(Kept.REFUTED, why, 1)
    if unsure := budgets(Kept.INCONCLUSIVE):
        why = f"the records do not decide whether the promise was kept at {unsure}"
        open_ = [arm for arm in arms if not arm.baseline and arm.undecided]
        tokens = {arm.tokens.text for arm in open_ if arm.tokens is not None}
        if open_ and {arm.undecided for arm in open_} == tokens:
            # Nothing else is wanting: it is its tokens that do not decide.
            why = open_[0].undecided
        elif open_:
            # Of several budgets the first one's reason stands for the others.
            where = f"; at {budget_name(open_[0].k)}" if len(open_) > 1 else ""
            why += f"{where}: {open_[0].undecided}"
        return Overall(Kept.INCONCLUSIVE, why, 3)
    if within := budgets(Kept.WITHIN):
        judged = [arm for arm in arms if not arm.baseline]
        drawn = sum(arm.trajectories for arm in judged)
        why = f"none of {drawn} trajectories went over budget at {within}"
        fits = dict.fromkeys(arm.tokens.text for arm in judged if arm.tokens is not None)
        if all(arm.silent for arm in judged):
            why = f"not refuted at {within}: nothing is shown of {drawn} trajectories"
            if any(arm.tokens.numbers["aside"] for arm in judged if arm.tokens is not None):
                why = f"not refuted at {within}: what is shown contradicts itself"
        elif any(arm.tokens is not None for arm in judged):
            why += ", by what the decoder shows of them"
        misstated = [
            one
            for arm in judged
            for one in arm.findings
            if one.verdict == CheckWord.SUSPECT and one.check.startswith("bookkeeping: ")
        ]
        # Of several numbers that are stated wrongly the first is told whole.
        stated = list(dict.fromkeys(one.check.partition(": ")[2] for one in misstated))
        books = [f"bookkeeping: {misstated[0].text}"] if misstated else []
        if stated[1:]:
            books.append(f"wrong too: {', '.join(stated[1:])}")
        return Overall(Kept.WITHIN, "; ".join([why, *filter(None, fits), *books]), 0)
    return Overall(Kept.INCONCLUSIVE, "no budget was run, so there is none to judge", 3)


def invariant(
    arm: Measures,
    lost: int = 0,
    refuted: str = "",
    counts: str = "",
    missing: Missing | None = None,
    tokens: Finding | None = None,
) -> Finding:
    """Checks that no step is above its allowance and no prefix above what it was granted.

    VIOLATED with the worst step, REFUTED with what a replay contradicts, WITHIN with what 0 of n
    says, or INCONCLUSIVE.

    Args:
        arm: The rows.
        lost: Outputs that a decoder failed to deliver.
        refuted: What a replay refutes, so that what was spent is not known.
        counts: How two counts of the debt judge the trajectories of a black box, in words.
        missing: What the run was asked for and does not have; None if it has all.
        tokens: Of a black box, which laws its tokens fit.
    """
    context, n = arm.context, len(arm)
    violations = sum(row.violated for row in arm)
    unjudged = sum(not row.judged and not row.violated for row in arm)
    larger, contested = sum(row.larger for row in arm), sum(row.contested for row in arm)
    # Claims can show that a black box overspent, not that it did not.
    doubtful = context.claimed or not context.currency.promised
    # What is missing anywhere in the run may have been taken out of any arm.
    unknown = (n if doubtful else unjudged) + lost + (missing is not None)
    verdict = judge_kept(n, violations, unknown)
    if refuted and not violations:
        verdict = Kept.REFUTED
    if verdict == Kept.WITHIN and tokens is not None and tokens.verdict != CheckWord.INFO:
        verdict = Kept(tokens.verdict)
    numbers: dict[str, float] = {}
    if larger:
        numbers = {"budgets_above_kT": larger, "contested": contested}
    open_question = (
        f"{contested} of {n} trajectories cannot be judged: they spent more than k T grants, but "
        f"no more than the larger budget that the log states ({larger} state a budget above k T). "
        "Read the log again with --ledger banking to judge them by k T, which they exceed, or with "
        "--ledger unknown to use the log's own budgets, which they keep"
    )
    # Of a silent decoder the replay's totals are the promised law's.
    silent = tokens is not None and not tokens.numbers["shown"]
    by_mean = context.held_to == Promise.K_NAF and not silent
    means = prompt_means(arm, context) if by_mean else None
    if means is not None and n and not refuted and not lost and missing is None:
        return _of_means(arm, means, verdict, tokens)
    if violations:
        excess, where = largest_with_witness(
            (row for row in arm if row.violated), "excess", "excess_step"
        )
        text = (
            f"{violations} of {n} trajectories exceed their budget, the worst by {excess:.3g} nats"
        )
        if any(row.admitted for row in arm):
            why = "the replay does not contradict these"
            if tokens is not None:
                why = "no law is shown at which these could be recomputed, and its tokens agree"
            text += f" by charges that the decoder itself claims; {why}"
        text += f"; a replay refutes {refuted}" if refuted else ""
        text += f"; {counts}" if counts else ""
        text += f"; {open_question}" if contested else ""
        return Finding("invariant", verdict, violations, text, where, numbers)
    if not n:
        text = "no trajectory recorded" + (f"; a replay refutes {refuted}" if refuted else "")
        return Finding("invariant", verdict, 0, text)
    if not context.currency.promised and not refuted:
        beyond = sum(row.spend > row.budget for row in arm)
        text = (
            f"the mechanism promises no budget, so none can be kept; {beyond} of {n} "
            "trajectories cost more KL than k nats per token"
        )
        return Finding("invariant", verdict, beyond, text)
    prompts = len({row.key.prompt for row in arm})
    text = (
        f"0 of {n} trajectories exceed their budget: true rate below {zero_count_upper(n):.2%} at "
        f"95 % (of prompts: below {zero_count_upper(prompts):.2%})"
    )
    if context.chosen:
        text = f"0 of {n} trajectories exceed their budget; {CHOSEN}"
    if tokens is not None and not refuted:
        text = f"nothing is shown of what {n} trajectories spent"
        if tokens.numbers.get("partly"):
            text = (
                f"some steps of {n} trajectories show no weight, so that they are judged as silent"
            )
        if tokens.numbers["aside"]:
            text = f"what is shown of {n} trajectories contradicts itself and is set aside"
        if tokens.numbers["shown"]:
            text = (
                f"at the laws that it shows, which its tokens fit, each prefix of {n} trajectories "
                "kept its budget"
            )
        text = "; ".join(filter(None, [text, tokens.text, _at_least(tokens)]))
    if unjudged:
        said = [open_question] if contested else []
        if unjudged > contested:
            said.append(
                f"{unjudged - contested} of {n} trajectories cannot be judged: a number is "
                "missing, infinite, negative or contradicted by the log's own totals"
            )
        text = "; ".join(said)
    elif n < MIN_TRAJECTORIES:
        text += f"; a verdict needs {MIN_TRAJECTORIES} trajectories"
    if larger and not contested:
        text += f"; {larger} state a budget above k T, and none of them spent more than k T"
    if refuted:
        text = f"what {n} trajectories spent is not known, as a replay refutes {refuted}"
        text += f"; {least}" if (least := _at_least(tokens)) else ""
    elif context.claimed:
        text = (
            f"{n} trajectories, whose numbers are not trusted: they are the decoder's own "
            f"claims; {context.outdated or 'nafaudit verify recomputes them'}"
        )
    elif counts:
        # Where it is not known what was spent, no count of the debt decides which trajectories
        # are over budget.
        text += f"; {counts}"
    if lost:
        text += f"; {lost} more outputs were asked for and never delivered"
    if missing is not None:
        text += f"; the run is unfinished: {missing.brief}"
    if context.ledger is None and not contested:
        text += (
            "; by the log's own numbers, as its ledger is not known here (if it is the paper's: "
            "read the log with --ledger banking)"
        )
    return Finding("invariant", verdict, 0, text, None, numbers)


def _at_least(tokens: Finding | None) -> str:
    """Says what the answers of a silent decoder cost at least; empty of others."""
    if tokens is None or tokens.numbers["shown"] or "spends_at_least" not in tokens.numbers:
        return ""
    return (
        f"an answer costs at least {tokens.numbers['spends_at_least']:.1f} nats in the mean "
        f"(97.5 % confidence), granted {tokens.numbers['granted']:.1f}"
    )


def _of_means(
    arm: Measures, means: Sequence[PromptMean], verdict: Kept, tokens: Finding | None
) -> Finding:
    """Judges the mean total of each prompt by K, as Eq. 1 has it."""
    if not means:
        text = (
            "the mean totals of prompts are not known: a total, or the length limit T, is missing"
        )
        text += " (of a log: --max-new-tokens T)"
        return Finding("invariant", Kept.INCONCLUSIVE, math.nan, text)
    broken = {row.key.prompt for row in arm if row.violated}
    worst = max(means, key=lambda one: one.mean - one.limit)
    where = Witness(worst.rows[0].key, None)
    said = (
        f"the dearest prompt ({worst.name!r}) spends {worst.mean:.4g} nats in the mean of "
        f"{len(worst.rows)} answers, where K grants {worst.limit:.4g}"
    )
    numbers = {"prompts": float(len(means)), "over": float(len(broken))}
    if broken:
        text = f"{len(broken)} of {len(means)} prompts spend more than K in the mean; {said}; the "
        text += f"mean is above {worst.lower:.4g} with the confidence of an accusation"
        return Finding("invariant", Kept.VIOLATED, len(broken), text, where, numbers)
    above = sum(one.mean > one.limit for one in means)
    if verdict == Kept.WITHIN and above:
        verdict = Kept.INCONCLUSIVE
        text = f"{above} of {len(means)} prompts are above K in the mean, none of them surely"
    else:
        text = f"no prompt of {len(means)} is above K in the mean"
    text = "; ".join(filter(None, [text, said, tokens.text if tokens else ""]))
    if arm.context.claimed:
        text += "; these are the decoder's own claims, and nafaudit verify recomputes them"
    return Finding("invariant", verdict, 0, text, where, numbers)


def regime(found: Regime, limited: Limited, copies: Copies, *, refuted: bool = False) -> Finding:
    """Says how many answers the limit changed, what was copied, and how often it acted.

    Shares of steps are of all steps pooled, not means of trajectories; of a refuted decoder they
    are those of the law that it promised.
    """
    numbers = {
        "forced": found.forced,
        "active": found.active,
        "free": found.free,
        "trajectories_active": found.share,
        "limited": limited.limited,
        "counted": limited.counted,
        "copied": copies.copied,
        "copied_of": copies.scored,
        "copied_risky": copies.risky,
        "copied_risky_of": copies.risky_scored,
    }
    steps = "no step records a weight theta"
    if found.steps:
        steps = (
            f"{found.active:.2%} of {found.steps} steps active, {found.forced:.2%} forced to the "
            f"safe model, {found.free:.2%} the risky model unchanged; {found.acted} of "
            f"{found.trajectories} trajectories have an active step"
        )
        if found.unweighted:
            steps += f"; {found.unweighted} steps record no weight"
    said = limited.text
    if limited.by and limited.counted < MIN_TRAJECTORIES:
        said += f"; a verdict needs {MIN_TRAJECTORIES} answers"
    if refuted:
        steps = f"if served as promised: {steps}"
        said = "" if limited.by == "steps" else said
    text = "; ".join(filter(None, [said, copies.text, steps]))
    share = math.nan if refuted else limited.share
    return Finding("regime", limited.verdict, share, text, None, numbers)


def worth(reach: Reach, context: RunContext) -> Finding:
    """Says for which share of the passages K is at least their surprisal under the safe model."""
    n, reached = reach.total, reach.vacuous
    lacking = ""
    if not n:
        lacking = "no protected passages were scored under the safe model"
    elif not context.currency.promised:
        lacking = "the mechanism promises no budget"
    elif math.isnan(reach.promised):
        lacking = "K is not known, as the record has no length limit or another ledger"
    if lacking:
        return Finding("worth", Worth.UNKNOWN, math.nan, lacking)
    length = context.max_new_tokens
    least, median, most = (quantile(reach.surprisals, q) for q in (0.0, 0.5, 1.0))
    caps = cap([least, median], reach.promised).tolist()
    text = (
        f"K = {reach.promised:g} nats reaches the safe model's surprisal of the first {length} "
        f"tokens of {reached} of {n} passages (median {median:.0f} nats, least {least:.0f}); a "
        f"kept budget leaves a chance of reproduction of up to {caps[0]:.3g}, median {caps[1]:.3g}"
    )
    numbers = {
        "K": reach.promised,
        "T": length,
        "passages": n,
        "vacuous": reached,
        "surprisal_min": least,
        "surprisal_median": median,
        "surprisal_max": most,
        "critical_k_min": critical_k(least, length),
        "critical_k_median": critical_k(median, length),
        "cap_max": caps[0],
        "cap_median": caps[1],
    }
    return Finding("worth", reach.verdict, reached / n, text, numbers=numbers)
