"""Prompts: text, token ids or a chat; checked, then encoded."""

import asyncio
import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from cosine_p2p.replies.definitions import tools_in_words
from cosine_p2p.request.arguments import TOKEN_ID
from cosine_p2p.request.bad_words import word_tokens
from cosine_p2p.request.chat import RESERVED, Chat, Message
from cosine_p2p.request.offload import Offload
from cosine_p2p.text.chat_template import KNOWS_DEVELOPER
from cosine_p2p.text.reply_form import ReplyForm, check_choice, reply_form, schemas_of, usable_tools
from cosine_p2p.text.template_process import TemplateStopped
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_protocol.errors import OptionRefused, PromptRefused, PromptTooLong
from cosine_protocol.fields import MAX_PROMPT_TOKENS, MAX_TOKEN_ID
from cosine_protocol.request import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS, ConstraintKind
from cosine_protocol.verify import MAX_PREDICTION_TOKENS

TEXT_PARTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("text", "input_text", "output_text"), "text"),
    "refusal": "refusal",
}
"""The text types of a message's parts in OpenAI's APIs, and their fields."""
DEVELOPER: Final = "developer"  # The role of newer clients; most models were trained on `system`.
ENCODE_TIMEOUT_S: Final = 60.0  # The longest prompts take some seconds; endless expressions are stopped.


def read_prompt(value: object) -> str | tuple[int, ...] | Chat:
    """Return a value as a prompt; arrays become lists. Raises `PromptRefused` with the expected form."""
    if isinstance(value, Chat):
        if taken := RESERVED & value.template_options.keys():
            raise PromptRefused(f"{min(taken)} is no option of a template; give it to the Chat itself.")
        check_choice(value)
        return replace(value, messages=_messages(value.messages))
    if isinstance(value, str):
        _refuse_half_characters(value, "The prompt")
        items: Sequence[Any] = value
    else:
        items = _items(value)
    if not items:
        raise PromptRefused("The prompt is empty; give at least one character.")
    if isinstance(items, str):
        return items
    if all(isinstance(item, Mapping) for item in items):
        return Chat(_messages(items))
    if any(isinstance(item, str | Sequence) for item in items):
        raise PromptRefused(
            "A call takes one prompt, not several; call it for each, or run them at the same time with "
            "`Client.submit` or `asyncio.gather`."
        )
    return tuple(_token_id(item) for item in items)


def encode_prompt(codec: TextTokenizer, prompt: str | tuple[int, ...] | Chat) -> tuple[int, ...]:
    """Return the token ids of a checked prompt, at least one. Raises `PromptRefused` for unknown ids."""
    if isinstance(prompt, Chat):
        return _some(codec.encode(render(codec, prompt).text, add_special_tokens=False))
    if isinstance(prompt, str):
        return _some(codec.encode(prompt))
    highest = codec.vocab_tokens - 1
    if max(prompt) > highest:
        raise PromptRefused(f"Token ids of a prompt must be whole numbers from 0 to {highest}, not {max(prompt)}.")
    return prompt


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """The text of a chat; `describes_tools`: its tools are described as text, since the template omits them."""

    text: str
    describes_tools: bool = False


def render(codec: TextTokenizer, chat: Chat) -> RenderedChat:
    """Return the text of a checked chat, adapted to the template.

    A developer's message becomes the system's if the template does not know that role. Arguments of tool calls are
    objects, or text if the template refuses them; contents are text, or parts if the template omits text. By
    default the assistant's last text is continued, if the template does not change it. Tools that the template
    omits are described as text, with earlier calls and results. Raises `PromptRefused`.
    """
    tools = usable_tools(chat)
    names = schemas_of(tools)
    messages: list[dict[str, Any]] = [dict(message) for message in chat.messages]
    template = codec.chat_template(chat.template, has_tools=bool(tools))
    if not KNOWS_DEVELOPER.search(template):
        messages = [each | {"role": "system"} if each["role"] == DEVELOPER else each for each in messages]
    # Without any tools the template decides, even if it omits calls of earlier turns.
    has_calls = any(message["role"] == "tool" or message.get("tool_calls") for message in messages)
    if not tools and not (chat.tools and has_calls and "tool" not in template):
        return RenderedChat(_render(codec, chat, messages, None))
    refusal = PromptRefused("The target's chat template refused the messages.")
    if tools:
        try:
            text = _render(codec, chat, messages, tools)
            if all(name in text for name in names):
                return RenderedChat(text)
        except TemplateStopped:
            raise
        except PromptRefused as refused:
            refusal = refused
    for turns in tools_in_words(messages, tools):
        try:
            return RenderedChat(_render(codec, chat, turns, None), describes_tools=True)
        except TemplateStopped:
            raise
        except PromptRefused:
            continue
    raise refusal


