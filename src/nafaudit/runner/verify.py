"""Loads what a verification needs, from the run's own design: its promise and its models."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

from nafaudit.auditor.verify import VerifyOptions, check_integrity, verify
from nafaudit.checks.verification import Verification
from nafaudit.core.design import differences
from nafaudit.core.errors import InputError
from nafaudit.core.ledger import ledger_of
from nafaudit.mechanisms.registry import anchored_on, recorded_mechanism
from nafaudit.models.checkpoints import repository, weights_hash
from nafaudit.models.pair import Pair, load_pair
from nafaudit.protocols import Mechanism
from nafaudit.runner.pairs import known_checkpoints, named_pair
from nafaudit.runner.workbench import protected_passages, resources_of
from nafaudit.store.run import Run


def verify_run(
    run: Run,
    options: VerifyOptions,
    on_progress: Callable[[int, int], None] = lambda done, of: None,
) -> Verification:
    """Loads the promise and the models of a run, and verifies it.

    Args:
        run: Whose records to check.
        options: How much, and where the models are.
        on_progress: Called with the trajectories done and to do.
    """
    check_integrity(run)
    promise = _promise_of(run, options)  # before any model loads
    pair = _pair_of(run, options)
    own = next((s["pair"] for s in run.sessions if s.get("pair")), None)
    passages = protected_passages(run.prompts(), own)
    promise = promise.bind(resources_of(pair.tokenizer, passages))
    return verify(run, promise, pair, options, on_progress)


def _promise_of(run: Run, options: VerifyOptions) -> Mechanism:
    """Reads off the design what the replay is held to.

    An imported log is held to KL-anchored decoding, with what the user says of the rest.
    """
    identity = run.design["identity"]
    if identity["protocol"] != "imported":
        name = identity.get("promise") or identity["mechanism"]
        return recorded_mechanism(name, plugin=options.plugin, typed=options.mechanism)
    if options.plugin is not None:
        raise InputError(f"{run.path} is an imported log, which no plug-in made; leave out plugin.")
    ledger = ledger_of(identity["ledger"])
    if ledger is None:
        raise InputError(
            f"{run.path} is an imported log whose budget rule is not known "
            f"({identity['ledger']!r}), so no allowance can be recomputed. Import it again with "
            "--ledger banking if that is its rule; nafaudit check judges it as logged."
        )
    if options.pair is None and options.safe is None:
        raise InputError(
            f"{run.path} is an imported log, which does not say where its models are. Give "
            "--safe and --risky, or --pair."
        )
    return anchored_on(ledger, options.debt)


def _pair_of(run: Run, options: VerifyOptions) -> Pair:
    """Loads the pair and makes sure that it is the run's."""
    recorded = run.design["identity"]["pair"]
    safe, risky = _locate(run, options)
    if run.design["identity"]["protocol"] == "imported":
        stops = run.stops or None
        return load_pair(safe, risky, device=options.device, stop_ids=stops, trust=options.trust)
    pair = load_pair(
        safe,
        risky,
        dtype=recorded["dtype"],
        device=options.device,
        stop_ids=recorded["stop_ids"],
        trust=options.trust,
    )
    if found := differences(dict(pair.fingerprint), recorded):
        raise InputError(
            f"the models at {safe} and {risky} are not those of {run.path}; they differ in\n  "
            + "\n  ".join(found)
            + "\nGive the run's own checkpoints with --safe and --risky."
        )
    return pair


def _locate(run: Run, options: VerifyOptions) -> tuple[str, str]:
    """Where the checkpoints are: as told, as recorded, or a registered pair with their hashes."""
    if options.safe is not None and options.risky is not None:
        return options.safe, options.risky
    if options.pair is not None:
        return named_pair(options.pair).locate()
    recorded = run.design["identity"]["pair"]
    said = [tuple(s["checkpoints"]) for s in run.sessions if s.get("checkpoints")]
    for safe, risky in itertools.chain(reversed(said), known_checkpoints()):
        if _is(safe, recorded["safe"]) and _is(risky, recorded["risky"]):
            return _pinned(safe, recorded["safe"]), _pinned(risky, recorded["risky"])
    places = f" (last at {' and '.join(said[-1])})" if said else ""
    raise InputError(
        f"the models of {run.path}{places} are not there, or their weights changed: no checkpoint "
        f"with the recorded hashes was found. Give them with --safe and --risky."
    )


def _is(path: str, recorded: str) -> bool:
    """True if a checkpoint has the recorded hash; asks no hub."""
    if recorded.startswith("hub:"):
        return recorded.startswith(f"hub:{repository(path)}@")
    try:
        return Path(path).is_dir() and weights_hash(path) == recorded
    except (OSError, InputError):  # not there, or not whole
        return False


def _pinned(path: str, recorded: str) -> str:
    """A hub id at the recorded commit, whatever its branches did since."""
    return recorded.removeprefix("hub:") if recorded.startswith("hub:") else path
