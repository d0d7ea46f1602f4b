"""The head of a report: what was audited, by what and how far; and the words that it uses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nafaudit import __version__
from nafaudit.core.finding import ACTIVE_SHARE, Kept, Tested, Worth
from nafaudit.core.promise import in_words
from nafaudit.core.text import counted, visible
from nafaudit.measures.audit import AuditResult
from nafaudit.store.artifacts import (
    fresh_draws,
    import_report,
    read_verification,
    search_file,
)
from nafaudit.views.words import basis, refuted

GLOSSARY = (
    ("nat", "the unit of every amount here: 1 nat is about 1.44 bits"),
    ("safe model", "the language model that never saw the protected text"),
    ("risky model", "the language model that may have memorised it"),
    ("pair", "a safe and a risky model over one vocabulary"),
    ("law", "a model's probabilities of the next token, given everything before it"),
    ("mechanism", "what is audited: how a decoder turns the two laws into the one it draws from, "
     "and what it may spend"),
    ("served law", "the law that the next token is drawn from, a mixture of the safe and the "
     "risky one"),
    ("theta", "the weight of the risky model in it: 0 is the safe law, 1 the risky law"),
    ("k, T, K", "k is the budget per token, in nats (1 nat is about 1.44 bits), T the most tokens "
     "an answer may have, K = k\u00b7T the budget of an answer"),
    ("allowance", "what one step may spend"),
    ("charge", "what one step did spend: the divergence of the served law from the safe one"),
    ("spend", "the sum of the charges of one answer"),
    ("debt", "what a prompt owes before the first token, because the risky model already prefers "
     "it; it is taken off the budget"),
    ("budget of an answer", "k times the answer's own length, minus the debt, and never below 0"),
    ("bank", "allowance that earlier steps did not spend and later ones may"),
    ("use", "spend divided by the budget of that answer (utilisation)"),
    ("trajectory", "one answer, drawn with its own random numbers, and the numbers of each of its "
     "steps (an execution, in JSON names)"),
    ("forced, active, free", "steps that served the safe law, a mixture, the risky law"),
    ("arm", "one mechanism at one budget; the baselines are the safe model alone (k = 0) and the "
     "risky model alone (k = inf)"),
    ("run", "a directory with a design, prompts and trajectories; a command that is typed again "
     "continues it"),
    ("protocol", "which prompts a run has, how its random numbers are made and where an answer "
     "ends: sound, the default, or paper"),
    ("black box", "a decoder whose inside is not seen: it is judged by the laws that it shows, or "
     "else by its tokens"),
    ("replay", "the same tokens given to both models again; every number is computed a second "
     "time, by other code where there is any"),
    ("passage, reference", "protected text; the text that should not come back after a prompt"),
    ("recall", "the share of a reference's words that an answer repeats in nearly verbatim runs "
     "of 20 words or more"),
    ("log-ratio L", "how much more likely the output was as served than under the safe model"),
    ("surprisal", "minus the log-probability of a passage, or of its first T tokens, under the "
     "safe model; a budget that reaches it says nothing about that passage"),
    ("critical k", "the budget per token at which K reaches a passage's surprisal"),
    ("finding, witness", "what a check says, and the trajectory and step that it rests on"),
)  # fmt: skip
"""Each word once, in the order in which a reader meets it; docs/glossary.md says the same."""

VERDICTS = (
    ("kept?", Kept.WITHIN, "no trajectory spent more than its budget"),
    ("kept?", Kept.VIOLATED, "at least one did; the witness says which"),
    ("kept?", Kept.REFUTED, "the tokens contradict the promise, or what is shown of them, so that "
     "how much was spent is not known"),
    ("kept?", Kept.INCONCLUSIVE, "too few trajectories, an unfinished run, numbers that cannot be "
     "judged, or tokens that fit no known law or several"),
    ("tested?", Tested.ACTIVE, f"at least {ACTIVE_SHARE:.0%} of the answers to prompts with a "
     "reference are limited: with the same random numbers the risky model alone would have written "
     "something else"),
    ("tested?", Tested.IDLE, "fewer are, so that keeping the budget shows little"),
    ("worth?", Worth.INFORMATIVE, "K is below the surprisal of more than half of the passages, so "
     "it limits how often they can come out"),
    ("worth?", Worth.VACUOUS, "K reaches the surprisal of at least half of them, so it rules "
     "nothing out there"),
    ("any", Tested.UNKNOWN, "what the answer needs is not recorded, or is refuted, or the debt "
     "forced every step"),
)  # fmt: skip
"""The words of a verdict with the question that each answers; docs/glossary.md says the same."""

_FIRST_WORDS = ("safe model", "risky model", "k, T, K", "spend", "trajectory", "replay", "debt")
_TERMS = 10
EMBEDDED = ("lab", "lab-safe2", "tiny")
"""Pairs that come with the tool, or are made by it."""


@dataclass(frozen=True)
class Fact:
    """One line of a report's head.

    Attributes:
        term: What it is about.
        text: In words.
        digest: A hash or a version, in full; empty for none.
        tone: good, bad or open, where it is an answer.
    """

    term: str
    text: str
    digest: str = ""
    tone: str = ""


def terms(result: AuditResult) -> list[tuple[str, str]]:
    """Returns ten words with their meanings: the verdicts of this run, and what they speak of."""
    said = {str(result.overall.verdict)}
    for arm in result.arms:
        said |= set() if arm.baseline else {str(arm.kept), str(arm.tested), str(arm.worth)}
    verdicts = [(str(word), meaning) for _, word, meaning in VERDICTS if word in said]
    first = [(word, dict(GLOSSARY)[word]) for word in _FIRST_WORDS]
    return first[: max(0, _TERMS - len(verdicts))] + verdicts


def subject(result: AuditResult) -> list[Fact]:
    """Says what was audited: mechanism or decoder, both models, budgets, and the design."""
    identity: Mapping[str, Any] = result.run.design["identity"]
    imported, promise = identity["protocol"] == "imported", identity.get("promise")
    facts = []
    if imported:
        for one in (import_report(result.run) or {}).get("sources", ()):
            facts.append(Fact("Log", f"{one['file']} ({one['schema']})", one["sha256"]))
    judged = [arm for arm in result.arms if not arm.baseline]
    for mechanism in sorted({arm.mechanism for arm in judged}) or [str(identity["mechanism"])]:
        label, digest, options = mechanism_parts(mechanism)
        if promise:
            kind = "a black box; debt and budgets as " + promise.replace(",", ", ")
        elif imported:
            kind = "as the log, or else its file, is named"
        elif digest and ":" in label:
            kind = "a class that was named by file or module"
        else:
            kind = f"built in, version {identity['layout'].get('rules', 1)} of its rules"
        term = "Decoder" if promise else "Mechanism"
        shown = f"{label}: {kind}" + (f"; {options.replace(',', ', ')}" if options else "")
        facts.append(Fact(term, shown, digest))
    if held := result.context.held_to:
        facts.append(Fact("Held to", in_words(held)))
        said = dict.fromkeys(arm.conforms.text for arm in judged if arm.conforms is not None)
        facts += [Fact("Beside the verdict", one) for one in said]
    for place, which in enumerate(("safe", "risky")):
        names = []
        for one in result.run.sessions:
            paths = one.get("checkpoints") or ("", "")
            own = f"of the pair {one['pair']}" if one.get("pair") else ""
            # The embedded pairs, so that nobody takes them for a product.
            own += " (a toy of nafaudit's own)" if one.get("pair") in EMBEDDED else ""
            names.append(str(one.get(which) or own or paths[place]))
        named = "; ".join(dict.fromkeys(filter(None, names))) or "name not recorded"
        if which not in identity["pair"]:
            named = "not named in the log" if imported else "not recorded"
        facts.append(Fact(f"{which} model".capitalize(), named, identity["pair"].get(which, "")))
    length = result.context.max_new_tokens
    budgets = dict.fromkeys(arm.k for arm in judged)
    told = ", ".join(
        f"{k:g}" + (f" (K = {result.context.compared_with(k):g})" if length else "")
        for k in budgets
    )
    answers = f"answers of at most T = {length} tokens" if length else "the length T is not known"
    facts.append(Fact("Budgets", f"k = {told} nats a token; {answers}" if budgets else "none"))
    return [_shown(fact) for fact in facts]


def mechanism_parts(mechanism: str) -> tuple[str, str, str]:
    """Returns name, hash and options of `NAME:OPTIONS` or `FILE:CLASS@HASH:OPTIONS`."""
    label, mark, rest = mechanism.partition("@")
    if mark:
        digest, _, options = rest.partition(":")
        return label, digest, options
    label, _, options = mechanism.partition(":")
    return label, "", options


def audit(result: AuditResult) -> list[Fact]:
    """Says by what and when it was audited, what was looked at and what was not.

    The date is that of the record, so that a run has one page.
    """
    run, sessions = result.run, result.run.sessions
    identity: Mapping[str, Any] = run.design["identity"]
    imported = identity["protocol"] == "imported"
    made = dict.fromkeys(str(one["nafaudit"]) for one in sessions if "nafaudit" in one)
    writer = f"nafaudit {__version__}"
    if set(made) - {__version__}:
        writer += f" (decoded with {', '.join(made)})"
    days = [str(one["started"]).replace("T", " ")[:16] for one in sessions if "started" in one]
    date = "date not recorded"
    if days:
        date = f"decoded on {days[0]} UTC"
        date += f", last continued on {days[-1]} UTC" if days[-1] != days[0] else ""
    machines = []
    for session in sessions:
        for one in (session, *session.get("workers", ())):
            named = [str(one[key]) for key in ("processor", "machine", "device") if one.get(key)]
            machines.append(
                ", ".join([*named, f"torch {one['torch']}"] if "torch" in one else named)
            )
    prompts = {one.key.prompt for one in result.rows}
    classes = {result.context.label(prompt) for prompt in prompts}
    alone = sum(arm.trajectories for arm in result.arms if arm.baseline)
    scope = f"{len(result.rows)} trajectories of {counted(len(prompts), 'prompt')}"
    scope += f" in {len(classes)} classes" if len(classes) > 1 else ""
    scope += f", {alone} of them by one model alone" if alone else ""
    draws = fresh_draws(run) if result.search is not None else None
    scope += f"; beside them {len(draws.keys())} fresh ones (confirm/)" if draws else ""
    if identity["protocol"] == "paper":
        scope += "; seeds by the paper's rule, from the prompts' ids"
    elif not imported:
        scope += f"; seed {identity['seed']}"
    if result.missing is not None:
        scope += f"; incomplete: {result.missing.text}"
    elif len(result.rows) < run.asked:
        scope += f"; incomplete: {run.asked} were asked for"
    unseen = ["other prompts and settings"]
    if result.search is None:
        unseen.append("prompts that an adversary chooses (nafaudit search)")
    if identity["purpose"] != "attack":
        unseen.append("what several answers give together (nafaudit attack)")
    finalists = search_file(result.search).finalists if result.search else ()
    # A search has its baselines among the fresh draws.
    if not alone and all(math.isnan(one.risky_alone) for one in finalists):
        unseen.append("the models alone")
    if result.context.passages is None:
        unseen.append("what the budget is worth for a protected passage (nafaudit certify)")
    found = result.verification
    answer, tone = "No", "open"
    if refuted(result):
        answer, tone = "Yes, and refuted", "bad"
    elif found is not None and found["current"] and found["replayed"]:
        answer, tone = (
            ("Yes", "good") if found["replayed"] == found["recorded"] else ("In part", "open")
        )
    said = basis(result)
    if draws is not None and answer in ("Yes", "In part"):
        again = read_verification(draws)
        whole = again is not None and again["current"] and again["replayed"] == again["recorded"]
        answer, tone = (answer, tone) if whole else ("In part", "open")
        said += f"; its fresh draws {'too' if whole else 'not (nafaudit verify .)'}"
    facts = [
        Fact("Audited by", f"{writer}, {date}"),
        Fact("Machine", "; ".join(dict.fromkeys(filter(None, machines))) or "not recorded"),
        Fact("Scope", scope),
        Fact("Not looked at", "; ".join(unseen)),
        Fact("Recomputed?", f"{answer}: {said}", tone=tone),
        Fact("Design", "what decides each record", str(run.design["hash"])),
    ]
    return [_shown(fact) for fact in facts]


def _shown(fact: Fact) -> Fact:
    return Fact(fact.term, visible(fact.text), visible(str(fact.digest)), fact.tone)
