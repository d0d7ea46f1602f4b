"""The paper's workload: six files, their field cascades, the prefix line and the sampling order.

Nothing is random: a class is its first records by id, up to its cap, with the two exceptions of
`_SAMPLERS`. A cascade takes its first field that is not empty. The variant `text` follows the
paper's text where its code differs: no prefix line before neutral and creative prompts.

The paper's runner groups trajectories by their exact seed, buckets each group by prompt length and
cuts buckets into micro-batches of eight (`batch_sizes`). A seed holds a hash of the prompt's id, so
nearly every batch has one row. Here every row is decoded as if it were alone; with `--coupled`
batches are cut whatever the seed, and their rows share the draws of the first.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nafaudit.core.draws import trajectory_seeds
from nafaudit.core.errors import InputError
from nafaudit.core.settings import RunSettings
from nafaudit.lab.prompts import lab_workload, records
from nafaudit.runner.pairs import SOUND, named_pair
from nafaudit.workload.prompts import (
    BATCH,
    BUCKET_WIDTH,
    CAPS,
    FILES,
    HEADER,
    Prompt,
    PromptSource,
    Record,
    Sourced,
    Workload,
    check_names,
    first_id,
    first_text,
    in_turn,
    lookup,
    read_records,
)

_LINES = 8
"""Lines of a file that an error names."""

LEAST_SCORE = 10
"""Creative prompts with a lower score are left out."""


@dataclass(frozen=True)
class _Form:
    """Form of a file's records: cascades, and the variants with a prefix line."""

    domain: str
    text: tuple[str, ...]
    id: tuple[str, ...]
    novel_source: tuple[str, ...]
    reference: tuple[str, ...]
    header_in: tuple[str, ...] = ()


_EXCERPT = _Form(
    domain="copyright",
    text=("prefix", "raw_text", "prompt_text", "prompt"),
    id=("prompt_id", "source_excerpt_id"),
    novel_source=("novel_source", "source_novel"),
    reference=("reference", "reference_text"),
    header_in=("code", "text"),
)
_NEUTRAL = _Form(
    "copyright", _EXCERPT.text, _EXCERPT.id, _EXCERPT.novel_source, _EXCERPT.reference, ("code",)
)
_CREATIVE = _Form(
    domain="creative",
    text=("prompt_text", "input", "metadata.title"),
    id=("prompt_id", "metadata.submission_id"),
    novel_source=("novel_source",),
    reference=("reference",),
    header_in=("code",),
)
_FACTUAL = _Form(
    domain="factual",
    text=("prompt_text", "factscore_prompt", "hundredw_prompt", "around_100", "one_fact_prompt"),
    id=("prompt_id",),
    novel_source=("novel_source", "source_novel", "entity"),
    reference=("expected_answer", "wikipedia_text"),
)
_FORMS = {"neutral": _NEUTRAL, "creative": _CREATIVE, "factual": _FACTUAL}


@dataclass(frozen=True)
class _Candidate:
    """A record that may be sampled."""

    item: Sourced
    debt: float | None
    is_eligible: bool

    @property
    def id(self) -> str:
        return self.item.prompt.id


def read_paper(
    directory: Path,
    classes: Collection[str] = (),
    cap: Mapping[str, int] | None = None,
    variant: str = "code",
    exact: bool = True,
) -> Workload:
    """Reads the six files of a directory, or those of some classes.

    Args:
        directory: Directory of the files.
        classes: Only these; all six if empty.
        cap: Other caps than the paper's, by class.
        variant: `code` or `text`.
        exact: False takes what there is of a class that cannot fill its cap.

    Raises:
        InputError: A file is missing or malformed, or a class cannot fill its cap.
    """
    check_names(classes, CAPS)
    what = f"a directory with the paper's files ({', '.join(FILES.values())})"
    records = {
        label: list(read_records(directory / name, what))
        for label, name in FILES.items()
        if not classes or label in classes
    }
    return paper_workload(records, classes, cap, variant, exact)


def not_clean(directory: Path) -> int:
    """Returns how many creative records the sampling leaves out, for their quality."""
    rows = read_records(directory / FILES["creative"])
    return sum(not _candidate(row, "creative", "code").is_eligible for row in rows)


