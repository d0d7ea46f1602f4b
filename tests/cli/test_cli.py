from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from nafaudit.core.settings import RunSettings
from nafaudit.runner import recording
from nafaudit.store.run import read_journal
from tests.commands import IN_TURN_WITHOUT_TORCH, NAFAUDIT, call
from tests.forks import fork, nafaudit
from tests.kills import kill_at
from tests.store.test_run import spends, spent

Paths = Callable[[str], tuple[Path, Path]]


@pytest.fixture(scope="module")
def options(tiny_pair_paths: Paths, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A small run of a tiny pair, by command-line options."""
    safe, risky = tiny_pair_paths("llama")
    prompts = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    lines = [{"id": f"p{i}", "text": "The baker said " * (i + 1), "class": "c"} for i in range(5)]
    prompts.write_text("\n\n".join(map(json.dumps, lines)))
    sizes = ["--k", "0.5,3", "--trajectories", "4", "--max-new-tokens", "12", "--batch", "8"]
    return ["run", "--safe", str(safe), "--risky", str(risky), "--prompts", str(prompts), *sizes]


@pytest.fixture(scope="module")
def finished(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("finished")
    done = call(*options, "--out", "r", cwd=directory)
    assert done.returncode == 0, done.stderr
    return directory


def findings(directory: Path, run: str = "r") -> tuple[str, str]:
    """What `check --json` prints, and report.json without how the run was made."""
    checked = call("check", run, "--json", cwd=directory).stdout
    report = json.loads((directory / run / "report" / "report.json").read_text())
    assert report.pop("made")["sessions"]
    return checked, json.dumps(report, sort_keys=True)


def decode_in_order(
    options: list[str], directory: Path, prompts: list[dict[str, str]], batch: int
) -> subprocess.CompletedProcess[str]:
    """Decodes these prompts, a few executions each; the last of an option counts."""
    directory.mkdir(exist_ok=True)
    (directory / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    small = ["--prompts", "prompts.jsonl", "--trajectories", "2"]
    return call(*options, *small, "--batch", batch, "--out", "r", "--quiet", cwd=directory)


@pytest.mark.full
def test_a_report_says_the_same_however_its_records_came_about(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other batches, other orders of prompts, a part for each execution, a kill."""
    texts = ["The baker said ", "Once upon a time ", "A river is " * 3, "Nobody knew that "]
    prompts = [
        {"id": f"p {i}", "text": text, "class": "ab"[i % 2], "reference": text * 4}
        for i, text in enumerate(texts)
    ]
    expected = None
    for batch, order in ((32, prompts), (3, prompts[::-1]), (1, prompts[1:] + prompts[:1])):
        done = decode_in_order(options, tmp_path / str(batch), order, batch)
        assert done.returncode == 3, done.stderr
        expected = expected or findings(tmp_path / str(batch))
        assert findings(tmp_path / str(batch)) == expected
    monkeypatch.setattr(recording, "_PART_ROWS", 1)
    killed = tmp_path / "killed"
    kill_at(40, lambda: decode_in_order(options, killed, prompts[::-1], 2))
    assert 3 < len(read_journal(killed / "r" / "journal.jsonl")) < 30
    assert decode_in_order(options, killed, prompts, 3).returncode == 3
    assert findings(killed) == expected
    parts = [
        len(read_journal(tmp_path / name / "r" / "journal.jsonl")) for name in ("32", "killed")
    ]
    assert parts == [1, 32]


def test_help_is_light(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom nafaudit.cli.main import main\nsys.argv = ['nafaudit', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pyarrow', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["nafaudit", "nafaudit.cli.main"])
def test_the_command_runs_as_a_module(module: str, tmp_path: Path) -> None:
    done = call("--version", cwd=tmp_path, code=[sys.executable, "-m", module])
    assert done.stdout.startswith("nafaudit ")


def test_an_endless_value_leaves_the_place_and_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(json.dumps({"id": ["x" * 99] * 999, "text": "t"}))
    done = call("run", "--prompts", "p.jsonl", cwd=tmp_path)
    assert done.returncode == 2 and len(done.stderr) < 4000
    assert "p.jsonl:1: 'id' must be a string" in done.stderr


def test_the_list_of_commands_cuts_no_sentence(tmp_path: Path) -> None:
    for arguments in (["--help"], ["lab", "--help"]):
        listed = call(*arguments, cwd=tmp_path).stdout.split("--help")[1]
        assert "..." not in listed and max(map(len, listed.splitlines())) <= 80
        assert listed.count(".") + listed.count("?") >= 3


def test_help_tells_the_defaults(tmp_path: Path) -> None:
    text = re.sub(r"\s+", " ", call("run", "--help-all", cwd=tmp_path).stdout)
    for name in (
        "pair",
        "mechanism",
        "trajectories",
        "max_new_tokens",
        "seed",
        "threads",
        "device",
        "dtype",
        "prefix_n",
        "debt",
        "temperature",
    ):
        option = name.replace("_", "-")
        default = getattr(RunSettings(), name)
        shown = f"{default:g}" if isinstance(default, float) else default
        assert re.search(rf"--{option} <\w+> (?:(?! --).)*Default: {shown}\.", text), name
    budgets = ",".join(f"{k:g}" for k in RunSettings().k)
    assert f"Default: {budgets}." in text


def test_a_run_prints_a_table_of_every_arm(finished: Path) -> None:
    done = call("check", "r", cwd=finished)
    assert done.returncode == 0
    for arm in ("safe only", "k = 0.5", "k = 3", "risky only"):
        assert arm in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\N{HORIZONTAL ELLIPSIS}" not in done.stdout


def test_json_is_strict_and_has_the_promised_fields(finished: Path) -> None:
    data = json.loads(
        call("check", "r", "--json", cwd=finished).stdout,
        parse_constant=lambda name: pytest.fail(f"{name} is not JSON"),
    )
    assert list(data)[:3] == ["verdict", "why", "exit_status"]
    rest = {"run", "design", "asked", "missing", "verdicts", "classes", "findings"}
    assert set(list(data)[3:]) == rest
    verdict = data["verdicts"][1]
    assert verdict["k"] == 0.5
    assert verdict["kept"] == "WITHIN"
    assert verdict["trajectories"] == 20
    assert set(verdict["utilisation"]) == {"mean", "p95", "max"}
    assert abs(sum(verdict["regime"].values()) - 1) < 1e-9
    assert data["verdicts"][-1]["k"] == "inf"


def test_json_has_every_check_with_its_numbers(finished: Path) -> None:
    data = json.loads(call("check", "r", "--json", cwd=finished).stdout)
    of_one = {f["check"]: f for f in data["findings"] if f["k"] == 0.5}
    assert list(of_one) == [
        "invariant",
        "regime",
        "worth",
        "utilisation",
        "copying",
        "accounting",
        "opening",
        "tails",
        "martingale",
        "burst",
        "duplicates",
        "hygiene",
        "same-as-risky",
        "same-as-next",
        "classes",
    ]
    for name in ("accounting", "opening", "hygiene"):
        assert of_one[name]["verdict"] == "FINE", of_one[name]
    assert of_one["tails"]["numbers"]["max"] == of_one["tails"]["value"]
    assert of_one["same-as-next"]["numbers"]["k"] == 3
    assert of_one["martingale"]["text"] == "5 prompts with L - Z; the test needs 20"


def test_what_is_not_known_for_one_reason_is_said_once(finished: Path) -> None:
    text = re.sub(r"\s+", " ", call("check", "r", cwd=finished).stdout)
    assert text.count("martingale") == 1
    assert "k = 0.5, k = 3: martingale UNKNOWN: 5 prompts with L - Z; the test needs 20" in text
    assert "SUSPECT" not in text


def test_too_few_trajectories_are_inconclusive(options: list[str], tmp_path: Path) -> None:
    done = call(*options, "--trajectories", 1, "--limit", 2, cwd=tmp_path)
    assert done.returncode == 3
    assert "INCONCLUSIVE" in done.stdout
    assert "a verdict needs 20 trajectories" in done.stdout.replace("\n", " ")
    assert "\N{HORIZONTAL ELLIPSIS}" not in done.stdout


def test_an_incomplete_run_says_so(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "r", tmp_path / "r")
    design = json.loads((tmp_path / "r" / "design.json").read_text())
    design["extents"][0]["trajectories"] = 400
    (tmp_path / "r" / "design.json").write_text(json.dumps(design))
    done = call("check", "r", cwd=tmp_path)
    assert done.returncode == 3
    assert "WITHIN" not in done.stdout
    words = " ".join(done.stdout.split())
    assert "incomplete: 7920 of the 8000 trajectories that were asked for are not" in words
    assert "(first: prompt 'p0' k = 0 trajectory 4;" in words
    assert "run the same command again to finish" in words


def test_a_copy_among_the_parts_is_named_and_changes_nothing(
    options: list[str], finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished / "r", tmp_path / "r")
    parts = tmp_path / "r" / "parts"
    shutil.copy(parts / "000001.parquet", parts / "000001 (conflicted copy).parquet")
    checked = call("check", "r", "--json", cwd=tmp_path)
    told = "in the files: parts/000001 (conflicted copy).parquet is no part of this run; not read"
    assert told in checked.stderr
    assert checked.stdout == call("check", "r", "--json", cwd=finished).stdout
    resumed = call(*options, "--out", "r", "--quiet", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr


def test_batch_and_growth_leave_the_findings_alone(
    options: list[str], finished: Path, tmp_path: Path
) -> None:
    """Fewer prompts, fewer budgets, then the whole, each with another batch."""
    for batch, step in ((1, ["--limit", "2"]), (3, ["--k", "3"]), (5, [])):
        more = ["--batch", batch, "--out", "r", "--quiet"]
        done = call(*options, *step, *more, cwd=tmp_path)
        assert done.returncode in (0, 3), done.stderr
    assert findings(tmp_path) == findings(finished)


@pytest.mark.full
@pytest.mark.parametrize("batch", [1, 3])
def test_the_batch_leaves_the_findings_alone(
    batch: int, options: list[str], finished: Path, tmp_path: Path
) -> None:
    done = call(*options, "--batch", batch, "--out", "r", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert findings(tmp_path) == findings(finished)


def test_killed_while_it_holds_work_then_resumed(
    options: list[str], finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several times, all but the first while it resumes; each trajectory is recorded when it ends.

    A query over parts/*.parquet agrees with what is read, as each kill left it and at the end.
    """
    monkeypatch.setattr(recording, "_PART_ROWS", 1)
    same = [*options, "--out", "r", "--batch", "2", "--quiet"]
    for moment in (80, 81, 82, 83):  # six moments a trajectory, a few for the directory
        kill_at(moment, lambda: call(*same, cwd=tmp_path))
        assert 10 < len(read_journal(tmp_path / "r" / "journal.jsonl")) < 70
        assert spends(tmp_path / "r") == spent(tmp_path / "r")
    assert call(*same, cwd=tmp_path).returncode == 0
    assert findings(tmp_path) == findings(finished)
    assert spends(tmp_path / "r") == spent(tmp_path / "r") == spends(finished / "r")
    assert len(spends(tmp_path / "r")) == 80


def test_ctrl_c_records_what_is_finished_and_says_how_to_resume(
    options: list[str], tmp_path: Path
) -> None:
    long = [*options, "--max-new-tokens", "400", "--trajectories", "40", "--out", "r"]

    def work() -> None:
        # A shell starts its background jobs deaf to Ctrl-C, and children inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        nafaudit(*long)()

    journal = tmp_path / "r" / "journal.jsonl"

    def recorded() -> int:
        return sum(json.loads(line)["rows"] for line in journal.read_text().splitlines())

    with Path(os.devnull).open("r+") as nothing, TemporaryFile("w+") as said:
        streams = [one.fileno() for one in (nothing, nothing, said)]
        child = fork(work, cwd=tmp_path, streams=streams)
        deadline = time.monotonic() + 180
        while not journal.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        before = recorded()
        time.sleep(0.2)
        os.kill(child, signal.SIGINT)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        errors = said.read()
    assert status == 130, errors
    assert "The same command resumes" in errors
    assert before <= recorded() < 800


def test_another_tokenization_is_another_run(
    options: list[str], tiny_pair_paths: Paths, tmp_path: Path
) -> None:
    paths = [shutil.copytree(path, tmp_path / path.name) for path in tiny_pair_paths("llama")]
    small = [*options, "--safe", paths[0], "--risky", paths[1], "--limit", 1, "--out", "r"]
    assert call(*small, cwd=tmp_path).returncode == 3
    for path in paths:
        data = json.loads((path / "tokenizer.json").read_text())
        (path / "tokenizer.json").write_text(json.dumps(data | {"post_processor": None}))
    done = call(*small, cwd=tmp_path)
    assert done.returncode == 2
    assert "workload:" in done.stderr


def test_a_reader_that_goes_away_does_not_change_the_verdict(finished: Path) -> None:
    for form in ("", "--json"):
        line = f"{NAFAUDIT[0]} check r {form} | true; exit ${{PIPESTATUS[0]}}"
        assert subprocess.run(["bash", "-c", line], cwd=finished).returncode == 0


def test_a_prompt_that_does_not_fit_is_named_before_a_model_loads(
    options: list[str], tmp_path: Path
) -> None:
    done = call(*options, "--max-new-tokens", 510, cwd=tmp_path)
    assert done.returncode == 2
    assert "prompt 'p4' has" in done.stderr
    assert "context of 512" in done.stderr
    assert not (tmp_path / "runs").exists()
    # Rounding up the width must not refuse what fits.
    assert call(*options, "--max-new-tokens", 440, "--limit", 1, "--k", 1, "--trajectories", 1,
                cwd=tmp_path).returncode == 3  # fmt: skip


def test_an_option_for_logs_does_not_change_a_run_in_silence(finished: Path) -> None:
    done = call("check", "r", "--max-new-tokens", "3", cwd=finished)
    assert done.returncode == 2 and "r is a run" in done.stderr


def test_records_are_checked_without_torch(finished: Path) -> None:
    # In one process; the last command ends it.
    commands = ("check r", "check r --json", "mechanisms", "--help", "run")
    done = call(*commands, cwd=finished, code=[sys.executable, "-c", IN_TURN_WITHOUT_TORCH])
    assert done.returncode == 2
    assert done.stdout.count("status 0\n") == 4
    assert "pip install 'nafaudit[models]'" in done.stderr


BAD = [
    (["--k", "-3"], "k must be at least 0"),
    (["--k", "three"], "k must be numbers"),
    (["--temperature", "0"], "temperature must be above 0"),
    (["--top-p", "0.9"], "top-p = 0.9 is refused: it truncates the law after it was charged"),
    (["--top-k", "50"], "top-k = 50 is refused"),
    (["--greedy"], "point mass"),
    (["--num-beams", "4"], "beam search"),
    (["--trajectories", "0"], "trajectories must be at least 1"),
    (["--mechanism", "anchord"], "did you mean 'anchored'?"),
    (["--mechanism", "nowhere:Rule"], "cannot build mechanism 'nowhere:Rule'"),
    (["--mechanism", "json:JSONDecoder"], "has no method serve"),
    (["--pair", "tinny"], "did you mean 'tiny'?"),
    (["--safe", "x"], "safe and risky belong together"),
    (["--prompts", "none.jsonl"], "none.jsonl: No such file or directory; give a JSON Lines file"),
    (["--prompts", "."], ".: Is a directory; give a JSON Lines file"),
    (["--prompts", "no-text.jsonl"], "no-text.jsonl:2: no 'text'; keys are"),
    (["--prompts", "half.jsonl"], "holds half of a surrogate pair"),
    (["--k", ","], "no budget was given"),
    (["--min-p", "0.1"], "min-p = 0.1 is refused"),
    (["--debt", "mean"], "'positives' or 'official'"),
    (["--device", "cuda:9"], "Try --device cpu"),
    (["--device", "mps"], "device 'mps' has no float64"),
    (["--dtype", "fp32"], "unknown dtype 'fp32'"),
    (["bad.toml"], "unknown key 'temprature'; did you mean 'temperature'?"),
    (["type.toml"], "batch must be int, got 'many'"),
    (["refused.toml"], "top-p = 0.9 is refused"),
    (["nowhere.toml"], "nowhere.toml: No such file or directory; give a TOML file"),
    (["."], ".: Is a directory; give a TOML file"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=lambda value: str(value)[:30])
def test_bad_input_is_refused_in_words(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from nafaudit.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("bad.toml").write_text("temprature = 1.0\n")
    Path("type.toml").write_text("batch = 'many'\n")
    Path("half.jsonl").write_text('{"id": "a", "text": "\\ud800"}')
    Path("no-text.jsonl").write_text('\n{"id": "a"}\n')
    Path("refused.toml").write_text("top-p = 0.9\n")
    monkeypatch.setattr(sys, "argv", ["nafaudit", "run", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_fault_of_ours_is_not_a_violation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from nafaudit.cli import main as module

    def broken(run: Path) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("nafaudit.store.run.Run", broken)
    monkeypatch.setattr(sys, "argv", ["nafaudit", "check", str(tmp_path)])
    with pytest.raises(SystemExit) as exit_:
        module.main()
    assert exit_.value.code == 70
    assert "please report" in capsys.readouterr().err


def test_an_edited_charge_is_a_violation_with_its_witness(finished: Path, tmp_path: Path) -> None:
    """The companion of every WITHIN above: the same command can say VIOLATED."""
    import hashlib

    import numpy as np

    from nafaudit.store import parts
    from nafaudit.store.run import Run

    shutil.copytree(finished / "r", tmp_path / "r")
    run = Run(tmp_path / "r")
    records = list(run.trajectories())
    victim = next(t for t in records if t.key.k == 0.5)
    charge = victim.steps.charge.copy()
    charge[3] += 1.0
    object.__setattr__(victim.steps, "charge", np.asarray(charge))
    content = parts.encode(records)
    (tmp_path / "r" / "parts" / "000001.parquet").write_bytes(content)
    entry = {"part": "000001.parquet", "rows": len(records),
             "sha256": hashlib.sha256(content).hexdigest()}  # fmt: skip
    (tmp_path / "r" / "journal.jsonl").write_text(json.dumps(entry) + "\n")
    done = call("check", "r", cwd=tmp_path)
    assert done.returncode == 1
    assert "VIOLATED" in done.stdout
    assert repr(victim.key.prompt) in done.stdout.replace("\n", " ")


def test_the_readme_mechanism_overspends_and_is_caught(options: list[str], tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert code is not None
    (tmp_path / "mymodule.py").write_text(code[1])
    own = ["--mechanism", "mymodule:HalfAndHalf", "--k", "0.1"]
    done = call(*options, *own, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "VIOLATED" in done.stdout
    assert "exceed their budget" in done.stdout
