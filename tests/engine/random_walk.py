"""Random feeding, keeping and pruning of sequences of an engine, each choice checked against a fresh forward."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from cosine_engine.base import PREFIX, Choice, Engine, Row
from cosine_engine.sampling import Query
from cosine_engine.torch.sampling import choose
from cosine_protocol.request import Sampling
from tests.engine.random_serving import draw_shaping
from tests.engine.tiny_models import VOCAB

NEAR_TIE = 1e-4


def fresh_logits(model: Any, tokens: list[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
        return logits


def generated(model: Any, prompt: Sequence[int], tokens: int) -> list[int]:
    """Return the greedy text of transformers after a prompt; no token ends it."""
    output = model.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=tokens, eos_token_id=None, pad_token_id=0
    )
    found: list[int] = output[0, len(prompt) :].tolist()
    return found


class Walk:
    """An engine, and the model or the other engine that is its reference."""

    def __init__(self, seed: int, engine: Engine, reference: Any) -> None:
        self.rng = random.Random(seed)
        self.reference = reference
        self.engine = engine
        self.kept: dict[int, list[int]] = {}
        self.nodes: dict[int, dict[int, tuple[int, int]]] = {}
        self.samplings: dict[int, Sampling] = {}
        self.named = 0
        for number in range(3):
            self.open(number)

    def open(self, number: int) -> None:
        shaping = draw_shaping(random.Random(number), vocab_tokens=VOCAB) if number else None
        sampling = Sampling(
            temperature=(0.0, 0.9, 1.2)[number],
            repetition_penalty=(1.0, 1.0, 1.3)[number],
            seed=number,
            shaping=shaping,
        )
        sequence = self.engine.open(sampling=sampling, prompt_tokens=4)
        self.kept[sequence], self.nodes[sequence], self.samplings[sequence] = [], {}, sampling

    def path(self, sequence: int, name: int) -> list[int]:
        names = []
        while name != PREFIX:
            names.append(name)
            name = self.nodes[sequence][name][0]
        return names[::-1]

    def row(self, sequence: int) -> Row:
        tree, tokens, names, parents = self.nodes[sequence], [], [], []
        for _ in range(self.rng.randint(1, 6)):
            name, self.named = self.named, self.named + 1
            parent = self.rng.choice([PREFIX, *tree, *list(tree)[-2:]])
            token = self.rng.randrange(VOCAB)
            tree[name] = (parent, token)
            tokens.append(token)
            names.append(name)
            parents.append(parent)
        start = self.rng.randint(0, len(names) - 1)
        return Row(sequence, tuple(tokens), tuple(names), tuple(parents), start, candidates=2)

    def feed(self) -> None:
        rows = [self.row(sequence) for sequence in self.rng.sample(sorted(self.kept), self.rng.randint(1, 3))]
        for row, result in zip(rows, self.engine.forward(rows), strict=True):
            assert len(result.choices) == len(row.tokens) - row.scored_from
            for name, choice in zip(row.nodes[row.scored_from :], result.choices, strict=True):
                self.check(row.sequence, name, choice)

    def check(self, sequence: int, name: int, choice: Any) -> None:
        path = [self.nodes[sequence][node][1] for node in self.path(sequence, name)]
        tokens = self.kept[sequence] + path
        expected = self.expected(tokens, self.samplings[sequence])
        assert choice.margin == pytest.approx(expected.margin, abs=NEAR_TIE)
        assert choice.token == expected.token or expected.margin < NEAR_TIE

    def expected(self, tokens: list[int], sampling: Sampling) -> Choice:
        """Return the choice after a text fed at once."""
        if isinstance(self.reference, torch.nn.Module):
            query = Query(sampling, len(tokens) - 4, 2, tokens)
            choice = choose(fresh_logits(self.reference, tokens)[-1:], [query])[0]
            assert choice is not None
            return choice
        sequence = self.reference.open(sampling=sampling, prompt_tokens=4)
        row = replace(Row.chain(sequence, tokens, scored_from=len(tokens) - 1), candidates=2)
        choices: tuple[Choice, ...] = self.reference.forward([row])[0].choices
        self.reference.release(sequence)
        return choices[0]

    def keep(self, sequence: int) -> None:
        tree = self.nodes[sequence]
        path = self.path(sequence, self.rng.choice([PREFIX, *tree]))
        self.engine.keep(sequence, path)
        if not path:
            return
        self.kept[sequence] += [tree[name][1] for name in path]
        last, alive = path[-1], dict[int, tuple[int, int]]()
        for name, (parent, token) in tree.items():
            if parent == last:
                alive[name] = (PREFIX, token)
            elif parent in alive:
                alive[name] = (parent, token)
        self.nodes[sequence] = alive

    def prune(self, sequence: int) -> None:
        tree = self.nodes[sequence]
        gone = set(self.rng.sample(sorted(tree), min(2, len(tree))))
        self.engine.prune(sequence, [*gone, 10**9])
        for name, (parent, _) in tree.items():
            if parent in gone:
                gone.add(name)
        self.nodes[sequence] = {name: node for name, node in tree.items() if name not in gone}

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.feed()
            sequence = self.rng.choice(sorted(self.kept))
            self.rng.choice([self.keep, self.keep, self.prune])(sequence)
        for sequence in self.kept:
            self.engine.release(sequence)


def check_walk(walk: Walk, seed: int, *, steps: int = 14) -> None:
    before = walk.engine.free_tokens
    try:
        walk.run(steps=steps)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    assert walk.engine.free_tokens == before
