"""Measures how often an honest stream looks otherwise in an audit: `python -m tests.node.verifier.measure_audits`.

Texts of the embedded target are decoded token by token, sixteen at once, and audited by the same engine in pieces
of 64. Prints, for each data type and way to sample, the positions compared, those that differ, and the widest gaps.
"""

import argparse
import sys
from typing import Final

import torch

from cosine_node import zoo
from cosine_node.bench.engine_rivals import decoded
from cosine_node.engine.loading import load_engine
from cosine_node.zoo.prompt_set import prompts
from cosine_p2p.tokenizer import TextCodec
from cosine_p2p.tokenizer_files import TokenizerFiles
from cosine_protocol.request import Sampling
from tests.node.peers import request_of
from tests.node.verifier.replaying import verdict_on

SAMPLINGS: Final = {
    "greedy": Sampling(),
    "temperature 1": Sampling(temperature=1.0),
    "temperature 0.8, top_p 0.9": Sampling(temperature=0.8, top_p=0.9),
    "temperature 0.8, top_k 20, min_p 0.05": Sampling(temperature=0.8, top_k=20, min_p=0.05),
}
TOKENS: Final = 125
"""Output tokens of each text."""


def measure(dtype: str, name: str, positions: int) -> str:
    """One line of the table."""
    folder = zoo.location("target")
    engine = load_engine(str(folder), dtype=dtype, device="cpu", pool_tokens=16_384)
    files = TokenizerFiles.read(folder)
    assert files is not None
    codec = TextCodec(files.files)
    texts = [prompt.render() for domain in zoo.DOMAINS for prompt in prompts(domain)]
    count = positions // TOKENS
    asked = [codec.encode(texts[number % len(texts)])[:200] for number in range(count)]
    sampling = SAMPLINGS[name]
    samplings = [
        Sampling(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=number,
        )
        for number in range(count)
    ]
    answers = decoded(engine, asked, [TOKENS] * count, at_once=16, samplings=samplings)
    compared, near, gaps = 0, 0, list[float]()
    for prompt, one, answer in zip(asked, samplings, answers, strict=True):
        request = request_of("c", prompt=prompt, sampling=one, max_new_tokens=TOKENS, numerics=engine.numerics)
        verdict = verdict_on(engine, request, answer.tokens)
        compared += verdict.tokens
        near += verdict.near_ties
        gaps += [finding.gap for finding in verdict.findings]
    widest = " ".join(f"{gap:.4g}" for gap in sorted(gaps, reverse=True)[:5])
    return f"{dtype} | {name} | {compared} | {near} near ties | {len(gaps) - near} different | {widest}"


def main() -> None:
    """Measure what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--positions", type=int, default=10_000)
    parser.add_argument("--dtype", action="append", choices=["float32", "bfloat16", "float16"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for dtype in arguments.dtype or ["float32", "bfloat16", "float16"]:
        for name in SAMPLINGS:
            sys.stdout.write(measure(dtype, name, arguments.positions) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
