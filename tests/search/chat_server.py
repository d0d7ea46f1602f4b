"""A server that speaks chat completions on loopback, and misbehaves as it is told to."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "tester-7b"
# One word per prompt from each list, so that no two prompts are alike.
_WORDS = [
    ["heron", "baker", "clock", "village", "lamp", "harbour", "bread", "bell", "map", "boat"],
    ["counted", "carried", "painted", "followed", "forgot", "measured", "borrowed", "mended"],
]


def prompts(start: int, count: int) -> list[dict[str, Any]]:
    """So many different prompts; the number decides the words."""
    made = []
    for i in range(start, start + count):
        nouns, verbs = _WORDS
        words = [nouns[(i * 7 + j * 3) % 10] + f" {verbs[(i + j) % 8]} the" for j in range(8)]
        made.append({"text": f"Story {i}: " + " ".join(words) + " end", "parents": [1 + i % 3]})
    return made


class ChatServer(ThreadingHTTPServer):
    """Plays one move of a script per question; after the last, the last again.

    Moves: good, fenced, thinking, short, invalid, empty, refuse, refusal-field, filter, torn,
    length, 429, 500, 401, no-schema, closed, half, drip, huge, zipped, redirect, echo.
    """

    daemon_threads = True

    def __init__(self, moves: Sequence[str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.moves = list(moves)
        self.questions: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.encodings: list[str | None] = []
        self.before: Callable[[int], None] = lambda number: None
        self.after: Callable[[int], None] = lambda number: None
        self.models: list[str] | None = [MODEL]
        # True makes move and prompts follow from the question alone, whenever it is asked.
        self.by_question = False
        self.lock = threading.Lock()
        self.written = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed, or that gave up, is no error of this server."""


class _Handler(BaseHTTPRequestHandler):
    server: ChatServer

    def log_message(self, *args: object) -> None:
        pass

    def _reply(self, status: int, data: Any, **headers: str) -> None:
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _says(self, text: str | None, finish: str = "stop", **more: Any) -> None:
        message = {"role": "assistant", "content": text, **more}
        self._reply(200, {"choices": [{"message": message, "finish_reason": finish}]})

    def do_GET(self) -> None:
        models = self.server.models
        if models is None:
            self._reply(404, {"error": "no such path"})
        else:
            self._reply(200, {"data": [{"id": name} for name in models]})

    def do_POST(self) -> None:
        server = self.server
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            number = len(server.questions)
            server.questions.append(asked)
            server.keys.append(self.headers.get("Authorization"))
            server.encodings.append(self.headers.get("Accept-Encoding"))
            question = asked["messages"][-1]["content"]
            match = re.search(r"exactly (\d+) entries", question)
            count = int(match[1]) if match else 1
            lot, first = number, server.written
            if server.by_question:
                lot = int.from_bytes(hashlib.sha256(question.encode()).digest()[:4], "big")
                first, lot = lot % 100_000, lot % len(server.moves)
            move = server.moves[min(lot, len(server.moves) - 1)]
            rows = prompts(first, count)
            server.written += count
        server.before(number)
        self._play(move, rows)
        server.after(number)

    def _play(self, move: str, rows: list[dict[str, Any]]) -> None:
        good = json.dumps({"candidates": rows})
        key = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        texts: dict[str, tuple[Any, ...]] = {
            "good": (good,),
            "fenced": (f"Here you are:\n```json\n{good}\n```",),
            "thinking": (f"<think>{{so}} many</think>{good}",),
            "short": (json.dumps({"candidates": rows[:1]}),),
            "invalid": ("Prompts! One: a heron. Two: a baker.",),
            "empty": (None,),
            "refuse": ("I'm sorry, but I can't help with that.",),
            "filter": ("", "content_filter"),
            "torn": (good[: good.rindex('"text"') + 20],),
            "length": (good[: len(good) // 2], "length"),
            "echo": (good.replace("end", f"end {key}"),),
        }
        if move in texts:
            self._says(*texts[move])
        elif move == "refusal-field":
            self._says(None, refusal="I will not.")
        elif move in ("429", "500"):
            self._reply(int(move), {"error": {"message": f"no, {key}"}}, Retry_After="0")
        elif move == "401":
            self._reply(401, {"error": {"message": f"wrong key {key}"}})
        elif move == "no-schema":
            form = self.server.questions[-1].get("response_format")
            if form:
                self._reply(400, {"error": f"response_format {form['type']} is not supported"})
            else:
                self._says(good)
        elif move == "redirect":
            self._reply(307, b"", Location=f"{self.server.url}/elsewhere")
        elif move == "zipped":
            body = json.dumps({"choices": [{"message": {"content": good}}]}).encode()
            self._reply(200, gzip.compress(body), Content_Encoding="gzip")
        elif move == "huge":
            self._reply(200, b"x" * 5_000_000)
        else:
            self._break(move, good)

    def _break(self, move: str, good: str) -> None:
        if move in ("half", "drip"):
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            self.wfile.write(good[:20].encode())
        if move == "drip":
            for _ in range(50):
                time.sleep(0.05)
                self.wfile.write(b" ")
                self.wfile.flush()
        self.close_connection = True


@contextmanager
def chat_server(*moves: str) -> Iterator[ChatServer]:
    """Serves in a thread until the block ends."""
    with ChatServer(moves) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
