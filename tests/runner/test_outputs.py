from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nafaudit.core.finding import FAULTS, Fault
from nafaudit.core.trajectory import Key
from nafaudit.mechanisms.reference import AnchoredDecoder
from nafaudit.protocols import DECODER_TYPES, STEP_CLAIMS, Output, Request
from nafaudit.runner.outputs import ReadOutput, read_output
from nafaudit.runner.worker import answer, declared_type, plain
from nafaudit.store.shown import log_laws
from tests.mechanisms.tables import TableWorld

KEY = Key("p", "theirs", 0.5, 0)
REQUEST = Request((1, 2), 0.5, 3, 4)
# Two laws over ten ids, as the worker sends them: of mass 10, and of none.
ZEROS = base64.b64encode(bytes(80)).decode()
NANS = base64.b64encode(np.full(20, np.nan, "<f4").tobytes()).decode()


def _read(raw: Any) -> ReadOutput:
    return read_output(raw, KEY, REQUEST, size=10, stops=frozenset({9}))


def _names(reading: ReadOutput) -> list[str]:
    return [fault.name for fault in reading.faults]


@pytest.mark.parametrize(
    ("raw", "names", "kept"),
    [
        ({"tokens": [1, 2, 3, 4]}, [], [1, 2, 3, 4]),
        ({"tokens": [1, 9]}, [], [1, 9]),
        ({"tokens": [1, 9, 9, 2]}, ["after-stop"], [1, 9]),
        ({"tokens": [1, 2, 3, 4, 5]}, ["length"], [1, 2, 3, 4]),
        ({"tokens": [1, 2, 3, 4, 5, 9, 1]}, ["after-stop", "length"], [1, 2, 3, 4]),
        ({"tokens": [1, 2]}, ["short"], [1, 2]),
        ({"tokens": []}, ["empty"], None),
        ({"tokens": [1, 10]}, ["token"], None),
        ({"tokens": [-1]}, ["token"], None),
        ({"tokens": [[1, 2, 3, 4]]}, ["shape"], None),
        ({"tokens": [1.0, 2.0]}, ["shape"], None),
        ({"tokens": [True]}, ["shape"], None),
        ({"tokens": "1234"}, ["shape"], None),
        ({}, ["shape"], None),
        (17, ["shape"], None),
        ({"tokens": [1, 9], "charge": [0.5]}, ["shape"], [1, 9]),
        ({"tokens": [1, 9], "charge": 0.5}, ["shape"], [1, 9]),
        ({"tokens": [1, 9], "charge": ["a", "b"]}, ["shape"], [1, 9]),
        ({"tokens": [1, 9], "charge": [0.5, math.nan]}, ["nan"], [1, 9]),
        ({"tokens": [1, 9], "theta": [math.nan, math.nan]}, [], [1, 9]),
        ({"tokens": [1, 9], "theta": [0.5, math.nan]}, ["nan"], [1, 9]),
        ({"tokens": [1, 9], "allowance": [math.inf, 1e300]}, [], [1, 9]),
        ({"tokens": [1, 9], "served": [1e300, -1e300]}, [], [1, 9]),
        ({"tokens": [1, 9], "debt": math.nan}, ["nan"], [1, 9]),
        ({"tokens": [1, 9], "debt": 10**400}, ["shape"], [1, 9]),
        ({"tokens": [1, 9], "charge": [0, -(10**400)]}, ["shape"], [1, 9]),
        ({"tokens": [1, 9], "spend": [3.0]}, ["shape"], [1, 9]),
        ({"tokens": [1, 9], "law_shape": [2, 9]}, ["shape"], [1, 9]),
        ({"tokens": [1, 9], "law_shape": [2, 10]}, ["shape"], [1, 9]),
        ({"tokens": [1, 9], "law_shape": [2, 10], "laws": "AAAA"}, ["shape"], [1, 9]),
        ({"tokens": [1, 9], "law_shape": [2, 10], "laws": "?" * 108}, ["shape"], [1, 9]),
        ({"tokens": [1, 9], "law_shape": [2, 10], "laws": [0.0] * 20}, ["shape"], [1, 9]),
        ({"tokens": [1, 9], "laws": "AAAA"}, ["shape"], [1, 9]),
        ({"tokens": [1, 9], "law_shape": [2, 10], "laws": ZEROS}, ["law"], [1, 9]),
        ({"tokens": [1, 9], "law_shape": [2, 10], "laws": NANS}, ["law"], [1, 9]),
        ({"tokens": [1, 9], "family": "arithmetic"}, [], [1, 9]),
        ({"tokens": [1, 9], "family": "harmonic"}, ["family"], [1, 9]),
        ({"tokens": [1, 9], "family": ["geometric"]}, ["family"], [1, 9]),
    ],
)
def test_every_fault_of_an_output_has_its_name(
    raw: Any, names: list[str], kept: list[int] | None
) -> None:
    reading = _read(raw)
    assert _names(reading) == names
    assert all(fault.lost == (kept is None) for fault in reading.faults)
    if kept is None:
        assert reading.trajectory is None
    else:
        assert reading.trajectory is not None
        assert reading.trajectory.steps.token.tolist() == kept
        assert reading.trajectory.stopped == (kept[-1] == 9)


