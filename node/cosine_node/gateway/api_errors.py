"""Errors as OpenAI's clients expect them: a status and `{"error": {"message", "type", "param", "code"}}`."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from cosine_protocol.errors import (
    CosineError,
    GenerationFailed,
    GenerationTimedOut,
    OptionRefused,
    PeerLost,
    PromptRefused,
    PromptTooLong,
)


class ApiError(Exception):
    """An answer other than text. `param` names the field of the request that is at fault."""

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = headers or {}

    @property
    def body(self) -> dict[str, Any]:
        """The JSON that is sent."""
        kind = "server_error" if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def bad_value(param: str, message: str) -> ApiError:
    """A field whose value means nothing."""
    return ApiError(HTTPStatus.BAD_REQUEST, message, code="invalid_value", param=param)


def unsupported(param: str, message: str) -> ApiError:
    """A field that would change the text in a way the swarm cannot."""
    return ApiError(HTTPStatus.BAD_REQUEST, message, code="unsupported_parameter", param=param)


def unavailable(message: str, *, code: str) -> ApiError:
    """A request that nobody can serve now; it may be otherwise soon."""
    # A slot is free again, or a verifier found, within a few seconds or not for long.
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, message, code=code, headers={"Retry-After": "2"})


def internal() -> ApiError:
    """A fault of the gateway itself, about which its log says more."""
    message = "The gateway failed; its operator's log says why under this X-Request-Id."
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, message, code="internal_error")


def of_failure(error: CosineError, *, param: str) -> ApiError:
    """The answer to a request whose generation failed; `param` is the field that holds the prompt."""
    match error:
        case PromptTooLong():
            return ApiError(HTTPStatus.BAD_REQUEST, str(error), code="context_length_exceeded", param=param)
        case PromptRefused():
            return bad_value(param, str(error))
        case OptionRefused(name=name):
            return bad_value(name, str(error))
        case GenerationTimedOut():
            # Asked again it would take as long again.
            headers = {"X-Should-Retry": "false"}
            return ApiError(HTTPStatus.GATEWAY_TIMEOUT, str(error), code="timeout", headers=headers)
        case GenerationFailed() | PeerLost():
            return unavailable(str(error), code="no_verifier")
        case _:
            # Such a sentence is for the operator: it may name files of this machine.
            return unavailable(
                "The gateway cannot serve its target now; its operator's log says why.", code="target_unavailable"
            )
