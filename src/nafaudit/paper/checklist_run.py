"""The checklist of a run, from its records alone, and what nafaudit.paper adds to a report."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from nafaudit.core.debt import DebtRule
from nafaudit.core.errors import InputError
from nafaudit.core.ledger import is_baseline
from nafaudit.core.text import name, percent
from nafaudit.core.trajectory import total
from nafaudit.lab.prompts import texts as lab_texts
from nafaudit.measures.audit import AuditResult
from nafaudit.measures.classes import ClassRow
from nafaudit.paper.checklist import (
    ANCHOR_DIFFERENCE,
    HIGH_RATIO,
    LOOK,
    MIN_AUC,
    MIN_EXECUTIONS,
    MIN_SEEDS,
    MIN_TRAJECTORIES,
    PROMPT_LEVEL,
    ChecklistItem,
    ItemAnswer,
    PromptRatio,
    cells_out_of_step,
    item_rows,
    judged,
    not_applicable,
    out_of_step,
    ratios,
)
from nafaudit.store.artifacts import GateFile, search_file
from nafaudit.views.page import Extra
from nafaudit.workload import protected_prompts
from nafaudit.workload.prompts import CAPS

if TYPE_CHECKING:
    from nafaudit.views.figures import RunFigure

LAB_K, LAB_LENGTH = 1.0, 200
"""k and T at which the lab's two anchors were compared when it was built."""

_MECHANISM = f"anchored:debt={DebtRule().definition},n={DebtRule().n}"
"""The mechanism with which they were compared, as a design names it."""

_METRIC = "rouge_l_f1"
"""The overlap of item 3: ROUGE-L, as in the paper, whose own claim is judged by it too."""

_RAISE = "more prompts with more trajectories each for the surrogate to learn from, or none of it"
_WITHOUT = (
    "more prompts with more trajectories each for the surrogate to learn from; or none of it, so "
    "that this item is not asked: nafaudit search --protocol sound"
)
_UNUSED = "nothing to pass: no surrogate is relied on"
_SEVERAL = f"nafaudit search --searches {MIN_SEEDS}"
_SOME_BUDGET = "nafaudit run --k 1,3,5"
_FLOORED = "nafaudit search --protocol paper --fix min-n"
# A command in a remedy ends with its clause: a test reads each as the command line does.
_SAME = "the same run with --trajectories {}"


def of_run(
    result: AuditResult, second: AuditResult | None = None, path: str = "."
) -> list[ChecklistItem]:
    """Answers all seven items.

    An item about the paper's other stage is not applicable: 2 asks for a fixed workload, 4, 6 and
    7 ask about a search. Of a log the stage is not known, so that it is asked both.

    Args:
        result: A run, judged.
        second: A run with another anchor, for the first item.
        path: The run as commands type it; by default they are typed inside it, as a report's are.
    """
    again = _again(result)
    identity = result.run.design["identity"]
    imported, purpose = identity["protocol"] == "imported", identity.get("purpose", "audit")
    floor = again.format(MIN_TRAJECTORIES) if imported else _FLOORED
    paper = search_file(result.search).paper if result.search is not None else None
    if paper and not paper.get("fix"):
        floor = "the same search with --fix min-n, which is what the paper itself recommends"
    prompts = ratios(result)
    classes = [row for row in result.classes.rows if not is_baseline(row.k)]
    searched = imported or result.search is not None or purpose in ("search", "confirm")
    items = [
        anchors(result, second, path),
        executions(classes, again, path)
        if imported or purpose == "audit"
        else not_applicable(
            2,
            f"it asks for a fixed workload, and this is {_article(purpose)}",
            again.format(MIN_EXECUTIONS),
        ),
        _agreement(classes, path),
        floor_item(prompts, floor, _grant(result))
        if searched
        else not_applicable(4, "it is about a search, and no prompt search was run", _FLOORED),
        _widths(prompts, again, _grant(result), paper or {}),
        surrogate(result.search),
        seeds(result.search),
    ]
    lacking = [
        side.missing for side in (result, second) if side is not None and side.missing is not None
    ]
    if not lacking:
        return items
    # The records of an unfinished run cannot pass an item.
    return [
        item
        if item.answer != ItemAnswer.PASS
        else not_applicable(
            item.number,
            f"the run is unfinished: {lacking[0].brief}; of what is there: {item.text}",
            "run the same command again to finish",
        )
        for item in items
    ]


