"""Tools in chats, as the `openai` package sees them over a socket: defined, called, forced, answered."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from openai import BadRequestError, OpenAI

from cosine_node.gateway.api_errors import ApiError
from cosine_node.gateway.text_request import parse_chat
from cosine_p2p.request.chat import Chat, NamedTool, ToolChoice
from tests.node.gateway.gateways import MODEL, served
from tests.node.gateway.json_letters import tool_swarm
from tests.node.gateway.played import looks_up, played_swarm


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": parameters, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


CITIES: Final[list[Any]] = [tool("look_up", city={"type": "string"})]
QUESTION: Final[list[Any]] = [{"role": "user", "content": "Where?"}]


@pytest.fixture(scope="module")
def player() -> Iterator[OpenAI]:
    with (
        served(swarm_of=played_swarm(looks_up)) as running,
        OpenAI(base_url=running.base_url, api_key="none", max_retries=0) as openai,
    ):
        yield openai


@pytest.fixture(scope="module")
def caller() -> Iterator[OpenAI]:
    with (
        served(swarm_of=tool_swarm) as running,
        OpenAI(base_url=running.base_url, api_key="none", max_retries=0) as openai,
    ):
        yield openai


def ask(client: OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(**{"model": MODEL, "messages": QUESTION, "temperature": 0, **options})


@pytest.mark.network
def test_a_model_calls_tools_and_reads_their_results(player: OpenAI) -> None:
    done = ask(player, tools=CITIES)
    (choice,) = done.choices
    message = choice.message
    assert (choice.finish_reason, message.content) == ("tool_calls", "I look.")
    assert message.reasoning_content == message.reasoning == "Two cities."
    assert [(call.type, call.function.name) for call in message.tool_calls] == [("function", "look_up")] * 2
    assert [json.loads(call.function.arguments) for call in message.tool_calls] == [{"city": "A"}, {"city": "B"}]
    assert len({call.id for call in message.tool_calls}) == 2
    # Characters are tokens here: those of the thought, and of the mark that ends it.
    assert done.usage.completion_tokens_details.reasoning_tokens == len("Two cities.</think>")
    results = [{"role": "tool", "tool_call_id": call.id, "content": "here"} for call in message.tool_calls]
    again = ask(player, tools=CITIES, messages=[*QUESTION, message.model_dump(), *results])
    assert again.choices[0].message.content == "Found 2 after 1 thought."
    assert (again.choices[0].finish_reason, again.choices[0].message.tool_calls) == ("stop", None)


@pytest.mark.network
def test_a_stream_has_the_same_in_pieces(player: OpenAI) -> None:
    whole = ask(player, tools=CITIES).choices[0].message
    with player.chat.completions.stream(model=MODEL, messages=QUESTION, temperature=0, tools=CITIES) as stream:
        deltas = [event.chunk.choices[0].delta for event in stream if event.type == "chunk" and event.chunk.choices]
        (choice,) = stream.get_final_completion().choices
    assert choice.message.content == whole.content and choice.finish_reason == "tool_calls"
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == whole.reasoning_content
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    assert calls == [(call.function.name, call.function.arguments) for call in whole.tool_calls]
    begun = [call for delta in deltas for call in delta.tool_calls or [] if call.id]
    assert [(call.index, call.type, call.function and call.function.arguments) for call in begun] == [
        (0, "function", ""),
        (1, "function", ""),
    ]


@pytest.mark.network
def test_one_call_is_enough_where_they_are_not_to_be_parallel(player: OpenAI) -> None:
    done = ask(player, tools=CITIES, parallel_tool_calls=False)
    (choice,) = done.choices
    assert (choice.finish_reason, len(choice.message.tool_calls)) == ("tool_calls", 1)
    assert done.usage.completion_tokens < ask(player, tools=CITIES).usage.completion_tokens


@pytest.mark.network
def test_a_reply_that_is_cut_says_so(player: OpenAI) -> None:
    for tokens in (4, 60):
        (choice,) = ask(player, tools=CITIES, max_tokens=tokens).choices
        assert choice.finish_reason == "length"
    (cut,) = ask(player, tools=CITIES, max_tokens=12).choices
    assert (cut.message.content, cut.message.reasoning_content) == ("", "Two c")


@pytest.mark.network
def test_tools_that_must_not_be_called_are_not_told(player: OpenAI) -> None:
    (choice,) = ask(player, tools=CITIES, tool_choice="none").choices
    assert (choice.message.content, choice.message.tool_calls) == ("I do not know.", None)


@pytest.mark.network
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_call_that_must_come_comes(caller: OpenAI, temperature: float) -> None:
    tools = [tool("use", a={"type": "integer"}), tool("rest", n={"enum": ["a", "b"]})]
    options = {"tools": tools, "temperature": temperature, "seed": 5, "parallel_tool_calls": False}
    named = {"type": "function", "function": {"name": "rest"}}
    allowed = {"mode": "required", "tools": [named]}
    for choice, names in (
        ("required", {"use", "rest"}),
        (named, {"rest"}),
        ({"type": "allowed_tools", "allowed_tools": allowed}, {"rest"}),
    ):
        (done,) = ask(caller, tool_choice=choice, **options).choices
        (call,) = done.message.tool_calls
        assert (done.finish_reason, done.message.content) == ("tool_calls", None) and call.function.name in names
        (argument,) = json.loads(call.function.arguments).values()
        assert isinstance(argument, int) if call.function.name == "use" else argument in ("a", "b")


@pytest.mark.network
def test_a_schema_that_no_grammar_can_hold_is_refused_as_the_tools(caller: OpenAI) -> None:
    with pytest.raises(BadRequestError) as refused:
        ask(caller, tools=[tool("use", a={"$ref": "#/nowhere"})], tool_choice="required")
    assert refused.value.param == "tools"


def chat_of(**fields: Any) -> Chat:
    (prompt,) = parse_chat({"messages": QUESTION, **fields}).prompts
    assert isinstance(prompt, Chat)
    return prompt


def test_a_choice_is_read_as_openai_has_it() -> None:
    named = {"type": "function", "function": {"name": "look_up"}}
    assert chat_of().tools is None and chat_of(tools=[]).tools is None
    assert chat_of(tools=CITIES).tool_choice is chat_of(tools=CITIES, tool_choice="auto").tool_choice
    assert chat_of(tools=CITIES, tool_choice="required").tool_choice is ToolChoice.REQUIRED
    assert chat_of(tools=CITIES, tool_choice="none").tool_choice is ToolChoice.NONE
    assert chat_of(tools=CITIES, tool_choice=named).tool_choice == NamedTool("look_up")
    assert chat_of(tools=CITIES, parallel_tool_calls=False).calls_in_parallel is False
    both = [*CITIES, tool("other")]
    some = chat_of(
        tools=both, tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
    )
    assert (some.tools, some.tool_choice) == (CITIES, ToolChoice.AUTO)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, None),
        ({"tools": {"a": 1}}, "tools"),
        ({"tools": [1]}, "tools[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function"),
        ({"tools": [{"function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters"),
        ({"tools": CITIES, "tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": CITIES, "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        (
            {"tools": CITIES, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}},
            "tool_choice",
        ),
        ({"tools": CITIES, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
)
def test_what_is_no_tool_and_no_choice_is_refused_by_its_field(fields: dict[str, Any], param: str | None) -> None:
    if param is None:
        assert chat_of(**fields).tools is None
        return
    with pytest.raises(ApiError) as refused:
        chat_of(**fields)
    assert refused.value.param == param
