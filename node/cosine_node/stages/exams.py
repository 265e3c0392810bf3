"""Exams of stages: what layers give for vectors that anybody can make, signed, so that anybody can judge it.

Theory of operation
-------------------
A head that finds a stage wrong has its own word for it alone: what entered the stage with a text nobody has kept,
and whoever chooses what enters can choose it so that an honest stage looks wrong. In an exam nobody chooses. Tokens
and vectors follow from a seed, and so do the signs of the projections by which a stage tells what its layers give.
Whoever has the same layers computes that anew, and compares within what rounding explains (`chains.examiner`). The
signature binds target, numerics, layers and seed, of which only the seed is somebody else's.

An exam is no secret: who has the right weights, and lies in texts, can pass it. It convicts whoever lacks them, or
computes in fewer bits or with a fault.
"""

from dataclasses import replace
from hashlib import shake_256
from typing import Final

import numpy as np
import torch

from cosine_node.engine.base import Row
from cosine_node.engine.torch.load_self_test import find_way
from cosine_node.stages.engine import StageModel, load_part
from cosine_node.stages.host import HostedChain, StageHost
from cosine_node.stages.projections import project
from cosine_protocol.identity import Identity
from cosine_protocol.limits import EXAM_TOKENS
from cosine_protocol.request import Sampling
from cosine_protocol.stage_messages import Exam, Examined
from cosine_protocol.statements import sign_exam

DOMAIN: Final = b"cosine/exam/1"
SCALE: Final = 1024
"""Vectors are about as large as embeddings, so that what layers add weighs more than what enters; of whole steps,
which all types of numbers have."""


def given(host: StageHost, room: HostedChain, seed: bytes) -> bytes:
    """Projections of what a host's layers give, of the last one the scores of tokens. Blocks for a pass.

    `room` is from `StageHost.exam_room`. Raises what a pass raises.
    """
    engine = room.books
    model = engine.model
    drawn = shake_256(DOMAIN + seed).digest(EXAM_TOKENS * (4 + model.hidden_width))
    tokens = np.frombuffer(drawn, dtype="<u4", count=EXAM_TOKENS) % model.vocab_tokens
    entering = None
    if not host.layers.is_first:
        vectors = np.frombuffer(drawn, dtype=np.int8, offset=4 * EXAM_TOKENS).reshape(EXAM_TOKENS, -1)
        entering = (torch.tensor(vectors, dtype=torch.float32) / SCALE).to(model.device, model.dtype)
    sequence = engine.open(sampling=Sampling(), prompt_tokens=EXAM_TOKENS)
    left = engine.leaving([Row.chain(sequence, tokens.tolist())], entering)
    # Whatever the type, its numbers are float 32 too.
    raw = left.float().contiguous().cpu().numpy().tobytes()
    return project(raw, tokens=EXAM_TOKENS, numerics="float32", seed=seed)


def own_answer(source: str, exam: Exam) -> Exam:
    """What the same layers give here, read from the folder of their model. Blocks. Raises `UsageError`."""
    model = load_part(source, exam.held, dtype=getattr(torch, exam.numerics))
    host = StageHost(StageModel(model, exam.held, slots=EXAM_TOKENS, way=find_way(model)))
    return replace(exam, left=given(host, host.exam_room(), exam.seed))


class Examinee:
    """Answers exams about the layers of a host, as a peer."""

    def __init__(self, host: StageHost, *, identity: Identity, target_digest: bytes) -> None:
        self._host = host
        self._identity = identity
        self._target_digest = target_digest

    def room(self) -> HostedChain:
        """Room for one exam; close it afterwards. Raises `OutOfPages`."""
        return self._host.exam_room()

    def answer(self, room: HostedChain, seed: bytes) -> Examined:
        """The signed answer. Blocks for a pass. Raises what a pass raises."""
        layers = self._host.layers
        exam = Exam(
            target_digest=self._target_digest,
            numerics=self._host.numerics,
            first_layer=layers.first,
            end_layer=layers.end,
            layers=layers.layers,
            seed=seed,
            left=given(self._host, room, seed),
        )
        return sign_exam(self._identity, exam)