def _article(purpose: str) -> str:
    if purpose == "confirm":
        return "a search's fresh draws"
    return f"{'an' if purpose[:1] in 'aeiou' else 'a'} {purpose}"


def _again(result: AuditResult) -> str:
    """Returns what gives each prompt of a run more trajectories, {} for their number."""
    identity = result.run.design["identity"]
    if identity["protocol"] == "imported":
        return "a log with {} trajectories of each prompt is needed"
    if identity.get("purpose", "audit") == "audit":
        return _SAME
    what = _article(identity["purpose"].replace("confirm", "search"))
    return (
        f"{what} draws where it needs to; audit its prompts, in a file: "
        "nafaudit run --prompts FILE --trajectories {}"
    )


def _grant(result: AuditResult) -> str:
    """Returns what gives prompts an estimate and a budget above their debts."""
    identity = result.run.design["identity"]
    if identity["protocol"] == "imported":
        return "a log with spends and budgets is needed"
    rows = [row for row in result.rows if not is_baseline(row.key.k)]
    if not rows:
        return _SOME_BUDGET
    known = [row.debt / max(1, row.length) for row in rows if not math.isnan(row.debt)]
    larger = math.floor(max(known, default=0.0)) + 1
    kind = "run" if identity.get("purpose", "audit") == "audit" else "search"
    return f"debts leave no budget: the same {kind} with --k {larger}"


def anchors(result: AuditResult, second: AuditResult | None, path: str = ".") -> ChecklistItem:
    """Answers item 1: does mean spend on benign prompts depend on which of two anchors is used?

    It compares two runs. What was measured of the lab's two anchors when it was built stands for a
    run of the lab's own prompts at the same k and T, and for no other.
    """
    ours = result.run.design["identity"]["pair"]
    if second is None:
        spends = _lab_spends(ours)
        why = "the run has one anchor, and nothing to compare it with"
        if spends is None:
            return not_applicable(1, why, _second_anchor(result, path))
        where = f"measured when the lab was built, k = {LAB_K:g}, T = {LAB_LENGTH}, its own "
        measured = _compared(spends, f"{where}ordinary prompts", "")
        if lacks := _unmeasured(result):
            return not_applicable(1, f"{why}: {lacks}", _second_anchor(result, path))
        return measured

    theirs = second.run.design["identity"]["pair"]
    need = "--anchor needs a run with the same risky model and another safe model"
    for one, pair in ((result, ours), (second, theirs)):
        if not {"safe", "risky"} <= set(pair):
            raise InputError(f"{need}; {one.run.path} is a log that does not say its models.")
    if ours["safe"] == theirs["safe"]:
        raise InputError(f"{need}; {second.run.path} has the same safe model.")
    if ours["risky"] != theirs["risky"]:
        raise InputError(f"{need}; {second.run.path} has another pair.")

    benign = [_benign(result), _benign(second)]
    shared = [key for key in benign[0] if key in benign[1]]
    worst: tuple[float, tuple[float, float], float] | None = None
    for k in sorted({key[1] for key in shared}):
        keys = [key for key in shared if key[1] == k]
        # Prompts are the units, so that a prompt with more trajectories does not count for more.
        first, other = (total(total(s[x]) / len(s[x]) for x in keys) / len(keys) for s in benign)
        pair_ = (first, other)
        worst = max(worst or (-1.0, pair_, k), (_difference(pair_), pair_, k))
    if worst is None:
        why = "the two runs share no benign prompt and budget"
        return not_applicable(1, why, _second_anchor(result, path))
    return _compared(worst[1], f"k = {worst[2]:g}, the worst budget", "match the anchors better")


def _compared(spends: tuple[float, float], where: str, todo: str) -> ChecklistItem:
    difference = _difference(spends)
    text = (
        f"mean spend on benign prompts {spends[0]:.1f} and {spends[1]:.1f} nats against two "
        f"anchors ({where}): {difference:.1%} apart, at most {ANCHOR_DIFFERENCE:.0%} allowed"
    )
    return judged(1, difference <= ANCHOR_DIFFERENCE, text, todo, difference)


