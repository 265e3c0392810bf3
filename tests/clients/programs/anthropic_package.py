"""The `anthropic` package: messages whole and streamed, tools, and tokens counted."""

from typing import Any

from anthropic import Anthropic

from tests.clients.programs.asked import CITIES, PARAMETERS, QUESTION, River
from tests.clients.programs.job import Gateway, do

GREEDY = {"temperature": 0}
"""The package no longer has an argument for it."""
SAID: list[Any] = [{"role": "user", "content": QUESTION}]
WEATHER: Any = {"name": "weather", "description": "Forecast.", "input_schema": PARAMETERS}


def client(gateway: Gateway) -> Anthropic:
    return Anthropic(base_url=gateway.url, api_key=gateway.key, max_retries=0, timeout=300)


def messages(gateway: Gateway) -> str:
    done = client(gateway).messages.create(
        model=gateway.model, system="Be brief.", messages=SAID, max_tokens=24, extra_body=GREEDY
    )
    (block,) = done.content
    assert block.type == "text" and block.text and 0 < done.usage.output_tokens <= 24
    assert done.stop_reason in ("end_turn", "max_tokens")
    return f"{done.usage.output_tokens} tokens"


def stream(gateway: Gateway) -> str:
    options: dict[str, Any] = {"model": gateway.model, "messages": SAID, "max_tokens": 24, "extra_body": GREEDY}
    whole = client(gateway).messages.create(**options).content[0].text
    with client(gateway).messages.stream(**options) as events:
        pieces = list(events.text_stream)
        assert "".join(pieces) == whole == events.get_final_text()
    return f"the same text in {len(pieces)} pieces"


def tools(gateway: Gateway) -> str:
    options: dict[str, Any] = {"model": gateway.model, "tools": [WEATHER], "max_tokens": 64}
    choices: list[Any] = [{"type": "any"}, {"type": "tool", "name": "weather"}]
    for choice in choices:
        # One: a small model might call until there is no room.
        one = choice | {"disable_parallel_tool_use": True}
        first = client(gateway).messages.create(messages=SAID, tool_choice=one, **options)
        (call, *_) = [block for block in first.content if block.type == "tool_use"]
        assert call.name == "weather" and call.input["city"] in CITIES and first.stop_reason == "tool_use"
    answer = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain."}
    talk = [*SAID, {"role": "assistant", "content": first.content}, {"role": "user", "content": [answer]}]
    second = client(gateway).messages.create(messages=talk, tool_choice={"type": "none"}, **options)
    assert second.stop_reason in ("end_turn", "max_tokens")
    return "`any` and a named tool; the tool's answer read, and a text after it"


def streamed_tools(gateway: Gateway) -> str:
    with client(gateway).messages.stream(
        model=gateway.model, messages=SAID, tools=[WEATHER], tool_choice={"type": "any"}, max_tokens=64
    ) as events:
        pieces = [event.partial_json for event in events if event.type == "input_json"]
        (call, *_) = [block for block in events.get_final_message().content if block.type == "tool_use"]
    assert pieces and call.input["days"] in range(1, 8)
    return f"`any`, the input in {len(pieces)} pieces"


def structured_output(gateway: Gateway) -> str:
    done = client(gateway).messages.parse(model=gateway.model, messages=SAID, max_tokens=64, output_format=River)
    assert isinstance(done.parsed_output, River), done
    return "`parse` into a Pydantic model"


def counted_tokens(gateway: Gateway) -> str:
    bare = client(gateway).messages.count_tokens(model=gateway.model, messages=SAID).input_tokens
    told = client(gateway).messages.count_tokens(model=gateway.model, messages=SAID, tools=[WEATHER]).input_tokens
    used = client(gateway).messages.create(model=gateway.model, messages=SAID, max_tokens=1).usage
    assert told > bare == used.input_tokens + (used.cache_read_input_tokens or 0)
    return "as many as a message then uses, more with a tool"


if __name__ == "__main__":
    do(messages, stream, structured_output, tools, streamed_tools, counted_tokens)
