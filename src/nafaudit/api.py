"""The functions of the Python API: what the command line does, by the same settings.

Each function builds the settings of its command (`core.options.load`), so that an option has the
same name, default, check and error as on the command line, and returns what the command prints
(`nafaudit.answers`). Objects that are given instead of names (`Objects`) get names, by which the
loaders find them while a call lasts (`core.named_objects`).
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nafaudit.answers import (
    Audit,
    Protected,
    Result,
    answer_attack,
    answer_certify,
    answer_check,
    answer_compare,
    answer_conform,
    answer_frontier,
    answer_plan,
    answer_run,
    answer_search,
    answer_selftest,
    answer_verify,
    latest_runs,
    protocol_of,
    run_of,
    search_settings,
    settings_of,
)
from nafaudit.core.errors import InputError
from nafaudit.core.options import Group

if TYPE_CHECKING:
    from nafaudit.core.progress import OnProgress
    from nafaudit.core.settings import JunitSettings
    from nafaudit.measures.compare import ChangeLimits, Comparison
    from nafaudit.models.pair import Pair
    from nafaudit.runner.pairs import AuditProtocol
    from nafaudit.runner.plan import Plan
    from nafaudit.selftest.conform import Conformance
    from nafaudit.selftest.run import SelftestResult
    from nafaudit.stats import Bound
    from nafaudit.store.artifacts import Verification
    from nafaudit.views.junit import Suite
    from nafaudit.workload import Workload
    from nafaudit.worth.attack_result import AttackResult
    from nafaudit.worth.certify import Certificate
    from nafaudit.worth.matched import FrontierResult


class NafauditWarning(UserWarning):
    """A remark that the command line would print: of this machine, or of what cannot be redone."""


# ------------------------------------------------------------------------- audits and records


def load_pair(
    name: str = "lab",
    *,
    safe: Any = None,
    risky: Any = None,
    tokenizer: Any = None,
    **options: Any,
) -> Pair:
    """Loads two models that may be audited together, once for several calls.

    Args:
        name: A registered pair, if `safe` and `risky` are not given.
        safe: Directory or hub id of the safe model, or a loaded `transformers` model.
        risky: The same of the risky model.
        tokenizer: The tokenizer of both, if they are loaded models.
        **options: dtype, device, threads, remote_code, allow_pickle_weights.
    """
    # Here, because the next line imports transformers, which would show tqdm's warning.
    _import_torch()
    from nafaudit.runner.workbench import open_pair

    return open_pair(name, safe, risky, tokenizer, options)


def audit(
    pair: str | Pair | tuple[str, str] = "lab",
    *,
    mechanism: Any = None,
    decoder: Any = None,
    prompts: Any = None,
    k: float | Sequence[float] | None = None,
    trajectories: int | None = None,
    out: str | Path | None = None,
    design: str | Path | None = None,
    on_progress: OnProgress | None = None,
    quiet: bool = False,
    **options: Any,
) -> Audit:
    """Runs, or resumes, an audit: is the promise kept, was it tested, what is it worth?

    Args:
        pair: A registered pair, what `load_pair` returned, or (safe, risky) checkpoints.
        mechanism: A name, `package.module:Class`, or an object with `serve` (`Rule`), with `plan`
            and `choose` (`SequenceRule`), or with rule, ledger and debt; "anchored" if left out.
        decoder: A black box: `file.py:Class`, or a class of `BlackBox`.
        prompts: A file, a list of strings or of dicts, a dataframe, a `datasets.Dataset`, or what
            `read_prompts` returned; the pair's own if left out.
        k: Budgets in nats per token; 0.25, 1 and 10 if left out.
        trajectories: Trajectories per prompt and budget; 2 if left out.
        out: Run directory; runs/run-<hash> if left out. The same call resumes it.
        design: A TOML file with options; what is given here wins.
        on_progress: Called as trajectories are recorded, instead of showing a line.
        quiet: True to show no progress.
        **options: Every other option of `nafaudit run`, as `max_new_tokens=50`.

    Raises:
        InputError: An option or an object is wrong; nothing was loaded.
    """
    from nafaudit.core.settings import GatedRunSettings
    from nafaudit.views.junit import audit_suites

    given = {"k": k, "trajectories": trajectories, "out": out, **options}
    objects = Objects(pair=pair, mechanism=mechanism, decoder=decoder, prompts=prompts)
    with objects.as_options(given, GatedRunSettings) as options:
        settings = settings_of(GatedRunSettings, design, options)
        protocol = objects.protocol(settings)
        with _progress_callback(on_progress, quiet) as update:
            found = answer_run(settings, update, _warn, protocol)
    _junit("audit", settings, lambda: audit_suites(found.result, found.source))
    return _warn_remarks(found, objects.remarks)


def open_run(path: str | Path | None = None) -> Audit:
    """Opens a recorded run; the latest under ./runs if left out. Needs no models.

    Raises:
        InputError: There is no run.
    """
    return Audit(run_of(latest_runs(1)[0] if path is None else path))


def check(*logs: Audit | str | Path, **options: Any) -> Audit:
    """Judges other people's logs, or a run. Needs no models.

    Args:
        *logs: Files of one log (docs/foreign-logs.md), or one run.
        **options: Every option of `nafaudit check`, as `ledger="banking"`.
    """
    from nafaudit.store.importers.entry import CheckSettings
    from nafaudit.views.junit import audit_suites

    paths = tuple(one.path if isinstance(one, Audit) else one for one in logs)
    settings = settings_of(CheckSettings, None, {"run": paths or None, **options})
    found = answer_check(settings)
    _junit("check", settings, lambda: audit_suites(found.result, found.source))
    return found


def verify(
    run: Audit | str | Path | None = None,
    pair: str | Pair | tuple[str, str] | None = None,
    *,
    mechanism: Any = None,
    sample: int | None = None,
    on_progress: OnProgress | None = None,
    quiet: bool = False,
    **options: Any,
) -> Result[Verification]:
    """Recomputes a run from its models: are the logged numbers true?

    Args:
        run: What `audit` returned, or a run directory; the latest if left out.
        pair: The models, if they are not where they were; as for `audit`.
        mechanism: The class or object that the run was made with; its source is compared.
        sample: Trajectories to replay; all if left out.
        on_progress: Called as trajectories are replayed, instead of showing a line.
        quiet: True to show no progress.
        **options: Every other option of `nafaudit verify`.
    """
    from nafaudit.core.settings import VerifySettings
    from nafaudit.views.junit import verification_suites

    path = run.path if isinstance(run, Audit) else run
    given = {"run": path, "sample": sample, **options}
    objects = Objects(pair=pair, mechanism=mechanism)
    if mechanism is not None:
        source = run_of(latest_runs(1)[0] if path is None else path)
        objects.recorded = source.design["identity"]["mechanism"]
        if isinstance(mechanism, str):
            from nafaudit.mechanisms.cards import check_name

            check_name(mechanism)
            if mechanism.partition(":")[0] != objects.recorded.partition(":")[0].partition("@")[0]:
                raise InputError(
                    f"the run was made by {objects.recorded!r}, and mechanism is {mechanism!r}; "
                    "leave it out."
                )
    with objects.as_options(given, VerifySettings) as options:
        typed = options.pop("mechanism", None)
        settings = replace(settings_of(VerifySettings, None, options), mechanism=typed)
        with _progress_callback(on_progress, quiet) as update:
            found = answer_verify(settings, update)
    _junit("verify", settings, lambda: verification_suites(found.result, str(path)))
    return _warn_remarks(found)


def compare(
    a: Audit | str | Path, b: Audit | str | Path, *, out: str | Path | None = None
) -> Result[Comparison]:
    """Says what moved between two runs, two decoders or two versions. Needs no models.

    Args:
        a: The run before.
        b: The run after.
        out: Directory for a page, Markdown and JSON; none is written if left out.
    """
    if not isinstance(out, str | Path | None):
        raise InputError(f"out must be the path of a directory, got {out!r}.")
    return answer_compare(run_of(a), run_of(b), None if out is None else Path(out))


def plan(
    pair: str | Pair | tuple[str, str] = "lab",
    *,
    mechanism: Any = None,
    prompts: Any = None,
    design: str | Path | None = None,
    **options: Any,
) -> Result[Plan]:
    """Counts what an audit would take, and what it could detect.

    Args:
        pair: As for `audit`.
        mechanism: As for `audit`.
        prompts: As for `audit`.
        design: A TOML file with options.
        **options: Every option of `nafaudit plan`, as `gpu="h100"`.
    """
    from nafaudit.core.settings import PlanSettings

    objects = Objects(pair=pair, mechanism=mechanism, prompts=prompts)
    with objects.as_options(options, PlanSettings) as options:
        settings = settings_of(PlanSettings, design, options)
        protocol = objects.protocol(settings)
        with _torch_as_before():
            return answer_plan(settings, protocol)


# ------------------------------------------------------------------------ search, worth, trust


def search(
    pair: str | Pair | tuple[str, str] = "lab",
    *,
    mechanism: Any = None,
    prompts: Any = None,
    k: float | Sequence[float] | None = None,
    design: str | Path | None = None,
    on_progress: OnProgress | None = None,
    quiet: bool = False,
    **options: Any,
) -> Result[Any]:
    """Looks for a prompt that drives spend to the budget, and says whether it beats its controls.

    Args:
        pair: As for `audit`.
        mechanism: As for `audit`.
        prompts: As for `audit`.
        k: Budgets; with several, each is searched.
        design: A TOML file with options.
        on_progress: Called as trajectories are recorded, instead of showing a line.
        quiet: True to show no progress.
        **options: Every other option of `nafaudit search`, as `generations=1`.
    """
    from nafaudit.search.settings import SearchSettings

    objects = Objects(pair=pair, mechanism=mechanism, prompts=prompts)
    given = options | {"k": k}
    with objects.as_options(given, SearchSettings) as options:
        settings = search_settings(design, options)
        # The paper's search takes what there is of a class, and says so itself.
        protocol = objects.protocol(settings, read=isinstance(settings, SearchSettings))
        with _progress_callback(on_progress, quiet) as update:
            found = answer_search(settings, update, protocol)
    return _warn_remarks(found, objects.remarks)


def certify(
    passages: Any = None,
    safe: Any = None,
    *,
    k: float | Sequence[float] | None = None,
    on_progress: OnProgress | None = None,
    quiet: bool = False,
    **options: Any,
) -> Result[Certificate]:
    """Computes how far each budget limits the reproduction of these passages.

    Needs the safe model alone. Files are written only if `out` is given.

    Args:
        passages: A file, a list of strings, or a list of dicts with text and id; the pair's own if
            left out.
        safe: Directory or hub id of the safe model, or what `load_pair` returned; the lab's if
            left out.
        k: Budgets in nats per token.
        on_progress: Called as passages are scored, instead of showing a line.
        quiet: True to show no progress.
        **options: Every other option of `nafaudit certify`, as `window=100`.
    """
    from nafaudit.worth.settings import CertifySettings

    objects = Objects(safe=safe, passages=passages)
    given = options | {"k": k}
    with objects.as_options(given, CertifySettings) as options:
        settings = settings_of(CertifySettings, None, options)
        with _progress_callback(on_progress, quiet) as update:
            return answer_certify(settings, update, objects.protected)


def attack(
    passages: Any = None,
    pair: str | Pair | tuple[str, str] = "lab",
    *,
    mechanism: Any = None,
    k: float | Sequence[float] | None = None,
    on_progress: OnProgress | None = None,
    quiet: bool = False,
    **options: Any,
) -> Result[AttackResult]:
    """Measures how much of the passages can be reconstructed while every query stays in its budget.

    Args:
        passages: As for `certify`.
        pair: As for `audit`.
        mechanism: As for `audit`.
        k: Budgets of a query.
        on_progress: Called as trajectories are recorded, instead of showing a line.
        quiet: True to show no progress.
        **options: Every other option of `nafaudit attack`, as `limit=4`.
    """
    from nafaudit.worth.settings import AttackSettings

    objects = Objects(pair=pair, mechanism=mechanism, passages=passages)
    given = options | {"k": k}
    with objects.as_options(given, AttackSettings) as options:
        settings = settings_of(AttackSettings, None, options)
        with _progress_callback(on_progress, quiet) as update:
            found = answer_attack(settings, update, objects.protected)
    return _warn_remarks(found, objects.remarks)


def frontier(
    passages: Any = None,
    pair: str | Pair | tuple[str, str] = "lab",
    *,
    ordinary: Any = None,
    mechanism: str | Sequence[str] | None = None,
    k: float | Sequence[float] | None = None,
    on_progress: OnProgress | None = None,
    quiet: bool = False,
    **options: Any,
) -> Result[FrontierResult]:
    """Measures for each budget the fidelity on ordinary text and the leakage of protected text.

    Files are written only if `out` is given.

    Args:
        passages: Protected text, as for `certify`.
        pair: As for `audit`.
        ordinary: Text that neither model memorised, in any form that `passages` may have.
        mechanism: Names; the others are compared with the first.
        k: Budgets in nats per token.
        on_progress: Called as texts are followed, instead of showing a line.
        quiet: True to show no progress.
        **options: Every other option of `nafaudit frontier`.
    """
    from nafaudit.worth.settings import FrontierSettings

    objects = Objects(pair=pair, passages=passages, ordinary=ordinary)
    given = options | {"k": k, "mechanism": mechanism}
    with objects.as_options(given, FrontierSettings) as options:
        settings = settings_of(FrontierSettings, None, options)
        with _progress_callback(on_progress, quiet) as update:
            return answer_frontier(settings, update, objects.protected, objects.ordinary)


def selftest(
    *, full: bool = False, seed: int = 0, jobs: int = 1, quiet: bool = False
) -> Result[SelftestResult]:
    """Tests the auditor: faulty decoders that it catches, false alarms, how often bounds miss.

    Args:
        full: True for the published table, which takes about 12 minutes.
        seed: Seed of worlds, prompts and draws.
        jobs: Number of processes; it does not change the result.
        quiet: True to show no progress.
    """
    for what, value in (("seed", seed), ("jobs", jobs)):
        if not isinstance(value, int):
            raise InputError(f"{what} must be a whole number, got {value!r}.")
    with _line(quiet) as line, _torch_as_before():
        return answer_selftest(
            full, seed, jobs, lambda text: line.line(text, 0.0, finished=True) if line else None
        )


def conform(decoder: Any = None, **options: Any) -> Result[Conformance]:
    """Tries a decoder, or a rule, on the lab pair: does it keep the contract?

    Args:
        decoder: A name, `file.py:Class`, or a class or an object, as for `audit`.
        **options: Every option of `nafaudit conform`, as `prefix_debt=False`.
    """
    from nafaudit.core.settings import ConformSettings
    from nafaudit.views.junit import conform_suites

    objects = Objects(decoder=decoder, rules=True)
    with objects.as_options(options, ConformSettings) as options, _torch_as_before():
        settings = settings_of(ConformSettings, None, options)
        found = answer_conform(settings)
    _junit("conform", settings, lambda: conform_suites(found.result))
    return _warn_remarks(found, objects.remarks)


# ------------------------------------------------------------------------------------ numbers


def bound(
    name: str,
    values: Iterable[float],
    *,
    clusters: Iterable[Any] | None = None,
    high: float = math.inf,
    delta: float = 0.05,
    peeked: bool = False,
) -> Bound:
    """Computes a bound of any numbers (docs/bounds.md); refuses a sample that breaks its rules.

    Args:
        name: One of the 13 bounds, as "betting"; the error of an unknown name suggests the nearest.
        values: One number per trajectory, in the order they were drawn.
        clusters: The prompt of each value, for bounds with prompts as units.
        high: R, an upper end that was known before the values.
        delta: How often the bound may miss.
        peeked: True if the number of values was chosen after looking at them.
    """
    from nafaudit.stats import Sample
    from nafaudit.stats import bound as named_bound

    sample = Sample.of(
        _numbers(values),
        _number("high", high),
        _prompt_of_each("clusters", clusters),
        peeked=bool(peeked),
    )
    return named_bound(name, sample, _number("delta", delta))


def difference(
    a: Iterable[float],
    b: Iterable[float],
    *,
    clusters: Iterable[Any] | None = None,
    clusters_b: Iterable[Any] | None = None,
    paired: bool = True,
    delta: float = 0.05,
) -> ChangeLimits:
    """Computes limits of the mean of b - a, with prompts as units, as `compare` does.

    Args:
        a: One number per trajectory before.
        b: The same after; if paired, of the same trajectories or prompts.
        clusters: The prompt of each value of `a`; each value is a prompt of its own if left out.
        clusters_b: The same of `b`; those of `a` if left out.
        paired: True if a prompt, or without clusters a place in the list, belongs to both.
        delta: How often either limit may miss.

    Raises:
        InputError: Values that are paired have no partner.
    """
    from nafaudit.measures.compare import difference_of

    return difference_of(
        _numbers(a),
        _numbers(b),
        clusters=_prompt_of_each("clusters", clusters),
        clusters_b=_prompt_of_each("clusters_b", clusters_b),
        pairs=paired,
        delta=_number("delta", delta),
    )


def read_prompts(source: Any, **columns: Any) -> Workload:
    """Reads prompts from a file, a list, a dataframe or a `datasets.Dataset`.

    Args:
        source: A file of ours, of CopyBench, BookMIA or HELM, or an object.
        **columns: Which columns to take: text, id, label, reference, and header to put before
            every prompt; `format` names the format of a file if it is not recognised.
    """
    from nafaudit.workload.sources import read_prompts as read

    return read(source, **columns)


def _numbers(values: Iterable[float]) -> list[float]:
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError) as error:
        raise InputError(f"values must be a list of numbers: {error}.") from error


def _number(what: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} must be a number, got {value!r}.") from error


def _prompt_of_each(what: str, values: Any) -> list[str] | None:
    """Returns the prompt of each value; None if none are given."""
    if values is None:
        return None
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        kind = type(values).__name__
        raise InputError(f"{what} must be a list with the prompt of each value, got: {kind}.")
    return [str(one) for one in values]


# ----------------------------------------------------------------------- objects, progress, torch


class Objects:
    """Arguments of a call that may be objects where the command line takes names.

    They are models, rules, prompts and text.

    Args:
        pair: A registered pair's name, two checkpoints, or a loaded pair; None if not given.
        safe: A safe checkpoint, or a loaded pair; None if not given.
        mechanism: A name or an object; None if not given.
        decoder: A name, a class or an object; None if not given.
        prompts: A file's name or an object; None if not given.
        passages: Protected text: a file's name or an object; None if not given.
        ordinary: Ordinary text: a file's name or an object; None if not given.
        rules: True if `decoder` may be a rule.
    """

    def __init__(
        self,
        *,
        pair: Any = None,
        safe: Any = None,
        mechanism: Any = None,
        decoder: Any = None,
        prompts: Any = None,
        passages: Any = None,
        ordinary: Any = None,
        rules: bool = False,
    ) -> None:
        self._pair, self._safe = pair, safe
        self._mechanism, self._decoder, self._rules = mechanism, decoder, rules
        self._prompts = prompts
        self.protected = self._texts("passages", passages)
        text = self._texts("ordinary", ordinary)
        self.ordinary = text and text[0]
        self._files = {
            name: value
            for name, value in (("passages", passages), ("ordinary", ordinary))
            if isinstance(value, str | Path)
        }
        self.remarks: list[str] = []
        self.recorded = ""
        self._workload: Workload | None = None

    @staticmethod
    def _texts(what: str, given: Any) -> Protected | None:
        if given is None or isinstance(given, str | Path):
            return None
        from nafaudit.workload.sources import passages_of

        return passages_of(given, what), f"{what} given in Python"

    @contextmanager
    def as_options(self, options: Mapping[str, Any], kind: type[Group]) -> Iterator[dict[str, Any]]:
        """Yields the options with a name for each object; while it lasts, loaders find the objects.

        Args:
            options: What else was given.
            kind: Class of the settings that the options are for.
        """
        from nafaudit.core.named_objects import naming
        from nafaudit.core.options import declared

        known = {one.name for one in declared(kind)}
        found = {name: value for name, value in options.items() if value is not None}
        found |= self._files
        things: dict[str, Any] = {}
        self._name_models(found, things, known)
        for name in ("mechanism", "decoder"):
            value = getattr(self, f"_{name}")
            if value is not None:
                found[name] = value if isinstance(value, str) else self._named(name, value, things)
        if self._prompts is not None:
            if isinstance(self._prompts, str | Path):
                found["prompts"] = self._prompts
                text = str(self._prompts)
                has_space = any(c.isspace() for c in text)
                if has_space and not Path(text).suffix and not _path_exists(text):
                    raise InputError(
                        f"there is no file {text[:60]!r}; a prompt itself is given in a list: "
                        f"prompts=[{text[:60]!r}]."
                    )
            else:
                from nafaudit.workload.sources import prompts_of

                self._workload = prompts_of(self._prompts)
                found.setdefault("limit", 0)
        if things and found.get("ray") is not None:
            raise InputError(
                "objects are in this process, and the workers of a Ray cluster cannot see them; "
                "give names (checkpoints, package.module:Class), or leave out ray."
            )
        with naming(things):
            yield found

    def _name_models(
        self, found: dict[str, Any], things: dict[str, Any], known: Collection[str]
    ) -> None:
        """Puts the names of models into `found`, and models that are objects into `things`."""
        for name, value in (("pair", self._pair), ("safe", self._safe)):
            if value is None:
                continue
            if isinstance(value, str | Path):
                if name == "safe" or value != "lab" or "safe" not in found:
                    found[name] = str(value)
            elif name == "pair" and _is_two_names(value):
                found |= {"safe": str(value[0]), "risky": str(value[1])}
            else:
                from nafaudit.models.given import name_pair

                name_pair(value, found, things, self.remarks, known, alone=name == "safe")

    def _named(self, what: str, value: Any, things: dict[str, Any]) -> str:
        """Names a mechanism or a decoder that is an object or a class."""
        from nafaudit.core.named_objects import OBJECT_PREFIX
        from nafaudit.mechanisms.plugins import name_of_object

        name, remark = name_of_object(value, what, rules=self._rules)
        kind = value if isinstance(value, type) else type(value)
        spec = self.recorded.partition("@")[0]
        # A run names the file as seen from the directory it was made in; the source decides.
        if "@" in self.recorded and not any(one.startswith(OBJECT_PREFIX) for one in (name, spec)):
            if spec.rpartition(":")[2] != kind.__name__:
                raise InputError(
                    f"the run was made by {self.recorded!r}, and mechanism is {kind.__name__}; "
                    "give the class that the run was made with."
                )
            name = spec
        things[name] = value
        if remark:
            self.remarks.append(remark)
        return name

    def protocol(self, settings: Any, *, read: bool = True) -> AuditProtocol:
        """Returns what reads the workload: the prompts that were given, or the settings'."""
        if self._workload is None:
            return protocol_of(settings, read=read)
        from nafaudit.runner.pairs import GivenPrompts

        return GivenPrompts(self._workload, protocol_of(settings, read=False))


