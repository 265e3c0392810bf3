"""A verifier serves a prompt of 33,000 tokens where model and KV pool have room for it, and says so where not."""

from typing import Any

import torch
import transformers as tf

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node.engine.torch.engine import TorchEngine
from cosine_node.passes.runner import InlineRunner
from cosine_node.verifier.scheduler import MAX_CHUNK_TOKENS
from cosine_node.verifier.service import VerifierConfig, VerifierService
from cosine_protocol import messages as m
from cosine_protocol.codec import decode_body
from cosine_protocol.errors import ErrorCode
from cosine_protocol.protocols import VERIFY
from tests.node.engine.tiny_models import VOCAB, build
from tests.node.peers import FLAT, SERVER, TARGET, TOKENIZER, request_of, serving
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


def ask(engine: TorchEngine) -> tuple[list[int] | m.Error, int]:
    """The text, or the refusal, of a request with the long prompt; and the passes that it took."""

    async def run() -> tuple[list[int] | m.Error, int]:
        config = VerifierConfig(target_digest=TARGET, tokenizer_digest=TOKENIZER)
        runner = InlineRunner(engine, FLAT)
        service = VerifierService(engine=engine, runner=runner, curve=FLAT, identity=SERVER, config=config)
        async with serving(service, engine, VERIFY) as bench:
            caller = await bench.caller()
            request = request_of(
                caller.peer_id, prompt=tuple(PROMPT), max_new_tokens=TEXT_TOKENS, numerics=engine.numerics
            )
            caller.post(m.Open(1, request, (), m.Pacing.FREE, ()))
            tokens: list[int] = []
            while True:
                message = await caller.next()
                if isinstance(message, m.Commit):
                    tokens += message.tokens
                elif isinstance(message, m.Error):
                    return message, service.progress.steps
                elif isinstance(message, m.Final) and decode_body(m.Account, message.body).number == 1:
                    return tokens, service.progress.steps

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


@THOROUGH
def test_a_long_prompt_is_prefilled_in_chunks_and_followed_by_the_tokens_of_generate() -> None:
    text, passes = ask(TorchEngine(long_model(), pool_tokens=40_000))
    assert text == generated(PROMPT)
    assert passes > PROMPT_TOKENS // MAX_CHUNK_TOKENS
    # A lost chunk would show.
    assert text != generated(PROMPT[MAX_CHUNK_TOKENS:])


def test_a_pool_with_less_room_than_the_prompt_has_a_shorter_context_and_refuses_it() -> None:
    engine = TorchEngine(long_model(), pool_tokens=32_768)
    assert engine.context_tokens == 32_768
    refusal, _ = ask(engine)
    assert isinstance(refusal, m.Error)
    assert refusal.code == ErrorCode.PROMPT_TOO_LONG
    assert "the context has 32768" in refusal.message
