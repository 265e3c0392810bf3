"""Layers with a window hold all visible tokens, as many others as fit, and nothing wrong."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from cosine_engine.base import Row
from cosine_engine.forward.row_tiles import Padding
from cosine_engine.kv_pool import PAGE_TOKENS, WindowPages
from cosine_engine.torch.engine import TorchEngine
from cosine_engine.torch.invariance_self_test import find_row_tiles
from cosine_protocol.request import Sampling
from tests.engine.random_walk import Walk, check_walk, generated
from tests.engine.tiny_models import SHARING, VOCAB, WINDOWED, build
from tests.thoroughness import quick_first, soak_rest

POOL_PAGES = 32
MODELS = WINDOWED | SHARING


def an_engine(name: str, *, pages: int, **options: Any) -> tuple[TorchEngine, WindowPages]:
    config = MODELS[name]()
    windows = WindowPages(pages=POOL_PAGES, tokens=pages * PAGE_TOKENS, window_tokens=config.sliding_window)
    return TorchEngine(build(config), pool_tokens=POOL_PAGES * PAGE_TOKENS, windows=windows, **options), windows


class ForgetfulWalk(Walk):
    """A walk in which another request takes all idle window pages before each pass, and releases them."""

    windows: WindowPages

    def feed(self) -> None:
        sequence = self.engine.open(sampling=Sampling(), prompt_tokens=1)
        self.engine.reserve(sequence, min(self.windows.available_pages * PAGE_TOKENS, self.engine.free_tokens))
        self.engine.release(sequence)
        super().feed()


def tokens_of(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, VOCAB) for _ in range(count)]


def continued(engine: TorchEngine, sequence: int, fed: Sequence[int], count: int) -> list[int]:
    """Feed tokens in chunks, decode greedily and return the output."""
    for start in range(0, len(fed), 24):
        chunk = fed[start : start + 24]
        result = engine.forward([Row.chain(sequence, chunk, scored_from=len(chunk) - 1)])[0]
        engine.keep(sequence, range(len(chunk)))
    output = [result.choices[0].token]
    while len(output) < count:
        result = engine.forward([Row.chain(sequence, output[-1:])])[0]
        engine.keep(sequence, [0])
        output.append(result.choices[0].token)
    return output


@pytest.mark.parametrize("pads_rows", [False, True], ids=["in place", "padded"])
@pytest.mark.parametrize("name", ["Gemma2", "Mistral", "GptOss"])
@pytest.mark.parametrize("seed", soak_rest(range(4)))
def test_random_walks_over_few_window_pages_equal_fresh_forwards(seed: int, name: str, pads_rows: bool) -> None:
    windows = WindowPages(pages=64, tokens=18 * PAGE_TOKENS, window_tokens=WINDOWED[name]().sliding_window)
    padding = Padding(to_rectangle=pads_rows)
    engine = TorchEngine(build(WINDOWED[name]()), pool_tokens=64 * PAGE_TOKENS, padding=padding, windows=windows)
    walk = ForgetfulWalk(seed, engine, build(WINDOWED[name]()))
    walk.windows = windows
    check_walk(walk, seed, steps=30)
    assert windows.available_pages == 18


def test_what_is_left_behind_changes_no_bit_of_deterministic_passes() -> None:
    tiles = find_row_tiles(build(WINDOWED["Gemma2"]()))
    prompt = tokens_of(120, seed=2)
    outputs = []
    for pages in (6, POOL_PAGES):
        engine, _ = an_engine("Gemma2", pages=pages, padding=Padding(tiles=tiles))
        sequence = engine.open(sampling=Sampling(), prompt_tokens=len(prompt))
        for start in range(0, len(prompt), 24):
            result = engine.forward([Row.chain(sequence, prompt[start : start + 24])])[0]
            outputs.append([choice.margin for choice in result.choices])
            engine.keep(sequence, range(24))
    assert outputs[:5] == outputs[5:]


def turn(engine: TorchEngine, prompt: Sequence[int], count: int, scope: str = "a") -> tuple[int, list[int]]:
    """Return the number of known tokens of a prompt, and the text after it; the request is released."""
    sequence = engine.open(sampling=Sampling(), prompt_tokens=len(prompt), scope=scope)
    known = engine.reuse_prefix(sequence, prompt)
    text = continued(engine, sequence, prompt[known:], count)
    engine.release(sequence)
    return known, text


@pytest.mark.parametrize("name", quick_first(["Gemma2", "Mistral"]))
def test_a_chat_goes_on_as_long_as_its_last_window_is_there(name: str) -> None:
    engine, _ = an_engine(name, pages=6)
    prompt = tokens_of(100, seed=3)
    _, text = turn(engine, prompt, 12)
    longer = [*prompt, *text, *tokens_of(9, seed=4)]
    known, text = turn(engine, longer, 12)
    assert known == 96
    assert text == generated(build(MODELS[name]()), longer, 12)
    # Another chat takes the window pages; what the first one had elsewhere is still there and is of no use.
    turn(engine, tokens_of(110, seed=5), 12, scope="b")
    assert engine.cached_tokens > 200
    longest = [*longer, *text, *tokens_of(9, seed=6)]
    known, text = turn(engine, longest, 12)
    assert known == 0
    assert text == generated(build(MODELS[name]()), longest, 12)
    # The tokens that were fed again have replaced those outside the window.
    known, text = turn(engine, [*longest, *text, 7], 4)
    assert known >= len(longest) - PAGE_TOKENS
