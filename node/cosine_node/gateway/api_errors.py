"""Errors in OpenAI's format: a status and `{"error": {"message", "type", "param", "code"}}`."""

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
    """An error response. `param` names the request field that caused it."""

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
        """The JSON body of the response."""
        kind = "server_error" if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def bad_value(param: str, message: str) -> ApiError:
    """The error for a field with an invalid value."""
    return ApiError(HTTPStatus.BAD_REQUEST, message, code="invalid_value", param=param)


def unsupported(param: str, message: str = "") -> ApiError:
    """The error for a field that the swarm cannot honour."""
    message = message or f"{param} is not supported here."
    return ApiError(HTTPStatus.BAD_REQUEST, message, code="unsupported_parameter", param=param)


def unavailable(message: str, *, code: str) -> ApiError:
    """The error for a request that cannot be served now but may be soon."""
    # A slot or a verifier is usually available again within seconds, or not for a long time.
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, message, code=code, headers={"Retry-After": "2"})


def internal() -> ApiError:
    """The error for a fault of the gateway itself."""
    message = "The gateway failed; its log has the reason under this X-Request-Id."
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, message, code="internal_error")


def of_failure(error: CosineError, *, param: str) -> ApiError:
    """The error for a failed generation; `param` is the field that holds the prompt."""
    match error:
        case PromptTooLong():
            return ApiError(HTTPStatus.BAD_REQUEST, str(error), code="context_length_exceeded", param=param)
        case PromptRefused():
            return bad_value(param, str(error))
        case OptionRefused(name=name):
            return bad_value(name, str(error))
        case GenerationTimedOut():
            # A retry would take as long.
            headers = {"X-Should-Retry": "false"}
            return ApiError(HTTPStatus.GATEWAY_TIMEOUT, str(error), code="timeout", headers=headers)
        case GenerationFailed() | PeerLost():
            return unavailable(str(error), code="no_verifier")
        case _:
            # The error's own text is for the operator: it may name local files.
            message = "The gateway cannot serve its target now; its log has the reason."
            return unavailable(message, code="target_unavailable")
