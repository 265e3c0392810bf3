"""Codex: one turn of its agent without a terminal, and one whose last message follows a schema."""

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.clients.programs.asked import CITIES, PARAMETERS
from tests.clients.programs.job import Gateway, do, said_by

PROVIDER = """
[model_providers.swarm]
name = "swarm"
base_url = "{base}"
wire_api = "responses"
env_key = "SWARM_KEY"
request_max_retries = 0
stream_max_retries = 0
"""
SHORT = """
model_instructions_file = "instructions.md"
web_search = "disabled"
features.goals = false
agents.enabled = false
"""
"""Codex's own instructions and tools fill the context of a small model, so most are left out."""


def events(gateway: Gateway, *options: str) -> list[dict[str, Any]]:
    """Return the events that Codex prints for a turn, with its settings in a temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        provider = PROVIDER.format(base=gateway.base)
        config = f'model = "{gateway.model}"\nmodel_provider = "swarm"\n{SHORT}{provider}'
        (folder / "config.toml").write_text(config)
        (folder / "instructions.md").write_text("You are a coding agent. Be brief.")
        (folder / "schema.json").write_text(json.dumps(PARAMETERS))
        told = said_by(
            "codex", "exec", "--json", "--skip-git-repo-check", "--sandbox", "read-only", *options,
            "Say hello in one sentence.", folder=folder, may_fail=True, CODEX_HOME=name, SWARM_KEY=gateway.key,
        )  # fmt: skip
    return [json.loads(line) for line in told.splitlines() if line.startswith("{")]


def last_message(told: list[dict[str, Any]]) -> str:
    """The text at the end of a turn."""
    assert told[-1]["type"] == "turn.completed" and told[-1]["usage"]["output_tokens"], told[-1]
    items = [event["item"] for event in told if event["type"] == "item.completed"]
    texts: list[str] = [item["text"] for item in items if item["type"] == "agent_message"]
    return texts[-1]


def turn(gateway: Gateway) -> str:
    assert last_message(events(gateway))
    return "a turn with few of its tools, which the model need not call; the reply streamed and shown"


def structured_output(gateway: Gateway) -> str:
    told = events(gateway, "--output-schema", "schema.json")
    assert json.loads(last_message(told))["city"] in CITIES
    return "the last message follows a schema"


if __name__ == "__main__":
    do(turn, structured_output)
