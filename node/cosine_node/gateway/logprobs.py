"""Log-probabilities as OpenAI's bodies ask for them, and as its replies show them."""

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any, Final

from cosine_node.gateway.api_errors import bad_value
from cosine_node.gateway.body import Body, flag, whole_value
from cosine_p2p.request.logprobs import LikelyToken, NamedToken, TokenLogprob
from cosine_protocol.limits import MAX_TOP_LOGPROBS

Json = dict[str, Any]
UTF8: Final = getincrementaldecoder("utf-8")


def read_chat_logprobs(body: Body) -> dict[str, int]:
    """The option that a chat names: `logprobs` is true or false, `top_logprobs` a number. Raises `ApiError`."""
    top = body.get("top_logprobs")
    count = 0 if top is None else whole_value(top, "top_logprobs", low=0, high=MAX_TOP_LOGPROBS)
    if flag(body, "logprobs"):
        return {"logprobs": count}
    if count:
        raise bad_value("top_logprobs", "top_logprobs needs logprobs to be true.")
    return {}


def read_completion_logprobs(body: Body) -> dict[str, int]:
    """The options that a completion names: `logprobs` is a number, and holds for the prompt where that is echoed.

    Raises `ApiError`.
    """
    count = body.get("logprobs")
    if count is None or count is False:
        return {}
    top = whole_value(count, "logprobs", low=0, high=MAX_TOP_LOGPROBS)
    return {"logprobs": top, "prompt_logprobs": top} if flag(body, "echo") else {"logprobs": top}


class ChatLogprobs:
    """The tokens of one chat's reply in the shape of chats, one piece after the other."""

    def of(self, told: Sequence[NamedToken], text: str) -> Json:
        """Some tokens; where they stand in the `text` of the same piece is not told."""
        content = [
            {**_of_chat(each), "top_logprobs": [_of_chat(likely) for likely in each.top]}
            for each in told
            if isinstance(each, TokenLogprob)
        ]
        return {"content": content, "refusal": None}


def _of_chat(token: LikelyToken) -> Json:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.utf8) or None}


class CompletionLogprobs:
    """The tokens of one completion in the shape of completions, one piece after the other.

    An offset counts the characters of the whole text before its token.
    """

    def __init__(self) -> None:
        self._offset = 0
        self._end = 0
        self._decoder = UTF8(errors="replace")

    def of(self, told: Sequence[NamedToken], text: str) -> Json:
        """Some tokens; a prompt's all come with its whole `text`."""
        is_prompt = bool(told) and not isinstance(told[0], TokenLogprob)
        offsets = []
        for each in told:
            offsets.append(self._offset)
            self._offset += _length(each, text[self._offset :]) if is_prompt else self._decoded(each)
        if is_prompt:
            self._offset = len(text)
        return {
            "tokens": [_name(each) for each in told],
            "token_logprobs": [each.logprob if isinstance(each, TokenLogprob) else None for each in told],
            # As OpenAI has it, the text's own token is always there.
            "top_logprobs": [
                {_name(likely): likely.logprob for likely in (*each.top, each)}
                if isinstance(each, TokenLogprob)
                else None
                for each in told
            ],
            "text_offset": offsets,
        }

    def _decoded(self, token: NamedToken) -> int:
        """The characters that are whole with one more token."""
        return len(self._decoder.decode(bytes(token.utf8)))


def _length(token: NamedToken, rest: str) -> int:
    """The characters of a prompt's token, where the rest of the text begins with it.

    Special tokens stand in the text of a prompt that was sent as tokens, and in none that was sent as text; the
    first word may have lost its space.
    """
    stands = (token.text, token.text.removeprefix(" "))
    return next(
        (len(text) for text in stands if rest.startswith(text)), len(bytes(token.utf8).decode(errors="ignore"))
    )


def _name(token: NamedToken) -> str:
    """The text of a token; of bytes that are no text by themselves, as OpenAI writes them."""
    try:
        bytes(token.utf8).decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.utf8)
    return token.text
