"""The Python API: what is public, what it returns, and that it is what the command line does."""

from __future__ import annotations

import doctest
import inspect
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import nafaudit
from nafaudit.cli.output import after_audit
from nafaudit.cli.schema import schema_for
from tests.commands import call
from tests.runs import make
from tests.test_frozen import NEW, stored

OWN = make.HERE / "89722fc" / "own"
SMALL: dict[str, Any] = {"k": [0.25, 1], "trajectories": 4, "max_new_tokens": 8}
TYPED = ("--k", "0.25,1", "--trajectories", "4", "--max-new-tokens", "8")


def test_importing_it_loads_next_to_nothing() -> None:
    """Counted in modules: seconds depend on the machine."""
    code = (
        "import sys; import nafaudit; nafaudit.__version__; dir(nafaudit);"
        "ours = [n for n in sys.modules if n.split('.')[0] == 'nafaudit'];"
        "others = {n.split('.')[0] for n in sys.modules} - set(sys.stdlib_module_names);"
        "print(len(ours), sorted(n for n in others if n[0] != '_' and n != 'nafaudit'))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; "
                           + code], capture_output=True, text=True, check=True)  # fmt: skip
    count, others = done.stdout.split(maxsplit=1)
    assert int(count) <= 4
    assert others.strip() == "[]"


def test_records_are_read_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import nafaudit;"
        f"run = nafaudit.open_run({str(OWN)!r});"
        "print(run.verdict, run.measures().num_rows, run.steps().num_rows > 0,"
        f"nafaudit.compare(run, {str(OWN)!r}).exit_status, nafaudit.check({str(OWN)!r}).verdict)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == done.stdout.split()[-1]


def test_what_is_public(snapshot: Any) -> None:
    """A change here is a change for users: CONTRIBUTING says how a name goes."""
    lines = []
    for name in sorted(nafaudit.__all__):
        found = getattr(nafaudit, name)
        if inspect.isfunction(found):
            lines.append(f"{name}{_written(inspect.signature(found))}")
        elif name in ("Audit", "Result"):
            lines.append(f"class {name}")
            for one, value in sorted(inspect.getmembers(found)):
                if one[0] != "_":
                    takes = _written(inspect.signature(value)) if callable(value) else ""
                    lines.append(f"    {one}{takes}")
        else:
            lines.append(f"{type(found).__name__} {name}" if name != "__version__" else name)
    snapshot("public-names", "\n".join(lines))


def _written(signature: inspect.Signature) -> str:
    """A signature without its types, whose text differs between versions of Python."""
    kept = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=kept, return_annotation=inspect.Signature.empty))


def test_every_public_name_is_there_and_documented() -> None:
    for name in nafaudit.__all__:
        found = getattr(nafaudit, name)
        assert name == "__version__" or inspect.getdoc(found), name
        assert name in str(nafaudit.__doc__) or name in ("__version__", "Pair"), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = nafaudit.nothing  # type: ignore[attr-defined]


def test_functions_that_share_their_name_with_a_room_stay_functions() -> None:
    import nafaudit.search.settings
    import nafaudit.selftest.run

    assert inspect.isfunction(nafaudit.search)
    assert inspect.isfunction(nafaudit.selftest)
    assert nafaudit.search.__module__ == "nafaudit.api"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> nafaudit.Audit:
    return nafaudit.audit("tiny", out=tmp_path_factory.mktemp("run") / "a", **SMALL)


def test_an_audit_is_the_command_s(run: nafaudit.Audit, tmp_path: Path) -> None:
    """Same settings, same records, same JSON: only the names of directories differ."""
    done = call("run", "--pair", "tiny", *TYPED, "--out", "b", "--json", cwd=tmp_path)
    typed = json.loads(done.stdout)
    ours = json.loads(json.dumps(run.to_json()))
    assert ours.pop("run") == str(run.path)
    assert Path(ours.pop("report")) == run.path / "report" / "index.html"
    typed.pop("run"), typed.pop("report")
    assert ours == typed
    assert run.exit_status == done.returncode
    theirs = nafaudit.open_run(tmp_path / "b")
    assert theirs.run.design["hash"] == run.run.design["hash"]
    assert theirs.steps().equals(run.steps())
    checked = call("check", tmp_path / "b", cwd=tmp_path).stdout.splitlines()
    assert str(theirs).splitlines() == checked[: len(str(theirs).splitlines())]


