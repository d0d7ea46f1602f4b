"""The old place of `nafaudit.protocols`, kept because recorded plug-ins import from here.

A plug-in's source is hashed into its records, so it cannot be edited to follow a move.
"""

from nafaudit.protocols import Mechanism, Rule, Served, booked, currency

__all__ = ["Mechanism", "Rule", "Served", "booked", "currency"]
