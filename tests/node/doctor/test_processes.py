"""Work that may hang or crash is given up without holding anybody."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from cosine_node.doctor.processes import ProbeFailed, ask_child, in_thread

BAD_CHILDREN = {
    "silent": "pass",
    "chatty": "print('no JSON')",
    "crashing": "raise RuntimeError('it broke')",
    "killed": "import os; os.kill(os.getpid(), 11)",
}


@pytest.fixture
def children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_a_thread_gives_its_result_or_its_error() -> None:
    def fail() -> None:
        raise KeyError("gone")

    async def run() -> None:
        assert await in_thread(lambda: 7) == 7
        with pytest.raises(KeyError, match="gone"):
            await in_thread(fail)

    asyncio.run(run())


def test_a_thread_that_never_returns_holds_nobody() -> None:
    never = threading.Event()

    async def run() -> None:
        async with asyncio.timeout(0.05):
            await in_thread(never.wait)

    with pytest.raises(TimeoutError):
        asyncio.run(run())
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "doctor")
    never.set()


def test_a_child_answers_with_its_last_line(children: Path) -> None:
    (children / "echo.py").write_text(
        "from cosine_node.doctor.processes import answer_parent\n"
        "print('libraries say things')\nanswer_parent(lambda question: {'got': question})\n"
    )
    assert asyncio.run(ask_child("echo", {"a": [1, "ä"]})) == {"got": {"a": [1, "ä"]}}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("silent", "code 0"),
        ("chatty", "code 0"),
        ("crashing", "it broke"),
        ("killed", "signal 11"),
        ("absent", "absent"),
    ],
)
def test_a_child_that_does_not_answer_is_one_error(children: Path, name: str, reason: str) -> None:
    if name in BAD_CHILDREN:
        (children / f"{name}.py").write_text(BAD_CHILDREN[name])
    with pytest.raises(ProbeFailed, match=reason):
        asyncio.run(ask_child(name, {}))


def wait_for_line(file: Path) -> None:
    """Until another process has written it."""
    while not file.exists() or not file.read_text():
        time.sleep(0.01)


def wait_for_end(pid: int) -> None:
    """Until a process is gone, or dead and not yet collected."""
    status = Path(f"/proc/{pid}/stat")
    while status.exists() and status.read_text().split()[2] != "Z":
        time.sleep(0.01)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_child_that_hangs_is_killed_with_what_it_started(children: Path) -> None:
    (children / "hanging.py").write_text(
        "import subprocess, sys, pathlib\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
        f"pathlib.Path({str(children / 'pid')!r}).write_text(str(child.pid))\nchild.wait()\n"
    )

    async def run() -> None:
        asking = asyncio.ensure_future(ask_child("hanging", {}))
        await in_thread(lambda: wait_for_line(children / "pid"))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(run())
    wait_for_end(int((children / "pid").read_text()))
