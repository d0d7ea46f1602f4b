"""What every search can be told, whichever protocol it follows."""

from __future__ import annotations

from dataclasses import dataclass

from nafaudit.core.errors import InputError
from nafaudit.core.ledger import is_baseline
from nafaudit.core.settings import Settings
from nafaudit.search.filters import LengthWindow
from nafaudit.search.instruct.spec import ProposerSpec
from nafaudit.search.operators import OPERATORS
from nafaudit.search.propose import chosen


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
    def window(self) -> LengthWindow:
        """Allowed lengths of a prompt."""
        return LengthWindow(self.shortest, self.longest)
