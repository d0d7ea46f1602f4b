"""Is a record sound? Its sums, its columns, a decoder's faults, and what a replay refutes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from nafaudit.core.finding import FAULTS, CheckWord, Fault, Finding, Witness
from nafaudit.core.trajectory import STEP_TYPES, Arm, Key
from nafaudit.measures.context import RunContext
from nafaudit.measures.table import Measures
from nafaudit.store.artifacts import DEBT_COUNTS, TOKENS

IDENTITIES = {
    "allowance": ("allowances against the ledger", "nats"),
    "cumulative": ("logged cumulative charges against the steps", "nats"),
    "spend": ("logged spend against the steps", "nats"),
    "granted": ("logged grants against the ledger", "nats"),
    "budget": ("logged budget against that of its own length", "nats"),
    "length": ("logged length against the steps", "steps"),
    "stop": ("nothing after a stop token", "steps"),
    "limit": ("no more steps than the limit", "steps"),
    "ending": ("a stop token at the end if it says so", "steps"),
}
"""What is compared, in the order in which it is said: the words, and the unit of a gap."""

FLAWS = {
    "long": "longer than the limit",
    "holes": "missing numbers among recorded ones",
    "pad": "steps after the end, written as padding",
    "impossible": "a log-probability above 0 or a weight outside 0 and 1",
}


def accounting(arm: Measures) -> Finding:
    """Checks that the numbers of a record agree with each other and with the ledger.

    A record that does not add up is SUSPECT, whether or not anything was overspent: that is the
    invariant's question.
    """
    counts = Counter(name for row in arm for name in row.compared)
    compared = [name for name in IDENTITIES if counts[name]]
    broken = {name: [row for row in arm if name in row.broken_identities] for name in compared}
    numbers = {f"{name}_broken": len(rows) for name, rows in broken.items()}
    wrong = sum(bool(row.broken_identities) for row in arm)
    if wrong:
        largest = {
            n: max(rows, key=lambda r: r.broken_identities[n][0])
            for n, rows in broken.items()
            if rows
        }
        text = f"{wrong} of {len(arm)} trajectories do not add up: " + "; ".join(
            f"{IDENTITIES[n][0]} in {len(broken[n])} (by up to {row.broken_identities[n][0]:.3g} "
            f"{IDENTITIES[n][1]})"
            for n, row in largest.items()
        )
        first, row = next(iter(largest.items()))
        witness = row.witness(row.broken_identities[first][1])
        return Finding("accounting", CheckWord.SUSPECT, wrong, text, witness, numbers)
    if not any(IDENTITIES[name][1] == "nats" for name in compared):
        lacking = "no steps with charges, allowances and debt, no claimed sums"
        if arm.context.ledger is None:
            lacking = "the ledger is not known here and the log claims no sums"
        text = f"nothing to compare: {lacking}"
        return Finding("accounting", CheckWord.UNKNOWN, math.nan, text, None, numbers)
    said = ", ".join(IDENTITIES[name][0] for name in compared)
    fewest = min(counts[name] for name in compared)
    text = f"everything adds up in {fewest} of {len(arm)} trajectories: {said}"
    return Finding("accounting", CheckWord.FINE, 0, text, None, numbers)


def hygiene(arm: Measures) -> Finding:
    """Checks the log itself: lengths beyond the limit, missing and impossible numbers, padding.

    A column that an arm never has is not a flaw of a foreign log: it is named, and what needs it
    says UNKNOWN.
    """
    n = len(arm)
    if not n:
        return Finding("hygiene", CheckWord.UNKNOWN, math.nan, "no trajectory recorded")
    counts = {name: sum(name in row.flaws for row in arm) for name in FLAWS}
    padding, steps = sum(row.pad_steps for row in arm), sum(row.length for row in arm)
    numbers: dict[str, float] = {**counts, "pad_steps": padding}
    said = [f"{FLAWS[name]} in {count} of {n}" for name, count in counts.items() if count]
    if padding:
        said.append(f"{padding / steps:.1%} of all steps are padding")
    absent = dict.fromkeys(name for row in arm for name in row.absent)
    recorded = {name for row in arm for name in row.recorded}
    if without := sum(math.isnan(row.debt) for row in arm):
        absent["debt"] = None
        recorded |= {"debt"} if without < n else set()
    order = (*STEP_TYPES, "debt")
    if uneven := [name for name in order if name in absent and name in recorded]:
        said.append(f"only some trajectories record {', '.join(uneven)}")
    never = [name for name in order if name in absent and name not in recorded]
    lacking = f"not recorded: {', '.join(never)}" if never else ""
    if never and not arm.context.foreign:
        said.append(lacking)
    if said:
        flawed = [row for row in arm if row.flaws]
        row = max(flawed, key=lambda row: len(row.flaws), default=None)
        witness = None if row is None else row.witness(next(iter(row.flaws.values())))
        return Finding("hygiene", CheckWord.SUSPECT, len(flawed), "; ".join(said), witness, numbers)
    if not steps:
        lacking = "only totals are logged, no steps"
    text = f"no flaw in {n} trajectories" + (f"; {lacking}" if lacking else "")
    return Finding("hygiene", CheckWord.FINE, 0, text, None, numbers)


def faults(context: RunContext, arm: Arm) -> list[Finding]:
    """Returns what a black-box decoder did wrong, one finding per kind of fault.

    Each says how often, and where first by key; the order in which they were seen is no matter.
    """

    def place(fault: Fault) -> tuple[bool, Key, int, str]:
        return fault.key is None, fault.key or Key("", "", 0.0, 0), fault.step, fault.text

    here = [fault for fault in context.faults if fault.key is None or fault.key.arm == arm]
    findings = []
    for name, words in FAULTS.items():
        seen = sorted((fault for fault in here if fault.name == name), key=place)
        if seen:
            first, times = seen[0], f" ({len(seen)} times)" if len(seen) > 1 else ""
            witness = None if first.key is None else Witness(first.key, first.step)
            text = f"{words}: {first.text}{times}"
            check = f"decoder: {name}"
            findings.append(Finding(check, CheckWord.SUSPECT, len(seen), text, witness))
    return findings


def replay_findings(context: RunContext, arm: Arm) -> Iterator[Finding]:
    """Yields what a verification fails or suspects of an arm; claims are named `claims`."""
    failed = [(CheckWord.FAILED, data) for data in context.failed]
    for verdict, data in (*failed, *((CheckWord.SUSPECT, data) for data in context.suspected)):
        witness = data["witness"]
        k = data["k"] if data["k"] is not None else (witness or {}).get("k")
        named = data.get("mechanism") or (witness or {}).get("mechanism") or arm.mechanism
        if named != arm.mechanism or (k is not None and float(k) != arm.k):
            continue
        # Where tokens end is seen, not claimed.
        kind = "decoder: " if data["check"] == "replay: end" else "claims: "
        name = data["check"].replace("replay: ", kind)
        if data["check"] == TOKENS:
            continue
        where = None
        if witness is not None:
            key = Key(witness["prompt"], arm.mechanism, arm.k, witness["trajectory"])
            where = Witness(key, witness["step"])
        yield Finding(name, verdict, float(data["value"]), data["text"], where)


def debt_counts(context: RunContext, arm: Arm) -> str:
    """Returns how both counts of the debt judge an arm; empty if neither is exceeded."""
    for data in (context.verified or {}).get("findings", ()):
        named = data.get("mechanism") or arm.mechanism
        if data["check"] == DEBT_COUNTS and (named, float(data["k"])) == (arm.mechanism, arm.k):
            return str(data["text"])
    return ""