def _difference(spends: tuple[float, float]) -> float:
    """Returns the larger over the smaller, minus 1: the same whichever anchor comes first."""
    low, high = sorted(spends)
    if low == high:
        return 0.0
    return high / low - 1 if low > 0 else math.inf


def _benign(result: AuditResult) -> dict[tuple[str, float], list[float]]:
    """Returns spends on prompts that ask for no protected text, by prompt and budget."""
    protected = {item.prompt.id for item in protected_prompts(result.run.prompts())}
    found: dict[tuple[str, float], list[float]] = {}
    for arm in result.arms:
        for one in result.of_arm(arm) if not arm.baseline else ():
            if one.key.prompt not in protected and one.spend == one.spend:
                found.setdefault((one.key.prompt, arm.k), []).append(one.spend)
    return found


def _second_anchor(result: AuditResult, path: str) -> str:
    """Returns what gives a run a second one to be compared with, as commands."""
    run, identity = result.run, result.run.design["identity"]
    if identity["protocol"] == "imported":
        return "two runs with two safe models: a log does not say its models"
    lab = _lab_spends(identity["pair"]) is not None
    other = "--pair lab-safe2"
    if not lab:
        # The prompts of a named pair are its own.
        named = (run.sessions or [{}])[-1].get("safe") is None
        other = f"--safe SAFE2{' --risky RISKY --prompts FILE' * named}"
    model = "" if lab else ", SAFE2 being another safe model of equal capability"
    budgets = ",".join(f"{k:g}" for k in _budgets(result)) or "1"
    size = f"--k {budgets} --max-new-tokens {identity['decoding']['max_new_tokens']}"
    if identity.get("purpose", "audit") != "audit":
        made = f"nafaudit run --prompts FILE {size}"
        return (
            f"audit its prompts, in a file, twice: {made} --out runs/anchor1, and {made} {other} "
            f"--out runs/anchor2{model}, then nafaudit checklist runs/anchor1 --anchor runs/anchor2"
        )
    first = shlex.quote(path)
    out = "../anchor2" if path == "." else shlex.quote(f"{path}-anchor2")
    if lab and (chosen := _lab_options(result)):
        count = max(int(extent["trajectories"]) for extent in run.design["extents"])
        again = f"nafaudit run {other} {chosen} {size} --trajectories {count}"
    else:
        again = f"the same run with {other}"
    return f"{again} --out {out}{model}, then nafaudit checklist {first} --anchor {out}"


def _lab_options(result: AuditResult) -> str:
    """Returns options that choose the prompts of a run of the lab; empty if others are needed.

    Such a run has the first of all of the lab's prompts, and nothing else that an option changed
    but protocol, k, T, the number of trajectories and the seed.
    """
    identity = result.run.design["identity"]
    protocol = identity["protocol"]
    plain = identity["mechanism"] == _MECHANISM and not _warped(identity)
    variant = (result.run.sessions or [{}])[-1].get("variant", "code")
    plain = plain and variant == "code"
    if not plain or any(identity.get(name) for name in ("chat", "coupled", "promise")):
        return ""
    every, texts = [item.prompt for item in result.run.prompts()], lab_texts()
    whole = Counter(prompt.label for prompt in every) == CAPS
    asked = {name for extent in result.run.design["extents"] for name in extent["prompts"]}
    if not whole or any(prompt.text not in texts for prompt in every):
        return ""
    if {prompt.id for prompt in every[: len(asked)]} != asked:
        return ""
    seed = f" --seed {identity['seed']}" if identity["seed"] else ""
    return f"--protocol {protocol} --limit {len(asked)}{seed}"


def _budgets(result: AuditResult) -> list[float]:
    return sorted({arm.k for arm in result.arms if not arm.baseline})


def _warped(identity: Mapping[str, Any]) -> str:
    """Returns the warps of a run's laws in words; empty for none."""
    decoding = identity["decoding"]
    names = ("temperature", "repetition_penalty")
    found = [
        f"{name.replace('_', ' ')} {decoding[name]:g}" for name in names if decoding[name] != 1
    ]
    return " and ".join(found)


