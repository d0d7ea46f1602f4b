"""An audit in words that need no mathematics: verdicts, the replay, and what was decided."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nafaudit.core.finding import (
    ALARM_LEVEL,
    MIN_TRAJECTORIES,
    CheckWord,
    Finding,
    Kept,
    Overall,
    Tested,
    Worth,
    witness_at,
)
from nafaudit.core.ledger import budget_name, ledger_of
from nafaudit.core.text import name, nats, percent, visible
from nafaudit.measures.audit import AuditResult
from nafaudit.measures.verdicts import CHOSEN, ArmVerdict
from nafaudit.stats import zero_count_upper
from nafaudit.store.artifacts import (
    FITS,
    OTHER_RULES,
    QUANTITIES,
    TOKENS,
    UNCLAIMED,
    cause_of,
    claims_nothing,
)

AS_PROMISED = (
    "of a decoder that claims nothing, spend, use and steps are those of the law it promised"
)
"""What numbers are that stand beside WITHIN of a silent black box."""

VERIFY = "nafaudit verify ."
COMMANDS = (
    ("nafaudit check .", "every check again from the records alone; no models"),
    (VERIFY, "every logged number again from the models, every token from the draws"),
    ("nafaudit report . --json", "every number of this page, with its place"),
    ("nafaudit report . --record PROMPT@K#TRAJECTORY", "one record as it is on disk"),
    ("nafaudit report .", "this page again, byte by byte"),
    ("nafaudit report . --figures", "figures as SVG and PDF files beside it, the paper's too"),
)


@dataclass(frozen=True)
class VerdictText:
    """One verdict in words.

    Attributes:
        question: Which of the three.
        word: The verdict.
        tone: good, bad or open: how a page colours it.
        headline: A few words.
        text: A sentence or two.
        finding: What it rests on.
    """

    question: str
    word: str
    tone: str
    headline: str
    text: str
    finding: Finding


def arm_name(arm: ArmVerdict, among: Sequence[ArmVerdict]) -> str:
    """Names an arm by its budget, with the mechanism if there are several among these arms."""
    several = len({other.mechanism for other in among}) > 1
    return f"{arm.mechanism} {budget_name(arm.k)}" if several else budget_name(arm.k)


def source_word(result: AuditResult) -> str:
    """What a replay is held against: a log that was imported, a decoder, or our own records."""
    identity = result.run.design["identity"]
    if identity["protocol"] == "imported":
        return "log"
    return "decoder" if "promise" in identity else "record"


def summary(overall: Overall, arms: Sequence[ArmVerdict], source: str = "record") -> str:
    """Says the whole audit in a few sentences, the reason of the overall verdict first.

    Args:
        overall: The answer.
        arms: What was judged.
        source: What a replay is held against (`source_word`).
    """

    def names(some: Sequence[ArmVerdict]) -> str:
        *most, last = (arm_name(arm, some) for arm in some)
        return f"{', '.join(most)} and {last}" if most else last

    judged = [arm for arm in arms if not arm.baseline]
    parts = [f"{overall.why[:1].upper()}{overall.why[1:]}."]
    denied = any(arm.refuted for arm in arms)
    if denied and any(arm.tokens is not None for arm in arms):
        parts.append("How much it spent is not known.")
    elif denied and source == "decoder" and overall.verdict == Kept.VIOLATED:
        # What was overspent is known, so it is not said that nothing is.
        parts.append("A replay from the models also refutes what the decoder wrote or claims.")
    elif denied:
        # The reason has said already that a replay refutes it.
        known = "How much it spent is not known." if source == "decoder" else ""
        parts.append(known or f"The numbers of the {source} cannot be trusted.")
    unsure = [arm for arm in judged if arm.kept == Kept.INCONCLUSIVE]
    if unsure and overall.verdict == Kept.VIOLATED:
        parts.append(f"The records do not decide whether it was kept at {names(unsure)}.")
    idle = [arm for arm in judged if arm.tested == Tested.IDLE and not denied]
    if idle:
        parts.append(f"At {names(idle)} it changed hardly any answer, so keeping it shows little.")
    if vacuous := [arm for arm in judged if arm.worth == Worth.VACUOUS]:
        parts.append(
            f"At {names(vacuous)} the budget is so large that even a perfect record does not rule "
            "out copying."
        )
    return " ".join(parts)


def _refutation(source: str) -> str:
    if source == "decoder":
        return (
            "A replay from the models refutes what the decoder wrote or claims, so how much it "
            "spent is not known."
        )
    return f"A replay from the models refutes the {source}, so its numbers cannot be trusted."


def verdict_texts(
    arm: ArmVerdict, source: str = "record"
) -> tuple[VerdictText, VerdictText, VerdictText]:
    """Says the three verdicts of one arm.

    Args:
        arm: What was judged.
        source: What a replay is held against (`source_word`).
    """
    findings = {finding.check: finding for finding in arm.findings}
    return (
        _kept(arm, findings["invariant"], source),
        _tested(arm, findings["regime"]),
        _worth(arm, findings["worth"]),
    )


def _kept(arm: ArmVerdict, finding: Finding, source: str) -> VerdictText:
    n = arm.trajectories
    if arm.kept == Kept.VIOLATED:
        tone, headline = "bad", "No, it was broken"
        text = (
            f"{arm.violations} of {n} trajectories spent more than they were allowed, the "
            f"worst by {nats(arm.excess)} nats. One is enough to break the promise."
        )
        if "itself claims" in finding.text:
            text += " These are the decoder's own charges"
            text += "." if arm.tokens else ", which the replay does not contradict."
        elif arm.tokens is not None:
            text += " That is by the laws that the decoder itself shows."
    elif arm.kept == Kept.REFUTED:
        failed = [one for one in arm.findings if one.verdict == CheckWord.FAILED]
        cause = cause_of((one.check, one.text) for one in failed)
        tone, headline = "bad", "It is not what was promised"
        text = f"{_refutation(source)} Refuted: {arm.refuted}."
        if cause:
            kind, _, why = cause.partition(": ")
            headline = f"No: wrong {kind}"
            text = f"{why[:1].upper()}{why[1:]}. How much it spent is not known."
    elif arm.kept == Kept.INCONCLUSIVE:
        tone, headline, text = "open", "Not decided", _sentence(finding)
    elif arm.tokens is not None:
        tone, headline, text = "good", "It was not refuted", _sentence(finding)
        if not arm.silent:
            headline = "Yes, by what it shows"
    else:
        tone, headline = "good", "Yes, in every trajectory"
        text = f"None of {n} trajectories on {arm.prompts} prompts went over its budget. "
        if CHOSEN in finding.text:
            text += f"{CHOSEN[:1].upper()}{CHOSEN[1:]} from these; its fresh draws have one."
        else:
            text += (
                f"If any like these ever do, fewer than {percent(zero_count_upper(n))} of them do "
                f"(with 95% confidence; of prompts, fewer than "
                f"{percent(zero_count_upper(arm.prompts))})."
            )
    return VerdictText("Was the promise kept?", arm.kept, tone, headline, text, finding)


def _tested(arm: ArmVerdict, finding: Finding) -> VerdictText:
    limited = arm.limited
    if arm.tested == Tested.UNKNOWN:
        tone, headline = "open", "Not known"
        text = _limited(arm) if arm.limited.counted < MIN_TRAJECTORIES else _sentence(finding)
        if arm.limited.by and arm.limited.counted < MIN_TRAJECTORIES:
            text += f" A verdict needs {MIN_TRAJECTORIES} answers."
    elif arm.tested == Tested.IDLE:
        tone, headline = "open", "Hardly ever"
        text = f"{_limited(arm)} A limit that changes no answer is not tested, even if it is kept."
        text += f"{' ' if arm.worst_use else ''}{arm.worst_use}"
    else:
        tone, headline = "good", f"Yes, {percent(limited.share)} of the answers were limited"
        text = _limited(arm)
    if arm.silent and arm.tested != Tested.UNKNOWN:
        text = f"If it served what it promises: {text[:1].lower()}{text[1:]}"
    return VerdictText("Was it put to the test?", arm.tested, tone, headline, text, finding)


def _limited(arm: ArmVerdict) -> str:
    """Says how many answers were limited, and what was copied."""
    said = [arm.limited.text, arm.copies.text]
    return "".join(f"{_upper(text)}. " for text in said if text).rstrip()


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _worth(arm: ArmVerdict, finding: Finding) -> VerdictText:
    numbers = finding.numbers
    if arm.worth == Worth.UNKNOWN:
        tone, headline, text = "open", "Not known", _sentence(finding)
    else:
        n, reached = int(numbers["passages"]), int(numbers["vacuous"])
        length = numbers["T"]
        if arm.worth == Worth.VACUOUS:
            tone, headline = "bad", "Little or nothing"
            text = (
                f"A decoder may keep this budget and still write the first {length:g} tokens of "
                f"{reached} of {n} protected passages word for word: K = {numbers['K']:g} nats is "
                "no less than what the safe model needs for them (half of them need "
                f"{nats(numbers['surprisal_median'])} or less)."
            )
        else:
            tone, headline = "good", "It limits copying"
            if arm.kept in (Kept.VIOLATED, Kept.REFUTED):
                tone, headline = "open", "It would limit copying, were it kept"
            limited = f"{n - reached} of {n}" if reached else f"all {n}"
            text = (
                f"The first {length:g} tokens of {limited} protected passages cost more than "
                f"K = {numbers['K']:g} nats to write (the cheapest "
                f"{nats(numbers['surprisal_min'])}). If the budget is kept, those of a given "
                "passage come out of one request with a chance of at most "
                f"{percent(numbers['cap_max'])}."
            )
    return VerdictText("What is it worth?", arm.worth, tone, headline, text, finding)


def _sentence(finding: Finding) -> str:
    return f"{finding.text[:1].upper()}{finding.text[1:]}." if finding.text else ""


# A replay from the models, as verify.json has it: are the logged numbers true?

_REFUTED = (CheckWord.FAILED, Kept.VIOLATED)
_FINE = (CheckWord.FINE, CheckWord.INFO, Kept.WITHIN)


def refuted(result: AuditResult) -> bool:
    """Returns True if a replay contradicts the record; that it finds the same excess does not."""
    found = result.verification or {}
    counts = found.get("outdated") != OTHER_RULES
    failed = counts and any(o["verdict"] == CheckWord.FAILED for o in found.get("findings", ()))
    return failed or any(arm.refuted for arm in result.arms)


def _exceeded(found: Mapping[str, Any]) -> bool:
    return any(one["verdict"] == Kept.VIOLATED for one in found["findings"])


def _of_spend(result: AuditResult) -> str:
    """Says what judges the spend of a black box; empty where conformity is demanded instead."""
    judged = [arm for arm in result.arms if arm.tokens is not None]
    if not judged:
        return ""
    if any(arm.refuted for arm in judged):
        return "the tokens are not drawn as promised"
    exceeds = any(arm.kept == Kept.VIOLATED for arm in judged)
    if not all(arm.silent for arm in judged):
        within = "exceed the budget" if exceeds else "keep the budget"
        return f"its tokens fit the laws that it shows, and these {within}"
    aside = any(arm.tokens.numbers["aside"] for arm in judged if arm.tokens is not None)
    shown = "what it shows contradicts itself" if aside else "it shows no law of its steps"
    if any(arm.kept == Kept.INCONCLUSIVE for arm in judged):
        return f"{shown}, and its tokens do not decide"
    return f"{shown}, and no law that its tokens fit exceeds the budget by much"


def basis(result: AuditResult) -> str:
    """Says in a few words what the page's numbers rest on."""
    found = result.verification
    if found is None:
        return "numbers as logged, not replayed"
    extent = f"{found['replayed']} of {found['recorded']} trajectories replayed from the models"
    if not found["current"]:
        older = found["outdated"] == OTHER_RULES
        return f"{extent} {'by other rules than today' if older else 'before more was recorded'}"
    if said := _of_spend(result):
        return f"{extent}: {said}"
    silent = claims_nothing((one["check"], one["text"]) for one in found["findings"])
    if refuted(result):
        return f"{extent}: {'the tokens do not fit' if silent else 'what was claimed is refuted'}"
    if not found["replayed"]:
        return "nothing could be replayed"
    beyond = ", and it exceeds the budget" if _exceeded(found) else ""
    if source_word(result) == "decoder" and not beyond:
        return f"{extent}: its claims and its tokens fit the promise"
    return f"{extent}: what was claimed is true{beyond}"


