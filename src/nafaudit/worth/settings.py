"""Settings of a certificate, an attack and a frontier."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from nafaudit.core.errors import InputError, nearest
from nafaudit.core.ledger import as_budget, is_baseline
from nafaudit.core.options import option
from nafaudit.core.settings import (
    BUDGETS_FORM,
    DecodingSettings,
    DeviceSettings,
    PairSettings,
    RunSettings,
    TrustSettings,
    audited_option,
    decoding_option,
    machine_option,
)

if TYPE_CHECKING:
    from nafaudit.protocols import Mechanism

MODES = ("single", "oracle", "chained")
ADMISSION = 0.10
"""Recall of the risky model alone below which an attack says nothing about a mechanism."""

_attack_option = partial(option, section="The attack")
_PASSAGES = "Text with blank lines between passages, or JSON Lines with 'text' and 'id'."


def passages_option(text: str = _PASSAGES) -> Path | None:
    """Returns the argument that names a file of protected passages."""
    made: Path | None = option(None, text, argument=True, unset="the pair's own")
    return made


def _budgets(given: tuple[float, ...], why: str) -> tuple[float, ...]:
    """Returns budgets above 0 and below infinity, each once, from the smallest up."""
    found = tuple(sorted({as_budget(k) for k in given}))
    if not found or any(is_baseline(k) for k in found):
        shown = ", ".join(f"{k:g}" for k in given)
        raise InputError(f"k must be above 0 and finite, got {shown or 'none'}; {why}.")
    return found


@dataclass(frozen=True, kw_only=True)
class CertifySettings(DeviceSettings, DecodingSettings, TrustSettings):
    """Everything that `nafaudit certify` takes."""

    unlisted: ClassVar[frozenset[str]] = frozenset({"prefix_debt"})

    passages: Path | None = passages_option()
    pair: str = audited_option("lab", "A registered pair, for its safe model.", common=True)
    safe: str | None = audited_option(None, "Safe checkpoint: directory or hub id.", common=True)
    k: tuple[float, ...] = audited_option(
        (0.25, 1.0, 3.0, 10.0), "Budgets in nats per token.", metavar="K,...", form=BUDGETS_FORM,
        common=True,
    )  # fmt: skip
    given: int = audited_option(
        0, "Opening tokens of each passage that the prompt gives away.", least=0, common=True
    )
    window: int = audited_option(
        50, "Tokens of the windows, whose budget is kw.", least=1, common=True
    )
    max_new_tokens: int = decoding_option(200, "Length limit T of one output; K = kT.", common=True)
    temperature: float = decoding_option(1.0, "Of the safe model's law.")
    repetition_penalty: float = decoding_option(1.0, "Of the safe model's law.")
    prefix_n: int = decoding_option(5, "Prompt tokens that make up a debt.")
    dtype: str = machine_option("float32", "Precision of the forward pass.")
    out: Path | None = machine_option(None, "Directory.", unset="certificates/<hash>", common=True)
    show: int = machine_option(10, "Passages in the table, worst first.", least=0, common=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        why = "a certificate is about a budget, not about a model alone"
        object.__setattr__(self, "k", _budgets(self.k, why))


@dataclass(frozen=True, kw_only=True)
class FrontierSettings(DeviceSettings, DecodingSettings, TrustSettings, PairSettings):
    """Everything that `nafaudit frontier` takes."""

    unlisted: ClassVar[frozenset[str]] = frozenset({"prefix_debt"})

    passages: Path | None = passages_option(
        "Protected text: blank lines between passages, or JSON Lines with 'text'."
    )
    ordinary: Path | None = audited_option(
        None, "Ordinary text, in the same form.", unset="the pair's own", common=True
    )
    mechanisms: tuple[str, ...] = audited_option(
        ("anchored", "renyi:2", "renyi:4", "pathwise"),
        "May be repeated; the others are compared with the first.",
        name="mechanism", metavar="NAME", split=False, common=True,
        unset="anchored, renyi:2, renyi:4, pathwise",
    )  # fmt: skip
    k: tuple[float, ...] = audited_option(
        (0.1, 0.25, 0.5, 1.0, 3.0, 10.0), "Budgets.", metavar="K,...", form=BUDGETS_FORM,
        common=True,
    )  # fmt: skip
    given: int = audited_option(25, "Tokens of each text that are its prompt.", least=1)
    window: int = audited_option(50, "Tokens over which leakage is stated.", least=1)
    limit: int = audited_option(
        16, "Largest number of texts of a kind; 0 for all.", least=0, common=True
    )
    max_new_tokens: int = decoding_option(200, "Most tokens of a text that are followed.")
    prefix_n: int = decoding_option(5, "Prompt tokens that make up the debt; 0 for none.")
    out: Path | None = machine_option(None, "Directory.", unset="frontiers/<hash>", common=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        budgets = _budgets(self.k, "the two models alone are always there")
        object.__setattr__(self, "k", budgets)
        _ = self.built

    @property
    def built(self) -> list[Mechanism]:
        """Returns the mechanisms; raises `InputError` for a wrong name."""
        from nafaudit.mechanisms.registry import SequenceMechanism, mechanism

        found = [mechanism(spec, self.debt_rule) for spec in self.mechanisms]
        if len({one.name for one in found}) < len(found) or not found:
            raise InputError(f"name each mechanism once, got {', '.join(self.mechanisms)}.")
        for spec, one in zip(self.mechanisms, found, strict=True):
            if isinstance(one, SequenceMechanism):
                raise InputError(
                    f"{spec} chooses whole outputs and has no law of a step to follow a text "
                    "with; leave it out, and attack it instead: nafaudit attack --mechanism "
                    f"{spec}."
                )
        return found


@dataclass(frozen=True, kw_only=True)
class AttackSettings(RunSettings):
    """Everything that `nafaudit attack` takes; the names of `nafaudit run` mean the same here.

    Both baselines are always among the budgets, and `single` among the modes.
    """

    unlisted: ClassVar[frozenset[str]] = frozenset({
        *("decoder", "decoder_python", "decoder_timeout", "promise", "prompts", "data", "classes"),
        *("cap", "corpus", "chat_template", "protocol", "variant", "baselines", "delta"),
        *("safe_device", "together", "speculate", "ray", "coupled"),
    })  # fmt: skip

    passages: Path | None = passages_option()
    k: tuple[float, ...] = audited_option(
        (1.0, 5.0, 10.0, 20.0), "Budgets of a query.", metavar="K,...", form=BUDGETS_FORM,
        common=True,
    )  # fmt: skip
    limit: int | None = _attack_option(
        16, "Largest number of passages; 0 for all.", least=0, unit=" (0: all passages)",
        common=True,
    )  # fmt: skip
    given: int = _attack_option(
        25, "Opening tokens that the attacker knows.", least=1, unit=" token", common=True
    )
    modes: tuple[str, ...] = _attack_option(
        MODES, "oracle, chained; single is always there.", metavar="MODE,...", unset="-",
        common=True,
    )  # fmt: skip
    window: tuple[int, ...] = _attack_option(
        (50,), "Tokens that one window query asks for.", least=1, unit=" token",
        metavar="N,...", form="whole numbers",
    )  # fmt: skip
    trajectories: int = _attack_option(
        2, "How often each query is asked.", name="attempts", least=1, common=True
    )
    ablation: bool = _attack_option(True, "Attack without the prefix debt too.")
    target: float = _attack_option(0.1, "Recall whose budget is looked for.", above=0, below=1)
    user_budgets: tuple[float, ...] = _attack_option(
        (100.0, 200.0, 400.0, 800.0, 1600.0), "Total nats of a user.", name="user_budget",
        above=0, unit=" nats", metavar="B,...", form="numbers of nats, for example 100,400",
    )  # fmt: skip
    max_new_tokens: int = decoding_option(200, "Most tokens of a passage that are asked for.")
    out: str | None = machine_option(
        None, "Directory.", unset="runs/attack-<design hash>", common=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.modes:
            if name not in MODES:
                raise InputError(
                    f"unknown mode {name!r}{nearest(name, MODES)} Known: {', '.join(MODES)}."
                )
        if not self.window:
            raise InputError("window must be at least 1 token, got none.")
        if not self.user_budgets:
            raise InputError("user-budget must be above 0 nats, got none.")
        if all(is_baseline(k) for k in self.k):
            raise InputError("an attack needs a budget above 0, for example --k 1,5,10,20.")
        if self.protocol != "sound" or self.decoder is not None:
            raise InputError(
                "an attack decodes with our own engine under the protocol sound; leave out "
                "protocol and decoder."
            )
        object.__setattr__(self, "user_budgets", tuple(sorted(set(self.user_budgets))))
        object.__setattr__(self, "window", tuple(sorted(set(self.window))))

    @property
    def debts(self) -> tuple[bool, ...]:
        """Returns True for attacks with the prefix debt, False for those without it."""
        if not self.prefix_debt:
            return (False,)
        return (True, False) if self.ablation else (True,)
