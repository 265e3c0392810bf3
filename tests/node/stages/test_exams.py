"""A stage signs what its layers give for a seed, and whoever has these layers finds the same."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pytest
import torch
import transformers as tf

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node.chains.examiner import exams_differ
from cosine_node.engine.torch.pass_way import PassWay
from cosine_node.stages.engine import StageModel
from cosine_node.stages.exams import Examinee, given
from cosine_node.stages.host import StageHost
from cosine_node.stages.projections import read_projections
from cosine_node.stages.service import EXAM_BURST
from cosine_p2p.transport.channel import Channel
from cosine_protocol import messages as m
from cosine_protocol.errors import ErrorCode
from cosine_protocol.limits import EXAM_TOKENS, PROBE_SEED_BYTES
from cosine_protocol.protocols import STAGE
from cosine_protocol.stage_messages import Exam, Examine, Examined
from cosine_protocol.statements import open_exam
from tests.node.chains.checked_heads import TYPES, load
from tests.node.chains.faulty_stages import FAULTS, with_threads
from tests.node.engine.staged import load_stages, ranges
from tests.node.engine.tiny_models import build
from tests.node.stages.chains import FOUR, POOL_TOKENS, TARGET, ServedStages, in_loop, served
from tests.node.stages.test_service import at_once
from tests.protocol.samples import OTHER, OWNER, SWARM

PARTS: Final = ranges(1, 3, 4)
STAGES: Final = (OWNER, OTHER, SWARM)
TOLD_IN_FLOAT32: Final = ("noise 1e-01", "noise 1e-02", "noise 1e-03", "8-bit weights", "bfloat16", "float16")
SEED: Final = bytes(range(PROBE_SEED_BYTES))


def exam_of(host: StageHost, seed: bytes = SEED) -> Exam:
    """What a host of the first identity answers."""
    examinee = Examinee(host, identity=OWNER, target_digest=TARGET)
    room = examinee.room()
    try:
        return open_exam(examinee.answer(room, seed), stage=OWNER.peer_id)
    finally:
        room.close()


async def asked(stages: ServedStages, number: int, *seeds: bytes) -> list[m.Message]:
    """What a stage answers to a stranger, each seed on a stream of its own."""
    transport = stages.network.join(f"stranger of {number}")
    answers = []
    for seed in seeds:
        async with Channel(await transport.dial(stages.names[number], STAGE), STAGE) as channel:
            channel.post(Examine(seed))
            answers.append(await channel.receive())
    return answers


@pytest.fixture(scope="module")
def parts(folder: Path) -> list[StageModel]:
    return load(folder, PARTS, holders=1, dtype=torch.float32)


@in_loop
async def test_any_stage_signs_what_others_with_its_layers_find_too(
    parts: Sequence[StageModel], folder: Path
) -> None:
    others = load(folder, PARTS, holders=1, dtype=torch.float32)
    async with served(parts, identities=STAGES) as stages:
        for number, (identity, part, other) in enumerate(zip(STAGES, PARTS, others, strict=True)):
            [answer] = await asked(stages, number, SEED)
            assert isinstance(answer, Examined)
            exam = open_exam(answer, stage=identity.peer_id)
            assert (exam.target_digest, exam.numerics, exam.held, exam.seed) == (TARGET, "float32", part, SEED)
            assert not exams_differ(exam, exam_of(with_threads(other, 2)))
        assert stages.is_idle


def test_there_are_so_many_exams_and_no_more_whoever_asks(parts: Sequence[StageModel]) -> None:
    async def scene() -> None:
        async with served(parts[:1], identities=STAGES[:1], offload=at_once) as stages:
            seeds = [bytes([number]) * PROBE_SEED_BYTES for number in range(EXAM_BURST + 1)]
            *answers, refused = await asked(stages, 0, *seeds)
            assert all(isinstance(answer, Examined) for answer in answers)
            assert isinstance(refused, m.Error) and refused.code == ErrorCode.OVERLOADED

    run_virtual(scene())


@in_loop
async def test_a_stage_without_room_or_without_a_key_refuses_in_a_sentence(parts: Sequence[StageModel]) -> None:
    async with served(parts[:1], identities=STAGES[:1]) as stages:
        taken = stages.hosts[0].open(
            pool_tokens=POOL_TOKENS, window_pool_tokens=None, window_tokens=None, first_sequence=0
        )
        [refused] = await asked(stages, 0, SEED)
        assert isinstance(refused, m.Error) and refused.code == ErrorCode.OVERLOADED
        taken.close()
    async with served(parts[:1]) as stages:
        [refused] = await asked(stages, 0, SEED)
        assert isinstance(refused, m.Error) and "no exams are taken here" in refused.message


@pytest.mark.parametrize("numerics", TYPES)
@pytest.mark.parametrize("place", range(3))
def test_other_weights_are_told_from_rounding_in_every_type(folder: Path, numerics: str, place: int) -> None:
    honest = load(folder, PARTS, holders=1, dtype=TYPES[numerics])[place]
    right = exam_of(StageHost(honest))
    assert not exams_differ(right, exam_of(with_threads(honest, 4)))
    for fault in ("random layer", "noise 1e+00"):
        wrong = exam_of(FAULTS[fault](folder, PARTS[place], TYPES[numerics], POOL_TOKENS))
        assert exams_differ(right, wrong), fault


@pytest.mark.parametrize(
    "fault", ["noise 1e-01", "noise 1e-02", "noise 1e-03", "8-bit weights", "bfloat16", "float16"]
)
@pytest.mark.parametrize("place", range(3))
def test_in_float32_noise_and_fewer_bits_are_told_too(
    parts: Sequence[StageModel], folder: Path, place: int, fault: str
) -> None:
    faulty = FAULTS[fault](folder, PARTS[place], torch.float32, POOL_TOKENS)
    assert exams_differ(exam_of(StageHost(parts[place])), exam_of(faulty))


def test_each_seed_asks_something_else_and_of_every_token(parts: Sequence[StageModel]) -> None:
    host = StageHost(parts[1])
    told = []
    for seed in (SEED, bytes(PROBE_SEED_BYTES)):
        room = host.exam_room()
        told.append(read_projections(given(host, room, seed), tokens=EXAM_TOKENS))
        room.close()
    one, other = told
    assert one is not None and other is not None and not np.allclose(one, other)
    assert len({tuple(row) for row in one}) == EXAM_TOKENS


def test_layers_that_look_back_through_windows_are_examined(tmp_path: Path) -> None:
    build(tf.MistralConfig(**FOUR, sliding_window=6)).save_pretrained(tmp_path)
    [first, last] = load_stages(tmp_path, ranges(2, 4), slots=POOL_TOKENS, window_slots=POOL_TOKENS)
    for model in (first, last):
        whole = StageModel(model.packed.model, model.layers, slots=POOL_TOKENS, way=PassWay.PACKED)
        assert not exams_differ(exam_of(StageHost(model)), exam_of(StageHost(whole)))
