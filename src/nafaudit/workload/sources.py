"""Prompts and passages from other people's files and from objects of Python.

`--prompts FILE` and `nafaudit.read_prompts` recognise, by their fields, the public files of

* CopyBench (`data.literal.json`, `data.nonliteral.json`, `data.qa.json`): lists of objects with
  `id`, `title`, `input` and, but for the non-literal ones, `reference`;
* BookMIA (Parquet, JSON or JSON Lines): `book_id`, `book`, `snippet_id`, `snippet`, `label`;
* the copyright scenario of HELM: `{"data": {prefix: text from the prefix to the end}, ...}`.

An object may be a list of strings, dicts or prompts, a dataframe, an Arrow table or a
`datasets.Dataset`; what it is called by is not asked, only what it can do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nafaudit.core.errors import InputError, nearest
from nafaudit.workload.passages import Passage, check_passages
from nafaudit.workload.prompts import (
    Prompt,
    PromptSource,
    Record,
    Sourced,
    Workload,
    read_records,
    read_text,
    whole_text,
)

OPENING, FOLLOWING = 50, 200
"""Words of a BookMIA snippet that are its prompt, and of a text after a prompt that are kept as the
reference: HELM's references are whole books, and no output is that long."""

_TEXT = ("text", "prompt")
_FORMS = (
    "a file, a list of strings, a list of dicts with 'text', a dataframe or a datasets.Dataset "
    "with a column 'text'"
)


@dataclass(frozen=True)
class Columns:
    """Names of the columns that prompts are made of; None for the usual ones.

    Attributes:
        text: The prompt.
        id: Its id.
        label: Its class.
        reference: Text that an output is compared with.
        header: Put before every prompt.
    """

    text: str | None = None
    id: str | None = None
    label: str | None = None
    reference: str | None = None
    header: str = ""

    @property
    def given(self) -> bool:
        """True if the user named a column."""
        return any((self.text, self.id, self.label, self.reference))


def read_prompts(
    source: Any,
    *,
    format: str | None = None,  # noqa: A002  the usual word
    text: str | None = None,
    id: str | None = None,  # noqa: A002
    label: str | None = None,
    reference: str | None = None,
    header: str = "",
) -> Workload:
    """Reads prompts from a file or from an object.

    Args:
        source: The file or the object.
        format: One of `FORMATS`, if it is not to be recognised by its fields.
        text: Column of the prompt; `text` or `prompt` if left out.
        id: Column of the id; `id` if left out, else prompts are numbered.
        label: Column of the class; `class` if left out.
        reference: Column of the text that outputs are compared with.
        header: Put before every prompt.

    Raises:
        InputError: It is none of these; the message says what is.
    """
    named: dict[str, Any] = {"text": text, "id": id, "label": label, "reference": reference}
    for what, value in (named | {"format": format, "header": header}).items():
        if value is not None and not isinstance(value, str):
            need = "text" if what == "header" else "a name" if what == "format" else "a column"
            raise InputError(f"{what} must be a string, {need}; got {value!r}.")
    if format is not None and format not in FORMATS:
        raise InputError(
            f"unknown format {format!r}{nearest(format, FORMATS)} Known: {', '.join(FORMATS)}."
        )
    columns = Columns(text, id, label, reference, header or "")
    if not isinstance(source, str | Path):
        return prompts_of(source, columns, format)
    path = Path(source)
    return _workload(_file_rows(path), path.stem, columns, format, str(path))


def prompts_of(given: Any, columns: Columns | None = None, form: str | None = None) -> Workload:
    """Makes a workload of an object.

    Args:
        given: A workload, a list, a dataframe, an Arrow table or a `datasets.Dataset`.
        columns: Which columns to take; the usual ones if None.
        form: One of `FORMATS`; recognised by its fields if None.

    Raises:
        InputError: It is none of these; the message says what is.
    """
    if isinstance(given, Workload):
        return given
    rows = _object_rows(given, "prompts")
    return _workload(rows, "prompt", columns or Columns(), form, "prompts")


def passages_of(given: Any, what: str = "passages") -> list[Passage]:
    """Makes passages of an object: a list of strings or dicts, a dataframe, a dataset.

    Args:
        given: The object.
        what: What it is, for errors.
    """
    if isinstance(given, Sequence) and given and all(isinstance(one, Passage) for one in given):
        found = list(given)
    else:
        found = []
        for place, record in enumerate(_object_rows(given, what)):
            text = _field(record, _TEXT, "text")
            if not text.strip():
                raise InputError(f"{record.where}: the text is empty; leave it out.")
            name = _field(record, ("id",), "id") or f"{what}:{place + 1}"
            found.append(Passage(name, text.strip(), record.where))
    check_passages(found, what)
    return found