def test_a_run_of_the_two_models_alone_has_a_page(tmp_path: Path) -> None:
    for n, k in enumerate((0, -1, [math.inf], [0, math.inf])):
        alone = nafaudit.audit("tiny", **SMALL | {"k": k}, out=tmp_path / str(n))
        assert (alone.verdict, alone.exit_status) == ("INCONCLUSIVE", 3)
        assert alone.page is not None
        assert "<p>No budget was run: only the two models" in alone.page.read_text()


def test_the_next_step_counts_the_prompts_that_were_run(tmp_path: Path) -> None:
    few: dict[str, Any] = {"trajectories": 1, "limit": 2, "k": 0.5, "max_new_tokens": 2}
    found = nafaudit.audit("tiny", out=tmp_path / "a", quiet=True, **few)
    assert len(found.result.prompts) > 2
    assert after_audit(found).startswith("the same run with --trajectories 10:")


def test_what_an_audit_knows(run: nafaudit.Audit) -> None:
    assert run.verdict == run.result.overall.verdict
    assert run.why == run.overall.why
    assert [v.k for v in run.verdicts] == [0.0, 0.25, 1.0, float("inf")]
    assert {one.arm.k for one in run.findings if one.arm} == {0.0, 0.25, 1.0, float("inf")}
    rows, steps = run.measures(), run.steps()
    assert rows.num_rows == 4 * 5 * 4
    assert steps.num_rows == sum(rows["length"].to_pylist())
    first = {name: rows[name][0].as_py() for name in ("prompt", "k", "trajectory")}
    one = run.trajectory(first["prompt"], first["k"], first["trajectory"])
    assert one.spend == rows["spend"][0].as_py()
    assert len(one) == rows["length"][0].as_py()
    assert repr(run.verdicts[1]).startswith("ArmVerdict(k=0.25, kept=")
    # Attributes of the result are there too.
    assert run.missing is None
    assert "missing" in dir(run)


def test_no_text_in_a_repr(run: nafaudit.Audit) -> None:
    texts = [item.prompt.text for item in run.run.prompts()]
    shown = repr(run) + str(run) + run._repr_html_() + repr(run.verdicts) + repr(run.findings)
    assert not [text for text in texts if text in shown]
    assert run.verdict in repr(run)
    assert "<table>" in run._repr_html_()


def test_hostile_names_are_harmless_in_a_notebook(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>"
    prompts = [{"id": f"{bad}{n}", "text": text, "class": f"{bad}{n}"}
               for n, text in enumerate(("once upon a time", "the end"))]  # fmt: skip
    with pytest.warns(nafaudit.NafauditWarning, match="a verdict needs 20"):
        found = nafaudit.audit("tiny", prompts=prompts, out=tmp_path / "a", **SMALL)
    html = found._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script>" not in html


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("nowhere", 1, 0), "There is no prompt 'nowhere'"),
        (("tiny:0", 7, 0), "Of 'tiny:0' there are K = 0, 0.25, 1, inf"),
        (("tiny:0", 1, 99), "trajectories up to 3"),
    ],
)
def test_a_trajectory_that_is_not_there(
    run: nafaudit.Audit, asked: tuple[str, float, int], said: str
) -> None:
    with pytest.raises(nafaudit.InputError, match=said):
        run.trajectory(*asked)


