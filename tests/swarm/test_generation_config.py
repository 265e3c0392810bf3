"""A test that texts with a generation config equal those of transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from cosine_engine.curve import CostCurve
from cosine_engine.ngram import NgramEngine
from cosine_engine.torch.engine import TorchEngine
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_p2p.request.results import Generation
from cosine_p2p.text.target import read_target_facts
from tests.engine.loaded import torch_engine
from tests.engine.tiny_models import COMMON, VOCAB
from tests.scenes import in_virtual_time
from tests.thoroughness import quick_rows

pytestmark = pytest.mark.thorough
TOKENS = 24
CHAT: dict[str, Any] = {
    "do_sample": True,
    "temperature": 0.7,
    "top_p": 0.8,
    "top_k": 20,
    "eos_token_id": [2, 3],
    "pad_token_id": 0,
}
"""Similar to the config of Qwen2.5-Instruct, except for the penalty."""
PROMPTS = [[5, 6, 7, 8, 5, 6, 7, 8, 5], [11, 12, 13], [40, 41, 42, 43, 40, 41, 42]]
CURVE = CostCurve(((1, 0.02), (64, 0.022)))
QUICK = CostCurve(((1, 0.001), (64, 0.001)))


def save(folder: Path, *, penalty: float) -> None:
    """Save a tiny random Llama whose greedy texts repeat themselves, with a generation config."""
    torch.manual_seed(7)
    tf.LlamaForCausalLM(tf.LlamaConfig(**COMMON, initializer_range=0.2)).float().save_pretrained(folder)
    Tokenizer(WordLevel({f"w{index}": index for index in range(VOCAB)}, unk_token="w0")).save(
        str(folder / "tokenizer.json")
    )
    (folder / "generation_config.json").write_text(json.dumps(CHAT | {"repetition_penalty": penalty}))


def in_transformers(folder: Path, prompt: list[int]) -> tuple[int, ...]:
    model = tf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([prompt])
    whole = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS)
    return tuple(whole[0, len(prompt) :].tolist())


@in_virtual_time
async def generated(folder: Path, prompt: list[int], *, drafts: bool = True, **options: Any) -> Generation:
    facts = read_target_facts(folder)
    assert facts is not None

    def engine() -> TorchEngine:
        return torch_engine(folder, dtype="float32", pool_tokens=4096)

    async with SimulatedSwarm(eos=facts.eos, generation_defaults=facts.generation_defaults) as swarm:
        await swarm.verifier(engine(), curve=CURVE)
        if drafts:
            await swarm.drafter(NgramEngine(vocab_tokens=VOCAB, context_tokens=256), curve=QUICK)
            # The target itself as a drafter is right if it applies the penalty.
            await swarm.drafter(engine(), curve=QUICK)
        client = await swarm.client(max_new_tokens=TOKENS, temperature=0.0)
        return await client.generate(prompt, **options)


@pytest.mark.parametrize(("penalty", "prompt"), quick_rows(zip((1.3, 1.05, 0.8), PROMPTS, strict=True)))
def test_greedy_texts_are_those_of_transformers(tmp_path: Path, penalty: float, prompt: list[int]) -> None:
    save(tmp_path, penalty=penalty)
    expected = in_transformers(tmp_path, prompt)
    for options in ({"strategy": "cosine"}, {"strategy": "plain"}, {"drafts": False}):
        found = generated(tmp_path, prompt, **options)
        assert found.token_ids == expected, options
        assert found.generation_config.options == {"repetition_penalty": penalty}
        assert found.swarm.accepted > 0 or options != {"strategy": "cosine"}
    without = generated(tmp_path, prompt, generation_config="none")
    assert without.generation_config.options == {}
    assert without.token_ids != expected or penalty != 1.3
