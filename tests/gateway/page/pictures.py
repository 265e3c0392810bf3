"""Pictures of the page over a simulated swarm, for the documentation: `python -m tests.gateway.page.pictures`.

It needs what the tests beside it need.
"""

from pathlib import Path
from typing import Any, Final

from tests.gateway.page.browsers import chromium, visited
from tests.gateway.page.scene import LARGE, scene
from tests.test_rooms import ROOT

IMAGES: Final = ROOT / "docs" / "images"
STAGES: Final = ((0, 10), (8, 18), (22, 28))


def draw(browser: Any, theme: str, folder: Path) -> None:
    """Save the chat and the swarm in a theme."""
    with visited(browser, place=scene(stages=STAGES, curve=LARGE), view={"color_scheme": theme}) as (visitor, _):
        page = visitor.page
        visitor.ask()
        visitor.await_reply()
        page.locator(".token[class*=of-drafter]").nth(6).hover()
        page.screenshot(path=folder / f"page-chat-{theme}.png")
        for tokens in (30, 60, 45, 50):
            asked = {"messages": [{"role": "user", "content": f"{tokens} tokens"}], "max_tokens": tokens}
            page.request.post(f"{visitor.url}v1/chat/completions", data=asked)
        visitor.show("Swarm")
        page.locator(".chart").first.locator(".point").nth(4).wait_for(state="attached")
        page.screenshot(path=folder / f"page-swarm-{theme}.png")


if __name__ == "__main__":
    with chromium() as started:
        for each in ("light", "dark"):
            draw(started, each, IMAGES)
