from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from nafaudit.core.draws import request_seed, row_stream
from nafaudit.core.errors import InputError
from nafaudit.core.finding import Fault
from nafaudit.core.settings import RunSettings
from nafaudit.core.trajectory import Key, budget_text
from nafaudit.engine.probe import Settled
from nafaudit.engine.prompts import PromptRequest, RowRequest
from nafaudit.engine.proof import numerics_of
from nafaudit.engine.world import PairWorld
from nafaudit.models.pair import load_pair
from nafaudit.protocols import Request
from nafaudit.runner import workbench, worker
from nafaudit.runner.blackbox import BlackBoxDecoder, DecoderError, Launch, Session, launch_of
from nafaudit.runner.executors import BlackBoxExecutor
from nafaudit.runner.workbench import Workbench, WorkbenchSpec
from tests.forks import fork
from tests.kills import was_killed

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


COUNTS = (
    "import sys, json, os, torch\nhello = json.loads(sys.stdin.readline())\n"
    "found = [os.environ.get(n + '_NUM_THREADS') for n in ('OMP', 'MKL', 'OPENBLAS')]\n"
    "print(json.dumps({'ready': {'said': found, 'torch': torch.get_num_threads()}}), flush=True)\n"
)


@pytest.mark.parametrize(
    ("hello", "said", "expected"),
    [
        ({}, None, ["1"] * 3),
        ({"threads": 2}, None, ["2"] * 3),
        # Whoever sets one of them is left alone: the libraries follow it.
        ({"threads": 1}, "2", ["2", None, None]),
    ],
)
def test_a_decoder_takes_as_many_threads_as_our_models_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
    hello: dict[str, int],
    said: str | None,
    expected: list[str | None],
) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    if said is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    launch = Launch((sys.executable, "-I", "-c", COUNTS), {"decoder": "theirs"} | hello, 60.0)
    with Session(launch) as session:
        ready = session.start()
    assert ready["said"] == expected
    assert ready["torch"] == 1 or expected[0] == "2"


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


def test_an_answer_that_nobody_asked_for_is_no_answer() -> None:
    """Two lines for one question: the second must not pass for that to the next."""
    with _session(READY + f"for _ in sys.stdin:\n {ANSWER} {ANSWER}") as session:
        session.start()
        assert session.ask(REQUESTS) == [1, 2]
        deadline = time.monotonic() + 20
        while session._lines.empty() and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(DecoderError, match="without a request") as caught:
            session.ask(REQUESTS)
        assert caught.value.name == "garbled"
        assert session.ask(REQUESTS) == [1, 2]


WORKER = """
import io, os, sys
from nafaudit.runner import worker

class Forker:
    def __init__(self, world): pass
    def decode(self, requests):
        if os.fork() == 0: time.sleep(0.2)
        return []

worker.built = lambda hello: ("decoder", Forker(None), Forker(None))
worker.main()
"""


def test_a_forked_child_of_theirs_does_not_answer_too() -> None:
    program = "import time" + WORKER
    launch = Launch((sys.executable, "-c", program), {"decoder": "theirs"}, 20.0)
    with Session(launch) as session:
        session.start()
        for _ in range(2):
            assert session.ask([]) == []
        assert session._process is not None and session._process.stdin is not None
        session._process.stdin.close()
        assert session._lines.get(timeout=20) is None


