"""Settings of a search, and the file that reserves a directory for one search.

The design of a run says how its trajectories were decoded, not which search needed them. Two
searches in one directory would count each other's trajectories and overwrite each other's result,
so the settings of a search are written there before its first draw.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from nafaudit.core.design import differences
from nafaudit.core.errors import InputError, nearest
from nafaudit.core.ledger import is_baseline
from nafaudit.core.options import Group, option
from nafaudit.core.settings import (
    BUDGETS_FORM,
    RunSettings,
    audited_option,
    decoding_option,
    machine_option,
    prompts_option,
    protocol_option,
)
from nafaudit.search.filters import LengthWindow
from nafaudit.search.halving import halving_plan
from nafaudit.search.operators import DEFAULT_OPERATORS
from nafaudit.search.propose import chosen
from nafaudit.store.files import write_whole

LOCAL, TRANSFORMERS, OPENAI = "local", "transformers", "openai"
KINDS = (LOCAL, TRANSFORMERS, OPENAI)
_ALLOWED = "local, transformers:PATH_OR_HUB_ID, or openai:MODEL with --proposer-url"


@dataclass(frozen=True)
class ProposerSpec:
    """A proposer as `--proposer` and `--proposer-url` name it.

    Attributes:
        kind: One of `KINDS`.
        model: A checkpoint, or a server's name of a model; empty for the local operators.
        url: Address of the server, up to and without /chat/completions.
    """

    kind: str
    model: str = ""
    url: str = ""

    @property
    def name(self) -> str:
        """Value of `--proposer`."""
        return f"{self.kind}:{self.model}" if self.model else self.kind

    @classmethod
    def parse(cls, text: str, url: str | None) -> ProposerSpec:
        """Reads a name and an address.

        Raises:
            InputError: There is no such kind, or it lacks its model or its address.
        """
        kind, _, model = text.partition(":")
        if kind not in KINDS:
            raise InputError(
                f"unknown proposer {text!r}{nearest(kind, KINDS)} Allowed: {_ALLOWED}."
            )
        if bool(model.strip()) != (kind != LOCAL):
            raise InputError(
                f"a proposer needs a name of a model, got {text!r}. Allowed: {_ALLOWED}."
            )
        if (url is not None) != (kind == OPENAI):
            raise InputError(
                f"proposer-url is the address of an openai proposer, got proposer = {text!r} and "
                f"proposer-url = {url!r}; for example --proposer openai:MODEL --proposer-url "
                "http://127.0.0.1:8000/v1."
            )
        return cls(kind, model.strip(), _address(url) if url is not None else "")


def _address(url: str) -> str:
    """Checks an address: no user and no query, which could hold a secret."""
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or not url.isascii() or any(char <= " " for char in url):
        raise InputError(
            f"proposer-url must be an address such as http://127.0.0.1:8000/v1, got {url!r}."
        )
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        # Not shown: it may be a key.
        raise InputError(
            "proposer-url must have no user, password, query or fragment; a key belongs in the "
            "environment, as NAFAUDIT_API_KEY."
        )
    return url.rstrip("/").removesuffix("/chat/completions")


_search_option = partial(option, section="The search")
_proposer_option = partial(option, section="Proposer")
_confirm_option = partial(option, section="Confirmation on fresh draws")


@dataclass(frozen=True, kw_only=True)
class NewPromptSettings(Group):
    """Operators and lengths of new prompts."""

    shortest: int = prompts_option(20, "Fewest tokens of a prompt.")
    longest: int = prompts_option(250, "Most tokens of a prompt.")
    operators: tuple[str, ...] = _search_option(
        DEFAULT_OPERATORS, "Ways to make prompts.", metavar="NAME,...", unset="all"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.window
        chosen(self.operators)

    @property
    def window(self) -> LengthWindow:
        """Allowed lengths of a prompt."""
        return LengthWindow(self.shortest, self.longest)


@dataclass(frozen=True, kw_only=True)
class ProposerSettings(Group):
    """The proposer of new prompts."""

    proposer: str = _proposer_option(
        "local",
        "Source of new prompts: local, transformers:PATH_OR_HUB_ID, or openai:MODEL with "
        "--proposer-url.",
        common=True,
    )
    proposer_url: str | None = _proposer_option(
        None,
        "Server of an openai proposer, such as http://127.0.0.1:8000/v1; its key is "
        "NAFAUDIT_API_KEY in the environment.",
    )
    proposer_attempts: int = _proposer_option(4, "Most attempts at each question to it.", least=1)
    proposer_timeout: float = _proposer_option(
        120.0, "Seconds that an answer may take.", above=0, below=86400, unit=" seconds"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.proposer_spec

    @property
    def proposer_spec(self) -> ProposerSpec:
        """The proposer."""
        return ProposerSpec.parse(self.proposer, self.proposer_url)


_NO_SURROGATE = (
    "the sound search has no surrogate any more: its gate needs 100 held-out prompts of ten "
    "trajectories and stayed shut at every size that was measured "
    "(docs/decisions/007-no-surrogate.md). Leave it out; the search draws what it proposes."
)


@dataclass(frozen=True, kw_only=True)
class SearchBasics(ProposerSettings, NewPromptSettings, RunSettings):
    """Settings that both protocols share; names of `nafaudit run` keep their meaning."""

    later: ClassVar[Mapping[str, Any]] = {}
    """Settings that earlier versions did not have, with the value that they had in effect."""
    unlisted: ClassVar[frozenset[str]] = frozenset({
        *("corpus", "decoder", "decoder_python", "decoder_timeout", "promise", "trajectories"),
        *("baselines", "safe_device", "together", "speculate", "coupled"),
    })  # fmt: skip
    refused: ClassVar[Mapping[str, str]] = {
        **RunSettings.refused,
        "archive": "there is one archive, the greedy k-DPP set; --protocol paper has several. "
        "Leave it out.",
        "surrogate": _NO_SURROGATE,
        "training": _NO_SURROGATE,
        "embedding": _NO_SURROGATE,
        "study": "studies are a program of the repository: python -m benchmarks.search_study "
        "--help.",
    }

    k: tuple[float, ...] = audited_option(
        (3.0,), "Budgets in nats per token; several are searched in turn.", metavar="K,...",
        form=BUDGETS_FORM, common=True, unset="3; the paper's on the lab: 16",
    )  # fmt: skip
    classes: tuple[str, ...] = prompts_option(
        (), "Sound only: classes to start from; the paper's: --init.", metavar="NAME,...",
        unset="the ordinary ones of the lab; all of yours",
        file_form="a list of names, or [classes.NAME] tables with file and prompt",
    )  # fmt: skip
    limit: int | None = prompts_option(
        None,
        "Sound only: largest number of prompts; 0 for all.",
        least=0,
        unit=" (0: all prompts)",
        unset="0",
    )
    protocol: str = protocol_option(
        "sound", "sound, or paper: the paper's search.", choices=("sound", "paper"), common=True
    )
    delta: float = _confirm_option(
        0.05, "Level of all limits together; in the paper's also of each U_EBB.", above=0, below=1,
        unset="0.05; the paper's: 0.0033",
    )  # fmt: skip
    seed: int = machine_option(0, "Seed of run and search.")
    ray: str | None = machine_option(None, "Not for a search.", bare="local", hidden=True)
    out: str | None = machine_option(
        None, "Run directory.", unset="runs/search-<design hash>", common=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_budgets()
        if self.coupled:
            raise InputError(
                "coupled is for the fixed workload of nafaudit run: the paper's search draws each "
                "prompt alone. Leave it out."
            )
        if self.ray is not None:
            raise InputError(
                "a search decodes in this process: each of its rounds waits for the one before. "
                "Leave out --ray; it is for nafaudit run."
            )
        if self.decoder is not None:
            raise InputError(
                f"a search decodes with our own engine, got decoder = {self.decoder!r}; audit a "
                "black box with nafaudit run --decoder."
            )

    def check_budgets(self) -> None:
        """Requires one budget above 0."""
        if len(self.k) != 1 or is_baseline(self.k[0]):
            raise InputError(
                f"a search looks at one budget above 0, got k = {', '.join(map(str, self.k))}; "
                "search each in its own run, for example --k 1."
            )

    @property
    def budget(self) -> float:
        """The budget that is searched.

        Raises:
            InputError: There are several.
        """
        if len(self.k) != 1:
            raise InputError(f"one budget at a time, got k = {', '.join(map(str, self.k))}.")
        return self.k[0]

    @property
    def archive(self) -> str:
        """Archive of prompts to build upon: a greedy k-DPP set."""
        return "dpp"

    @property
    def surrogate(self) -> str:
        """Surrogate in use: none."""
        return "off"

    @property
    def search_seeds(self) -> tuple[int, ...]:
        """Seeds of the searches."""
        return (self.seed,)


@dataclass(frozen=True, kw_only=True)
class RoundSettings(Group):
    """Sizes of a search."""

    searches: int = _search_option(
        2, "Independent searches.", least=1, common=True, unset="2; the paper's: 1"
    )
    pool: int = _search_option(12, "Sound only: prompts that a search starts from.", least=2)
    generations: int = _search_option(
        2, "Sound only: rounds of new prompts.", least=0, common=True,
        unset="2; the paper's: --size generations=4",
    )  # fmt: skip
    proposals: int = _search_option(24, "Sound only: prompts proposed in a generation.", least=1)
    screened: int = _search_option(12, "Sound only: how many of them get a trajectory.", least=1)
    draws: int = _search_option(72, "Sound only: trajectories of a generation.", least=1)
    survivors: int = _search_option(2, "Sound only: prompts of it never dropped.", least=1)
    parents: int = _search_option(6, "Sound only: prompts that the next is made of.", least=1)


@dataclass(frozen=True, kw_only=True)
class ConfirmSettings(Group):
    """Sizes of the confirmation on fresh draws."""

    finalists: int = _confirm_option(2, "Sound only: prompts that are confirmed.", least=1)
    fresh: int = _confirm_option(24, "Sound only: fresh trajectories of each of them.", least=1)
    heldout: int = _confirm_option(
        10, "Sound only: prompts that no search sees.", least=1,
        unset="10; the paper's: --size heldout_keep=8",
    )  # fmt: skip
    heldout_draws: int = _confirm_option(
        4, "Sound only: trajectories of each of these.", least=1,
        unset="4; the paper's: --size heldout_traj=20",
    )  # fmt: skip
    others: str | None = _confirm_option(
        None, "Sound only: JSON Lines of held-out prompts of other kinds.", unset="the pair's own"
    )
    passages: str | None = _confirm_option(
        None, "Sound only: protected text that outputs are compared with.", unset="the pair's own"
    )
    above: float = _confirm_option(
        0.5, "Sound only: name prompts that use more than this share.", above=0, below=1
    )


@dataclass(frozen=True, kw_only=True)
class SearchSettings(ConfirmSettings, RoundSettings, SearchBasics):
    """Settings of `nafaudit search` in the sound protocol.

    The first of several searches has the run's seed, each other the next one.
    """

    max_new_tokens: int = decoding_option(
        64, "Length limit T.", common=True, unset="64; the paper's: 200, on the lab 8"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trajectories != RunSettings.trajectories:
            raise InputError(
                f"a search shares its trajectories out itself, got trajectories = "
                f"{self.trajectories}; set --draws (of a generation) and --fresh (of a finalist)."
            )
        if self.protocol != "sound":
            raise InputError(f"these are settings of the protocol sound, got {self.protocol!r}.")
        for size in (self.pool, self.screened):
            halving_plan(size, self.draws, min(self.survivors, size))

    def check_budgets(self) -> None:
        """Requires budgets above 0, each once."""
        if not self.k or any(map(is_baseline, self.k)) or len(set(self.k)) < len(self.k):
            raise InputError(
                f"a search looks at budgets above 0, each once, got k = "
                f"{', '.join(map(str, self.k))}; give one, or several as in --k 1,3,5."
            )

    @property
    def search_seeds(self) -> tuple[int, ...]:
        """Seeds of the searches."""
        return tuple(range(self.seed, self.seed + self.searches))


FILE = "settings.json"
_OF_A_RUN = ("variant", "delta", "k")
"""Settings of a run that decide a search beside the run's design."""
_NOT_DECISIVE = {one.name for one in fields(RunSettings)} | {"proposer_url", "proposer_timeout"}
"""Settings of the design; and of a server, which may move, as its answers are in the journal."""
_FORMER = {"archive": "dpp", "surrogate": "auto", "training": 0, "embedding": "auto"}
"""Former settings with their only values now, so that searches of older versions resume."""


