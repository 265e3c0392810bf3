"""Measures passes with weights in float32 and held in float16: `python -m tests.node.engine.blocks.measure_half`.

SmolLM2-135M, one thread, after 100 tokens; the two by turns, medians of so many rounds in milliseconds.
"""

import argparse
import sys
import time
from statistics import median
from typing import Final

import torch

from cosine_node.engine.base import Engine, Row
from cosine_node.engine.torch.loading import load_engine
from cosine_node.models.model import fetch_folder
from cosine_protocol.request import Sampling

TOKENS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 512)
TEXT_TOKENS: Final = 100


def pass_s(engine: Engine, tokens: int) -> float:
    """The seconds of a pass over a chain of so many tokens behind a text."""
    sequence = engine.open(sampling=Sampling(), prompt_tokens=TEXT_TOKENS)
    text = Row.chain(sequence, tuple(range(1, TEXT_TOKENS + 1)))
    engine.forward([text])
    engine.keep(sequence, text.nodes)
    row = Row.chain(sequence, tuple(range(200, 200 + tokens)))
    began_s = time.perf_counter()
    engine.forward([row])
    took_s = time.perf_counter() - began_s
    engine.release(sequence)
    return took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    folder = str(fetch_folder("zoo:smol-target"))
    engines = [load_engine(folder, dtype="float32", quantize=held, device="cpu") for held in (None, "float16")]
    sys.stdout.write(" | ".join(("tokens", *(engine.numerics for engine in engines), "ratio")) + "\n")
    for tokens in TOKENS:
        found = [[pass_s(engine, tokens) for engine in engines] for _ in range(rounds)]
        plain_ms, held_ms = (1000 * median(times) for times in zip(*found, strict=True))
        sys.stdout.write(f"{tokens} | {plain_ms:.1f} | {held_ms:.1f} | {held_ms / plain_ms:.2f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
