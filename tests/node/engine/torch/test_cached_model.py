"""Models with their own attention, or a recurrent state, write the text of `generate`, however they are served."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import transformers as tf

from cosine_node.engine.base import PREFIX, PassAbandoned, Row, RowResult
from cosine_node.engine.torch import cached_model
from cosine_node.engine.torch.cached_model import CachedModel, PathBatch, PathToken, RowPaths, layer_kinds
from cosine_node.engine.torch.engine import TorchEngine
from cosine_node.engine.torch.load_self_test import check_exactness, find_way
from cosine_node.engine.torch.pass_way import PassWay
from cosine_node.engine.torch.support import UnsupportedModel
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.request import Sampling
from tests.node.engine.tiny_models import COMMON, OWN_ATTENTION, RECURRENT, STEPPED, VOCAB, build
from tests.thoroughness import soak_rest

Make = Callable[[], Any]
WAYS = {
    **dict.fromkeys(OWN_ATTENTION, PassWay.CACHED),
    **dict.fromkeys(RECURRENT, PassWay.CACHED),
    **dict.fromkeys(STEPPED, PassWay.STEPPED),
}
MODELS: dict[str, Make] = {**OWN_ATTENTION, **RECURRENT, **STEPPED}
QUICK = ["falcon-alibi", "bloom", "gpt_neo", "qwen3_next", "mamba2", "jamba"]
NAMES = soak_rest(QUICK + [name for name in MODELS if name not in QUICK], len(QUICK))
TEXT_TOKENS = 14


def prompt_of(tokens: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (tokens,), generator=generator).tolist()


def generated(name: str, prompt: Sequence[int]) -> list[int]:
    """The model's own greedy text."""
    found = build(MODELS[name]()).generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=TEXT_TOKENS, eos_token_id=None, pad_token_id=0
    )
    text: list[int] = found[0, len(prompt) :].tolist()
    return text


def engine_of(name: str, pool_tokens: int = 512) -> TorchEngine:
    return TorchEngine(build(MODELS[name]()), pool_tokens=pool_tokens, way=WAYS[name])


class Request:
    """A greedy request on an engine: its output so far, and the tokens that were not fed yet."""

    def __init__(self, engine: TorchEngine, prompt: Sequence[int], scope: str | None = None) -> None:
        self.engine = engine
        self.prompt = prompt
        self.scope = scope
        self.output: list[int] = []
        self.reused = self.open()

    def open(self) -> int:
        """Begin, or begin again; the tokens that need not be fed."""
        text = [*self.prompt, *self.output]
        self.sequence = self.engine.open(sampling=Sampling(), prompt_tokens=len(self.prompt), scope=self.scope)
        reused = self.engine.reuse_prefix(self.sequence, text)
        self.unfed = text[reused:]
        return reused

    def chain(self, most_tokens: int) -> Row:
        part = self.unfed[:most_tokens]
        return Row.chain(self.sequence, part, scored_from=len(part) - 1)

    def take(self, row: Row, result: RowResult) -> None:
        self.engine.keep(self.sequence, row.nodes)
        self.unfed = self.unfed[len(row.tokens) :]
        if not self.unfed:
            self.output.append(result.choices[-1].token)
            self.unfed = self.output[-1:]


def write(*requests: Request, until: int = TEXT_TOKENS, piece_tokens: int = 512) -> list[list[int]]:
    """Decode requests together, prompts in pieces; their outputs."""
    while rows := [request.chain(piece_tokens) for request in requests if len(request.output) < until]:
        results = requests[0].engine.forward(rows)
        by_sequence = {request.sequence: request for request in requests}
        for row, result in zip(rows, results, strict=True):
            by_sequence[row.sequence].take(row, result)
    return [request.output for request in requests]


@pytest.mark.parametrize("name", NAMES)
def test_requests_in_one_pass_with_prompts_in_pieces_write_it(name: str) -> None:
    engine = engine_of(name)
    prompts = [prompt_of(tokens, seed=tokens) for tokens in (3, 37, 22)]
    requests = [Request(engine, prompt) for prompt in prompts]
    assert write(*requests, piece_tokens=9) == [generated(name, prompt) for prompt in prompts]


