"""Error responses in the format of the requested API."""

from typing import Final

from starlette.responses import JSONResponse

from cosine_node.gateway.api_errors import ApiError
from cosine_node.gateway.messages.errors import error_body, status_of

MESSAGES: Final = "/v1/messages"
"""The prefix of the paths of Anthropic's API; all others are OpenAI's."""


def refusal(problem: ApiError, *, path: str, request_id: str) -> JSONResponse:
    """Return the error response to a request for this path."""
    headers = dict(problem.headers)
    if path.startswith(MESSAGES):
        return JSONResponse(error_body(problem, request_id=request_id), status_of(problem), headers=headers)
    return JSONResponse(problem.body, problem.status, headers=headers)
