"""With `--log-format json` log lines are JSON too, and those of one request carry its name."""

import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from cosine_node.terminal.events import JsonLines, logging_as_json, telling
from cosine_p2p.session.request_log import request_log

LOG = logging.getLogger("cosine_node.somewhere")
D_0 = bytes.fromhex("0123456789abcdef" * 2)
PEER = "12D3KooWT3FTL4gp9kXNHAkxymcJGPWvEkBj7jiZfxmWzvur8f5g"


@pytest.fixture
def handler() -> Iterator["logging.StreamHandler[Any]"]:
    """A log as the command line sets it up: to stderr, warnings only."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    made = logging.StreamHandler()
    root.handlers[:] = [made]
    root.setLevel(logging.WARNING)
    yield made
    root.handlers[:] = before
    root.setLevel(level)


def test_lines_of_a_request_name_it(
    handler: "logging.StreamHandler[Any]", capsys: pytest.CaptureFixture[str]
) -> None:
    handler.setStream(sys.stderr)
    with telling("json", as_json=False):
        request_log(LOG, D_0, client=PEER).info("opened, %d prompt tokens", 5)
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


def test_a_client_leaves_its_own_name_out() -> None:
    message, kwargs = request_log(LOG, D_0).process("7 tokens, eos", {})
    assert (message, kwargs["extra"]) == ("request=01234567: 7 tokens, eos", {"request": "01234567"})


def test_an_error_keeps_its_traceback_on_one_line() -> None:
    try:
        raise ValueError("odd")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    line = JsonLines().format(logging.LogRecord("n", logging.ERROR, "f", 1, "it failed", None, info))
    assert "\n" not in line
    assert json.loads(line)["traceback"].endswith("ValueError: odd")


def test_afterwards_the_log_is_as_before(handler: "logging.StreamHandler[Any]") -> None:
    with logging_as_json():
        assert isinstance(handler.formatter, JsonLines)
        assert LOG.isEnabledFor(logging.INFO)
    assert handler.formatter is None
    assert not LOG.isEnabledFor(logging.INFO)


def test_whoever_asked_for_more_keeps_it(handler: "logging.StreamHandler[Any]") -> None:
    logging.getLogger().setLevel(logging.DEBUG)
    with logging_as_json():
        assert LOG.isEnabledFor(logging.DEBUG)