def verify(request: Request, expected: Sequence[int], *, wrong_from: int) -> None:
    """Two passes over a token tree below the pending token; keep what the model itself would have written.

    The tree drafts what is expected, wrongly from a depth on, beside a wrong sibling at each depth. The second
    pass feeds below the right and the wrong nodes of the first.
    """
    draft = [*expected[len(request.output) :], 3, 3, 3, 3][:4]
    draft = [token if depth < wrong_from else (token + 1) % VOCAB for depth, token in enumerate(draft)]
    first, second, third, fourth = draft
    wrong = [(token + 5) % VOCAB for token in draft]
    # What is kept leaves nodes below it under their names.
    a, b, c, d, e, f, g, h, i, j = range(10 * len(request.output), 10 * len(request.output) + 10)
    tree = Row(
        request.sequence,
        (request.unfed[0], first, wrong[0], second, wrong[1], 7),
        (a, b, c, d, e, f),
        (PREFIX, a, a, b, b, c),
    )
    deeper = Row(request.sequence, (third, 9, wrong[2], fourth), (g, h, i, j), (d, f, d, g))
    children: dict[int, list[tuple[int, int]]] = {}
    choices: dict[int, int] = {}
    for row in (tree, deeper):
        (result,) = request.engine.forward([row])
        choices |= {node: choice.token for node, choice in zip(row.nodes, result.choices, strict=True)}
        for node, parent, token in zip(row.nodes, row.parents, row.tokens, strict=True):
            children.setdefault(parent, []).append((node, token))
    path = [a]
    while found := [node for node, token in children.get(path[-1], ()) if token == choices[path[-1]]]:
        request.output.append(choices[path[-1]])
        path.append(found[0])
    request.output.append(choices[path[-1]])
    request.engine.keep(request.sequence, path)
    request.unfed = request.output[-1:]


@pytest.mark.parametrize("name", NAMES)
def test_token_trees_change_nothing(name: str) -> None:
    prompt = prompt_of(18, seed=2)
    expected = generated(name, prompt)
    request = Request(engine_of(name), prompt)
    write(request, until=1)
    passes = 0
    while len(request.output) < TEXT_TOKENS:
        verify(request, expected, wrong_from=(3, 1, 9, 0)[passes % 4])
        passes += 1
    assert request.output[:TEXT_TOKENS] == expected
    # Drafts were accepted.
    assert passes < TEXT_TOKENS // 2


@pytest.mark.parametrize("name", NAMES)
def test_a_shared_prefix_changes_nothing(name: str) -> None:
    engine = engine_of(name)
    prompt = prompt_of(41, seed=3)
    longer = [*prompt[:35], *prompt_of(9, seed=4)]
    first = Request(engine, prompt, "scope")
    assert write(first) == [generated(name, prompt)]
    second = Request(engine, longer, "scope")
    assert second.reused == 32
    assert write(second) == [generated(name, longer)]
    engine.release(first.sequence)
    again = Request(engine, prompt, "scope")
    assert again.reused == 32
    assert write(again) == [generated(name, prompt)]


@pytest.mark.parametrize("name", NAMES)
def test_preemption_changes_nothing(name: str) -> None:
    engine = engine_of(name)
    prompts = [prompt_of(17, seed=5), prompt_of(30, seed=6)]
    requests = [Request(engine, prompt) for prompt in prompts]
    write(*requests, until=6)
    engine.release(requests[0].sequence)
    # Another takes its pages meanwhile.
    write(Request(engine, prompt_of(40, seed=7)), requests[1], until=9)
    requests[0].open()
    assert write(*requests) == [generated(name, prompt) for prompt in prompts]


@pytest.mark.parametrize("name", ["qwen3_next", "jamba"])
def test_requests_whose_states_were_dropped_feed_their_tokens_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_model, "LEAST_STATES", 2)
    engine = engine_of(name)
    prompts = [prompt_of(tokens, seed=tokens) for tokens in (19, 33, 8)]
    assert write(*(Request(engine, prompt) for prompt in prompts)) == [
        generated(name, prompt) for prompt in prompts
    ]


