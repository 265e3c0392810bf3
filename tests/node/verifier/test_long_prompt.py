"""A verifier serves a prompt of 33,000 tokens where model and KV pool have room for it, and says so where not."""

from typing import Any

import pytest
import torch
import transformers as tf

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node.engine.torch.engine import TorchEngine
from cosine_node.verifier.scheduler import MOST_TOKENS
from cosine_protocol import messages as m
from tests.node.engine.tiny_models import VOCAB, build
from tests.node.peers import request_of
from tests.node.verifier.test_service import opening, verifying
from tests.thoroughness import THOROUGH

PROMPT_TOKENS = 33_000
TEXT_TOKENS = 6
CONTEXT_TOKENS = 65_536
PROMPT = torch.randint(3, VOCAB, (PROMPT_TOKENS,), generator=torch.Generator().manual_seed(1)).tolist()


def long_model() -> Any:
    """One layer with a context of 65,536 tokens; its attention is not spread evenly over so many."""
    return build(
        tf.LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=CONTEXT_TOKENS,
            initializer_range=0.3,
        )
    )


def ask(engine: TorchEngine, prompt: list[int]) -> tuple[list[int] | m.Error, int]:
    """The text, or the refusal, of a request with the long prompt; and the passes that it took."""

    async def run() -> tuple[list[int] | m.Error, int]:
        async with verifying(engine) as bench:
            caller = await bench.caller()
            request = request_of(
                caller.peer_id, prompt=tuple(prompt), max_new_tokens=TEXT_TOKENS, numerics=engine.numerics
            )
            caller.post(opening(request))
            tokens: list[int] = []
            while not isinstance(message := await caller.next(), m.Error | m.Final):
                tokens += message.tokens if isinstance(message, m.Commit) else ()
            return message if isinstance(message, m.Error) else tokens, bench.service.progress.steps

    return run_virtual(run())


def generated(prompt: list[int]) -> list[int]:
    """The model's own greedy text."""
    model = long_model()
    # Eager attention would take 8 GiB for its scores.
    model.set_attn_implementation("sdpa")
    written = model.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=TEXT_TOKENS, eos_token_id=None, pad_token_id=0
    )
    text: list[int] = written[0, len(prompt) :].tolist()
    return text


@pytest.mark.parametrize(
    "tokens", [pytest.param(7_000, marks=THOROUGH), pytest.param(33_000, marks=pytest.mark.soak)]
)
def test_a_long_prompt_is_prefilled_in_chunks_and_followed_by_the_tokens_of_generate(tokens: int) -> None:
    text, passes = ask(TorchEngine(long_model(), pool_tokens=40_000), PROMPT[:tokens])
    assert text == generated(PROMPT[:tokens])
    assert passes > tokens // MOST_TOKENS
    # A lost chunk would show.
    assert text != generated(PROMPT[MOST_TOKENS:tokens])