def verify_command(result: AuditResult, path: str = ".") -> str:
    """The command that recomputes a run's numbers; empty if nothing can.

    Args:
        result: What was audited.
        path: The run, as it is typed.
    """
    identity, verify = result.run.design["identity"], f"nafaudit verify {path}"
    if identity["protocol"] != "imported":
        rule, box = identity["mechanism"], bool(identity.get("promise"))
        # A rule that chooses among whole outputs has no law at a step that could be replayed.
        if ":debt=" not in rule and not box:
            return ""
        return verify + (" --plugin FILE" if "@" in rule and not box else "")
    if ledger_of(identity["ledger"]) is None or not any(row.length for row in result.rows):
        return ""
    return f"{verify} --safe SAFE --risky RISKY"


def commands(result: AuditResult) -> tuple[tuple[str, str], ...]:
    """Commands that make what a report shows again, those that work on this run."""
    verify = verify_command(result)
    return tuple(
        (verify if command == VERIFY else command, what)
        for command, what in COMMANDS
        if verify or command != VERIFY
    )


def replay_section(result: AuditResult) -> dict[str, Any]:
    """Returns what the template shows of a replay."""
    found = result.verification
    if found is None:
        lacking = "the log has no steps, or a budget rule that is not known here"
        if source_word(result) != "log":
            lacking = "the rule chooses among whole outputs, and has no law at a step"
        return {
            "word": "AS LOGGED",
            "tone": "open",
            "text": f"These numbers have not been recomputed from the models yet. The command is: "
            f"{command}"
            if (command := verify_command(result))
            else "These numbers have not been recomputed from the models, and cannot be: "
            f"{lacking}.",
            "rows": [],
            "remarks": [],
        }
    if found["outdated"] == OTHER_RULES:
        return {
            "word": "INCOMPLETE",
            "tone": "open",
            "text": f"{found['replayed']} of {found['recorded']} trajectories were recomputed by "
            "other rules than today's, which asked another question, so nothing follows from that. "
            f"The command that does it by today's rules is: {verify_command(result)}",
            "rows": [],
            "remarks": [],
        }
    text = (
        f"{found['replayed']} of {found['recorded']} trajectories, {found['tokens']} tokens, were "
        "recomputed from both models, "
    )
    own_rule = any("its own rule was asked again" in note for note in found["notes"])
    text += (
        "and the rule itself was asked again. "
        if own_rule
        else "sharing nothing with the decoder but the models themselves. "
    )
    if refuted(result):
        word, tone = "REFUTED", "bad"
        silent = claims_nothing((one["check"], one["text"]) for one in found["findings"])
        text += (
            f"Result: {said}."
            if (said := _of_spend(result))
            else "Nothing was claimed of them, and their tokens do not fit the promised law."
            if silent
            else "What was logged is contradicted; the findings below say where."
        )
    else:
        whole = found["current"] and found["replayed"]
        word, tone = ("REPLAYED", "good") if whole else ("INCOMPLETE", "open")
        text += (
            "Nothing could be replayed."
            if not found["replayed"]
            else f"Result: {said}."
            if (said := _of_spend(result))
            else "What was logged is true as far as it was replayed, and it exceeds the budget."
            if _exceeded(found)
            else "What the decoder claims, and its tokens, fit the law that was promised."
            if source_word(result) == "decoder"
            else "What was logged is true as far as it was replayed."
        )
        tone = "bad" if _exceeded(found) else tone
    if not found["current"]:
        text += " The records have grown since; run nafaudit verify . again."
    remarks = []
    unclaimed = [
        f
        for f in found["findings"]
        if f["text"].endswith(UNCLAIMED) and f["check"] != "replay: token"
    ]
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    # A black box is judged by its replay: each budget's verdict counts the same outputs.
    told = any(arm.kept == Kept.VIOLATED for arm in result.arms) and (
        source_word(result) == "decoder"
    )
    for finding in found["findings"]:
        if told and finding["check"] == "replay: budget":
            continue
        # The verdict on the budget says it already.
        if finding["check"] in (TOKENS, FITS):
            continue
        told_of = finding in unclaimed or finding["text"].endswith(UNCLAIMED)
        if finding["verdict"] not in _FINE and not told_of:
            groups.setdefault((finding["verdict"], finding["check"]), []).append(finding)
    for (verdict, check), group in groups.items():
        arms = [budget_name(float(one["k"])) for one in group if one["k"] is not None]
        where = f" at {', '.join(dict.fromkeys(arms))}" if arms else ""
        # A test's value is its p, a comparison's the largest gap; the worst arm is named.
        worst = min if check.startswith("sampler: ") else max
        shown = worst(group, key=lambda one: float(one["value"]))
        if len({one["text"] for one in group}) > 1 and shown["k"] is not None:
            where += f"; worst at {budget_name(float(shown['k']))}"
        said = f"{check}{where}: {shown['text']}."
        if witness := shown["witness"]:
            said += (
                f" First at prompt {name(witness['prompt'])}, "
                f"{witness_at(witness['trajectory'], witness['step'])}."
            )
        remark_tone = "bad" if verdict in _REFUTED else "open"
        remarks.append({"word": verdict, "tone": remark_tone, "text": visible(said)})
    if unclaimed:
        said = ", ".join(f["check"].removeprefix("replay: ") for f in unclaimed)
        remarks.append(
            {"word": "UNKNOWN", "tone": "open", "text": visible(f"Nothing is claimed of: {said}.")}
        )
    remarks += [{"word": "NOTE", "tone": "open", "text": visible(note)} for note in found["notes"]]
    return {
        "word": word,
        "tone": tone,
        "text": text,
        "rows": [
            {
                "quantity": QUANTITIES.get(quantity, quantity),
                "path": f"made.verification.deviation.{quantity}.max",
                **{
                    level: value if isinstance(value, str) else f"{value:.1e}"
                    for level in ("max", "warn", "fail")
                    for value in (numbers[level],)
                },
            }
            for quantity, numbers in found["deviation"].items()
        ],
        "remarks": remarks,
    }


