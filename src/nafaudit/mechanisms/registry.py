"""Names to mechanisms: a registered one, or `package.module:Class` of anybody's."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nafaudit.core.debt import DebtRule
from nafaudit.core.errors import InputError, LawError, nearest
from nafaudit.core.ledger import Banking
from nafaudit.mechanisms.anchored import Anchored
from nafaudit.mechanisms.protocols import Mechanism, Rule, Served


def _anchored(debt: DebtRule) -> Mechanism:
    name = f"anchored:debt={debt.definition},n={debt.n}"
    return Mechanism(name, Anchored(), Banking(), debt)


BUILDERS: dict[str, Callable[[DebtRule], Mechanism]] = {"anchored": _anchored}


def mechanism(spec: str, debt: DebtRule) -> Mechanism:
    """Returns the mechanism that a specification names.

    Args:
        spec: A registered name, or `package.module:Class` of a class that is built without
            arguments and has `serve` (a rule; it runs on the banking ledger), or has
            `rule`, `ledger` and `debt` (a whole mechanism).
        debt: The prefix debt, for whatever does not bring its own.
    """
    if spec in BUILDERS:
        return BUILDERS[spec](debt)
    if ":" not in spec:
        raise InputError(
            f"unknown mechanism {spec!r}{nearest(spec, BUILDERS)} Known: {', '.join(BUILDERS)}; "
            "your own is package.module:Class."
        )
    plugin = _load(spec)
    if all(hasattr(plugin, part) for part in ("rule", "ledger", "debt")):
        return Mechanism(spec, Guarded(plugin.rule, spec), plugin.ledger, plugin.debt)
    if not callable(getattr(plugin, "serve", None)):
        raise InputError(
            f"{spec} has no method serve(prefixes, safe, risky, allowance); see "
            "nafaudit.mechanisms.protocols.Rule for the two-line contract."
        )
    name = f"{spec}:debt={debt.definition},n={debt.n}"
    return Mechanism(name, Guarded(plugin, spec), Banking(), debt)


@dataclass(frozen=True)
class Guarded:
    """Anybody's rule, believed only as far as its output is a law and a charge."""

    rule: Rule
    name: str

    def serve(
        self, prefixes: Sequence[Sequence[int]], safe: Tensor, risky: Tensor, allowance: Tensor
    ) -> Served:
        """Serves, or raises a `LawError` that names the rule and what is wrong."""
        served = self.rule.serve(prefixes, safe, risky, allowance)
        for part, like in (("law", safe), ("charge", allowance), ("theta", allowance)):
            value = getattr(served, part, None)
            if not isinstance(value, Tensor) or value.shape != like.shape:
                got = tuple(value.shape) if isinstance(value, Tensor) else value
                raise LawError(f"{self.name}: {part} must be {tuple(like.shape)}, got {got}.")
            if value.dtype != torch.float64:
                raise LawError(f"{self.name}: {part} must be float64, got {value.dtype}.")
        # NaN fails both comparisons.
        mass = torch.exp(served.law).sum(dim=-1)
        if not ((mass - 1).abs() < 1e-9).all():
            raise LawError(f"{self.name}: the served law has mass {mass.tolist()}, not 1.")
        if not (served.charge >= 0).all():
            raise LawError(f"{self.name}: a charge of {served.charge.tolist()} is not a cost.")
        return served


def _load(spec: str) -> Any:
    module_name, _, class_name = spec.partition(":")
    # A console script does not look in the directory it is called from; its user expects it to.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        return getattr(importlib.import_module(module_name), class_name)()
    except (ImportError, AttributeError, TypeError) as error:
        raise InputError(
            f"cannot build mechanism {spec!r}: {error}. Give package.module:Class, importable "
            "from here, whose class takes no arguments."
        ) from error
