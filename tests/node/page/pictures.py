"""Pictures of the page over a simulated swarm: `python -m tests.node.page.pictures` writes the documentation's.

With `--all FOLDER` each view, in both themes and at three widths, for who changes how it looks. It needs what the
tests beside it need.
"""

import argparse
from pathlib import Path
from typing import Any, Final

from tests.node.page.browsers import chromium, visited
from tests.node.page.scene import LARGE, scene
from tests.test_rooms import ROOT

IMAGES: Final = ROOT / "docs" / "images"
SIZES: Final = ((360, 740), (1280, 860), (2560, 1300))
THEMES: Final = ("light", "dark")
STAGES: Final = ((0, 10), (8, 18), (22, 28))


def walk(visitor: Any, save: Any, *, is_narrow: bool) -> None:
    """Go through all views, and save each."""
    page = visitor.page
    save("begin")
    visitor.ask()
    visitor.await_reply()
    if not is_narrow:
        page.locator(".token[class*=of-drafter]").nth(6).hover()
    save("chat")
    for tokens in (30, 60, 45, 50):
        asked = {"messages": [{"role": "user", "content": f"{tokens} tokens"}], "max_tokens": tokens}
        page.request.post(f"{visitor.url}v1/chat/completions", data=asked)
    visitor.show("Swarm")
    page.locator(".chart").first.locator(".point").nth(4).wait_for(state="attached")
    save("swarm")
    visitor.show("Join")
    page.get_by_label("Command that joins").wait_for()
    save("join")
    visitor.show("Chat")
    if is_narrow:
        page.get_by_role("button", name="Details").first.click()
        save("details")
    visitor.prove()
    page.get_by_role("button", name="Ask other verifiers").click()
    visitor.verdict("The target’s text, by its judges’ word")
    save("proof")


def draw(folder: Path, *, sizes: Any, themes: Any, views: Any = None) -> None:
    """Save the views of the page at some sizes and in some themes."""
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for theme in themes:
            for width, height in sizes:
                look = {"viewport": {"width": width, "height": height}, "color_scheme": theme}
                name = f"{theme}-{width}" if len(sizes) > 1 else theme
                with visited(browser, place=scene(stages=STAGES, curve=LARGE), view=look) as (visitor, _):

                    def save(view: str, page: Any = visitor.page, name: str = name) -> None:
                        if views is None or view in views:
                            page.screenshot(path=folder / f"page-{view}-{name}.png")

                    walk(visitor, save, is_narrow=width < 1100)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", type=Path, metavar="FOLDER")
    asked = parser.parse_args()
    if asked.all:
        draw(asked.all, sizes=SIZES, themes=THEMES)
    else:
        draw(IMAGES, sizes=((1280, 860),), themes=THEMES, views=("chat", "swarm"))