def _path_exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # too long for a name, or with a character that none has
        return False


def _is_two_names(value: Any) -> bool:
    return (
        isinstance(value, tuple | list)
        and len(value) == 2
        and all(isinstance(one, str | Path) for one in value)
    )


@contextmanager
def _line(quiet: bool) -> Iterator[Any]:
    """Yields the line that shows progress in a terminal or a notebook; None elsewhere."""
    from nafaudit.views.progress import ProgressLine, in_notebook

    if quiet or not (in_notebook() or sys.stderr.isatty()):
        yield None
        return
    line = ProgressLine(quiet=False)
    try:
        yield line
    finally:
        line.close()


@contextmanager
def _progress_callback(on_progress: OnProgress | None, quiet: bool) -> Iterator[OnProgress]:
    """Yields the function to call with progress; afterwards torch has its former threads."""
    with _line(quiet or on_progress is not None) as line, _torch_as_before():
        if on_progress is not None:
            yield on_progress
        else:
            yield (lambda progress: None) if line is None else line.update


def _import_torch() -> Any:
    """Imports torch, and tqdm without its warning about ipywidgets; None if torch is absent."""
    try:
        import torch

        with warnings.catch_warnings():
            # tqdm warns when it is first imported, which transformers would do.
            warnings.filterwarnings("ignore", message="IProgress not found")
            import_module("tqdm.auto")
    except ImportError:
        return None
    return torch


@contextmanager
def _torch_as_before() -> Iterator[None]:
    """Restores torch's number of threads at the end; does nothing without torch."""
    torch = _import_torch()
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _warn(text: str) -> None:
    """Warns of a remark, as from the line outside this package that made the call."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("nafaudit."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, NafauditWarning, stacklevel=level)


def _junit(name: str, settings: JunitSettings, suites: Callable[[], list[Suite]]) -> None:
    """Writes the JUnit file that the settings name, if they name one."""
    if settings.junit is not None:
        from nafaudit.store.files import write_whole
        from nafaudit.views.junit import junit

        write_whole(settings.junit, junit(f"nafaudit.{name}", suites()))


R = TypeVar("R", bound="Result[Any]")


def _warn_remarks(found: R, remarks: Sequence[str] = ()) -> R:
    """Adds remarks on the given objects to those of a result, and warns of each."""
    found.remarks = (*remarks, *(one for one in found.remarks if one))
    for remark in found.remarks:
        _warn(remark)
    return found
