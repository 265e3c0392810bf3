"""Errors in Anthropic's format: `{"type": "error", "error": {"type", "message"}, "request_id"}`."""

from http import HTTPStatus
from typing import Any, Final

from cosine_node.gateway.api_errors import ApiError

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


def status_of(problem: ApiError) -> int:
    return OVERLOADED if problem.code == "overloaded" else problem.status


def error_body(problem: ApiError, *, request_id: str) -> dict[str, Any]:
    otherwise = "api_error" if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    kind = "overloaded_error" if problem.code == "overloaded" else _KINDS.get(problem.status, otherwise)
    return {"type": "error", "error": {"type": kind, "message": problem.message}, "request_id": request_id}
