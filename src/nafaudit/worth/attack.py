"""Runs an attack: what can be reconstructed while every query stays in budget.

passages -> admission -> every way to attack -> logs. Each way is an ordinary run in a directory of
its own, and the whole result of an attack follows from those records.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nafaudit.core.errors import InputError
from nafaudit.core.ledger import RISKY_ONLY, is_baseline
from nafaudit.core.progress import OnProgress, Progress
from nafaudit.core.trajectory import Trajectory
from nafaudit.measures.overlap import MIN_SPAN
from nafaudit.models.pair import read_vocabulary
from nafaudit.runner.workbench import UnloadedPair, Workbench
from nafaudit.store.run import Run
from nafaudit.workload.passages import Passage
from nafaudit.worth.attack_run import (
    AttackBench,
    Attacker,
    Method,
    OnAnswer,
    QueryLog,
    bound_mechanism,
    mechanism_of_method,
    open_attack_run,
)
from nafaudit.worth.certify import GivenText, given_text, opening_of, spread
from nafaudit.worth.settings import ADMISSION, AttackSettings


@dataclass(frozen=True)
class AttackRecords:
    """Records of a finished attack, which `attack_result` reads.

    Attributes:
        path: Its directory.
        design: Hash of the identity of its first run.
        settings: What was asked.
        texts: The passages that were attacked.
        given: Number of passages that were given.
        attacker: Makes the queries and reads the answers.
        admission: Recall of the risky model alone, mean over single answers.
        logs: One per way to attack; that of the admission alone if the attack was not admitted.
        batch_free: True if records do not depend on their batch on this machine.
        remark: What else the user should know of the machine; empty if there is nothing.
        mixed: A note that records were computed by different arithmetics; empty if they were not.
    """

    path: Path
    design: str
    settings: AttackSettings
    texts: tuple[GivenText, ...]
    given: int
    attacker: Attacker
    admission: float
    logs: tuple[QueryLog, ...]
    batch_free: bool
    remark: str = ""
    mixed: str = ""

    @property
    def admitted(self) -> bool:
        """False if the risky model alone recalls too little for an attack to say anything."""
        return self.admission >= ADMISSION


def run_attack(
    passages: Sequence[Passage],
    settings: AttackSettings,
    on_progress: OnProgress = lambda progress: None,
) -> AttackRecords:
    """Runs, or resumes, the attack that the settings describe.

    Args:
        passages: The protected text.
        settings: What to ask; checked before any model loads.
        on_progress: Called as answers end.
    """
    unloaded = UnloadedPair.read(settings)
    tokenizer = unloaded.tokenizer.tokenizer
    opening, context = opening_of(tokenizer)
    divided = []
    for passage in passages:
        text = given_text(tokenizer, passage, opening, settings.given)
        wanted = text.tokens[: settings.max_new_tokens]
        if (words := len(tokenizer.decode(wanted).split())) < MIN_SPAN:
            raise InputError(
                f"{passage} has {words} words after the {settings.given} tokens that are given, "
                f"within {settings.max_new_tokens} tokens; a near-verbatim span has {MIN_SPAN}. "
                "Change --given or --max-new-tokens, or leave the passage out."
            )
        divided.append(replace(text, tokens=wanted))
    every = tuple(divided)
    # The longest prompt and its answer; chained answers may run over.
    most = max(settings.window)
    longest = max(every, key=lambda text: len(text.before) + len(text.tokens))
    needed = len(longest.before) + len(longest.tokens) + most
    if needed > unloaded.context:
        raise InputError(
            f"{longest.passage} and a window of {most} need {needed} positions; the pair has "
            f"{unloaded.context}. Lower --max-new-tokens, or split the passage."
        )
    methods = _methods(settings, max(len(text.tokens) for text in every))
    texts = spread(every, settings.limit or 0)
    pieces = read_vocabulary(tokenizer, (), ()).pieces
    attacker = Attacker(pieces, len(opening), settings.trajectories)
    # Without the debt, whichever ways were asked for: the digest stands for the machine alone.
    first = replace(methods[0], debt=False)
    mechanism = bound_mechanism(settings, first, attacker.first_items(first, texts), tokenizer)
    decoding = replace(settings.decoding, max_new_tokens=first.length)
    workbench = Workbench.load(unloaded.spec(needed, ()), mechanism, decoding)
    bench = AttackBench(workbench, attacker, every, texts, settings, context)
    design = bench.identity(methods[0]).hash
    path = Path(settings.out) if settings.out else Path("runs") / f"attack-{design[:10]}"
    tokens, start = 0, time.monotonic()

    def on_answer(stage: str, done: int, total: int, trajectory: Trajectory) -> None:
        nonlocal tokens
        tokens += len(trajectory)
        seconds = time.monotonic() - start
        on_progress(Progress(stage, done, total, tokens, seconds, unit="answers"))

    admission, logs = _attack(bench, path, methods, on_answer)
    mixed = next((note for log in logs if (note := Run(log.path).mixed)), "")
    return AttackRecords(
        path,
        design,
        settings,
        texts,
        len(every),
        attacker,
        admission,
        logs,
        workbench.probe.batch_free,
        workbench.settled.numerics.remark,
        mixed,
    )


def _attack(
    bench: AttackBench, path: Path, methods: Sequence[Method], on_answer: OnAnswer
) -> tuple[float, tuple[QueryLog, ...]]:
    """Measures the admission; then, if the attack is admitted, attacks in every way."""
    alone, budgets = (RISKY_ONLY,), bench.settings.budgets
    with open_attack_run(bench, path, methods[0], alone, on_answer) as single:
        single.fill(alone)
        recalls = [  # of the risky model's sampled answers, each on its own
            bench.attacker.score(answer.tokens, text.tokens)[0]
            for text in bench.texts
            for asked in single.asked(text, RISKY_ONLY)
            for answer in asked.answers
        ]
        admission = sum(recalls) / len(recalls)
        if admission < ADMISSION:
            return admission, (single.log(alone),)
        single.fill(budgets)
        logs = [single.log(budgets)]
    for method in methods[1:]:
        # A model alone owes nothing: its answers are the same with and without the debt.
        own = budgets
        if method.debt != methods[0].debt:
            own = tuple(k for k in budgets if not is_baseline(k))
        with open_attack_run(bench, path, method, own, on_answer) as run:
            run.fill(own)
            logs.append(run.log(own))
    return admission, tuple(logs)


def _methods(settings: AttackSettings, longest: int) -> list[Method]:
    """Returns every way to attack; a single answer can hold the longest passage and no more."""
    found = [
        Method(mode, size, debt)
        for debt in settings.debts
        for mode, sizes in (
            ("single", (longest,)),
            ("oracle", settings.window),
            ("chained", settings.window),
        )
        if mode == "single" or mode in settings.modes
        for size in sizes
    ]
    # What brings a debt of its own, or has none, is not attacked twice.
    names = [(one.mode, one.length, mechanism_of_method(settings, one).name) for one in found]
    return [one for i, one in enumerate(found) if names[i] not in names[:i]]
