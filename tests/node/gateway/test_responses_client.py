"""Responses as the `openai` package sees them, over a socket."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel

from tests.node.gateway.gateways import MODEL, PROMPT, ServedGateway, served, text_of
from tests.node.gateway.json_letters import json_swarm, tool_swarm
from tests.node.gateway.played import looks_up, played_swarm

pytestmark = pytest.mark.network

TOKENS: Final = 20
GREEDY: Final = text_of(PROMPT, tokens=TOKENS)
ASKED: Final[dict[str, Any]] = {"model": MODEL, "input": PROMPT, "temperature": 0, "max_output_tokens": TOKENS}


class Found(BaseModel):
    """What a text must be."""

    a: int
    b: bool


@pytest.fixture(scope="module")
def gateway() -> Iterator[ServedGateway]:
    with served() as running:
        yield running


@pytest.fixture(scope="module")
def client(gateway: ServedGateway) -> Iterator[OpenAI]:
    with OpenAI(base_url=gateway.base_url, api_key="none", max_retries=0) as openai:
        yield openai


def test_a_response_is_the_targets_text(client: OpenAI) -> None:
    done = client.responses.create(**ASKED)
    assert (done.output_text, done.status, done.model) == (GREEDY, "incomplete", MODEL)
    assert done.usage is not None
    assert (done.usage.input_tokens, done.usage.output_tokens, done.usage.total_tokens) == (8, TOKENS, 28)


def test_a_conversation_goes_on_with_the_items_that_came_back(client: OpenAI) -> None:
    items: list[Any] = [{"role": "user", "content": PROMPT}]
    done = client.responses.create(**ASKED | {"input": items})
    items += [*done.output, {"role": "user", "content": "89"}]
    again = client.responses.create(**ASKED | {"input": items})
    assert again.output_text == text_of(PROMPT + GREEDY + "89", tokens=TOKENS)


def test_a_stream_is_the_same_text_in_pieces(client: OpenAI) -> None:
    with client.responses.stream(**ASKED) as stream:
        events = list(stream)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == GREEDY
    assert events[0].type == "response.created" and events[-1].type == "response.incomplete"


def test_a_text_that_must_be_json_is_parsed() -> None:
    with (
        served(swarm_of=json_swarm) as running,
        OpenAI(base_url=running.base_url, api_key="none", max_retries=0) as openai,
    ):
        done = openai.responses.parse(**ASKED | {"max_output_tokens": 100}, text_format=Found)
        assert isinstance(done.output_parsed, Found) and done.status == "completed"
        with openai.responses.stream(**ASKED | {"max_output_tokens": 100}, text_format=Found) as stream:
            assert stream.get_final_response().output_parsed == done.output_parsed


def test_tools_are_called_and_their_results_read() -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools: list[Any] = [
        {"type": "function", "name": "look_up", "parameters": parameters, "strict": False},
        {"type": "web_search"},
    ]
    asked: dict[str, Any] = {"model": MODEL, "tools": tools}
    items: list[Any] = [{"role": "user", "content": "Where?"}]
    with (
        served(swarm_of=played_swarm(looks_up)) as running,
        OpenAI(base_url=running.base_url, api_key="none", max_retries=0) as openai,
    ):
        done = openai.responses.create(**asked, input=items)
        with openai.responses.stream(**asked, input=items) as stream:
            streamed = stream.get_final_response()
        assert [item.type for item in done.output] == ["reasoning", "message", "function_call", "function_call"]
        assert done.output_text == streamed.output_text and "I look." in done.output_text
        assert [tool.type for tool in done.tools] == ["function"]
        calls = [item for item in done.output if item.type == "function_call"]
        again = [item for item in streamed.output if item.type == "function_call"]
        assert [json.loads(call.arguments) for call in calls] == [{"city": "A"}, {"city": "B"}]
        assert [call.arguments for call in again] == [call.arguments for call in calls]
        assert done.usage is not None and done.usage.output_tokens_details.reasoning_tokens > 0
        items += [item.model_dump() for item in done.output]
        items += [{"type": "function_call_output", "call_id": call.call_id, "output": "north"} for call in calls]
        found = openai.responses.create(**asked, input=items)
        assert (found.output_text, found.status) == ("Found 2 after 1 thought.", "completed")
        off = openai.responses.create(**asked, input="Where?", reasoning={"effort": "none"}, tool_choice="none")
        assert off.output_text == "I do not know."


def test_a_call_that_must_come_comes() -> None:
    parameters = {"type": "object", "properties": {"n": {"enum": ["a", "b"]}}, "required": ["n"]}
    # The letters of this target write no other names.
    tools: list[Any] = [
        {"type": "function", "name": name, "parameters": parameters, "strict": True} for name in ("use", "rest")
    ]
    asked: dict[str, Any] = {"model": MODEL, "input": "0123", "tools": tools, "parallel_tool_calls": False}
    with (
        served(swarm_of=tool_swarm) as running,
        OpenAI(base_url=running.base_url, api_key="none", max_retries=0) as openai,
    ):
        (call,) = openai.responses.create(**asked, tool_choice={"type": "function", "name": "use"}).output
        assert call.type == "function_call" and call.name == "use" and json.loads(call.arguments)["n"] in ("a", "b")
        (call,) = openai.responses.create(**asked, tool_choice="required", max_output_tokens=200).output
        assert call.type == "function_call" and json.loads(call.arguments)["n"] in ("a", "b")


def test_errors_have_openais_shape(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as stored:
        client.responses.create(**ASKED, previous_response_id="resp_1")
    assert (stored.value.param, stored.value.code) == ("previous_response_id", "unsupported_parameter")
    with pytest.raises(BadRequestError) as long:
        client.responses.create(**ASKED | {"input": PROMPT * 600, "stream": True})
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "input")
    with pytest.raises(NotFoundError):
        client.responses.retrieve("resp_1")
    with pytest.raises(NotFoundError):
        client.responses.create(**ASKED | {"model": "gpt-5"})
