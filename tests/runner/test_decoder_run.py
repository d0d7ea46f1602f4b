from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nafaudit.core.design import identity_hash
from nafaudit.measures.audit import AuditResult
from nafaudit.measures.context import RunContext
from nafaudit.store.artifacts import RULES, read_verification
from nafaudit.store.run import Run
from nafaudit.store.shown import shown_families, shown_laws
from nafaudit.views.figures.style import left_out
from tests.commands import call

DECODERS = Path(__file__).with_name("decoders.py")
BOXES = Path(__file__).with_name("boxes.py")
BROKEN = Path(__file__).parents[1] / "selftest" / "broken.py"
SMALL = ("--pair", "tiny", "--k", "0.5", "--max-new-tokens", "3", "--json", "--quiet")


def _run(tmp_path: Path, name: str, *options: object, out: str = "run") -> tuple[int, Any, str]:
    spec = name if ":" in name else f"{DECODERS}:{name}"
    result = call("run", "--decoder", spec, *SMALL, "--out", out, *options, cwd=tmp_path)
    return result.returncode, json.loads(result.stdout or "null"), result.stderr


def _faults(data: Any) -> dict[str, int]:
    found = [f for f in data["findings"] if f["check"].startswith("decoder: ")]
    return {f["check"].removeprefix("decoder: "): f["value"] for f in found if f["k"] == 0.5}


def test_a_decoder_is_recorded_and_resumed(tmp_path: Path) -> None:
    _, data, _ = _run(tmp_path, "Constant", "--limit", "2")
    assert _faults(data) == {}
    run = Run(tmp_path / "run")
    identity = run.design["identity"]
    assert identity["mechanism"].startswith(f"{DECODERS}:Constant@")
    assert identity["promise"] == "anchored:debt=positives,n=5"
    assert (identity["held_to"], identity["layout"]["requests"]) == ("banked", 2)
    verified = read_verification(run)
    assert verified is not None and verified["current"]
    assert (verified["rules"], verified["promise"]) == (RULES, "banked")
    first = {t.key: t for t in run.trajectories()}
    assert {t.steps.token.tolist()[0] for t in first.values()} == {5}
    assert len(first) == 2 * 2 * 3
    _run(tmp_path, "Constant", "--limit", "3")
    again = {t.key: t for t in Run(tmp_path / "run").trajectories()}
    assert len(again) == 3 * 2 * 3
    assert all(again[key].same_as(record) for key, record in first.items())


def test_a_run_that_an_earlier_version_began_is_not_continued(tmp_path: Path) -> None:
    """Its budgets share their seeds; what differs is named, and nothing is decoded."""
    _run(tmp_path, "Constant", "--limit", "2")
    path = tmp_path / "run" / "design.json"
    design = json.loads(path.read_text())
    del design["identity"]["held_to"], design["identity"]["layout"]["requests"]
    design["hash"] = identity_hash(design["identity"])
    path.write_text(json.dumps(design))
    status, _, error = _run(tmp_path, "Constant", "--limit", "3")
    assert status == 2 and "held_to: None in the run, 'banked' now" in error
    assert "layout.requests: None in the run, 2 now" in error and "Give this run its own" in error


def test_what_a_decoder_is_held_to_stands_in_the_design(tmp_path: Path) -> None:
    _run(tmp_path, "Constant", "--limit", "1", "--promise", "k-naf")
    run = Run(tmp_path / "run")
    assert run.design["identity"]["held_to"] == "k-naf" == RunContext.of(run).held_to
    # Another question than that of the run is answered and not kept.
    asked = call("verify", "run", "--promise", "anchored", "--json", cwd=tmp_path)
    assert json.loads(asked.stdout)["promise"] == "anchored", asked.stderr
    kept = read_verification(run)
    assert kept is not None and kept["promise"] == "k-naf"
    refused = call("verify", "run", "--promise", "renyi", cwd=tmp_path)
    assert refused.returncode == 2 and "banked" in refused.stderr
    mixed = ("--promise", "banked", "--mechanism", "renyi")
    status, _, error = _run(tmp_path, "Constant", *mixed, out="other")
    assert status == 2 and "contradict each other" in error and not (tmp_path / "other").exists()


def test_what_a_decoder_shows_is_kept_for_whoever_verifies(tmp_path: Path) -> None:
    _, data, error = _run(tmp_path, f"{BOXES}:Frank", "--limit", "1")
    assert _faults(data) == {}, error
    run = Run(tmp_path / "run")
    laws = shown_laws(run)
    records = {record.key: record for record in run.trajectories()}
    assert set(laws) == set(records) and len(records) == 6
    assert run.decoder_dtype == "float32" == run.sessions[0]["decoder_dtype"]
    found = read_verification(run)
    assert found is not None and found["deviation"]["charge"]["fail"] == 1e-3
    assert not any("dtype" in note for note in found["notes"])
    for key, record in records.items():
        given = laws[key][np.arange(len(record)), record.steps.token]
        assert laws[key].shape == (len(record), run.vocabulary_size)
        assert np.abs(given - record.steps.served).max() < 1e-5
    assert shown_families(run) == {key: "geometric" for key in records if key.k}
    # The same command again adds nothing, and finds all of it.
    _run(tmp_path, f"{BOXES}:Frank", "--limit", "1")
    assert {key: law.tobytes() for key, law in shown_laws(run).items()} == {
        key: law.tobytes() for key, law in laws.items()
    }