def paper_workload(
    records: Mapping[str, Iterable[Record]],
    classes: Collection[str] = (),
    cap: Mapping[str, int] | None = None,
    variant: str = "code",
    exact: bool = True,
) -> Workload:
    """Normalises and samples records as the paper does.

    Args:
        records: Records by the class of their file; a record's own split wins.
        classes: Only these; all six if empty.
        cap: Other caps than the paper's, by class.
        variant: `code` or `text`.
        exact: False takes what there is of a class that cannot fill its cap.

    Raises:
        InputError: Classes cannot fill their caps; it names all of them, and what to give.
    """
    cap = cap or {}
    check_names((*classes, *cap), CAPS)
    pools: defaultdict[str, list[_Candidate]] = defaultdict(list)
    empty: list[_NoPromptError] = []
    for label, rows in records.items():
        for record in rows:
            try:
                candidate = _candidate(record, label, variant)
            except _NoPromptError as error:
                empty.append(error)
                continue
            pools[candidate.item.prompt.label].append(candidate)
    if empty:
        raise empty[0] if len(empty) == 1 else _no_prompts(empty)
    chosen = [label for label in CAPS if not classes or label in classes]
    for label in chosen:
        # Ids of all records must differ, sampled or not.
        Workload(tuple(candidate.item for candidate in pools[label]))
    able = {
        label: sorted(
            (c for c in pools[label] if c.is_eligible), key=lambda candidate: candidate.id
        )
        for label in chosen
    }
    wanted = {label: cap.get(label, CAPS[label]) for label in chosen}
    if exact:
        _check_caps(able, wanted, cap)
    sampled = (
        _SAMPLERS.get(label, _first)(able[label], min(wanted[label], len(able[label])))
        for label in chosen
        if able[label]
    )
    return in_turn([[c.item for c in part] for part in sampled])


def _check_caps(
    able: Mapping[str, Sequence[_Candidate]], wanted: Mapping[str, int], cap: Mapping[str, int]
) -> None:
    """Raises if classes cannot fill their caps; says one option that works for all of them.

    A record's own split may name another class than its file's, so that every file is named.
    """
    have = {label: len(found) for label, found in able.items()}
    files = {
        label: dict.fromkeys(
            [FILES[label], *(Path(c.item.source.where.rpartition(":")[0]).name for c in found)]
        )
        for label, found in able.items()
    }
    short = [label for label, count in have.items() if count < wanted[label]]
    if not short:
        return
    found = "; ".join(
        f"{label} {have[label]} of {wanted[label]} ({', '.join(files[label])})" for label in short
    )
    left = [label for label, count in have.items() if count]
    if not left:
        raise InputError(f"no class has a prompt that can be sampled: {found}; mend the files.")
    caps = ",".join(
        f"{label}={min(have[label], wanted[label])}"
        for label in left
        if label in short or label in cap
    )
    classes = f"--classes {','.join(left)}" if len(left) < len(have) else ""
    options = " ".join(part for part in (classes, f"--cap {caps}" if caps else "") if part)
    raise InputError(
        f"classes with fewer prompts that can be sampled than their caps: {found}. To take what "
        f"there is{', in place of the caps given' if cap else ''}: {options}"
    )


def paper_lab_workload(
    classes: Collection[str] = (),
    cap: Mapping[str, int] | None = None,
    variant: str = "code",
    exact: bool = True,
) -> Workload:
    """Returns the lab's prompts in the paper's sampling order, with its caps and ids."""
    return paper_workload(records(), classes, cap, variant, exact)


class PaperProtocol:
    """The paper's prompts and stop tokens.

    It also reads the paper's six files (`--data`) for a run of the sound protocol.
    """

    def workload(self, settings: RunSettings, exact: bool = True) -> Workload:
        """Returns the prompts of a run with their sources, before any limit; loads no model.

        Args:
            settings: What was asked for.
            exact: False takes what there is of a class that cannot fill its cap.
        """
        classes, cap, variant = settings.classes, settings.cap, settings.variant
        if settings.data is not None:
            return read_paper(Path(settings.data), classes, cap, variant, exact)
        if settings.protocol == "paper" and takes_lab(settings):
            return paper_lab_workload(classes, cap, variant, exact)
        return SOUND.workload(settings)

    def stops(self, settings: RunSettings, end: int | None) -> tuple[int, ...] | None:
        """Returns the tokenizer's end of text, at which alone the paper's decoder ends a row."""
        return (end,) if settings.protocol == "paper" and end is not None else None


PAPER = PaperProtocol()


def takes_lab(settings: RunSettings) -> bool:
    """True if the prompts are the lab's, which has the paper's six classes."""
    own = settings.prompts is not None or bool(settings.corpus) or settings.safe is not None
    return not own and named_pair(settings.pair).workload is lab_workload


class _NoPromptError(InputError):
    """A record without a prompt; its place and the fields that were tried."""

    def __init__(self, where: str, fields: Sequence[str]) -> None:
        self.where, self.fields = where, tuple(fields)
        super().__init__(
            f"{where}: no prompt: {', '.join(map(repr, fields))} all missing or empty; mend the "
            "line or leave it out."
        )


