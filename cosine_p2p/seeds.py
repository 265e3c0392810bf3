"""Seeds of several outputs that one seed is asked for."""

from hashlib import blake2b
from typing import Final

SEED_BYTES: Final = 8
_MARK: Final = b"cosine/choice/1"


def choice_seed(seed: int, index: int) -> int:
    """H(seed, index), the seed of choice `index` (DESIGN section 12); choice 0 has the request's own.

    For the others it is BLAKE2b with a digest of 8 bytes over a mark and both numbers in 8 bytes each, all of them
    big-endian, so that anybody can ask for one choice alone and get the same text.
    """
    if index == 0:
        return seed
    data = _MARK + seed.to_bytes(SEED_BYTES) + index.to_bytes(SEED_BYTES)
    return int.from_bytes(blake2b(data, digest_size=SEED_BYTES).digest())