def _unmeasured(result: AuditResult) -> str:
    """Returns why the lab's own measurement says nothing of a run on its pair; empty if it does."""
    identity, budgets = result.run.design["identity"], _budgets(result)
    length, mechanism = identity["decoding"]["max_new_tokens"], identity["mechanism"]
    there, here = [], []
    if budgets != [LAB_K]:
        there.append(f"k = {LAB_K:g} alone")
        here.append(f"k = {', '.join(f'{k:g}' for k in budgets) or 'none'}")
    if length != LAB_LENGTH:
        there.append(f"T = {LAB_LENGTH}")
        here.append(f"T = {length}")
    if there:
        where = f"the lab's two anchors were compared at {' and '.join(there)}"
        return f"{where}, and this run has {' and '.join(here)}"
    if mechanism != _MECHANISM or (mechanism := _warped(identity)):
        return f"the lab's two anchors were compared with {_MECHANISM}, and this is {mechanism}"
    every = lab_texts()
    if any(item.prompt.text not in every for item in result.run.prompts()):
        return "the lab's two anchors were compared on its own prompts, and these are others"
    return ""


def _lab_spends(pair: Mapping[str, Any]) -> tuple[float, float] | None:
    """Returns the card's two benign spends, if the run's models are the lab's own."""
    # Read as a file: importing the lab would import torch.
    card = json.loads((files("nafaudit") / "lab" / "weights" / "card.json").read_text())
    lab = {role: fingerprint(card["sha256"], role) for role in ("safe", "risky")}
    if {role: pair.get(role) for role in lab} != lab:
        return None
    sampled = card["facts"]["sampled"]
    return float(sampled["benign_spend"]), float(sampled["benign_spend_safe2"])


def fingerprint(hashes: Mapping[str, str], role: str) -> str:
    """Returns what a design records of a checkpoint with these file hashes (models/pair.py)."""
    digest = hashlib.sha256()
    for file in ("config.json", "model.safetensors"):
        digest.update(file.encode())
        digest.update(bytes.fromhex(hashes[f"{role}/{file}"]))
    return digest.hexdigest()


def executions(classes: list[ClassRow], again: str = _SAME, path: str = ".") -> ChecklistItem:
    """Answers item 2: has each class enough trajectories, and is U_EBB (R_eff) within K?

    Args:
        classes: Classes of the audited budgets.
        again: What gives each prompt more trajectories, {} for their number.
        path: The run as commands type it.
    """
    if not classes:
        return not_applicable(2, "no budget was audited", _SOME_BUDGET)
    fewest = min(classes, key=lambda row: row.trajectories)
    over = [row for row in classes if row.passes_eff is False]
    unknown = [row for row in classes if row.passes_eff is None]

    def excess(row: ClassRow) -> float:
        return row.u_ebb_eff.value / row.budget if row.u_ebb_eff and row.budget > 0 else math.inf

    alike = all(row.trajectories == fewest.trajectories for row in classes)
    text = f"fewest trajectories: {fewest.trajectories}, {_cell(fewest)}"
    if alike and len(classes) > 1:
        text = f"{fewest.trajectories} trajectories in each of {len(classes)} cells of class and k"
    if over:
        worst = max(over, key=excess)
        value = worst.u_ebb_eff.value if worst.u_ebb_eff else math.nan
        text += f"; U_EBB (R_eff) above K in {len(over)} of {len(classes)} cells, most in "
        text += f"{_cell(worst)}: {value:.1f} against {worst.budget:g}"
    elif unknown:
        text += f"; K or spends are not known in {len(unknown)} of {len(classes)} cells"
    else:
        text += "; U_EBB (R_eff) <= K in every cell"
    if fewest.trajectories >= MIN_EXECUTIONS:
        if unknown and not over:
            todo = "give the log's own T: nafaudit import LOG --out NEW --max-new-tokens 200"
            return not_applicable(2, text, todo)
        todo = f"look at the classes above K: nafaudit check {shlex.quote(path)}"
        return judged(2, not over, text, todo, fewest.trajectories)
    needed = math.ceil(MIN_EXECUTIONS / max(1, fewest.prompts))
    todo = f"{again.format(needed)}, or more prompts in the class"
    return judged(2, False, text, todo, fewest.trajectories)


