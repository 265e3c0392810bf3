"""Answers that are errors, each in the shape of the API that was asked."""

from typing import Final

from starlette.responses import JSONResponse

from cosine_node.gateway.api_errors import ApiError
from cosine_node.gateway.messages.errors import error_body, status_of

MESSAGES: Final = "/v1/messages"
"""Paths that begin so are Anthropic's, all others OpenAI's."""


def refusal(problem: ApiError, *, path: str, request_id: str) -> JSONResponse:
    """The answer to a request for this path."""
    headers = dict(problem.headers)
    if path.startswith(MESSAGES):
        return JSONResponse(error_body(problem, request_id=request_id), status_of(problem), headers=headers)
    return JSONResponse(problem.body, problem.status, headers=headers)
