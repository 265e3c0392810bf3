"""How smooth the page is with a thousand nodes, and how soon it is there: `python -m tests.node.page.measure`."""

from statistics import median
from typing import Any, Final

import pytest

from cosine_node.page.routes import Watched
from tests.node.page.browsers import chromium, visited
from tests.node.page.crowd import crowd

NODES: Final = 1000
FRAMES: Final = """() => new Promise((done) => {
  const place = document.querySelector(".tbody"), began = performance.now();
  let frames = 0;
  const next = () => {
    frames += 1;
    place.scrollTop = (place.scrollTop + 60) % (place.scrollHeight - place.clientHeight);
    if (performance.now() - began < 6000) requestAnimationFrame(next);
    else done(frames);
  };
  requestAnimationFrame(next);
})"""
"""Scrolls for six seconds, in which the swarm changes three times; the frames drawn."""
LOADS: Final = 9
PAINT: Final = """() => new Promise((done) => {
  const look = () => {
    const [paint] = performance.getEntriesByName("first-contentful-paint");
    if (paint) done(paint.startTime);
    else setTimeout(look, 10);
  };
  look();
})"""


def _busy_s(session: Any) -> float:
    """The time of the page's main thread so far."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


def main() -> None:
    turn = 0

    async def look(_: Watched) -> dict[str, Any]:
        nonlocal turn
        turn += 1
        return crowd(NODES, turn=turn)

    # There is no swarm of so many on one machine.
    patch = pytest.MonkeyPatch()
    patch.setattr(Watched, "_look", look)
    with chromium() as browser, visited(browser) as (visitor, _):
        page = visitor.page
        # By the processor's time, which a machine that does other things as well does not stretch.
        session = visitor.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        paints_ms, work_ms = [], []
        for _ in range(LOADS):
            page.reload()
            paints_ms.append(page.evaluate(PAINT))
            # It counts anew in each page.
            work_ms.append(1e3 * _busy_s(session))
        visitor.show("Swarm")
        page.locator(".tbody .tr").nth(10).wait_for()
        before_s = _busy_s(session)
        frames = page.evaluate(FRAMES)
        frame_ms = 1e3 * (_busy_s(session) - before_s) / frames
        told = f"{NODES} nodes: {frames} frames in 6 s of scrolling, {frame_ms:.1f} ms of the processor each; "
        told += f"first paint after {min(paints_ms):.0f} ms, at the median {median(paints_ms):.0f}, of which "
        print(f"{told}{median(work_ms):.0f} of the page's processor.")  # noqa: T201 - what it is for


if __name__ == "__main__":
    main()