def test_every_result_is_shown_and_written(run: nafaudit.Audit, tmp_path: Path) -> None:
    """verdict, exit_status, to_json and _repr_html_ of what needs no long work."""
    results: list[nafaudit.Result[Any]] = [
        run,
        run.compare(run),
        nafaudit.verify(run, sample=2),
        nafaudit.plan("tiny", seconds=0.0, **SMALL),
        nafaudit.certify(["Once upon a time there was a girl."], k=1),
    ]
    for one in results:
        assert one.exit_status in (0, 1, 3)
        assert one.verdict in repr(one)
        json.dumps(one.to_json(), allow_nan=False)
        assert one._repr_html_().startswith('<div class="nafaudit">')
        assert "girl" not in one._repr_html_() + repr(one)
        assert str(one)


def test_a_frontier_is_the_command_s(tmp_path: Path) -> None:
    found = nafaudit.frontier(k=1, limit=2, mechanism="anchored", quiet=True)
    done = call("frontier", "--k", "1", "--limit", "2", "--mechanism", "anchored", "--json",
                "--quiet", "--out", tmp_path / "f", cwd=tmp_path)  # fmt: skip
    typed = json.loads(done.stdout)
    assert typed.pop("frontier") == str(tmp_path / "f")
    ours = json.loads(json.dumps(found.to_json()))
    assert ours.pop("frontier", None) is None
    assert ours == typed
    assert found.exit_status == done.returncode


TALES = [
    {"id": f"p{n}", "text": text, "class": label, "reference": "a red fox sat by the sea"}
    for n, (text, label) in enumerate(
        (("Once upon a time there was", "attack_train"), ("the king had sons", "attack_train"),
         ("in a small house by the", "neutral"), ("a girl went to the wood", "neutral"),
         ("long ago a miller had", "test"), ("the cat said to the dog", "test"))
    )
]  # fmt: skip
SEARCH: dict[str, Any] = {
    "k": 1, "searches": 1, "pool": 3, "generations": 1, "proposals": 4, "screened": 2, "draws": 8,
    "survivors": 1, "parents": 2, "finalists": 1, "fresh": 3, "heldout": 1, "heldout_draws": 2,
    "max_new_tokens": 4, "shortest": 4,
}  # fmt: skip
PAGE = " ".join(f"word{n} the cat" for n in range(20))
ATTACK: dict[str, Any] = {"k": [1, 5], "modes": ["single", "chained"], "attempts": 1,
                          "max_new_tokens": 60, "window": 30, "given": 5}  # fmt: skip


def _typed(options: dict[str, Any]) -> list[str]:
    """The same as words of the command line."""
    words = []
    for name, value in options.items():
        several = [value] if name == "k" or not isinstance(value, list) else [[v] for v in value]
        for one in several:
            text = ",".join(map(str, one)) if isinstance(one, list) else str(one)
            words += [f"--{name.replace('_', '-')}", text]
    return words


def _file_of(rows: list[dict[str, str]], path: Path) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _as_printed(found: nafaudit.Result[Any], where: Path) -> Any:
    """Its JSON, with its directory under one name."""
    return json.loads(json.dumps(found.to_json()).replace(str(where), "OUT"))


def test_a_search_is_the_command_s_also_of_objects(tmp_path: Path) -> None:
    prompts = _file_of(TALES, tmp_path / "p.jsonl")
    seen: list[nafaudit.Progress] = []
    found = nafaudit.search(
        "tiny", prompts=prompts, out=tmp_path / "a", on_progress=seen.append, **SEARCH
    )
    done = call("search", "--pair", "tiny", "--prompts", prompts, *_typed(SEARCH), "--out",
                tmp_path / "b", "--json", "--quiet", cwd=tmp_path)  # fmt: skip
    typed = json.loads(done.stdout.replace(str(tmp_path / "b"), "OUT"))
    assert _as_printed(found, tmp_path / "a") == typed
    assert found.exit_status == done.returncode
    assert {one.stage for one in seen} >= {"confirming"} and seen[-1].done == seen[-1].total > 0
    # What was found is hidden where a notebook would keep it, and shown if asked for.
    finalist = found.result.finalists[0].candidate.text
    assert finalist not in repr(found) + str(found) + found._repr_html_()
    given = nafaudit.search(
        nafaudit.load_pair("tiny"), prompts=TALES, out=tmp_path / "c", quiet=True, **SEARCH
    )
    assert _as_printed(given, tmp_path / "c") == typed
    assert nafaudit.open_run(tmp_path / "a").verdict == found.verdict


