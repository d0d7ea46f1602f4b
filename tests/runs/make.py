"""Records the stored runs: `python -m tests.runs.make DIRECTORY [NAME...]`.

`c049abe/` and `89722fc/` are named after the commits that recorded them. They stand for runs that
users have: nothing records them again, and no later version may read them in another way.
`89722fc/` has those kinds whose records are laid out otherwise since, or whose command is given
again in the tests. Another commit records its runs with PYTHONPATH set to its sources; c049abe
knows no `verify --plugin`, as it ran the code that a run names.

`expected/` has what the recording commit itself said of its runs. Pages and drawings, which are
made again, are left out; checkpoints have plain names instead of a machine's paths; the vocabulary
of the lab is a link to one file.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
INPUTS = ("workload", "prompts.jsonl", "passages.jsonl", "halfway.py", "../runner/decoders.py")
SIZES = (
    "init_traj=2,med_fid_traj=4,topup_traj=4,final_traj=4,heldout_traj=4,stress_traj=4,"
    "generations=1,calls_per_generation=2,candidates_per_call=2,crossover_calls_per_generation=1,"
    "crossover_candidates_per_call=2,prescreen_keep=4,med_fid_keep=2,topup_keep=1,archive_keep=4,"
    "ablation_no_surrogate=1,ablation_random=1,final_keep=2,heldout_keep=2,stress_keep=1,"
    "surrogate_epochs=1,recheck_keep=1,recheck_traj=4"
)
CLASSES = ("neutral", "val", "test", "attack_train", "factual", "creative")
ALL = "--data workload " + " ".join(f"--cap {name}=4" for name in CLASSES)
FEW = "--prompts prompts.jsonl --max-new-tokens 12"
# In this order: the log of `imported` is what `export` wrote of `paper`.
COMMANDS = {
    "own": f"run {ALL} --k 0.25,3 --max-new-tokens 16 --limit 0",
    "violated": f"run {FEW} --mechanism halfway:HalfAndHalf --k 0.1 --trajectories 4",
    "paper": f"run --protocol paper {ALL} --k 3 --trajectories 2 --max-new-tokens 12",
    "box": f"run {FEW} --decoder decoders:Fickle --k 0.25,3 --trajectories 4",
    "imported": "import log/trajectories_k3_test.jsonl --max-new-tokens 12",
    "sequence": f"run {FEW} --mechanism best-of-n:n=3 --k 0.5 --trajectories 4",
    "search": f"search {FEW} --k 1 --shortest 5 --searches 1 --pool 3 --generations 1 --proposals 6"
    " --screened 3 --draws 8 --survivors 1 --parents 2 --finalists 1 --fresh 6 --heldout 2"
    " --heldout-draws 2",
    "paper-search": f"search --protocol paper {FEW} --k 40 --init attack_train=2,neutral=2"
    f" --heldout-class test --size {SIZES}",
    "attack": "attack --k 5,20 --limit 2 --modes chained --window 30 --attempts 1 --no-ablation"
    " --max-new-tokens 60",
    "certificate": "certify passages.jsonl --k 0.25,3 --max-new-tokens 50",
    "frontier": "frontier --limit 2 --k 0.5,3 --mechanism anchored --mechanism renyi:2"
    " --max-new-tokens 30",
}

# What is kept of a finding; its words may change.
KEYS = ("mechanism", "k", "check", "verdict", "value", "numbers", "witness")
# What is no run itself, but has one inside.
RUN_OF = {"attack": "attack/single"}
RESULTS = ("certificate", "frontier")
# How a run is replayed, if not without options; best-of-n has no law to recompute.
VERIFY = {
    "own": "--sample 48",
    "violated": "--plugin halfway.py --sample 36",
    "paper": "--sample 36",
    "imported": "--pair lab",
    "sequence": None,
}


def record(place: Path, name: str) -> None:
    """Runs the command of one stored run."""
    if name == "imported":
        _nafaudit(place, "export paper --paper --out log")
    _nafaudit(place, f"{COMMANDS[name]} --out {name}" + ("" if name == "imported" else " --quiet"))
    tidy(place / name)


def tidy(run: Path) -> None:
    """Removes what is made again and what belongs to one machine."""
    for path in sorted(run.rglob("*")):
        if path.name == "report" or path.match("paper/paper"):
            shutil.rmtree(path)
        elif path.name == "lock" or path.suffix == ".svg":
            path.unlink()
        elif path.name == "sessions.jsonl":
            sessions = [json.loads(line) for line in path.read_text().splitlines()]
            for session in sessions:
                if session.get("checkpoints"):
                    session["checkpoints"] = ["lab/weights/safe", "lab/weights/risky"]
            path.write_text("".join(json.dumps(s, sort_keys=True) + "\n" for s in sessions))


def link(run: Path) -> None:
    """Makes the vocabulary of the lab a link, wherever it is the shared one."""
    shared = HERE / "vocabulary.json"
    for path in run.rglob("vocabulary.json"):
        if path.read_bytes() == shared.read_bytes():
            path.unlink()
            path.symlink_to(os.path.relpath(shared, path.parent))


def judge(place: Path, name: str) -> dict[str, Any]:
    """Returns what the recording code itself says of a run: its findings and exit statuses."""
    run, answers = RUN_OF.get(name, name), {}
    for verb in ("check", "verify"):
        if (options := VERIFY.get(name, "") if verb == "verify" else "") is None:
            continue
        status, out = _nafaudit(place, f"{verb} {run} --json {options}", capture=True)
        said = json.loads(out)
        keys = KEYS if verb == "check" else KEYS[:4]  # the rest of a replay depends on last bits
        said["findings"] = [{key: one[key] for key in keys} for one in said["findings"]]
        kept = {key: said[key] for key in ("verdicts", "findings") if key in said}
        answers[verb] = {"status": status} | kept
    return answers


def compare(place: Path) -> dict[str, Any]:
    """Returns how the recording code compares two runs, without long lists and sentences."""
    said = json.loads(_nafaudit(place, "compare own paper --json", capture=True)[1])
    left = ("classes", "prompts", "conclusion", "why")
    return {key: value for key, value in said.items() if key not in left}


def _nafaudit(place: Path, words: str, *, capture: bool = False) -> tuple[int, str]:
    program = str(Path(sys.executable).with_name("nafaudit"))
    done = subprocess.run(
        [program, *words.split()],
        cwd=place,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE if capture else None,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1, 3):
        sys.exit(f"nafaudit {words}: exit status {done.returncode}")
    return done.returncode, done.stdout or ""


def main() -> None:
    """Records all stored runs, or those that are named, into a directory."""
    target, *names = sys.argv[1:]
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        for name in INPUTS:
            copy = shutil.copytree if (HERE / name).is_dir() else shutil.copy
            copy(HERE / name, place / Path(name).name)
        for name in names or COMMANDS:
            record(place, name)
            shutil.copytree(place / name, Path(target, name))
            link(Path(target, name))
            if name not in RESULTS:
                keep(Path(target, "expected", f"{name}.json"), judge(place, name))
        if (place / "own").exists() and (place / "paper").exists():
            keep(Path(target, "expected", "compare.json"), compare(place))


def keep(path: Path, answers: dict[str, Any]) -> None:
    """Writes what the recording code said."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(answers, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
