"""An instruct model through Transformers, asked by its own chat template."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from nafaudit.core.errors import InputError
from nafaudit.models.checkpoints import (
    check_device,
    check_dtype,
    context_of,
    load_model,
    load_tokenizer,
)
from nafaudit.search.instruct.chat import ANSWERED, Answer, Request

_LEAST_ANSWER = 64


class Instruct:
    """One checkpoint; its weights are loaded when it is first asked.

    Args:
        path: Directory or hub id.
        dtype: Precision.
        device: Where it runs.
    """

    def __init__(self, path: str, *, dtype: str = "float32", device: str = "cpu") -> None:
        self._path, self._dtype, self._device = path, dtype, device

    @property
    def name(self) -> str:
        """How reports call it."""
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

    def say(self, request: Request) -> Answer:
        """Draws one answer; the request's seed decides it, and no other generator is moved."""
        given = self._given(request)
        room = context_of(self._path) - given.shape[1]
        if room < _LEAST_ANSWER:
            raise InputError(
                f"a request of {given.shape[1]} tokens leaves {room} of the proposer's context for "
                f"an answer, and {_LEAST_ANSWER} are needed; choose a model with a longer context."
            )
        limit = min(request.tokens, room)
        # Where its weights are is the model's own to say: `auto` is no device.
        given = given.to(self._model.device)
        devices = [given.device] if given.is_cuda else []
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
                pad_token_id=self._pad(),
            )[0, given.shape[1] :]
        # Whoever stops before the limit stopped by a token of his own.
        finish = "length" if len(written) >= limit else "stop"
        text = self._tokenizer.decode(written, skip_special_tokens=True)
        return Answer(ANSWERED, text, finish)

    def _given(self, request: Request) -> torch.Tensor:
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
            # Some templates know no system role; what it says then stands before the question.
            return tokens([{"role": "user", "content": f"{request.system}\n\n{request.user}"}])

    def _pad(self) -> int:
        ids = (self._tokenizer.pad_token_id, self._tokenizer.eos_token_id)
        return next((index for index in ids if index is not None), 0)
