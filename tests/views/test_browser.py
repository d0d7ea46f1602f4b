"""The page in a real browser: it works, and hostile text stays text."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nafaudit.core.trajectory import Key
from nafaudit.store.run import Run
from nafaudit.views.page import write_report
from nafaudit.workload import Prompt
from tests.commands import call
from tests.handmade import MECHANISM, WORDS, executions, make_run, plain_run
from tests.records import trajectory
from tests.runs import make
from tests.test_frozen import NEW, OLD, RUNS
from tests.views.conftest import installed

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Each would set window.pwned, ask for something or break the page if it were more than text.
INJECTIONS = [
    "<script>window.pwned=1</script>",
    "</script><script>window.pwned=2</script>",
    "</ScRiPt ><script>window.pwned=3</script>",
    "<!--<script>",
    "--><img src=x onerror=window.pwned=4>",
    "<img src='https://example.invalid/leak.png'>",
    '"><svg onload=window.pwned=5>',
    "' onmouseover='window.pwned=6' x='",
    "javascript:window.pwned=7",
    "<a href=javascript:window.pwned=8>x</a>",
    "<iframe srcdoc='<script>parent.pwned=9</script>'></iframe>",
    "<style>*{display:none!important}</style>",
    "<link rel=stylesheet href=https://example.invalid/x.css>",
    "<meta http-equiv=refresh content='0;url=https://example.invalid/'>",
    "<base href=https://example.invalid/>",
    "{{ 7*7 }}{% for x in y %}",
    "${window.pwned=10}`${window.pwned=11}`",
    "\u2028window.pwned=12\u2029",
    "</title></style></textarea><script>window.pwned=13</script>",
    "&lt;script&gt;window.pwned=14&lt;/script&gt;",
    "__proto__",
    "constructor",
    "\u202egnidih\u202c \u200b\x00\x1b[2J\x7f",
    "]]><![CDATA[<script>window.pwned=15</script>",
    '{"a":1}\\u003cscript\\u003e',
    "<form action=https://example.invalid><input autofocus onfocus=window.pwned=16>",
]


@contextmanager
def opened(browser: Browser, path: Path, **options: object) -> Iterator[Page]:
    """Opens a page from disk; fails if it logs an error or asks for anything but itself."""
    context = browser.new_context(**options)  # type: ignore[arg-type]
    page = context.new_page()
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
    page.on("dialog", lambda dialog: trouble.append(f"dialog: {dialog.message}"))
    page.on(
        "request",
        lambda request: trouble.append(request.url) if request.url != path.as_uri() else None,
    )
    page.goto(path.as_uri())
    yield page
    assert trouble == []
    context.close()


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(plain_run(tmp_path_factory.mktemp("browser") / "r"))[1][0]


@pytest.fixture(scope="module")
def hostile_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which ids, classes, prompts, references and outputs are all hostile."""
    prompts = [
        Prompt(f"{text}", f"{text} said", text, f"{text} " * 25)
        for text in INJECTIONS
    ]  # fmt: skip
    records = [
        one
        for prompt in prompts
        for one in executions(prompt.id, 0, 2 * len(INJECTIONS), len(INJECTIONS))
    ]
    run = make_run(tmp_path_factory.mktemp("hostile") / "r", prompts, records, INJECTIONS)
    return write_report(run)[1][0]


def test_a_missing_browser_is_said_and_fails_where_one_is_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NAFAUDIT_REQUIRE_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no browser is installed: none of nowhere"):
        installed(["nowhere"])
    monkeypatch.setenv("NAFAUDIT_REQUIRE_BROWSER", "1")
    with pytest.raises(pytest.fail.Exception, match="forbids to skip"):
        installed(["nowhere"])


def test_verdicts_are_visible_in_words(browser: Browser, page_path: Path) -> None:
    with opened(browser, page_path) as page:
        cards = page.locator("article.card")
        assert cards.count() == 2
        for index in range(2):
            text = cards.nth(index).inner_text()
            for word in (
                "WITHIN",
                "UNKNOWN",
                "Was the promise kept?",
                "What is it worth",
            ):
                assert word in text
        assert page.locator("header .lead").is_visible()
        assert page.locator("#f-spend svg .mark").count() == 48
        for figure in ("f-use", "f-regime", "f-tails", "f-overlap", "f-bounds"):
            assert page.locator(f"#{figure} svg").first.is_visible()


