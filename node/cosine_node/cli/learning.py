"""Options of `join` for a drafter that learns."""

from typing import Annotated, Final

import typer

from cosine_node.cli.options import MODEL_PANEL
from cosine_node.pool_size import parse_memory
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role

DEFAULT_LEARN_MEMORY: Final = "64MiB"

Learn = Annotated[
    bool,
    typer.Option(
        "--learn",
        metavar="",
        envvar="COSINE_LEARN",
        help="Let a drafter learn, when idle, from texts that clients let it keep; they stay on this machine.",
        rich_help_panel=MODEL_PANEL,
    ),
]
LearnMemory = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        envvar="COSINE_LEARN_MEMORY",
        help="Disk space of the texts that a drafter keeps to learn from.",
        rich_help_panel=MODEL_PANEL,
    ),
]


def parse_learning(role: Role, models: tuple[str, ...], *, learns: bool, memory: str) -> int | None:
    """The bytes of the texts to keep, None for a node that does not learn. Raises `UsageError`."""
    from cosine_node.learning.stream_store import MIN_BYTES
    from cosine_node.model import NGRAM

    if not learns:
        if memory != DEFAULT_LEARN_MEMORY:
            raise UsageError("--learn-memory is for drafters that learn: add --learn.")
        return None
    if role is not Role.DRAFTER:
        raise UsageError(f"--learn is for drafters: what a {role} serves is what its clients asked for.")
    if NGRAM in models:
        raise UsageError(f"{NGRAM} has no weights that could learn; leave --learn out.")
    size_bytes, _ = parse_memory(memory, option="--learn-memory")
    if size_bytes is None or size_bytes < MIN_BYTES:
        raise UsageError(f"--learn-memory takes a size of {MIN_BYTES >> 20}MiB or more, not {memory!r}.")
    return size_bytes
