"""What a decoder that is not ours is held to.

Our own engine is held to the promise of its mechanism. A black box and a log may promise less than
a mechanism: only that what is spent stays in budget, however it is spent. docs/protocols.md has
the table of how `--promise`, `--mechanism`, `--ledger`, `--debt` and `--k` combine.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from nafaudit.core.errors import InputError


class Promise(StrEnum):
    """A promise that names no mechanism, or the mechanism of the paper.

    BANKED: every prefix of every answer has spent at most max(0, (t+1) k - debt).
    K_NAF: the paper's Eq. 1 itself: for every prompt the mean total is at most K.
    ANCHORED: conformity with KL-anchored decoding: its rule, and with that the budget.
    """

    BANKED = "banked"
    K_NAF = "k-naf"
    ANCHORED = "anchored"


PROMISES = tuple(str(one) for one in Promise)
"""What `--promise` takes; conformity with another mechanism is asked for by `--mechanism`."""

ACCUSED_AT = 1e-3
"""How often an audit of a sound decoder may accuse it, by chance."""
MEANS_LEVEL = ACCUSED_AT / 20
"""What of that the bounds of means of prompts have, where only these are promised (Eq. 1)."""

_SAID = {
    Promise.BANKED: "no prefix of an answer spends more than (t+1) k, less the debt of its prompt",
    Promise.K_NAF: "for each prompt the mean spend is at most K = k T, less its debt (Eq. 1)",
    Promise.ANCHORED: "it is KL-anchored decoding itself, which keeps (t+1) k, less the debt",
}

_DEBT = ":debt="
"""Begins the part of a recorded name that says which debt there is."""


def in_words(held: str) -> str:
    """Says what something is held to.

    Args:
        held: A word of `PROMISES`, or the name of a mechanism.
    """
    said = _SAID[Promise(held)] if held in PROMISES else "it is that mechanism itself"
    return f"{held}: {said}"


def held_to(promise: str | None, mechanism: str) -> str:
    """Returns what a black box is held to: a word of `PROMISES`, or the name of a mechanism.

    Args:
        promise: As given; None for the default.
        mechanism: Which mechanism it is said to have, as typed or as a design records it.

    Raises:
        InputError: Both are given, and contradict each other.
    """
    rule = mechanism.partition(_DEBT)[0]
    if rule == Promise.ANCHORED:
        return str(promise or Promise.BANKED)
    # On another ledger, as anchored:bank=5, it is conformity that is demanded.
    if promise is None or (promise == Promise.ANCHORED == rule.partition(":")[0]):
        return mechanism
    raise InputError(
        f"promise = {promise} and mechanism = {rule} contradict each other: a mechanism other than "
        f"anchored demands conformity with that mechanism, and --promise ({', '.join(PROMISES)}) "
        f"asks for something else. Leave out --promise to hold the decoder to {rule}, or leave out "
        f"--mechanism to hold it to {promise}."
    )


def check_promise(promise: str | None, decoder: str | None, mechanism: str) -> None:
    """Checks what settings say of a promise; loads nothing.

    Raises:
        InputError: It is given for our own engine, or contradicts the mechanism.
    """
    if decoder is not None:
        held_to(promise, mechanism)
    elif promise is not None:
        raise InputError(
            f"promise = {promise} is for a black box or a log; our own engine is held to its "
            f"mechanism's own promise (mechanism = {mechanism}). Leave out --promise, or name a "
            "black box with --decoder."
        )


def check_ledger(promise: str | None, ledger: str) -> None:
    """Checks that a log's budgets follow from k where a promise is given for it.

    Raises:
        InputError: They do not, so that it is not known what was promised.
    """
    if promise is None or ledger == "banking":
        return
    raise InputError(
        f"promise = {promise} and ledger = {ledger} contradict each other: what is promised is k "
        "nats for every token (--ledger banking), and this log's budgets follow another rule, or "
        "an unknown one. Add --ledger banking if k nats a token is its rule, or leave out "
        "--promise: its own budgets are used then."
    )


def judged_by(identity: Mapping[str, Any], promise: str | None = None) -> str:
    """Returns what the records of a run are judged by; empty for our own engine.

    It is empty too for a log of which no budget rule is known: its own numbers are used.

    Args:
        identity: As a design records it; earlier versions did not say what a run is held to.
        promise: What the user says now; None for what is recorded, or the default.

    Raises:
        InputError: The run cannot be held to that.
    """
    mechanism, ledger = str(identity.get("promise", "")), str(identity["ledger"])
    if identity["protocol"] == "imported":
        check_ledger(promise, ledger)
        mechanism = str(Promise.ANCHORED) if ledger == "banking" else ""
    elif not mechanism:
        check_promise(promise, None, str(identity["mechanism"]))
    if not mechanism:
        return ""
    if promise is None and identity.get("held_to"):
        return str(identity["held_to"])
    return held_to(promise, mechanism)