def _no_prompts(empty: Sequence[_NoPromptError]) -> InputError:
    """Returns one error for all records without a prompt, file by file."""
    files: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for one in empty:
        file, _, line = one.where.rpartition(":")
        files.setdefault((file, one.fields), []).append(line)
    found = "; ".join(
        f"{file}, {'line' if len(lines) == 1 else 'lines'} {', '.join(lines[:_LINES])}"
        f"{' ...' if len(lines) > _LINES else ''} ({', '.join(map(repr, fields))} all missing or "
        "empty)"
        for (file, fields), lines in files.items()
    )
    return InputError(f"{len(empty)} records have no prompt: {found}; mend or leave out the lines.")


def _candidate(record: Record, label: str, variant: str) -> _Candidate:
    form, data, where = _FORMS.get(label, _EXCERPT), record.data, record.where
    # The code takes the first value that is true, so that a 0 or an empty list is skipped too.
    said = Record(where, record.place, _said(data))
    text = first_text(said, form.text, "prompt")
    if not text.strip():
        raise _NoPromptError(where, form.text)
    text = text.strip() if label == "factual" else text
    split = first_id(said, ("split",)) or label
    number, nameless = f"{record.place:05d}", None
    default = f"{label}_{number}"
    if label == "factual":
        nameless = f"entity_{number}"
        default = f"fact_{number}_{first_id(said, ('entity',)) or nameless}"
    source = PromptSource(
        where=where,
        record=data,
        domain=first_id(said, ("domain",)) or form.domain,
        split=split,
        novel_source=first_id(said, form.novel_source) or nameless,
    )
    prompt = Prompt(
        first_id(said, form.id) or default,
        (HEADER if variant in form.header_in else "") + text,
        split,
        first_text(said, form.reference, "reference"),
    )
    is_eligible = True
    if label == "creative":
        score = lookup(said.data, "score") or lookup(said.data, "metadata.score")
        is_eligible = data.get("cleaning_passed") is not False and (
            score is None or _number(score, "score", where) >= LEAST_SCORE
        )
    debt = data.get("debt_init_estimated")
    if debt is not None:
        debt = _number(debt, "debt_init_estimated", where)
    return _Candidate(Sourced(prompt, source), debt, is_eligible)


def _said(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _said(value) if isinstance(value, dict) else value
        for name, value in data.items()
        if value
    }


def _number(value: Any, name: str, where: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{where}: {name!r} must be a finite number, got {value!r}.")
    return number


def _first(ordered: Sequence[_Candidate], cap: int) -> list[_Candidate]:
    return list(ordered[:cap])


def _by_debt(ordered: Sequence[_Candidate], cap: int) -> list[_Candidate]:
    """Samples a quarter of the cap from each quartile of estimated debt, if enough have one."""
    debts = sorted(c.debt for c in ordered if c.debt is not None)
    if len(debts) < cap:
        return _first(ordered, cap)
    cuts = [debts[quarter * len(debts) // 4] for quarter in (1, 2, 3)]
    quartiles: list[list[_Candidate]] = [[], [], [], []]
    for candidate in ordered:
        if candidate.debt is not None:
            quartiles[bisect_left(cuts, candidate.debt)].append(candidate)
    known = [candidate for candidate in ordered if candidate.debt is not None]
    return _filled([c for part in quartiles for c in part[: cap // 4]], known, cap)


def _by_source(ordered: Sequence[_Candidate], cap: int) -> list[_Candidate]:
    """Samples equal shares of every work or person, by name; the first ones take the rest."""
    groups: defaultdict[str, list[_Candidate]] = defaultdict(list)
    for candidate in ordered:
        groups[candidate.item.source.novel_source or "unknown"].append(candidate)
    base, extra = divmod(cap, len(groups))
    named = [groups[name] for name in sorted(groups)]
    shares = [group[: base + (i < extra)] for i, group in enumerate(named)]
    return _filled([c for share in shares for c in share], [c for g in named for c in g], cap)


def _filled(taken: list[_Candidate], others: Iterable[_Candidate], cap: int) -> list[_Candidate]:
    """Fills a sample up to its cap with the first that it does not hold yet."""
    held = {candidate.id for candidate in taken}
    return (taken + [candidate for candidate in others if candidate.id not in held])[:cap]


_SAMPLERS: dict[str, Callable[[Sequence[_Candidate], int], list[_Candidate]]] = {
    "attack_train": _by_debt,
    "factual": _by_source,
}


def batch_sizes(lengths: Mapping[str, int], trajectories: int) -> Counter[int]:
    """Counts the batches of each size that a class makes at one budget.

    Args:
        lengths: Prompt tokens by prompt id.
        trajectories: Trajectories per prompt.
    """
    rows: defaultdict[tuple[int, int], int] = defaultdict(int)
    for prompt, length in lengths.items():
        for seed in trajectory_seeds(prompt, trajectories):
            rows[seed, length // BUCKET_WIDTH] += 1
    sizes: Counter[int] = Counter()
    for count in rows.values():
        whole, rest = divmod(count, BATCH)
        sizes.update({BATCH: whole, rest: 1} if rest else {BATCH: whole})
    return +sizes
