"""The gateway over a socket with the packages `openai`, `anthropic` and `langchain_openai`."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import anthropic
import pytest
from anthropic import Anthropic
from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import BaseModel, SecretStr

from cosine_lab.emulation.letter_codec import LetterCodec
from tests.gateway.gateways import MODEL, PROMPT, ServedGateway, served, text_of
from tests.gateway.json_letters import json_swarm
from tests.gateway.played import looks_up, played_swarm

pytestmark = pytest.mark.network

KEY: Final = "a-key"
TOKENS: Final = 20
LETTERS: Final = LetterCodec()
GREEDY: Final = text_of(PROMPT, tokens=TOKENS)
MESSAGE: Final[dict[str, Any]] = {
    "model": MODEL,
    "max_tokens": TOKENS,
    "extra_body": {"temperature": 0},
    "messages": [{"role": "user", "content": PROMPT}],
}
RESPONSE: Final[dict[str, Any]] = {"model": MODEL, "input": PROMPT, "temperature": 0, "max_output_tokens": TOKENS}


class Clients:
    """A gateway, and clients of it."""

    def __init__(self, gateway: ServedGateway, stack: ExitStack) -> None:
        self.gateway = gateway
        self.openai = stack.enter_context(OpenAI(base_url=gateway.base_url, api_key=KEY, max_retries=0))
        self.anthropic = stack.enter_context(Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0))

    def chat(self, text: str = PROMPT, **options: Any) -> Any:
        settings = {"model": MODEL, "max_tokens": TOKENS, "temperature": 0, **options}
        messages: list[Any] = [{"role": "user", "content": text}]
        return self.openai.chat.completions.create(**{"messages": messages, **settings})


@contextmanager
def clients_of(**options: Any) -> Iterator[Clients]:
    with served(**options) as gateway, ExitStack() as stack:
        yield Clients(gateway, stack)


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    with clients_of(api_keys=(KEY, "another-key")) as made:
        yield made


@pytest.fixture(scope="module")
def player() -> Iterator[Clients]:
    """A gateway whose target reasons, looks up two cities, and reports the results."""
    with clients_of(swarm_of=played_swarm(looks_up)) as made:
        yield made


def test_a_completion_takes_several_prompts_in_text_or_tokens_and_echoes_them(clients: Clients) -> None:
    def completed(prompt: Any, **options: Any) -> Any:
        settings = {"model": MODEL, "max_tokens": TOKENS, "temperature": 0, **options}
        return clients.openai.completions.create(prompt=prompt, **settings)

    for prompt in (list(LETTERS.encode(PROMPT)), PROMPT):
        assert [choice.text for choice in completed(prompt, echo=True).choices] == [PROMPT + GREEDY]
    pieces = list(completed(PROMPT, stream=True, echo=True))
    assert "".join(piece.choices[0].text for piece in pieces) == PROMPT + GREEDY
    prompts = [PROMPT, PROMPT[::-1]]
    done = completed(prompts, max_tokens=8, temperature=1, seed=3, n=2)
    assert [(choice.index, choice.text) for choice in done.choices] == list(
        enumerate(
            text_of(prompt, tokens=8, temperature=1, seed=3, choice=choice)
            for prompt in prompts
            for choice in (0, 1)
        )
    )
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (16, 32)
    alone = completed(PROMPT, max_tokens=0, echo=True)
    assert (alone.choices[0].text, alone.choices[0].finish_reason) == (PROMPT, "length")
    assert (alone.usage.prompt_tokens, alone.usage.completion_tokens) == (8, 0)
    both = completed([[1, 2], [3]], max_tokens=0, echo=True, stream=True)
    said = [(choice.index, choice.text) for piece in both for choice in piece.choices if choice.text]
    assert sorted(said) == [(0, LETTERS.decode([1, 2])), (1, LETTERS.decode([3]))]
    assert completed(PROMPT, max_tokens=0).choices[0].text == ""


def test_langchain_answers_and_streams_a_conversation_with_parts_seed_and_stop(clients: Clients) -> None:
    def model(**options: Any) -> ChatOpenAI:
        settings: dict[str, Any] = {"temperature": 0, "max_completion_tokens": TOKENS, **options}
        return ChatOpenAI(model=MODEL, base_url=clients.gateway.base_url, api_key=SecretStr(KEY), **settings)

    parts: list[str | dict[Any, Any]] = [{"type": "text", "text": PROMPT[4:]}]
    talk = [HumanMessage(PROMPT[:2]), AIMessage(PROMPT[2:4]), HumanMessage(content=parts)]
    answer = model().invoke(talk)
    assert (answer.content, answer.response_metadata["finish_reason"]) == (GREEDY, "length")
    pieces = list(model(stream_usage=True).stream(PROMPT))
    assert "".join(str(piece.content) for piece in pieces) == GREEDY and len(pieces) > 2
    stop = GREEDY[6:8]
    assert model(stop_sequences=[stop]).invoke(talk).content == GREEDY[: GREEDY.index(stop)]
    sampled = model(temperature=1.0, seed=9).invoke(talk).content
    assert sampled == text_of(PROMPT, tokens=TOKENS, temperature=1.0, seed=9)


class Found(BaseModel):
    """The schema of a text."""

    a: int
    b: bool


def test_a_response_goes_on_with_the_items_that_came_back_and_is_streamed_or_parsed(clients: Clients) -> None:
    items: list[Any] = [{"role": "user", "content": PROMPT}]
    done = clients.openai.responses.create(**RESPONSE | {"input": items})
    assert (done.output_text, done.status, done.model) == (GREEDY, "incomplete", MODEL)
    items += [*done.output, {"role": "user", "content": "89"}]
    again = clients.openai.responses.create(**RESPONSE | {"input": items})
    assert again.output_text == text_of(PROMPT + GREEDY + "89", tokens=TOKENS)
    with clients.openai.responses.stream(**RESPONSE) as stream:
        events = list(stream)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == GREEDY
    assert events[0].type == "response.created" and events[-1].type == "response.incomplete"
    with clients_of(swarm_of=json_swarm) as writer:
        asked = RESPONSE | {"max_output_tokens": 100}
        parsed = writer.openai.responses.parse(**asked, text_format=Found)
        assert isinstance(parsed.output_parsed, Found) and parsed.status == "completed"
        with writer.openai.responses.stream(**asked, text_format=Found) as stream:
            assert stream.get_final_response().output_parsed == parsed.output_parsed


def test_a_message_is_streamed_stopped_counted_and_refused_as_anthropics_package_expects(clients: Clients) -> None:
    assert [model.id for model in clients.anthropic.models.list()] == [MODEL, "cosine"]
    with clients.anthropic.messages.stream(**MESSAGE) as stream:
        assert "".join(stream.text_stream) == GREEDY
        done = stream.get_final_message()
    assert (done.stop_reason, done.usage.input_tokens, done.usage.output_tokens) == ("max_tokens", 8, TOKENS)
    stop = GREEDY[6:8]
    with clients.anthropic.beta.messages.stream(**MESSAGE, stop_sequences=[stop]) as beta:
        cut = beta.get_final_message()
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    counted = clients.anthropic.messages.count_tokens(model=MODEL, messages=MESSAGE["messages"])
    assert counted.input_tokens == len(PROMPT)
    with pytest.raises(anthropic.BadRequestError) as refused:
        clients.anthropic.messages.create(**MESSAGE | {"extra_body": {"top_p": 7}})
    assert refused.value.type == "invalid_request_error" and refused.value.request_id


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": parameters, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


CITIES: Final[list[Any]] = [tool("look_up", city={"type": "string"})]
CITY: Final = CITIES[0]["function"]["parameters"]
QUESTION: Final[list[Any]] = [{"role": "user", "content": "Where?"}]
FOUND: Final = "Found 2 after 1 thought."
BOTH_CITIES: Final = [{"city": "A"}, {"city": "B"}]


def test_a_chat_calls_tools_and_reads_their_results(player: Clients) -> None:
    asked: dict[str, Any] = {"tools": CITIES, "messages": QUESTION, "max_tokens": 500}
    done = player.chat(**asked)
    (choice,) = done.choices
    message = choice.message
    assert (choice.finish_reason, message.content) == ("tool_calls", "I look.")
    assert message.reasoning_content == message.reasoning == "Two cities."
    assert [json.loads(call.function.arguments) for call in message.tool_calls] == BOTH_CITIES
    # Tokens are characters: those of the reasoning and its end marker.
    assert done.usage.completion_tokens_details.reasoning_tokens == len("Two cities.</think>")
    results = [{"role": "tool", "tool_call_id": call.id, "content": "here"} for call in message.tool_calls]
    again = player.chat(**asked | {"messages": [*QUESTION, message.model_dump(), *results]})
    assert (again.choices[0].message.content, again.choices[0].message.tool_calls) == (FOUND, None)
    with player.openai.chat.completions.stream(model=MODEL, temperature=0, **asked) as stream:
        streamed = stream.get_final_completion().choices[0].message
    assert streamed.content == message.content and streamed.tool_calls is not None
    assert [json.loads(call.function.arguments) for call in streamed.tool_calls] == BOTH_CITIES
    once = player.chat(**asked, parallel_tool_calls=False)
    assert (
        len(once.choices[0].message.tool_calls) == 1 and once.usage.completion_tokens < done.usage.completion_tokens
    )
    (cut,) = player.chat(**asked | {"max_tokens": 12}).choices
    assert (cut.finish_reason, cut.message.content, cut.message.reasoning_content) == ("length", "", "Two c")


def test_a_response_calls_tools_and_reads_their_results(player: Clients) -> None:
    tools: list[Any] = [
        {"type": "function", "name": "look_up", "parameters": CITY, "strict": False},
        {"type": "web_search"},
    ]
    asked: dict[str, Any] = {"model": MODEL, "tools": tools}
    items = [*QUESTION]
    done = player.openai.responses.create(**asked, input=items)
    with player.openai.responses.stream(**asked, input=items) as stream:
        streamed = stream.get_final_response()
    assert [item.type for item in done.output] == ["reasoning", "message", "function_call", "function_call"]
    assert done.output_text == streamed.output_text and "I look." in done.output_text
    assert [tool.type for tool in done.tools] == ["function"]
    calls = [item for item in done.output if item.type == "function_call"]
    assert [json.loads(call.arguments) for call in calls] == BOTH_CITIES
    items += [item.model_dump() for item in done.output]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "north"} for call in calls]
    found = player.openai.responses.create(**asked, input=items)
    assert (found.output_text, found.status) == (FOUND, "completed")
    off = player.openai.responses.create(**asked, input="Where?", reasoning={"effort": "none"}, tool_choice="none")
    assert off.output_text == "I do not know."


def test_a_message_calls_tools_and_reads_their_results(player: Clients) -> None:
    tools: list[Any] = [{"name": "look_up", "input_schema": CITY}]
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 500, "tools": tools}
    done = player.anthropic.messages.create(**asked, messages=QUESTION)
    with player.anthropic.messages.stream(**asked, messages=QUESTION) as stream:
        streamed = stream.get_final_message()
    assert [block.type for block in done.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert done.stop_reason == streamed.stop_reason == "tool_use"
    calls = [block for block in done.content if block.type == "tool_use"]
    assert [call.input for call in calls] == BOTH_CITIES
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "north"} for call in calls]
    turns: list[Any] = [{"role": "assistant", "content": done.content}, {"role": "user", "content": results}]
    found = player.anthropic.messages.create(**asked, messages=[*QUESTION, *turns])
    assert (getattr(found.content[0], "text", None), found.stop_reason) == (FOUND, "end_turn")
