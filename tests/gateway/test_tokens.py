"""Tokenizer endpoints in the formats of vLLM and llama.cpp's server."""

from typing import Any

import pytest

from cosine_engine import zoo
from cosine_gateway.api_errors import ApiError
from cosine_gateway.chats import parse_chat
from cosine_gateway.http.tokenizer import described
from cosine_gateway.messages.request import parse_message
from cosine_p2p.request.chat import Chat
from cosine_p2p.text.tokenizer import BLOCKING_CHARACTERS, load_tokenizer
from cosine_protocol.errors import PromptTooLong
from cosine_protocol.fields import MAX_PROMPT_TOKENS
from tests.gateway.gateways import MODEL, ChatLetters, Gateway, asked, in_gateway

TOKENS = [17, 18, 19]
TEXT = "ABC"
CHAT = [{"role": "user", "content": "AB"}, {"role": "assistant", "content": "C"}]


@in_gateway()
async def test_texts_and_tokens(running: Gateway) -> None:
    three = {"tokens": TOKENS, "count": 3, "max_model_len": 4096}
    answers: list[tuple[str, Any, Any]] = [
        ("/tokenize", {"prompt": TEXT, "return_token_strs": False}, three),
        ("/tokenize", {"content": TEXT, "add_special": True}, three),
        ("/tokenize", {"messages": CHAT}, three),
        ("/tokenize", {"content": ""}, {"tokens": [], "count": 0, "max_model_len": 4096}),
        ("/detokenize", {"tokens": TOKENS, "model": MODEL}, {"content": TEXT, "prompt": TEXT}),
        ("/detokenize", {"tokens": []}, {"content": "", "prompt": ""}),
        ("/apply-template", {"messages": CHAT}, {"prompt": TEXT}),
    ]
    for path, body, expected in answers:
        for base in ("", "/v1"):
            reply = await running.post(base + path, body)
            assert (reply.status, reply.json) == (200, expected)


def test_the_special_tokens_of_a_tokenizer_are_described() -> None:
    reply = asked("GET", "/v1/tokenizer_info")
    assert (reply.status, reply.json) == (200, {"bos_token": None, "eos_token": None, "chat_template": None})
    told = described(load_tokenizer(zoo.tokenizer_folder()))
    assert told["eos_token"] and "messages" in told["chat_template"]


@in_gateway()
async def test_invalid_values_are_refused_by_name(running: Gateway) -> None:
    refusals: list[tuple[str, Any, str]] = [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"content": TEXT, "with_pieces": True}, "with_pieces"),
        ("/tokenize", {"content": TEXT, "parse_special": False}, "parse_special"),
        ("/tokenize", {"messages": [{"role": "nobody", "content": "a"}]}, "messages"),
        ("/detokenize", {"tokens": "17"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [1 << 30]}, "tokens"),
        ("/apply-template", {"messages": []}, "messages"),
        ("/apply-template", {"messages": CHAT, "chat_template": "{{ 1 }}"}, "chat_template"),
    ]
    for path, body, param in refusals:
        reply = await running.post(path, body)
        assert (reply.status, reply.error["param"]) == (400, param)


class Thinking(ChatLetters):
    """A codec whose template reads one option."""

    def chat_template(self, name: str | None = None, *, has_tools: bool = False) -> str:
        return "{% if enable_thinking %}<think>{% endif %}{{ messages }}"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"chat_template_kwargs": {"enable_thinking": True}}, None),
        ({"chat_template_kwargs": {"enable_thinking": False, "other": False}}, None),
        ({"chat_template_kwargs": {"other": True}}, "chat_template_kwargs"),
        ({"reasoning_effort": "none"}, None),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"documents": []}, None),
        ({"documents": [{"title": "a", "text": "b"}]}, "documents"),
    ],
)
def test_options_that_the_template_does_not_read_are_refused_unless_neutral(
    options: dict[str, Any], field: str | None
) -> None:
    wanted = parse_chat({"messages": CHAT, **options})
    if field is None:
        assert wanted.fitted(Thinking()) == wanted
        return
    with pytest.raises(ApiError) as refused:
        wanted.fitted(Thinking())
    assert (refused.value.status, refused.value.param) == (400, field)


def test_a_wish_that_the_template_does_not_read_is_omitted() -> None:
    wishes = {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}
    (chat,) = parse_message({"messages": CHAT, "max_tokens": 9, **wishes}).fitted(Thinking()).prompts
    assert isinstance(chat, Chat)
    # A template that names `enable_thinking` names `thinking` too.
    assert chat.template_options == {"enable_thinking": False, "thinking": False}


def test_a_text_is_refused_by_its_length_and_a_long_one_is_tokenized_as_by_its_library() -> None:
    codec = load_tokenizer(zoo.tokenizer_folder())
    with pytest.raises(PromptTooLong, match=f"that {MAX_PROMPT_TOKENS} tokens have at most"):
        codec.encode("a" * (MAX_PROMPT_TOKENS * codec.longest_token + 1))
    codec.check_length("a" * 5 * codec.longest_token, 5)
    with pytest.raises(PromptTooLong):
        codec.check_length("a" * (5 * codec.longest_token + 1), 5)
    text = "Once upon a time, \u00e9 \U0001f600 " * (BLOCKING_CHARACTERS // 10)
    assert codec.encode(text) == tuple(codec.library.encode(text).ids)
