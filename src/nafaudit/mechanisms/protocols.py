"""Former import path of rules and mechanisms, which are in `nafaudit.protocols` now.

Recorded plug-ins import from here: their source is hashed into records, so it cannot be edited.
"""

from nafaudit.protocols import Mechanism, Rule, Served, booked, currency

__all__ = ["Mechanism", "Rule", "Served", "booked", "currency"]
