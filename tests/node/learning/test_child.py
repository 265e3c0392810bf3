"""The process that learns: stopped and continued, ended with whoever started it, and its failures told."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cosine_node.learning.child import LOG_NAME, ChildFailed, Comparison, ComparisonOrder, LearningChild, to_line
from cosine_node.learning.decision import Acceptance

ORDER = ComparisonOrder(folder="f", earlier="e", live="l", target="t", after=0)
ANSWER = Comparison(earlier=Acceptance(1, 2), live=Acceptance(2, 2))
SAY = f"import sys; sys.stdin.readline(); print({to_line(ANSWER).decode().strip()!r})"

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads states from Linux's /proc")


def child(folder: Path, code: str) -> LearningChild:
    return LearningChild(folder, command=(sys.executable, "-c", code))


def state_of(pid: int) -> str:
    """The letter that Linux gives to the state of a process; X for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"


def wait_until(pid: int, states: str) -> None:
    until_s = time.monotonic() + 60
    while state_of(pid) not in states:
        assert time.monotonic() < until_s, state_of(pid)
        time.sleep(0.01)


def test_an_order_is_answered(tmp_path: Path) -> None:
    assert asyncio.run(child(tmp_path, SAY).ask(ORDER)) == ANSWER


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit('worn out')", "it died"),
        ("import os; os.abort()", "it died"),
        ("import os; os.close(0); os.close(1)", "it died"),
        (f"import sys; sys.stdin.readline(); print({json.dumps({'error': 'no memory'})!r})", "no memory"),
        (f"import sys; sys.stdin.readline(); print({to_line(ORDER).decode().strip()!r})", "an order"),
    ],
)
def test_what_goes_wrong_is_told(tmp_path: Path, code: str, reason: str) -> None:
    with pytest.raises(ChildFailed, match=reason):
        asyncio.run(child(tmp_path, code).ask(ORDER))


def test_its_log_is_kept(tmp_path: Path) -> None:
    with pytest.raises(ChildFailed, match=LOG_NAME):
        asyncio.run(child(tmp_path, "raise SystemExit('worn out')").ask(ORDER))
    assert "worn out" in (tmp_path / LOG_NAME).read_text()


def test_it_is_stopped_and_goes_on(tmp_path: Path) -> None:
    async def scene() -> None:
        # It answers once it has been let go on, which it cannot know otherwise.
        waiting = child(tmp_path, f"import time; time.sleep(0.2); {SAY}")
        waiting.pause()
        asking = asyncio.ensure_future(waiting.ask(ORDER))
        await asyncio.sleep(0)
        assert waiting.pid is not None
        wait_until(waiting.pid, "T")
        waiting.pause()
        waiting.resume()
        assert await asking == ANSWER
        assert waiting.pid is None

    asyncio.run(scene())


def test_it_is_killed_where_nobody_waits_for_its_answer(tmp_path: Path) -> None:
    async def scene() -> None:
        endless = child(tmp_path, "import time; time.sleep(600)")
        asking = asyncio.ensure_future(endless.ask(ORDER))
        await asyncio.sleep(0)
        pid = endless.pid
        assert pid is not None
        endless.pause()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert state_of(pid) == "X"

    asyncio.run(scene())


@pytest.mark.parametrize("is_stopped", [False, True])
def test_it_ends_where_its_parent_is_killed(tmp_path: Path, is_stopped: bool) -> None:
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from cosine_node.learning.child import LearningChild\n"
        "from tests.node.learning.test_child import ORDER\n"
        "async def scene():\n"
        "    child = LearningChild(Path(sys.argv[1]))\n"
        "    asking = asyncio.ensure_future(child.ask(ORDER))\n"
        "    while child.pid is None:\n"
        "        await asyncio.sleep(0.01)\n"
        f"    if {is_stopped}: child.pause()\n"
        "    print(child.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(scene())\n"
    )

    # A session of its own: the kernel looks for parents in the same one, of which pytest may be the first.
    with subprocess.Popen(
        (sys.executable, "-c", code, tmp_path), stdout=subprocess.PIPE, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if is_stopped:
            wait_until(pid, "T")
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        wait_until(pid, "XZ")
