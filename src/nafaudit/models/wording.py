"""How a prompt's text becomes token ids: as it stands, or as a user's message in a chat."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from nafaudit.core import trust as trusts
from nafaudit.core.errors import InputError
from nafaudit.core.trust import Trust
from nafaudit.models.checkpoints import load_tokenizer

# Llama's templates name the day; a prompt must not depend on when it is read.
_DATE = "26 Jul 2024"


@dataclass(frozen=True)
class Wording:
    """A tokenizer, and the chat template that prompts are put into.

    Attributes:
        tokenizer: Splits text into ids.
        template: Jinja source of the template; empty for prompts as they stand.
    """

    tokenizer: Any
    template: str = ""

    def ids(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt."""
        if not self.template:
            return tuple(self.tokenizer(text)["input_ids"])
        return tuple(
            self.tokenizer.apply_chat_template(
                [{"role": "user", "content": text}],
                chat_template=self.template,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
                date_string=_DATE,
            )
        )

    @property
    def chat(self) -> str:
        """What a design records of the template: the start of its SHA-256, or nothing."""
        return hashlib.sha256(self.template.encode()).hexdigest()[:16] if self.template else ""


def wording(
    safe: str,
    risky: str,
    *,
    chat: bool = False,
    by_risky: bool = False,
    trust: Trust = trusts.NONE,
) -> Wording:
    """Reads the tokenizer of a pair; loads no weights.

    Args:
        safe: The safe checkpoint, whose tokenizer splits prompts as in the paper's code.
        risky: The risky checkpoint, whose template is taken first: it is the one that chats.
        chat: True to put prompts into a template.
        by_risky: True to split prompts by the risky model's tokenizer, as the paper's text says.
        trust: What the checkpoints are permitted.
    """
    tokenizer = load_tokenizer(risky if by_risky else safe, trust)
    if not chat:
        return Wording(tokenizer)
    for place in (risky, safe):
        template = load_tokenizer(place, trust).chat_template
        # Some models have several templates by name.
        found = template.get("default") if isinstance(template, dict) else template
        if found:
            return Wording(tokenizer, str(found))
    raise InputError(
        f"neither {risky} nor {safe} has a chat template, so prompts cannot be put into one; "
        "leave out --chat-template, or take an instruct model."
    )
