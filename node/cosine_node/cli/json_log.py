"""The log as JSON, a line each, beside a node's events."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

FIELDS: Final = ("request", "client")
"""What `cosine_p2p.request_log` says of a line besides its text."""

OUR_LOGGERS: Final = ("cosine_node", "cosine_p2p")
"""Only ours tell of requests; those of libraries stay at the level they have."""


class JsonLines(logging.Formatter):
    """`{"event": "log", "time", "level", "logger", "message"}`, and of a request's lines its `FIELDS`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "event": "log",
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


@contextmanager
def logging_as_json() -> Iterator[None]:
    """Write the log as `JsonLines` in this block, the beginning and end of every request included."""
    handlers = [(handler, handler.formatter) for handler in logging.getLogger().handlers]
    levels = [(logger, logger.level) for logger in map(logging.getLogger, OUR_LOGGERS)]
    try:
        for handler, _ in handlers:
            handler.setFormatter(JsonLines())
        for logger, _ in levels:
            logger.setLevel(min(logging.INFO, logger.getEffectiveLevel()))
        yield
    finally:
        for handler, formatter in handlers:
            handler.setFormatter(formatter)
        for logger, level in levels:
            logger.setLevel(level)
