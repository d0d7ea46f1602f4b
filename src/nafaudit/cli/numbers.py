"""Numbers as every terminal table writes them: as on the page, with a plain dash if unknown."""

from __future__ import annotations

from functools import partial

from nafaudit.core import text

nats = partial(text.nats, unknown="-")
percent = partial(text.percent, unknown="-")