def forward_lengths(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of each forward of the model from now on."""
    lengths: list[int] = []
    forward = engine._passes.model.forward

    def counted(*, input_ids: torch.Tensor, **arguments: Any) -> Any:
        lengths.append(input_ids.shape[1])
        return forward(input_ids=input_ids, **arguments)

    monkeypatch.setattr(engine._passes.model, "forward", counted)
    return lengths


def test_a_known_state_saves_feeding_a_shared_prefix_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of("lfm2")
    prompt = prompt_of(40, seed=8)
    write(Request(engine, prompt, "scope"), until=1)
    lengths = forward_lengths(engine, monkeypatch)
    write(Request(engine, prompt, "scope"), until=2)
    assert lengths == [8, 1]


def test_layers_that_forget_their_state_are_fed_few_tokens_one_by_one_and_many_from_the_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_of("mamba")
    request = Request(engine, prompt_of(50, seed=10))
    lengths = forward_lengths(engine, monkeypatch)
    for piece in (12, 5, 33):
        (result,) = engine.forward([row := request.chain(piece)])
        request.take(row, result)
    assert lengths == [12, 1, 1, 1, 1, 1, 50]


@pytest.mark.parametrize("dtype", soak_rest([torch.bfloat16, torch.float32, torch.float16]), ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_the_self_test_finds_the_way_in_which_a_model_is_exact(name: str, dtype: torch.dtype) -> None:
    model = build(MODELS[name]()).to(dtype)
    assert find_way(model) is WAYS[name]


def _keeps_no_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cached_model, "_restore", lambda layer, state, rows: None)


def _takes_the_state_of_another_token(patch: pytest.MonkeyPatch) -> None:
    last = CachedModel._last_state

    def faulty(self: CachedModel, slots: Sequence[int]) -> tuple[int, Any]:
        count, state = last(self, slots)
        return (min(count + 1, len(slots)), state) if state is not None else (0, None)

    patch.setattr(CachedModel, "_last_state", faulty)


def _writes_to_wrong_slots(patch: pytest.MonkeyPatch) -> None:
    slots = PathBatch.slots
    patch.setattr(PathBatch, "slots", lambda batch: [*slots(batch)[1:], slots(batch)[0]])


def _forgets_the_first_token(patch: pytest.MonkeyPatch) -> None:
    gathered = cached_model.GatheredLayer.update

    def faulty(self: Any, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        keys, values = gathered(self, key_states, value_states, *args, **kwargs)
        first = torch.zeros_like(values)
        first[:, :, 1:] = values[:, :, 1:]
        return keys, first if len(self._past.slots) else values

    patch.setattr(cached_model.GatheredLayer, "update", faulty)


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("falcon-rotary", _writes_to_wrong_slots),
        ("bloom", _forgets_the_first_token),
        ("gpt_neo", _forgets_the_first_token),
        ("qwen3_next", _keeps_no_state),
        ("qwen3_next", _forgets_the_first_token),
        ("lfm2", _takes_the_state_of_another_token),
        ("mamba2", _keeps_no_state),
        ("mamba", _takes_the_state_of_another_token),
    ],
)
def test_the_self_test_refuses_every_fault(
    name: str, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = MODELS[name]()
    # Projections that keep the size of what they project, as those of trained models do.
    config.initializer_range = 0.1
    model = build(config)
    check_exactness(model, WAYS[name])
    plant(monkeypatch)
    with pytest.raises(UnsupportedModel, match="in a self-test"):
        check_exactness(model, WAYS[name])


def test_layers_that_forget_their_state_are_not_run_several_tokens_at_once() -> None:
    with pytest.raises(UnsupportedModel, match=r"'mamba'.*in a self-test several tokens at once forgot the state"):
        check_exactness(build(STEPPED["mamba"]()).to(torch.bfloat16), PassWay.CACHED)


def test_a_model_with_a_state_that_is_no_cache_of_transformers_is_refused_in_one_sentence() -> None:
    config = tf.RecurrentGemmaConfig(
        **COMMON, lru_width=64, attention_window_size=16, block_types=["recurrent", "attention"]
    )
    with pytest.raises(UnsupportedModel, match="'recurrent_gemma' cannot be used: it keeps no cache") as caught:
        find_way(build(config))
    assert "\n" not in str(caught.value)


def test_layers_of_an_unknown_kind_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = type("ForeignLayer", (tf.cache_utils.DynamicLayer,), {})
    monkeypatch.setitem(tf.cache_utils.DYNAMIC_LAYER_TYPE_MAPPING, "full_attention", foreign)
    with pytest.raises(UnsupportedModel, match=r"'bloom'.*layers of the kind ForeignLayer"):
        layer_kinds(OWN_ATTENTION["bloom"]())


@pytest.mark.parametrize("name", ["bloom", "mamba2"])
def test_a_pass_can_be_abandoned_and_leaves_nothing_behind(name: str) -> None:
    engine = engine_of(name)
    prompt = prompt_of(20, seed=9)
    request = Request(engine, prompt)
    hook = engine._passes.model.get_input_embeddings().register_forward_hook(lambda *_: engine.abandon())
    with pytest.raises(PassAbandoned):
        engine.forward([request.chain(100), Request(engine, prompt).chain(100)])
    assert engine.live_tokens == 0
    hook.remove()
    assert write(request) == [generated(name, prompt)]


def test_memory_beside_the_pool_is_told() -> None:
    engine = engine_of("mamba2", pool_tokens=8192)
    passes = engine._passes
    # Two layers, each with 4 places of a convolution over 128 + 2 * 8 channels, and 8 heads of 16 times 8.
    state_bytes = 2 * (4 * (128 + 2 * 8) + 8 * 16 * 8) * 4
    assert engine.pool_bytes == 8192 // 256 * state_bytes
    assert passes.token_bytes.total == state_bytes // 256


def grown(prefix: int) -> SequenceTree:
    """A sequence of tokens 100, 101, ... in slots 0, 1, ..."""
    tree = SequenceTree(sampling=Sampling(), prompt_tokens=0)
    tree.begin(range(100, 100 + prefix), range(prefix))
    return tree


def fed(tree: SequenceTree, row: Row, first_slot: int) -> RowPaths:
    tree.add(row, range(first_slot, first_slot + len(row.tokens)))
    return RowPaths(tree, row)


def tokens(batch: PathBatch) -> list[list[int]]:
    return [[step.token for step in path] for path in batch.paths]


def test_a_chain_is_one_path() -> None:
    batch = fed(grown(3), Row.chain(0, [7, 8]), 10).whole()
    assert batch == PathBatch((0, 1, 2), ((PathToken(7, 10, 0), PathToken(8, 11, 1)),))
    assert (batch.padded(), batch.places(), batch.slots()) == ([[7, 8]], {0: (0, 0), 1: (0, 1)}, [10, 11])


def test_a_tree_is_a_path_for_each_leaf_and_shared_tokens_are_written_once() -> None:
    row = Row(0, (5, 6, 7, 8), (0, 1, 2, 3), (PREFIX, 0, 0, 2))
    batch = fed(grown(2), row, 10).whole()
    assert batch.padded() == [[5, 6, 0], [5, 7, 8]]
    assert batch.places() == {0: (0, 0), 1: (0, 1), 2: (1, 1), 3: (1, 2)}
    assert batch.slots() == [10, 11, 12, 13]


def test_what_an_earlier_pass_fed_is_past_where_all_paths_share_it() -> None:
    tree = grown(2)
    fed(tree, Row(0, (5, 6, 7), (0, 1, 2), (PREFIX, 0, 0)), 10)
    batch = fed(tree, Row(0, (8, 9), (3, 4), (1, 2)), 20).whole()
    assert batch.past == (0, 1, 10)
    assert tokens(batch) == [[6, 8], [7, 9]]
    assert batch.slots() == [20, 21]


def test_a_stem_is_fed_from_its_last_known_state_on_and_branches_below_it() -> None:
    paths = fed(grown(6), Row(0, (5, 6, 7, 8), (0, 1, 2, 3), (PREFIX, 0, 0, 2)), 10)
    assert (paths.known_slots, paths.stem_end) == ([0, 1, 2, 3, 4, 5], 7)
    stem, branches = paths.split(4, page_tokens=4, most_tokens=100)
    assert (stem.past, tokens(stem)) == ((0, 1, 2, 3), [[104, 105, 5]])
    assert stem.slots() == [10]
    assert (branches.past, tokens(branches)) == ((0, 1, 2, 3, 4, 5, 10), [[6], [7, 8]])
    assert branches.slots() == [11, 12, 13]


def test_branches_alone_remain_where_the_state_above_them_is_known() -> None:
    (branches,) = fed(grown(2), Row(0, (6, 7), (0, 1), (PREFIX, PREFIX)), 10).split(
        2, page_tokens=4, most_tokens=100
    )
    assert (branches.past, tokens(branches)) == ((0, 1), [[6], [7]])


def test_a_long_stem_is_cut_after_the_last_whole_page_and_where_a_piece_is_full() -> None:
    paths = fed(grown(0), Row.chain(0, list(range(11))), 10)
    assert [tokens(piece)[0] for piece in paths.split(0, page_tokens=4, most_tokens=100)] == [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [8, 9, 10],
    ]
    pieces = paths.split(0, page_tokens=4, most_tokens=5)
    assert [len(tokens(piece)[0]) for piece in pieces] == [5, 3, 2, 1]
    assert [len(piece.past) for piece in pieces] == [0, 5, 8, 10]
