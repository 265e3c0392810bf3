"""No field is ignored silently: it is honoured, cannot change the text, is refused by name, or told in a header."""

import json
import re
from dataclasses import replace
from functools import reduce
from typing import Any, Final

import pytest
from anthropic.types import message_create_params as of_messages
from anthropic.types.beta import message_create_params as of_beta_messages
from openai.types import completion_create_params as of_completions
from openai.types.chat import completion_create_params as of_chats
from openai.types.responses import response_create_params as of_responses

from cosine_gateway import chats, completions
from cosine_gateway.api_errors import ApiError
from cosine_gateway.constraints import CONSTRAINTS
from cosine_gateway.fields import MAX_IGNORED, REFUSED, RequestFields
from cosine_gateway.messages import request as messages
from cosine_gateway.responses import request as responses
from tests.gateway.dialects import DIALECTS
from tests.gateway.gateways import Gateway, in_gateway
from tests.gateway.test_turns import LOOK_UP, OF_ANTHROPIC

SCHEMAS: Final = {
    "chats": of_chats.CompletionCreateParamsStreaming.__annotations__.keys(),
    "completions": of_completions.CompletionCreateParamsStreaming.__annotations__.keys(),
    "responses": of_responses.ResponseCreateParamsBase.__annotations__.keys()
    | of_responses.ResponseCreateParamsStreaming.__annotations__.keys(),
    "messages": of_messages.MessageCreateParamsBase.__annotations__.keys()
    | of_beta_messages.MessageCreateParamsBase.__annotations__.keys()
    | of_messages.MessageCreateParamsStreaming.__annotations__.keys(),
}
TABLES: Final[dict[str, RequestFields]] = {
    "chats": chats.FIELDS, "completions": completions.FIELDS, "responses": responses.FIELDS,
    "messages": messages.FIELDS,
}  # fmt: skip
OF_CLIENTS: Final = (
    # Bedrock's and Vertex's shape of Anthropic's API, Codex, OpenRouter, LiteLLM, Open WebUI with Ollama's names.
    *("anthropic_beta", "anthropic_version", "client_metadata", "cache_control", "trace", "session_id"),
    *("litellm_metadata", "litellm_session_id", "num_keep", "num_thread", "keep_alive", "rid", "request_id"),
)
"""Fields outside the schemas of OpenAI's and Anthropic's packages that clients send to servers of either API."""
NOBODYS: Final[dict[str, Any]] = {"what nobody": ["means"]}


def refusal(name: str, fields: dict[str, Any]) -> ApiError:
    """The refusal of an otherwise plain body with these fields."""
    dialect = DIALECTS[name]
    with pytest.raises(ApiError) as refused:
        dialect.parse({**dialect.asking("hi"), dialect.limit: 9, **fields})
    assert refused.value.status == 400
    json.dumps(refused.value.body, ensure_ascii=False).encode()
    return refused.value


@pytest.mark.parametrize("name", DIALECTS)
def test_every_field_of_public_schemas_and_of_our_tables_is_looked_at(name: str) -> None:
    """Only harmless fields accept an unknown object."""
    dialect, table = DIALECTS[name], TABLES[name]
    assert not table.honoured & table.harmless and not table.harmless & table.refused.keys()
    plain = dialect.parse(dialect.body())
    for field in sorted(SCHEMAS[name] | table.refused.keys() - table.honoured):
        if field in table.harmless:
            assert dialect.parse(dialect.body() | {field: NOBODYS}) == plain, field
            continue
        error = refusal(name, {field: NOBODYS})
        assert re.split(r"[.\[]", error.param or "")[0] == field
        assert error.message.endswith(".") and field in error.message
    for value in (["any"], "2023-06-01"):
        assert dialect.parse(dialect.body() | dict.fromkeys(OF_CLIENTS, value)) == plain


def test_a_value_that_asks_for_what_is_done_anyway_is_taken() -> None:
    completions = DIALECTS["completions"]
    plain = completions.parse(completions.body())
    for name, refused in (
        (each, REFUSED[each]) for each in sorted(REFUSED.keys() - TABLES["completions"].honoured)
    ):
        for neutral in refused.neutral:
            assert completions.parse(completions.body(**{name: neutral})) == plain, name


