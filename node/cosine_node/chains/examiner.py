"""Examines stages: asks two holders of the same layers, or computes the answer here, and keeps what convicts."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Final

import numpy as np

from cosine_node.chains.comparison import TRACE_ROUNDING, apart
from cosine_node.stages.projections import read_projections
from cosine_p2p.transport.base import Transport
from cosine_p2p.transport.channel import Channel
from cosine_p2p.trust.evidence import EvidenceFile, SignedExam
from cosine_protocol.errors import CosineError, RemoteProtocolError
from cosine_protocol.limits import EXAM_TOKENS, PROBE_SEED_BYTES
from cosine_protocol.protocols import STAGE
from cosine_protocol.stage_messages import Exam, Examine, Examined
from cosine_protocol.statements import open_exam

LOG = logging.getLogger(__name__)
EXAM_S: Final = 10.0
"""As long as a probe is waited for."""


def exams_differ(one: Exam, other: Exam) -> bool:
    """True if two answers to one exam are further apart than rounding explains. Pure.

    The median of the tokens decides: whoever draws seeds until one token looks bad would have to make half of them
    look so. Raises `RemoteProtocolError` for answers that are not of one exam.
    """
    if [_of(one), one.seed] != [_of(other), other.seed] or one.numerics not in TRACE_ROUNDING:
        raise RemoteProtocolError("these are no answers to one exam")
    ours, theirs = (read_projections(each.left, tokens=EXAM_TOKENS) for each in (one, other))
    assert ours is not None and theirs is not None, "an exam has as many projections as that"
    return float(np.median(apart(ours, theirs))) > TRACE_ROUNDING[one.numerics].wrong_median


def _of(exam: Exam) -> tuple[bytes, str, str]:
    return exam.target_digest, exam.numerics, f"{exam.held} of {exam.layers}"


class Examiner:
    """Has stages that a head found wrong say so themselves, by their signed answers, and keeps them as evidence."""

    def __init__(
        self,
        transport: Transport,
        file: EvidenceFile,
        *,
        draw: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._transport = transport
        self._file = file
        self._draw = draw

    async def differ(self, one: str, other: str) -> bool | None:
        """Whether two stages of the same layers answer an exam differently; None where one gives no answer."""
        told = await self._told(one, other)
        return None if told is None else told[1]

    async def examine(self, suspect: str, fellow: str) -> None:
        """Ask a stage that was found wrong, and another one of its layers; keep the first answer if they differ."""
        match await self._told(suspect, fellow):
            case (answer, True):
                self._file.add_exam(SignedExam.of(suspect, answer))
                LOG.warning("stage %s signed what others of its layers do not compute: `audit` judges it", suspect)
            case (_, False):
                LOG.info("stage %s computes right when it is examined", suspect)

    async def _told(self, one: str, other: str) -> tuple[Examined, bool] | None:
        """The first one's answer to an exam, and whether the other one's is different."""
        seed = self._draw(PROBE_SEED_BYTES)
        try:
            first, second = [await self._asked(peer_id, seed) for peer_id in (one, other)]
            return first, exams_differ(open_exam(first, stage=one), open_exam(second, stage=other))
        except (CosineError, TimeoutError) as error:
            LOG.info("stages %s and %s were not examined: %s", one, other, error or "no answer in time")
            return None

    async def _asked(self, peer_id: str, seed: bytes) -> Examined:
        async with asyncio.timeout(EXAM_S):
            stream = await self._transport.dial(peer_id, STAGE)
            async with Channel(stream, STAGE) as channel:
                channel.post(Examine(seed))
                answer = await channel.receive()
        if not isinstance(answer, Examined):
            raise RemoteProtocolError(f"{peer_id} answered an exam with {type(answer).__name__}")
        return answer
