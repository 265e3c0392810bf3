"""The learning process: its orders, pauses and failures, and its end with its parent."""

import asyncio
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cosine_train.learning import child as module
from cosine_train.learning.child import LOG_NAME, ChildFailed, ComparisonOrder, LearningChild
from tests.waiting import state_of, wait_until

ORDER = ComparisonOrder(folder="f", earlier="e", live="l", target="t", after=0)


pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads states from Linux's /proc")

Make = Callable[[str], LearningChild]


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(code: str) -> LearningChild:
        monkeypatch.setattr(module, "COMMAND", (sys.executable, "-S", "-c", code))
        return LearningChild(tmp_path)

    return make


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit('worn out')", f"it died.*{LOG_NAME}"),
        ("import os; os.abort()", "it died"),
        ("import os; os.close(0); os.close(1)", "it died"),
        (f"import sys; sys.stdout.buffer.write({pickle.dumps('no memory')!r})", "no memory"),
    ],
)
def test_what_goes_wrong_is_told_and_logged(tmp_path: Path, child: Make, code: str, reason: str) -> None:
    with pytest.raises(ChildFailed, match=reason):
        asyncio.run(child(code).ask(ORDER))
    assert ("worn out" in (tmp_path / LOG_NAME).read_text()) == ("worn out" in code)


# A running child reads the end of its stdin, which `test_worker` shows as well; loading PyTorch takes many seconds.
@pytest.mark.parametrize("is_stopped", [pytest.param(False, marks=pytest.mark.soak), True])
def test_it_ends_where_its_parent_is_killed(tmp_path: Path, is_stopped: bool) -> None:
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from cosine_train.learning.child import ComparisonOrder, LearningChild\n"
        f"order = {ORDER!r}\n"
        "async def scene():\n"
        "    child = LearningChild(Path(sys.argv[1]))\n"
        "    asking = asyncio.ensure_future(child.ask(order))\n"
        "    while child.pid is None:\n"
        "        await asyncio.sleep(0.01)\n"
        f"    if {is_stopped}: child.pause()\n"
        "    print(child.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(scene())\n"
    )
    # In a separate session: the kernel looks for parents in the same one, whose first process may be pytest.
    with subprocess.Popen(
        (sys.executable, "-c", code, tmp_path), stdout=subprocess.PIPE, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if is_stopped:
            wait_until(lambda: state_of(pid) == "T")
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        wait_until(lambda: state_of(pid) in "XZ")
