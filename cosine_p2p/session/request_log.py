"""Log lines of one request, with a name that its client, verifier and drafters share."""

import logging
from collections.abc import MutableMapping
from typing import Any, Final

NAME_BYTES: Final = 4  # Enough to distinguish the requests in one log.
PEER_LETTERS: Final = 8  # The last letters: all peer ids begin with the same ones.


def request_name(d_0: bytes) -> str:
    """Return the name of a request in the log lines of all its peers."""
    return d_0[:NAME_BYTES].hex()


class RequestLogger(logging.LoggerAdapter[logging.Logger]):
    """A log for the request with the digest `d_0`; its fields begin each line and are attributes of the record."""

    def __init__(self, log: logging.Logger, d_0: bytes, *, client: str | None = None) -> None:
        """`client` is the client's peer id."""
        fields: dict[str, object] = {"request": d_0[:NAME_BYTES].hex()}
        if client is not None:
            fields["client"] = client[-PEER_LETTERS:]
        super().__init__(log, fields)

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[object, MutableMapping[str, Any]]:
        fields = self.extra or {}
        shown = " ".join(f"{name}={value}" for name, value in fields.items())
        return f"{shown}: {msg}", {**kwargs, "extra": fields}