def decisive(settings: SearchBasics) -> dict[str, Any]:
    """Returns what decides a search beside the design of its run, as plain JSON data."""
    found: dict[str, Any] = {"kind": type(settings).__name__}
    own = [one.name for one in fields(settings) if one.name not in _NOT_DECISIVE]
    for name in (*_OF_A_RUN, *own):
        found[name] = getattr(settings, name)
        if name in settings.later and found[name] == settings.later[name]:
            del found[name]  # so that searches of versions without it resume
        if name == "heldout_draws":
            found |= _FORMER
    if settings.proposer == LOCAL:
        found["proposer_attempts"] = 4  # which the local operators never need
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def directory_of(settings: SearchBasics, identity: str) -> Path:
    """Returns the directory of a search: the one given, or one that no other search has.

    Args:
        settings: Settings of the search.
        identity: Hash of its run's design.
    """
    if settings.out:
        return Path(settings.out)
    text = identity + json.dumps(decisive(settings), sort_keys=True)
    return Path("runs") / f"search-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def check_directory(settings: SearchBasics) -> None:
    """Checks that the directory holds no other search; loads no model.

    Raises:
        InputError: It holds another; the message names the differences.
    """
    path = Path(settings.out) / FILE if settings.out else None
    if path is None or not path.is_file():
        return
    try:
        recorded = json.loads(path.read_text())
        if recorded.get("surrogate") == "off":
            recorded |= {"surrogate": "auto", "embedding": "auto"}
        found = differences(decisive(settings), recorded)
    except (ValueError, TypeError, AttributeError):
        raise InputError(
            f"{path} is not what was written: it was damaged or edited. Restore it, or search "
            "with another --out."
        ) from None
    if found:
        raise InputError(
            f"{settings.out} holds another search; it differs in\n  "
            + "\n  ".join(found)
            + "\nGive this search its own --out, or repeat its own options to resume."
        )


def reserve_directory(path: Path, settings: SearchBasics) -> None:
    """Reserves a directory for a search; resuming it writes the same bytes."""
    write_whole(path / FILE, json.dumps(decisive(settings), indent=2).encode() + b"\n")
