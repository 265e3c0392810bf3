"""Real engines with quantised weights under the name of whole ones: convicted in one audit."""

import random
from typing import Final

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node import zoo
from cosine_node.engine.llama.engine import LlamaEngine
from cosine_node.engine.llama.library import is_installed
from cosine_node.engine.torch.engine import TorchEngine
from cosine_p2p.request.results import Generation
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_p2p.trust.audit_rule import AuditState
from cosine_protocol.request import Sampling
from tests.node.verifier.audited_texts import engine_of
from tests.swarm.test_audits import SLOWER, SUSPECT, authors, state_of

TOKENS: Final = 200
LLAMA: Final = pytest.mark.skipif(not is_installed(), reason="xllamacpp is absent")
QUANTISED: Final = [
    ("float32", "gguf:Q4_1+float32"),
    pytest.param("gguf:F32+llama.cpp", "gguf:Q4_1+llama.cpp", marks=LLAMA),
]


def engine_called(claimed: str, numerics: str) -> TorchEngine | LlamaEngine:
    """An engine of the embedded target that says it has other numerics."""
    engine = engine_of(numerics)
    assert isinstance(engine, TorchEngine | LlamaEngine)
    engine._numerics = claimed
    return engine


def audited(claimed: str, numerics: str, sampling: Sampling) -> Generation:
    """A text of a verifier that computes in some numerics and claims others, audited by two that have those."""
    files = TokenizerFiles.read(zoo.location("target"))
    assert files is not None
    codec = TextTokenizer(files.files)
    [prompt] = random.Random(1).sample(list(zoo.prompts("literature")), 1)

    async def run() -> Generation:
        async with SimulatedSwarm(codec=codec) as swarm:
            await swarm.verifier(engine_called(claimed, numerics), identity=SUSPECT)
            client = await swarm.client(strategy="plain", audit=1.0, temperature=sampling.temperature, seed=1)
            # Alone it is measured, and then preferred to strangers.
            await client.generate(prompt.render(), max_new_tokens=10, audit=0.0)
            for _ in range(2):
                await swarm.verifier(engine_called(claimed, claimed), curve=SLOWER)
            running = await client.start(prompt.render(), max_new_tokens=TOKENS)
            async for _ in running.chunks():
                pass
            await running.audited()
            return running.result()

    generation = run_virtual(run())
    assert authors(generation) == [SUSPECT.peer_id]
    return generation


@pytest.mark.thorough
@pytest.mark.parametrize(("claimed", "numerics"), QUANTISED)
def test_weights_of_four_bits_under_the_name_of_32_are_found(claimed: str, numerics: str) -> None:
    assert state_of(audited(claimed, numerics, Sampling(temperature=1.0))) is AuditState.CONVICTED


@pytest.mark.thorough
@pytest.mark.parametrize("numerics", ["float32", pytest.param("gguf:Q4_1+llama.cpp", marks=LLAMA)])
def test_who_has_what_it_claims_is_not(numerics: str) -> None:
    assert state_of(audited(numerics, numerics, Sampling(temperature=1.0))) is AuditState.PASSED
