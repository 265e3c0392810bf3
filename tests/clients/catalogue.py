"""The clients: what is installed of each, which program has its jobs, and how a user points it at a gateway."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final


class Registry(Enum):
    """Where packages come from, and so what runs them."""

    PYPI = "PyPI"
    NPM = "npm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client. The version of the first package is its own.

    `program` is a module of `programs`, or a file there that Node.js runs. `set_by` is what a user writes, in
    Markdown.
    """

    name: str
    registry: Registry
    packages: tuple[str, ...]
    program: str
    set_by: str
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The name of the folder in which it is installed."""
        return self.packages[0].partition("[")[0].replace("/", "-").removeprefix("@")


CLIENTS: Final = (
    Client(
        name="OpenAI for Python",
        registry=Registry.PYPI,
        packages=("openai",),
        program="openai_package",
        set_by='`OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")`, then `model="cosine"`',
    ),
    Client(
        name="Anthropic for Python",
        registry=Registry.PYPI,
        packages=("anthropic",),
        program="anthropic_package",
        set_by='`Anthropic(base_url="http://127.0.0.1:8000", api_key="none")`, then `model="cosine"`',
    ),
    Client(
        name="LiteLLM",
        registry=Registry.PYPI,
        packages=("litellm",),
        program="litellm_package",
        set_by='`completion(model="openai/cosine", api_base="http://127.0.0.1:8000/v1", api_key="none", ...)`',
        # It would ask the internet what models cost.
        environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    ),
    Client(
        name="LangChain",
        registry=Registry.PYPI,
        packages=("langchain-openai",),
        program="langchain_package",
        set_by='`ChatOpenAI(model="cosine", base_url="http://127.0.0.1:8000/v1", api_key="none")`',
    ),
    Client(
        name="Instructor",
        registry=Registry.PYPI,
        packages=("instructor",),
        program="instructor_package",
        set_by='`from_openai(OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none"))`, then `model="cosine"`',
    ),
    Client(
        name="Pydantic AI",
        registry=Registry.PYPI,
        packages=("pydantic-ai-slim[openai]",),
        program="pydantic_ai_package",
        set_by="`OpenAIChatModel(\"cosine\", provider=p)` with "
        '`p = OpenAIProvider(base_url="http://127.0.0.1:8000/v1", api_key="none")`',
    ),
    Client(
        name="llm",
        registry=Registry.PYPI,
        packages=("llm",),
        program="llm_command",
        set_by="in `extra-openai-models.yaml`: `model_id: swarm`, `model_name: cosine`, "
        "`api_base: http://127.0.0.1:8000/v1`, `supports_schema: true`, `supports_tools: true`",
    ),
    Client(
        name="lm-eval",
        registry=Registry.PYPI,
        packages=("lm-eval[api]",),
        program="lm_eval_command",
        set_by="the model `local-completions` with the arguments "
        "`model=cosine,base_url=http://127.0.0.1:8000/v1/completions`, and `auth_token` for a key; it asks the "
        "gateway for the tokenizer",
    ),
    Client(
        name="Aider",
        registry=Registry.PYPI,
        packages=("aider-chat",),
        program="aider_command",
        set_by="`OPENAI_API_BASE=http://127.0.0.1:8000/v1`, `OPENAI_API_KEY=none`, "
        "then `aider --model openai/cosine`",
        environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    ),
    Client(
        name="AI SDK",
        registry=Registry.NPM,
        packages=("ai", "@ai-sdk/openai-compatible", "zod"),
        program="ai_sdk.mjs",
        set_by="`createOpenAICompatible({ name: 'swarm', baseURL: 'http://127.0.0.1:8000/v1' })('cosine')`, with "
        "`supportsStructuredOutputs: true` for schemas",
    ),
    Client(
        name="Codex",
        registry=Registry.NPM,
        packages=("@openai/codex",),
        program="codex_command",
        set_by="in `config.toml`: `model = \"cosine\"`, `model_provider = \"swarm\"`, and under "
        '`[model_providers.swarm]` `name = "swarm"`, `base_url = "http://127.0.0.1:8000/v1"`, '
        '`wire_api = "responses"`',
    ),
    Client(
        name="Claude Code",
        registry=Registry.NPM,
        packages=("@anthropic-ai/claude-code",),
        program="claude_code_command",
        set_by="`ANTHROPIC_BASE_URL=http://127.0.0.1:8000`, `ANTHROPIC_AUTH_TOKEN=none`, `ANTHROPIC_MODEL=cosine`",
    ),
)  # fmt: skip
