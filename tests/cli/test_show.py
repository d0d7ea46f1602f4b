from __future__ import annotations

import json
from pathlib import Path

import pytest

from nafaudit.cli.show import show
from nafaudit.core.design import Decoding, Design, Extent, Identity, ProtocolName
from nafaudit.core.trajectory import Key, Logged, Trajectory
from nafaudit.measures.audit import AuditResult
from nafaudit.store.run import Run, open_for_writing
from nafaudit.workload import Prompt, TokenizedPrompt, workload_hash
from tests.records import trajectory


@pytest.mark.parametrize("place", ["[red]run", "x[", "y[b]z [link=w]", "bell\x07"])
def test_a_hostile_name_is_no_markup_and_no_control(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("[/b]evil\x1b[31m:smile:", "m\u202e2")
    records = [
        trajectory(Key("[red]p", name, 1.0, i), [0.5] * 60, token=[i, *range(59)])
        for name in names
        for i in range(20)
    ]
    run = run_of(tmp_path / place, records, "imported")
    assert show(AuditResult.of(run), as_json=False, source=f"[/y]{place}") == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert not set(text) & {"\x1b", "\x07", "\u202e"}
    assert "[/b]evil\u27e8001B\u27e9[31m" in text and "m\u27e8202E\u27e92 k = 1" in text
    assert f"[/y]{place[:4]}" in text.replace("\n", "")


def run_of(path: Path, records: list[Trajectory], protocol: ProtocolName = "sound") -> Run:
    prompts = [TokenizedPrompt(Prompt("[red]p", "text"), (0, 5))]
    identity = Identity(
        {"safe": "a"},
        "m",
        "banking",
        Decoding(max_new_tokens=60),
        workload_hash(prompts),
        256,
        0,
        protocol=protocol,
    )
    design = Design(identity, Extent((1.0,), len(records), ("[red]p",)))
    with open_for_writing(path, design, prompts, {"tokens": ["a"], "stops": [99]}) as writer:
        writer.append(records)
    return Run(path)


def test_a_copy_gets_its_line_and_the_exit_status_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [
        trajectory(Key("[red]p", "m", 1.0, i), [0.5] * 60, token=[i, *range(59)]) for i in range(20)
    ]
    copy = trajectory(Key("[red]p", "m", 1.0, 20), [0.5] * 60, token=[3, *range(59)])
    run = run_of(tmp_path, [*records, copy])
    assert show(AuditResult.of(run), as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(line.strip() for line in lines)
    assert "k = 1: duplicates SUSPECT: 1 outputs repeat another of their prompt (210" in text
    assert "(prompt '[red]p', trajectory 20, step 0)" in text
    assert "WITHIN" in text
    assert text.count("SUSPECT") == 1


def test_a_log_of_totals_gets_one_line_of_what_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    totals = Logged(spend=5.0, budget=9.0)
    keys = [Key("[red]p", "m", 1.0, i) for i in range(20)]
    run = run_of(tmp_path, [trajectory(key, [], logged=totals) for key in keys])
    show(AuditResult.of(run), as_json=False)
    text = " ".join(capsys.readouterr().out.split())
    said = "UNKNOWN for lack of records: regime, worth, copying, accounting, opening, tails,"
    assert text.count(said) == 1
    assert "--json says what each lacks" in text


def test_json_names_the_witness_of_what_is_suspect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = Key("[red]p", "m", 1.0, 0)
    run = run_of(tmp_path, [trajectory(key, [0.5] * 60, allowance=[9] * 60)])
    show(AuditResult.of(run), as_json=True)
    found = {f["check"]: f for f in json.loads(capsys.readouterr().out)["findings"]}
    assert found["accounting"]["verdict"] == "SUSPECT"
    assert found["accounting"]["numbers"]["allowance_broken"] == 1
    assert found["accounting"]["witness"] == key._asdict() | {"step": 59}
    assert found["utilisation"]["verdict"] == "INFO"
