"""A start on a terminal: one line a stage; on a pipe or for machines none of it."""

import io
import json
import os
import sys

import pytest
from rich.console import Console

from cosine_node.terminal.events import STAGES, StartProgress, telling
from cosine_protocol.errors import UsageError

START = (
    ("fetching", {"model": "org/model"}),
    ("loading", {"model": "org/model"}),
    ("measuring", {"model": "org/model"}),
    ("joining", {"network": "main", "initial_peers": []}),
    ("announcing", {"target": "zoo:target"}),
    ("announced", {"target": "zoo:target", "stored": True}),
    ("ready", {"role": "drafter", "peer_id": "12D3", "maddrs": ["/ip4/192.0.2.1/tcp/1"]}),
    ("worked", {"model": "org/model", "said": "drafted 12 tokens"}),
    ("stopped", {"passes": 3, "model": "org/model", "said": "drafted 20 tokens"}),
)


def test_each_stage_leaves_one_line_with_how_long_it_took() -> None:
    out = io.StringIO()
    now_s = iter(range(100))
    progress = StartProgress(Console(file=out, width=100), clock=lambda: float(next(now_s)))
    for event, fields in START:
        progress.follow(event, fields)
    done = [line for line in out.getvalue().splitlines() if line.startswith("✓")]
    assert [line.split("  ")[0] for line in done] == [
        "✓ Fetching org/model from the Hugging Face hub",
        "✓ Loading org/model",
        "✓ Measuring org/model on this machine",
        "✓ Joining the network main",
        "✓ Announcing for zoo:target",
    ]
    assert all(line.endswith("  1.0 s") for line in done)
    assert len(done) == len(STAGES)


def test_a_stage_that_fails_is_not_called_done() -> None:
    out = io.StringIO()
    progress = StartProgress(Console(file=out, force_terminal=True))
    progress.follow(*START[3])
    progress.close()
    assert "✓" not in out.getvalue()
    # The cursor is back.
    assert out.getvalue().rstrip().endswith("\x1b[2K") or "\x1b[?25h" in out.getvalue()


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
        "Ready as drafter 12D3, reachable at:",
        "  /ip4/192.0.2.1/tcp/1",
        "Stopped after 3 passes. org/model drafted 20 tokens.",
    ]
    assert err.endswith("org/model drafted 12 tokens.\n")
    assert "Joining the network main" in err
    assert "HF_HUB_DISABLE_PROGRESS_BARS" not in os.environ


def test_on_a_pipe_there_are_only_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = told(monkeypatch, io.StringIO(), "pretty")
    assert err.splitlines() == [
        "Loading org/model ...",
        "Measuring org/model on this machine ...",
        "org/model drafted 12 tokens.",
    ]
    assert out.startswith("Ready as drafter")


@pytest.mark.parametrize("as_json", [False, True])
def test_machines_read_ready_first_and_no_bar_comes_between(monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    out, err = told(monkeypatch, Terminal(), "pretty" if as_json else "json", as_json=as_json)
    events = [json.loads(line)["event"] for line in out.splitlines()]
    others = [json.loads(line)["event"] for line in err.splitlines()]
    assert events == ["ready"] + ["stopped"] * (not as_json)
    assert others == [event for event, _ in START if event not in events]
    assert os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] == "1"


def test_an_unknown_format_is_bad_usage() -> None:
    with pytest.raises(UsageError, match="--log-format"), telling("xml", as_json=False):
        pass
