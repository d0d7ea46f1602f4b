"""What `nafaudit search` found, beside the records that it rests on."""

from __future__ import annotations

import json
from typing import Any

from nafaudit.core.errors import StoreError
from nafaudit.store.run import Run

FILE = "search.json"


def read_search(run: Run) -> dict[str, Any] | None:
    """Returns the content of RUN/search.json, or None if the run holds no finished search.

    Raises:
        StoreError: The file is not what a search writes.
    """
    path = run.path / FILE
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
        if not isinstance(data, dict) or not isinstance(data.get("outcome"), str):
            raise ValueError("it has no outcome")
        if _too_deep(data):
            raise ValueError("its parts are nested too deeply")
    except (ValueError, OSError, RecursionError) as error:
        raise StoreError(
            f"{path} is not what nafaudit search wrote ({error}): it was damaged or edited. Delete "
            "it and run the search's own command again, which makes it anew from the records."
        ) from error
    return data


def _too_deep(value: Any, left: int = 16) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left == 0 or any(_too_deep(one, left - 1) for one in inner)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not strict JSON")
