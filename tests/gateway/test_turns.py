"""Bodies of messages and responses: conversations, tools and options, converted to chats."""

import json
from typing import Any, Final

import pytest

from cosine_gateway.responses.request import DEFAULTS
from cosine_p2p.request.chat import Chat, NamedTool, ToolChoice
from tests.gateway.dialects import DIALECTS, Dialect
from tests.gateway.gateways import PROMPT, asked, text_of, with_gateway

CHATS, RESPONSES, MESSAGES = DIALECTS["chats"], DIALECTS["responses"], DIALECTS["messages"]
SCHEMA: Final[dict[str, Any]] = {"type": "object", "properties": {"city": {"type": "string"}}}
OF_ANTHROPIC: Final[dict[str, Any]] = {
    "name": "look_up",
    "description": "Look a city up.",
    "input_schema": SCHEMA,
}
LOOK_UP: Final[dict[str, Any]] = {
    "type": "function",
    "name": "look_up",
    "description": "Look a city up.",
    "parameters": SCHEMA,
    "strict": False,
}
PATCH: Final[dict[str, Any]] = {
    "type": "custom",
    "name": "patch",
    "description": "Change files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
}
AGENTS: Final[dict[str, Any]] = {
    "type": "namespace",
    "name": "agents",
    "description": "Other agents.",
    "tools": [{"type": "function", "name": "ask", "parameters": {"type": "object"}, "strict": False}],
}


def chat_of(dialect: Dialect, **fields: Any) -> Chat:
    """The chat of a body."""
    (chat,) = dialect.parse(dialect.body("hi", **fields)).prompts
    assert isinstance(chat, Chat)
    return chat


def call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def text(content: str, kind: str = "text", **fields: Any) -> dict[str, Any]:
    return {"type": kind, "text": content, **fields}


def test_blocks_of_messages_become_alternating_turns() -> None:
    cached: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": "user", "content": [text("Where?", **cached), text("Say it.")]},
        {"role": "system", "content": "There are agents."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "gAAA"},
                text("I look."),
                {"type": "tool_use", "id": "t1", "name": "look_up", "input": {"city": "Köln"}},
                {"type": "tool_use", "id": "t2", "name": "stop", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [text("on the Rhine")]},
                {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": True},
                text("Well?"),
            ],
        },
        {"role": "assistant", "content": "It is"},
    ]
    system = [text("x-anthropic-billing-header: cc_version=1.2.3;"), text("Be brief.", **cached), text("Be kind.")]
    assert chat_of(MESSAGES, system=system, messages=messages).messages == [
        {"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": "Where?\nSay it.\nThere are agents."},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [call("t1", "look_up", '{"city": "Köln"}'), call("t2", "stop", "{}")],
        },
        {"role": "tool", "tool_call_id": "t1", "name": "look_up", "content": "on the Rhine"},
        {"role": "tool", "tool_call_id": "t2", "name": "stop", "content": "Error: no"},
        {"role": "user", "content": "Well?"},
        {"role": "assistant", "content": "It is"},
    ]


def test_items_of_responses_become_alternating_turns() -> None:
    items = [
        {"type": "message", "role": "developer", "content": [text("Be brief.", "input_text")]},
        {"role": "system", "content": "Be kind."},
        {"type": "message", "id": "msg_1", "role": "user", "content": [text("Where?", "input_text")]},
        {"role": "user", "content": "Say it."},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [text("Hm.", "reasoning_text")]},
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gAAA"},
        {"type": "message", "role": "assistant", "content": [text("I look.", "output_text", annotations=[])]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look_up", "arguments": '{"city": "K"}'},
        {"type": "function_call", "call_id": "c2", "namespace": "agents", "name": "ask", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "on the Rhine"},
        {"type": "function_call_output", "call_id": "c2", "output": [text("far", "input_text")]},
        {"type": "custom_tool_call", "call_id": "c3", "name": "patch", "input": "a\nb"},
        {"type": "custom_tool_call_output", "call_id": "c3", "output": "done"},
        {"role": "developer", "content": "Now in German."},
        {"role": "user", "content": "Well?"},
    ]
    assert chat_of(RESPONSES, input=items).messages == [
        {"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": "Where?\nSay it."},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [call("c1", "look_up", '{"city": "K"}'), call("c2", "agents__ask", "{}")],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "look_up", "content": "on the Rhine"},
        {"role": "tool", "tool_call_id": "c2", "name": "agents__ask", "content": "far"},
        {"role": "assistant", "content": "", "tool_calls": [call("c3", "patch", '{"input": "a\\nb"}')]},
        {"role": "tool", "tool_call_id": "c3", "name": "patch", "content": "done"},
        {"role": "user", "content": "Now in German.\nWell?"},
    ]
    assert chat_of(RESPONSES, instructions="Be brief.").messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]


def test_all_kinds_of_tools_become_functions_and_server_tools_are_omitted() -> None:
    web = {"type": "web_search", "external_web_access": False}
    look_up, patch, ask = (
        each["function"] for each in chat_of(RESPONSES, tools=[LOOK_UP, PATCH, AGENTS, web]).tools or ()
    )
    assert look_up == {name: LOOK_UP[name] for name in ("name", "description", "parameters")}
    assert (patch["name"], list(patch["parameters"]["properties"])) == ("patch", ["input"])
    assert patch["description"].startswith("Change files.") and 'start: "x"' in patch["description"]
    assert ask == {"name": "agents__ask", "parameters": {"type": "object"}}
    assert chat_of(RESPONSES, tools=[web]).tools is None
    (tool,) = chat_of(MESSAGES, tools=[OF_ANTHROPIC | {"type": "custom", "strict": True}]).tools or ()
    assert tool == {"type": "function", "function": look_up}