def test_the_paper_s_search_takes_prompts_that_are_objects(tmp_path: Path) -> None:
    """They were left unread, and the pair's own searched."""
    asked: dict[str, Any] = {
        "protocol": "paper", "k": [3, 5], "max_new_tokens": 4, "heldout_class": "test",
        "init": {"attack_train": 2, "neutral": 2}, "quiet": True,
        "size": dict(pair.split("=") for pair in make.SIZES.split(",")),
    }  # fmt: skip
    asked["size"] = {name: int(value) for name, value in asked["size"].items()}
    found = nafaudit.search("tiny", prompts=TALES, out=tmp_path / "a", **asked)
    file = _file_of(TALES, tmp_path / "p.jsonl")
    named = nafaudit.search("tiny", prompts=file, out=tmp_path / "b", **asked)
    assert _as_printed(found, tmp_path / "a") == _as_printed(named, tmp_path / "b")
    texts = {one.prompt.text for one in nafaudit.open_run(tmp_path / "a" / "k-3").run.prompts()}
    assert {row["text"] for row in TALES} <= texts
    assert repr(found).startswith("<PaperSearchResult ")
    # A command of several budgets prints what the schema calls `SearchesJson`.
    schema = schema_for("search")
    assert schema["anyOf"][-1] == {"$ref": "#/$defs/SearchesJson"}
    only = {**schema, "anyOf": schema["anyOf"][-1:]}
    jsonschema.validate(json.loads(json.dumps(found.to_json())), only)


def test_an_attack_is_the_command_s_also_of_objects(tmp_path: Path) -> None:
    rows = [{"id": "page", "text": PAGE}]
    file = _file_of(rows, tmp_path / "p.jsonl")
    seen: list[nafaudit.Progress] = []
    found = nafaudit.attack(rows, "tiny", out=tmp_path / "a", on_progress=seen.append, **ATTACK)
    done = call("attack", file, "--pair", "tiny", *_typed(ATTACK), "--out", tmp_path / "b",
                "--json", "--quiet", cwd=tmp_path)  # fmt: skip
    typed = json.loads(done.stdout.replace(str(tmp_path / "b"), "OUT"))
    ours = _as_printed(found, tmp_path / "a")
    assert ours == typed
    assert found.exit_status == done.returncode
    assert seen and seen[-1].done == seen[-1].total
    assert PAGE[:40] not in repr(found) + str(found) + found._repr_html_()
    with pytest.raises(nafaudit.InputError, match="did you mean 'chained'"):
        nafaudit.attack(rows, "tiny", modes="chain", out=tmp_path / "c")


@pytest.mark.full
def test_a_conformance_and_a_self_test_are_the_command_s(tmp_path: Path) -> None:
    for name, found in (("conform", nafaudit.conform()), ("selftest", nafaudit.selftest())):
        done = call(name, "--json", "--quiet", cwd=tmp_path)
        ours, typed = json.loads(json.dumps(found.to_json())), json.loads(done.stdout)
        for one in (ours, typed):
            one.pop("seconds", None)
        assert ours == typed
        assert found.exit_status == done.returncode


def _no() -> None:
    """A function, where none belongs."""


