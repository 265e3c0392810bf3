"""The `openai` package: chats, structured outputs, tools, log-probabilities and responses, whole and streamed."""

import json
from typing import Any

from openai import OpenAI

from tests.clients.programs.asked import CITIES, PARAMETERS, QUESTION, River
from tests.clients.programs.job import Gateway, do

SAID: list[Any] = [{"role": "user", "content": QUESTION}]
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "Forecast.", "parameters": PARAMETERS},
}
FLAT: Any = {"type": "function", "name": "weather", "description": "Forecast.", "parameters": PARAMETERS}


def client(gateway: Gateway) -> OpenAI:
    return OpenAI(base_url=gateway.base, api_key=gateway.key, max_retries=0, timeout=300)


def chat(gateway: Gateway) -> str:
    done = client(gateway).chat.completions.create(model=gateway.model, messages=SAID, max_tokens=24, temperature=0)
    assert done.choices[0].message.content and done.usage and done.usage.completion_tokens <= 24, done
    return f"{done.usage.completion_tokens} tokens"


def stream(gateway: Gateway) -> str:
    options: dict[str, Any] = {"model": gateway.model, "messages": SAID, "max_tokens": 24, "temperature": 0}
    whole = client(gateway).chat.completions.create(**options).choices[0].message.content
    pieces = list(client(gateway).chat.completions.create(**options, stream=True))
    assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == whole
    return f"the same text in {len(pieces)} pieces"


def completion(gateway: Gateway) -> str:
    done = client(gateway).completions.create(
        model=gateway.model, prompt="The capital of France is", max_tokens=8, temperature=0, echo=True
    )
    assert done.choices[0].text.startswith("The capital of France is ")
    return "text after the prompt"


def structured_output(gateway: Gateway) -> str:
    done = client(gateway).chat.completions.parse(
        model=gateway.model, messages=SAID, response_format=River, max_tokens=64
    )
    assert isinstance(done.choices[0].message.parsed, River), done
    return "`parse` into a Pydantic model"


def tools(gateway: Gateway) -> str:
    named: Any = {"type": "function", "function": {"name": "weather"}}
    options: dict[str, Any] = {"model": gateway.model, "tools": [WEATHER], "max_tokens": 64}
    for choice in ("required", named):
        # One: a small model might call until there is no room.
        first = client(gateway).chat.completions.create(
            messages=SAID, tool_choice=choice, parallel_tool_calls=False, **options
        )
        (call, *_) = first.choices[0].message.tool_calls or []
        assert call.type == "function" and call.function.name == "weather"
        assert json.loads(call.function.arguments)["city"] in CITIES
    answer = {"role": "tool", "tool_call_id": call.id, "content": "Rain."}
    talk: list[Any] = [*SAID, first.choices[0].message.model_dump(exclude_none=True), answer]
    second = client(gateway).chat.completions.create(messages=talk, tool_choice="none", **options)
    assert second.choices[0].finish_reason in ("stop", "length") and not second.choices[0].message.tool_calls
    return "`required` and a named tool; the tool's answer read, and a text after it"


def streamed_tools(gateway: Gateway) -> str:
    with client(gateway).chat.completions.stream(
        model=gateway.model,
        messages=SAID,
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=64,
    ) as events:
        kinds = {event.type for event in events}
        (call, *_) = events.get_final_completion().choices[0].message.tool_calls or []
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    assert 1 <= json.loads(call.function.arguments)["days"] <= 7
    return "`required`, in the events of `chat.completions.stream`"


def log_probabilities(gateway: Gateway) -> str:
    done = client(gateway).chat.completions.create(
        model=gateway.model, messages=SAID, max_tokens=8, temperature=0, logprobs=True, top_logprobs=3
    )
    assert done.choices[0].logprobs and done.choices[0].logprobs.content
    for place in done.choices[0].logprobs.content:
        # Greedily, the token is the most probable.
        assert len(place.top_logprobs) == 3 and place.logprob == max(top.logprob for top in place.top_logprobs)
    return "of each token and of the best three"


def responses(gateway: Gateway) -> str:
    # Room for the whole text: what is cut has no final response for this package's stream.
    options: dict[str, Any] = {
        "model": gateway.model,
        "input": QUESTION,
        "max_output_tokens": 128,
        "temperature": 0,
    }
    done = client(gateway).responses.create(**options)
    assert done.output_text and done.status == "completed" and done.usage and done.usage.output_tokens
    with client(gateway).responses.stream(**options) as events:
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(deltas) == events.get_final_response().output_text == done.output_text
    parsed = client(gateway).responses.parse(
        model=gateway.model, input="Name a river.", text_format=River, max_output_tokens=64
    )
    assert isinstance(parsed.output_parsed, River)
    return "whole, streamed the same, and `parse` into a Pydantic model"


def responses_with_tools(gateway: Gateway) -> str:
    options: dict[str, Any] = {"model": gateway.model, "tools": [FLAT], "max_output_tokens": 64}
    first = client(gateway).responses.create(
        input="Weather?", tool_choice="required", parallel_tool_calls=False, **options
    )
    (call, *_) = [item for item in first.output if item.type == "function_call"]
    assert json.loads(call.arguments)["city"] in CITIES
    asked: list[Any] = [
        {"role": "user", "content": "Weather?"},
        *(item.model_dump(exclude_none=True) for item in first.output),
        {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."},
    ]
    second = client(gateway).responses.create(input=asked, tool_choice="none", **options)
    assert [item.type for item in second.output if item.type != "reasoning"] == ["message"]
    return "`required`; the tool's answer read, and a text after it"


if __name__ == "__main__":
    do(
        chat, stream, completion, structured_output, tools, streamed_tools, log_probabilities, responses,
        responses_with_tools,
    )  # fmt: skip
