"""Events of a node or gateway, as machines and people read them."""

import json
from pathlib import Path

import pytest

from cosine_node.cli.serve import SENTENCES
from cosine_node.terminal.events import emitter
from tests.full_disk import full_disk


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--log-format", "json"), ("ready", "stopped")),
        (("--json",), ("ready",)),
        (("--json", "--log-format", "json"), ("ready",)),
    ],
)
def test_a_line_for_machines_is_one_object(
    options: tuple[str, ...], told: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    emit = emitter(
        "json" if "--log-format" in options else "pretty", as_json="--json" in options, sentences=SENTENCES
    )
    request: dict[str, object] = {"id": "i", "method": "GET", "path": "/health", "status": 200, "seconds": 0.1}
    for event, fields in (("ready", {"url": "u"}), ("request", request), ("stopped", {})):
        emit(event, dict(fields))
    out, err = capsys.readouterr()
    assert tuple(json.loads(line)["event"] for line in out.splitlines()) == told
    assert json.loads(err.splitlines()[0]) == {"event": "request", **request}


def test_a_request_is_a_line_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"id": "i", "method": "GET", "path": "/health", "status": 200, "seconds": 0.1, "choices": 1}
    emit = emitter("pretty", as_json=False, sentences=SENTENCES)
    emit("request", fields)
    emit("request", fields | {"status": 503, "error": "Nobody serves."})
    assert capsys.readouterr() == ("", "GET /health 200 in 0.1 s, i\nGET /health 503 in 0.1 s, i: Nobody serves.\n")


def test_events_that_find_no_room_end_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "log").open("w") as log:
        monkeypatch.setattr("sys.stderr", log)
        emit = emitter("json", as_json=True)
        with full_disk():
            emit("joining", {})
        emit("joined", {})
    assert json.loads((tmp_path / "log").read_text().splitlines()[-1]) == {"event": "joined"}