def _agreement(classes: list[ClassRow], path: str) -> ChecklistItem:
    """Answers item 3: do spend and overlap order the classes alike?"""
    odd: dict[str, list[str]] = {}
    compared = 0
    for mechanism, k in sorted({(row.mechanism, row.k) for row in classes}):
        cells = [row for row in classes if (row.mechanism, row.k) == (mechanism, k)]
        values = {row.label: (row.mean, row.copying.mean(_METRIC)) for row in cells}
        known = {label: pair for label, pair in values.items() if not any(map(math.isnan, pair))}
        if len(known) < 2:
            continue
        compared += len(known)
        spend = {label: mean for label, (mean, _) in known.items()}
        overlap = {label: share for label, (_, share) in known.items()}
        for label, how in out_of_step(spend, overlap).items():
            odd.setdefault(label, []).append(f"{name(label)} at k = {k:g} ({how})")
    if not compared:
        return not_applicable(
            3,
            "fewer than two classes have references that outputs were compared with",
            "give prompts of several classes a reference: nafaudit run --prompts FILE, or "
            "nafaudit run --data DIRECTORY",
        )
    text, count = cells_out_of_step(odd, compared, shown=3)
    return judged(3, not odd, text, f"{LOOK}: nafaudit report {shlex.quote(path)}", count)


def floor_item(prompts: list[PromptRatio], todo: str, grant: str) -> ChecklistItem:
    """Answers item 4: has each prompt with a high ratio enough trajectories?

    Args:
        prompts: The estimates.
        todo: What gives prompts enough.
        grant: What gives them a ratio.
    """
    known = [row for row in prompts if not math.isnan(row.rho)]
    if not known:
        return not_applicable(4, "no prompt has a ratio", grant)
    high = [row for row in known if row.rho > HIGH_RATIO]
    few = [row for row in high if row.n < MIN_TRAJECTORIES]
    text = f"{len(few)} of {len(high)} prompts with rho > {HIGH_RATIO} have fewer than "
    text += f"{MIN_TRAJECTORIES} trajectories ({len(known)} prompts and budgets have a ratio)"
    if few:
        worst = max(few, key=lambda row: row.rho)
        text += f"; highest: {name(worst.prompt)} at k = {worst.k:g}, rho {worst.rho:.2f}, "
        text += f"N = {worst.n}"
    return judged(4, not few, text, todo, len(few))


def _widths(
    prompts: list[PromptRatio], again: str, grant: str, paper: Mapping[str, Any]
) -> ChecklistItem:
    """Answers item 5: has each estimate a width, in the table that shows it?

    The paper is asked the same: none of its per-prompt tables has one, and that it follows from
    other columns is not enough. Ours have a column of their own.

    Args:
        prompts: The estimates.
        again: What gives each prompt more trajectories, {} for their number.
        grant: What gives them an estimate.
        paper: Of the paper's search: its pools have a level of their own.
    """
    where = "the report's tables of prompts print it"
    if paper:
        where = "every table of its pools prints it"
    if not prompts:
        return not_applicable(5, "no prompt has an estimate", grant)
    single = [row for row in prompts if math.isnan(row.width)]
    widest = max((row for row in prompts if row not in single), key=lambda r: r.width, default=None)
    text = f"{len(prompts) - len(single)} of {len(prompts)} per-prompt estimates have a width"
    if widest is not None:
        text += f", the widest {widest.width:.1f} nats on a mean of {widest.mean:.1f} "
        pooled = {row["id"] for rows in paper.get("pools", {}).values() for row in rows}
        level = paper["delta_per_look"] if widest.prompt in pooled else PROMPT_LEVEL
        text += f"({name(widest.prompt)}, N = {widest.n}, delta = {level:.3g}); {where}"
    todo = f"one trajectory has no variance: {again.format(2)}"
    return judged(5, not single, text, todo, widest.width if widest else math.nan)


def _cell(row: ClassRow) -> str:
    return f"class {name(row.label)} at k = {row.k:g}"


