"""Messages as the `anthropic` package sees them, over a socket."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from anthropic import Anthropic, AuthenticationError, BadRequestError, NotFoundError
from anthropic.types import TextBlock

from tests.node.gateway.gateways import MODEL, PROMPT, ServedGateway, served, text_of
from tests.node.gateway.json_letters import tool_swarm
from tests.node.gateway.played import looks_up, played_swarm

pytestmark = pytest.mark.network

KEY: Final = "a-key"
TOKENS: Final = 20
GREEDY: Final = text_of(PROMPT, tokens=TOKENS)
ASKED: Final[dict[str, Any]] = {
    "model": MODEL,
    "max_tokens": TOKENS,
    "extra_body": {"temperature": 0},
    "messages": [{"role": "user", "content": PROMPT}],
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[ServedGateway]:
    with served(api_keys=(KEY,)) as running:
        yield running


@pytest.fixture(scope="module")
def client(gateway: ServedGateway) -> Iterator[Anthropic]:
    with Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as anthropic:
        yield anthropic


def test_a_message_is_the_targets_text(client: Anthropic) -> None:
    done = client.messages.create(**ASKED)
    (block,) = done.content
    assert isinstance(block, TextBlock) and block.text == GREEDY
    assert (done.stop_reason, done.model, done.role) == ("max_tokens", MODEL, "assistant")
    assert (done.usage.input_tokens, done.usage.output_tokens) == (8, TOKENS)


def test_a_stream_is_the_same_text_in_pieces(client: Anthropic) -> None:
    with client.messages.stream(**ASKED) as stream:
        assert "".join(stream.text_stream) == GREEDY
        done = stream.get_final_message()
    assert (done.stop_reason, done.usage.input_tokens, done.usage.output_tokens) == ("max_tokens", 8, TOKENS)


def test_a_stop_sequence_is_told(client: Anthropic) -> None:
    stop = GREEDY[6:8]
    with client.beta.messages.stream(**ASKED, stop_sequences=[stop]) as stream:
        done = stream.get_final_message()
    assert (done.stop_reason, done.stop_sequence) == ("stop_sequence", stop)


def test_tokens_are_counted_and_models_listed(client: Anthropic) -> None:
    counted = client.messages.count_tokens(model=MODEL, messages=ASKED["messages"])
    assert counted.input_tokens == len(PROMPT)
    assert [model.id for model in client.models.list()] == [MODEL, "cosine"]


def test_tools_are_called_and_their_results_read() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools: list[Any] = [{"name": "look_up", "input_schema": schema}]
    messages: list[Any] = [{"role": "user", "content": "Where?"}]
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 500, "tools": tools}
    with (
        served(swarm_of=played_swarm(looks_up)) as running,
        Anthropic(base_url=running.url, api_key="none", max_retries=0) as anthropic,
    ):
        done = anthropic.messages.create(**asked, messages=messages)
        with anthropic.messages.stream(**asked, messages=messages) as stream:
            streamed = stream.get_final_message()
        assert [block.type for block in done.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert done.stop_reason == streamed.stop_reason == "tool_use"
        calls = [block for block in done.content if block.type == "tool_use"]
        again = [block for block in streamed.content if block.type == "tool_use"]
        assert [call.input for call in calls] == [{"city": "A"}, {"city": "B"}] == [call.input for call in again]
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "north"} for call in calls]
        turns = [*messages, {"role": "assistant", "content": done.content}, {"role": "user", "content": results}]
        found = anthropic.messages.create(**asked, messages=turns)
        (block,) = found.content
        assert (block.type, found.stop_reason) == ("text", "end_turn")
        assert isinstance(block, TextBlock) and block.text == "Found 2 after 1 thought."
        bare = anthropic.messages.count_tokens(model=MODEL, messages=messages).input_tokens
        assert anthropic.messages.count_tokens(model=MODEL, messages=messages, tools=tools).input_tokens > bare + 50


def test_a_call_that_must_come_comes() -> None:
    schema = {"type": "object", "properties": {"n": {"enum": ["a", "b"]}}, "required": ["n"]}
    tools: list[Any] = [{"name": name, "input_schema": schema} for name in ("use", "rest")]
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": "0123"}]}
    with (
        served(swarm_of=tool_swarm) as running,
        Anthropic(base_url=running.url, api_key="none", max_retries=0) as anthropic,
    ):
        for name, choice in ((None, {"type": "any"}), ("rest", {"type": "tool", "name": "rest"})):
            once: Any = {**choice, "disable_parallel_tool_use": True}
            done = anthropic.messages.create(**asked, tools=tools, tool_choice=once)
            (call,) = done.content
            assert call.type == "tool_use" and call.input["n"] in ("a", "b") and done.stop_reason == "tool_use"
            assert call.name == name or (name is None and call.name in ("use", "rest"))


def test_errors_have_anthropics_shape(client: Anthropic, gateway: ServedGateway) -> None:
    with pytest.raises(BadRequestError) as refused:
        client.messages.create(**ASKED | {"extra_body": {"top_p": 7}})
    assert refused.value.type == "invalid_request_error" and refused.value.request_id
    with pytest.raises(NotFoundError):
        client.messages.create(**ASKED | {"model": "claude-x"})
    with (
        Anthropic(base_url=gateway.url, api_key="other", max_retries=0) as stranger,
        pytest.raises(AuthenticationError),
    ):
        stranger.messages.create(**ASKED)
    with Anthropic(base_url=gateway.url, auth_token=KEY, api_key=None, max_retries=0) as bearer:
        assert bearer.messages.create(**ASKED).stop_reason == "max_tokens"
