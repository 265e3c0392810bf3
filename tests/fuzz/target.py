"""A fuzz target: a function of a stranger's bytes, the errors it may raise, and its seeds."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from cosine_protocol.errors import CosineError, LocalProtocolError

FOLDER: Final = Path(__file__).parent
MAX_MOVES: Final = 24
"""Bounds an input of moves, so that one run stays in milliseconds."""


Mutate = Callable[[bytes, Random, Callable[[bytes, int], bytes], int], bytes]
"""Makes another input of one, as those of `mutation` do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzTarget:
    """`check` reads bytes; any error except our own and `refusals` fails the run.

    Inputs are made from `seeds`, mostly by `mutate` if changed bytes would hardly ever be valid. `runs` is the
    number of inputs of a test, and `max_bytes` bounds them.
    """

    check: Callable[[bytes], object]
    seeds: Callable[[], Sequence[bytes]]
    runs: int
    mutate: Mutate | None = None
    refusals: tuple[type[Exception], ...] = ()
    max_bytes: int = 4096

    def accepts(self, data: bytes) -> bool:
        """True if the bytes were accepted, False if they were refused. Raises all other errors."""
        try:
            self.check(data)
        except LocalProtocolError:
            raise  # we were about to send something that the protocol forbids
        except CosineError:
            return False
        except self.refusals:
            return False
        return True


def any_taken(readers: Iterable[Callable[[], object]]) -> None:
    """Call every reader of one input. Raises the last refusal if no reader accepts it."""
    refused, is_taken = CosineError(), False
    for read in readers:
        try:
            read()
            is_taken = True
        except CosineError as error:
            refused = error
    if not is_taken:
        raise refused


def kept(name: str) -> list[bytes]:
    """The committed inputs of a target that cover more than its seeds: a file with a line of hex for each."""
    file = FOLDER / "corpus" / f"{name}.txt"
    return [bytes.fromhex(line) for line in file.read_text().split()] if file.is_file() else []


def json_seeds(name: str) -> list[bytes]:
    """The seeds of a target that are JSON: a file with a line for each."""
    return (FOLDER / "seeds" / f"{name}.jsonl").read_bytes().splitlines()


def regressions() -> dict[str, bytes]:
    """Inputs that once broke a target, and hand-made hostile inputs, by name."""
    return {path.stem: path.read_bytes() for path in sorted((FOLDER / "regressions").glob("*.bin"))}


def moves(data: bytes) -> Iterator[tuple[int, bytes]]:
    """An input as moves of a hostile peer: a byte of bits, two bytes of length, and the bytes that it sends."""
    at = 0
    for _ in range(MAX_MOVES):
        if at >= len(data):
            return
        size = int.from_bytes(data[at + 1 : at + 3])
        yield data[at], data[at + 3 : at + 3 + size]
        at += 3 + size


def script(*steps: tuple[int, bytes]) -> bytes:
    return b"".join(bytes([how]) + len(sent).to_bytes(2) + sent for how, sent in steps)
