"""The programs of examples/ run as their readers run them; notebooks: tests/test_notebook.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import nafaudit

EXAMPLES = Path(__file__).parents[1] / "examples"


def printed(name: str, where: Path, *words: str, before: str = "") -> str:
    """Runs an example in an empty directory and returns what it printed.

    Args:
        name: Its file.
        where: The directory.
        *words: What is typed after it.
        before: Code that runs before it in the same process.
    """
    path = EXAMPLES / name
    code = f"import runpy, sys; sys.argv = {[name, *words]!r}; {before}\n"
    code += f"runpy.run_path({str(path)!r}, run_name='__main__')"
    typed = ["-c", code] if before else [str(path), *words]
    done = subprocess.run(
        [sys.executable, *typed], cwd=where, capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 100
    return done.stdout


@pytest.mark.full
def test_a_rule_of_one_s_own_keeps_its_allowance_and_another_does_not(tmp_path: Path) -> None:
    shown = printed("own_mechanism.py", tmp_path)
    first, second, found, witness, charged = shown.splitlines()
    assert first.startswith("LargestWeight: WITHIN, ACTIVE: none of 20 trajectories")
    assert second.startswith("AlwaysHalf: VIOLATED")
    assert "trajectories exceed their budget" in found
    keeps, exceeds = (nafaudit.open_run(tmp_path / "runs" / name) for name in ("keeps", "exceeds"))
    assert (keeps.verdict, exceeds.verdict) == ("WITHIN", "VIOLATED")
    # The witness is a step of the record that is charged more than it is allowed.
    words = witness.replace(",", "").replace(":", "").split()
    prompt, index, step = words[2], int(words[4]), int(words[6])
    one = exceeds.trajectory(prompt, 0.1, index).steps
    assert one.charge[step] > one.allowance[step]
    assert charged == f"  allowed {one.allowance[step]:.2f} nats, charged {one.charge[step]:.2f}"


def test_a_log_is_audited_where_torch_cannot_be_imported(tmp_path: Path) -> None:
    absent = "sys.modules |= dict.fromkeys(('torch', 'transformers'))"
    shown = printed("log_without_models.py", tmp_path, before=absent).splitlines()
    assert shown[0] == "VIOLATED: the promise was broken at k = 0.5"
    over = {line.split()[0]: int(line.split()[-1]) for line in shown[3:]}
    assert over == {"poem": 0, "recipe": 0, "review": 0, "song": 1}


def test_a_power_calculation_says_what_the_plan_says(tmp_path: Path) -> None:
    rows = [line.split() for line in printed("power.py", tmp_path, "0.01", "0.001").splitlines()]
    table = {row[0]: row for row in rows if row and row[0].endswith("%") and len(row) == 5}
    needed = nafaudit.plan(k=1.0, seconds=0).needed
    for rate, name in ((0.01, "1.00%"), (0.001, "0.10%")):
        assert int(table[name][1]) == needed[rate]
        made = nafaudit.plan(k=1.0, trajectories=int(table[name][2]), seconds=0)
        assert made.per_budget >= needed[rate] > made.per_budget - made.prompts
        assert float(table[name][4].rstrip("%")) == pytest.approx(
            100 * made.trajectory_rate, abs=5e-4
        )
        assert made.trajectory_rate < rate
