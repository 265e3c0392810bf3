"""A model whose memory was given back computes the same once it is loaded again."""

import asyncio
import gc
import weakref
from collections.abc import Sequence

import pytest

from cosine_engine.base import Engine, OutOfMemory, OutOfPages, Row
from cosine_engine.load_options import LoadOptions
from cosine_engine.models.served import ModelSource
from cosine_engine.torch.engine import TorchEngine
from cosine_node.serving.options import VerifyOptions
from cosine_node.serving.whole_model import load_models, returnable
from cosine_p2p.transport.channel import StepCounts
from cosine_protocol.request import Sampling
from tests.scenes import in_real_time

pytestmark = pytest.mark.slow
PROMPT = tuple(range(5, 25))
ENGINE = LoadOptions(device="cpu", threads=1)
OPTIONS = VerifyOptions(
    source=ModelSource(model="zoo:target", target="zoo:target", engine=ENGINE),
    home=ModelSource(model="zoo:draft-code", target="zoo:target", engine=ENGINE),
    max_requests=2,
    unload_after_s=0.05,
)


def quiet(event: str, fields: dict[str, object]) -> None:
    return


def text_of(engine: Engine, sequence: int, prompt: Sequence[int], *, tokens: int) -> list[tuple[int, float]]:
    """The choices of an empty sequence, with their margins."""
    found, unfed = list[tuple[int, float]](), tuple(prompt)
    for _ in range(tokens):
        row = Row.chain(sequence, unfed, scored_from=len(unfed) - 1)
        [result] = engine.forward([row])
        engine.keep(sequence, row.nodes)
        found.append((result.choices[0].token, result.choices[0].margin))
        unfed = (found[-1][0],)
    return found


@in_real_time
async def test_a_model_is_freed_while_there_is_no_work_and_chooses_the_same_afterwards() -> None:
    loaded, home = load_models(OPTIONS, quiet)
    assert isinstance(loaded.engine, TorchEngine)
    weights = weakref.ref(loaded.engine.model)
    served, home = returnable(OPTIONS, loaded, home, quiet, load_s=1.0)
    del loaded
    memory = served.memory
    assert memory is not None
    engines = memory.engines
    assert served.engine is engines[0] and home is not None and home.engine is engines[1]

    def texts() -> list[list[tuple[int, float]]]:
        sequences = [engine.open(sampling=Sampling(), prompt_tokens=len(PROMPT)) for engine in engines]
        found = [
            text_of(engine, number, PROMPT, tokens=12) for engine, number in zip(engines, sequences, strict=True)
        ]
        for engine, number in zip(engines, sequences, strict=True):
            engine.release(number)
        return found

    before, facts = texts(), [(engine.numerics, engine.free_tokens) for engine in engines]
    work, progress = asyncio.Event(), StepCounts()
    waiting = asyncio.ensure_future(memory.wait(work, idle=asyncio.Event.wait, progress=progress))
    await asyncio.sleep(1.0)
    assert memory.until_loaded_s == 1.0
    gc.collect()
    assert weights() is None
    assert facts == [(engine.numerics, engine.free_tokens) for engine in engines]
    number = engines[0].open(sampling=Sampling(), prompt_tokens=len(PROMPT), scope="a client")
    assert engines[0].reuse_prefix(number, PROMPT) == 0
    with pytest.raises(OutOfPages):
        engines[0].reserve(number, 1 << 24)
    with pytest.raises(OutOfMemory, match="loaded again"):
        engines[0].forward([Row.chain(number, PROMPT)])
    work.set()
    await waiting
    assert progress.prefill_tokens and not memory.until_loaded_s
    assert text_of(engines[0], number, PROMPT, tokens=12) == before[0]
    engines[0].release(number)
    assert texts() == before