def test_the_prompt_table_sorts_and_filters(browser: Browser, page_path: Path) -> None:
    with opened(browser, page_path) as page:
        table = page.locator("#t-prompts")

        def column(number: int) -> list[str]:
            return table.locator(f"tbody tr td:nth-child({number})").all_inner_texts()

        table.get_by_role("button", name="show more").click()
        assert len(column(1)) == 48
        table.get_by_role("button", name="spend").click()
        spends = [float(text) for text in column(7)]
        assert spends == sorted(spends, reverse=True)
        assert len(set(spends)) > 2
        table.get_by_role("button", name="spend").click()
        assert [float(text) for text in column(7)] == sorted(spends)
        assert table.locator("th[aria-sort=ascending]").inner_text().startswith("spend")
        table.locator("select").select_option("1")
        assert set(column(3)) == {"k = 0.5"}
        table.locator("input").fill("FACT")
        assert set(column(2)) == {"fact"}
        assert len(column(1)) == 6
        table.locator("input").fill("no such prompt")
        assert table.locator(".count").inner_text() == "0 of 0 rows"


def test_the_viewer_reads_an_execution(browser: Browser, page_path: Path) -> None:
    with opened(browser, page_path) as page:
        tokens = page.locator("#v-text .t")
        assert tokens.count() == 40
        page.locator("#v-prompt").select_option(label="p004 · story")
        page.locator("#v-arms button", has_text="k = 3").click()
        ledger = page.locator("#v-ledger")
        # Charges are 1.5 a step at k = 3: after step 4 five of them are spent, 15 granted.
        tokens.nth(4).hover()
        text = ledger.inner_text()
        assert "Step 4" in text
        assert "active" in text
        for entry in ("granted so far\n15.000", "spent so far\n7.500", "left\n7.500"):
            assert entry in text
        tokens.nth(4).click()
        page.keyboard.press("ArrowRight")
        assert "Step 5" in ledger.inner_text()
        page.keyboard.press("ArrowDown")
        assert "Step 7" in ledger.inner_text()
        page.keyboard.press("End")
        assert "Step 39" in ledger.inner_text()
        tokens.nth(2).hover()
        assert "Step 39" in ledger.inner_text()  # held until let go
        page.keyboard.press("Escape")
        tokens.nth(2).hover()
        assert "Step 2" in ledger.inner_text()
        kinds = [tokens.nth(i).get_attribute("class") or "" for i in range(3)]
        assert [k for kind in kinds for k in ("forced", "active", "free") if k in kind] == [
            "forced",
            "active",
            "free",
        ]
        assert "the stopped once" in page.locator("#v-reference").inner_text()
        assert page.locator("#v-text .copied").count() >= 39
        page.locator("#v-number").select_option("1")
        assert page.locator("#v-text .t").first.inner_text().strip() == "old"
        record = page.locator("#v-record").inner_text()
        assert "in 000001.parquet:" in record
        assert "nafaudit report . --record p004@3#1" in record


def test_the_step_that_is_over_budget_is_outlined(browser: Browser, tmp_path: Path) -> None:
    prompt = Prompt("p", "Once upon a time", "story", "")
    records = executions("p", 0, 12, len(WORDS))
    charge = [0.1] * 12
    charge[5] = 20.0
    over = trajectory(Key("p", MECHANISM, 3.0, 0), charge, theta=[0.5] * 12, token=[1] * 12)
    records = [over if one.key == over.key else one for one in records]
    path = write_report(make_run(tmp_path / "r", [prompt], records))[1][0]
    with opened(browser, path) as page:
        page.locator("#v-arms button", has_text="k = 3").click()
        tokens = page.locator("#v-text .t")
        outlined = [i for i in range(12) if "over" in (tokens.nth(i).get_attribute("class") or "")]
        assert outlined == [5]
        page.locator("#v-arms button", has_text="k = 0.5").click()
        assert page.locator("#v-text .over").count() == 0


def test_links_open_the_step_they_name(browser: Browser, page_path: Path) -> None:
    from playwright.sync_api import expect

    with opened(browser, page_path) as page:
        link = page.locator("table.numbers a.n[href^='#t']").first
        link.hover()
        assert "report.json: " in page.locator("#source").inner_text()
        target = link.get_attribute("href") or ""
        link.click()
        step = target.rpartition(".")[2]
        expect(page.locator("#v-ledger h3")).to_contain_text(f"Step {step} ")
        page.locator("table.numbers a.n[href='#a2']").first.click()
        budgets = page.locator("#t-prompts tbody tr td:nth-child(3)")
        expect(budgets.filter(has_not_text="k = 3")).to_have_count(0)
        assert budgets.count() == 12


