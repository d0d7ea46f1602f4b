"""A language model as a proposer: every way in which a real server on loopback may misbehave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nafaudit.core.errors import InputError, StoreError, UnavailableError
from nafaudit.search import llm_chat
from nafaudit.search.candidate import Candidate, Parent
from nafaudit.search.filters import LengthWindow
from nafaudit.search.llm_answers import (
    COMPLETE,
    INVALID,
    OUTCOMES,
    REFUSED,
    SHORT,
    TRUNCATED,
    Answers,
    read,
)
from nafaudit.search.llm_chat import (
    ANSWER,
    ANSWERED,
    KEY,
    ROW,
    ChatAnswer,
    ChatRequest,
    Endpoint,
    fits,
    key_of,
)
from nafaudit.search.llm_proposer import (
    CROSS,
    MUTATE,
    InstructProposer,
    Manner,
    Proposers,
    calls_of,
    chat_of,
)
from nafaudit.search.operators import OPERATORS
from nafaudit.search.settings import ProposerSpec, SearchBasics
from tests.search.chat_server import MODEL, ChatServer, chat_server, prompts

SECRET = "sk-verysecret-0123456789"
PARENTS = [
    Parent(Candidate(f"p{i}", f"The baker number {i} said that it was late, and left."), 0.1 * i)
    for i in range(5)
]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm_chat, "PAUSE", 0.0)


def proposer(
    server: ChatServer, path: Path, *, attempts: int = 4, key: str = "", timeout: float = 5.0
) -> InstructProposer:
    chat = Endpoint(MODEL, server.url, key, timeout)
    manner = Manner(LengthWindow(), tuple(OPERATORS), attempts)
    return InstructProposer(chat, Answers(path / "answers.jsonl"), 0, manner)


@pytest.mark.parametrize(
    ("moves", "outcomes", "by_model"),
    [
        (["good"], {"complete": 1}, 6),
        (["fenced"], {"complete": 1}, 6),
        (["thinking"], {"complete": 1}, 6),
        (["no-schema"], {"complete": 1}, 6),
        (["short", "good"], {"short": 1, "complete": 1}, 6),
        (["invalid", "empty", "good"], {"invalid": 2, "complete": 1}, 6),
        (["refuse", "refusal-field", "filter"], {"refused": 4}, 0),
        (["torn", "good"], {"truncated": 1, "complete": 1}, 6),
        (["length", "good"], {"truncated": 1, "complete": 1}, 6),
        (["429", "500", "good"], {"busy": 1, "fault": 1, "complete": 1}, 6),
        (["closed", "half", "huge", "good"], {"broken": 3, "complete": 1}, 6),
        (["short"], {"short": 3, "complete": 1}, 6),
        (["500"], {"fault": 4}, 0),
    ],
)
def test_every_answer_is_counted_and_what_is_missing_is_filled(
    moves: list[str], outcomes: dict[str, int], by_model: int, tmp_path: Path
) -> None:
    with chat_server(*moves) as server:
        # Two parents: no crossover, so one call.
        one = proposer(server, tmp_path)
        count = 4 if moves == ["short"] else 6
        made = one.ask(PARENTS[:2], 1, count)
    counted = one.counted[1].to_json()
    assert {name: n for name, n in counted["outcomes"].items() if n} == outcomes
    assert counted["attempts"] == sum(outcomes.values()) <= 4
    assert counted["by_model"] == min(count, by_model)
    assert counted["by_model"] + counted["filled"] == len(made) == counted["asked"] == count
    assert len({one.id for one in made}) == len(made)
    assert all(set(one.parents) <= {"p0", "p1"} and one.parents for one in made)
    assert [one.operator == MUTATE for one in made] == [i < by_model for i in range(count)]


def test_the_papers_calls_show_all_parents_and_fill_nothing(tmp_path: Path) -> None:
    with chat_server("good", "short", "refuse") as server:
        settings = SearchBasics(
            proposer=f"openai:{MODEL}", proposer_url=server.url, proposer_attempts=2
        )
        tellings: list[tuple[int, int, int]] = []
        them = Proposers(settings, chat_of(settings), tmp_path, lambda *one: tellings.append(one))
        made = them.of_call(0, False).ask(PARENTS, 1, 8)
        crossed = them.of_call(0, True).ask(PARENTS[:3], 1, 4)
        assert [question["max_tokens"] for question in server.questions] == [768] * 3
        assert all(one.candidate.text in server.questions[0]["messages"][1]["content"]
                   for one in PARENTS)  # fmt: skip
    assert (len(made), len(crossed)) == (8, 1)
    assert len({one.id for one in (*made, *crossed)}) == len(made) + len(crossed)
    said = them.to_json()
    assert (said["asked"], said["by_model"], said["filled"]) == (12, 9, 0)
    assert [(row["kind"], row["call"]) for row in said["generations"]] == [(MUTATE, 0), (CROSS, 0)]
    assert tellings == [(0, 1, 1)] * 3


def test_a_slow_server_is_given_up_within_its_time(tmp_path: Path) -> None:
    with chat_server("drip") as server:
        one = proposer(server, tmp_path, attempts=2, timeout=0.2)
        made = one.ask(PARENTS[:2], 1, 3)
    assert one.counted[1].outcomes == {"timeout": 2}
    assert len(made) == one.counted[1].filled == 3


def test_answers_are_asked_for_once_over_all_sessions(tmp_path: Path) -> None:
    with chat_server("429", "short", "refuse", "good") as server:
        first = proposer(server, tmp_path)
        made = first.ask(PARENTS, 1, 12)
        asked = len(server.questions)
        assert asked > 3 and first.ask(PARENTS, 1, 12) == made
        again = proposer(server, tmp_path)
        assert again.ask(PARENTS, 1, 12) == made
        assert again.counted == first.counted
        assert len(server.questions) == asked
        # Another generation, or other scores, are other questions.
        assert again.ask(PARENTS, 2, 12) != made
        assert len(server.questions) > asked


def test_the_request_has_the_schema_and_asks_only_for_what_is_missing(tmp_path: Path) -> None:
    with chat_server("short", "good") as server:
        proposer(server, tmp_path).ask(PARENTS[:2], 1, 6)
        first, second = server.questions
    assert first["response_format"]["json_schema"]["schema"] == ANSWER
    assert "exactly 6 entries" in first["messages"][1]["content"]
    assert "exactly 5 entries" in second["messages"][1]["content"]
    assert PARENTS[0].candidate.text in first["messages"][1]["content"]


def test_a_server_without_schemas_is_asked_for_less_and_remembered(tmp_path: Path) -> None:
    with chat_server("no-schema") as server:
        chat = Endpoint(MODEL, server.url)
        assert [chat.say(ChatRequest("s", "exactly 2 entries", 10)).status for _ in range(2)] == [
            ANSWERED,
            ANSWERED,
        ]
        kinds = [one.get("response_format", {}).get("type") for one in server.questions]
    assert kinds == ["json_schema", "json_object", None, None]


@pytest.mark.parametrize(
    ("moves", "models", "says"),
    [
        (["401"], [MODEL], "NAFAUDIT_API_KEY"),
        (["redirect"], [MODEL], "HTTP 307"),
        (["good"], ["another-7b", "tester-8b"], "did you mean 'tester-8b'"),
    ],
)
def test_what_will_not_pass_is_an_error_without_the_key(
    moves: list[str], models: list[str], says: str, tmp_path: Path
) -> None:
    with chat_server(*moves) as server, pytest.raises(UnavailableError) as caught:
        server.models = models
        chat = Endpoint(MODEL, server.url, SECRET)
        chat.check()
        chat.say(ChatRequest("s", "u", 10))
    assert says in str(caught.value)
    assert SECRET not in str(caught.value) + repr(caught.value.__dict__) + repr(vars(chat))
    assert caught.value.__cause__ is None


def test_a_server_without_a_list_of_models_is_taken_at_its_word() -> None:
    with chat_server("good") as server:
        server.models = None
        Endpoint(MODEL, server.url).check()


def test_nobody_there_is_said(tmp_path: Path) -> None:
    with chat_server("good") as server:
        url = server.url
    with pytest.raises(UnavailableError, match="no answer from the proposer's server"):
        Endpoint(MODEL, url).check()


def test_the_key_goes_into_one_header_and_nowhere_else(tmp_path: Path) -> None:
    with chat_server("429", "echo", "500", "echo") as server:
        one = proposer(server, tmp_path, key=SECRET)
        made = one.ask(PARENTS, 1, 12)
        assert set(server.keys) == {f"Bearer {SECRET}"}
        assert not any(SECRET in json.dumps(question) for question in server.questions)
    assert any("[key]" in candidate.text for candidate in made)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"[key]" in written and SECRET.encode() not in written
    assert key_of({KEY: f" {SECRET}\n"}) == SECRET and key_of({}) == ""
    with pytest.raises(InputError, match=KEY) as caught:
        key_of({KEY: "two words\r\nX-Evil: 1"})
    assert "X-Evil" not in str(caught.value)


def test_a_damaged_journal_is_an_error_and_a_torn_line_is_not(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    journal = Answers(path)
    journal.add("a", ChatAnswer(ANSWERED, "one \ud800"))
    journal.add("a", ChatAnswer("busy"))
    whole = path.read_bytes()
    assert Answers(path).of("a") == [ChatAnswer(ANSWERED, "one \ud800"), ChatAnswer("busy")]
    path.write_bytes(whole[:-5])
    assert Answers(path).of("a") == [ChatAnswer(ANSWERED, "one \ud800")]
    path.write_bytes(whole.replace(b"one", b"two"))
    with pytest.raises(StoreError, match=r"answers\.jsonl:1 is not what was written"):
        Answers(path)


def test_76_prompts_are_the_papers_eleven_calls() -> None:
    parents = PARENTS * 5
    calls = calls_of(parents, 76, 0, 1)
    assert [(call.operator, call.count) for call in calls] == [(MUTATE, 8)] * 8 + [(CROSS, 4)] * 3
    assert [len(call.family) for call in calls] == [4, 5, 6, 4, 5, 6, 4, 5, 3, 3, 3]
    assert calls == calls_of(parents, 76, 0, 1) != calls_of(parents, 76, 1, 1)


@given(st.integers(1, 100), st.integers(1, 8))
def test_calls_ask_for_all_that_is_wanted(count: int, parents: int) -> None:
    calls = calls_of(PARENTS[:1] * parents, count, 0, 1)
    assert sum(call.count for call in calls) == count
    assert all(1 <= call.count <= 8 for call in calls)


@settings(max_examples=40)
@given(st.text(max_size=200), st.sampled_from(["stop", "length", ""]), st.integers(1, 4))
def test_any_text_is_judged(text: str, finish: str, wanted: int) -> None:
    found = read(ChatAnswer(ANSWERED, text, finish), wanted)
    assert found.outcome in OUTCOMES and found.outcome != COMPLETE and not found.rows


@given(st.integers(1, 5), st.data())
def test_a_cut_answer_keeps_its_whole_entries(count: int, data: st.DataObject) -> None:
    rows = prompts(0, count)
    text = json.dumps({"candidates": rows})
    cut = data.draw(st.integers(1, len(text) - 1))
    found = read(ChatAnswer(ANSWERED, text[:cut]), count)
    # The slow twin: an entry is whole if its closing brace is there.
    ends = [text.index(json.dumps(row)) + len(json.dumps(row)) for row in rows]
    whole = [row["text"] for row, end in zip(rows, ends, strict=True) if end <= cut]
    assert [row.text for row in found.rows] == whole
    assert found.outcome == (COMPLETE if len(whole) == count else TRUNCATED)


def entry(text: Any, parents: Any = ()) -> dict[str, Any]:
    return {"text": text, "parents": list(parents)}


LONG = "once there was a clock that ran only on Sundays"


@pytest.mark.parametrize(
    ("candidates", "outcome", "rows", "unfit"),
    [
        ([entry(LONG), entry(LONG.upper() + " ")], SHORT, 1, 1),
        ([entry("too few words here")], SHORT, 0, 1),
        ([entry(7), {"text": LONG}, entry(LONG) | {"more": 1}, "x"], SHORT, 0, 4),
        ([entry("I cannot write such prompts, as they might do harm to someone")], REFUSED, 0, 1),
        ([entry(LONG + " \ud800")], SHORT, 0, 1),
        ([entry("word " * 9000)], SHORT, 0, 1),
        ([entry(f"{LONG} number {i} of many others") for i in range(9)], COMPLETE, 2, 0),
        ({}, INVALID, 0, 0),
    ],
)
def test_entries_are_judged_one_by_one(
    candidates: Any, outcome: str, rows: int, unfit: int
) -> None:
    found = read(ChatAnswer(ANSWERED, json.dumps({"candidates": candidates})), 2)
    assert (found.outcome, len(found.rows), found.unfit) == (outcome, rows, unfit)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_the_schema_refuses_other_values(value: Any) -> None:
    assert (not fits(value, ROW) and not fits({"candidates": value}, ANSWER)) or value == []
    assert fits({"candidates": [entry("x", [1])]}, ANSWER)
    assert not fits({"candidates": [entry("x", [True])]}, ANSWER)


@pytest.mark.parametrize(
    ("name", "url", "says"),
    [
        ("locl", None, "did you mean 'local'"),
        ("openai:", "http://a/v1", "name of a model"),
        ("local:x", None, "name of a model"),
        ("openai:m", None, "--proposer-url"),
        ("local", "http://a/v1", "proposer-url"),
        ("transformers:m", "http://a/v1", "proposer-url"),
        ("openai:m", "a/v1", "http://127.0.0.1:8000/v1"),
        ("openai:m", "ftp://a/v1", "http://127.0.0.1:8000/v1"),
        ("openai:m", "http://a:99999/v1", "http://127.0.0.1:8000/v1"),
        ("openai:m", "http://a/v1 x", "http://127.0.0.1:8000/v1"),
    ],
)
def test_wrong_names_are_refused(name: str, url: str | None, says: str) -> None:
    with pytest.raises(InputError) as caught:
        ProposerSpec.parse(name, url)
    assert says in str(caught.value)


@pytest.mark.parametrize("url", ["http://me:{}@a/v1", "https://a/v1?key={}", "http://a/v1#{}"])
def test_an_address_with_a_secret_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InputError, match=KEY) as caught:
        ProposerSpec.parse("openai:m", url.format(SECRET))
    assert SECRET not in str(caught.value)
    spec = ProposerSpec.parse("openai:m", "http://[::1]:8000/v1/chat/completions")
    assert spec.url == "http://[::1]:8000/v1"


def test_a_compressed_answer_is_not_asked_for_and_not_unpacked(tmp_path: Path) -> None:
    with chat_server("zipped") as server:
        one = proposer(server, tmp_path, attempts=1)
        one.ask(PARENTS[:2], 1, 3)
    assert one.counted[1].outcomes == {"broken": 1}
    assert server.encodings == ["identity"]


def test_a_proxy_of_the_environment_is_not_used_for_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "socks5://127.0.0.1:1")
    with chat_server("good") as server:
        assert len(proposer(server, tmp_path).ask(PARENTS[:2], 1, 3)) == 3
    elsewhere = Endpoint(MODEL, "http://models.example/v1")
    with pytest.raises(UnavailableError, match="proxy that cannot be used"):
        elsewhere.check()
