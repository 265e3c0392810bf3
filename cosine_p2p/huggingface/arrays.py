"""Token ids in lists, numpy arrays and torch tensors, without importing these libraries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cosine_protocol.errors import UsageError

Rows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """A block of tokens for a streamer without arrays, with the interface that streamers of transformers use."""

    tokens: list[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        is_flat = not self.tokens or isinstance(self.tokens[0], int)
        return (len(self.tokens),) if is_flat else (len(self.tokens), len(self.tokens[0]))

    def __getitem__(self, row: int) -> "TokenBlock":
        return TokenBlock(self.tokens[row])

    def tolist(self) -> list[Any]:
        return self.tokens


def plain(value: Any) -> Any:
    """Return an array as numbers or lists, other values unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def rows_of(value: Any, name: str) -> Rows:
    """Return the integers of a [batch, length] block. Raises `UsageError`, with `name`, for other values."""
    if hasattr(value, "keys"):
        raise UsageError(f"{name} must be a [batch, length] block alone; write generate(**inputs) for all of it.")
    rows = plain(value)
    if isinstance(rows, str) or (isinstance(rows, list | tuple) and any(isinstance(row, str) for row in rows)):
        raise UsageError(f"{name} must hold token ids, not text; apply the tokenizer first.")
    if not (isinstance(rows, list | tuple) and rows and all(isinstance(row, list | tuple) for row in rows)):
        raise UsageError(f"{name} must have the shape [batch, length]; write a single prompt as [prompt].")
    if len({len(row) for row in rows}) > 1:
        raise UsageError(f"The rows of {name} must be equally long; pad them on the left.")
    if not all(isinstance(item, int) for row in rows for item in row):
        raise UsageError(f"{name} must hold whole numbers.")
    return tuple(tuple(row) for row in rows)


def like(value: Any, rows: Sequence[Sequence[int]]) -> Any:
    """Return equally long rows as a block of the type, device and dtype of `value`."""
    block = _block(value, (len(rows), len(rows[0])), rows)
    return [list(row) for row in rows] if block is None else block


def _block(value: Any, shape: tuple[int, ...], content: Any) -> Any:
    """Return an array or tensor of the type of `value`, None if that is neither."""
    if hasattr(value, "new_tensor"):
        return value.new_tensor(content)
    if hasattr(value, "dtype"):
        array = type(value)(shape, dtype=value.dtype)
        array[...] = content
        return array
    return None


def for_streamer(value: Any) -> Any:
    """Return a block for a streamer; tensors are copied to main memory."""
    if hasattr(value, "cpu"):
        return value.cpu()
    return value if hasattr(value, "shape") else TokenBlock([list(row) for row in value])


def token_for_streamer(shown: Any, token: int) -> Any:
    """Return one new token as a block of the type of `shown`."""
    block = _block(shown, (1,), [token])
    return TokenBlock([token]) if block is None else block
