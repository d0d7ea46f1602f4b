"""Chat models that propose prompts: a server of OpenAI's chat completions, or Transformers.

A server, such as a local vLLM, is asked over plain HTTP. Its key comes from the environment and
goes into one header. It is in no message, no record and no representation of an object; if a server
sends it back, it is removed from the answer.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol
from urllib.parse import urlsplit

import torch

from nafaudit.core.errors import InputError, UnavailableError, nearest
from nafaudit.core.text import visible
from nafaudit.models.checkpoints import (
    check_device,
    check_dtype,
    context_of,
    load_model,
    load_tokenizer,
)

ANSWERED = "answered"
FAILURES = ("busy", "fault", "timeout", "broken")
"""Too many requests (429), a fault of the server (5xx), too slow, cut off."""


@dataclass(frozen=True)
class ChatRequest:
    """One question.

    Attributes:
        system: System message.
        user: User message.
        tokens: Longest answer.
        seed: Used by models that run here; servers get none.
        temperature: The paper's.
        top_p: The paper's.
    """

    system: str
    user: str
    tokens: int
    seed: int = 0
    temperature: float = 1.0
    top_p: float = 0.98

    @property
    def messages(self) -> list[dict[str, str]]:
        """The messages for chat templates and servers."""
        return [
            {"role": "system", "content": self.system},
            {"role": "user", "content": self.user},
        ]


@dataclass(frozen=True)
class ChatAnswer:
    """An answer, or a failure in its place.

    Attributes:
        status: `ANSWERED`, or one of `FAILURES`.
        text: Text of the model.
        finish: Reason of its end, as in chat completions; empty if it is not known.
        refusal: Text of a refusal, where a server has a field for it.
    """

    status: str
    text: str = ""
    finish: str = ""
    refusal: str = ""


class Chat(Protocol):
    """A model that answers questions."""

    @property
    def name(self) -> str:
        """Name in reports; part of the key of an answer in the journal."""
        ...

    def check(self) -> None:
        """Checks what can be checked without a question.

        Raises:
            InputError: It cannot answer; the message says what to do.
        """
        ...

    def say(self, request: ChatRequest) -> ChatAnswer:
        """Asks once. A temporary failure is returned as an answer; a permanent one is raised."""
        ...


ROW: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "parents": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["text", "parents"],
    "additionalProperties": False,
}
ANSWER: dict[str, Any] = {
    "type": "object",
    "properties": {"candidates": {"type": "array", "items": ROW}},
    "required": ["candidates"],
    "additionalProperties": False,
}

_TYPES = {"object": dict, "array": list, "string": str, "integer": int}


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """True if a value has the form of a schema that uses only the keywords above."""
    if not isinstance(value, _TYPES[schema["type"]]) or isinstance(value, bool):
        return False
    if isinstance(value, list):
        return "items" not in schema or all(fits(item, schema["items"]) for item in value)
    if isinstance(value, dict):
        known = schema["properties"]
        return (
            set(schema["required"]) <= set(value) <= set(known)
            and all(fits(value[name], known[name]) for name in value)
        )  # fmt: skip
    return True


KEY = "NAFAUDIT_API_KEY"
LARGEST = 4_000_000
"""Largest number of bytes of an answer."""
PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds after a first failure, doubled after each further one, up to the second."""
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
# Forms of JSON from the strictest on; a server that does not know one is asked for the next.
_FORMS: tuple[Mapping[str, Any], ...] = (
    {
        "type": "json_schema",
        "json_schema": {"name": "prompts", "strict": True, "schema": ANSWER},
    },
    {"type": "json_object"},
    {},
)


def key_of(environment: Mapping[str, str] = os.environ) -> str:
    """Returns the key of the environment, or an empty string.

    Raises:
        InputError: It cannot be sent in a header; its value is not shown.
    """
    key = environment.get(KEY, "").strip()
    if any(not "!" <= char <= "~" or char in '"\\' for char in key):
        raise InputError(
            f"{KEY} must be printable characters without spaces, quotes and backslashes; its value "
            "is not shown here. Set it again, or unset it for a server without keys."
        )
    return key


