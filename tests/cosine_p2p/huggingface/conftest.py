"""The embedded models in the client's process, and in transformers."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cosine_engine import zoo
from cosine_engine.curve import CostCurve
from cosine_lab.simulation.records import facts_of
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node.passes.runner import ThreadRunner
from cosine_p2p.client import Swarm
from cosine_p2p.huggingface import SwarmModelForCausalLM
from cosine_p2p.request.generation_config import read_eos
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.records import GenerationDefaults
from tests.cosine_p2p.test_blocking import InProcess
from tests.engine.loaded import torch_engine

FAST: Final = CostCurve(((1, 0.0005), (32, 0.0006)))


async def embedded(published: GenerationDefaults | None = None) -> Swarm:
    """The embedded target and one drafter, in the client's own process; `published` is the target's own config."""
    files = TokenizerFiles.read(zoo.tokenizer_folder())
    assert files is not None
    codec = TextTokenizer(files.files)
    facts = facts_of(read_eos(zoo.folder("target")), published)
    swarm = await SimulatedSwarm(one_way_s=0.0, codec=codec, facts=facts).__aenter__()
    target, draft = (
        torch_engine(zoo.folder(name), dtype="float32", pool_tokens=4096) for name in ("target", "draft-general")
    )
    await swarm.verifier(target, curve=FAST, runner=ThreadRunner(target))
    await swarm.drafter(draft, curve=FAST)
    return InProcess(swarm)


@pytest.fixture(scope="module")
def model() -> Iterator[SwarmModelForCausalLM]:
    with SwarmModelForCausalLM.from_pretrained("zoo:target", join=embedded) as made:
        yield made


@pytest.fixture(scope="module")
def reference() -> Any:
    return AutoModelForCausalLM.from_pretrained(zoo.folder("target"), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(zoo.tokenizer_folder(), padding_side="left")
