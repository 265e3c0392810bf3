"""What convicts a stage is its own answer to an exam, which is kept where another holder of its layers differs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch

from cosine_node.chains.examiner import exams_differ
from cosine_node.stages.engine import StageModel
from cosine_node.stages.exams import given
from cosine_node.stages.host import StageHost
from cosine_p2p.trust import evidence
from cosine_p2p.trust.evidence import EvidenceFile, SignedExam
from cosine_protocol.errors import RemoteProtocolError
from cosine_protocol.identity import Identity
from cosine_protocol.limits import EXAM_TOKENS
from cosine_protocol.statements import sign_exam
from tests.node.chains.checked_heads import head_of, load
from tests.node.chains.faulty_stages import FAULTS
from tests.node.chains.liars import Lie, lying_hosts
from tests.node.engine.staged import ranges
from tests.node.stages.chains import POOL_TOKENS, in_loop
from tests.protocol.samples import EXAM, OTHER, OWNER

PARTS: Final = ranges(1, 3, 4)
STAGES: Final = [Identity.from_seed(bytes([number]) * 32) for number in range(9)]
OF_THE_MIDDLE: Final = 1
OF_THE_LAST: Final = 2


@pytest.fixture(scope="module")
def thrice(folder: Path) -> list[StageModel]:
    return load(folder, PARTS, holders=3, dtype=torch.float32)


@pytest.fixture
def file(tmp_path: Path) -> EvidenceFile:
    return EvidenceFile(tmp_path / "evidence.json")


@pytest.mark.parametrize("fault", ["random layer", "noise 1e-01", "8-bit weights", "bfloat16"])
@in_loop
async def test_a_stage_that_computes_wrong_signs_what_convicts_it(
    thrice: list[StageModel], folder: Path, file: EvidenceFile, fault: str
) -> None:
    faulty = FAULTS[fault](folder, PARTS[OF_THE_MIDDLE], torch.float32, POOL_TOKENS)
    liar = STAGES[OF_THE_MIDDLE].peer_id
    async with head_of(
        thrice,
        host_of=lambda number, model: faulty if number == OF_THE_MIDDLE else StageHost(model),
        identities=STAGES,
        file=file,
    ) as head:
        await head.checked()
        assert head.rejected == {liar}
    [kept] = file.exams()
    assert kept.stage == liar
    # Whoever holds the layers finds what the head has found, and needs nobody's word for it.
    exam, host = kept.open(), StageHost(thrice[4])
    assert exams_differ(exam, replace(exam, left=given(host, host.exam_room(), exam.seed)))


@pytest.mark.parametrize("fault", ["noise 1e-03", "8-bit weights", "float16"])
@in_loop
async def test_a_last_stage_whose_choices_are_right_is_found_by_its_exam(
    thrice: list[StageModel], folder: Path, file: EvidenceFile, fault: str
) -> None:
    faulty = FAULTS[fault](folder, PARTS[OF_THE_LAST], torch.float32, POOL_TOKENS)
    async with head_of(
        thrice,
        host_of=lambda number, model: faulty if number == OF_THE_LAST else StageHost(model),
        identities=STAGES,
        file=file,
    ) as head:
        await head.checked()
        assert head.rejected == {STAGES[OF_THE_LAST].peer_id} and not head.disputes.open(head.now_s)
    assert [kept.stage for kept in file.exams()] == [STAGES[OF_THE_LAST].peer_id]


@in_loop
async def test_where_two_hold_the_last_layers_their_exams_set_both_aside(
    thrice: list[StageModel], folder: Path, file: EvidenceFile
) -> None:
    faulty = FAULTS["8-bit weights"](folder, PARTS[OF_THE_LAST], torch.float32, POOL_TOKENS)
    async with head_of(
        thrice,
        host_of=lambda number, model: faulty if number == OF_THE_LAST else StageHost(model),
        identities=STAGES,
        file=file,
        holders=range(6),
    ) as head:
        await head.checked()
        both = {STAGES[OF_THE_LAST].peer_id, STAGES[OF_THE_LAST + len(PARTS)].peer_id}
        assert not head.rejected and head.disputes.set_aside(head.now_s) == both


@in_loop
async def test_of_a_liar_that_computes_right_when_it_is_examined_nothing_is_kept(
    thrice: list[StageModel], file: EvidenceFile
) -> None:
    hosts = lying_hosts({OF_THE_MIDDLE: Lie.NONSENSE})
    async with head_of(thrice, host_of=hosts, identities=STAGES, file=file) as head:
        await head.checked()
        # Its head has found it out all the same.
        assert head.rejected == {STAGES[OF_THE_MIDDLE].peer_id}
    assert not file.exams()


@in_loop
async def test_of_stages_that_compute_right_nothing_is_kept(thrice: list[StageModel], file: EvidenceFile) -> None:
    async with head_of(thrice, identities=STAGES, file=file) as head:
        for number in range(4):
            await head.checked(tuple(range(3 + number, 20 + number)))
    assert not file.exams()


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": bytes(16)},
        {"target_digest": bytes(32)},
        {"numerics": "bfloat16"},
        {"first_layer": 1},
        {"layers": 8},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_answers_to_two_exams_say_nothing_about_each_other(changes: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        exams_differ(EXAM, replace(EXAM, **changes))


def left_of(change: Callable[[np.ndarray[Any, Any]], None]) -> bytes:
    told = np.random.default_rng(3).normal(size=(EXAM_TOKENS, 16)).astype("<f4")
    change(told)
    return told.tobytes()


def test_half_of_the_tokens_must_be_wrong_so_that_no_seed_makes_an_honest_stage_look_so() -> None:
    def spoil(tokens: int) -> Callable[[np.ndarray[Any, Any]], None]:
        def change(told: np.ndarray[Any, Any]) -> None:
            told[:tokens] *= -1

        return change

    right = replace(EXAM, left=left_of(spoil(0)))
    assert not exams_differ(right, replace(EXAM, left=left_of(spoil(EXAM_TOKENS // 2 - 1))))
    assert exams_differ(right, replace(EXAM, left=left_of(spoil(EXAM_TOKENS // 2 + 1))))
    assert exams_differ(right, replace(EXAM, left=bytes(4) * 16 * EXAM_TOKENS))


def test_evidence_against_stages_lies_beside_that_against_verifiers_once_for_each(file: EvidenceFile) -> None:
    answers = [sign_exam(OWNER, replace(EXAM, seed=bytes([number]) * 16)) for number in range(2)]
    first, second = [SignedExam.of(OWNER.peer_id, answer) for answer in answers]
    other = SignedExam.of(OTHER.peer_id, sign_exam(OTHER, EXAM))
    for exam in (first, other, second):
        file.add_exam(exam)
    assert file.exams() == (other, second) and not file.read()
    assert other.open() == EXAM
    with pytest.raises(RemoteProtocolError):
        replace(other, stage=OWNER.peer_id).open()


def test_evidence_that_fills_its_file_gives_way_to_what_is_new(
    file: EvidenceFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (SignedExam.of(who.peer_id, sign_exam(who, EXAM)) for who in (OTHER, OWNER))
    file.add_exam(old)
    monkeypatch.setattr(evidence, "MAX_FILE_BYTES", file.path.stat().st_size + 100)
    file.add_exam(new)
    assert file.exams() == (new,)
