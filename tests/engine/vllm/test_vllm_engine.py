"""vLLM in a process of its own: texts, faults, and the end of processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers as tf

from cosine_engine import zoo
from cosine_engine.base import Engine, PassAbandoned, Row
from cosine_engine.pool_size import PoolSize
from cosine_engine.vllm import model as module
from cosine_engine.vllm.environment import find_python
from cosine_engine.vllm.model import VllmEngine
from cosine_engine.vllm.process import ProcessLost
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from tests.engine.engines import vllm_options, wide_folder, wide_llama
from tests.engine.loaded import vllm_folder_engine
from tests.engine.random_walk import generated
from tests.engine.tiny_models import COMMON, RECURRENT, VOCAB, build
from tests.waiting import state_of, wait_until

pytestmark = pytest.mark.timeout(300)
PROMPTS = [[3 + (7 * text + place * place) % (VOCAB - 3) for place in range(9 + text)] for text in range(40)]

LOADING = """
import sys, time
from pathlib import Path
from typing import Any
from cosine_engine.load_options import VllmOptions
from cosine_engine.vllm.model import VllmEngine
from tests.engine.loaded import vllm_folder_engine
engine = vllm_folder_engine(Path(sys.argv[1]), vllm=VllmOptions(Path(sys.argv[2])))
print(engine.vllm.process.pid, flush=True)
time.sleep(600)
"""


def load(*, tensor_parallel: int = 1, pipeline_parallel: int = 1) -> VllmEngine:
    options = replace(vllm_options(), tensor_parallel=tensor_parallel, pipeline_parallel=pipeline_parallel)
    return vllm_folder_engine(wide_folder(), vllm=options, pool_tokens=2048)


def texts(engine: Engine, prompts: Sequence[list[int]], tokens: int) -> list[list[int]]:
    """Return the greedy texts after prompts, fed and decoded together."""
    sequences = [engine.open(sampling=Sampling(), prompt_tokens=len(prompt)) for prompt in prompts]
    found: list[list[int]] = [[] for _ in prompts]
    rows = [list(prompt) for prompt in prompts]
    for _ in range(tokens):
        passed = engine.forward(
            [
                Row.chain(sequence, row, scored_from=len(row) - 1)
                for sequence, row in zip(sequences, rows, strict=True)
            ]
        )
        for sequence, row in zip(sequences, rows, strict=True):
            engine.keep(sequence, range(len(row)))
        rows = [[result.choices[-1].token] for result in passed]
        for text, row in zip(found, rows, strict=True):
            text += row
    for sequence in sequences:
        engine.release(sequence)
    return found


def is_running(process: int) -> bool:
    return state_of(process) not in "ZX"


def children_of(process: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.thorough
@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 1), (2, 1), (1, 2)])
def test_texts_are_those_of_transformers_in_one_process_and_in_two(tensor: int, pipeline: int) -> None:
    model = wide_llama()
    expected = [generated(model, prompt, 16) for prompt in PROMPTS]
    engine = load(tensor_parallel=tensor, pipeline_parallel=pipeline)
    assert texts(engine, PROMPTS, 16) == expected


@pytest.mark.thorough
def test_a_dead_process_fails_its_pass_alone_and_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load()
    [expected] = texts(engine, PROMPTS[:1], 3)
    prompt, lost = PROMPTS[0], engine.vllm.process.pid
    sequence = engine.open(sampling=Sampling(), prompt_tokens=len(prompt), scope="a")
    engine.forward([Row.chain(sequence, prompt)])
    engine.keep(sequence, range(len(prompt)))
    row = Row(sequence, tuple(expected[:2]), (0, 1), (-1, 0))
    os.kill(lost, signal.SIGKILL)
    with pytest.raises(ProcessLost, match="has ended"):
        engine.forward([row])
    with pytest.raises(ProcessLost, match="within 60 s of its start"):
        engine.forward([row])
    monkeypatch.setattr(module, "RESTART_S", 0.0)
    [result] = engine.forward([row])
    assert [choice.token for choice in result.choices] == expected[1:]
    assert engine.vllm.process.pid != lost


@pytest.mark.thorough
def test_a_dead_rank_is_an_error() -> None:
    engine = load(tensor_parallel=2)
    ranks = children_of(engine.vllm.process.pid)
    os.kill(ranks[-1], signal.SIGKILL)
    with pytest.raises(ProcessLost):
        texts(engine, PROMPTS[:2], 200)
    wait_until(lambda: not any(map(is_running, [engine.vllm.process.pid, *ranks])))


@pytest.mark.thorough
def test_the_process_ends_with_the_one_that_started_it() -> None:
    command = [sys.executable, "-c", LOADING, str(wide_folder()), str(find_python(vllm_options()))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        child = int(node.stdout.readline())
        assert is_running(child)
        node.kill()
    wait_until(lambda: not is_running(child))


def test_what_vllm_cannot_load_is_refused_with_its_reason(tmp_path: Path) -> None:
    options = vllm_options()
    with pytest.raises(UsageError, match="loaded by vLLM: Total number of attention heads"):
        vllm_folder_engine(wide_folder(), vllm=replace(options, tensor_parallel=3))
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["NoSuchModel"]}')
    with pytest.raises(UsageError, match=r"cannot be loaded by vLLM: .*NoSuchModel"):
        vllm_folder_engine(tmp_path, vllm=options)


@pytest.mark.thorough
def test_models_that_no_tree_suits_are_refused(tmp_path: Path) -> None:
    options = vllm_options()
    build(RECURRENT["mamba2"]()).save_pretrained(tmp_path / "state")
    with pytest.raises(UsageError, match="a recurrent state, which the branches of a token tree cannot share"):
        vllm_folder_engine(tmp_path / "state", vllm=options)
    # Heads of 16 are none of vLLM's kernels.
    build(tf.LlamaConfig(**COMMON)).save_pretrained(tmp_path / "narrow")
    with pytest.raises(UsageError, match=r"narrow cannot be run by vLLM: .*head_dim=16"):
        vllm_folder_engine(tmp_path / "narrow", vllm=options)


@pytest.mark.thorough
def test_numerics_and_sizes_are_those_of_the_model() -> None:
    folder = zoo.location("target")
    token_bytes = 2 * 2 * 8 * 64 * 2
    engine = vllm_folder_engine(folder, vllm=vllm_options(), pool_tokens=PoolSize(size_bytes=4096 * token_bytes))
    assert engine.numerics == "vllm:bfloat16"
    assert engine.vocab_tokens == 4096
    engine.abandon()
    sequence = engine.open(sampling=Sampling(temperature=1.0), prompt_tokens=3)
    assert len(engine.forward([Row.chain(sequence, [3, 4, 5])])[0].choices) == 3


@pytest.mark.thorough
def test_a_long_prompt_is_abandoned_between_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load()
    own = engine.vllm.process.run

    def run(**told: Any) -> None:
        own(**told)
        engine.abandon()

    monkeypatch.setattr(engine.vllm.process, "run", run)
    sequence = engine.open(sampling=Sampling(), prompt_tokens=4)
    engine.vllm.pass_tokens = 32
    with pytest.raises(PassAbandoned):
        engine.forward([Row.chain(sequence, [3] * 100)])
    assert engine.live_tokens == 0