def _render(
    codec: TextTokenizer, chat: Chat, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]] | None
) -> str:
    given: dict[str, Any] = {
        "tools": tools,
        "documents": chat.documents,
        "add_generation_prompt": chat.add_generation_prompt,
        "template": chat.template,
        **({"xml_tools": tools} if tools else {}),
        **chat.template_options,
    }
    last = chat.messages[-1]
    is_begun = last["role"] == "assistant" and last["content"] and not last.get("tool_calls")
    ways: list[dict[str, Any]] = [{"continue_final_message": bool(chat.continue_final_message)}]
    if chat.continue_final_message is None and is_begun and chat.add_generation_prompt:
        ways.insert(0, {"continue_final_message": True})
    forms = [messages]
    if any("tool_calls" in message for message in messages):
        forms.insert(0, [_with_objects(message) for message in messages])
    text, refusal = _first_rendered(codec, [(form, way | given) for way in ways for form in forms])
    asked = next((message["content"].strip() for message in reversed(messages) if message["role"] == "user"), "")
    if text is None or asked not in text:
        typed = [message | {"content": [{"type": "text", "text": message["content"]}]} for message in messages]
        of_parts, _ = _first_rendered(codec, [(typed, way | given) for way in ways])
        # A template that prints the types of parts does not support parts.
        if of_parts is not None and asked in of_parts and "'type': 'text'" not in of_parts:
            return of_parts
    if text is None:
        raise refusal
    return text


def _first_rendered(
    codec: TextTokenizer, attempts: Sequence[tuple[list[dict[str, Any]], dict[str, Any]]]
) -> tuple[str | None, PromptRefused]:
    refusal = PromptRefused("The target's chat template refused the messages.")
    for messages, options in attempts:
        try:
            return codec.render_chat(messages, **options), refusal
        except TemplateStopped:
            raise
        except PromptRefused as refused:
            refusal = refused
    return None, refusal


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """The tokens of a prompt, and the form of the reply to a chat."""

    tokens: tuple[int, ...]
    reply: ReplyForm | None = None


@dataclass(frozen=True, slots=True)
class EncodedOptions:
    """The options that texts of a request become, and the tokens of its prediction."""

    options: Mapping[str, Any]
    prediction: tuple[int, ...] | None = None


class PromptEncoder:
    """Encodes prompts and other texts of requests, and renders chats, in separate threads."""

    def __init__(self, offload: Offload, offload_chats: Offload) -> None:
        self._offload = offload
        self._offload_chats = offload_chats

    async def encode(
        self, codec: TextTokenizer, prompt: str | tuple[int, ...] | Chat, *, most_tokens: int = MAX_PROMPT_TOKENS
    ) -> EncodedPrompt:
        """Encode a prompt of at most `most_tokens`. Raises `PromptRefused`, also after `ENCODE_TIMEOUT_S`."""
        try:
            async with asyncio.timeout(ENCODE_TIMEOUT_S):
                if isinstance(prompt, Chat):
                    rendered = await self._offload_chats(partial(render, codec, prompt))
                    return await self._offload(partial(_encoded_chat, codec, prompt, rendered, most_tokens))
                return await self._offload(partial(_encoded, codec, prompt, most_tokens))
        except TimeoutError:
            raise PromptRefused(f"The prompt could not be read within {ENCODE_TIMEOUT_S:.0f} s.") from None

    async def encode_options(
        self, codec: TextTokenizer, reply: ReplyForm | None, asked: Mapping[str, Any]
    ) -> EncodedOptions:
        """Encode the texts in a request's options, which `asked` also has as given. Raises `OptionRefused`."""
        for name in ("logit_bias", "stop_token_ids"):
            if asked[name] and max(asked[name]) >= codec.vocab_tokens:
                highest = codec.vocab_tokens - 1
                raise OptionRefused(name, f"Token ids of {name} must be at most {highest}, not {max(asked[name])}.")
        options = _forced(reply, asked)
        if asked["bad_words"]:
            options["bad_words"] = await self._offload(partial(_encoded_words, codec, asked["bad_words"]))
        if not (given := asked.get("prediction")):
            return EncodedOptions(options)
        return EncodedOptions(options, await self._offload(partial(_encoded_prediction, codec, given)))