class Endpoint:
    """One model of one server.

    Args:
        model: Name of the model on the server.
        url: Up to and without /chat/completions.
        key: Sent as a bearer token; none if empty.
        timeout: Seconds that an answer may take, from the first byte sent to the last one read.
        sleep: Waits between attempts.
    """

    def __init__(
        self,
        model: str,
        url: str,
        key: str = "",
        timeout: float = 120.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._model, self._url, self._timeout, self._sleep = model, url, timeout, sleep
        # In a function, so that no representation of this object shows it.
        self._key: Callable[[], str] = lambda: key
        self._form = 0
        self._length, self._nucleus = "max_tokens", True
        self._failures, self._rest_until = 0, 0.0

    @property
    def name(self) -> str:
        """Name in reports; without the address, which may change between sessions."""
        return f"openai:{self._model}"

    def check(self) -> None:
        """Checks the model against the server's list of models, if it has one."""
        try:
            status, body, _ = self._send("/models", None)
        except OSError as error:
            raise UnavailableError(
                f"no answer from the proposer's server at {self._url}: {self._clean(error)}. Start "
                "it, or correct --proposer-url; the same command resumes a search."
            ) from None
        if status in (401, 403):
            raise self._refused(status, body)
        try:
            data = json.loads(body)["data"] if status == 200 else []
            names = [str(one["id"]) for one in data]
        except (ValueError, KeyError, TypeError, RecursionError):
            names = []
        if names and self._model not in names:
            known = ", ".join(map(self._clean, names[:8]))
            raise UnavailableError(
                f"the server at {self._url} has no model {self._model!r}"
                f"{nearest(self._model, names)} It has: {known}."
            )

    def say(self, request: ChatRequest) -> ChatAnswer:
        """Asks once, after a pause if earlier attempts failed.

        Raises:
            UnavailableError: The server refuses: key, model or address are wrong.
        """
        if (pause := self._rest_until - time.monotonic()) > 0:
            self._sleep(pause)
        while True:
            try:
                data: dict[str, Any] = {
                    "model": self._model,
                    "messages": request.messages,
                    "temperature": request.temperature,
                    self._length: request.tokens,
                }
                if self._nucleus:
                    data["top_p"] = request.top_p
                if form := _FORMS[self._form]:
                    data["response_format"] = form
                content = json.dumps(data).encode()
                status, body, headers = self._send("/chat/completions", content)
            except OSError as error:
                return self._failed("timeout" if isinstance(error, TimeoutError) else "broken")
            if status not in (400, 422) or not self._weaken(self._detail(body)):
                break
        if status == 429:
            return self._failed("busy", headers.get("Retry-After"))
        if status >= 500 or status in (408, 409, 425):
            return self._failed("fault", headers.get("Retry-After"))
        if status != 200:
            raise self._refused(status, body)
        try:
            choice = json.loads(body)["choices"][0]
            message = choice["message"]
            parts = [message.get("content"), choice.get("finish_reason"), message.get("refusal")]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            return self._failed("broken")
        if not all(part is None or isinstance(part, str) for part in parts):
            return self._failed("broken")
        self._failures = 0
        return ChatAnswer(ANSWERED, *(self._without_key(part or "") for part in parts))

    def _weaken(self, detail: str) -> bool:
        """Leaves out the option that an error of the server names; False if none is left."""
        if self._length == "max_tokens" and "max_completion_tokens" in detail:
            self._length = "max_completion_tokens"
        elif self._nucleus and "top_p" in detail:
            self._nucleus = False
        elif self._form < len(_FORMS) - 1:
            self._form += 1
        else:
            return False
        return True

    def _send(self, path: str, body: bytes | None) -> tuple[int, bytes, Mapping[str, str]]:
        """Sends one request, within the timeout as a whole and with a bounded answer.

        No redirect is followed: it would carry the key to the server that it names.

        Raises:
            OSError: No whole answer came; a TimeoutError if none came in time.
        """
        try:
            httpx: Any = importlib.import_module("httpx")
        except ImportError as error:
            raise InputError(
                "asking a server needs httpx, which is not installed; pip install "
                "'nafaudit[models]'."
            ) from error
        # A compressed answer may be far larger than the bytes that are read.
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "nafaudit",
            "Accept-Encoding": "identity",
        }
        if self._key():
            headers["Authorization"] = f"Bearer {self._key()}"
        # A proxy of the environment is never used for the loopback.
        outside = urlsplit(self._url).hostname not in _LOOPBACK
        end, content = time.monotonic() + self._timeout, bytearray()
        try:
            with (
                httpx.Client(timeout=self._timeout, trust_env=outside) as client,
                client.stream(
                    "GET" if body is None else "POST",
                    self._url + path,
                    content=body,
                    headers=headers,
                ) as response,
            ):
                for chunk in response.iter_raw():
                    content += chunk
                    if time.monotonic() > end:
                        raise TimeoutError("it took too long")
                    if len(content) > LARGEST:
                        raise OSError(f"an answer of more than {LARGEST} bytes")
                return response.status_code, bytes(content), response.headers
        except httpx.TimeoutException as error:
            raise TimeoutError(str(error)) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise OSError(str(error)) from None
        except ImportError as error:
            raise UnavailableError(
                f"the environment names a proxy that cannot be used: {error} Unset it, or name an "
                "HTTP proxy."
            ) from None

    def _failed(self, status: str, wait: str | None = None) -> ChatAnswer:
        pause = min(LONGEST_PAUSE, PAUSE * 2**self._failures)
        if wait is not None and wait.strip().isdecimal():
            pause = min(2 * LONGEST_PAUSE, float(wait))
        self._failures += 1
        self._rest_until = time.monotonic() + pause
        return ChatAnswer(status)

    def _refused(self, status: int, body: bytes) -> UnavailableError:
        remedy = f"Set {KEY} in the environment" if status in (401, 403) else "Correct --proposer"
        if status in (401, 403) and self._key():
            remedy = f"Correct {KEY} in the environment"
        return UnavailableError(
            f"the server at {self._url} does not answer for {self._model!r}: HTTP {status} "
            f"{self._detail(body)!r}. {remedy} or --proposer-url; the same command resumes."
        )

    def _detail(self, body: bytes) -> str:
        """Returns the error message of a server, shortened."""
        text = body.decode(errors="replace")
        try:
            error = json.loads(text)["error"]
            text = str(error["message"] if isinstance(error, dict) else error)
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        return self._clean(" ".join(text.split()))[:300]

    def _clean(self, said: object) -> str:
        """Returns text of a server without the key and without invisible characters."""
        return visible(self._without_key(str(said)))

    def _without_key(self, text: str) -> str:
        return text.replace(self._key(), "[key]") if self._key() else text