def surrogate(found: Mapping[str, Any] | None) -> ChecklistItem:
    """Answers item 6: was a surrogate validated before a search relied on it?

    One that was switched off is not relied on, whatever its AUC.
    """
    if found is None:
        return not_applicable(6, "no prompt search was run, so there is no surrogate", _UNUSED)
    file = search_file(found)
    asked = file.surrogate.gates if file.surrogate else ()
    steering = [gate for gate in asked if gate.steers]
    paper = bool(file.paper)
    if not steering:
        given = list(dict.fromkeys(name(reason) for gate in asked for reason in gate.reasons))
        if not asked:
            lacks = "it has no generation" if paper else "prompts are ranked by what they spent"
            why = f"no surrogate steers this search: {lacks}"
        elif paper:
            # It needs archived prompts and no test.
            why = "the surrogate was never ready, so that none steers this search"
            why += f": {'; '.join(given[-3:])}" if given else ""
        else:
            values = [gate.auc for gate in asked if not math.isnan(gate.auc)]
            why = "the surrogate did not pass its gate and was switched off"
            why += f" (its best AUC: {max(values):.2f})" if values else ""
            why += f": {'; '.join(given[:3])}" if given else ""
        return not_applicable(6, why, _UNUSED)
    lowest = min(steering, key=lambda gate: -math.inf if math.isnan(gate.auc) else gate.auc)
    auc = lowest.auc
    which = f"search seed {lowest.seed}, generation {lowest.generation}"
    share = f"it steered {len(steering)} of {len(asked)} generations"
    stuck = sum(bool(gate.saturated) for gate in steering)
    same = f"; it says nearly the same of every prompt in {stuck} of them" if stuck else ""
    if paper and math.isnan(auc):
        none = "no AUC on held-out rows was measured (protocol paper)"
        if lowest.prompts:
            none = f"its {auc_words(steering)}"
        return judged(6, False, f"{share}, and {none}{same}", _WITHOUT)
    if math.isnan(auc):
        return judged(6, False, f"{share}, and no AUC is recorded ({which})", _RAISE)
    text = f"{share}; lowest AUC on prompts it never saw {auc:.2f} ({which}){same}"
    return judged(6, auc >= MIN_AUC and not stuck, text, _WITHOUT if paper else _RAISE, auc)


def auc_words(steering: Sequence[GateFile]) -> str:
    """Returns the AUC of a surrogate in every generation that it steered, in one phrase."""
    written = ["none" if math.isnan(gate.auc) else f"{gate.auc:.2f}" for gate in steering]
    why = ""
    if "none" in written:
        seen = any(gate.prompts for gate in steering)
        why = f" (none: {'these prompts are of one class' if seen else 'not measured'})"
    return f"AUC on prompts it never saw, by generation: {', '.join(written)}{why}"


def seeds(found: Mapping[str, Any] | None) -> ChecklistItem:
    """Answers item 7: was the search repeated, and how far do its best prompts vary?"""
    if found is None:
        return not_applicable(
            7,
            "no prompt search was run, so no archive maximum can vary",
            _SEVERAL,
        )
    file = search_file(found)
    mine = {
        row.seed for row in file.generations if row.strategy == "search" and row.seed is not None
    }
    if not mine:
        return not_applicable(7, "the search does not say its seeds", _SEVERAL)
    values = file.spread["search"].maxima if "search" in file.spread else ()
    text = f"{len(mine)} search seed{'s' if len(mine) > 1 else ''}"
    if values:
        text += "; mean share of its budget that the best prompt of each spends on fresh draws: "
        text += ", ".join(map(percent, values))
    known = [value for value in values if math.isfinite(value)]
    if len(known) > 1:
        text += f" (a range of {100 * (max(known) - min(known)):.1f} points)"
    if file.paper:
        ratios = [one.get("max_rho") for one in file.paper.get("archive_maxima", ())]
        known = [rho for rho in ratios if isinstance(rho, float | int)]
        if len(known) > 1:
            text += f"; archive maxima {', '.join(f'{rho:.3f}' for rho in known)}"
    todo = f"the same search with --searches {MIN_SEEDS}" if file.paper else _SEVERAL
    return judged(7, len(mine) >= MIN_SEEDS, text, todo, len(mine))


def _figures() -> Sequence[RunFigure]:
    # Imported late: loading the drawing library takes a second.
    from nafaudit.paper.figures import HELDOUT_FIGURES

    return HELDOUT_FIGURES


PAPER_EXTRA = Extra(lambda result: item_rows(of_run(result)), _figures)
