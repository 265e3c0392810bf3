"""Codex: one turn of its agent without a terminal, and one whose last message follows a schema."""

import json
import tempfile
from pathlib import Path

from tests.clients.programs.asked import CITIES, PARAMETERS
from tests.clients.programs.job import Gateway, do, said_by

CONFIG = """
model = "{model}"
model_provider = "swarm"
model_instructions_file = "instructions.md"
web_search = "disabled"

[features]
goals = false

[agents]
enabled = false

[model_providers.swarm]
name = "swarm"
base_url = "{base}"
wire_api = "responses"
env_key = "SWARM_KEY"
request_max_retries = 0
stream_max_retries = 0
"""
"""Codex's own instructions and tools fill the context of a small model, so most are left out."""


def last_message(gateway: Gateway, *options: str) -> str:
    """What Codex shows at the end of a turn, with its settings in a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.toml").write_text(CONFIG.format(model=gateway.model, base=gateway.base))
        (folder / "instructions.md").write_text("You are a coding agent. Be brief.")
        (folder / "schema.json").write_text(json.dumps(PARAMETERS))
        told = said_by(
            "codex", "exec", "--json", "--skip-git-repo-check", "--sandbox", "read-only", *options,
            "Say hello in one sentence.", folder=folder, may_fail=True, CODEX_HOME=name, SWARM_KEY=gateway.key,
        )  # fmt: skip
    events = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert events[-1]["type"] == "turn.completed" and events[-1]["usage"]["output_tokens"], events[-1]
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    texts: list[str] = [item["text"] for item in items if item["type"] == "agent_message"]
    return texts[-1]


def turn(gateway: Gateway) -> str:
    assert last_message(gateway)
    return "a turn with its tools offered, which the model need not call; the reply streamed and shown"


def structured_output(gateway: Gateway) -> str:
    assert json.loads(last_message(gateway, "--output-schema", "schema.json"))["city"] in CITIES
    return "the last message follows a schema"


if __name__ == "__main__":
    do(turn, structured_output)
