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

import pytest

import nafaudit
from nafaudit.cli.output import after_audit
from tests.commands import call
from tests.runs import make

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
    assert after_audit(found.result).startswith("the same run with --trajectories 10:")


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
