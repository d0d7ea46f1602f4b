"""Objects in the place of names: rules, decoders, models, prompts; how they are recorded."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import nafaudit
from tests import forks
from tests.commands import call

SMALL: dict[str, Any] = {"k": 0.1, "trajectories": 2, "max_new_tokens": 6}
PROMPTS = ["Once upon a time", "there was a girl"]
WARNS = "ignore:a verdict needs:nafaudit.NafauditWarning"
pytestmark = pytest.mark.filterwarnings(WARNS)


class Half:
    """The average of both laws, whatever is allowed."""

    weight = 0.5

    def serve(
        self,
        prefixes: Sequence[Sequence[int]],
        safe: torch.Tensor,
        risky: torch.Tensor,
        allowance: torch.Tensor,
    ) -> nafaudit.Served:
        law = torch.logaddexp(safe + np.log(1 - self.weight), risky + np.log(self.weight))
        charge = (law.exp() * (law - safe)).nan_to_num(0.0).sum(-1)
        return nafaudit.Served(law, charge, torch.full_like(charge, float("nan")))


class Weighted(Half):
    """The same with a weight of its own."""

    def __init__(self, weight: float = 0.5) -> None:
        self.weight = weight


class SafeModel:
    """A black box that serves the safe model alone."""

    def __init__(self, world: nafaudit.World) -> None:
        self.world = world

    def decode(self, requests: Sequence[nafaudit.Request]) -> list[nafaudit.Output]:
        outputs = []
        for request in requests:
            draw = np.random.default_rng(request.seed)
            tokens: list[int] = []
            while len(tokens) < request.max_new_tokens:
                safe, _ = self.world.laws([(*request.prompt, *tokens)])
                tokens.append(int(draw.choice(self.world.size, p=np.exp(safe[0]))))
                if tokens[-1] in self.world.stops:
                    break
            outputs.append(nafaudit.Output(tokens))
        return outputs


@pytest.fixture(scope="module")
def pair() -> nafaudit.Pair:
    return nafaudit.load_pair("tiny")


@pytest.fixture(scope="module")
def models(pair: nafaudit.Pair) -> nafaudit.Pair:
    """The same two models, given as objects."""
    return nafaudit.load_pair(safe=pair.safe, risky=pair.risky, tokenizer=pair.tokenizer)


def test_a_rule_of_a_module_is_recorded_as_the_command_line_does(
    pair: nafaudit.Pair, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"id": f"prompt:{n + 1}", "text": text} for n, text in enumerate(PROMPTS)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = nafaudit.audit(pair, mechanism=Half(), prompts=PROMPTS, out=tmp_path / "a", **SMALL)
    assert found.remarks == ()
    typed = ("--k", "0.1", "--trajectories", "2", "--max-new-tokens", "6", "--prompts", prompts)
    done = call("run", "--pair", "tiny", "--mechanism", f"{__name__}:Half", *typed,
                "--out", tmp_path / "b", cwd=Path.cwd())  # fmt: skip
    assert done.returncode == found.exit_status == 1
    theirs = nafaudit.open_run(tmp_path / "b")
    assert theirs.run.design["identity"] == found.run.design["identity"]
    assert theirs.steps().to_pandas().equals(found.steps().to_pandas())
    with pytest.raises(nafaudit.InputError, match="give it with --plugin FILE"):
        nafaudit.verify(found)
    assert nafaudit.verify(found, plugin=__file__).verdict == "VIOLATED"
    assert nafaudit.verify(found, mechanism=Half()).verdict == "VIOLATED"
    with pytest.raises(nafaudit.InputError, match="and mechanism is Weighted; give the class"):
        nafaudit.verify(found, mechanism=Weighted)


@pytest.mark.full
def test_a_class_of_a_script_is_known_by_its_source(tmp_path: Path) -> None:
    """The run names the script as a file; elsewhere, and as a module, it is the same source."""
    script = textwrap.dedent(SESSION).format(factor="2").partition("print(run")[0]
    (tmp_path / "own.py").write_text(script.replace("run = ", "if __name__ == '__main__': run = "))
    (tmp_path / "sub").mkdir()
    subprocess.run([sys.executable, "own.py"], cwd=tmp_path, check=True)
    code = """if True:
        import sys; sys.path.insert(0, "..")
        import nafaudit, own
        print(nafaudit.verify("../r2", mechanism=own.Half).verdict)
        print(nafaudit.verify("../r2", mechanism=own.Half()).verdict)
        open("own.py", "w").write(open("../own.py").read() + "# edited")
        sys.path.insert(0, "."); del sys.modules["own"]; import own
        try:
            nafaudit.verify("../r2", mechanism=own.Half)
        except nafaudit.InputError as error:
            print(error)
        """
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "sub", check=True,
                          capture_output=True, text=True)  # fmt: skip
    first, second, refusal = done.stdout.strip().splitlines()
    assert first == second != "REFUTED"
    assert "the run was made by 'own.py:Half@" in refusal and "here it is" in refusal


def test_an_object_with_a_state_is_recorded_as_one_that_no_name_makes(
    pair: nafaudit.Pair, tmp_path: Path
) -> None:
    def run(weight: float) -> nafaudit.Audit:
        rule, out = Weighted(weight), tmp_path / f"w{weight}"
        return nafaudit.audit(pair, mechanism=rule, prompts=PROMPTS, out=out, **SMALL)

    same = run(0.5)
    assert same.verdicts[1].mechanism.startswith(f"{__name__}:Weighted@")
    with pytest.warns(nafaudit.NafauditWarning, match=r"differs from what Weighted\(\) makes"):
        found = run(0.3)
    name = found.verdicts[1].mechanism
    assert name.startswith("object:Weighted@")
    with pytest.raises(nafaudit.InputError, match="given in Python and that no name makes again"):
        nafaudit.verify(found)
    refused = call("verify", found.path, cwd=tmp_path)
    assert refused.returncode == 2
    assert "no name makes again" in refused.stderr
    assert nafaudit.verify(found, mechanism=Weighted(0.3)).verdict == "VIOLATED"
    with pytest.raises(nafaudit.InputError, match=f"made by '{name}'; here it is"):
        nafaudit.verify(found, mechanism=Weighted(0.4))
    # Another state is another design: it does not resume this run.
    with pytest.raises(nafaudit.InputError, match="holds another run; it differs in\n  mechanism"):
        nafaudit.audit(pair, mechanism=Weighted(0.4), prompts=PROMPTS, out=found.path, **SMALL)


SESSION = """
    import torch, nafaudit
    def twice(x):
        return x * {factor}
    class Half:
        def serve(self, prefixes, safe, risky, allowance):
            law = torch.log_softmax(torch.logaddexp(safe, risky) * twice(0.5), -1)
            charge = (law.exp() * (law - safe)).sum(-1)
            return nafaudit.Served(law, charge, torch.full_like(charge, float("nan")))
    run = nafaudit.audit("tiny", mechanism=Half, prompts=["Once upon a time"], k=0.1,
                         max_new_tokens=4, trajectories=1, out="r{factor}")
    print(run.verdicts[1].mechanism)
    try:
        nafaudit.verify(run)
    except nafaudit.InputError as error:
        print(error)
    print(nafaudit.verify(run, mechanism=Half()).verdict)
