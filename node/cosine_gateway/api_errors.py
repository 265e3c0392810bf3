"""Errors in the formats of OpenAI and Anthropic.

OpenAI's is a status and `{"error": {"message", "type", "param", "code"}}`, Anthropic's
`{"type": "error", "error": {"type", "message"}, "request_id"}`.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import JSONResponse

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


MESSAGES: Final = "/v1/messages"
"""The prefix of the paths of Anthropic's API; all others are OpenAI's."""
OVERLOADED: Final = 529
"""Anthropic's HTTP status for an overloaded server."""
_KINDS: Final = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_TIMEOUT: "timeout_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}


def error_body(problem: ApiError, *, request_id: str) -> dict[str, Any]:
    otherwise = "api_error" if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    kind = "overloaded_error" if problem.code == "overloaded" else _KINDS.get(problem.status, otherwise)
    return {"type": "error", "error": {"type": kind, "message": problem.message}, "request_id": request_id}


def refusal(problem: ApiError, *, path: str, request_id: str) -> JSONResponse:
    """Return the error response to a request for this path."""
    headers = dict(problem.headers)
    if path.startswith(MESSAGES):
        status = OVERLOADED if problem.code == "overloaded" else problem.status
        return JSONResponse(error_body(problem, request_id=request_id), status, headers=headers)
    return JSONResponse(problem.body, problem.status, headers=headers)
