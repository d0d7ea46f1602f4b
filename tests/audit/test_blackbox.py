from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nafaudit.audit.blackbox import DecoderError, Launch, Session
from nafaudit.core.errors import InputError
from nafaudit.mechanisms.doors import Request

REQUESTS = [Request((1, 2), 0.5, seed, 3) for seed in range(2)]
READY = "import sys, json, time, os\nsys.stdin.readline()\nprint('{\"ready\": {}}', flush=True)\n"
ANSWER = "print('{\"outputs\": [1, 2]}', flush=True)\n"


@contextmanager
def _session(program: str, timeout: float = 20.0) -> Iterator[Session]:
    """A decoder in somebody else's hands: any program that speaks the lines."""
    launch = Launch((sys.executable, "-I", "-c", program), {"decoder": "theirs"}, timeout)
    with Session(launch) as session:
        yield session


def test_answers_come_back_until_the_pipe_closes() -> None:
    with _session(READY + f"for _ in sys.stdin: {ANSWER}") as session:
        assert session.start() == {}
        assert session.ask(REQUESTS) == [1, 2] == session.ask(REQUESTS)
        session.close()


@pytest.mark.parametrize(
    ("program", "name", "text"),
    [
        ("sys.stdin.readline(); time.sleep(60)", "hang", "no answer within 1 s"),
        ("sys.stdin.readline(); os._exit(3)", "died", "status 3"),
        ("sys.stdin.readline(); os.kill(os.getpid(), 11)", "died", "SIGSEGV"),
        ("sys.stdin.readline(); 1 / 0", "died", "ZeroDivisionError: division by zero"),
        ("sys.stdin.readline(); print('hello', flush=True)", "garbled", "b'hello"),
        ("sys.stdin.readline(); print('[1]', flush=True)", "garbled", r"b'\[1\]"),
        ("sys.stdin.readline(); print('{\"outputs\": [1]}', flush=True)", "count", "1 outputs"),
        ("sys.stdin.readline(); print('{\"outputs\": 4}', flush=True)", "count", "no outputs"),
    ],
)
def test_whatever_is_not_an_answer_has_a_name(program: str, name: str, text: str) -> None:
    with _session(READY + program, timeout=1.0 if name == "hang" else 20.0) as session:
        session.start()
        with pytest.raises(DecoderError, match=text) as caught:
            session.ask(REQUESTS)
    assert caught.value.name == name


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("sys.stdin.readline(); sys.exit(4)", "status 4"),
        # A broken pipe while it shuts down: Python says so and exits with 120.
        ("sys.stdin.readline(); os.close(1); sys.stdout.write('more')", "status 120"),
    ],
)
def test_an_unclean_end_is_a_fault_of_its_own(program: str, text: str) -> None:
    with _session(READY + f"sys.stdin.readline(); {ANSWER}" + program) as session:
        session.start()
        session.ask(REQUESTS)
        with pytest.raises(DecoderError, match=text) as caught:
            session.close()
    assert caught.value.name == "exit"


def test_after_a_death_it_is_started_again() -> None:
    with _session(READY + f"sys.stdin.readline(); {ANSWER}sys.stdin.readline()") as session:
        session.start()
        session.ask(REQUESTS)
        with pytest.raises(DecoderError):
            session.ask(REQUESTS)
        assert session.ask(REQUESTS) == [1, 2]


def test_its_children_end_with_it() -> None:
    program = READY + (
        "import subprocess\nsys.stdin.readline()\n"
        "child = subprocess.Popen([sys.executable, '-I', '-c', 'import time; time.sleep(60)'])\n"
        "print(json.dumps({'outputs': [child.pid, 0]}), flush=True)\ntime.sleep(60)\n"
    )
    with _session(program) as session:
        session.start()
        child = session.ask(REQUESTS)[0]
    deadline = time.monotonic() + 10
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(child)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_what_cannot_be_started_is_an_input_error() -> None:
    with (
        _session('print(\'{"fault": {"text": "no such class"}}\')') as session,
        pytest.raises(InputError, match="no such class"),
    ):
        session.start()
    with (
        _session("import sys; sys.exit('no torch here')") as session,
        pytest.raises(InputError, match=r"'theirs' could not be started.*no torch here"),
    ):
        session.start()
    launch = Launch(("/nowhere/python",), {"decoder": "theirs"}, 1.0)
    with Session(launch) as session, pytest.raises(InputError, match="--decoder-python"):
        session.start()
