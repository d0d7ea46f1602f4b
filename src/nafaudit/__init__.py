"""Is a copyright-protecting decoder's promise kept, was it ever tested, what is it worth?

    import nafaudit

    run = nafaudit.audit(k=[0.25, 1], trajectories=2)   # the embedded pair; half a minute
    run.verdicts                                        # kept? tested? worth? of every budget
    run.measures().to_pandas()                          # one row per trajectory
    run.plot.utilisation()                              # a figure of the report

Three nouns: a **pair** of models (`load_pair`), a **run** (`audit` makes one, `open_run` opens
one, `check` reads other people's logs; each returns an `Audit`), a **result** (whatever else a
function returns: `verdict`, `why`, `exit_status`, `to_json()`, and a table in a notebook).

A function takes the options of its command as keyword arguments (`max_new_tokens=50` is
`--max-new-tokens 50`), has the same defaults and raises the same errors; `nafaudit COMMAND
--help-all` lists them. Where the command line takes a name or a file, an object will do: a loaded
model, a rule, a decoder, a list of prompts, a dataframe.

======================  ==========================================================================
`audit`                 runs or resumes an audit: `Audit`
`open_run`, `check`     opens a run; judges a log: `Audit`, no models needed
`verify`                recomputes a run from its models
`compare`               what moved between two runs
`plan`                  what an audit would take and could detect
`search`                is there a prompt that drives spend to the budget?
`certify`               what a budget says about a text
`attack`, `frontier`    what comes back while every query keeps its budget; price and leakage
`conform`, `selftest`   does a decoder keep the contract? can the auditor be trusted?
`bound`, `difference`   bounds of anybody's numbers; limits of a paired, clustered difference
`load_pair`             two models, loaded once
`read_prompts`          prompts of a file, a list, a dataframe, a dataset
======================  ==========================================================================

To write: `Rule`, `SequenceRule` (with `Plan`, `Draft`, `Drafts`), `BlackBox`, `World`, `Served`,
`Request`, `Output`, `Ledger`, `Account`, `DebtRule`, `Mechanism`.
To read: `Audit`, `Result`, `Measure`, `Finding`, `Bound`, `Trajectory`, `Progress`.
Errors: `NafauditError`, of which `InputError` (bad usage or input), `UnavailableError` (a model or
device that is not here), `StoreError`, `LawError`, `WorkerError`; warnings: `NafauditWarning`.

Importing this package imports neither torch nor numpy; a name is loaded when it is used. It only
asks for reproducible matrix products (`nafaudit.core.numerics`), before torch computes any:
import it before you compute with torch, or a remark says what that means.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nafaudit.core.numerics import ask

if TYPE_CHECKING:
    from nafaudit.answers import Audit, Result
    from nafaudit.api import (
        NafauditWarning,
        attack,
        audit,
        bound,
        certify,
        check,
        compare,
        conform,
        difference,
        frontier,
        load_pair,
        open_run,
        plan,
        read_prompts,
        search,
        selftest,
        verify,
    )
    from nafaudit.core.debt import DebtRule
    from nafaudit.core.errors import (
        InputError,
        LawError,
        NafauditError,
        StoreError,
        UnavailableError,
        WorkerError,
    )
    from nafaudit.core.finding import Finding
    from nafaudit.core.ledger import Account, Ledger
    from nafaudit.core.progress import Progress
    from nafaudit.core.trajectory import Trajectory
    from nafaudit.measures.measure import Measure
    from nafaudit.models.pair import Pair
    from nafaudit.protocols import (
        BlackBox,
        Draft,
        Drafts,
        Mechanism,
        Output,
        Plan,
        Request,
        Rule,
        SequenceRule,
        Served,
        World,
    )
    from nafaudit.stats.bound import Bound

ask()

__version__ = "0.2.0"

__all__ = [
    "Account",
    "Audit",
    "BlackBox",
    "Bound",
    "DebtRule",
    "Draft",
    "Drafts",
    "Finding",
    "InputError",
    "LawError",
    "Ledger",
    "Measure",
    "Mechanism",
    "NafauditError",
    "NafauditWarning",
    "Output",
    "Pair",
    "Plan",
    "Progress",
    "Request",
    "Result",
    "Rule",
    "SequenceRule",
    "Served",
    "StoreError",
    "Trajectory",
    "UnavailableError",
    "WorkerError",
    "World",
    "__version__",
    "attack",
    "audit",
    "bound",
    "certify",
    "check",
    "compare",
    "conform",
    "difference",
    "frontier",
    "load_pair",
    "open_run",
    "plan",
    "read_prompts",
    "search",
    "selftest",
    "verify",
]

_ERRORS = ("InputError", "LawError", "NafauditError", "StoreError", "UnavailableError",
           "WorkerError")  # fmt: skip
_PROTOCOLS = ("BlackBox", "Draft", "Drafts", "Mechanism", "Output", "Plan", "Request", "Rule",
              "SequenceRule", "Served", "World")  # fmt: skip
_PLACES = {
    **dict.fromkeys(_ERRORS, "core.errors"),
    **dict.fromkeys(_PROTOCOLS, "protocols"),
    "Account": "core.ledger",
    "Audit": "answers",
    "Bound": "stats.bound",
    "DebtRule": "core.debt",
    "Finding": "core.finding",
    "Ledger": "core.ledger",
    "Measure": "measures.measure",
    "Pair": "models.pair",
    "Progress": "core.progress",
    "Result": "answers",
    "Trajectory": "core.trajectory",
}
"""Where each name is; those that are not here are in `nafaudit.api`."""


def _loaded(name: str) -> Any:
    """Returns a public name, from where it is."""
    if name not in __all__:
        raise AttributeError(f"module 'nafaudit' has no attribute {name!r}")
    found = getattr(import_module(f"nafaudit.{_PLACES.get(name, 'api')}"), name)
    if name not in _FUNCTIONS:
        globals()[name] = found
    return found


if not TYPE_CHECKING:  # a checker of types sees the imports above, and no other name
    __getattr__ = _loaded


def __dir__() -> list[str]:
    return sorted(__all__)


_FUNCTIONS = ("search", "selftest")
"""Functions whose names are also those of rooms."""


def _function(name: str) -> property:
    # Importing a room would put the room in the function's place.
    return property(lambda module: _loaded(name), lambda module, value: None)


class _Package(ModuleType):
    """This package, in which two names stay functions whatever is imported."""

    search = _function("search")
    selftest = _function("selftest")


sys.modules[__name__].__class__ = _Package
