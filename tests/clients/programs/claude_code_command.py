"""Claude Code: one turn of its agent without a terminal and without a login."""

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.clients.programs.job import Gateway, do, said_by


def events(gateway: Gateway, *options: str) -> list[dict[str, Any]]:
    """What Claude Code prints of a turn, without its own instructions and most of its tools, for they are long."""
    with tempfile.TemporaryDirectory() as name:
        told = said_by(
            "claude", "-p", "Say hello in one sentence.", "--system-prompt", "You are a coding agent. Be brief.",
            "--tools", "Read", "--disable-slash-commands", "--strict-mcp-config", *options,
            folder=Path(name), may_fail=True, ANTHROPIC_BASE_URL=gateway.url, ANTHROPIC_AUTH_TOKEN=gateway.key,
            ANTHROPIC_MODEL=gateway.model, CLAUDE_CODE_MAX_OUTPUT_TOKENS="64",
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        )  # fmt: skip
    return [json.loads(line) for line in told.splitlines()]


def turn(gateway: Gateway) -> str:
    (told,) = events(gateway, "--output-format", "json")
    assert not told["is_error"] and told["result"] and told["usage"]["output_tokens"], told["result"]
    return "a turn with a tool offered, which the model need not call; the reply streamed and shown"


def streamed_turn(gateway: Gateway) -> str:
    told = events(gateway, "--output-format", "stream-json", "--verbose", "--include-partial-messages")
    parts = [each["event"] for each in told if each["type"] == "stream_event"]
    pieces = [part["delta"].get("text", "") for part in parts if part["type"] == "content_block_delta"]
    assert "".join(pieces) == told[-1]["result"] != "", told[-1]["result"]
    return f"the same, in {len(pieces)} pieces"


if __name__ == "__main__":
    do(turn, streamed_turn)
