"""Measures what a prediction of a text is worth: `python -m tests.node.verifier.measure_predictions`.

A text of 200 tokens is decoded without and with a prediction that is that text with a tenth of its tokens replaced,
left out or preceded by a new one, in turn and in one run. A line has the passes and the seconds of the process, for
a verifier's own choice of drafts on its measured curve, with prompt lookup both times.
"""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

import torch

from cosine_lab.experiments.decoding import alternately
from cosine_node.engine.base import Engine
from cosine_node.engine.curve import CostCurve, measure_curve
from cosine_node.verifier.pass_rows import PassRows
from cosine_node.verifier.request import DraftRates, PromptLookup, SpeculationAccount
from cosine_node.verifier.scheduler import pass_budget_tokens
from cosine_node.verifier.served import ServedRequests
from cosine_p2p.strategy.prediction import Prediction
from cosine_protocol.errors import CosineError
from tests.node.peers import request_of
from tests.node.verifier.audited_texts import asked, engine_of
from tests.node.verifier.replaying import unfed

TOKENS: Final = 200
CHANGED: Final = 0.1
REPEATS: Final = 5


def changed(tokens: Sequence[int], *, vocab_tokens: int, seed: int) -> tuple[int, ...]:
    """A text of which a tenth of the tokens are replaced, left out, or have a new one before them."""
    chance, found = random.Random(seed), list[int]()
    for token in tokens:
        new = chance.randrange(vocab_tokens)
        kept = [[new], [], [new, token]][chance.randrange(3)] if chance.random() < CHANGED else [token]
        found += kept
    return tuple(found)


def written(
    engine: Engine, curve: CostCurve, prompt: Sequence[int], rates: DraftRates, predicted: Sequence[int]
) -> tuple[list[int], int]:
    """A text and how many passes it took."""
    request = unfed(request_of("c", prompt=tuple(prompt), max_new_tokens=TOKENS, eos=(), numerics=engine.numerics))
    request.kv.sequence = engine.open(sampling=request.request.sampling, prompt_tokens=len(prompt))
    request.lookup, request.account = PromptLookup(prompt), SpeculationAccount(rates)
    request.prediction = Prediction(predicted) if predicted else None
    requests = ServedRequests()
    requests.add(request)
    rows = PassRows(
        requests,
        engine=engine,
        curve=curve,
        budget_tokens=pass_budget_tokens(curve),
        is_ordered=False,
        fail=fail,
    )
    passes = 0
    while request.tokens_left:
        ((_, row),) = rows.next_rows()
        began_s = time.perf_counter()
        [result] = engine.forward([row])
        spent_s = time.perf_counter() - began_s
        passes += 1
        verdict = request.judge(row, result.choices)
        engine.keep(row.sequence, verdict.accepted_nodes)
        if passes > 1:
            nodes = len(row.tokens) - 1
            request.charge(verdict, nodes=nodes, spent_s=spent_s, plain_pass_s=rows.curve.seconds(1))
        engine.prune(row.sequence, request.commit(verdict))
    engine.release(request.kv.sequence)
    return request.output, passes


def fail(request: object, error: CosineError) -> None:
    """A request that ends so is none to be measured."""
    raise error


def main() -> None:
    """Measure what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="target", help="target or smol-target")
    parser.add_argument("--numerics", default="float32")
    parser.add_argument("--texts", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    engine = engine_of(arguments.numerics, model=arguments.model)
    curve = measure_curve(engine, clock=time.process_time)
    cost = ", ".join(f"{tokens}: {seconds / curve.seconds(1):.2f}" for tokens, seconds in curve.points)
    sys.stdout.write(f"passes of so many tokens, in those of one: {cost}\n")
    for number, prompt in enumerate(asked(arguments.model, arguments.texts)):
        rates = {"without": DraftRates(), "with": DraftRates()}
        text, _ = written(engine, curve, prompt, rates["without"], ())
        predicted = {"without": (), "with": changed(text, vocab_tokens=engine.vocab_tokens, seed=number)}
        runs = {name: partial(written, engine, curve, prompt, rates[name], predicted[name]) for name in predicted}
        timed = alternately(runs, repeats=REPEATS, clock=time.process_time)
        without, with_one = timed["without"], timed["with"]
        equal = sum(one == other for one, other in zip(without.done[0], with_one.done[0], strict=True))
        sys.stdout.write(
            f"{arguments.model} {arguments.numerics}, text {number}: {without.done[1]} passes without, "
            f"{with_one.done[1]} with; {without.median_s:.3f} s and {with_one.median_s:.3f} s, "
            f"{without.median_s / with_one.median_s:.2f} times as fast; {equal} of {TOKENS} tokens equal\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
