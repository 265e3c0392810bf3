"""The tokenizer endpoints of vLLM and llama.cpp, answered by the target's tokenizer and template."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from cosine_gateway.api_errors import bad_value, unsupported
from cosine_gateway.body import Body, required, stated_flag, text, token_ids
from cosine_gateway.fields import refuse_others
from cosine_gateway.text_request import read_chat
from cosine_p2p.request.chat import Chat
from cosine_p2p.text.prompt import encode_prompt, read_prompt, render
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_protocol.errors import PromptRefused
from cosine_protocol.fields import MAX_PROMPT_TOKENS

Json = dict[str, Any]
Answer = Callable[[Body, TextTokenizer], Json]
"""Answers a body by the target's tokenizer."""

OF_CHATS: Final = frozenset({
    "add_generation_prompt", "chat_template_kwargs", "continue_final_message", "documents", "messages", "model",
    "parallel_tool_calls", "reasoning_effort", "tool_choice", "tools",
})  # fmt: skip
OF_TEXTS: Final = frozenset({"add_special", "add_special_tokens", "content", "model", "parse_special", "prompt"})


def text_of_tokens(codec: TextTokenizer, tokens: Sequence[int]) -> str:
    """Decode token ids, special ones included."""
    parts = groupby(tokens, key=lambda token: bool(codec.special_text(token)))
    return "".join(
        "".join(map(codec.special_text, run)) if is_special else codec.decode(list(run))
        for is_special, run in parts
    )


def tokenized(body: Body, codec: TextTokenizer) -> Json:
    """Answer `/tokenize`: the token ids of a chat or a text.

    By default the tokenizer adds its special tokens to vLLM's `prompt` but not to llama.cpp's `content`.
    """
    if body.get("messages") is not None:
        refuse_others(body, OF_CHATS)
        tokens = encode_prompt(codec, _chat(body))
    else:
        refuse_others(body, OF_TEXTS)
        name = "content" if body.get("content") is not None else "prompt"
        if stated_flag(body, "parse_special") is False:
            raise bad_value("parse_special", "Special tokens in a text are always parsed.")
        asked = stated_flag(body, "add_special" if name == "content" else "add_special_tokens")
        adds = name == "prompt" if asked is None else asked
        tokens = codec.encode(text(required(body, name), name), add_special_tokens=adds)
    return {"tokens": list(tokens), "count": len(tokens)}


def detokenized(body: Body, codec: TextTokenizer) -> Json:
    """Answer `/detokenize`: the text under both names."""
    refuse_others(body, frozenset({"model", "tokens"}))
    tokens = token_ids(required(body, "tokens"), "tokens", high=MAX_PROMPT_TOKENS)
    if tokens and max(tokens) >= codec.vocab_tokens:
        raise bad_value("tokens", f"Token ids must be at most {codec.vocab_tokens - 1} here, not {max(tokens)}.")
    said = text_of_tokens(codec, tokens)
    return {"content": said, "prompt": said}


def rendered(body: Body, codec: TextTokenizer) -> Json:
    """Answer `/apply-template`: the text of a chat."""
    refuse_others(body, OF_CHATS)
    return {"prompt": render(codec, _chat(body)).text}


def described(codec: TextTokenizer) -> Json:
    """Answer `/tokenizer_info`: the names of special tokens, and the chat template.

    Benchmarks such as lm-eval read it instead of a copy of the tokenizer.
    """
    try:
        template = codec.chat_template()
    except PromptRefused:
        # The target has no template, or only named ones.
        template = None
    return {"bos_token": None, "eos_token": None, **codec.named_tokens, "chat_template": template or None}


def fitted(chat: Chat, codec: TextTokenizer, *, wishes: Mapping[str, Any], fields: Mapping[str, str]) -> Chat:
    """Add the wishes that a chat's template reads to its template options.

    Raises `ApiError` if the template does not read one of the chat's own options, such as documents, which would be
    ignored silently. `fields` names the body's field for each option. Default: `chat_template_kwargs`.
    """
    template = codec.chat_template(chat.template, has_tools=chat.tools is not None)
    for name, value in {**chat.template_options, "documents": chat.documents}.items():
        if value and value != "none" and name not in template:
            field = fields.get(name, "chat_template_kwargs")
            raise unsupported(field, f"{field} is not supported here: the target's template does not read {name}.")
    read = {name: value for name, value in wishes.items() if name in template}
    return replace(chat, template_options={**chat.template_options, **read})


def chat_tokens(chat: Chat, codec: TextTokenizer, *, wishes: Mapping[str, Any], fields: Mapping[str, str]) -> int:
    """Count the tokens of a chat after `fitted`. Raises `ApiError` and `PromptRefused`."""
    return len(encode_prompt(codec, read_prompt(fitted(chat, codec, wishes=wishes, fields=fields))))


def _chat(body: Body) -> Chat:
    checked = read_prompt(read_chat(body))
    assert isinstance(checked, Chat)
    return checked