def test_each_fault_is_a_finding_with_its_name_and_the_rest_is_recorded(tmp_path: Path) -> None:
    status, data, error = _run(tmp_path, "Fickle", "--limit", "0")
    assert "Traceback" not in error
    run = Run(tmp_path / "run")
    prompts = [p.tokens[-1] % 5 for p in run.prompts()]
    expected = {
        name: 2 * prompts.count(rest)
        for name, rest in (("raised", 0), ("length", 1), ("token", 2))
        if rest in prompts
    }
    assert expected and _faults(data) == expected
    lost = expected.get("raised", 0) + expected.get("token", 0)
    verdict = next(v for v in data["verdicts"] if v["k"] == 0.5)
    assert verdict["trajectories"] == 2 * len(prompts) - lost
    # Refuted by its tokens or not: what it failed to deliver keeps it from being WITHIN.
    assert (verdict["kept"], status) in (("INCONCLUSIVE", 3), ("REFUTED", 1))


@pytest.mark.full
@pytest.mark.usefixtures("forked_decoders")
def test_an_honest_decoder_that_fails_at_one_budget_is_judged_at_the_others(tmp_path: Path) -> None:
    sizes = ("--k", "0.25", "--limit", "2", "--trajectories", "10")
    status, data, error = _run(tmp_path, f"{BOXES}:Unwilling", *sizes)
    assert status == 3, error
    kept = {v["k"]: (v["kept"], v["trajectories"]) for v in data["verdicts"]}
    assert kept[0.25] == ("INCONCLUSIVE", 0) and kept[0.5] == ("WITHIN", 20)
    found = {(f["k"], f["check"]): f for f in data["findings"]}
    assert found[0.25, "decoder: raised"]["value"] == 20
    assert found[0.25, "same-as-next"]["verdict"] == "UNKNOWN"
    assert found[0, "same-as-next"]["verdict"] == "UNKNOWN"
    assert found[0, "same-as-risky"]["numbers"]["compared"] == 20
    notes = (read_verification(Run(tmp_path / "run")) or {})["notes"]
    assert any(note.startswith("the decoder declares no dtype") for note in notes)
    for command in ("check", "report --figures", "checklist", "compare run"):
        again = call(*command.split(), "run", cwd=tmp_path)
        assert again.returncode in (0, 3), again.stderr
    assert (tmp_path / "run" / "report" / "figures" / "bound-n.svg").is_file()
    assert left_out(AuditResult.of(Run(tmp_path / "run"))) == " (1 of 2 budgets)"


def test_a_hang_is_given_up_in_time(tmp_path: Path) -> None:
    status, data, error = _run(tmp_path, "Sleeper", "--limit", "1", "--decoder-timeout", "1")
    assert status == 3 and "Traceback" not in error
    # The batch, then its first two alone: three hangs, and nobody is asked again.
    assert sum(f.name == "hang" for f in Run(tmp_path / "run").faults()) == 2
    assert _faults(data)["given-up"] >= 1 and "died" not in _faults(data)
    assert [v["trajectories"] for v in data["verdicts"]] == [0, 0, 0]
    # The reason is said with the answer.
    assert "outputs never came (it " in data["why"], data["why"]
    page = (tmp_path / "run" / "report" / "report.md").read_text()
    assert "Nothing could be replayed." in page and "fit the law" not in page


def test_a_death_is_survived(tmp_path: Path) -> None:
    status, data, error = _run(tmp_path, "Mortal", "--limit", "2", "--batch", "2")
    assert status in (1, 3) and "Traceback" not in error
    faults = Run(tmp_path / "run").faults()
    assert any(fault.name == "died" and "status 9" in fault.text for fault in faults)
    assert _faults(data)["died"] >= 1


MEANT = ("--k", "2", "--max-new-tokens", "8", "--trajectories", "5")


