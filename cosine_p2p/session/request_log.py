"""Log lines of one request, by which those of its client, verifier and drafters can be joined."""

import logging
from collections.abc import MutableMapping
from typing import Any, Final

NAME_BYTES: Final = 4  # Enough to tell apart the requests in one log.
PEER_LETTERS: Final = 8  # The last ones differ; all peer ids begin alike.


class RequestLogger(logging.LoggerAdapter[logging.Logger]):
    """Begins each line with its fields, and gives them to a formatter as attributes of the record."""

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[object, MutableMapping[str, Any]]:
        fields = self.extra or {}
        shown = " ".join(f"{name}={value}" for name, value in fields.items())
        return f"{shown}: {msg}", {**kwargs, "extra": fields}


def request_name(d_0: bytes) -> str:
    """The name of a request in all its lines, wherever they are written."""
    return d_0[:NAME_BYTES].hex()


def request_log(log: logging.Logger, d_0: bytes, *, client: str | None = None) -> RequestLogger:
    """A log for one request, named by the start of its digest; `client` is the peer id of who asks."""
    fields: dict[str, object] = {"request": request_name(d_0)}
    if client is not None:
        # Peer ids all begin alike.
        fields["client"] = client[-PEER_LETTERS:]
    return RequestLogger(log, fields)
