"""REFUTED, and what a claimed overspend is worth, of black boxes that are run and replayed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from nafaudit.views.words import AS_PROMISED
from tests.commands import call

BOXES = Path(__file__).with_name("boxes.py")
pytestmark = pytest.mark.usefixtures("forked_decoders")
SIZES = ("--pair", "tiny", "--max-new-tokens", 16, "--limit", 4, "--quiet", "--out", "run")


def _run(place: Path, name: str, *options: object) -> tuple[dict[str, Any], Path]:
    spec = f"{BOXES}:{name}"
    done = call("run", "--decoder", spec, *SIZES, *options, "--json", cwd=place)
    assert done.returncode == 1, done.stderr
    return json.loads(done.stdout), place / "run"


def _shown(run: Path, place: Path) -> list[str]:
    """What terminal, report.md and page say; the page's glossary names every word."""
    page = (run / "report" / "index.html").read_text().split('<section id="words"')[0]
    page = re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL)
    return [call("check", run, cwd=place).stdout, (run / "report" / "report.md").read_text(), page]


def test_a_decoder_that_grants_itself_more_is_refuted(tmp_path: Path) -> None:
    data, run = _run(tmp_path, "Generous", "--k", 2, "--trajectories", 20)
    verdict = next(one for one in data["verdicts"] if one["k"] == 2)
    assert verdict["kept"] == "REFUTED"
    # The replay's own numbers would be those of a decoder which kept its promise.
    assert (verdict["tested"], verdict["violations"]) == ("UNKNOWN", None)
    found = json.loads((run / "verify.json").read_text())["findings"]
    (budget,) = [one for one in found if one["check"] == "replay: budget"]
    assert budget["verdict"] == "UNKNOWN"
    assert verdict["spend"]["mean"] == "nan"
    assert set(verdict["utilisation"].values()) == {"nan"}
    assert {one["mean"] for one in data["classes"]} == {"nan"}
    # The first line says what is wrong, and what its tokens fit.
    said = "its tokens fit 1.5 k; every law we know that keeps the budget is excluded"
    assert data["why"].startswith(f"budget: {said}")
    for text in _shown(run, tmp_path):
        flat = " ".join(text.split())
        assert "REFUTED" in text and "INCONCLUSIVE" not in text
        assert said in flat.replace("Its tokens", "its tokens"), flat
        assert "refutes the log" not in text and "the log is refuted" not in text
        assert "claimed" not in data["why"]
    report = json.loads((run / "report" / "report.json").read_text())
    assert {one["spend"] for one in report["prompts"]} == {"nan"}
    assert report["bounds"] == []
    verified = call("verify", run, "--json", "--quiet", cwd=tmp_path)
    assert json.loads(verified.stdout)["verdict"] == "REFUTED"


def test_a_charge_at_k_0_is_not_within(tmp_path: Path) -> None:
    """24 good rows at k = 1 beside 24 that are charged where nothing may be spent."""
    rows = [f"p{n},1,{n / 9},100" for n in range(24)] + [f"p{n},0,0.{n + 11},0" for n in range(24)]
    (tmp_path / "log.csv").write_text("prompt_id,k,spend,budget\n" + "\n".join(rows))
    done = call("check", "log.csv", "--max-new-tokens", 100, "--json", cwd=tmp_path)
    data = json.loads(done.stdout)
    assert (data["verdict"], done.returncode) == ("VIOLATED", 1)
    assert data["why"] == "the promise was broken at k = 0"
    shown = call("check", "log.csv", "--max-new-tokens", 100, cwd=tmp_path).stdout
    assert re.search("safe only +VIOLATED", shown)


def test_too_few_outputs_refute_nothing_by_laws(tmp_path: Path) -> None:
    """32 outputs: neither WITHIN nor accused, and how many more would decide."""
    spec = f"{BOXES}:Silent"
    options = ("--k", 2, "--trajectories", 8, "--json")
    done = call("run", "--decoder", spec, *SIZES, *options, cwd=tmp_path)
    data = json.loads(done.stdout)
    assert (done.returncode, data["verdict"]) == (3, "INCONCLUSIVE"), done.stderr
    assert data["why"].startswith("its tokens fit ")
    assert re.search(r"about \d+ more answers per budget would decide", data["why"])
    checked = call("check", "run", "--json", cwd=tmp_path)
    verified = call("verify", "run", "--json", "--quiet", cwd=tmp_path)
    for one in (checked, verified):
        assert one.returncode == 3 and json.loads(one.stdout)["why"] == data["why"]


