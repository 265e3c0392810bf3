"""GGUF files of three real families are served: the prompt of a chat, its answer, and the token that ends it."""

from pathlib import Path

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node.engine.base import Engine
from cosine_node.engine.llama.library import is_installed
from cosine_node.engine.pool_size import PoolSize
from cosine_node.gguf.architectures import ARCHITECTURES
from cosine_node.gguf.unfolding import unfold
from cosine_node.models.engine_kind import EngineChoice, EngineKind, load_with
from cosine_p2p.request.results import Generation
from cosine_p2p.text.target import read_ends
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from tests.node.serving.gguf_families import FAMILIES, GgufFamily
from tests.thoroughness import THOROUGH

CHAT = [{"role": "user", "content": "ab"}]
LLAMA_MARK = pytest.mark.skipif(not is_installed(), reason="xllamacpp is absent")
CASES = [
    pytest.param(
        family,
        kind,
        id=f"{family.name}-{kind}",
        marks=[LLAMA_MARK] if kind is EngineKind.LLAMA else [THOROUGH] if number else [],
    )
    for number, family in enumerate(FAMILIES)
    for kind in (EngineKind.TORCH, EngineKind.LLAMA)
    if kind is EngineKind.LLAMA or family.architecture in ARCHITECTURES
]


async def answered(engine: Engine, codec: TextTokenizer, ends: tuple[int, ...]) -> Generation:
    async with SimulatedSwarm(codec=codec, eos=ends) as swarm:
        await swarm.verifier(engine)
        client = await swarm.client()
        return await client.generate(CHAT, max_new_tokens=24, temperature=0.0)


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_a_chat_is_answered_up_to_the_familys_own_end(family: GgufFamily, kind: EngineKind, tmp_path: Path) -> None:
    file = family.write(tmp_path / "model.gguf")
    folder = unfold(file, cache_folder=tmp_path / "cache", is_served=True)
    files = TokenizerFiles.read(folder)
    assert files is not None
    codec, ends = TextTokenizer(files.files), read_ends(folder)
    tokens: list[str] = family.tokenizer["tokens"]
    prompt = codec.encode_chat(CHAT)
    assert "".join(tokens[token] for token in prompt).replace("Ċ", "\n") == family.prompt
    choice = EngineChoice(kind=kind, device="cpu", threads=1, pool_size=PoolSize(size_bytes=4 << 20))
    answer = run_virtual(answered(load_with(choice, folder, file), codec, ends))
    assert [tokens[token] for token in answer.token_ids] == list(family.steps[1:])
    assert answer.token_ids[-1] in ends
    assert (answer.text, answer.finish_reason) == (family.text, "eos")