def test_a_hanging_decoder_ends_with_a_killed_auditor(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    wait = f"open({str(asked)!r}, 'w').close(); time.sleep(600)"
    hang = "import time" + WORKER.replace("if os.fork() == 0: time.sleep(0.2)", wait)
    started = tmp_path / "started"

    def audit() -> None:
        session = Session(Launch((sys.executable, "-c", hang), {"decoder": "x"}, 600.0))
        session.start()
        assert session._process is not None
        started.write_text(str(session._process.pid))
        session.ask([])

    auditor = fork(audit)
    deadline = time.monotonic() + 30
    while not asked.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(auditor, signal.SIGKILL)
    assert was_killed(auditor)
    child = int(started.read_text())
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(child)


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


ANSWERS = (
    "import sys, json\nsys.stdin.readline()\nprint('{\"ready\": {}}', flush=True)\n"
    "for line in sys.stdin:\n"
    " asked = json.loads(line)['requests']\n"
    " print(json.dumps({'outputs': [{'tokens': [1] * 3} for _ in asked]}), flush=True)\n"
)
NAMES, BUDGETS = [f"p\u00e9{i}" for i in range(6)], [0.0, 0.5, float("inf")]


def _asked(
    names: Sequence[str] = NAMES,
    budgets: Sequence[float] = BUDGETS,
    numbers: Sequence[int] = range(5),
    recorded: Collection[Key] = (),
    seed: int = 0,
    batch: int = 4,
) -> list[Key]:
    """The order in which a decoder is asked."""
    requests = []
    for name in names:
        rows = [
            RowRequest(k, number, row_stream("sound", seed, "audit", name, number))
            for number in numbers
            for k in budgets
            if Key(name, "theirs", k, number) not in recorded
        ]
        requests.append(PromptRequest(name, (1, 2), tuple(rows)))
    hello = {"decoder": "theirs", "size": 9, "stops": []}
    faults: list[Fault] = []
    with Session(Launch((sys.executable, "-I", "-c", ANSWERS), hello, 20.0)) as session:
        box = BlackBoxDecoder(session, "theirs", 3, batch)
        found = [trajectory.key for trajectory in box.decode(requests, faults.append)]
    assert not faults and len(set(found)) == sum(len(request.rows) for request in requests)
    return found


def test_the_order_of_requests_follows_from_seed_and_key_alone() -> None:
    whole = _asked()
    assert _asked(NAMES[::-1], BUDGETS[::-1], range(4, -1, -1), batch=7) == whole
    assert _asked(seed=1) != whole
    recorded = set(random.Random(0).sample(whole, 30))
    rest = [key for key in whole if key not in recorded]
    assert _asked(recorded=recorded) == rest
    few = [key for key in whole if key.prompt in NAMES[2:] and key.k > 0 and key.trajectory < 3]
    assert _asked(NAMES[2:], BUDGETS[1:], range(3)) == few


def test_every_budget_prompt_and_number_has_a_seed_of_its_own() -> None:
    def seeds(run: int = 0) -> list[int]:
        return [
            request_seed(row_stream("sound", run, "audit", name, number), budget_text(k))
            for name in NAMES
            for number in range(5)
            for k in (*BUDGETS, 1.0, 10.0, 0.1)
        ]

    assert seeds() == seeds()
    assert len({*seeds(), *seeds(1)}) == 2 * len(seeds())
    assert all(0 <= seed < 2**63 for seed in seeds())
    # Fixed: a run that is resumed asks as it did before.
    stream = row_stream("sound", 0, "audit", "p", 0)
    assert request_seed(stream, "0.5") == 3235214553735840547


def test_a_decoder_is_asked_with_these_seeds() -> None:
    hello = {"decoder": "theirs", "size": 9, "stops": []}
    stream = row_stream("sound", 0, "audit", "p", 0)
    asked: dict[float, int] = {}

    class Listening(Session):
        def ask(self, requests: Sequence[Request]) -> list[Any]:
            asked.update({request.k: request.seed for request in requests})
            return [{"tokens": [1] * 3} for _ in requests]

    rows = tuple(RowRequest(k, 0, stream) for k in BUDGETS)
    with Listening(Launch(("none",), hello, 20.0)) as session:
        box = BlackBoxDecoder(session, "theirs", 3, 4)
        assert len(list(box.decode([PromptRequest("p", (1, 2), rows)], lambda fault: None))) == 3
    assert asked == {k: request_seed(stream, budget_text(k)) for k in BUDGETS}
    assert len(set(asked.values())) == 3


def test_neighbours_in_the_order_of_requests_are_mixed() -> None:
    """By chance a neighbour has the same prompt 1 time in 6, budget in 3, number in 5."""
    whole = _asked()
    for name, expected in (("prompt", 15), ("k", 30), ("trajectory", 18)):
        alike = sum(getattr(a, name) == getattr(b, name) for a, b in pairwise(whole))
        assert expected / 2 < alike < expected * 1.5, name


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


def test_the_world_behind_a_decoder_has_the_rows_of_the_design(
    tiny_pair_paths: Callable[[str], tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What whole rows have shown is not found out again in the other process: it is told."""
    safe, risky = map(str, tiny_pair_paths("llama"))
    settings = RunSettings(safe=safe, risky=risky, decoder="theirs:Box")
    pair, paths = load_pair(safe, risky), (safe, risky)
    how = numerics_of((pair.safe, pair.risky), 64, depends="a crowd was seen to matter")
    monkeypatch.setattr(workbench, "settle", lambda *_, **__: Settled(how, mock.Mock()))
    session = Session(launch_of(settings, pair, paths, 64))
    monkeypatch.setattr(session, "start", lambda: {"source": "0"})
    with session:
        spec = WorkbenchSpec(settings, paths, 64)
        BlackBoxExecutor(Workbench.load(spec, mock.Mock(), pair=pair), session)
        hello = json.loads(json.dumps(session.launch.hello))
    assert hello["depends"] == "a crowd was seen to matter"
    world = worker.DescribedWorld(hello)._loaded
    assert isinstance(world, PairWorld)
    assert all(reader._how.constant == how.constant for reader in world._readers)
