"""A real browser, or a reason why there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def installed(names: Sequence[str] = CHROMIUM) -> str:
    """Path of a browser; without one the test is skipped, or fails if browsers are required."""
    path = next(filter(None, map(shutil.which, names)), None)
    if path is not None:
        return path
    reason = f"no browser is installed: none of {', '.join(names)} is on the path"
    if os.environ.get("NAFAUDIT_REQUIRE_BROWSER") == "1":
        pytest.fail(f"{reason}, and NAFAUDIT_REQUIRE_BROWSER=1 forbids to skip")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, headless; ended with the file, as its event loop runs until then."""
    path = installed()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield chromium
        chromium.close()