def _type_of(given: Any) -> str:
    name = type(given).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _object_rows(given: Any, what: str) -> list[Record]:
    """Returns the rows of an object, each with a name for errors."""
    if isinstance(given, Mapping):
        inside = ", ".join(map(repr, list(given)[:4]))
        raise InputError(
            f"{what} must be {_FORMS}; got {_type_of(given)} with {inside}. Of a dataset with "
            "splits, give one: dataset['train']."
        )
    rows: Any = given
    if hasattr(given, "with_format"):  # Hugging Face, whose rows may else be tables or arrays
        rows = given.with_format(None)
    elif hasattr(given, "to_pylist"):  # Arrow
        rows = given.to_pylist()
    elif hasattr(given, "to_dicts"):  # Polars
        rows = given.to_dicts()
    elif hasattr(given, "iterrows") and hasattr(given, "to_dict"):  # pandas
        rows = given.to_dict("records")
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        raise InputError(f"{what} must be {_FORMS}; got {_type_of(given)}.")
    found = []
    for place, row in enumerate(rows):
        where = f"{what}[{place}]"
        if isinstance(row, Prompt):
            row = {"id": row.id, "text": row.text, "class": row.label, "reference": row.reference}
        elif isinstance(row, str):
            row = {"text": row}
        if not isinstance(row, Mapping):
            raise InputError(f"{where} is {_type_of(row)}; {what} must be {_FORMS}.")
        found.append(Record(where, place, {str(k): _simple(v) for k, v in row.items()}))
    if not found:
        raise InputError(f"{what}: there are none; give at least one.")
    return found


def _simple(value: Any) -> Any:
    """Returns a cell as JSON has it; what a dataframe calls missing is None."""
    if hasattr(value, "item") and not isinstance(value, str):  # a number of NumPy
        try:
            value = value.item()
        except ValueError:
            value = value.tolist()
    if isinstance(value, str):
        return str(value)  # NumPy has strings of its own
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _simple(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_simple(one) for one in value]
    return str(value)


def _file_rows(path: Path) -> list[Record]:
    """Returns the rows of a file: Parquet, one JSON value, or JSON Lines."""
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet as pq

        try:
            rows = pq.read_table(path).to_pylist()
        except (OSError, pyarrow.ArrowInvalid) as error:
            raise InputError(f"{path}: cannot be read as Parquet: {error}.") from error
        return [Record(f"{path}:{place}", place, row) for place, row in enumerate(rows)]
    if path.suffix != ".json":
        return list(read_records(path))
    content = read_text(path, "a JSON file of prompts")
    try:
        data = json.loads(content)
    except ValueError:
        return list(read_records(path))  # JSON Lines under another name, or an error with a line
    if isinstance(data, dict) and isinstance(data.get("data"), dict):
        data = [{"prefix": prefix, "prefix_to_end": text} for prefix, text in data["data"].items()]
    if isinstance(data, dict):
        data = [data]
    if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
        raise InputError(f"{path}: a list of JSON objects is needed, or one object per line.")
    return [Record(f"{path}[{place}]", place, row) for place, row in enumerate(data)]


def _workload(
    rows: Sequence[Record], stem: str, columns: Columns, form: str | None, source: str
) -> Workload:
    """Makes prompts of rows: of a format that is named or recognised, or by their columns."""
    if not rows:
        raise InputError(f"{source}: no prompts; one JSON object with 'id' and 'text' per line.")
    if form is None and not columns.given and not any(name in rows[0].data for name in _TEXT):
        form = next((name for name, one in FORMATS.items() if one.fits(rows[0].data)), None)
    items = []
    for record in rows:
        made = FORMATS[form].read(record) if form else _by_columns(record, stem, columns)
        if not made.text.strip():
            raise InputError(f"{record.where}: 'text' is empty; give the prompt's text.")
        made = replace(made, text=columns.header + made.text)
        novel = record.data.get("title") or record.data.get("book")
        origin = PromptSource(
            record.where, record.data, split=made.label,
            novel_source=novel if form and isinstance(novel, str) else None,
        )  # fmt: skip
        items.append(Sourced(made, origin))
    return Workload(tuple(items))