FUNCTIONS: Final = [{"type": "function", "function": {"name": name}} for name in ("look_up", "other")]
ALLOWED: Final = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "patch"}]}
ALLOWED_IN_CHATS: Final = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": FUNCTIONS[:1]}}
TOOLS_OF: Final = {CHATS.path: FUNCTIONS, RESPONSES.path: [LOOK_UP, PATCH], MESSAGES.path: [OF_ANTHROPIC]}


@pytest.mark.parametrize(
    ("dialect", "choice", "expected"),
    [
        (CHATS, None, ToolChoice.AUTO),
        (CHATS, "required", ToolChoice.REQUIRED),
        (CHATS, FUNCTIONS[0], NamedTool("look_up")),
        (CHATS, ALLOWED_IN_CHATS, ToolChoice.AUTO),
        (RESPONSES, "none", ToolChoice.NONE),
        (RESPONSES, "required", ToolChoice.REQUIRED),
        (RESPONSES, {"type": "function", "name": "look_up"}, NamedTool("look_up")),
        (RESPONSES, {"type": "custom", "name": "patch"}, NamedTool("patch")),
        (RESPONSES, ALLOWED, ToolChoice.REQUIRED),
        (MESSAGES, {"type": "auto", "disable_parallel_tool_use": True}, ToolChoice.AUTO),
        (MESSAGES, {"type": "any"}, ToolChoice.REQUIRED),
        (MESSAGES, {"type": "none"}, ToolChoice.NONE),
        (MESSAGES, {"type": "tool", "name": "look_up"}, NamedTool("look_up")),
    ],
)
def test_a_choice_says_which_tools_may_be_called(dialect: Dialect, choice: Any, expected: Any) -> None:
    tools = TOOLS_OF[dialect.path]
    chat = chat_of(dialect, tools=tools, tool_choice=choice)
    is_one_by_one = isinstance(choice, dict) and "disable_parallel_tool_use" in choice
    assert (chat.tool_choice, chat.calls_in_parallel) == (expected, not is_one_by_one)
    only = {id(ALLOWED): ["patch"], id(ALLOWED_IN_CHATS): ["look_up"]}
    names = only.get(id(choice)) or [tool.get("function", tool)["name"] for tool in tools]
    assert [each["function"]["name"] for each in chat.tools or ()] == names
    assert chat_of(dialect).tools is chat_of(dialect, tools=[]).tools is None


@pytest.mark.parametrize(
    ("fields", "wishes"),
    [
        ({"thinking": {"type": "adaptive"}}, {}),
        ({"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}, {}),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"enable_thinking": True, "thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False, "thinking": False}),
        ({"output_config": {"effort": "max"}}, {"reasoning_effort": "high"}),
    ],
)
def test_thinking_is_optional_for_a_template(fields: dict[str, Any], wishes: dict[str, Any]) -> None:
    assert MESSAGES.parse(MESSAGES.body(**fields)).wishes == wishes
    assert chat_of(MESSAGES, **fields).template_options == {}


def test_lengths_samplers_efforts_and_schemas_are_options_of_the_text() -> None:
    options = {"temperature": 0.5, "top_k": 4}
    wanted = RESPONSES.parse({"input": "hi", "max_output_tokens": 9, "seed": 3, **options})
    assert dict(wanted.asked) == {"max_new_tokens": 9, **options}
    assert (wanted.seed, wanted.otherwise, wanted.is_streamed) == (3, DEFAULTS, False)
    form = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
    wanted = RESPONSES.parse(RESPONSES.body(text={"format": form, "verbosity": "medium"}))
    assert json.loads(wanted.asked["schema"]) == SCHEMA
    assert "schema" not in RESPONSES.parse(RESPONSES.body(text={"format": {"type": "text"}})).asked
    low = chat_of(RESPONSES, reasoning={"effort": "low", "summary": "auto"}).template_options
    off = chat_of(RESPONSES, reasoning={"effort": "none"}).template_options
    assert (low, off) == ({"reasoning_effort": "low"}, {"reasoning_effort": "none", "enable_thinking": False})

    form = {"type": "json_schema", "schema": SCHEMA}
    fields: dict[str, Any] = {"stop_sequences": ["a", "b"], "output_config": {"format": form}, **options}
    assert dict(MESSAGES.parse(MESSAGES.body(tokens=30, **fields)).asked) == {
        "max_new_tokens": 30,
        "stop": ("a", "b"),
        "schema": json.dumps(SCHEMA),
        **options,
    }
    assert "schema" in MESSAGES.parse(MESSAGES.body(output_format=form)).asked


def test_a_message_continues_the_assistants_text_and_its_tokens_are_counted() -> None:
    greedy = text_of(PROMPT, tokens=24)
    begun = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": greedy[:3]}]
    rest = with_gateway(lambda running: MESSAGES.ask(running, messages=begun)).json
    assert MESSAGES.text(rest) == text_of(PROMPT + greedy[:3], tokens=24)
    body = {"messages": [{"role": "user", "content": PROMPT}]}
    assert asked("POST", "/v1/messages/count_tokens", body).json == {"input_tokens": len(PROMPT)}
    assert MESSAGES.error(asked("POST", "/v1/messages/count_tokens", body | {"messages": []}))[0] == 400
    assert MESSAGES.error(asked("GET", "/v1/messages/batches"))[0] == 404
    counted = asked("POST", "/v1/responses/input_tokens", {"input": PROMPT}).json
    assert counted == {"object": "response.input_tokens", "input_tokens": len(PROMPT)}


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
def test_responses_are_not_stored(method: str) -> None:
    reply = asked(method, "/v1/responses/resp_1")
    assert reply.status == 404
    assert reply.error["message"] == "Nothing is stored here: send the whole conversation as input."
