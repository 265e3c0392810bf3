"""OpenAI's `/v1/completions`: texts that continue prompts, of text or token ids."""

from collections.abc import Iterator
from typing import Any, Final

from cosine_gateway.api_errors import bad_value
from cosine_gateway.body import Body, Json, flag, required, text, token_ids
from cosine_gateway.choices_reply import ChoicesReply
from cosine_gateway.fields import RequestFields
from cosine_gateway.logprobs import CompletionLogprobs, read_completion_logprobs
from cosine_gateway.reply import Api
from cosine_gateway.text_options import COMPLETION_DEFAULTS
from cosine_gateway.text_request import COMMON_FIELDS, MAX_CHOICES, TextRequest, text_request
from cosine_p2p.replies.parts import Content, Part, Reply
from cosine_p2p.request.options import Prompt
from cosine_protocol.fields import MAX_PROMPT_TOKENS

FIELDS: Final = RequestFields(
    honoured=COMMON_FIELDS - {"max_output_tokens", "stop_sequences"}
    | {"add_special_tokens", "echo", "logprobs", "prompt"}
)


def parse_completion(body: Body) -> TextRequest:
    """Read the body of a completion. Raises `ApiError`."""
    ignored = FIELDS.check(body)
    return text_request(
        body,
        prompts=_prompts(required(body, "prompt")),
        asked=read_completion_logprobs(body),
        least_tokens=0,
        prompt_field="prompt",
        otherwise=COMPLETION_DEFAULTS,
        is_echoed=bool(flag(body, "echo")),
        adds_special_tokens=flag(body, "add_special_tokens") is not False,
        ignored=ignored,
    )


def _prompts(prompt: Any) -> tuple[Prompt, ...]:
    """Read one prompt or several, each a text or token ids."""
    several = prompt if isinstance(prompt, list) else [prompt]
    if isinstance(prompt, list) and prompt and all(isinstance(each, int | float) for each in prompt):
        several = [prompt]
    if not several or not all(isinstance(each, str | list) for each in several):
        raise bad_value("prompt", "prompt must be text or token ids, or a list of texts or of lists of token ids.")
    if len(several) > MAX_CHOICES:
        raise bad_value("prompt", f"One request may ask for at most {MAX_CHOICES} texts; send several.")
    return tuple(
        text(each, "prompt") if isinstance(each, str) else token_ids(each, "prompt", high=MAX_PROMPT_TOKENS)
        for each in several
    )


class CompletionReply(ChoicesReply):
    """Texts, whole or streamed."""

    id_prefix = "cmpl-"
    whole_kind = piece_kind = "text_completion"
    shape = CompletionLogprobs

    def _opening(self, index: int) -> Iterator[Json]:
        yield from ()

    def _whole_of(self, parts: list[Part]) -> Json:
        return {"text": Reply.of(parts).content}

    def _piece_of(self, part: Part | None) -> Json:
        return {"text": part.text if isinstance(part, Content) else ""}


COMPLETIONS: Final = Api("/completions", parse_completion, CompletionReply)