UNKNOWN: Final[dict[str, Any]] = {
    "conversation_tags": ["a"], "x-trace": {"span": [{"parent": 1}]}, "prompt_cache_ttl": "1h", "retries": 3,
    "tool_hints": False, "sampling_profile": {}, "beam_count": None,
}  # fmt: skip
SUSPECT: Final[dict[str, Any]] = {
    "logit_transform": 1, "samplingParams": {"a": 1}, "typical_mass": 0.5, "topK": 4, "temperature_last_n": 0,
    "Stop-Words": ["a"], "tool_hints": True, "maxOutputTokens": 9, "temprature": 0.7, "seeds": 7,
    "options": {"nested": [{"top_p": 0.5}]}, "parameters": {"repetitionPenalty": 1.2}, "beam_count": 2,
}  # fmt: skip


@pytest.mark.parametrize("name", DIALECTS)
def test_an_unknown_field_is_told_unless_it_could_change_the_text(name: str) -> None:
    dialect = DIALECTS[name]
    plain, wanted = dialect.parse(dialect.body()), dialect.parse(dialect.body() | UNKNOWN)
    assert replace(wanted, ignored=()) == plain and not plain.ignored
    # Null is as good as absent.
    assert wanted.ignored == tuple(UNKNOWN)[:-1]
    for field, value in SUSPECT.items():
        assert refusal(name, {field: value}).param == field
    many = {f"unknown {number}": number for number in range(MAX_IGNORED + 1)}
    assert refusal(name, many).param == f"unknown {MAX_IGNORED}"


@in_gateway()
async def test_the_header_of_whole_and_streamed_replies_names_what_was_ignored(running: Gateway) -> None:
    strange: dict[str, Any] = {"a\r\nset-cookie: b": 1, "é, \ud800": 2, "x" * 999: 3}
    for dialect in DIALECTS.values():
        for is_streamed in (False, True):
            reply = await dialect.ask(running, stream=is_streamed, **strange, **UNKNOWN)
            names = reply.headers["x-cosine-ignored"].split(", ")
            assert reply.status == 200 and names[len(strange) :] == list(UNKNOWN)[:-1]
            assert all(re.fullmatch(r"[A-Za-z0-9_.%~-]{1,64}", each) for each in names)
        assert "x-cosine-ignored" not in (await dialect.ask(running)).headers


MUST: Final[dict[str, Any]] = {"type": "json_schema", "schema": {}}
AS_PARTS: Final[dict[str, Any]] = {
    "type": "content",
    "content": [{"type": "image_url", "image_url": {"url": "d:"}}],
}
CITIES: Final[dict[str, Any]] = {"tools": [{"type": "function", "function": {"name": "look_up"}}]}
OTHER: Final = {"type": "function", "function": {"name": "other"}}
NESTED: Final[list[Any]] = reduce(lambda inner, _: [inner], range(5000), [])
NO_TOOLS: Final = {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}
REFUSALS: Final[dict[str, list[tuple[dict[str, Any], str]]]] = {
    "chats": [
        ({"echo": True}, "echo"),
        ({"prompt": "hi"}, "prompt"),
        ({"add_special_tokens": True}, "add_special_tokens"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"prediction": "text"}, "prediction"),
        ({"prediction": AS_PARTS}, "prediction"),
        ({"tools": [1]}, "tools[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters"),
        ({**CITIES, "tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({**CITIES, "tool_choice": OTHER}, "tool_choice"),
        ({**CITIES, "tool_choice": NO_TOOLS}, "tool_choice"),
        ({**CITIES, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}}, "response_format"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"guided_json_object": 5}, "guided_json_object"),
        ({"structured_outputs": {"unheard_of": 1}}, "structured_outputs.unheard_of"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_regex"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"\ud800": 1}}, "chat_template_kwargs"),
        ({"reasoning_effort": 1}, "reasoning_effort"),
        ({"documents": ["a"]}, "documents"),
        ({"documents": [{"title": ["\ud800"]}]}, "documents"),
        ({"documents": [{"title": NESTED}]}, "documents"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "\udfff"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "\udfff"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "\ud800"}]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "content": "", "audio": {"id": "1"}}]}, "messages[0].audio"),
    ],
    "completions": [
        ({"messages": []}, "messages"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 1, "top_logprobs": 2}, "top_logprobs"),
        ({"best_of": 3, "n": 2}, "best_of"),
        ({"prompt": ["a"] * 9, "n": 8}, "n"),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
        ),
    ],
    "responses": [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"include": "message.output_text.logprobs"}, "include"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": {}}]}}, "tool_choice"),
        ({"tools": [LOOK_UP, LOOK_UP]}, "tools"),
        ({"tool_choice": {"type": "function", "name": "look_up"}}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"reasoning": {"context": "current_turn"}}, "reasoning.context"),
        ({"tools": [LOOK_UP], "tool_choice": "required", "text": {"format": MUST}}, "text.format"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"messages": []}, "messages"),
        ({"max_tokens": 5}, "max_tokens"),
    ],
    "messages": [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].type"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [OF_ANTHROPIC, OF_ANTHROPIC]}, "tools[1].name"),
        (
            {"tools": [OF_ANTHROPIC], "tool_choice": {"type": "any"}, "output_config": {"format": MUST}},
            "output_config.format",
        ),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
        ({"thinking": {"type": "between_tools"}}, "thinking"),
        ({"output_config": {"effort": "some"}}, "output_config.effort"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
        ({"stop_sequences": [7]}, "stop_sequences"),
        ({"stop": ["x"]}, "stop"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ],
}


