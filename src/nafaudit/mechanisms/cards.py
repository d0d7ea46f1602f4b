"""Each mechanism as data: its promise, its options, and how they are read; no torch.

A card says what is promised in a form that the tests compute with: of which divergence, how much,
and whether some pair of models reaches it.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from nafaudit.core.errors import InputError, nearest
from nafaudit.core.ledger import budget_word


@dataclass(frozen=True)
class CardOption:
    """One option of a mechanism's specification, `NAME:option=value`.

    Attributes:
        name: Name, as it is written.
        kind: `number` (nats or an order), `count`, `word` (one of `words`) or `file`.
        default: What holds if it is not given; None if it must be.
        text: What it decides.
        least: Smallest number allowed.
        most: Largest number allowed.
        words: Words allowed.
    """

    name: str
    kind: Literal["number", "count", "word", "file"]
    default: float | int | str | None
    text: str
    least: float = 0.0
    most: float = math.inf
    words: tuple[str, ...] = ()
    json_properties: ClassVar = ("allowed",)

    @property
    def allowed(self) -> str:
        """What may be given, in words."""
        if self.kind == "word":
            return " or ".join(self.words)
        if self.kind == "file":
            return "a file"
        what = "a whole number" if self.kind == "count" else "a number"
        if self.most < math.inf:
            return f"{what} from {self.least:g} to {self.most:g}"
        return f"{what} of at least {self.least:g}"


@dataclass(frozen=True)
class Promise:
    """The statement that a kept budget makes, for every prompt.

    Attributes:
        divergence: Divergence of the output's law from the safe model's: `kl`, `renyi`, `max`
            (the largest log-ratio of any output), or `none`.
        bound: How much of it there can be, in nats.
        tight: True if some pair of models reaches the bound.
        words: The promise as a sentence.
    """

    divergence: Literal["kl", "renyi", "max", "none"]
    bound: str
    tight: bool
    words: str


@dataclass(frozen=True)
class MechanismCard:
    """One registered mechanism.

    Attributes:
        name: Under which `--mechanism` knows it.
        formula: What it serves.
        currency: What a step, or an output, is charged.
        promise: What a kept budget says.
        reference: Where it is described.
        options: What may follow its name; the first may be given without its own name.
    """

    name: str
    formula: str
    currency: str
    promise: Promise
    reference: str
    options: tuple[CardOption, ...] = ()
    json_properties: ClassVar = ("guarantee",)

    @property
    def guarantee(self) -> str:
        """The promise as a sentence, for tables and JSON."""
        return self.promise.words


_LEDGER = (
    CardOption("cap", "number", math.inf, "most nats that can be banked"),
    CardOption("bank", "number", 0.0, "nats in the bank at the start"),
    CardOption("refill", "word", "token", "what earns k nats", words=("token", "character")),
)
_BUDGET = "max(0, K - debt), K = kT + bank"
_NONE = Promise("none", "none", False, "none")

CARDS = (
    MechanismCard(
        name="anchored",
        formula="p_theta ~ p_safe^(1-theta) p_risky^theta, largest theta with "
        "KL(p_theta||p_safe) <= max(0, (t+1)k - spent - debt)",
        currency="KL of the step",
        promise=Promise(
            "kl",
            _BUDGET,
            True,
            "KL(law of the output || safe model's) <= max(0, kT - debt). With cap: any W steps "
            "cost at most cap + (W-1)k. With bank: kT + bank - debt. With refill=character: k "
            "times the characters written before the last token",
        ),
        reference="He et al., Anchored Decoding",
        options=_LEDGER,
    ),
    MechanismCard(
        name="renyi",
        formula="p_theta of anchored, largest theta with D_alpha(p_theta||p_safe) = "
        "[psi(alpha theta) - alpha psi(theta)]/(alpha-1) <= allowance, psi(u) = "
        "log sum p_safe^(1-u) p_risky^u; alpha = 1 is anchored, alpha = inf the largest log-ratio",
        currency="Rényi divergence of order alpha of the step",
        promise=Promise(
            "renyi",
            _BUDGET,
            True,
            "D_alpha(law of the output || safe model's) <= max(0, kT - debt), so p(E) <= "
            "(e^K p_safe(E))^((alpha-1)/alpha) for every event E",
        ),
        reference="van Erven and Harremoës (2014); Feldman and Zrnic (2021) for composition",
        options=(
            CardOption("alpha", "number", None, "order: 1, or from 1.01 to inf", least=1.0),
            *_LEDGER,
        ),
    ),
    MechanismCard(
        name="pathwise",
        formula="p_theta of anchored, largest theta with theta max(l) - psi(theta) <= allowance, "
        "l = log p_risky/p_safe; the ledger is paid log p_theta(y)/p_safe(y) of the drawn token, "
        "which gives back where it is negative",
        currency="realised log-ratio of the drawn token",
        promise=Promise(
            "max",
            _BUDGET,
            True,
            "log q(y) - log p_safe(y) <= max(0, kT - debt) for every output y, so q(E) <= "
            "e^K p_safe(E)",
        ),
        reference="Vyas, Kakade, Barak (2023) for the largest log-ratio; paid as realised",
        options=_LEDGER,
    ),
    MechanismCard(
        name="cp-delta",
        formula="p ~ min(p_safe, p_risky), or sqrt(p_safe p_risky) with divergence=kl, at each "
        "token where the allowance pays for it, else p_safe",
        currency="largest log-ratio of the step, -log(1 - TV); with divergence=kl its KL",
        promise=Promise(
            "max",
            _BUDGET,
            True,
            "log q(y) - log p_safe(y) <= sum of -log(1 - TV) over its steps <= max(0, kT - debt) "
            "for every output y; with divergence=kl, KL(law of the output || safe model's), at "
            "most -2 log(1 - H^2) a step",
        ),
        reference="Vyas, Kakade, Barak (2023), CP-Delta, token by token",
        options=(
            CardOption("divergence", "word", "max", "which of the two laws", words=("max", "kl")),
            *_LEDGER,
        ),
    ),
    MechanismCard(
        name="cp-fuse",
        formula="p ~ p_safe^b1 p_risky^b2, weights of a grid (0 to 2 in 10 points, 3 to 10) that "
        "minimise max over both models i of KL(p||p_i) - log p_i(y so far)",
        currency="none; the KL of each step is recorded",
        promise=_NONE,
        reference="Abad et al. (2025), CP-Fuse; objective and grid of the published code",
    ),
    MechanismCard(
        name="memfree",
        formula="p_risky without the tokens that would complete an n-gram of a block list, "
        "renormalised",
        currency="none; the KL of each step is recorded",
        promise=Promise(
            "none",
            "none",
            False,
            "none; no n-gram of the listed text is completed, in the tokens it is split into",
        ),
        reference="Ippolito et al. (2023), MemFree decoding",
        options=(
            CardOption("n", "count", 10, "tokens of an n-gram", least=2),
            CardOption("list", "file", None, "one passage a line; else the protected passages"),
        ),
    ),
    MechanismCard(
        name="tokenswap",
        formula="p_risky, but on a list G of words p_safe scaled to p_risky(G)",
        currency="none; the KL of each step is recorded",
        promise=Promise(
            "none", "none", False, "none; the mass of G is the risky model's, its shape the safe's"
        ),
        reference="Prashant, Ponkshe, Salimi (2025), TokenSwap; the list is our own",
        options=(CardOption("words", "file", None, "one word a line; else 110 function words"),),
    ),
    MechanismCard(
        name="best-of-n",
        formula="n = floor(e^(kT)) drafts of the safe model (64 at most, or option n); the one "
        "that the risky model finds likeliest",
        currency="log n for the whole output",
        promise=Promise(
            "max",
            "log n <= kT",
            True,
            "log q(y) - log p_safe(y) <= log n <= kT for every output y; KL <= log n - (n-1)/n",
        ),
        reference="Beirami et al. (2024), best-of-n alignment policy",
        options=(CardOption("n", "count", 64, "most drafts", least=1, most=64),),
    ),
    MechanismCard(
        name="blockwise",
        formula="best-of-n every L = block tokens, n = floor(e^(kT/blocks)) at most",
        currency="log n for each block",
        promise=Promise(
            "max",
            "ceil(T/L) log n <= kT",
            True,
            "log q(y) - log p_safe(y) <= blocks log n <= kT for every output y; any w tokens: "
            "min(blocks, ceil(w/L) + 1) log n",
        ),
        reference="best-of-n applied to blocks",
        options=(
            CardOption("block", "count", 10, "tokens of a block", least=1),
            CardOption("n", "count", 64, "most drafts", least=1, most=64),
        ),
    ),
    MechanismCard(
        name="cp-k",
        formula="the first of M = tries risky drafts with log p_risky(y)/p_safe(y) <= cap, else a "
        "safe one; cap = log(e^(kT) - 1) - log M",
        currency="log(1 + M e^cap) for the whole output",
        promise=Promise(
            "max",
            "kT",
            True,
            "log q(y) - log p_safe(y) <= log(1 + M e^cap) = kT for every output y",
        ),
        reference="Vyas, Kakade, Barak (2023), CP-k",
        options=(CardOption("tries", "count", 8, "risky drafts", least=1, most=64),),
    ),
    MechanismCard(
        name="hybrid",
        formula="best of n outputs of the pathwise decoder at (kT - log n)/T nats per token; "
        "log n at most half of kT",
        currency="log n, and the realised log-ratio of the chosen output",
        promise=Promise(
            "max",
            "log n + (kT - log n) = kT",
            True,
            "log q(y) - log p_safe(y) <= log n + R(y) <= kT for every output y",
        ),
        reference="budgets of log-ratios add; those of KL do not under selection",
        options=(CardOption("n", "count", 4, "most drafts", least=1, most=64),),
    ),
)


def card(name: str) -> MechanismCard:
    """Returns the card of a registered mechanism."""
    return next(one for one in CARDS if one.name == name)


Value = float | int | str


@dataclass(frozen=True)
class Spec:
    """A registered mechanism and its options.

    Attributes:
        card: Card of the mechanism.
        values: Value of each option: as given, else its default; a file not given is absent.
    """

    card: MechanismCard
    values: Mapping[str, Value]

    @property
    def name(self) -> str:
        """The specification as records carry it: what differs from the defaults, in one order."""
        written = []
        for option in self.card.options:
            value = self.values.get(option.name, option.default)
            if value != option.default:
                word = budget_word(value) if isinstance(value, float) else str(value)
                written.append(f"{option.name}={word}")
        return ":".join([self.card.name, ",".join(written)] if written else [self.card.name])

    def number(self, name: str) -> float:
        """Returns an option that is a number."""
        return float(self.values[name])

    def count(self, name: str) -> int:
        """Returns an option that is a whole number."""
        return int(self.values[name])

    def word(self, name: str) -> str:
        """Returns an option that is a word or a file; empty if it was not given."""
        return str(self.values.get(name, ""))


def parse(spec: str) -> Spec | None:
    """Reads a specification; None if its name is not registered.

    Raises:
        InputError: An option is unknown, given twice or missing, or has a value that is not
            allowed; the message names it, what is allowed, and the nearest good name.
    """
    name, _, rest = spec.partition(":")
    found = next((card for card in CARDS if card.name == name), None)
    if found is None:
        return None
    given: dict[str, Value] = {}
    for place, part in enumerate(rest.split(",") if rest else ()):
        key, equals, value = part.partition("=")
        if not equals and place == 0 and found.options:
            key, value = found.options[0].name, part
        names = [option.name for option in found.options]
        if (key := key.strip()) not in names:
            takes = f"Its options: {', '.join(names)}." if names else "It takes none."
            raise InputError(
                f"mechanism {spec!r}: {name} has no option {key!r}{nearest(key, names)} {takes}"
            )
        option = found.options[names.index(key)]
        if key in given:
            raise InputError(f"mechanism {spec!r}: {option.name} is given twice; give it once.")
        given[option.name] = _value(option, value.strip(), spec)
    for option in found.options:
        if option.name in given:
            continue
        if option.default is None and option.kind != "file":
            raise InputError(
                f"mechanism {spec!r} needs {option.name} ({option.text}), for example "
                f"{found.name}:{option.name}=4; it is {option.allowed}."
            )
        if option.default is not None:
            given[option.name] = option.default
    return Spec(found, given)


def verify_options(spec: str) -> str:
    """Returns what follows `nafaudit verify RUN` for a mechanism: a plug-in's file, or nothing."""
    file, colon, _ = spec.rpartition(":")
    if not colon or parse(spec) is not None:
        return ""
    return f" --plugin {shlex.quote(file) if file.endswith('.py') else 'FILE'}"