def _forced(reply: ReplyForm | None, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the option that forces a tool call, if the chat requires one. Raises `OptionRefused`."""
    if reply is None or reply.grammar is None:
        return {}
    for name in (*(kind.option for kind in ConstraintKind), "bad_words", "min_tokens"):
        if asked.get(name):
            raise OptionRefused(name, f"A required tool call cannot be combined with {name}; leave it out.")
    return {"grammar": reply.grammar}


def _encoded_words(codec: TextTokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    found = word_tokens(words, partial(codec.encode, add_special_tokens=False))
    if len(found) > MAX_BAD_WORDS or any(len(word) > MAX_BAD_WORD_TOKENS for word in found):
        bounds = f"{MAX_BAD_WORDS} sequences of {MAX_BAD_WORD_TOKENS} tokens"
        raise OptionRefused("bad_words", f"bad_words must be at most {bounds}; a word is one or two.")
    return found


def _encoded_prediction(codec: TextTokenizer, given: str | Sequence[int]) -> tuple[int, ...] | None:
    refusal = OptionRefused(
        "prediction", f"A prediction must be at most {MAX_PREDICTION_TOKENS} tokens of the target."
    )
    if isinstance(given, str):
        try:
            codec.check_length(given, MAX_PREDICTION_TOKENS)
        except PromptTooLong:
            raise refusal from None
        given = codec.encode(given, add_special_tokens=False)
    if given and (len(given) > MAX_PREDICTION_TOKENS or max(given) >= codec.vocab_tokens):
        raise refusal
    return tuple(given) or None


def _encoded_chat(codec: TextTokenizer, chat: Chat, rendered: RenderedChat, most_tokens: int) -> EncodedPrompt:
    codec.check_length(rendered.text, most_tokens)
    tokens = _some(codec.encode(rendered.text, add_special_tokens=False))
    return EncodedPrompt(tokens, reply_form(codec, chat, rendered.text, describes_tools=rendered.describes_tools))


def _encoded(codec: TextTokenizer, prompt: str | tuple[int, ...], most_tokens: int) -> EncodedPrompt:
    if isinstance(prompt, str):
        codec.check_length(prompt, most_tokens)
    return EncodedPrompt(encode_prompt(codec, prompt))


def _some(tokens: tuple[int, ...]) -> tuple[int, ...]:
    if not tokens:
        raise PromptRefused("The prompt is empty; give at least one character.")
    return tokens


def _with_objects(message: Message) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return dict(message)
    return {**message, "tool_calls": [_with_object(call) for call in calls]}


def _with_object(call: Any) -> Any:
    match call:
        case {"function": {"arguments": str(text)} as function}:
            try:
                arguments = json.loads(text or "{}")
            except (ValueError, RecursionError):
                return call
            return (
                {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call
            )
    return call


def _items(value: object) -> Sequence[Any]:
    items = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(items, Mapping):
        raise PromptRefused("A chat is a list of messages; write [message] for a single one.")
    if isinstance(items, bytes | bytearray | memoryview):
        raise PromptRefused("A prompt is text, not bytes; decode it first, as in prompt.decode().")
    if not isinstance(items, Sequence):
        raise PromptRefused(
            f"A prompt is a text, a list of token ids or a list of chat messages, not {reprlib.repr(value)}."
        )
    return items


def _messages(items: Sequence[Any]) -> list[Message]:
    if not items:
        raise PromptRefused("The prompt is empty; give at least one character.")
    return [_message(number, item) for number, item in enumerate(items, start=1)]


def _message(number: int, message: Any) -> Message:
    if not isinstance(message, Mapping):
        raise PromptRefused(f"Message {number} of the chat must have a role and a content.")
    role = message.get("role")
    if not isinstance(role, str):
        raise PromptRefused(
            f"Message {number} of the chat must have a role that is text, not {reprlib.repr(role)}."
        )
    try:
        said = text_of(message.get("content"))
    except ValueError:
        given = reprlib.repr(message.get("content"))
        raise PromptRefused(
            f"Message {number} of the chat must have a content that is text, not {given}."
        ) from None
    for field, text in (("role", role), ("content", said)):
        _refuse_half_characters(text, f"The {field} of message {number}")
    return {**message, "content": said}


def text_of(content: object) -> str:
    """Return the text of a message's content, joined as in vLLM. Raises `ValueError` for other parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise ValueError
    return "\n".join(map(_text_of_part, content))


def _text_of_part(part: object) -> str:
    text = part.get(TEXT_PARTS.get(str(part.get("type")), "")) if isinstance(part, Mapping) else part
    if not isinstance(text, str):
        raise ValueError
    return text


def _refuse_half_characters(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptRefused(
            f"{what} has half a character at {error.start}, {text[error.start]!r}; decode it from bytes again."
        ) from None


def _token_id(item: object) -> int:
    try:
        return TOKEN_ID.read(item)
    except (TypeError, ValueError, OverflowError):
        raise PromptRefused(
            f"Token ids of a prompt must be whole numbers from 0 to {MAX_TOKEN_ID}, not {reprlib.repr(item)}."
        ) from None
