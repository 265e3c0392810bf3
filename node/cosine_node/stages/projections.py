"""Random projections of activations, by which two sides estimate the distance of vectors. Pure.

Each is the sum of a vector's numbers with signs from a seed (docs/protocol.md, section 6, "Probes"). The root mean
square of the projections of a difference estimates its length (Johnson and Lindenstrauss 1984). The seed is drawn
after the activations were computed, since a peer that knew it could forge them.
"""

from hashlib import shake_256
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.stage import PROJECTION_BYTES, PROJECTIONS

Projections = npt.NDArray[np.float64]
"""[tokens, `PROJECTIONS`]."""
DOMAIN: Final = b"cosine/probe/1"
AT_ONCE_TOKENS: Final = 64
"""Bounds memory to 8 MiB at a width of 16,384 in float 64."""
VALUE_BYTES: Final = {
    **dict.fromkeys(("float32", "float32/float16", "float32/int4", "float32/int8"), 4),
    "bfloat16": 2,
    "float16": 2,
}
"""Bytes of a number of the activations, by the numerics that checks can compare."""


def project(activations: bytes | bytearray | memoryview, *, tokens: int, numerics: str, seed: bytes) -> bytes:
    """The projections of `tokens` vectors, as in `PartTrace`. Raises `LocalProtocolError`."""
    size = VALUE_BYTES.get(numerics)
    if size is None or not tokens or len(activations) % (size * tokens):
        raise LocalProtocolError(f"{len(activations)} bytes are not vectors of {tokens} tokens in {numerics}.")
    width = len(activations) // (size * tokens)
    signs = _signs(width, seed)
    found = np.empty((tokens, PROJECTIONS), dtype="<f4")
    # A sum beyond float 32 becomes infinite, which no honest stage reaches.
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, tokens, AT_ONCE_TOKENS):
            stop = min(tokens, start + AT_ONCE_TOKENS)
            part = memoryview(activations)[start * width * size : stop * width * size]
            found[start:stop] = _values(part, numerics).reshape(stop - start, width) @ signs
    return found.tobytes()


def read_projections(told: bytes, *, tokens: int) -> Projections | None:
    """Decode the projections of `tokens` vectors; None if the length is another."""
    if len(told) != PROJECTIONS * PROJECTION_BYTES * tokens:
        return None
    return np.frombuffer(told, dtype="<f4").astype(np.float64).reshape(tokens, PROJECTIONS)


def _signs(width: int, seed: bytes) -> Projections:
    """1 or -1 for each number of a vector and each projection: [width, `PROJECTIONS`]."""
    drawn = np.frombuffer(shake_256(DOMAIN + seed).digest(PROJECTIONS // 8 * width), dtype=np.uint8)
    bits = np.unpackbits(drawn).reshape(width, PROJECTIONS)
    return np.where(bits, np.float64(1.0), np.float64(-1.0))


def _values(activations: Any, numerics: str) -> npt.NDArray[np.float64]:
    if numerics == "bfloat16":
        # The upper half of a float 32.
        upper = np.frombuffer(activations, dtype="<u2").astype(np.uint32) << 16
        return upper.view(np.float32).astype(np.float64)
    return np.frombuffer(activations, dtype="<f4" if VALUE_BYTES[numerics] == 4 else "<f2").astype(np.float64)
