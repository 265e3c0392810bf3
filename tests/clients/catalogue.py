"""The clients with their packages and programs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final


class Registry(Enum):
    """A package registry, which determines the runtime."""

    PYPI = "PyPI"
    NPM = "npm"


@dataclass(frozen=True, slots=True)
class Client:
    """One client.

    name: what people call it.
    registry: where its packages come from.
    packages: what is installed; the version of the first one is the client's.
    program: a module of `programs`, or a file there that Node.js runs.
    environment: variables that it needs.
    """

    name: str
    registry: Registry
    packages: tuple[str, ...]
    program: str
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The name of the folder in which it is installed."""
        return self.packages[0].partition("[")[0].replace("/", "-").removeprefix("@")


NO_PRICES: Final = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""Stops LiteLLM from fetching prices from the internet."""
CLIENTS: Final = (
    Client("LiteLLM", Registry.PYPI, ("litellm",), "litellm_package", NO_PRICES),
    Client("Instructor", Registry.PYPI, ("instructor",), "instructor_package"),
    Client("Pydantic AI", Registry.PYPI, ("pydantic-ai-slim[openai]",), "pydantic_ai_package"),
    Client("llm", Registry.PYPI, ("llm",), "llm_command"),
    Client("lm-eval", Registry.PYPI, ("lm-eval[api]",), "lm_eval_command"),
    Client("Aider", Registry.PYPI, ("aider-chat",), "aider_command", NO_PRICES),
    Client("AI SDK", Registry.NPM, ("ai", "@ai-sdk/openai-compatible", "zod"), "ai_sdk.mjs"),
    Client("Codex", Registry.NPM, ("@openai/codex",), "codex_command"),
    Client("Claude Code", Registry.NPM, ("@anthropic-ai/claude-code",), "claude_code_command"),
)
"""`tests/gateway/test_packages.py` has the packages of OpenAI, Anthropic and LangChain."""
