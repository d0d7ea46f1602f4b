"""Every mechanism through the command line: run, check, verify."""

from __future__ import annotations

import hashlib
import json
import py_compile
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nafaudit.core.design import identity_hash
from nafaudit.mechanisms.cards import CARDS
from tests.commands import call

STEP = {
    "renyi:4": 0,
    "pathwise:cap=3,bank=1": 0,
    "anchored:refill=character,bank=1": 0,
    "cp-delta": 0,
    "cp-delta:kl": 0,
    "cp-fuse": 3,
    "memfree:n=2": 3,
    "tokenswap": 3,
}
CHOOSING = {"best-of-n:8": 0, "blockwise:4": 0, "cp-k:tries=4": 0, "hybrid:n=2": 0}
QUICK = ("pathwise:cap=3,bank=1", "memfree:n=2")
SIZE = ("--pair", "tiny", "--k", "0.5", "--trajectories", "4", "--max-new-tokens", "12")


FEW = (*SIZE, "--limit", "2")


def tiers(specs: dict[str, int]) -> list[object]:
    return [s if s in QUICK else pytest.param(s, marks=pytest.mark.full) for s in specs]


def test_every_mechanism_is_run() -> None:
    names = {spec.partition(":")[0] for spec in (*STEP, *CHOOSING)}
    assert names == {card.name for card in CARDS}


