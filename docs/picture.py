"""Draws docs/page.png, the head of a stored run's page, and notes what it was drawn of.

python docs/picture.py
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
RUN = HERE.parent / "tests" / "runs" / "89722fc" / "own"
ASSETS = HERE.parent / "src" / "nafaudit" / "views" / "assets"
SIZE = {"width": 1000, "height": 900}


def source_hash() -> str:
    """Returns the SHA-256 of all that the picture shows: template, style and run."""
    files = [ASSETS / "page.html.j2", ASSETS / "page.css"]
    files += sorted(path for path in RUN.rglob("*") if path.is_file())
    digest = hashlib.sha256()
    for path in files:
        name = path.name if path.parent == ASSETS else path.relative_to(RUN).as_posix()
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def main() -> None:
    """Writes the page of a copy of the run, and takes its picture in Chromium."""
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        sys.exit(f"The picture needs a browser: none of {', '.join(names)} is on the path.")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        run = shutil.copytree(RUN, Path(place) / "run")
        report = [sys.executable, "-m", "nafaudit", "report", str(run)]
        subprocess.run(report, check=True, stdout=subprocess.DEVNULL)
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = chromium.new_page(viewport=SIZE, color_scheme="light")
        page.goto((run / "report" / "index.html").as_uri())
        # The head and the first budget: what a reader sees first.
        card = page.locator(".card").first.bounding_box()
        height = min(SIZE["height"], card["y"] + card["height"] + 16) if card else SIZE["height"]
        clip = {"x": 0, "y": 0, "width": SIZE["width"], "height": height}
        page.screenshot(path=HERE / "page.png", clip=clip)
        chromium.close()
    (HERE / "page.sha256").write_text(source_hash() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
