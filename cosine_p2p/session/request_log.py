"""Log lines of one request, with a name that its client, verifier and drafters share."""

import logging
from collections.abc import MutableMapping
from typing import Any, Final

NAME_BYTES: Final = 4  # Enough to distinguish the requests in one log.
PEER_LETTERS: Final = 8  # The last letters: all peer ids begin with the same ones.


class RequestLogger(logging.LoggerAdapter[logging.Logger]):
    """Prefixes each line with its fields, and sets them as attributes of the record."""

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[object, MutableMapping[str, Any]]:
        fields = self.extra or {}
        shown = " ".join(f"{name}={value}" for name, value in fields.items())
        return f"{shown}: {msg}", {**kwargs, "extra": fields}


def request_name(d_0: bytes) -> str:
    """Return the name of a request in the log lines of all its peers."""
    return d_0[:NAME_BYTES].hex()


def request_log(log: logging.Logger, d_0: bytes, *, client: str | None = None) -> RequestLogger:
    """Return a log for one request, named by the start of its digest; `client` is the client's peer id."""
    fields: dict[str, object] = {"request": request_name(d_0)}
    if client is not None:
        fields["client"] = client[-PEER_LETTERS:]
    return RequestLogger(log, fields)