def test_hostile_text_stays_text(browser: Browser, hostile_path: Path) -> None:
    with opened(browser, hostile_path) as page:
        # Every execution is opened, every row shown.
        for index in range(page.locator("#v-prompt option").count()):
            page.locator("#v-prompt").select_option(index=index)
        page.locator("#t-prompts").get_by_role("button", name="show more").click()
        assert page.locator("#t-prompts tbody tr").count() == 4 * len(INJECTIONS)
        assert page.evaluate("window.pwned") is None
        assert page.evaluate("Object.prototype.id") is None
        assert page.locator("h1").is_visible()
        for foreign in (
            "img",
            "iframe",
            "form",
            "base",
            "link",
            "#view script",
            "#t-prompts script",
        ):
            assert page.locator(foreign).count() == 0
        shown = page.locator("#t-prompts tbody").inner_text()
        assert "<script>window.pwned=1</script>" in shown
        assert "\u27e8202E\u27e9gnidih" in shown
        assert "<script>window.pwned=1</script>" in page.locator("#v-text").inner_text()


def test_the_policy_blocks_what_escaping_might_miss(
    browser: Browser, page_path: Path, tmp_path: Path
) -> None:
    """The companion of the test above: a script that did get into the page is not run."""
    broken = tmp_path / "index.html"
    page = page_path.read_text()
    broken.write_text(page.replace("<main>", "<main><script>window.pwned=1</script>"))
    context = browser.new_context()
    tab = context.new_page()
    blocked: list[str] = []
    tab.on("console", lambda message: blocked.append(message.text))
    tab.goto(broken.as_uri())
    assert tab.evaluate("window.pwned") is None
    assert any("Content Security Policy" in text for text in blocked)
    tab.evaluate("1")  # the page itself still runs
    assert tab.locator("#v-text .t").count() == 40
    context.close()


def test_a_phone_and_the_dark_need_no_sideways_scrolling(browser: Browser, page_path: Path) -> None:
    options = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}
    with opened(browser, page_path, **options) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert dark != "rgb(255, 255, 255)"


# Every kind of run that the repository holds, the pages of an attack's executions among them.
STORED = tuple(
    f"{NEW if (make.HERE / NEW / name).exists() else OLD}/{name}"
    for name in (*(make.RUN_OF.get(one, one) for one in RUNS), "search/confirm")
)


# One page of each layout: a run, a search, the paper's search.
FIRST = tuple(one for one in STORED if one.rpartition("/")[2] in ("own",))


