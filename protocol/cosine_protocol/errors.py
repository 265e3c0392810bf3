"""The exceptions. The type tells whose fault an error is."""

from enum import IntEnum


class CosineError(Exception):
    """Root of every error this project raises on purpose."""


class LocalProtocolError(CosineError):
    """Our own code tried to send something the protocol forbids."""


class RemoteProtocolError(CosineError):
    """A peer sent something the protocol forbids."""


class FrameTooLarge(RemoteProtocolError):
    """A frame announced more bytes than its limit."""


class MalformedMessage(RemoteProtocolError):
    """A frame does not decode to a known message within its limits."""


class BadSignature(RemoteProtocolError):
    """A signature does not match its signer, request and body."""


class NotAMember(RemoteProtocolError):
    """A peer does not prove its membership of a private swarm. The text is a clause."""


class ErrorCode(IntEnum):
    INTERNAL = 1
    MALFORMED = 2
    WRONG_TARGET = 3
    WRONG_TOKENIZER = 4
    UNSUPPORTED = 5
    PROMPT_TOO_LONG = 6
    OVERLOADED = 7
    UNKNOWN_REQUEST = 8
    OUT_OF_MEMORY = 9
    SHUTTING_DOWN = 10
    BAD_COMMITTED = 11
    BAD_LOGITS = 12
    BAD_MANDATE = 13
    BAD_TRANSCRIPT = 14
    NOT_ADMITTED = 15
    BAD_ACTIVATIONS = 16
    WRONG_LAYERS = 17
    OUT_OF_STEP = 18
    WRONG_PEER = 19
    NEIGHBOUR_LOST = 20
    NO_CHAIN = 21
    BAD_CONSTRAINT = 22
    NOT_HELD = 23


class PeerError(CosineError):
    """A peer refused or failed a request with a typed error."""

    def __init__(self, code: int, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s


class PeerLost(CosineError):
    """A peer cannot be reached or went silent; `reason` is a clause. With `retry_after_s` nothing was tried."""

    def __init__(self, peer_id: str, reason: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(f"{peer_id}: {reason}")
        self.peer_id = peer_id
        self.reason = reason
        self.retry_after_s = retry_after_s


class OlderPeer(PeerLost):
    """A peer whose version does not support a feature of the request."""


class GenerationFailed(CosineError):
    """No peer could finish the request. The text is one sentence."""


class GenerationTimedOut(GenerationFailed, TimeoutError):
    """A generation took longer than its user allowed."""


class ClockOff(GenerationFailed):
    """No peer was found, because this machine's clock differs from those of peers."""


class UsageError(CosineError):
    """A request that cannot be served as asked. The text is one sentence for the user."""


class OptionRefused(UsageError):
    """An option that the target does not support."""

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(sentence)
        self.name = name


class PromptRefused(UsageError):
    """A prompt that is empty, or that the target's chat template does not take."""


class PromptTooLong(PromptRefused):
    """A prompt that leaves no room for output in the target's context."""
