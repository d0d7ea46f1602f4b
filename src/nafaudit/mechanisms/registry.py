"""Mechanisms by name: a registered one, or a plug-in as `package.module:Class`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from nafaudit.core.debt import DebtRule
from nafaudit.core.errors import InputError, LawError
from nafaudit.core.ledger import (
    WHOLE,
    Banking,
    Bucket,
    FixedBudget,
    Ledger,
    LikelihoodLead,
    currency_of,
)
from nafaudit.core.named_objects import OBJECT_PREFIX
from nafaudit.mechanisms.anchored import Anchored
from nafaudit.mechanisms.cards import Spec, parse, unknown
from nafaudit.mechanisms.choosing import RULES
from nafaudit.mechanisms.divergences import Pathwise, Renyi, renyi
from nafaudit.mechanisms.laws import kl
from nafaudit.mechanisms.plugins import build, build_recorded, source_hash
from nafaudit.mechanisms.published import (
    FUNCTION_WORDS,
    CpDelta,
    CpFuse,
    MemFree,
    TokenSwap,
    block_list,
    digest,
    ids_of_words,
)
from nafaudit.protocols import Mechanism, Resources, Rule, SequenceRule, Served, currency


def _mixing(rule: Rule, spec: Spec, debt: DebtRule, shadow: str = "") -> Mechanism:
    """Puts a rule on the ledger that its options ask for."""
    name = f"{spec.name}:debt={debt.definition},n={debt.n}"
    refill: Any = spec.word("refill")
    bucket = Bucket(spec.number("cap"), spec.number("bank"), refill)
    if bucket == Bucket():
        return Mechanism(name, rule, Banking(), debt, shadow=shadow)
    made = Mechanism(name, rule, bucket, debt, shadow=shadow)
    if refill == "token":
        return made
    return replace(made, requires=lambda run: replace(made, ledger=bucket.of_pieces(run.pieces)))


def _renyi(spec: Spec, debt: DebtRule) -> Mechanism:
    alpha = spec.number("alpha")
    if 1 < alpha < _LEAST_ORDER:
        raise InputError(
            f"mechanism {spec.name!r}: alpha must be 1 or at least {_LEAST_ORDER} (inf is the "
            f"largest log-ratio), got {alpha:g}: closer to 1 the divergence drowns in rounding."
        )
    # Order 1 is the KL divergence, which has a second implementation of its own.
    return _mixing(Renyi(alpha), spec, debt, "kl" if alpha == 1 else f"renyi:{alpha!r}")


def _free(rule: Rule, spec: Spec, data: str = "") -> Mechanism:
    """Makes a mechanism without a budget: its cost is compared with k, and nothing is owed."""
    ledger = LikelihoodLead() if isinstance(rule, CpFuse) else Banking()
    return Mechanism(f"{spec.name}{data}:debt=positives,n=0", rule, ledger, DebtRule(0))


def _memfree(spec: Spec, debt: DebtRule) -> Mechanism:
    n, path = spec.count("n"), spec.word("list")

    def bound(run: Resources) -> Mechanism:
        texts = _lines(path) if path else run.passages
        if not any(text.strip() for text in texts):
            raise InputError(
                f"mechanism {spec.name!r} needs a block list, and this run has no protected "
                "passages: give list=FILE, a text file with one passage a line."
            )
        # A passage is split otherwise after a space than at the start of a text.
        split = [run.split(space + text.strip()) for text in texts for space in ("", " ")]
        rule = MemFree(n, block_list(split, n))
        return _free(rule, spec, data=f"@{digest(sorted(split))}")

    return replace(_free(MemFree(n, {}), spec), requires=bound)


def _tokenswap(spec: Spec, debt: DebtRule) -> Mechanism:
    path = spec.word("words")

    def bound(run: Resources) -> Mechanism:
        ids = ids_of_words(run.pieces, _lines(path) if path else FUNCTION_WORDS)
        if not ids:
            raise InputError(
                f"mechanism {spec.name!r}: no token of the vocabulary is a word of the list; give "
                "words=FILE, a text file with one word a line."
            )
        return _free(TokenSwap(ids), spec, data=f"@{digest(ids)}")

    return replace(_free(TokenSwap(()), spec), requires=bound)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text: {error}.") from error


# An order closer to 1 divides rounding by alpha - 1.
_LEAST_ORDER = 1.01

BUILDERS: dict[str, Callable[[Spec, DebtRule], Mechanism]] = {
    "anchored": lambda spec, debt: _mixing(Anchored(), spec, debt, "kl"),
    "renyi": _renyi,
    "pathwise": lambda spec, debt: _mixing(Pathwise(), spec, debt, "pathwise"),
    "cp-delta": lambda spec, debt: _mixing(CpDelta(cast(Any, spec.word("divergence"))), spec, debt),
    "cp-fuse": lambda spec, debt: _free(CpFuse(), spec),
    "memfree": _memfree,
    "tokenswap": _tokenswap,
}


def anchored_on(ledger: Ledger, debt: DebtRule) -> Mechanism:
    """Returns KL-anchored decoding on a given ledger, which a log of another tool is held to."""
    name = f"anchored:debt={debt.definition},n={debt.n}"
    return Mechanism(name, Anchored(), ledger, debt, shadow="kl")


@dataclass(frozen=True)
class SequenceMechanism(Mechanism):
    """A mechanism that chooses whole outputs; its step-level rule is for the baselines only."""

    sequence: SequenceRule = field(kw_only=True)

    def of_length(self, length: int) -> SequenceMechanism:
        """Returns the mechanism with the budget of outputs of at most `length` tokens."""
        sized = getattr(self.sequence, "of_length", lambda _: self.sequence)(length)
        return replace(self, ledger=FixedBudget(length), sequence=sized)

    @property
    def currency(self) -> str:
        """What its charges are counted in."""
        return str(getattr(self.sequence, "currency", WHOLE))


def _chooses(name: str, rule: SequenceRule) -> SequenceMechanism:
    # A prefix debt belongs to a budget that accrues step by step.
    return SequenceMechanism(name, Anchored(), FixedBudget(0), DebtRule(0), sequence=rule)


def mechanism(spec: str, debt: DebtRule) -> Mechanism:
    """Returns the mechanism that a specification names.

    Args:
        spec: A registered name with its options (`nafaudit.mechanisms.cards`), or
            `package.module:Class` of a class that is built without arguments and has `serve` (a
            rule; it runs on the banking ledger), or has `rule`, `ledger` and `debt` (a whole
            mechanism), or has `plan` and `choose` (a sequence-level rule, see
            `nafaudit.mechanisms.sequences`).
        debt: The prefix debt, for whatever does not bring its own.
    """
    if (known := parse(spec)) is not None:
        if known.card.name in BUILDERS:
            return BUILDERS[known.card.name](known, debt)
        return _chooses(known.name, RULES[known.card.name](known))
    if ":" not in spec or not spec.rpartition(":")[2].isidentifier():
        raise unknown(spec)
    return _plugged(spec, build(spec), debt)


def _plugged(spec: str, plugin: Any, debt: DebtRule) -> Mechanism:
    """Returns the mechanism that an object of a user's class stands for."""
    if all(callable(getattr(plugin, part, None)) for part in ("plan", "choose")):
        return _chooses(f"{spec}@{source_hash(plugin)}", plugin)
    if all(hasattr(plugin, part) for part in ("rule", "ledger", "debt")):
        rule, ledger, debt = plugin.rule, plugin.ledger, plugin.debt
    else:
        rule, ledger = plugin, Banking()
    if not callable(getattr(rule, "serve", None)):
        raise InputError(
            f"{spec} has no method serve(prefixes, safe, risky, allowance); see "
            "nafaudit.protocols.Rule for what it takes and returns."
        )
    if not isinstance(getattr(ledger, "spec", None), str):
        raise InputError(
            f"{spec}: its ledger has no `spec`, the string under which a design records it; see "
            "nafaudit.core.ledger.Ledger."
        )
    name = f"{spec}@{source_hash(plugin)}:debt={debt.definition},n={debt.n}"
    return Mechanism(name, Guarded(rule, spec), ledger, debt)