@pytest.mark.parametrize("name", DIALECTS)
def test_what_cannot_be_had_is_refused_by_name(name: str) -> None:
    for fields, param in REFUSALS[name]:
        error = refusal(name, fields)
        assert (error.param or "").partition(".json_schema")[0] == param, fields
        assert param.partition("[")[0].partition(".")[0] in error.message


SCHEMA: Final[dict[str, Any]] = {"type": "object", "properties": {"b": {}, "a": {}}}
AS_SCHEMA: Final = {"schema": json.dumps(SCHEMA)}
ANY_OBJECT: Final = {"schema": '{"type": "object"}'}


def test_each_field_for_what_a_text_must_be_is_the_option_that_means_the_same() -> None:
    strict = {"name": "n", "strict": True, "schema": SCHEMA}
    meanings: list[tuple[str, Any, dict[str, Any]]] = [
        ("response_format", {"type": "text"}, {}),
        ("response_format", {"type": "json_object"}, ANY_OBJECT),
        ("response_format", {"type": "json_object", "schema": SCHEMA}, AS_SCHEMA),
        ("response_format", {"type": "json_schema", "json_schema": strict}, AS_SCHEMA),
        ("guided_json", SCHEMA, AS_SCHEMA),
        ("guided_json", json.dumps(SCHEMA), AS_SCHEMA),
        ("guided_json_object", True, ANY_OBJECT),
        ("guided_regex", "a+", {"regex": "a+"}),
        ("guided_grammar", 'start: "a"', {"grammar": 'start: "a"'}),
        ("guided_choice", ["yes", 'n"o'], {"grammar": 'start: "yes" | "n\\"o"'}),
        ("json_schema", SCHEMA, AS_SCHEMA),
        ("regex", "a+", {"regex": "a+"}),
        ("structured_outputs", {"json": SCHEMA, "regex": None}, AS_SCHEMA),
        ("structured_outputs", {"regex": "a+"}, {"regex": "a+"}),
        ("structured_outputs", {"choice": ["a"]}, {"grammar": 'start: "a"'}),
        ("structured_outputs", {"json_object": True}, ANY_OBJECT),
    ]
    nothing: tuple[Any, ...] = (None, False, "", [], {})
    meanings += [(name, value, {}) for name in sorted(CONSTRAINTS) for value in nothing]
    for name, value, option in meanings:
        for dialect in (DIALECTS["chats"], DIALECTS["completions"]):
            assert dialect.parse({**dialect.asking("hi"), name: value}).asked == option, (name, value)
