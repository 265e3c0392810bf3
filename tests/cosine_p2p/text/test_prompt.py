"""Tests of prompts: their checks, encoding and rendering."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from threading import Event
from typing import Any

import pytest

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_p2p.replies.dialects import GENERIC, HERMES, Dialect
from cosine_p2p.request.chat import Chat, ToolChoice
from cosine_p2p.request.offload import Threads
from cosine_p2p.text.prompt import PromptEncoder, read_prompt, render
from cosine_p2p.text.reply_form import ReplyForm, reply_form
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_protocol.errors import PromptRefused
from tests.scenes import in_real_time

CODEC = LetterCodec()
CHAT = [{"role": "user", "content": "What is 3 plus 4?"}]
SEVERAL = (
    "A call takes one prompt, not several; call it for each, or run them at the same time with `Client.submit` or "
    "`asyncio.gather`."
)
EMPTY = "The prompt is empty; give at least one character."
KINDS = "A prompt is a text, a list of token ids or a list of chat messages, not"
IDS = "Token ids of a prompt must be whole numbers from 0 to 2147483647, not"


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ("", EMPTY),
        (None, f"{KINDS} None."),
        (b"Once", "A prompt is text, not bytes; decode it first, as in prompt.decode()."),
        (["Once", "Long ago"], SEVERAL),
        ([[1, 2], [3, 4]], SEVERAL),
        (CHAT[0], "A chat is a list of messages; write [message] for a single one."),
        ([{"content": "a"}], "Message 1 of the chat must have a role that is text, not None."),
        ([*CHAT, {"role": "user", "content": 3}], "Message 2 of the chat must have a content that is text, not 3."),
        ([1, -1], f"{IDS} -1."),
        ([1, 1.5], f"{IDS} 1.5."),
        ("a\ud800", "The prompt has half a character at 1, '\\ud800'; decode it from bytes again."),
    ],
)
def test_what_is_no_prompt_is_refused_in_a_sentence(prompt: Any, sentence: str) -> None:
    with pytest.raises(PromptRefused) as refused:
        read_prompt(prompt)
    assert str(refused.value) == sentence


LONG_CHARACTERS = 100_000


class HeldCodec(LetterCodec):
    """A codec that blocks on long texts and on chats that begin with "endless"."""

    def __init__(self) -> None:
        self.may_go_on = Event()

    def encode(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        assert len(text) <= LONG_CHARACTERS or self.may_go_on.wait(30.0)
        return super().encode(text)

    def render_chat(self, messages: Sequence[Any], **options: Any) -> str:
        assert messages[0]["content"] != "endless" or self.may_go_on.wait(30.0)
        return "abc"


@pytest.mark.parametrize("held", ["a" * (LONG_CHARACTERS + 1), [{"role": "user", "content": "endless"}]])
@in_real_time
async def test_long_texts_and_endless_chats_hold_up_neither_the_loop_nor_others(held: Any) -> None:
    codec, threads = HeldCodec(), [Threads("texts", 2), Threads("chats", 2)]
    encoder = PromptEncoder(*threads)
    waiting = asyncio.ensure_future(encoder.encode(codec, read_prompt(held)))
    for prompt in ("abc", Chat(CHAT)):
        assert (await encoder.encode(codec, prompt)).tokens == CODEC.encode("abc")
    assert not waiting.done()
    codec.may_go_on.set()
    assert (await waiting).tokens
    for each in threads:
        each.close()


TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
CHATML = TURNS + "{% if add_generation_prompt %}<go>{% endif %}"


def tokenizer_with(template: str, **parts: Any) -> TextTokenizer:
    model = {"type": "WordLevel", "vocab": {"a": 0, "<s>": 1}, "unk_token": "a"}
    own = json.dumps({"version": "1.0", "added_tokens": [], "model": model, **parts})
    config = json.dumps({"bos_token": "<s>", "chat_template": template})
    return TextTokenizer({"tokenizer.json": own.encode(), "tokenizer_config.json": config.encode()})


def text_of(template: str, chat: Any) -> str:
    prompt = read_prompt(chat)
    assert isinstance(prompt, Chat)
    return render(tokenizer_with(template), prompt).text


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}], "a"),
        ([{"type": "input_text", "text": "a"}, "b"], "a\nb"),
    ],
)
def test_content_is_text_in_whatever_form(content: Any, text: str) -> None:
    assert text_of(CHATML, [said("user", content)]) == f"<user>{text}</><go>"
    with pytest.raises(PromptRefused, match="content that is text"):
        read_prompt([said("user", [{"type": "image_url"}])])


def test_what_the_assistant_said_last_is_continued_unless_the_chat_says_otherwise() -> None:
    chat = [said("user", "a"), said("assistant", "b")]
    new = "<user>a</><assistant>b</><go>"
    assert (
        text_of(CHATML, chat)
        == text_of(CHATML, Chat(chat, continue_final_message=True))
        == "<user>a</><assistant>b"
    )
    assert text_of(CHATML, Chat(chat, continue_final_message=False)) == new
    assert text_of(CHATML, Chat(chat, add_generation_prompt=False)) == new.removesuffix("<go>")
    # Where there is nothing to go on with, or the template writes something else.
    for last in (said("assistant", ""), said("assistant", "b", tool_calls=[])):
        assert text_of(CHATML, [*chat[:1], last | {"tool_calls": [{}]}]).endswith("<go>")
    assert text_of(CHATML.replace("m.content", "m.content | upper"), chat) == "<user>A</><assistant>B</><go>"
    with pytest.raises(PromptRefused, match="cannot be continued"):
        text_of("{{ messages[0].content }}", Chat(chat, continue_final_message=True))


def test_arguments_of_calls_are_objects_and_texts_where_the_template_wants_them() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"city": "Rome"}'}}
    chat = [said("assistant", None, tool_calls=[call]), said("user", "a")]
    function = "{% set f = messages[0].tool_calls[0].function %}"
    assert text_of(function + "{{ f.arguments.city }}{{ f.arguments | tojson }}", chat) == 'Rome{"city": "Rome"}'
    assert text_of(function + "{{ f.name + f.arguments }}", chat) == 'f{"city": "Rome"}'


def test_contents_are_parts_where_a_template_writes_no_other() -> None:
    parts = "{% for m in messages %}{% for p in m.content %}{{ p.text }};{% endfor %}{% endfor %}"
    assert text_of(parts, [said("user", "a")]) == "a;"
    assert text_of(parts.replace("p.text", "p['text'] + ''"), [said("user", "a")]) == "a;"
    both = "{% if messages[0].content is string %}text{% else %}{{ messages[0].content[0].text }}{% endif %}"
    assert text_of(both, [said("user", "a")]) == "a"
    # One that refuses a text, or changes it, does so in any form.
    with pytest.raises(PromptRefused, match="Too long"):
        text_of(
            "{% if messages[0].content == 'ab' %}{{ raise_exception('Too long') }}{% endif %}"
            "{{ messages[0].content }}",
            [said("user", "ab")],
        )
    assert text_of("{{ messages[0].content | upper }}", [said("user", "a")]) == "A"


TOOL: dict[str, Any] = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": '{"a": "é"}'}}
CALLED = [
    said("user", "a"),
    said("assistant", "", tool_calls=[CALL]),
    said("tool", "one", tool_call_id="1"),
    said("tool", "two", tool_call_id="2"),
]
TOLD_CALL = '<tool_call>\n{"name": "look_up", "arguments": {"a": "é"}}\n</tool_call>'
RESULTS = "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('No system.') }}{% endif %}" + CHATML


def test_a_template_without_tools_is_told_of_them_by_the_system_or_by_the_user() -> None:
    chat = Chat([said("user", "a")], tools=[TOOL])
    by_system = text_of(CHATML, chat)
    assert by_system.startswith("<system># Tools") and by_system.endswith("</><user>a</><go>")
    assert json.dumps(TOOL) in by_system and "<tool_call>" in by_system
    # After what the system says itself.
    assert text_of(CHATML, replace(chat, messages=[said("system", "b"), *chat.messages])).startswith(
        "<system>b\n\n# Tools"
    )
    by_user = text_of(NO_SYSTEM, chat)
    assert by_user.startswith("<user># Tools") and by_user.endswith("\n\na</><go>")


def test_calls_and_results_of_earlier_turns_are_words_where_tools_are() -> None:
    turns = f"<user>a</><assistant>{TOLD_CALL}</><user>{RESULTS}</><go>"
    assert text_of(CHATML, Chat(CALLED, tools=[TOOL])).endswith(turns)
    assert text_of(CHATML, Chat(CALLED, tools=[TOOL], tool_choice=ToolChoice.NONE)) == turns
    spoken = [said("user", "a"), said("assistant", "Well.", tool_calls=[CALL])]
    written = text_of(CHATML, Chat(spoken, tools=[TOOL], tool_choice=ToolChoice.NONE))
    assert written == f"<user>a</><assistant>Well.\n{TOLD_CALL}</><go>"


def form_of(template: str, chat: Any) -> ReplyForm:
    prompt, codec = read_prompt(chat), tokenizer_with(template)
    assert isinstance(prompt, Chat)
    rendered = render(codec, prompt)
    return reply_form(codec, prompt, rendered.text, describes_tools=rendered.describes_tools)


def test_the_form_of_a_reply_is_the_templates_or_the_one_told_in_words() -> None:
    chat = Chat([said("user", "a")], tools=[TOOL])
    assert form_of(CHATML, chat).dialect.calls == HERMES
    own = "{% if tools %}{{ tools[0].function.name }}{% endif %}[TOOL_CALLS]" + CHATML
    assert form_of(own, chat).dialect == Dialect.of("[TOOL_CALLS]")
    assert form_of(own.replace("[TOOL_CALLS]", ""), chat).dialect.calls == GENERIC
    assert form_of(own, replace(chat, tool_choice=ToolChoice.NONE)).tools == {}
    assert form_of(own, chat).tools == {"look_up": {"type": "object"}}
