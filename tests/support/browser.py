"""A headless Chromium for tests of pages, and what a page complained about.

EVOLVE_BROWSER names its program; otherwise it is looked for on the path.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
GRAVE = ("serious", "critical")
RULES: dict[str, list[str]] = {"resultTypes": ["violations"]}
WAIT_MS = 20_000  # for what takes milliseconds on a machine that is not busy


def program() -> str | None:
    """The path of the browser, None if there is none."""
    return os.environ.get("EVOLVE_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def started() -> Iterator[Browser]:
    """A browser. Skips the test if none is installed; fails if EVOLVE_BROWSER names one that cannot be started."""
    path = program()
    if path is None:
        pytest.skip(f"needs a browser: none of {', '.join(NAMES)} is installed, and EVOLVE_BROWSER is not set")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGS))
        yield browser
        browser.close()


class Tab:
    """A page that is open, with the errors that it and its console reported."""

    def __init__(self, browser: Browser, width: int = 1280, scheme: str = "light") -> None:
        self.page: Page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        self.page.set_default_timeout(WAIT_MS)
        self.problems: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on(
            "console", lambda said: self.problems.append(said.text) if said.type in ("error", "warning") else None
        )

    def open(self, address: str | Path) -> None:
        """Open an address or a file and wait until the page has drawn its first view."""
        self.page.goto(address.as_uri() if isinstance(address, Path) else address)
        self.page.wait_for_selector("html[data-ready]", state="attached")

    def views(self) -> list[str]:
        """The keys of the page's views, in the order of their links."""
        keys: list[str] = self.page.evaluate("SECTIONS.flatMap(viewsOf).map(view => view.key)")
        return keys

    def view(self, key: str) -> None:
        """Go to a view by clicking the links to its section and to it."""
        section = self.page.evaluate("key => offered().find(view => view.key === key).section", key)
        self.page.click(f"#section-{section}")
        if self.page.locator(f"#link-{key}").count():  # a section's only view has no link of its own
            self.page.click(f"#link-{key}")
        self.page.wait_for_selector(f"#view-{key}:not([hidden])")

    def grave(self, part: str | None = None, contrast_only: bool = False) -> list[str]:
        """The serious and critical faults that axe-core finds on the page, or in the part with this selector."""
        options = RULES | ({"runOnly": ["color-contrast"]} if contrast_only else {})
        found = Axe().run(self.page, context=part, options=options).response["violations"]
        return [f"{f['id']}: {n['html'][:160]}" for f in found if f["impact"] in GRAVE for n in f["nodes"]]

    def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        pixels: int = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        return pixels

    def close(self) -> None:
        """Close the page."""
        self.page.close()