def settings_table(result: AuditResult, *, redact: bool) -> list[tuple[str, str]]:
    """Returns term and value of everything that the numbers depend on."""
    design = result.run.design
    identity: Mapping[str, Any] = design["identity"]
    decoding = identity["decoding"]
    extents = "; then ".join(
        f"{len(e['prompts'])} prompts, {e['trajectories']} trajectories each, k = "
        + ", ".join(map(str, e["budgets"]))
        for e in design["extents"]
    )
    keys = ("nafaudit", "torch", "transformers", "processor", "device", "threads", "batch")
    sessions = [
        ", ".join(f"{key} {session[key]}" for key in keys if key in session)
        for session in result.run.sessions
    ]
    rows = [
        ("protocol", str(identity["protocol"])),
        ("mechanism", str(identity["mechanism"])),
        ("ledger", str(identity["ledger"])),
        ("seed", f"{identity['seed']}, draws for the purpose {identity['purpose']!r}"),
        ("length limit T", str(decoding["max_new_tokens"] or "not known")),
        ("temperature", f"{decoding['temperature']:g} (on both models, before the solve)"),
        ("repetition penalty", f"{decoding['repetition_penalty']:g}"),
        ("charged against", str(design["anchor"])),
        ("design", str(design["hash"])),
        ("workload", str(identity["workload"])),
        *(
            (f"pair: {key}", value if isinstance(value, str) else json.dumps(value))
            for key, value in sorted(identity["pair"].items())
        ),
        *((f"layout: {key}", str(value)) for key, value in sorted(identity["layout"].items())),
        ("asked for", extents),
        ("verdict needs", f"at least {MIN_TRAJECTORIES} trajectories, none unjudged"),
        ("tests of chance", f"alarm level {ALARM_LEVEL:g} each; limits on rates at 95% each"),
        ("means", f"all limits on mean spend together at level {result.context.delta:g}"),
        ("units", "trajectories of one prompt are not independent; limits are for prompts as well"),
        ("versions", "; ".join(dict.fromkeys(sessions)) or "not recorded"),
    ]
    if redact:
        rows.append(("text", "left out of this page (--redact)"))
    return [(visible(term), visible(value)) for term, value in rows]
