"""Settings of a search; what `--proposer` names; one directory holds one search.

One directory, one search: its sizes and choices are written there before its first draw.

The design of a run says how its trajectories were decoded, not who asked for them. Two searches
in one directory would count each other's trajectories and overwrite each other's answer.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nafaudit.core.design import differences
from nafaudit.core.errors import InputError, nearest
from nafaudit.core.ledger import is_baseline
from nafaudit.core.settings import Settings
from nafaudit.search.filters import LengthWindow
from nafaudit.search.halving import halving_plan
from nafaudit.search.operators import OPERATORS
from nafaudit.search.propose import chosen
from nafaudit.store.files import write_whole

LOCAL, TRANSFORMERS, OPENAI = "local", "transformers", "openai"
KINDS = (LOCAL, TRANSFORMERS, OPENAI)
_ALLOWED = "local, transformers:PATH_OR_HUB_ID, or openai:MODEL with --proposer-url"


@dataclass(frozen=True)
class ProposerSpec:
    """Who suggests prompts.

    Attributes:
        kind: One of `KINDS`.
        model: A checkpoint, or a server's name of a model; empty for the local operators.
        url: Where the server is, up to and without /chat/completions.
    """

    kind: str
    model: str = ""
    url: str = ""

    @property
    def name(self) -> str:
        """As it was given."""
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
    """An address without a place for secrets: no user, no query."""
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
        # Not shown: what stands there may be a key.
        raise InputError(
            "proposer-url must have no user, password, query or fragment; a key belongs in the "
            "environment, as NAFAUDIT_API_KEY."
        )
    return url.rstrip("/").removesuffix("/chat/completions")


@dataclass(frozen=True)
class SearchBasics(Settings):
    """Settings that both protocols share; the names of `nafaudit run` mean the same here.

    Attributes:
        k: The one budget that is searched, in nats per token.
        shortest: Fewest tokens of a proposed prompt.
        longest: Most tokens of a proposed prompt.
        operators: Ways to make new prompts.
        proposer: Who makes them: the operators, or a model that they only stand in for.
        proposer_url: Address of an openai proposer.
        proposer_attempts: At most so many answers, failures included, for each question to it.
        proposer_timeout: Seconds that its server may take to answer.
    """

    k: tuple[float, ...] = (3.0,)
    shortest: int = 20
    longest: int = 250
    operators: tuple[str, ...] = tuple(OPERATORS)
    proposer: str = "local"
    proposer_url: str | None = None
    proposer_attempts: int = 4
    proposer_timeout: float = 120.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.window
        chosen(self.operators)
        self._check_proposer()
        self.check_budgets()
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
        """One budget above 0."""
        if len(self.k) != 1 or is_baseline(self.k[0]):
            raise InputError(
                f"a search looks at one budget above 0, got k = {', '.join(map(str, self.k))}; "
                "search each in its own run, for example --k 1."
            )

    def _check_proposer(self) -> None:
        _ = self.proposer_spec
        if self.proposer_attempts < 1:
            raise InputError(f"proposer-attempts must be at least 1, got {self.proposer_attempts}.")
        if not 0 < self.proposer_timeout < 86400:
            raise InputError(
                f"proposer-timeout must be above 0 and below 86400 seconds, got "
                f"{self.proposer_timeout}."
            )

    @property
    def proposer_spec(self) -> ProposerSpec:
        """Who suggests prompts."""
        return ProposerSpec.parse(self.proposer, self.proposer_url)

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
        """Which prompts are built upon: a greedy k-DPP set."""
        return "dpp"

    @property
    def surrogate(self) -> str:
        """Whose guesses steer: none."""
        return "off"

    @property
    def search_seeds(self) -> tuple[int, ...]:
        """One per search."""
        return (self.seed,)

    @property
    def window(self) -> LengthWindow:
        """Allowed lengths of a prompt."""
        return LengthWindow(self.shortest, self.longest)


@dataclass(frozen=True)
class SearchSettings(SearchBasics):
    """Everything `nafaudit search` can be told in the sound protocol.

    Attributes:
        k: Budgets that are searched, one after the other, in nats per token.
        max_new_tokens: Length limit T.
        searches: Independent searches; the first has the run's seed, each other the next one.
        pool: Prompts of the workload that a search starts from.
        generations: Rounds of new prompts after the first pool.
        proposals: Prompts that are proposed in a generation.
        screened: How many of them get a trajectory.
        draws: Trajectories of a generation, shared out by successive halving.
        survivors: Prompts of a generation that are never dropped.
        parents: Prompts that the next generation is made of.
        finalists: Best prompts of a search that are confirmed.
        fresh: Fresh trajectories of each finalist.
        heldout: Prompts that no search ever sees, confirmed beside the finalists.
        heldout_draws: Trajectories of each.
        others: JSON Lines file of held-out prompts of other kinds; the pair's own if empty.
        passages: File of protected passages that outputs are compared with; the pair's own.
        above: A prompt is named if its mean utilisation is shown to be above this.
    """

    max_new_tokens: int = 64
    searches: int = 2
    pool: int = 12
    generations: int = 2
    proposals: int = 24
    screened: int = 12
    draws: int = 72
    survivors: int = 2
    parents: int = 6
    finalists: int = 2
    fresh: int = 24
    heldout: int = 10
    heldout_draws: int = 4
    others: str | None = None
    passages: str | None = None
    above: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {"pool": 2, "generations": 0}
        names = (
            "searches", "pool", "generations", "proposals", "screened", "draws", "survivors",
            "parents", "finalists", "fresh", "heldout", "heldout_draws",
        )  # fmt: skip
        for name in names:
            if getattr(self, name) < least.get(name, 1):
                raise InputError(
                    f"{name.replace('_', '-')} must be at least {least.get(name, 1)}, got "
                    f"{getattr(self, name)}."
                )
        self._check_protocol()
        if not 0 < self.above < 1:
            raise InputError(f"above must be between 0 and 1, got {self.above}.")
        for size in (self.pool, self.screened):
            halving_plan(size, self.draws, min(self.survivors, size))

    def check_budgets(self) -> None:
        """Several budgets are searched one after the other."""
        if not self.k or any(map(is_baseline, self.k)) or len(set(self.k)) < len(self.k):
            raise InputError(
                f"a search looks at budgets above 0, each once, got k = "
                f"{', '.join(map(str, self.k))}; give one, or several as in --k 1,3,5."
            )

    def _check_protocol(self) -> None:
        if self.trajectories != Settings.trajectories:
            raise InputError(
                f"a search shares its trajectories out itself, got trajectories = "
                f"{self.trajectories}; set --draws (of a generation) and --fresh (of a finalist)."
            )
        if self.protocol != "sound":
            raise InputError(f"these are settings of the protocol sound, got {self.protocol!r}.")

    @property
    def search_seeds(self) -> tuple[int, ...]:
        """One per search."""
        return tuple(range(self.seed, self.seed + self.searches))


FILE = "settings.json"
_RUNS = {one.name for one in fields(Settings)} - {"k", "delta", "variant"}
"""Settings of a run, which are in its design."""
_NOT_DECISIVE = {"proposer_url", "proposer_timeout"}
"""A server may move, and an answer that was given is in the journal."""


_FORMER = {"archive": "dpp", "surrogate": "auto", "training": 0, "embedding": "auto"}
"""Choices that were settings once, as a search made them: with them older directories resume."""


def decisive(settings: SearchBasics) -> dict[str, Any]:
    """What decides a search beside the design of its run, as JSON has it."""
    found: dict[str, Any] = {"kind": type(settings).__name__}
    for name in (one.name for one in fields(settings)):
        if name not in _RUNS | _NOT_DECISIVE:
            found[name] = getattr(settings, name)
        if name == "heldout_draws":
            found |= _FORMER
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def directory_of(settings: SearchBasics, identity: str) -> Path:
    """Where a search is recorded: where it was told to, or a place that no other search has.

    Args:
        settings: Of the search.
        identity: Hash of its run's design.
    """
    if settings.out:
        return Path(settings.out)
    text = identity + json.dumps(decisive(settings), sort_keys=True)
    return Path("runs") / f"search-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def check_claim(settings: SearchBasics) -> None:
    """Refuses a directory that holds another search; needs no model.

    Raises:
        InputError: It does; what differs is named.
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


def claim(path: Path, settings: SearchBasics) -> None:
    """Writes whose directory this is; the same search writes the same bytes."""
    write_whole(path / FILE, json.dumps(decisive(settings), indent=2).encode() + b"\n")