def check_name(spec: str) -> None:
    """Raises `InputError` if a specification is neither registered nor names a class."""
    if parse(spec) is None and ":" not in spec:
        raise unknown(spec)


def unknown(spec: str) -> InputError:
    """Returns the message for a name that is neither registered nor a class."""
    known = [card.name for card in CARDS]
    return InputError(
        f"unknown mechanism {spec!r}{nearest(spec.partition(':')[0], known)} Known: "
        f"{', '.join(known)} (nafaudit mechanisms); your own is package.module:Class or "
        "file.py:Class."
    )


def _value(option: CardOption, value: str, spec: str) -> Value:
    wrong = InputError(
        f"mechanism {spec!r}: {option.name} must be {option.allowed} ({option.text}), got "
        f"{value!r}{nearest(value, option.words)}"
    )
    if option.kind == "word":
        if value not in option.words:
            raise wrong
        return value
    if option.kind == "file":
        if not Path(value).is_file():
            raise InputError(
                f"mechanism {spec!r}: {option.name} must be a file ({option.text}); there is none "
                f"at {value!r}."
            )
        return value
    try:
        number = int(value) if option.kind == "count" else float(value)
    except ValueError:
        raise wrong from None
    if not option.least <= number <= option.most:  # NaN is refused too
        raise wrong
    return number