def recorded_mechanism(
    name: str, *, plugin: Path | None = None, typed: str | None = None
) -> Mechanism:
    """Returns the mechanism that a design recorded under this name.

    A design may come from another person, so code that it names runs only if the user names it too.

    Args:
        name: As recorded.
        plugin: File with the source of a recorded plug-in.
        typed: Specification that the user gave for the run just now.

    Raises:
        InputError: It is not known here, or a plug-in that the user did not name, or its source is
            another one now.
    """
    found = re.fullmatch(r"(.+?)(?:@([0-9a-f]+))?:debt=([a-z-]+),n=(\d+)", name)
    if found is None and parse(name) is not None:
        raise InputError(
            f"the run was made by {name!r}, which chooses among whole outputs: it serves no law at "
            "a step, so there is none to recompute. nafaudit check judges its records."
        )
    if found is None:
        raise InputError(
            f"the run was made by {name!r}, which says neither its rule nor its debt, so it "
            "cannot be recomputed."
        )
    spec, source, definition, n = found.groups()
    debt = DebtRule(int(n), definition)  # type: ignore[arg-type]
    if parse(spec) is None and spec != typed:
        return _as_recorded(_plugged(spec, _recorded_plugin(spec, source, plugin), debt), name)
    if plugin is not None:
        raise InputError(
            f"plugin is the source of a plug-in, and the run was made by {name!r}, which is not "
            "one; leave it out."
        )
    made = mechanism(spec, debt)
    if (requires := made.requires) is None:
        return _as_recorded(made, name)
    return replace(made, requires=lambda run: _as_recorded(requires(run), name))


