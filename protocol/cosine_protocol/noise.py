"""Keyed Gumbel noise: a pure function of (seed, output position, token id) (docs/design.md).

This is the reference in plain integers; the engine's vectorised form must equal it bit for bit. The stream is
splitmix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators") started at a key that mixes
seed and position; token `v` takes its (v+1)-th output.
"""

import math
import struct

# The constants of splitmix64, as in its paper.
MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
MIX_A = 0xBF58476D1CE4E5B9
MIX_B = 0x94D049BB133111EB


def mix64(x: int) -> int:
    """The splitmix64 finaliser on 64-bit words."""
    x = ((x ^ (x >> 30)) * MIX_A) & MASK
    x = ((x ^ (x >> 27)) * MIX_B) & MASK
    return x ^ (x >> 31)


def position_key(*, seed: int, position: int) -> int:
    return mix64((mix64((seed + GAMMA) & MASK) + (position + 1) * GAMMA) & MASK)


def noise_bits(*, seed: int, position: int, token: int) -> int:
    """The 64 hash bits behind the noise of one token at one output position."""
    return token_bits(position_key(seed=seed, position=position), token)


def token_bits(key: int, token: int) -> int:
    """The 64 hash bits of one token under the key of an output position."""
    return mix64((key + (token + 1) * GAMMA) & MASK)


def gumbel(*, seed: int, position: int, token: int) -> float:
    """Standard Gumbel noise `-log(-log u)`, computed in float64 and rounded to float32."""
    u = ((noise_bits(seed=seed, position=position, token=token) >> 11) + 0.5) * 2.0**-53
    rounded: float = struct.unpack("<f", struct.pack("<f", -math.log(-math.log(u))))[0]
    return rounded
