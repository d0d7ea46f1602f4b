from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nafaudit.core.errors import InputError
from nafaudit.core.options import load
from nafaudit.core.settings import RunSettings
from nafaudit.workload import Prompt, Workload, read_corpus, read_prompts
from tests.workload.files import lines

NEWS: list[dict[str, Any]] = [
    {"slug": "one", "lead": "A heron stood", "body": "in the water"},
    {"slug": 2, "lead": "", "meta": {"title": "A title"}, "body": None},
    {"slug": "three", "lead": "The baker said"},
]


@pytest.fixture
def design(tmp_path: Path) -> Path:
    lines(tmp_path / "news.jsonl", NEWS)
    lines(tmp_path / "plain.jsonl", [{"q": "How many lamps?"}, {"q": "Which way?"}])
    path = tmp_path / "design.toml"
    path.write_text(
        '[classes.news]\nfile = "news.jsonl"\nprompt = ["lead", "meta.title"]\n'
        'reference = "body"\nid = "slug"\n'
        '[classes.questions]\nfile = "plain.jsonl"\nprompt = "q"\nheader = "Q: "\ncap = 1\n'
        "[cap]\nnews = 2\n"
    )
    return path


def corpus(design: Path, **overrides: Any) -> Workload:
    settings = load(RunSettings, design, overrides)
    return read_corpus(settings.corpus, settings.classes, settings.cap)


def test_a_design_file_names_classes_files_and_fields(design: Path) -> None:
    workload = corpus(design)
    assert workload.prompts == [
        Prompt("one", "A heron stood", "news", "in the water"),
        Prompt("questions:1", "Q: How many lamps?", "questions"),
        Prompt("2", "A title", "news"),
    ]
    assert workload.sources["2"].where.endswith("news.jsonl:3")
    assert workload.sources["2"].record == NEWS[1]


def test_the_command_line_wins(design: Path) -> None:
    assert [p.id for p in corpus(design, classes=("questions",), cap={"questions": 5}).prompts] == [
        "questions:1",
        "questions:3",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[classes.a]\nprompt = "q"', r"\[classes\.a\]: no 'file'"),
        ('[classes.a]\nfile = "plain.jsonl"', r"\[classes\.a\]: no 'prompt'"),
        ('[classes.a]\nfile = "plain.jsonl"\npromt = "q"', r"unknown key 'promt'; did.*'prompt'"),
        ('[classes.a]\nfile = "no.jsonl"\nprompt = "q"', r"no\.jsonl: No such file"),
        ('[classes.a]\nfile = 3\nprompt = "q"', r"\[classes\.a\]: file must be a string, got 3"),
        ('[classes.a]\nfile = "plain.jsonl"\nprompt = []', r"prompt names no field"),
        ('[classes.a]\nfile = "plain.jsonl"\nprompt = 3', r"prompt must be a field's name"),
        ('[classes.a]\nfile = "plain.jsonl"\nprompt = "Q"', r"jsonl:1: no prompt: 'Q' missing"),
        ('[classes.a]\nfile = "plain.jsonl"\nprompt = "q"\nid = "n"', r"jsonl:1: no id: 'n' mis"),
        ('[classes.a]\nfile = "plain.jsonl"\nprompt = "q"\ncap = 0', r"cap must be a whole number"),
        ('[classes.a]\nfile = "plain.jsonl"\nprompt = "q"\ncap = true', r"cap must be a whole"),
        ('[classes.""]\nfile = "plain.jsonl"\nprompt = "q"', r"a class needs a name"),
        ('[classes.a]\nfile="plain.jsonl"\nprompt="q"\n[classes.a]\n', r"not a TOML file.*twice"),
        ("[classes]\na = 3", r"each class must be a table \[classes\.NAME\]"),
        ("classes = 3", r"classes must be a list of names, or \[classes\.NAME\] tables"),
        ("cap = 3", r"cap must be a table such as cap\.neutral = 20"),
        ("[cap]\na = 1.5", r"cap must be a table"),
        ("[cap]\na = 0", r"cap of class 'a' must be at least 1, got 0"),
        ('classes = ["a", "a"]', r"class 'a' is named twice"),
        ('prompts = "p.jsonl"\ndata = "d"', r"prompts and data both name a workload"),
        ('protocol = "papper"', r"protocol must be sound or paper, got 'papper'; did you mean"),
        ('variant = "text"', r"needs --protocol paper"),
        ('protocol = "paper"\nvariant = "prose"', r"variant must be code or text"),
        ('protocol = "paper"\nseed = 3', r"seed = 3 has no effect in the paper's protocol"),
        ("delta = 0", r"delta must be above 0 and below 1, got 0"),
        ("limit = -1", r"limit must be at least 0"),
    ],
)
def test_a_bad_design_file_is_named(design: Path, text: str, said: str) -> None:
    design.write_text(text)
    with pytest.raises(InputError, match=f"(?s){said}"):
        corpus(design)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"slug": "three"}, r"news\.jsonl:5: prompt id 'three' occurs twice .*:1"),
        ({"slug": None}, r"news\.jsonl:1: no id"),
        ({"lead": 7}, r"news\.jsonl:1: prompt 'lead' must be a string, got 7"),
        ({"body": ["x"]}, r"news\.jsonl:1: reference 'body' must be a string"),
    ],
)
def test_a_bad_record_is_named_even_behind_the_cap(
    design: Path, change: dict[str, Any], said: str
) -> None:
    lines(design.parent / "news.jsonl", [NEWS[0] | change, *NEWS[1:]])
    with pytest.raises(InputError, match=said):
        corpus(design, cap={"news": 1})


