"""Pydantic AI: an agent that chats, and one whose answer is an object, by a schema and by a tool."""

from pydantic_ai import Agent, ModelSettings, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.programs.asked import QUESTION, River
from tests.clients.programs.job import Gateway, do

SETTINGS = ModelSettings(max_tokens=64, temperature=0, timeout=300)


def model(gateway: Gateway) -> OpenAIChatModel:
    return OpenAIChatModel(gateway.model, provider=OpenAIProvider(base_url=gateway.base, api_key=gateway.key))


def chat(gateway: Gateway) -> str:
    done = Agent(model(gateway), model_settings=SETTINGS).run_sync(QUESTION)
    assert done.output and done.usage.output_tokens
    return f"{done.usage.output_tokens} tokens"


def stream(gateway: Gateway) -> str:
    agent = Agent(model(gateway), model_settings=SETTINGS)
    streamed = agent.run_stream_sync(QUESTION)
    pieces = list(streamed.stream_text(delta=True))
    assert "".join(pieces) == agent.run_sync(QUESTION).output
    return f"the same text in {len(pieces)} pieces"


def structured_output(gateway: Gateway) -> str:
    agent = Agent(model(gateway), output_type=NativeOutput(River), model_settings=SETTINGS)
    assert isinstance(agent.run_sync(QUESTION).output, River)
    return "`NativeOutput` of a Pydantic model"


def tools(gateway: Gateway) -> str:
    agent = Agent(model(gateway), output_type=ToolOutput(River), model_settings=SETTINGS)
    assert isinstance(agent.run_sync(QUESTION).output, River)
    return "`ToolOutput`, whose tool Pydantic AI requires"


def responses(gateway: Gateway) -> str:
    provider = OpenAIProvider(base_url=gateway.base, api_key=gateway.key)
    done = Agent(OpenAIResponsesModel(gateway.model, provider=provider), model_settings=SETTINGS).run_sync(QUESTION)
    assert done.output
    return f"{done.usage.output_tokens} tokens"


if __name__ == "__main__":
    do(chat, stream, structured_output, tools, responses)