"""


def _forked(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """What a fresh interpreter does with its standard input, without the time of its imports."""

    def work() -> None:
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(code, "<stdin>", "exec"), vars(main))

    return forks.run(work, cwd)


def _fresh(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True,
                          cwd=cwd)  # fmt: skip


@pytest.mark.parametrize(
    ("interpreter", "sessions"),
    [
        (_forked, (("2.5", "2.0"),)),
        pytest.param(_fresh, (("2.0",), ("2.5", "2.0")), marks=pytest.mark.full),
    ],
)
def test_a_class_of_a_session_is_known_by_its_code(
    tmp_path: Path, interpreter: Callable[..., Any], sessions: tuple[tuple[str, ...], ...]
) -> None:
    """As in a notebook: no file, so code it is; an edited helper is another mechanism."""
    names = []
    for factors in sessions:
        code = "".join(textwrap.dedent(SESSION).format(factor=factor) for factor in factors)
        done = interpreter(code, tmp_path)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.strip().splitlines()
        for name, refusal, verdict in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
            assert name.startswith("object:Half@")
            assert "its class was in no file" in refusal
            assert verdict in ("VIOLATED", "FINE")
            names.append(name)
        assert "cannot be made again from a name, as its class is in no file" in done.stderr
    assert names[-1] != names[-2] and set(names) == set(names[-2:])


def test_loaded_models_are_known_by_their_state(models: nafaudit.Pair, tmp_path: Path) -> None:
    with pytest.warns(nafaudit.NafauditWarning, match="the models are objects of this process"):
        found = nafaudit.audit(models, prompts=PROMPTS, out=tmp_path / "a", **SMALL)
    recorded = found.run.design["identity"]["pair"]
    assert recorded["safe"].startswith("state:")
    with pytest.raises(nafaudit.InputError, match="models that were objects of a Python process"):
        nafaudit.verify(found)
    assert nafaudit.verify(found, models).verdict == "FINE"
    # Saved and loaded, they are the same models: the command line can verify the run.
    places = []
    for role in ("safe", "risky"):
        places.append(tmp_path / role)
        getattr(models, role).save_pretrained(places[-1])
        models.tokenizer.save_pretrained(places[-1])
    done = call("verify", found.path, "--safe", places[0], "--risky", places[1], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with pytest.raises(nafaudit.InputError, match="they differ in"):
        nafaudit.verify(found, (str(places[1]), str(places[0])))


def test_the_state_s_hash_sees_every_number(models: nafaudit.Pair) -> None:
    from copy import deepcopy

    from nafaudit.models.checkpoints import state_hash

    before, copy = state_hash(models.safe), deepcopy(models.safe)
    assert state_hash(copy) == before
    with torch.no_grad():
        weight = copy.get_input_embeddings().weight
        weight[-1, -1] = torch.nextafter(weight[-1, -1], torch.tensor(9.0))
    assert state_hash(copy) != before
    other = deepcopy(models.safe)
    other.config.rms_norm_eps = 0.5
    assert state_hash(other) != before
    assert state_hash(deepcopy(models.safe).to(torch.float64)) != before


def test_the_same_records_from_a_loaded_pair_and_from_objects(
    pair: nafaudit.Pair, models: nafaudit.Pair, tmp_path: Path
) -> None:
    named = nafaudit.audit("tiny", prompts=PROMPTS, out=tmp_path / "a", **SMALL)
    loaded = nafaudit.audit(pair, prompts=PROMPTS, out=tmp_path / "b", **SMALL)
    assert loaded.run.design == named.run.design
    with pytest.warns(nafaudit.NafauditWarning):
        given = nafaudit.audit(models, prompts=PROMPTS, out=tmp_path / "c", **SMALL)
    assert named.steps().to_pandas().equals(loaded.steps().to_pandas())
    assert named.steps().to_pandas().equals(given.steps().to_pandas())


def test_a_decoder_of_a_module_has_a_process_of_its_own(
    pair: nafaudit.Pair, tmp_path: Path
) -> None:
    how = {"prompts": PROMPTS, "prefix_debt": False, **SMALL}
    found = nafaudit.audit(pair, decoder=SafeModel, out=tmp_path / "a", **how)
    assert found.remarks == ()
    assert found.verdicts[1].mechanism.startswith(f"{__name__}:SafeModel@")

    # One that is an object runs here, and writes the same tokens.
    class Local(SafeModel):
        pass

    with pytest.warns(nafaudit.NafauditWarning, match="The decoder runs in this process"):
        here = nafaudit.audit(pair, decoder=Local, out=tmp_path / "b", **how)
    assert here.verdicts[1].mechanism.startswith("object:Local@")
    ours, theirs = (one.steps().to_pandas() for one in (here, found))
    keys = ["prompt", "k", "trajectory", "step"]
    assert ours.sort_values(keys).token.tolist() == theirs.sort_values(keys).token.tolist()
    assert nafaudit.verify(here).exit_status == here.exit_status


@pytest.mark.full
def test_a_rule_and_a_decoder_conform_as_objects() -> None:
    with pytest.warns(nafaudit.NafauditWarning, match="differs from what Weighted"):
        found = nafaudit.conform(Weighted(0.25))
    assert found.verdict == "BROKEN"
    assert {one.name for one in found.items} >= {"charges", "budget"}


def test_prompts_may_be_any_table() -> None:
    import pyarrow

    rows: list[dict[str, Any]] = [{"id": "a", "text": "once", "class": "x", "reference": "upon"},
            {"id": "b", "text": "twice", "class": "y", "reference": None}]  # fmt: skip
    expected = nafaudit.read_prompts(rows).prompts
    assert [(p.id, p.text, p.label, p.reference) for p in expected] == [
        ("a", "once", "x", "upon"), ("b", "twice", "y", "")]  # fmt: skip
    for given in (pd.DataFrame(rows), pl.DataFrame(rows), pyarrow.Table.from_pylist(rows),
                  tuple(rows), expected, iter(rows)):  # fmt: skip
        assert nafaudit.read_prompts(given).prompts == expected
    named = pd.DataFrame({"body": ["once"], "n": [7], "kind": ["x"]})
    found = nafaudit.read_prompts(named, text="body", id="n", label="kind", header="> ").prompts
    assert [(p.id, p.text, p.label) for p in found] == [("7", "> once", "x")]
    assert [p.id for p in nafaudit.read_prompts(["a", "b"]).prompts] == ["prompt:1", "prompt:2"]


def test_prompts_may_be_a_dataset_of_hugging_face(pair: nafaudit.Pair, tmp_path: Path) -> None:
    """The real package: every format that it gives rows in, streams, a column, splits."""
    rows: list[dict[str, Any]] = [{"id": "a", "text": "once", "class": "x", "reference": "upon"},
            {"id": "b", "text": "twice", "class": "y", "reference": None}]  # fmt: skip
    expected = nafaudit.read_prompts(rows).prompts
    given = datasets.Dataset.from_list(rows)
    formats = (None, "python", "numpy", "torch", "arrow", "pandas", "polars")
    shapes = [given.with_format(name) for name in formats]
    for one in (*shapes, given.select([0, 1]), given.to_iterable_dataset()):
        found = nafaudit.read_prompts(one).prompts
        assert found == expected
        assert {type(text) for p in found for text in (p.id, p.text, p.label)} == {str}
    assert [p.text for p in nafaudit.read_prompts(given["text"]).prompts] == ["once", "twice"]
    for wrong, said in (
        (datasets.DatasetDict({"train": given}), r"a DatasetDict with 'train'.*dataset\['train'\]"),
        (given.select([]), "there are none"),
        (given.rename_column("text", "body"), "no 'text'; keys are .* it has 'id', 'body'"),
    ):
        with pytest.raises(nafaudit.InputError, match=said):
            nafaudit.read_prompts(wrong)
    ours = nafaudit.audit(pair, prompts=given, out=tmp_path / "a", **SMALL)
    listed = nafaudit.audit(pair, prompts=rows, out=tmp_path / "b", **SMALL)
    assert ours.run.design == listed.run.design
    assert ours.steps().equals(listed.steps())
    passages = datasets.Dataset.from_dict({"text": ["Once upon a time there was a girl."]})
    certified, listed_too = (
        nafaudit.certify(p, k=1, quiet=True) for p in (passages, passages.to_list())
    )
    assert certified.to_json() == listed_too.to_json()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mechanism": 3}, "mechanism must be a name, or an object with serve"),
        ({"mechanism": object()}, "got <class 'object'>"),
        ({"mechanism": "anchord"}, "did you mean 'anchored'"),
        ({"decoder": 4}, "decoder must be a name, or an object with decode"),
        ({"prompts": 5}, "prompts must be a file, a list of strings"),
        ({"prompts": [1]}, r"prompts\[0\] is an int"),
        ({"prompts": []}, "there are none"),
        ({"prompts": {"train": [1]}}, r"give one: dataset\['train'\]"),
        ({"prompts": [{"txt": "x"}]}, "no 'text'; keys are"),
        ({"prompts": [{"text": 3}]}, "'text' must be a string, got 3"),
        ({"prompts": ["a", "a"], "data": "d"}, "both name a workload"),
        ({"prompts": "Once upon a time"}, r"list: prompts=\['Once upon a time'\]"),
        ({"pair": ("a",)}, "a tuple of 1, and two are needed"),
        ({"pair": 3}, "a pair must be a registered name"),
        ({"pair": (object(), object())}, r"load_pair\(safe=model"),
        ({"pair": "tinny"}, "did you mean 'tiny'"),
        ({"max_new_token": 4}, "did you mean 'max_new_tokens'"),
        ({"top_p": 0.9}, "is refused"),
        ({"k": "x"}, "k must be a number or a list of numbers"),
        ({"mechanism": Half(), "ray": "local"}, "workers of a Ray cluster cannot see them"),
    ],
)
def test_a_wrong_object_gets_a_sentence(
    given: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nafaudit.models.pair.load_model", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(nafaudit.InputError, match=said):
        nafaudit.audit(**{"pair": "tiny", "out": tmp_path / "a", **given})
    assert not (tmp_path / "a").exists()


def test_a_wrong_pair_gets_a_sentence(pair: nafaudit.Pair) -> None:
    for given, said in (
        ({"safe": pair.safe}, "safe and risky belong together"),
        ({"safe": pair.safe, "risky": pair.risky}, "need the tokenizer of both, and none"),
        (
            {"safe": pair.safe, "risky": 3, "tokenizer": pair.tokenizer},
            "risky is 3, which is neither",
        ),
        (
            {"safe": pair.safe.model, "risky": pair.risky, "tokenizer": pair.tokenizer},
            "safe is a LlamaModel, a model without a head",
        ),
        ({"tokenizer": pair.tokenizer}, "a tokenizer is given with two loaded models"),
        ({"dtyp": "float32"}, "did you mean 'dtype'"),
    ):
        with pytest.raises(nafaudit.InputError, match=said):
            nafaudit.load_pair(**given)
    with pytest.raises(nafaudit.InputError, match="not that of the loaded pair, float32"):
        nafaudit.audit(pair, dtype="bfloat16")