@pytest.mark.parametrize("name", ["Silent", "Frank"])
def test_what_is_within_says_by_what(name: str, tmp_path: Path) -> None:
    spec = f"{BOXES}:{name}"
    options = ("--k", 2, "--trajectories", 40, "--json")
    done = call("run", "--decoder", spec, *SIZES, *options, cwd=tmp_path)
    data = json.loads(done.stdout)
    assert (done.returncode, data["verdict"]) == (0, "WITHIN"), done.stderr
    (tokens,) = [f for f in data["findings"] if f["check"] == "tokens: laws"]
    silent = name == "Silent"
    assert tokens["numbers"]["shown"] == (not silent)
    by = "nothing is shown of 160 trajectories" if silent else "by what the decoder shows of them"
    assert by in data["why"]
    for said in (
        "its tokens fit 1 k; no law that fits exceeds K",
        r"anchored decoding at [\d.]+ k would have been refuted with 95% probability",
    ):
        assert bool(re.search(said, data["why"])) == silent
    kept = next(f for f in data["findings"] if f["k"] == 2 and f["check"] == "invariant")
    assert ("an answer costs at least " in kept["text"]) == silent
    (likeness,) = [f for f in data["findings"] if f["check"] == "conforms"]
    assert likeness["text"].startswith("conforms to anchored: YES")
    for text in _shown(tmp_path / "run", tmp_path):
        flat = " ".join(text.split())
        assert "no prefix of an answer spends more than (t+1) k" in flat, flat
        assert "conforms to anchored: YES" in flat
        assert "Yes, in every trajectory" not in flat
    terminal, _, page = (" ".join(text.split()) for text in _shown(tmp_path / "run", tmp_path))
    assert (AS_PROMISED in terminal) == (AS_PROMISED[1:] in page) == silent
    assert ("it shows no law of its steps" in page) == silent
    assert ("its tokens fit the laws that it shows, and these keep the budget" in page) != silent


def test_what_contradicts_itself_is_set_aside_and_named(tmp_path: Path) -> None:
    """Its probabilities are not those of its weights: bookkeeping, and judged as if silent."""
    spec = f"{BOXES}:Contradicts"
    options = ("--k", 2, "--trajectories", 40, "--json")
    done = call("run", "--decoder", spec, *SIZES, *options, cwd=tmp_path)
    data = json.loads(done.stdout)
    assert (done.returncode, data["verdict"]) == (0, "WITHIN"), done.stdout
    assert "what is shown contradicts itself" in data["why"]
    assert "bookkeeping: the probabilities that it states" in data["why"]
    page = " ".join(_shown(tmp_path / "run", tmp_path)[2].split())
    assert "what it shows contradicts itself" in page and "fit the laws that it shows" not in page
    failed = call("check", "run", "--fail-on", "suspect", cwd=tmp_path)
    assert failed.returncode == 1


@pytest.mark.full
def test_what_a_verification_suspects_is_shown(tmp_path: Path) -> None:
    """Charges in float16 of a float32 decoder: off by more than noise, by less than a fault."""
    options = ("--k", "2,4", "--trajectories", 8)
    words = ("run", "--decoder", f"{BOXES}:HalfPrecision", *SIZES, *options)
    done = call(*words, "--json", cwd=tmp_path)
    data = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "run" / "verify.json").read_text())["findings"]
    assert not [one for one in found if one["verdict"] == "FAILED"]
    suspected = {one["check"] for one in found if one["verdict"] == "SUSPECT"}
    assert "replay: charge" in suspected
    checks = {check.replace("replay: ", "claims: ") for check in suspected}
    said = {one["check"] for one in data["findings"] if one["verdict"] == "SUSPECT"}
    assert checks <= said
    for text in _shown(tmp_path / "run", tmp_path):
        for check in checks:
            assert check in text and "SUSPECT" in text


@pytest.mark.full
def test_an_admitted_overspend_that_its_tokens_confirm_is_a_violation(tmp_path: Path) -> None:
    data, _ = _run(tmp_path, "GenerousAndFrank", "--k", 2, "--trajectories", 20)
    verdict = next(one for one in data["verdicts"] if one["k"] == 2)
    assert verdict["kept"] == "VIOLATED" and verdict["violations"] > 0
    assert data["why"] == "budget: the promise was broken at k = 2; its tokens fit 1.5 k"
    found = next(f for f in data["findings"] if f["k"] == 2 and f["check"] == "invariant")
    assert found["witness"]["k"] == 2
    assert "charges that the decoder itself claims" in found["text"]
    (stated,) = [f for f in data["findings"] if f["check"] == "bookkeeping: stated overspend"]
    assert re.match(r"by the charges that it states itself \d+ of 80 answers", stated["text"])
    verified = call("verify", tmp_path / "run", "--json", "--quiet", cwd=tmp_path)
    assert json.loads(verified.stdout)["verdict"] == "VIOLATED"


def test_a_false_claim_convicts_no_sound_decoder_of_overspending(tmp_path: Path) -> None:
    """It states charges half as high again as its tokens cost, and shows no law."""
    spec = f"{BOXES}:Overclaims"
    options = ("--k", 2, "--trajectories", 40, "--json")
    done = call("run", "--decoder", spec, *SIZES, *options, cwd=tmp_path)
    data = json.loads(done.stdout)
    verdict = next(one for one in data["verdicts"] if one["k"] == 2)
    assert verdict["kept"] == "WITHIN" and done.returncode == 0
    assert "bookkeeping: by the charges that it states itself" in data["why"]
    assert not [f for f in data["findings"] if f["verdict"] == "FAILED"]


@pytest.mark.full
def test_what_is_refuted_at_one_budget_is_said_at_every_budget(tmp_path: Path) -> None:
    data, _ = _run(tmp_path, "GenerousSometimes", "--k", "1,2", "--trajectories", 30)
    assert {one["kept"] for one in data["verdicts"] if not one["baseline"]} == {"REFUTED"}


@pytest.mark.full
def test_nothing_is_promised_without_a_budget(tmp_path: Path) -> None:
    """At k = inf it is not the risky model: that breaks no budget."""
    spec = f"{BOXES}:NotTheRiskyModel"
    options = ("--k", 2, "--trajectories", 40, "--json")
    done = call("run", "--decoder", spec, *SIZES, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["verdict"] == "WITHIN"
