"""What `--proposer` names, read before anything is loaded or asked."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from nafaudit.core.errors import InputError, nearest

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