def test_claims_are_kept_as_claims_and_silence_is_not_a_number() -> None:
    raw = {"tokens": [1, 9, 1], "charge": [0.1, 0.2, 0.3], "debt": 0.7, "spend": 0.6}
    record = _read(raw).trajectory
    assert record is not None and record.logged is not None
    assert record.steps.charge.tolist() == [0.1, 0.2]
    assert record.debt == 0.7 and record.logged.spend == 0.6 and record.logged.length == 3
    for name in set(STEP_CLAIMS) - {"charge"}:
        assert np.isnan(getattr(record.steps, name)).all()


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-3, 12) | st.floats() | st.text(max_size=2),
        lambda x: st.lists(x, max_size=4),
    ),
    st.sampled_from(["tokens", *STEP_CLAIMS, "debt", "spend", "law_shape", "laws", "family"]),
)
def test_no_answer_of_theirs_is_a_crash_of_ours(value: Any, name: str) -> None:
    reading = _read({"tokens": [1, 9], name: value})
    assert (reading.trajectory is None) == any(fault.lost for fault in reading.faults)


def test_a_shown_law_is_looked_at() -> None:
    world = TableWorld()
    request = Request((0, 3), 0.4, 1, 6)
    output = AnchoredDecoder(world).decode([request])[0]
    safe, _ = world.prefix_laws([3, *output.tokens[:-1]])

    def names(laws: Any, **claims: Any) -> list[str]:
        raw = plain(Output(output.tokens, laws=laws, **claims))
        return _names(read_output(raw, KEY, request, world.size, world.stops))

    assert names(safe) == []
    assert names(torch.from_numpy(safe)) == []
    assert names(safe + 0.1) == ["law"]
    assert names(np.where(safe < 0, np.nan, safe)) == ["law"]
    assert names(safe[:, :4]) == ["shape"]
    assert names(safe[:-1]) == ["shape"]
    assert names(safe[0]) == ["shape"]
    honest = safe[np.arange(len(output.tokens)), output.tokens]
    assert names(safe, served=honest.tolist()) == []
    assert names(safe, served=(honest - 0.1).tolist()) == ["law"]


def test_a_shown_law_is_kept_up_to_the_stop_and_normalised_only_when_it_is_used() -> None:
    laws = np.log(np.full((3, 10), 0.1) + np.eye(3, 10) * 5e-5)
    laws[0, 3:5] = -np.inf, np.log(0.2)
    output = Output([1, 9, 1], laws=laws, theta=[0.1, 0.2, 0.3], family="arithmetic")
    record = _read(plain(output)).trajectory
    assert record is not None and record.shown is not None and record.shown.laws is not None
    assert record.shown.family == "arithmetic"
    assert record.shown.laws.dtype == np.float32
    assert (record.shown.laws == laws[:2].astype(np.float32)).all()
    again = log_laws(record.shown.laws)
    assert np.abs(np.exp(again).sum(axis=1) - 1).max() < 1e-15 and again[0, 3] == -np.inf
    assert record.steps.served.tolist() == laws[[0, 1], [1, 9]].astype(np.float32).tolist()
    assert record.steps.theta.tolist() == np.array([0.1, 0.2], np.float32).tolist()


