"""The command: one sentence for every mistake, an SVG for `--screenshot`, a clean end in a terminal."""

import asyncio
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from cosine_protocol.errors import UsageError
from cosine_tui.cli import main
from cosine_tui.looks.themes import DARK
from cosine_tui.state.snapshot import Snapshot
from cosine_tui.svg_export import draw_svg
from tests.thoroughness import THOROUGH
from tests.tui.snapshots import RecordingFeed

ADDRESS = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWGkDE6SiWuUbdKFYrKhdRDxRo52GDGsEHR4t61j7DM4Ek"
ALTERNATE_SCREEN, NORMAL_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


def told(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return int(end.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "No initial peers: give the address of at least one node"),
        (("--demo", "--theme", "pink"), "--theme is dark or light, not 'pink'."),
        (("--demo", "--demo-speed", "0"), "--demo-speed lies between 0.05 and 20."),
        (("--demo", "--after", "0"), "--after must be above 0 seconds."),
        (("--demo", "--screenshot", "a.svg", "--size", "big"), "--size must be COLUMNSxROWS"),
        (("--demo", "--screenshot", "/nowhere/at/all/a.svg"), "/nowhere/at/all is no folder; make it first."),
        (("--demo",), "cosine-tui needs a terminal"),
        (("--initial-peers", ADDRESS, "--target", "model@cafe"), "what follows the @ must be a target digest"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: Sequence[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COSINE_INITIAL_PEERS", raising=False)
    code, errors = told(arguments, capsys)
    assert code == 2 and errors.startswith("Error: ") and said in errors and errors.count("\n") == 1


def test_what_ends_a_feed_before_its_first_snapshot_is_raised() -> None:
    feed = RecordingFeed(Snapshot())
    feed.fail(UsageError("That is no address."))
    with pytest.raises(UsageError, match="That is no address"):
        asyncio.run(draw_svg(feed, size=(80, 24), theme=DARK))


@pytest.mark.thorough
def test_a_screenshot_of_the_demo_is_the_same_every_time(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        with pytest.raises(SystemExit) as end:
            main(("--demo", "--screenshot", str(tmp_path / name), "--size", "80x24", "--after", "1"))
        assert not end.value.code
    first = (tmp_path / "a.svg").read_text("utf-8")
    assert first == (tmp_path / "b.svg").read_text("utf-8") and "DRAFTERS" in first


SOAK = pytest.mark.soak


@pytest.mark.parametrize(
    "end",
    [
        b"\x11\x11",
        pytest.param(signal.SIGTERM, marks=THOROUGH),
        pytest.param(b"\x03\x03", marks=SOAK),
        pytest.param(signal.SIGHUP, marks=SOAK),
        pytest.param(signal.SIGQUIT, marks=SOAK),
    ],
)
def test_in_a_terminal_typing_ahead_is_text_and_it_ends_cleanly(end: bytes | signal.Signals) -> None:
    """The demo in a pseudo-terminal: a burst before the first paint becomes a prompt, and the exit code is 0 with
    the screen restored, whatever ends the demo.
    """
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    command = [sys.executable, "-m", "cosine_tui", "--demo"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    try:
        shown = read_until(ours, ALTERNATE_SCREEN)
        os.write(ours, b"pquick sort")
        shown += read_until(ours, b"DRAFTERS")
        os.write(ours, b"\r")
        shown += read_until(ours, b"pquick")
        if isinstance(end, bytes):
            os.write(ours, end)
        else:
            process.send_signal(end)
        shown += read_until(ours, None)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert shown.rfind(NORMAL_SCREEN) > shown.rfind(ALTERNATE_SCREEN) >= 0
    assert b"Traceback" not in shown


def read_until(place: int, wanted: bytes | None) -> bytes:
    """Return the output to a terminal until `wanted`, or until its other end is closed."""
    shown = b""
    while wanted is None or wanted not in shown:
        if not select.select([place], [], [], 60.0)[0]:
            raise AssertionError(f"{wanted!r} did not come; there was {shown[-2000:]!r}")
        try:
            data = os.read(place, 65_536)
        except OSError:
            data = b""
        if not data:
            assert wanted is None, shown[-2000:]
            return shown
        shown += data
    return shown
