"""Mutations of messages, moves and JSON as values, since changed bytes hardly ever decode.

Each takes an input, a source of randomness, a function that changes bytes, and the maximum size.
"""

import json
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final

import msgpack

from tests.fuzz.target import Mutate, moves, script

Bytewise = Callable[[bytes, int], bytes]
EDGES: Final = (0, 1, 2, -1, 127, 128, 255, 256, 65_535, 65_536, 131_072, (1 << 31) - 1, 1 << 31, 1 << 53, 1 << 63)
"""Bounds of number types and limits of the protocol."""
REALS: Final = (0.0, -1.0, 1.0, 5e-324, 1e-9, 1e11, 1e300, float("nan"), float("inf"))
NASTY: Final = bytes.fromhex("7f80818f90919fa0bfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d3d4d8d9dadbdcdddedfe0ff")
"""The first bytes of every msgpack type, and false lengths."""
MAX_EDITS: Final = 4
"""The edits of one input."""
MANY: Final = (2, 3, 16, 64, 255, 257)
"""Numbers of repetitions."""


def changed_bytes(data: bytes, max_bytes: int, *, random: Random) -> bytes:
    """A few edits without libFuzzer: flips, nasty bytes, cuts, repeats, insertions."""
    for _ in range(random.randint(1, MAX_EDITS)):
        at = random.randint(0, len(data))
        to = random.randint(at, len(data))
        fresh = random.choice(
            (
                bytes([random.choice(NASTY)]),
                random.randbytes(random.randint(0, 4)),
                data[at:to] * 2,
                bytes([data[at] ^ 1 << random.randrange(8)]) if at < len(data) else b"",
            )
        )
        skipped = random.choice((0, 1, 1, len(fresh), to - at))
        data = data[:at] + fresh + data[at + skipped :]
    return data[:max_bytes]


def mutated_tokenizer(data: bytes, random: Random, bytewise: Bytewise, max_bytes: int) -> bytes:
    """Two JSON files with a zero byte in between, or one."""
    first, zero, second = data.partition(b"\0")
    if zero and random.random() < 0.3:
        return (first + zero + mutated_json(second, random, bytewise, max_bytes))[:max_bytes]
    return (mutated_json(first, random, bytewise, max_bytes) + zero + second)[:max_bytes]


def _mutated_moves(data: bytes, random: Random, bytewise: Bytewise, max_bytes: int, *, mutate: Mutate) -> bytes:
    """Moves with one of them changed, copied, dropped, or made at another time."""
    steps = list(moves(data)) or [(0, b"")]
    at = random.randrange(len(steps))
    how, sent = steps[at]
    match random.randrange(8):
        case 0:
            steps.insert(random.randrange(len(steps) + 1), (how, sent))
        case 1:
            del steps[at]
        case 2:
            steps.insert(random.randrange(len(steps)), steps.pop(at))
        case 3:
            steps[at] = how ^ 1 << random.randrange(8), sent
        case _:
            steps[at] = how, mutate(sent, random, bytewise, max_bytes)
    return script(*steps)[:max_bytes]


def mutated_session(data: bytes, random: Random, bytewise: Bytewise, max_bytes: int) -> bytes:
    """A byte, and moves after it."""
    first = random.randrange(256) if random.random() < 0.1 or not data else data[0]
    return bytes([first]) + mutated_moves(data[1:], random, bytewise, max_bytes - 1)


def mutated_message(data: bytes, random: Random, bytewise: Bytewise, max_bytes: int) -> bytes:
    """msgpack with one value changed; other data is changed as bytes."""
    try:
        value = msgpack.unpackb(data, strict_map_key=False)
        if not isinstance(value, list):
            return bytewise(data, max_bytes)
        packed: bytes = msgpack.packb(_mutated(value, random, bytewise))
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
        return bytewise(data, max_bytes)
    return packed[:max_bytes]


def mutated_signed(data: bytes, random: Random, bytewise: Bytewise, max_bytes: int) -> bytes:
    """A byte, and msgpack after it."""
    return data[:1] + mutated_message(data[1:], random, bytewise, max_bytes - 1)


def mutated_json(data: bytes, random: Random, bytewise: Bytewise, max_bytes: int) -> bytes:
    """JSON with one value changed; other data is changed as bytes."""
    try:
        return json.dumps(_mutated(json.loads(data), random, bytewise)).encode()[:max_bytes]
    except (ValueError, TypeError, RecursionError):
        return bytewise(data, max_bytes)


mutated_moves: Final = partial(_mutated_moves, mutate=mutated_message)
mutated_files: Final = partial(_mutated_moves, mutate=mutated_json)


def _mutated(value: Any, random: Random, bytewise: Bytewise) -> Any:
    """A value that differs in one place; bytes that hold a body are changed as a message."""
    match value:
        case dict() if value and random.random() < 0.9:
            key = random.choice(list(value))
            kept = {name: each for name, each in value.items() if name != key or random.random() < 0.9}
            return {**kept, key: _mutated(value[key], random, bytewise)} if key in kept else kept
        case list() if value and random.random() < 0.9:
            at = random.randrange(len(value))
            changes = (value[:at], [*value, value[at]], value * random.choice(MANY))
            inside = [*value[:at], _mutated(value[at], random, bytewise), *value[at + 1 :]]
            return random.choice((*changes, *[inside] * 7))
        case bytes() if value and random.random() < 0.8:
            if value[0] & 0xF0 == 0x90:
                return mutated_message(value, random, bytewise, 1 << 14)
            return bytewise(value, len(value))
        case str() if random.random() < 0.8:
            return bytewise(value.encode(), len(value) + 8).decode(errors="ignore")
        case float() if random.random() < 0.9:
            return random.choice((*REALS, value * 2, value / 2))
        case int() if not isinstance(value, bool) and random.random() < 0.9:
            return random.choice((*EDGES, value + 1, value - 1, 1 << random.randrange(63)))
    return random.choice((None, True, 0, -1, 1.0, b"", "", [], [0], {}, b"\0" * 16, "a" * 300))
