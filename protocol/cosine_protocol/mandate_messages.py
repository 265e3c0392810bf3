"""A mandate as it travels: what a client allows the verifier that coordinates its request."""

from dataclasses import dataclass
from typing import Annotated

from cosine_protocol import limits
from cosine_protocol.fields import Added, Bytes, Flag, Items, Position, Real, Signature, Text, Whole


@dataclass(frozen=True, slots=True)
class Mandate:
    """The body that a client signs: `delegate` may have `drafters` follow one request. Times are Unix seconds.

    With `shares_feedback` drafters may keep the request's text to learn from it; the `pupil` among them follows it
    for nothing else.
    """

    delegate: Annotated[str, Text(limits.MAX_PEER_ID_BYTES)]
    drafters: Annotated[tuple[str, ...], Items(Text(limits.MAX_PEER_ID_BYTES), limits.MAX_AUTHORS)]
    most_tokens: Position
    issued_at_s: Annotated[float, Real(1e11)]
    lifetime_s: Annotated[float, Real(limits.MAX_MANDATE_S)]
    prompt_window_tokens: Annotated[int | None, Added(Whole(limits.MAX_PROMPT_TOKENS, 1))] = None
    shares_feedback: Annotated[bool | None, Added(Flag())] = None
    pupil: Annotated[str | None, Added(Text(limits.MAX_PEER_ID_BYTES))] = None


@dataclass(frozen=True, slots=True)
class SignedMandate:
    """A mandate as it travels; `body` decodes to a `Mandate`."""

    body: Annotated[bytes, Bytes(limits.MAX_MANDATE_BYTES)]
    signature: Signature