WRONG: tuple[Any, ...] = (3, 2.5, True, b"x", object(), type, {"a": 1}, [1], [None], {1}, _no, 1j)
PLACES = {
    "load_pair": ("name", "safe", "risky", "tokenizer", "dtype"),
    "audit": ("pair", "mechanism", "decoder", "design", "ray", "junit", "data"),
    "open_run": ("path",),
    "verify": ("run", "pair", "mechanism", "junit"),
    "compare": ("a", "b", "out"),
    "plan": ("pair", "mechanism", "design", "gpu"),
    "search": ("pair", "mechanism", "design", "out"),
    "certify": ("passages", "safe", "out"),
    "attack": ("passages", "pair", "mechanism", "modes", "out"),
    "frontier": ("passages", "pair", "ordinary", "mechanism", "out"),
    "conform": ("decoder", "junit"),
    "bound": ("name", "clusters"),
    "difference": ("clusters", "clusters_b"),
    "read_prompts": ("source", "text", "id", "label", "reference", "header", "format"),
    "selftest": ("seed", "jobs"),
}
GOOD: dict[str, dict[str, Any]] = {
    "audit": {"pair": "tiny"}, "plan": {"pair": "tiny"}, "search": {"pair": "tiny"},
    "attack": {"pair": "tiny", "passages": [PAGE]}, "frontier": {"pair": "lab"},
    "verify": {"run": OWN}, "compare": {"a": OWN, "b": OWN},
    "bound": {"name": "cluster-t", "values": [0.1, 0.2, 0.3], "clusters": [1, 2, 3]},
    "difference": {"a": [1, 2], "b": [2, 3]}, "read_prompts": {"source": [{"text": "a"}]},
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_a_wrong_type_gets_a_sentence_wherever_it_is_given(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dozen wrong types in every place: an error of ours that names the place, and no work."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nafaudit.models.pair.load_model", lambda *_, **__: pytest.fail("loaded"))
    for place in PLACES[name]:
        for wrong in WRONG:
            if place in ("seed", "jobs") and isinstance(wrong, int):
                continue  # these are numbers
            if place.startswith("clusters") and isinstance(wrong, list | set):
                continue  # too short, which is another sentence
            with pytest.raises(nafaudit.InputError) as error:
                getattr(nafaudit, name)(**GOOD.get(name, {}) | {place: wrong})
            said = {"open_run": "a run must be", "bound": "bound", "read_prompts": "prompts"}
            spoken = (place, place.replace("_", "-"), said.get(name, place))
            assert any(word in str(error.value) for word in spoken), (place, wrong)
    assert not list(tmp_path.iterdir())


def test_what_is_left_out_of_a_bound_is_said() -> None:
    with pytest.raises(nafaudit.InputError, match="high must be a number, got 'x'"):
        nafaudit.bound("betting", [0.1], high="x")  # type: ignore[arg-type]
    with pytest.raises(nafaudit.InputError, match="delta must be a number, got None"):
        nafaudit.difference([1.0], [2.0], delta=None)  # type: ignore[arg-type]
    with pytest.raises(nafaudit.InputError, match="0 prompts for 2 values"):
        nafaudit.difference([1.0, 2.0], [2.0, 3.0], clusters=[])


def test_no_protected_text_in_a_repr() -> None:
    secret = "a passage that nobody may keep"
    found = nafaudit.read_prompts([{"text": "Once", "class": "x", "reference": secret}])
    assert repr(found) == "<Workload of 1 prompts: 1 x>"
    assert secret not in repr(found.items) + repr(found.prompts) + repr(found.sources)
    run = nafaudit.open_run(OWN)
    references = [one.prompt.reference for one in run.run.prompts() if one.prompt.reference]
    key = {name: run.measures()[name][0].as_py() for name in ("prompt", "k", "trajectory")}
    shown = repr(run.trajectory(key["prompt"], key["k"], key["trajectory"])) + repr(run.result)
    assert references and not [text for text in references if text in shown]


def test_figures_are_shown_by_a_notebook(run: nafaudit.Audit) -> None:
    for figure in (run.plot.utilisation(), run.plot.regime(), run.plot.charges("tiny:0", 1)):
        assert figure._repr_png_()[:4] == b"\x89PNG"  # type: ignore[attr-defined]
    with pytest.raises(nafaudit.InputError, match="no figure 'search-progress': no generation"):
        run.plot.search_progress()


def test_a_report_goes_where_it_is_asked_to(run: nafaudit.Audit, tmp_path: Path) -> None:
    page = run.report(tmp_path / "there")
    assert page == tmp_path / "there" / "index.html"
    assert page.is_file()


def test_torch_keeps_its_threads(run: nafaudit.Audit) -> None:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        nafaudit.verify(run, sample=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_an_interrupted_audit_is_resumed(run: nafaudit.Audit, tmp_path: Path) -> None:
    def stop(progress: nafaudit.Progress) -> None:
        if progress.done >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nafaudit.audit("tiny", out=tmp_path / "a", on_progress=stop, batch=4, **SMALL)
    assert 0 < len(nafaudit.open_run(tmp_path / "a").run.keys()) < 80
    seen: list[int] = []
    again = nafaudit.audit(
        "tiny", out=tmp_path / "a", on_progress=lambda p: seen.append(p.resumed), **SMALL
    )
    assert seen[0] > 0
    assert again.steps().sort_by([(n, "ascending") for n in ("prompt", "k", "trajectory", "step")]
        ).equals(run.steps().sort_by([(n, "ascending") for n in
                                      ("prompt", "k", "trajectory", "step")]))  # fmt: skip


def test_it_works_while_an_event_loop_runs() -> None:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    async def cell() -> str:
        return nafaudit.open_run(OWN).verdict

    # A thread of its own: where a browser's tests ran before, this one has a loop already.
    with ThreadPoolExecutor(1) as pool:
        inside = pool.submit(asyncio.run, cell()).result()
    assert inside == nafaudit.open_run(OWN).verdict


def test_bounds_of_anybody_s_numbers() -> None:
    values = [0.1 * (n % 7) for n in range(60)]
    found = nafaudit.bound("betting", values, high=1.0)
    assert found.value > found.point
    with pytest.raises(nafaudit.InputError, match="did you mean 'betting'"):
        nafaudit.bound("bettin", values)
    with pytest.raises(nafaudit.InputError, match="list of numbers"):
        nafaudit.bound("betting", ["a"])  # type: ignore[list-item]
    prompts = [n // 3 for n in range(60)]
    clustered = nafaudit.bound("cluster-t", values, clusters=prompts)
    assert clustered.n == 20
    same = nafaudit.difference(values, values, clusters=prompts)
    assert (same.low, same.high) == (0.0, 0.0)
    moved = nafaudit.difference(values, [v + 1 for v in values], clusters=prompts)
    assert moved.low == pytest.approx(1.0) == moved.high
    apart = nafaudit.difference(values, [v + 9 for v in values], paired=False)
    assert apart.low > 0
    with pytest.raises(nafaudit.InputError, match="in one list only"):
        nafaudit.difference(values, values[:-1])


def test_the_page_on_python_says_what_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every example of the page, on a stored run."""
    shutil.copytree(OWN, tmp_path / "runs" / "own")
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    page = Path(__file__).parents[1] / "docs" / "python.md"
    said: list[str] = []
    examples = doctest.DocTestParser().get_doctest(
        page.read_text(encoding="utf-8").replace("\n```", "\n"), {}, page.name, str(page), 0
    )
    runner = doctest.DocTestRunner(optionflags=flags)
    runner.run(examples, out=said.append)
    assert "".join(said) == ""
    assert runner.summarize(verbose=False).attempted >= 15


def test_what_is_shown_first_does_not_take_kept_for_protected(tmp_path: Path) -> None:
    run = stored("attack", tmp_path, NEW)
    shown = repr(nafaudit.open_run(tmp_path / run))
    assert "VACUOUS at k = " in shown
    own = stored("own", tmp_path, NEW)
    assert "VACUOUS" not in repr(nafaudit.open_run(tmp_path / own))