def _recorded_plugin(spec: str, source: str | None, plugin: Path | None) -> Any:
    """Returns an object of a recorded class, if the user gives its source."""
    if not spec.rpartition(":")[0] or not spec.rpartition(":")[2].isidentifier():
        raise unknown(spec)
    if spec.startswith(OBJECT_PREFIX):
        raise InputError(
            f"the run was made by an object of class {spec.removeprefix(OBJECT_PREFIX)!r} that was "
            "given in Python and that no name makes again: its class was in no file, or the object "
            "had a state of its own. Give the object: nafaudit.verify(run, mechanism=...), in "
            "Python. nafaudit check judges the records without it."
        )
    if source is None:
        raise InputError(
            f"the run was made by {spec!r}, which is no mechanism of ours, and does not say by "
            "which source, so it cannot be recomputed. nafaudit check judges its records."
        )
    if plugin is None:
        raise InputError(
            f"the run was made by the plug-in {spec!r} of source {source}. No code runs merely "
            "because a run names it: read the file, then give it with --plugin FILE, or in "
            "Python as mechanism=CLASS. nafaudit check judges the records without it."
        )
    return build_recorded(spec, source, plugin)


def _as_recorded(made: Mechanism, name: str) -> Mechanism:
    if made.name != name:
        raise InputError(
            f"the run was made by {name!r}; here it is {made.name!r}. Restore the source, or the "
            "file, that the run was made with."
        )
    return made


@dataclass(frozen=True)
class Guarded:
    """A rule of a plug-in, trusted only as far as its output is a law.

    The charge is computed here from that law, in the currency that the rule names; in a currency
    that only the rule defines, the rule's own charge is used. A weight of exactly 0 or 1 is
    recorded where, and only where, one model's law was served unchanged.

    Attributes:
        rule: The plug-in's.
        name: Its name, for messages.
        currency: What is charged, as the rule named it before its first step.
    """

    rule: Rule
    name: str
    currency: str = field(init=False)

    def __post_init__(self) -> None:
        """Keeps the currency, which a rule could otherwise name anew at each step."""
        object.__setattr__(self, "currency", currency(self.rule))

    def serve(
        self, prefixes: Sequence[Sequence[int]], safe: Tensor, risky: Tensor, allowance: Tensor
    ) -> Served:
        """Serves, or raises a `LawError` that names the rule and what is wrong."""
        # Copies: what they overwrite must not reach the charge or the record.
        copies = [tensor.clone() for tensor in (safe, risky, allowance)]
        try:
            served = self.rule.serve([tuple(prefix) for prefix in prefixes], *copies)
        except (Exception, SystemExit) as error:  # reported under the plug-in's name
            raise LawError(f"{self.name} raised {type(error).__name__}: {error}") from error
        if not all(hasattr(served, part) for part in ("law", "charge", "theta")):
            raise LawError(
                f"{self.name}: serve must return Served(law, charge, theta), got a "
                f"{type(served).__name__}."
            )
        for part, like in (("law", safe), ("charge", allowance), ("theta", allowance)):
            value = getattr(served, part, None)
            if not isinstance(value, Tensor) or value.shape != like.shape:
                got = tuple(value.shape) if isinstance(value, Tensor) else value
                raise LawError(f"{self.name}: {part} must be {tuple(like.shape)}, got {got}.")
            if value.dtype != torch.float64:
                raise LawError(f"{self.name}: {part} must be float64, got {value.dtype}.")
        mass = torch.exp(served.law).sum(dim=-1)
        if not ((mass - 1).abs() < 1e-9).all():  # NaN fails it too
            raise LawError(f"{self.name}: the served law has mass {mass.tolist()}, not 1.")
        charge = self._charge(served, safe)
        if torch.isnan(charge).any():
            raise LawError(f"{self.name}: a charge is NaN.")
        # 0 and 1 by comparing laws; in between what the rule says, if it can be true.
        inside = torch.where((served.theta > 0) & (served.theta < 1), served.theta, torch.nan)
        theta = torch.where((served.law == risky).all(dim=-1), 1.0, inside)
        theta = torch.where((served.law == safe).all(dim=-1), 0.0, theta)
        return Served(served.law, charge, theta)

    def _charge(self, served: Served, safe: Tensor) -> Tensor:
        """Computes what a served law costs; in a currency of its own, the rule's charge is used."""
        known = currency_of(self.currency)
        if known.is_kl or known.order == 1:
            return kl(served.law, safe)
        return served.charge if math.isnan(known.order) else renyi(served.law, safe, known.order)