@pytest.mark.full
@pytest.mark.usefixtures("forked_decoders")
def test_a_sound_decoder_is_within_by_its_replay(tmp_path: Path) -> None:
    spec = "nafaudit.mechanisms.reference:AnchoredDecoder"
    result = call(
        "run", "--decoder", spec, "--pair", "tiny", *MEANT, "--json", "--out", "run", cwd=tmp_path
    )
    data = json.loads(result.stdout)
    verdict = next(v for v in data["verdicts"] if v["k"] == 2)
    assert verdict["kept"] == "WITHIN" and result.returncode == 0
    assert not [f for f in data["findings"] if f["verdict"] in ("FAILED", "SUSPECT")]
    # The verdict stands in the records: no model is needed to repeat it.
    again = call("check", "run", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["verdicts"] == data["verdicts"]
    # And it does not outlive them.
    truth = tmp_path / "run" / "replayed.parquet"
    truth.write_bytes(truth.read_bytes()[:-1])
    assert "is not what nafaudit verify wrote" in call("check", "run", cwd=tmp_path).stderr
    truth.unlink()
    (tmp_path / "run" / "verify.json").unlink()
    unverified = json.loads(call("check", "run", "--json", cwd=tmp_path).stdout)
    assert {v["kept"] for v in unverified["verdicts"]} == {"INCONCLUSIVE"}


@pytest.mark.full
@pytest.mark.usefixtures("forked_decoders")
@pytest.mark.parametrize(
    ("name", "kept", "check"),
    [
        ("nafaudit.selftest.faults.accounts:NoDebtStated", "VIOLATED", "bookkeeping: debt"),
        (f"{BROKEN}:HalfPrice", "WITHIN", "bookkeeping: charge"),
    ],
)
def test_a_faulty_decoder_is_judged_by_its_replay(
    tmp_path: Path, name: str, kept: str, check: str
) -> None:
    status, data, _ = _run(tmp_path, name, *MEANT)
    verdict = next(v for v in data["verdicts"] if v["k"] == 2)
    assert (verdict["kept"], status) == (kept, int(kept == "VIOLATED"))
    assert check in {f["check"] for f in data["findings"] if f["verdict"] == "SUSPECT"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--decoder", "Unbuildable"), "RuntimeError: no licence"),
        (("--decoder", "NoDecode"), "has no method decode(requests)"),
        (("--decoder", "Nobody"), "AttributeError"),
    ],
)
def test_what_cannot_be_built_is_bad_input(
    tmp_path: Path, options: tuple[str, str], text: str
) -> None:
    status, data, error = _run(tmp_path, options[1])
    assert (status, data) == (2, None)
    assert text in error and "Traceback" not in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--decoder", "anchordecode"), "unknown decoder 'anchordecode'; did you mean"),
        (("--decoder", "anchoreddecode"), "no --decoder-python was given. Build one:"),
        (("--decoder", "anchoreddecode", "--decoder-python", "/no/python"), "no '/no/python'"),
        (("--decoder-python", "/no/python"), "name it with --decoder"),
        (("--decoder", "x:Y", "--decoder-timeout", "0"), "decoder-timeout must be above 0"),
    ],
)
def test_a_wrong_option_is_said_before_a_model_loads(
    tmp_path: Path, options: tuple[str, ...], text: str
) -> None:
    result = call("run", "--pair", "tiny", *options, cwd=tmp_path)
    assert result.returncode == 2 and text in result.stderr


COOLED = ("--temperature", "0.5", "--k", "1", "--max-new-tokens", "8", "--trajectories", "4")
OTHER_COUNT = (
    "12 within the decoder's own count of the debt, over the promised one: it counts the debt from "
    "the models' own laws, before temperature and penalty, the promise from the laws after "
    "temperature and penalty (--debt positives-raw promises its count)"
)


# A sound decoder is called broken by its tokens once in 1000 runs; all seeds are fixed.
@pytest.mark.usefixtures("forked_decoders")
@pytest.mark.parametrize(
    ("name", "debt", "kept", "text"),
    [
        ("OwnLawsDebt", "positives", "VIOLATED", OTHER_COUNT),
        pytest.param(
            *("OwnLawsDebt", "positives-raw", "WITHIN"),
            "12 within the promised budget would be over",
            marks=pytest.mark.full,
        ),
        pytest.param(
            *("OwnLawsDebtAhead", "positives-raw", "VIOLATED"),
            "; 20 overspent under either count of the debt",
            marks=pytest.mark.full,
        ),
        # The debt that it claims is no excuse: it is not the one that it charges.
        pytest.param(
            *("HalfOwnLawsDebt", "positives", "VIOLATED"),
            "overspent under either count of the debt",
            marks=pytest.mark.full,
        ),
    ],
)
def test_overspending_is_told_from_another_count_of_the_debt(
    tmp_path: Path, name: str, debt: str, kept: str, text: str
) -> None:
    status, data, _ = _run(tmp_path, f"{BROKEN}:{name}", *COOLED, "--debt", debt)
    assert Run(tmp_path / "run").design["identity"]["promise"] == f"anchored:debt={debt},n=5"
    assert next(v["kept"] for v in data["verdicts"] if v["k"] == 1) == kept
    said = [f["text"] for f in data["findings"] if f["check"] == "invariant" and f["k"] == 1]
    assert text in said[0]
    assert status == (kept == "VIOLATED")
    if kept == "WITHIN":
        assert not [f for f in data["findings"] if f["verdict"] == "FAILED"]
