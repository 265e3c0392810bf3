import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cosine_node.engine.base import PREFIX, BadLogits, OutOfMemory, OutOfPages, PassAbandoned, Row
from cosine_node.engine.kv_pool import PAGE_TOKENS
from cosine_node.engine.pass_way import PassWay
from cosine_node.engine.recipe import Query
from cosine_node.engine.sampling import choose
from cosine_node.engine.torch_engine import TorchEngine
from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.request import Sampling
from tests.node.engine.tiny_models import (
    ARCHITECTURES,
    LATENT,
    OWN_ATTENTION,
    RECURRENT,
    SHARING,
    STEPPED,
    VOCAB,
    WINDOWED,
    build,
    tiny_llama,
)
from tests.thoroughness import quick_first

NEAR_TIE = 1e-4


def _chain(sequence: int, tokens: list[int], **options: Any) -> Row:
    nodes = tuple(range(len(tokens)))
    return Row(sequence, tuple(tokens), nodes, (PREFIX, *nodes[:-1]), **options)


def _logits(model: Any, tokens: list[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
        return logits


@pytest.fixture
def engine() -> TorchEngine:
    return TorchEngine(tiny_llama(), pool_tokens=512)


@pytest.mark.parametrize(
    ("make", "seed"),
    [
        *((ARCHITECTURES["Llama"], seed) for seed in range(4)),
        *((make, 1) for make in (*LATENT.values(), *SHARING.values())),
    ],
)
def test_greedy_decoding_equals_generate(make: Callable[[], Any], seed: int) -> None:
    engine = TorchEngine(build(make()), pool_tokens=512)
    prompt = [random.Random(seed).randrange(3, VOCAB) for _ in range(9 + seed)]
    expected = build(make()).generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=24, eos_token_id=None, pad_token_id=0
    )
    sequence = engine.open(sampling=Sampling(), prompt_tokens=len(prompt))
    fed, output = prompt, list[int]()
    while len(output) < 24:
        result = engine.forward([_chain(sequence, fed, scored_from=len(fed) - 1)])[0]
        engine.keep(sequence, range(len(fed)))
        fed = [result.choices[0].token]
        output += fed
    assert output == expected[0, len(prompt) :].tolist()


class Walk:
    """Random feeding, keeping and pruning of sequences, each choice checked against a fresh forward."""

    def __init__(
        self,
        seed: int,
        make: Callable[[], Any],
        device: str = "cpu",
        *,
        way: PassWay = PassWay.PACKED,
        pads_rows: bool | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.model = make()
        self.engine = TorchEngine(make().to(device), pool_tokens=1024, way=way, pads_rows=pads_rows)
        self.kept: dict[int, list[int]] = {}
        self.nodes: dict[int, dict[int, tuple[int, int]]] = {}
        self.samplings: dict[int, Sampling] = {}
        self.named = 0
        for number in range(3):
            self.open(number)

    def open(self, number: int) -> None:
        sampling = Sampling(
            temperature=(0.0, 0.9, 1.2)[number], repetition_penalty=(1.0, 1.0, 1.3)[number], seed=number
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
        query = Query(self.samplings[sequence], len(tokens) - 4, 2, self.kept[sequence], path)
        expected = choose(_logits(self.model, tokens)[-1:], [query])[0]
        assert expected is not None
        assert choice.margin == pytest.approx(expected.margin, abs=NEAR_TIE)
        assert choice.token == expected.token or expected.margin < NEAR_TIE

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


def _windowed_gemma() -> Any:
    return build(WINDOWED["Gemma2"]())


def _latent_deepseek() -> Any:
    return build(LATENT["DeepseekV3"]())


@pytest.mark.parametrize("pads_rows", [False, True], ids=["in place", "padded"])
@pytest.mark.parametrize("make", [tiny_llama, _windowed_gemma, _latent_deepseek])
@pytest.mark.parametrize("seed", quick_first(range(8), 3))
def test_random_walks_equal_fresh_forwards(seed: int, make: Callable[[], Any], pads_rows: bool) -> None:
    check_walk(Walk(seed, make, pads_rows=pads_rows), seed)


@pytest.mark.parametrize(
    ("make", "way"),
    [
        (OWN_ATTENTION["falcon-alibi"], PassWay.CACHED),
        (OWN_ATTENTION["gpt_neo"], PassWay.CACHED),
        (RECURRENT["qwen3_next"], PassWay.CACHED),
        (STEPPED["jamba"], PassWay.STEPPED),
    ],
    ids=["falcon", "gpt_neo", "qwen3_next", "jamba"],
)
@pytest.mark.parametrize("seed", quick_first(range(6)))
def test_random_walks_with_own_attention_equal_fresh_forwards(
    seed: int, make: Callable[[], Any], way: PassWay
) -> None:
    check_walk(Walk(seed, lambda: build(make()), way=way), seed)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("make", [tiny_llama, _windowed_gemma])
@pytest.mark.parametrize("seed", range(8))
def test_random_walks_on_a_gpu_equal_fresh_forwards_on_the_cpu(seed: int, make: Callable[[], Any]) -> None:
    check_walk(Walk(seed, make, "cuda", pads_rows=True), seed)


def check_walk(walk: Walk, seed: int) -> None:
    before = walk.engine.free_tokens
    try:
        walk.run(steps=14)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    assert walk.engine.free_tokens == before


def test_nll_is_that_of_a_plain_forward(engine: TorchEngine) -> None:
    tokens = [5, 9, 77, 140, 3, 8]
    sequence = engine.open(sampling=Sampling(), prompt_tokens=6)
    result = engine.forward([_chain(sequence, tokens, scored_from=5, wants_nll=True)])[0]
    losses = torch.nn.functional.cross_entropy(_logits(tiny_llama(), tokens)[:-1], torch.tensor(tokens[1:]))
    assert result.nll == pytest.approx(float(losses), rel=1e-5)
    assert len(result.choices) == 1


def test_a_row_may_ask_for_no_choice(engine: TorchEngine) -> None:
    sequence = engine.open(sampling=Sampling(), prompt_tokens=3)
    assert engine.forward([_chain(sequence, [4, 5, 6], scored_from=3)])[0].choices == ()


def test_bad_logits_fail_their_own_sequence_only() -> None:
    model = tiny_llama()
    with torch.no_grad():
        model.model.embed_tokens.weight[50] = math.nan
    engine = TorchEngine(model, pool_tokens=256)
    good, bad = (engine.open(sampling=Sampling(), prompt_tokens=2) for _ in range(2))
    fine, broken = engine.forward([_chain(good, [3, 4]), _chain(bad, [3, 50])])
    assert fine.error is None
    assert len(fine.choices) == 2
    assert isinstance(broken.error, BadLogits)
    assert broken.choices == ()
    again = engine.forward([_chain(bad, [3, 4])])[0]
    assert [choice.token for choice in again.choices] == [choice.token for choice in fine.choices]


def test_out_of_pages_feeds_nothing() -> None:
    engine = TorchEngine(tiny_llama(), pool_tokens=32)
    first, second = (engine.open(sampling=Sampling(), prompt_tokens=1) for _ in range(2))
    rows = [_chain(first, [3] * 10), _chain(second, [4] * 20)]
    with pytest.raises(OutOfPages):
        engine.forward(rows)
    assert engine.free_tokens == 32
    engine.reserve(first, PAGE_TOKENS + 1)
    assert engine.free_tokens == 0
    with pytest.raises(OutOfPages):
        engine.reserve(second, 1)
    assert len(engine.forward(rows[:1])[0].choices) == 10


def test_a_pass_that_dies_leaves_nothing_behind(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    sequence = engine.open(sampling=Sampling(), prompt_tokens=1)

    def die(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr("cosine_node.engine.packed_model.PackedModel.logits", die)
        with pytest.raises(torch.OutOfMemoryError):
            engine.forward([_chain(sequence, [3, 4])])
    assert engine.free_tokens == 512
    assert len(engine.forward([_chain(sequence, [3, 4])])[0].choices) == 2


@pytest.mark.parametrize(
    "row",
    [
        Row(0, (), (), ()),
        Row(0, (3,), (0, 1), (PREFIX,)),
        Row(0, (3,), (7,), (PREFIX,)),
        Row(0, (3, 4), (0, 0), (PREFIX, 0)),
        Row(0, (3,), (-2,), (PREFIX,)),
        Row(0, (3,), (0,), (5,)),
        Row(0, (3, 4), (0, 1), (1, PREFIX)),
        Row(0, (VOCAB,), (0,), (PREFIX,)),
        Row(0, (-1,), (0,), (PREFIX,)),
        Row(0, (3,), (0,), (PREFIX,), scored_from=2),
        Row(0, (3, 4), (0, 1), (PREFIX, PREFIX), wants_nll=True),
        Row(9, (3,), (0,), (PREFIX,)),
        _chain(0, [3] * 257),
    ],
)
def test_wrong_rows_are_refused(engine: TorchEngine, row: Row) -> None:
    sequence = engine.open(sampling=Sampling(), prompt_tokens=1)
    engine.forward([Row(sequence, (3,), (7,), (PREFIX,))])
    free = engine.free_tokens
    with pytest.raises(LocalProtocolError):
        engine.forward([row])
    assert engine.free_tokens == free


def test_one_row_a_sequence_and_no_row_after_release(engine: TorchEngine) -> None:
    sequence = engine.open(sampling=Sampling(), prompt_tokens=1)
    row = _chain(sequence, [3])
    with pytest.raises(LocalProtocolError):
        engine.forward([row, row])
    assert engine.forward([]) == []
    engine.release(sequence)
    for call in (
        lambda: engine.forward([row]),
        lambda: engine.keep(sequence, ()),
        lambda: engine.prune(sequence, ()),
        lambda: engine.reserve(sequence, 1),
        lambda: engine.release(sequence),
    ):
        with pytest.raises(LocalProtocolError):
            call()


def test_keep_refuses_what_is_no_path(engine: TorchEngine) -> None:
    sequence = engine.open(sampling=Sampling(), prompt_tokens=1)
    engine.forward([Row(sequence, (3, 4, 5), (0, 1, 2), (PREFIX, 0, PREFIX))])
    for path in ([1], [0, 2], [9]):
        with pytest.raises(LocalProtocolError):
            engine.keep(sequence, path)
    engine.keep(sequence, [0])
    engine.keep(sequence, [1])


def test_sixteen_bit_weights_run() -> None:
    engine = TorchEngine(tiny_llama().to(torch.bfloat16), pool_tokens=128)
    assert engine.numerics == "bfloat16"
    sequence = engine.open(sampling=Sampling(temperature=1.0), prompt_tokens=3)
    assert len(engine.forward([_chain(sequence, [3, 4, 5])])[0].choices) == 3


def test_a_pass_can_be_abandoned_between_two_layers_and_leaves_nothing_behind() -> None:
    engine = TorchEngine(tiny_llama(), pool_tokens=512)
    sequence = engine.open(sampling=Sampling(), prompt_tokens=4)
    before_the_layers = engine._passes.model.model.rotary_emb
    hook = before_the_layers.register_forward_hook(lambda *_: engine.abandon())
    with pytest.raises(PassAbandoned):
        engine.forward([_chain(sequence, [1, 2, 3, 4])])
    assert engine.live_tokens == 0
    hook.remove()
    engine.abandon()
    [result] = engine.forward([_chain(sequence, [1, 2, 3, 4], scored_from=3)])
    assert len(result.choices) == 1


def test_a_device_out_of_memory_is_told_apart_and_leaves_nothing_behind() -> None:
    engine = TorchEngine(tiny_llama(), pool_tokens=512)
    sequence = engine.open(sampling=Sampling(), prompt_tokens=4)

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    hook = engine._passes.model.model.rotary_emb.register_forward_pre_hook(fail)
    with pytest.raises(OutOfMemory):
        engine.forward([_chain(sequence, [1, 2, 3, 4])])
    assert engine.live_tokens == 0
    hook.remove()
    assert engine.forward([_chain(sequence, [1, 2, 3, 4])])[0].error is None