_LEAST_ANSWER = 64


class Instruct:
    """One checkpoint; its weights are loaded when it is first asked.

    Args:
        path: Directory or hub id.
        dtype: Precision.
        device: Device of its weights.
    """

    def __init__(self, path: str, *, dtype: str = "float32", device: str = "cpu") -> None:
        self._path, self._dtype, self._device = path, dtype, device

    @property
    def name(self) -> str:
        """Name in reports."""
        return f"transformers:{self._path}"

    @cached_property
    def _tokenizer(self) -> Any:
        return load_tokenizer(self._path)

    @cached_property
    def _model(self) -> Any:
        return load_model("proposer's", self._path, dtype=self._dtype, device=self._device)

    def check(self) -> None:
        """Reads tokenizer and configuration; loads no weights."""
        check_device(self._device, laws=False)
        check_dtype(self._dtype)
        if not self._tokenizer.chat_template:
            raise InputError(
                f"the proposer {self._path!r} has no chat template, so it is no instruct model; "
                "give one that has, or leave --proposer out for the local operators."
            )
        _ = context_of(self._path)

    def say(self, request: ChatRequest) -> ChatAnswer:
        """Draws one answer with the request's seed; leaves other generators as they are."""
        given = self._token_ids(request)
        room = context_of(self._path) - given.shape[1]
        if room < _LEAST_ANSWER:
            raise InputError(
                f"a request of {given.shape[1]} tokens leaves {room} of the proposer's context for "
                f"an answer, and {_LEAST_ANSWER} are needed; choose a model with a longer context."
            )
        limit = min(request.tokens, room)
        # The device `auto` is resolved by the model.
        given = given.to(self._model.device)
        devices = [given.device] if given.is_cuda else []
        pads = (self._tokenizer.pad_token_id, self._tokenizer.eos_token_id)
        with torch.random.fork_rng(devices=devices), torch.inference_mode():
            torch.manual_seed(request.seed)
            written = self._model.generate(
                given,
                attention_mask=torch.ones_like(given),
                do_sample=True,
                temperature=request.temperature,
                top_p=request.top_p,
                top_k=0,
                max_new_tokens=limit,
                pad_token_id=next((index for index in pads if index is not None), 0),
            )[0, given.shape[1] :]
        # A text shorter than the limit ended with a stop token.
        finish = "length" if len(written) >= limit else "stop"
        text = self._tokenizer.decode(written, skip_special_tokens=True)
        return ChatAnswer(ANSWERED, text, finish)

    def _token_ids(self, request: ChatRequest) -> torch.Tensor:
        from jinja2 import TemplateError

        def tokens(messages: list[dict[str, str]]) -> torch.Tensor:
            made = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
            ids: torch.Tensor = made["input_ids"]
            return ids

        try:
            return tokens(request.messages)
        except TemplateError:
            # Some templates have no system role; its text then precedes the question.
            return tokens([{"role": "user", "content": f"{request.system}\n\n{request.user}"}])
