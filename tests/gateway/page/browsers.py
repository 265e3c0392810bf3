"""Debian's Chromium, driven by Playwright, which may send requests only to its gateway."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from cosine_node.advice.own_machine import OwnMachine
from tests.gateway.gateways import ServedGateway, served
from tests.gateway.page.crowd import told_machine
from tests.gateway.page.scene import scene

CHROMIUM: Final = shutil.which("chromium")
QUESTION: Final = "How can many machines write one text?"
WIDE: Final = {"width": 1280, "height": 860}
DONE: Final = "tokens/s ·"
"""The text below a complete reply."""


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser; tests are skipped without one."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (`apt install chromium`).")
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright for Python is not installed.")
    with playwright.sync_playwright() as running:
        # Chromium's sandbox does not work as root, as in most containers.
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Visitor:
    """A user of a page, which records requests and problems."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.url = url
        self.context = browser.new_context(**{"viewport": WIDE, **options})
        self.page = self.context.new_page()
        self.asked: list[str] = []
        self.problems: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", lambda said: self._note(said.type, said.text))
        self.page.on("dialog", lambda dialog: self.problems.append(f"a dialog: {dialog.message}"))
        self.page.set_default_timeout(30_000)
        self.page.goto(url)

    def _note(self, kind: str, text: str) -> None:
        if kind == "error":
            self.problems.append(text)

    def show(self, view: str) -> None:
        """Go to another view."""
        self.page.get_by_role("navigation").get_by_role("link", name=view).click()

    def ask(self, text: str = QUESTION) -> None:
        """Send a message."""
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.keyboard.press("Enter")

    def await_reply(self) -> str:
        """The text of the latest reply, once it is whole."""
        reply = self.page.get_by_role("article", name="Reply").last
        reply.get_by_text(DONE).wait_for()
        return str(reply.locator(".text").inner_text())

    def prove(self) -> None:
        """Show the proof of the latest reply."""
        self.page.get_by_role("button", name="Check its proof").click()

    def verdict(self, title: str) -> None:
        """Wait for the verdict of a proof."""
        self.page.get_by_role("heading", name=title).wait_for()

    def leave(self) -> None:
        """Close the page, and check that there were no problems and no requests to others."""
        self.context.close()
        others = [url for url in self.asked if not url.startswith((self.url, f"blob:{self.url}"))]
        assert (others, self.problems) == ([], [])


@contextmanager
def visited(
    browser: Any, *, place: Any = None, view: dict[str, Any] | None = None, **options: Any
) -> Iterator[Any]:
    """A visitor of a gateway over a scene, and that gateway; `options` are the gateway's, `view` the browser's."""

    async def facts(*_: object) -> dict[str, Any]:
        return told_machine()

    with pytest.MonkeyPatch.context() as patch:
        # Independent of the machine that runs the tests.
        patch.setattr(OwnMachine, "facts", facts)
        gateway = served(swarm_of=place or scene(), **options)
        with gateway as running, visiting(browser, running, **(view or {})) as one:
            yield one, running


@contextmanager
def visiting(browser: Any, gateway: ServedGateway, **view: Any) -> Iterator[Visitor]:
    """A visitor of a running gateway."""
    visitor = Visitor(browser, f"{gateway.url}/", **view)
    yield visitor
    visitor.leave()
