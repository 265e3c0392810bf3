"""LiteLLM: chats whole and streamed, a schema, and tools, through its provider for servers like OpenAI's."""

import json
from typing import Any

import litellm

from tests.clients.programs.asked import CITIES, PARAMETERS, QUESTION, River
from tests.clients.programs.job import Gateway, do

SAID: list[Any] = [{"role": "user", "content": QUESTION}]
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "Forecast.", "parameters": PARAMETERS},
}


def ask(gateway: Gateway, **options: Any) -> Any:
    return litellm.completion(
        model=f"openai/{gateway.model}", api_base=gateway.base, api_key=gateway.key, num_retries=0, timeout=300,
        messages=SAID, **options,
    )  # fmt: skip


def chat(gateway: Gateway) -> str:
    done = ask(gateway, max_tokens=24, temperature=0)
    assert done.choices[0].message.content and 0 < done.usage.completion_tokens <= 24
    return f"{done.usage.completion_tokens} tokens"


def stream(gateway: Gateway) -> str:
    whole = ask(gateway, max_tokens=24, temperature=0).choices[0].message.content
    pieces = list(ask(gateway, max_tokens=24, temperature=0, stream=True))
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == whole
    return f"the same text in {len(pieces)} pieces"


def structured_output(gateway: Gateway) -> str:
    done = ask(gateway, response_format=River, max_tokens=64)
    River.model_validate_json(done.choices[0].message.content)
    return "a Pydantic model as `response_format`"


def tools(gateway: Gateway) -> str:
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        done = ask(gateway, tools=[WEATHER], tool_choice=choice, max_tokens=64)
        (call, *_) = done.choices[0].message.tool_calls
        assert call.function.name == "weather" and json.loads(call.function.arguments)["city"] in CITIES
    pieces = list(ask(gateway, tools=[WEATHER], tool_choice="required", max_tokens=64, stream=True))
    (call, *_) = litellm.stream_chunk_builder(pieces).choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in CITIES
    return "`required`, whole and streamed, and a named tool"


def responses(gateway: Gateway) -> str:
    done = litellm.responses(
        model=f"openai/{gateway.model}", api_base=gateway.base, api_key=gateway.key, timeout=300, input=QUESTION,
        max_output_tokens=24,
    )  # fmt: skip
    assert done.output[-1].content[0].text
    return f"{done.usage.output_tokens} tokens"


if __name__ == "__main__":
    do(chat, stream, structured_output, tools, responses)