def test_what_is_no_law_and_what_is_not_shown_is_not_kept() -> None:
    record = _read(plain(Output([1, 9], laws=np.zeros((2, 10))))).trajectory
    assert record is not None and record.shown is None and np.isnan(record.steps.served).all()
    record = _read(plain(Output([1, 9], theta=[0.5, 0.5], family="harmonic"))).trajectory
    assert record is not None and record.shown is None and np.isnan(record.steps.theta).all()
    fault = _read({"tokens": [1, 9], "family": "harmonic"}).faults[0]
    assert "geometric, arithmetic" in fault.text and not fault.lost


class _Typed:
    def __init__(self, dtype: object) -> None:
        self.dtype = dtype


class _Secretive:
    @property
    def dtype(self) -> str:
        raise RuntimeError("not yet")


@pytest.mark.parametrize(
    ("decoder", "declared"),
    [
        *((_Typed(name), name) for name in DECODER_TYPES),
        (_Typed(torch.bfloat16), "bfloat16"),
        (_Typed(np.float32), "float32"),
        (_Typed(np.dtype("float64")), "float64"),
        (_Typed(np.int32), ""),
        (_Typed("auto"), ""),
        (_Typed(None), ""),
        (_Typed([1]), ""),
        (_Secretive(), ""),
        (object(), ""),
    ],
)
def test_the_type_that_a_decoder_declares_is_one_of_four_or_none(
    decoder: object, declared: str
) -> None:
    assert declared_type(decoder) == declared


class _Raises:
    def decode(self, requests: object) -> list[Output]:
        raise KeyError("gone")


class _Exits:
    def decode(self, requests: object) -> list[Output]:
        raise SystemExit(0)


class _Objects:
    def decode(self, requests: object) -> list[Output]:
        return [Output([object()])]  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("decoder", "name", "text"),
    [
        (_Raises(), "raised", "KeyError: 'gone' (test_outputs.py, line"),
        (_Exits(), "raised", "SystemExit"),
        (_Objects(), "shape", "object is neither a number"),
    ],
)
def test_what_their_code_raises_is_theirs(decoder: Any, name: str, text: str) -> None:
    said = answer(decoder, [vars(REQUEST)])["fault"]
    assert said["name"] == name and text in said["text"]


class _Endless:
    def decode(self, requests: Any) -> Any:
        while True:
            yield Output([1, 9])


class _Imaginary:
    def decode(self, requests: Any) -> Any:
        return [Output([1, 9], charge=np.array([1j, 2j]))]  # type: ignore[arg-type]


class _MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [_MuteError(), ValueError("one\n" + "x" * 5000)])
def test_a_message_is_one_short_line_whatever_it_is(error: Exception) -> None:
    class Raises:
        def decode(self, requests: Any) -> Any:
            raise error

    said = answer(Raises(), [vars(REQUEST)])["fault"]
    assert said["name"] == "raised" and len(said["text"]) < 500 and "\n" not in said["text"]


def test_an_answer_without_end_or_beyond_json_is_theirs_too() -> None:
    assert len(answer(_Endless(), [vars(REQUEST)])["outputs"]) == 2
    said = answer(_Imaginary(), [vars(REQUEST)])["fault"]
    assert said["name"] == "shape" and "complex" in said["text"]


def test_whoever_shows_a_law_claims_what_it_gives_the_token() -> None:
    shown = plain(Output([1, 9], laws=np.full((2, 10), -math.log(10))))
    record = _read(shown).trajectory
    assert record is not None
    assert record.steps.served.tolist() == pytest.approx([-math.log(10)] * 2)


def test_arrays_of_any_kind_are_outputs() -> None:
    kinds: tuple[Any, ...] = (np.array([1, 9]), torch.tensor([1, 9]), (1, np.int64(9)))
    for tokens in kinds:
        assert plain(Output(tokens))["tokens"] == [1, 9]


def test_every_fault_says_what_it_means() -> None:
    assert all(text and not text.endswith(".") for text in FAULTS.values())
    with pytest.raises(ValueError, match="unknown fault"):
        Fault("bad luck", "")
