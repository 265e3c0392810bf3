"""The endpoints that only need the target's tokenizer and template: those of vLLM and llama.cpp, and counts."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from cosine_gateway.admission import admitted_object
from cosine_gateway.api_errors import bad_value, of_failure
from cosine_gateway.body import Body, Json, flag, required, stated_text, text_field, token_ids
from cosine_gateway.chats import CHAT_FIELDS, read_chat
from cosine_gateway.choices import text_of_tokens
from cosine_gateway.endpoint import Service
from cosine_gateway.fields import RequestFields
from cosine_gateway.http.models import VerifierWatch
from cosine_gateway.messages.request import parse_message
from cosine_gateway.responses.request import parse_response
from cosine_p2p.text.prompt import encode_prompt, read_prompt, render
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_protocol.errors import CosineError, PromptRefused
from cosine_protocol.fields import MAX_PROMPT_TOKENS

Answer = Callable[[Body, TextTokenizer], Json]
"""Answers a body by the target's tokenizer."""

OF_CHATS: Final = RequestFields(honoured=CHAT_FIELDS)
OF_TEXTS: Final = RequestFields(
    honoured=frozenset({"add_special", "add_special_tokens", "content", "model", "parse_special", "prompt"})
)
OF_TOKENS: Final = RequestFields(honoured=frozenset({"model", "tokens"}))


def tokenized(body: Body, codec: TextTokenizer) -> Json:
    """Answer `/tokenize`: the token ids of a chat or a text.

    By default the tokenizer adds its special tokens to vLLM's `prompt` but not to llama.cpp's `content`.
    """
    if body.get("messages") is not None:
        OF_CHATS.check(body)
        tokens = encode_prompt(codec, read_prompt(read_chat(body)))
    else:
        OF_TEXTS.check(body)
        name = "content" if body.get("content") is not None else "prompt"
        if flag(body, "parse_special") is False:
            raise bad_value("parse_special", "Special tokens in a text are always parsed.")
        asked = flag(body, "add_special" if name == "content" else "add_special_tokens")
        adds = name == "prompt" if asked is None else asked
        tokens = codec.encode(text_field(body, name), add_special_tokens=adds)
    return {"tokens": list(tokens), "count": len(tokens)}


def detokenized(body: Body, codec: TextTokenizer) -> Json:
    """Answer `/detokenize`: the text under both names."""
    OF_TOKENS.check(body)
    tokens = token_ids(required(body, "tokens"), "tokens", high=MAX_PROMPT_TOKENS)
    if tokens and max(tokens) >= codec.vocab_tokens:
        raise bad_value("tokens", f"Token ids must be at most {codec.vocab_tokens - 1} here, not {max(tokens)}.")
    said = text_of_tokens(codec, tokens)
    return {"content": said, "prompt": said}


def rendered(body: Body, codec: TextTokenizer) -> Json:
    """Answer `/apply-template`: the text of a chat."""
    OF_CHATS.check(body)
    return {"prompt": render(codec, read_chat(body)).text}


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


def counted_message(body: Body, codec: TextTokenizer) -> Json:
    """Answer `/messages/count_tokens`: the tokens of a prompt with its tools."""
    return {"input_tokens": parse_message({**body, "max_tokens": 1}).prompt_tokens(codec)}


def counted_response(body: Body, codec: TextTokenizer) -> Json:
    """Answer `/responses/input_tokens`: the tokens of a prompt with its tools."""
    return {"object": "response.input_tokens", "input_tokens": parse_response(body).prompt_tokens(codec)}


TOKENIZER: Final[Mapping[str, Answer]] = {
    "/tokenize": tokenized,
    "/detokenize": detokenized,
    "/apply-template": rendered,
}
COUNTS: Final[Mapping[str, Answer]] = {
    "/messages/count_tokens": counted_message,
    "/responses/input_tokens": counted_response,
}


def tokenizer_routes(
    service: Service, watch: VerifierWatch, answers: Mapping[str, Answer], checks: Sequence[Middleware] = ()
) -> list[BaseRoute]:
    """The routes of `answers` by path, and of the description of the tokenizer."""

    async def info(_: Request) -> Response:
        return JSONResponse(await service.client.with_tokenizer(described))

    async def reply(answer: Answer, request: Request) -> Response:
        async with admitted_object(request, service.readings) as body:
            service.model_named(stated_text(body, "model"))
            try:
                said = await service.client.with_tokenizer(partial(answer, body))
            except CosineError as error:
                raise of_failure(error, param="input" if "input" in body else "messages") from None
        if "count" in said:
            verifiers, _ = await watch.look()
            said["max_model_len"] = verifiers[0].context_tokens if verifiers else None
        return JSONResponse(said)

    return [
        Route("/tokenizer_info", info, middleware=checks),
        *(
            Route(path, partial(reply, answer), methods=["POST"], middleware=checks)
            for path, answer in answers.items()
        ),
    ]