@pytest.fixture(scope="module")
def stored_page(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes the page of a stored run, once."""
    place = tmp_path_factory.mktemp("stored")

    @cache
    def page(name: str) -> Path:
        run = shutil.copytree(make.HERE / name, place / name.replace("/", "-"))
        return write_report(Run(run))[1][0]

    return page


@pytest.mark.parametrize(
    "name",
    [one if one in FIRST else pytest.param(one, marks=pytest.mark.full) for one in STORED],
)
def test_a_page_is_accessible_in_light_and_dark_and_on_a_phone(
    browser: Browser, stored_page: Callable[[str], Path], name: str
) -> None:
    """No rule of axe-core is broken: contrast (WCAG AA), names, roles, order, scrolling by keys."""
    from axe_playwright_python.sync_playwright import Axe

    desk, phone = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
    for viewport, scheme in ((desk, "light"), (phone, "dark")):
        with opened(browser, stored_page(name), viewport=viewport, color_scheme=scheme) as page:
            page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
            found = Axe().run(page).response
            assert len(found["passes"]) > 20
            broken = [
                (rule["id"], [node["target"] for node in rule["nodes"]][:3])
                for rule in found["violations"]
            ]
            assert broken == [], (scheme, broken)
            assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


def test_the_page_of_a_comparison_is_accessible(browser: Browser, tmp_path: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe

    for name in ("own", "paper"):
        shutil.copytree(make.HERE / OLD / name, tmp_path / name)
    assert call("compare", "own", "paper", "--out", "out", cwd=tmp_path).returncode == 0
    path = tmp_path / "out" / "compare.html"
    phone = {"width": 390, "height": 844}
    for options in ({"color_scheme": "light"}, {"color_scheme": "dark", "viewport": phone}):
        with opened(browser, path, **options) as page:
            assert Axe().run(page).response["violations"] == []
            width = page.viewport_size["width"]  # type: ignore[index]
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_rules_of_accessibility_can_fail(browser: Browser, page_path: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe

    with opened(browser, page_path) as page:
        page.evaluate("document.querySelector('#v-find').removeAttribute('aria-label')")
        page.evaluate("document.querySelector('.lead').style.color = '#aaa'")
        found = {rule["id"] for rule in Axe().run(page).response["violations"]}
        assert "color-contrast" in found


def test_everything_is_reached_by_keyboard_and_its_focus_is_seen(
    browser: Browser, page_path: Path
) -> None:
    with opened(browser, page_path, viewport={"width": 1280, "height": 900}) as page:
        stops = 'a[href], button, input, select, summary, [tabindex="0"]'
        wanted = page.evaluate(
            """(stops) => [...document.querySelectorAll(stops)].filter(
            (one) => !one.disabled && one.checkVisibility()).length""",
            stops,
        )
        page.evaluate(
            """() => { window.seen = [];
            document.addEventListener('focusin', (event) => {
              const style = getComputedStyle(event.target);
              window.seen.push([event.target.id || event.target.tagName,
                style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1]);
            }); }"""
        )
        for _ in range(wanted):
            page.keyboard.press("Tab")
        seen = page.evaluate("window.seen")
        names = [name for name, _ in seen]
        assert len(seen) == wanted
        assert [name for name, visible in seen if not visible] == []
        order = ["v-find", "v-prompt", "v-number", "v-text"]
        assert [name for name in names if name in order] == order
        # Each control of the viewer does its work without a mouse.
        page.locator("#v-arms button", has_text="k = 3").focus()
        page.keyboard.press("Enter")
        assert "k = 3:" in page.locator("#v-sum").inner_text()
        page.locator("#v-number").focus()
        page.keyboard.press("ArrowDown")
        assert page.locator("#v-number").input_value() == "1"
        page.locator("#v-text").focus()
        page.keyboard.press("Home")
        assert "Step 0" in page.locator("#v-ledger").inner_text()
        assert page.locator("#source").is_hidden()


def test_the_ledger_s_curve_keeps_the_size_of_its_words_on_a_phone(
    browser: Browser, page_path: Path
) -> None:
    with opened(browser, page_path, viewport={"width": 390, "height": 844}) as page:
        sizes = page.evaluate(
            """() => [...document.querySelectorAll('#v-chart text')].map(
            (one) => one.getBoundingClientRect().height)"""
        )
        assert len(sizes) > 5 and min(sizes) >= 11
        page.set_viewport_size({"width": 1280, "height": 900})
        assert page.locator("#v-chart svg").bounding_box()["width"] > 500  # type: ignore[index]


def test_it_prints(browser: Browser, page_path: Path) -> None:
    with opened(browser, page_path) as page:
        assert page.pdf(format="A4").startswith(b"%PDF")


A4 = {"width": 718, "height": 1047}
"""A sheet of A4 less margins of a centimetre, at 96 pixels an inch."""


@pytest.mark.parametrize("name", STORED)
def test_page_one_stands_alone_on_paper(
    browser: Browser, stored_page: Callable[[str], Path], name: str
) -> None:
    with opened(browser, stored_page(name), viewport=A4, color_scheme="dark") as page:
        page.emulate_media(media="print")
        # What is wider than the sheet makes the printer shrink every page.
        assert page.evaluate("document.documentElement.scrollWidth") <= A4["width"]
        header = page.locator("header")
        assert header.bounding_box()["height"] <= A4["height"]  # type: ignore[index]
        assert (
            page.evaluate("getComputedStyle(document.querySelector('header')).breakAfter") == "page"
        )
        text = header.inner_text()
        for part in (
            *("Safe model", "Risky model", "Budgets", "Audited by\nnafaudit ", "Machine", "Scope"),
            *("Not looked at", "Recomputed?", "Design", "The verdicts", "words of this page"),
            *("Was the promise kept?", "Was it put to the test?", "What is it worth?"),
        ):
            assert part in text, part
        white = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert white == "rgb(255, 255, 255)"
