"""The command `llm`: texts whole and streamed, a schema, and tools offered."""

import json
import tempfile
from pathlib import Path

from tests.clients.programs.asked import QUESTION, River
from tests.clients.programs.job import Gateway, do, said_by

MODELS = """
- model_id: swarm
  model_name: {model}
  api_base: {base}
  api_key_name: swarm
  supports_schema: true
  supports_tools: true
"""


def llm(gateway: Gateway, *arguments: str) -> str:
    """Return the output of `llm`, with its settings in a temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "extra-openai-models.yaml").write_text(MODELS.format(model=gateway.model, base=gateway.base))
        options = ("-m", "swarm", "--key", gateway.key, "-o", "temperature", "0", "-o", "max_tokens", "64")
        return said_by("llm", *options, *arguments, folder=folder, LLM_USER_PATH=name).strip()


def chat(gateway: Gateway) -> str:
    assert llm(gateway, "--no-stream", QUESTION)
    return "a text on the terminal"


def stream(gateway: Gateway) -> str:
    assert llm(gateway, QUESTION) == llm(gateway, "--no-stream", QUESTION)
    return "the same text"


def structured_output(gateway: Gateway) -> str:
    River.model_validate_json(llm(gateway, "--schema", json.dumps(River.model_json_schema()), QUESTION))
    return "a JSON schema"


def tools(gateway: Gateway) -> str:
    assert llm(gateway, "--tool", "llm_version", "--chain-limit", "3", "Say hello.")
    return "offered, which the model need not call; a text came"


if __name__ == "__main__":
    do(chat, stream, structured_output, tools)
