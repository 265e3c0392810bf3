"""No field of a body is ignored in silence: it is honoured, cannot change a text, or is refused by name."""

import re
from collections.abc import Set
from typing import Any, Final

import pytest
from anthropic.types import message_create_params as of_messages
from anthropic.types.beta import message_create_params as of_beta_messages
from openai.types import completion_create_params as of_completions
from openai.types.chat import completion_create_params as of_chats
from openai.types.responses import response_create_params as of_responses

from cosine_node.gateway.api_errors import ApiError
from cosine_node.gateway.fields import HARMLESS, HONOURED_IN_CHATS, HONOURED_IN_COMPLETIONS, REFUSED
from cosine_node.gateway.messages.request import (
    HARMLESS_IN_MESSAGES,
    HONOURED_IN_MESSAGES,
    REFUSED_IN_MESSAGES,
    parse_message,
)
from cosine_node.gateway.responses.request import (
    HARMLESS_IN_RESPONSES,
    HONOURED_IN_RESPONSES,
    REFUSED_IN_RESPONSES,
    parse_response,
)
from cosine_node.gateway.text_request import Parse, parse_chat, parse_completion

CHAT: Final[dict[str, Any]] = {"messages": [{"role": "user", "content": "hi"}]}
COMPLETION: Final[dict[str, Any]] = {"prompt": "hi"}
OF_CHATS: Final = sorted(of_chats.CompletionCreateParamsStreaming.__annotations__)
OF_COMPLETIONS: Final = sorted(of_completions.CompletionCreateParamsStreaming.__annotations__)
RESPONSE: Final[dict[str, Any]] = {"input": "hi"}
OF_RESPONSES: Final = sorted(
    {
        **of_responses.ResponseCreateParamsBase.__annotations__,
        **of_responses.ResponseCreateParamsStreaming.__annotations__,
    }
)
MESSAGE: Final[dict[str, Any]] = {**CHAT, "max_tokens": 9}
OF_MESSAGES: Final = sorted(
    {
        **of_messages.MessageCreateParamsBase.__annotations__,
        **of_beta_messages.MessageCreateParamsBase.__annotations__,
        **of_messages.MessageCreateParamsStreaming.__annotations__,
    }
)
OF_CLIENTS: Final = (
    # Bedrock's and Vertex's shape of Anthropic's API, Codex, OpenRouter, LiteLLM, Open WebUI with Ollama's names.
    *("anthropic_beta", "anthropic_version", "client_metadata", "cache_control", "trace", "session_id"),
    *("litellm_metadata", "litellm_session_id", "num_keep", "num_thread", "keep_alive", "rid", "request_id"),
)
"""In no schema of OpenAI's and Anthropic's own packages, or not in all, and sent to servers of either API."""
NOBODYS: Final[dict[str, Any]] = {"what nobody": ["means"]}


@pytest.mark.parametrize(
    ("honoured", "harmless", "refused"),
    [
        (HONOURED_IN_CHATS, HARMLESS, REFUSED.keys()),
        (HONOURED_IN_COMPLETIONS, HARMLESS, REFUSED.keys()),
        (HONOURED_IN_RESPONSES, HARMLESS_IN_RESPONSES, REFUSED_IN_RESPONSES.keys()),
        (HONOURED_IN_MESSAGES, HARMLESS_IN_MESSAGES, REFUSED_IN_MESSAGES.keys()),
    ],
)
def test_a_field_stands_in_one_table(honoured: Set[str], harmless: Set[str], refused: Set[str]) -> None:
    assert not honoured & harmless
    assert not honoured & refused
    assert not harmless & refused


@pytest.mark.parametrize(
    ("parse", "body", "harmless", "names"),
    [
        (parse_chat, CHAT, HARMLESS, (*OF_CHATS, *REFUSED)),
        (parse_completion, COMPLETION, HARMLESS, (*OF_COMPLETIONS, *REFUSED)),
        (parse_response, RESPONSE, HARMLESS_IN_RESPONSES, (*OF_RESPONSES, *REFUSED_IN_RESPONSES)),
        (parse_message, MESSAGE, HARMLESS_IN_MESSAGES, (*OF_MESSAGES, *REFUSED_IN_MESSAGES)),
    ],
    ids=["chats", "completions", "responses", "messages"],
)
def test_every_field_of_public_schemas_and_of_our_tables_is_looked_at(
    parse: Parse, body: dict[str, Any], harmless: Set[str], names: tuple[str, ...]
) -> None:
    """None of them takes an object that nobody knows, but those whose value changes nothing."""
    plain = parse(body)
    for name in dict.fromkeys(names):
        asked = body | {name: NOBODYS}
        if name in harmless:
            assert parse(asked) == plain, name
            continue
        with pytest.raises(ApiError) as refused:
            parse(asked)
        assert (refused.value.status, re.split(r"[.\[]", refused.value.param or "")[0]) == (400, name)
        assert refused.value.message.endswith(".") and name in refused.value.message


@pytest.mark.parametrize(
    ("parse", "body"),
    [(parse_chat, CHAT), (parse_completion, COMPLETION), (parse_response, RESPONSE), (parse_message, MESSAGE)],
)
def test_what_clients_send_for_others_than_the_model_changes_nothing(parse: Parse, body: dict[str, Any]) -> None:
    assert parse(body | {name: ["any"] for name in OF_CLIENTS}) == parse(body)
    assert parse(body | dict.fromkeys(OF_CLIENTS, "2023-06-01")) == parse(body)


def test_a_value_that_asks_for_what_is_done_anyway_is_taken() -> None:
    plain = parse_completion(COMPLETION)
    for name, refusal in REFUSED.items():
        for neutral in refusal.neutral:
            assert parse_completion(COMPLETION | {name: neutral}) == plain, name


@pytest.mark.parametrize(
    ("parse", "body", "name"),
    [
        (parse_chat, CHAT | {"echo": True}, "echo"),
        (parse_chat, CHAT | {"prompt": "hi"}, "prompt"),
        (parse_chat, CHAT | {"add_special_tokens": True}, "add_special_tokens"),
        (parse_completion, COMPLETION | CHAT, "messages"),
        (parse_completion, COMPLETION | {"reasoning_effort": "low"}, "reasoning_effort"),
        (parse_completion, COMPLETION | {"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
    ],
)
def test_a_field_of_the_other_kind_of_bodies_is_refused(parse: Parse, body: dict[str, Any], name: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse(body)
    assert refused.value.param == name
