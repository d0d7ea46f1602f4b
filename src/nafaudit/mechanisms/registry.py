"""Names to mechanisms: a registered one, or `package.module:Class` of anybody's."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from nafaudit.core.debt import DebtRule
from nafaudit.core.errors import InputError, nearest
from nafaudit.core.ledger import Banking
from nafaudit.mechanisms.anchored import Anchored
from nafaudit.mechanisms.protocols import Mechanism


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
        return Mechanism(spec, plugin.rule, plugin.ledger, plugin.debt)  # type: ignore[attr-defined]
    if not callable(getattr(plugin, "serve", None)):
        raise InputError(
            f"{spec} has no method serve(prefixes, safe, risky, allowance); see "
            "nafaudit.mechanisms.protocols.Rule for the two-line contract."
        )
    return Mechanism(f"{spec}:debt={debt.definition},n={debt.n}", plugin, Banking(), debt)  # type: ignore[arg-type]


def _load(spec: str) -> object:
    module_name, _, class_name = spec.partition(":")
    try:
        built: object = getattr(importlib.import_module(module_name), class_name)()
    except (ImportError, AttributeError, TypeError) as error:
        raise InputError(
            f"cannot build mechanism {spec!r}: {error}. Give package.module:Class, importable "
            "from here, whose class takes no arguments."
        ) from error
    return built