def _by_columns(record: Record, stem: str, columns: Columns) -> Prompt:
    named = (columns.text,) if columns.text else _TEXT
    if not any(name in record.data for name in named):
        has = ", ".join(map(repr, record.data)) or "nothing"
        raise InputError(
            f"{record.where}: no {named[0]!r}; keys are 'id', 'text', 'class', 'reference', and it "
            f"has {has}. In Python, read_prompts(..., text=COLUMN) names another."
        )
    return Prompt(
        _field(record, (columns.id or "id",), "id", need=columns.id)
        or f"{stem}:{record.place + 1}",
        _field(record, named, "text"),
        _field(record, (columns.label or "class",), "class", need=columns.label) or "prompt",
        _field(record, (columns.reference or "reference",), "reference", need=columns.reference),
    )


def _field(record: Record, names: Sequence[str], what: str, need: str | None = None) -> str:
    """Returns the text of the first of some fields that is there; empty if none is.

    Args:
        record: Where to look.
        names: Fields in the order in which they are tried.
        what: What it is, for errors.
        need: A field that the user named, so that it must be there.
    """
    if need is not None and need not in record.data:
        has = ", ".join(map(repr, record.data))
        raise InputError(f"{record.where}: there is no {need!r} for {what}; it has {has}.")
    for name in names:
        value = record.data.get(name)
        if value is None:
            continue
        if isinstance(value, int) and not isinstance(value, bool) and what in ("id", "class"):
            value = str(value)
        if not isinstance(value, str):
            raise InputError(f"{record.where}: {name!r} must be a string, got {value!r}.")
        return whole_text(value, record.where, name)
    return ""


@dataclass(frozen=True)
class Format:
    """A public file of prompts.

    Attributes:
        fields: Those that every record of it has.
        make: Makes a prompt of a record that has them.
    """

    fields: tuple[str, ...]
    make: Callable[[Record], Prompt]

    def fits(self, data: Mapping[str, Any]) -> bool:
        """Returns True if a record has the fields."""
        return all(name in data for name in self.fields)

    def read(self, record: Record) -> Prompt:
        """Makes a prompt of a record.

        Raises:
            InputError: A field is missing, or is no text.
        """
        if lost := [name for name in self.fields if name not in record.data]:
            has = ", ".join(map(repr, record.data))
            raise InputError(f"{record.where}: there is no {lost[0]!r}; it has {has}.")
        return self.make(record)


def _copybench(record: Record) -> Prompt:
    """Reads a record of CopyBench; a question's reference is an answer, not a protected work."""
    name = _field(record, ("id",), "id")
    label = "copybench"
    if "reference_events" in record.data:
        label = "copybench-nonliteral"
    elif "_qa." in name:
        label = "factual"
    return Prompt(
        name, _field(record, ("input",), "text"), label, _field(record, ("reference",), "reference")
    )


def _bookmia(record: Record) -> Prompt:
    """Reads a snippet of BookMIA: its opening is the prompt, what follows the reference."""
    opening, reference = _divided(_field(record, ("snippet",), "text"), OPENING)
    seen = record.data["label"]
    if seen not in (0, 1):
        raise InputError(f"{record.where}: 'label' must be 0 (unseen) or 1 (seen), got {seen!r}.")
    name = f"bookmia:{record.data['book_id']}.{record.data['snippet_id']}"
    return Prompt(name, opening, "bookmia-seen" if seen else "bookmia-unseen", reference)


def _helm(record: Record) -> Prompt:
    """Reads an entry of HELM's copyright scenario; its text repeats the prefix."""
    prefix = _field(record, ("prefix",), "text")
    text = _field(record, ("prefix_to_end",), "reference").removeprefix(prefix)
    return Prompt(f"helm:{record.place + 1}", prefix, "helm", _divided(text, FOLLOWING)[0])


def _divided(text: str, words: int) -> tuple[str, str]:
    """Divides a text after some words: the first part as it stands, and the next `FOLLOWING`."""
    ends = [index for index, mark in enumerate(text) if mark.isspace()
            and index and not text[index - 1].isspace()]  # fmt: skip
    if len(ends) < words:
        return text, ""
    end = ends[words - 1]
    last = ends[words + FOLLOWING - 1] if len(ends) >= words + FOLLOWING else len(text)
    return text[:end], text[end:last]


FORMATS = {
    "copybench": Format(("id", "title", "input"), _copybench),
    "bookmia": Format(("book_id", "book", "snippet_id", "snippet", "label"), _bookmia),
    "helm": Format(("prefix", "prefix_to_end"), _helm),
}