@pytest.mark.parametrize("spec", tiers(STEP))
def test_a_step_level_mechanism_is_run_checked_and_verified(spec: str, tmp_path: Path) -> None:
    done = call("run", *SIZE, "--mechanism", spec, "--out", "r", "--quiet", "--json", cwd=tmp_path)
    assert done.returncode == STEP[spec], done.stderr
    checked = call("check", "r", "--json", cwd=tmp_path)
    assert checked.returncode == STEP[spec]
    arm = next(a for a in json.loads(checked.stdout)["verdicts"] if a["k"] == 0.5)
    assert arm["kept"] == ("INCONCLUSIVE" if STEP[spec] else "WITHIN")
    verified = call("verify", "r", "--quiet", cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout


@pytest.mark.full
@pytest.mark.parametrize("spec", CHOOSING)
def test_a_choosing_mechanism_is_run_and_checked(spec: str, tmp_path: Path) -> None:
    done = call("run", *SIZE, "--mechanism", spec, "--out", "r", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    checked = call("check", "r", cwd=tmp_path)
    assert checked.returncode == 0
    refused = call("verify", "r", cwd=tmp_path)
    assert refused.returncode == 2 and "chooses among whole outputs" in refused.stderr


def test_a_wrong_option_is_said_before_a_model_loads(tmp_path: Path) -> None:
    done = call("run", "--safe", "nowhere", "--risky", "nowhere", "--prompts", "none.jsonl",
                "--mechanism", "renyi:alpah=4", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 2


def test_the_list_fits_a_terminal(tmp_path: Path) -> None:
    shown = call("mechanisms", cwd=tmp_path).stdout
    assert max(map(len, shown.splitlines())) <= 80
    data = json.loads(call("mechanisms", "--json", cwd=tmp_path).stdout)["mechanisms"]
    assert [one["name"] for one in data] == [card.name for card in CARDS]
    assert all(one["promise"]["words"] and one["currency"] for one in data)
    one = call("mechanisms", "renyi", cwd=tmp_path).stdout
    assert one.startswith("renyi\n") and "anchored\n" not in one
    wrong = call("mechanisms", "reny", cwd=tmp_path)
    assert wrong.returncode == 2 and "did you mean 'renyi'" in wrong.stderr


@pytest.mark.full
@pytest.mark.parametrize("spec", ["renyi:4", "pathwise", "anchored:cap=2", "cp-delta", "tokenswap"])
def test_a_mechanism_keeps_the_contract(spec: str, tmp_path: Path) -> None:
    tried = call("conform", spec, cwd=tmp_path)
    assert tried.returncode == 0, tried.stdout


def test_a_mechanism_is_no_decoder(tmp_path: Path) -> None:
    done = call("run", "--pair", "tiny", "--decoder", "renyi:4", cwd=tmp_path)
    assert done.returncode == 2 and "use --mechanism renyi:4" in done.stderr


# A rule whose module tells that it ran.
MARKING = """
from pathlib import Path

from nafaudit.mechanisms.anchored import Anchored

Path({marker!r}).touch()


class Rule(Anchored):
    def serve(self, *given):
        return Anchored.serve(self, *given)
"""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Forgets what a test imported, and from where, as a new process would."""
    path = list(sys.path)
    yield
    _forget(path)


def _forget(path: list[str]) -> None:
    for name in list(sys.modules):
        if name.startswith(("theirs", "kept")):
            del sys.modules[name]
    sys.path[:] = path


def plugged(directory: Path, spec: str, file: str, *options: object) -> Path:
    """A run by a plug-in, and its module, in a directory of somebody's; returns the marker."""
    path, marker = list(sys.path), directory / "it-ran"
    (directory / file).parent.mkdir(parents=True, exist_ok=True)
    (directory / file).write_text(MARKING.format(marker=str(marker)))
    words = (*FEW, "--mechanism", spec, "--out", "r", "--quiet", *options)
    done = call("run", *words, cwd=directory)
    assert done.returncode == 3, done.stderr  # so few are no evidence
    assert marker.exists()
    marker.unlink()
    _forget(path)
    return marker


def renamed(run: Path, mechanism: str, key: str = "mechanism") -> None:
    """Lets a design name another mechanism, with hashes that agree."""
    design = json.loads((run / "design.json").read_text())
    design["identity"][key] = mechanism
    design["hash"] = identity_hash(design["identity"])
    (run / "design.json").write_text(json.dumps(design))


def test_no_command_runs_code_that_a_run_names(tmp_path: Path) -> None:
    """The module lies in the run, which is where the commands are called from."""
    marker = plugged(tmp_path, "theirs:Rule", "theirs.py")
    shutil.copy(tmp_path / "theirs.py", tmp_path / "r")
    (tmp_path / "d.toml").write_text("mechanism = 'theirs:Rule'\nmax_new_tokens = 4\n")
    (tmp_path / "passages.txt").write_text("A passage of some length, for an attack. " * 8)
    read = [
        ("verify", "."),
        ("verify", "../r", "--sample", 1, "--pair", "tiny"),
        ("check", "."),
        ("report", "."),
        ("checklist", "."),
        ("compare", ".", "."),
        ("export", ".", "--out", tmp_path / "log"),
        ("run", *FEW, "--out", "."),
        ("search", "--pair", "tiny", "--out", "."),
        ("attack", tmp_path / "passages.txt", "--pair", "tiny", "--out", ".", "--k", 1),
        ("run", tmp_path / "d.toml", "--pair", "tiny"),
        ("plan", tmp_path / "d.toml", "--pair", "tiny"),
        ("search", tmp_path / "d.toml", "--pair", "tiny"),
    ]
    for command in read:
        done = call(*command, cwd=tmp_path / "r")
        assert not marker.exists(), command
        assert done.returncode != 70, (command, done.stderr)
        if command[0] == "verify":
            assert done.returncode == 2
            assert "'theirs:Rule' of source" in done.stderr and "--plugin FILE" in done.stderr
        if tmp_path / "d.toml" in command:
            assert done.returncode == 2 and "--mechanism theirs:Rule" in done.stderr


@pytest.mark.parametrize("name", ["mechanism", "promise"])
@pytest.mark.parametrize(
    "spec",
    [
        "theirs:Rule@000000000000",
        "theirs:Rule",
        "theirs.py:Rule@000000000000",
        "theirs_too.rule:Rule@000000000000",
        "os:system@000000000000",
        "nafaudit.mechanisms.anchored:Anchored@000000000000",
    ],
)
def test_no_name_in_a_design_is_imported(
    spec: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "it-ran"
    (tmp_path / "theirs_too").mkdir()
    for file in ("theirs.py", "theirs_too/__init__.py", "theirs_too/rule.py"):
        (tmp_path / file).write_text(MARKING.format(marker=str(marker)))
    monkeypatch.syspath_prepend(str(tmp_path))
    done = call("run", *SIZE, "--limit", 1, "--out", "r", "--quiet", cwd=tmp_path)
    assert done.returncode in (0, 3), done.stderr
    renamed(tmp_path / "r", f"{spec}:debt=positives,n=5", name)
    for command in (("verify", "r"), ("verify", "r", "--plugin", "r/design.json")):
        done = call(*command, cwd=tmp_path)
        assert done.returncode == 2 and not marker.exists(), done.stderr


@pytest.mark.parametrize(
    ("spec", "file"),
    [
        ("theirs:Rule", "theirs.py"),
        ("theirs.py:Rule", "theirs.py"),
        ("theirs_too.rule:Rule", "theirs_too/rule.py"),
    ],
)
def test_a_plug_in_is_verified_from_the_file_that_is_given(
    spec: str, file: str, tmp_path: Path
) -> None:
    marker = plugged(tmp_path, spec, file)
    other = tmp_path / "elsewhere"
    other.mkdir()
    decoy = tmp_path / "r" / file
    decoy.parent.mkdir(exist_ok=True)
    decoy.write_text("raise SystemExit('the wrong one ran')\n")
    source = (tmp_path / file).rename(other / "kept.py")
    verified = call("verify", ".", "--plugin", source, "--quiet", cwd=tmp_path / "r")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "the claims are true" in verified.stdout
    assert marker.exists()


def test_a_plug_in_may_import_from_its_package(tmp_path: Path) -> None:
    package = tmp_path / "theirs_too"
    package.mkdir()
    (package / "__init__.py").write_text("from theirs_too.rule import Rule\n")
    (package / "base.py").write_text(MARKING.format(marker=str(tmp_path / "it-ran")))
    source = "from .base import Rule as Base\n\n\nclass Rule(Base):\n    pass"  # no last newline
    (package / "rule.py").write_text(source)
    path = list(sys.path)
    run = ("run", *FEW, "--mechanism", "theirs_too:Rule", "--out", "r", "--quiet")
    assert call(*run, cwd=tmp_path).returncode == 3
    for _ in range(2):  # the second time its module is there already
        done = call("verify", "r", "--plugin", package / "rule.py", "--quiet", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        _forget(path)


def test_a_changed_plug_in_is_refused_before_it_runs(tmp_path: Path) -> None:
    marker = plugged(tmp_path, "theirs:Rule", "theirs.py")
    source = tmp_path / "theirs.py"
    text = source.read_text()
    source.write_text(text + "# changed\n")
    done = call("verify", "r", "--plugin", "theirs.py", cwd=tmp_path)
    assert done.returncode == 2 and not marker.exists()
    hashes = [hashlib.sha256(one.encode()).hexdigest()[:12] for one in (text, text + "# changed\n")]
    assert all(one in done.stderr for one in hashes)
    # Compiled code beside the true source, which Python would take unchecked, is another program.
    changed = tmp_path / "changed.py"
    changed.write_text(f"import os; os.mkdir({str(tmp_path / 'compiled-ran')!r})\n")
    source.write_text(text)
    cached = source.parent / "__pycache__" / f"theirs.{sys.implementation.cache_tag}.pyc"
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(changed), str(cached), invalidation_mode=unchecked)
    done = call("verify", "r", "--plugin", "theirs.py", "--quiet", cwd=tmp_path)
    assert done.returncode == 0 and marker.exists(), done.stderr
    assert not (tmp_path / "compiled-ran").exists()


def test_a_plug_in_that_is_not_wanted_is_named(tmp_path: Path) -> None:
    done = call("run", *SIZE, "--limit", 1, "--out", "r", "--quiet", cwd=tmp_path)
    assert done.returncode in (0, 3), done.stderr
    (tmp_path / "mine.py").write_text("raise SystemExit('it ran')\n")
    done = call("verify", "r", "--plugin", "mine.py", cwd=tmp_path)
    assert done.returncode == 2 and "leave it out" in done.stderr
    done = call("verify", "r", "--plugin", "none.py", cwd=tmp_path)
    assert done.returncode == 2


def test_a_plug_in_of_the_users_own_resumes_and_a_design_may_name_what_is_typed(
    tmp_path: Path,
) -> None:
    marker = plugged(tmp_path, "theirs:Rule", "theirs.py")
    (tmp_path / "d.toml").write_text("mechanism = 'theirs:Rule'\n")
    typed = ("--mechanism", "theirs:Rule", "--out", "r", "--quiet", "--json")
    again = call("run", "d.toml", *FEW, *typed, cwd=tmp_path)
    assert again.returncode == 3 and marker.exists(), again.stderr


@pytest.mark.usefixtures("forked_decoders")
def test_a_black_box_is_held_to_a_plug_in_that_its_user_typed(tmp_path: Path) -> None:
    box = ("--decoder", "nafaudit.mechanisms.reference:AnchoredDecoder")
    marker = plugged(tmp_path, "theirs:Rule", "theirs.py", *box)
    refused = call("verify", "r", cwd=tmp_path)
    assert refused.returncode == 2 and not marker.exists()
    given = call("verify", "r", "--plugin", "theirs.py", "--quiet", cwd=tmp_path)
    assert given.returncode == call("check", "r", cwd=tmp_path).returncode != 2, given.stderr


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("decoder = 'theirs:Rule'", "--decoder theirs:Rule"),
        ("decoder = 'anchoreddecode'\ndecoder-python = './python'", "--decoder-python ./python"),
    ],
)
def test_a_decoder_of_a_design_file_is_typed_too(line: str, option: str, tmp_path: Path) -> None:
    (tmp_path / "d.toml").write_text(f"{line}\n")
    done = call("run", "d.toml", "--pair", "tiny", cwd=tmp_path)
    assert done.returncode == 2 and option in done.stderr


OVER = """
import torch
from nafaudit.protocols import Served


class Rule:
    def serve(self, prefixes, safe, risky, allowance):
        law = torch.logaddexp(safe, risky) - torch.log(torch.tensor(2.0, dtype=torch.float64))
        charge = (law.exp() * (law - safe)).nan_to_num(0.0).sum(-1)
        return Served(law, charge, torch.full_like(charge, float("nan")))
"""


def test_a_replay_that_finds_the_same_excess_refutes_nothing(tmp_path: Path) -> None:
    """The claims are true, and exceed the budget: VIOLATED for every command, with one number."""
    (tmp_path / "theirs.py").write_text(OVER)
    size = (*SIZE, "--mechanism", "theirs.py:Rule", "--out", "r", "--quiet")
    assert call("run", *size, cwd=tmp_path).returncode == 1
    verified = call("verify", "r", "--plugin", "theirs.py", "--quiet", "--json", cwd=tmp_path)
    found = json.loads(verified.stdout)
    assert (verified.returncode, found["verdict"]) == (1, "VIOLATED")
    assert "the claims are true" in found["why"]
    checked = json.loads(call("check", "r", "--json", cwd=tmp_path).stdout)
    assert checked["verdict"] == "VIOLATED" and "refute" not in checked["why"]
    arms = {arm["k"]: arm["kept"] for arm in checked["verdicts"]}
    assert arms == {0.0: "WITHIN", 0.5: "VIOLATED", "inf": "WITHIN"}
    assert not [one for one in checked["findings"] if one["verdict"] == "FAILED"]
    mine = next(f for f in checked["findings"] if f["check"] == "invariant" and f["k"] == 0.5)
    replayed = next(one for one in found["findings"] if one["check"] == "replay: budget")
    count = " ".join(mine["text"].split()[:3])  # as "20 of 20"
    assert replayed["text"].startswith(f"{count} replayed")
    worst = [
        text.split("the worst by ")[1].split(" nats")[0]
        for text in (mine["text"], replayed["text"])
    ]
    assert worst[0] == worst[1]
    assert call("report", "r", cwd=tmp_path).returncode == 1
    page = (tmp_path / "r" / "report" / "report.md").read_text()
    assert "refuted" not in page and "REFUTED" not in page and "sharing nothing" not in page
    assert "the rule itself was asked again" in page
    assert "What was logged is true as far as it was replayed, and it exceeds the budget" in page


@pytest.mark.parametrize("ending", ["sys.exit(0)", "raise SystemExit"])
def test_a_rule_that_ends_the_program_is_no_answer(ending: str, tmp_path: Path) -> None:
    """Exit status 0 would say that the budget was kept."""
    code = f"import sys\n\n\nclass Rule:\n    def serve(self, *given):\n        {ending}\n"
    (tmp_path / "theirs.py").write_text(code)
    done = call("run", *SIZE, "--mechanism", "theirs.py:Rule", "--out", "r", cwd=tmp_path)
    assert done.returncode == 2 and "SystemExit" in done.stderr and not done.stdout
