"""Claude Code: one turn of its agent without a terminal and without a login."""

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.clients.programs.job import Gateway, do, said_by

STREAM = ("--output-format", "stream-json", "--verbose", "--include-partial-messages")
SHORT = ("--system-prompt", "You are a coding agent. Be brief.", "--disable-slash-commands", "--tools", "TaskList")
"""Claude Code's own instructions and tools fill the context of a small model, so most are left out."""


def events(gateway: Gateway, *options: str, **environment: str) -> list[dict[str, Any]]:
    """Return the events that Claude Code prints for a turn."""
    with tempfile.TemporaryDirectory() as name:
        told = said_by(
            "claude", "-p", "Say hello in one sentence.", *SHORT, *STREAM, *options,
            folder=Path(name), may_fail=True, ANTHROPIC_BASE_URL=gateway.url, ANTHROPIC_AUTH_TOKEN=gateway.key,
            ANTHROPIC_MODEL=gateway.model, CLAUDE_CODE_MAX_OUTPUT_TOKENS="256",
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", **environment,
        )  # fmt: skip
    return [json.loads(line) for line in told.splitlines()]


def turn(gateway: Gateway) -> str:
    told = events(gateway, CLAUDE_CODE_EXTRA_BODY=json.dumps({"temperature": 0}))
    assert not told[-1]["is_error"] and told[-1]["usage"]["output_tokens"], told[-1]["result"]
    parts = [each["event"] for each in told if each["type"] == "stream_event"]
    pieces = [part["delta"].get("text", "") for part in parts if part["type"] == "content_block_delta"]
    assert "".join(pieces) == told[-1]["result"] != ""
    return "a turn with one of its tools, which the model need not call; the reply streamed and shown"


def tool(gateway: Gateway) -> str:
    # Claude Code has no option for this. In the second turn the model has read the result of the tool.
    required = json.dumps({"tool_choice": {"type": "tool", "name": "TaskList", "disable_parallel_tool_use": True}})
    told = events(gateway, "--max-turns", "2", CLAUDE_CODE_EXTRA_BODY=required)
    blocks = [
        block for each in told if each["type"] in ("assistant", "user") for block in each["message"]["content"]
    ]
    assert [block["type"] for block in blocks] == ["tool_use", "tool_result"] * 2, told[-1]
    assert blocks[0]["name"] == "TaskList" and blocks[1]["content"] == "No tasks found", blocks
    return "its `TaskList`, required by `CLAUDE_CODE_EXTRA_BODY`, ran twice; what it said was sent back"


if __name__ == "__main__":
    do(turn, tool)
