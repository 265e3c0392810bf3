"""Events and logs of a node or gateway for machines and people, and the stages of a start."""

import io
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from cosine_cli.serve import SENTENCES
from cosine_p2p.session.request_log import RequestLogger
from cosine_terminal.events import SENTENCES as SENTENCES_OF_NODES
from cosine_terminal.events import STAGES, JsonLines, emitter, telling, timed
from tests.full_disk import full_disk

REQUEST = {"id": "i", "method": "GET", "path": "/health", "status": 200, "seconds": 0.1}


@pytest.mark.parametrize(
    ("log_format", "as_json", "told"),
    [("json", False, ("ready", "stopped")), ("pretty", True, ("ready",)), ("json", True, ("ready",))],
)
def test_events_are_json_lines(
    log_format: str, as_json: bool, told: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    emit = emitter(log_format, as_json=as_json, sentences=SENTENCES)
    for event, fields in (("ready", {"url": "u"}), ("request", REQUEST), ("stopped", {})):
        emit(event, dict(fields))
    out, err = capsys.readouterr()
    assert tuple(json.loads(line)["event"] for line in out.splitlines()) == told
    assert json.loads(err.splitlines()[0]) == {"event": "request", **REQUEST}


def test_events_that_find_no_room_end_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "log").open("w") as log:
        monkeypatch.setattr("sys.stderr", log)
        emit = emitter("json", as_json=True)
        with full_disk():
            emit("joining", {})
        emit("joined", {})
    assert json.loads((tmp_path / "log").read_text().splitlines()[-1]) == {"event": "joined"}


LOG = logging.getLogger("cosine_node.somewhere")
D_0 = bytes.fromhex("0123456789abcdef" * 2)
PEER = "12D3KooWT3FTL4gp9kXNHAkxymcJGPWvEkBj7jiZfxmWzvur8f5g"


@pytest.fixture
def handler() -> Iterator["logging.StreamHandler[Any]"]:
    """A log as set up by the command line: warnings to stderr."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    made = logging.StreamHandler()
    root.handlers[:] = [made]
    root.setLevel(logging.WARNING)
    yield made
    root.handlers[:] = before
    root.setLevel(level)


def test_a_request_is_named(handler: "logging.StreamHandler[Any]", capsys: pytest.CaptureFixture[str]) -> None:
    handler.setStream(sys.stderr)
    with telling("json", as_json=False):
        RequestLogger(LOG, D_0, client=PEER).info("opened, %d prompt tokens", 5)
        LOG.debug("not said")
        logging.getLogger("another").info("not said")
    LOG.info("not said either")
    (line,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "event": "log",
        "level": "info",
        "logger": "cosine_node.somewhere",
        "message": "request=01234567 client=zvur8f5g: opened, 5 prompt tokens",
        "request": "01234567",
        "client": "zvur8f5g",
    }


def test_an_error_keeps_its_traceback_on_one_line() -> None:
    try:
        raise ValueError("odd")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    line = JsonLines().format(logging.LogRecord("n", logging.ERROR, "f", 1, "it failed", None, info))
    assert "\n" not in line
    assert json.loads(line)["traceback"].endswith("ValueError: odd")


START: Final[tuple[tuple[str, dict[str, object]], ...]] = (
    ("importing", {}),
    ("fetching", {"model": "org/model"}),
    ("gathering", {"model": "layers 0:3 of 8 of org/model"}),
    ("gathered", {"said": "3 of 9 MiB are here, read from one source."}),
    ("loading", {"model": "org/model"}),
    ("testing", {"model": "org/model"}),
    ("measuring", {"model": "org/model"}),
    ("joining", {"network": "main", "initial_peers": []}),
    ("announcing", {"target": "zoo:target"}),
    ("announced", {"target": "zoo:target", "stored": True}),
    (
        "ready",
        {
            "role": "drafter",
            "peer_id": "12D3",
            "said": "Others reach this node directly.",
            "maddrs": ["/ip4/192.0.2.1/tcp/1", "/ip4/192.168.1.2/tcp/1", "/ip4/127.0.0.1/tcp/1"],
        },
    ),
    ("worked", {"model": "org/model", "said": "drafted 12 tokens"}),
    ("stopped", {"passes": 3, "model": "org/model", "said": "drafted 20 tokens"}),
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def told(
    monkeypatch: pytest.MonkeyPatch, err: io.StringIO, log_format: str, *, as_json: bool = False
) -> tuple[str, str]:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "")
    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS")
    with telling(log_format, as_json=as_json) as emit:
        for event, fields in START:
            emit(event, dict(fields))
    return out.getvalue(), err.getvalue()


def test_on_a_terminal_stages_are_shown_on_stderr_and_the_rest_on_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = told(monkeypatch, Terminal(), "pretty")
    assert out.splitlines() == [
        "Ready as drafter 12D3. Others reach this node directly. Give others this address:",
        "  /ip4/192.0.2.1/tcp/1",
        "It also listens at:",
        "  /ip4/192.168.1.2/tcp/1",
        "  /ip4/127.0.0.1/tcp/1",
        "Stopped after 3 passes. org/model drafted 20 tokens.",
    ]
    assert err.endswith("org/model drafted 12 tokens.\n")
    assert "Joining the network main" in err
    assert re.search(r"✓ \S*Reading the weights of org/model\S*  0\.0 s", err)
    assert "HF_HUB_DISABLE_PROGRESS_BARS" not in os.environ


def test_on_a_pipe_there_are_only_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = told(monkeypatch, io.StringIO(), "pretty")
    assert err.splitlines() == [
        "Importing the libraries ...",
        "Fetching layers 0:3 of 8 of org/model from the swarm ...",
        "3 of 9 MiB are here, read from one source.",
        "Reading the weights of org/model ...",
        "Testing whether org/model runs exactly ...",
        "Measuring org/model on this machine ...",
        "org/model drafted 12 tokens.",
    ]
    assert out.startswith("Ready as drafter")


@pytest.mark.parametrize("as_json", [False, True])
def test_machines_read_ready_first_and_no_bar_comes_between(monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    out, err = told(monkeypatch, Terminal(), "pretty" if as_json else "json", as_json=as_json)
    events = [json.loads(line)["event"] for line in out.splitlines()]
    lines = [json.loads(line) for line in err.splitlines()]
    others = [line["event"] for line in lines if line["event"] != "took"]
    assert [line["stage"] for line in lines if line["event"] == "took"] == list(STAGES)
    assert events == ["ready"] + ["stopped"] * (not as_json)
    assert others == [event for event, _ in START if event not in events]
    assert os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] == "1"


def test_how_long_each_stage_took_is_told_before_what_ends_it() -> None:
    now_s = iter((0.0, 5.25, 6.0, 6.5))
    events: list[tuple[str, dict[str, object]]] = []
    emit = timed(lambda event, fields: events.append((event, fields)), least_s=1.0, clock=lambda: next(now_s))
    for event in ("importing", "loading", "loaded", "measured"):
        emit(event, {"model": "m"})
    # The weights were read in half a second, which is not reported.
    assert [event for event, _ in events] == ["importing", "took", "loading", "loaded", "measured"]
    assert events[1][1] == {"stage": "importing", "said": "Importing the libraries", "seconds": 5.25}
    assert SENTENCES_OF_NODES["took"].format(**events[1][1]) == "Importing the libraries took 5.2 s."
