"""Log-probabilities in OpenAI's requests and replies."""

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Final

from cosine_gateway.api_errors import bad_value
from cosine_gateway.body import Body, Json, flag, whole, whole_field
from cosine_p2p.request.logprobs import LikelyToken, NamedToken, TokenLogprob
from cosine_protocol.request import MAX_TOP_LOGPROBS

UTF8: Final = getincrementaldecoder("utf-8")


def read_chat_logprobs(body: Body) -> dict[str, int]:
    """Read a chat's boolean `logprobs` and its number `top_logprobs`. Raises `ApiError`."""
    count = whole_field(body, "top_logprobs", 0, low=0, high=MAX_TOP_LOGPROBS)
    if flag(body, "logprobs"):
        return {"logprobs": count}
    if count:
        raise bad_value("top_logprobs", "top_logprobs needs logprobs to be true.")
    return {}


def read_completion_logprobs(body: Body) -> dict[str, int]:
    """Read a completion's number `logprobs`; with `echo` it includes the prompt. Raises `ApiError`."""
    count = body.get("logprobs")
    if count is None or count is False:
        return {}
    top = whole(count, "logprobs", low=0, high=MAX_TOP_LOGPROBS)
    return {"logprobs": top, "prompt_logprobs": top} if flag(body, "echo") else {"logprobs": top}


class ChatLogprobs:
    """Formats the log-probabilities of a chat."""

    def of(self, told: Sequence[NamedToken], text: str) -> Json:
        """Format the tokens of one piece; its `text` is not needed here."""
        content = [
            {**_of_chat(each), "top_logprobs": [_of_chat(likely) for likely in each.top]}
            for each in told
            if isinstance(each, TokenLogprob)
        ]
        return {"content": content, "refusal": None}


def _of_chat(token: LikelyToken) -> Json:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.utf8) or None}


class CompletionLogprobs:
    """Formats the log-probabilities of one completion, piece by piece.

    An offset is the number of characters of the whole text before the token.
    """

    def __init__(self) -> None:
        self._offset = 0
        self._end = 0
        self._decoder = UTF8(errors="replace")

    def of(self, told: Sequence[NamedToken], text: str) -> Json:
        """Format the tokens of one piece; a prompt is one piece with its whole `text`."""
        is_prompt = bool(told) and not isinstance(told[0], TokenLogprob)
        offsets = []
        for each in told:
            offsets.append(self._offset)
            if is_prompt:
                self._offset += _length(each, text[self._offset :])
            else:
                self._offset += len(self._decoder.decode(bytes(each.utf8)))
        if is_prompt:
            self._offset = len(text)
        return {
            "tokens": [_name(each) for each in told],
            "token_logprobs": [each.logprob if isinstance(each, TokenLogprob) else None for each in told],
            # As in OpenAI's API, the chosen token is always included.
            "top_logprobs": [
                {_name(likely): likely.logprob for likely in (*each.top, each)}
                if isinstance(each, TokenLogprob)
                else None
                for each in told
            ],
            "text_offset": offsets,
        }


def _length(token: NamedToken, rest: str) -> int:
    """The number of characters of a prompt's token at the beginning of the rest of the text.

    The text of a prompt contains special tokens only if it was sent as tokens; the first word may lack its space.
    """
    stands = (token.text, token.text.removeprefix(" "))
    return next(
        (len(text) for text in stands if rest.startswith(text)), len(bytes(token.utf8).decode(errors="ignore"))
    )


def _name(token: NamedToken) -> str:
    """The text of a token, or its bytes in OpenAI's notation if they are not valid UTF-8."""
    try:
        bytes(token.utf8).decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.utf8)
    return token.text
