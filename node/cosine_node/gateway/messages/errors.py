"""Error responses of all APIs.

Anthropic's format is `{"type": "error", "error": {"type", "message"}, "request_id"}`.
"""

from http import HTTPStatus
from typing import Any, Final

from starlette.responses import JSONResponse

from cosine_node.gateway.api_errors import ApiError

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