def test_ids_are_unique_over_classes(design: Path) -> None:
    lines(design.parent / "news.jsonl", [NEWS[0] | {"slug": "questions:1"}])
    with pytest.raises(InputError, match=r"prompt id 'questions:1' occurs twice"):
        corpus(design)


def test_one_key_in_two_spellings_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d.toml").write_text("max_new_tokens = 3\nmax-new-tokens = 4\n")
    with pytest.raises(InputError, match=r"max-new-tokens and max_new_tokens are one key"):
        load(RunSettings, tmp_path / "d.toml", {})


def test_a_design_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "d.toml").write_text("\ufeffmax-new-tokens = 3\n", encoding="utf-8")
    assert load(RunSettings, tmp_path / "d.toml", {}).max_new_tokens == 3


def test_an_empty_file_is_named(design: Path) -> None:
    (design.parent / "plain.jsonl").write_text("\n \n")
    with pytest.raises(InputError, match=r"plain\.jsonl: no prompt in it"):
        corpus(design)


def test_a_file_of_prompts_has_classes_to_choose_from(tmp_path: Path) -> None:
    rows = [{"id": f"p{i}", "text": "t", "class": "ab"[i % 2]} for i in range(6)]
    workload = read_prompts(lines(tmp_path / "p.jsonl", rows))
    assert [p.id for p in workload.select(["b"], {"b": 2}).prompts] == ["p1", "p3"]
    assert [p.id for p in workload.select([], {"a": 1}).prompts] == ["p0", "p1", "p3", "p5"]
    with pytest.raises(InputError, match=r"no class 'c'"):
        workload.select(["c"], {})


def test_a_protocol_brings_its_defaults_and_the_user_wins(design: Path) -> None:
    design.write_text('protocol = "paper"\nk = 1\n')
    settings = load(RunSettings, design, {"trajectories": 4})
    assert (settings.k, settings.trajectories, settings.limit) == ((1.0,), 4, 0)
    settings = load(RunSettings, None, {"protocol": "paper"})
    assert (settings.k, settings.trajectories, settings.max_new_tokens) == ((3.0, 5.0), 10, 200)
    assert (settings.temperature, settings.prefix_n, settings.delta) == (1.0, 5, 0.05)


def test_the_design_file_of_the_docs_is_read(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "paper-protocol.md"
    path = tmp_path / "design.toml"
    path.write_text(page.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0])
    lines(tmp_path / "news.jsonl", NEWS)
    lines(tmp_path / "mail.jsonl", [{"text": "Dear sir"}])
    assert [p.text for p in corpus(path).prompts] == [
        "Continue:\nA heron stood",
        "Dear sir",
        "Continue:\nA title",
        "Continue:\nThe baker said",
    ]
