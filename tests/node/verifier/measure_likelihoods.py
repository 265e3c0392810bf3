"""Measures how far the likelihoods of one text differ between honest verifiers of the same numerics.

    python -m tests.node.verifier.measure_likelihoods --texts 32

The author feeds sixteen texts at once, a token at a time; the auditor each alone in pieces of 64, PyTorch with two
threads instead of one. A line for each numerics has the positions, the widest difference of any number told, with
20 likeliest tokens at each, its 99th and 99.9th percentile in nats, and the widest mean of a text. With `--cost` it
has the time of decoding one text with what is told of it, over that without.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from cosine_lab.experiments.decoding import alternately
from cosine_node.engine.base import Engine, Row
from cosine_node.verifier.audits import ToldGap
from cosine_p2p.trust.audit_rule import rounding_of
from cosine_protocol.likelihoods import Likelihood
from cosine_protocol.limits import MAX_TOP_LOGPROBS
from tests.node.verifier.audited_texts import AT_ONCE, Texts, engine_of
from tests.node.verifier.measure_audits import NUMERICS, SAMPLINGS, AuditTask, text_of

PIECE_TOKENS: Final = 64


def told(engine: Engine, texts: Texts, *, at_once: int, piece_tokens: int) -> list[list[Likelihood]]:
    """The likelihoods of the tokens of texts but the first, so many texts and tokens of each in a pass."""
    found: list[list[Likelihood]] = [[] for _ in texts]
    for start in range(0, len(texts), at_once):
        numbers = range(start, min(start + at_once, len(texts)))
        sequences = {
            number: engine.open(sampling=SAMPLINGS["greedy"], prompt_tokens=len(texts[number]))
            for number in numbers
        }
        while unfed := [number for number in numbers if len(found[number]) < len(texts[number]) - 1]:
            rows = []
            for number in unfed:
                first = len(found[number])
                chunk = texts[number][first:-1][:piece_tokens]
                row = Row.chain(sequences[number], chunk, scored_from=len(chunk))
                followers = tuple(texts[number][first + 1 : first + 1 + len(chunk)])
                rows.append(replace(row, followers=followers, top=MAX_TOP_LOGPROBS))
            for number, row, result in zip(unfed, rows, engine.forward(rows), strict=True):
                found[number] += result.likelihoods
                engine.keep(row.sequence, row.nodes)
        for sequence in sequences.values():
            engine.release(sequence)
    return found


def differences(model: str, numerics: str, other: str, count: int) -> Iterator[str]:
    """The line of an author's numerics and an auditor's."""
    author, auditor = engine_of(numerics, model=model), engine_of(other, model=model)
    for name in ("greedy", "temperature 1"):
        task = AuditTask.of(model, numerics, SAMPLINGS[name], count)
        torch.set_num_threads(1)
        texts = [[*prompt, *text] for prompt, text in zip(task.prompts, text_of(author, task), strict=True)]
        written = told(author, texts, at_once=AT_ONCE, piece_tokens=1)
        torch.set_num_threads(2)
        read = told(auditor, texts, at_once=1, piece_tokens=PIECE_TOKENS)
        gaps = [
            [ToldGap.of(*pair) for pair in zip(one, other, strict=True)]
            for one, other in zip(written, read, strict=True)
        ]
        widest = sorted(gap.widest for text in gaps for gap in text)
        mean = max(abs(sum(gap.of_token for gap in text)) / len(text) for text in gaps)
        spread = (sum(gap.of_token**2 for text in gaps for gap in text) / len(widest)) ** 0.5
        yield (
            f"{numerics}, {other} | {name} | {len(widest)} positions | widest {widest[-1]:.3g} | "
            f"99.9 % within {widest[int(0.999 * len(widest))]:.3g}, 99 % {widest[int(0.99 * len(widest))]:.3g} | "
            f"widest mean of a text {mean:.3g}, standard deviation {spread:.3g} | "
            f"margin of near ties {rounding_of(numerics).near_tie}"
        )


def cost(model: str, numerics: str) -> Iterator[str]:
    """The line of one numerics with `--cost`."""
    torch.set_num_threads(1)
    engine = engine_of(numerics, model=model)
    [prompt] = AuditTask.of(model, numerics, SAMPLINGS["greedy"], 1).prompts
    ways = {"none": None, "0": 0, "5": 5, "20": MAX_TOP_LOGPROBS}
    runs = {name: partial(decode, engine, prompt, top) for name, top in ways.items()}
    timed = alternately(runs, repeats=COST_REPEATS, clock=time.process_time)
    plain_s = timed["none"].median_s
    ratios = ", ".join(f"{timed[name].median_s / plain_s:.3f} with {name}" for name in ways if name != "none")
    yield f"{numerics} | {1e3 * plain_s / COST_TOKENS:.2f} ms a token without | {ratios} likeliest tokens"


def decode(engine: Engine, prompt: list[int], top: int | None) -> None:
    """Decode a text, and tell of each token."""
    sequence, pending = engine.open(sampling=SAMPLINGS["greedy"], prompt_tokens=len(prompt)), prompt
    for _ in range(COST_TOKENS):
        row = Row.chain(sequence, pending, scored_from=len(pending) - 1)
        if top is not None:
            row = replace(row, followers=(None,), top=top)
        [result] = engine.forward([row])
        engine.keep(sequence, row.nodes)
        pending = [result.choices[0].token]
    engine.release(sequence)


COST_TOKENS: Final = 64
COST_REPEATS: Final = 11


def main() -> None:
    """Measure what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="target", help="target or smol-target")
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--numerics", action="append", help="all of the embedded target unless given")
    parser.add_argument("--auditor", help="numerics of the auditor, those of the author unless given")
    parser.add_argument("--cost", action="store_true", help="measure time instead")
    arguments = parser.parse_args()
    for numerics in arguments.numerics or NUMERICS:
        lines = differences(arguments.model, numerics, arguments.auditor or numerics, arguments.texts)
        for line in cost(arguments.model, numerics) if arguments.cost else lines:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
