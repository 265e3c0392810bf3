"""Artificial answers, and drafters trained by the command."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cosine_protocol.request import Sampling
from cosine_train.training.answers import Answer
from tests.node.cli.conftest import Run


def answer(
    tokens: tuple[int, ...],
    *,
    prompt: tuple[int, ...] = (1, 2, 3),
    likely: list[list[tuple[int, float]]] | None = None,
    domain: str = "code",
    sampling: Sampling | None = None,
) -> Answer:
    """Return an answer; `likely` are ids and probabilities at each position, equally many."""
    table = likely or [[] for _ in tokens]
    ids: NDArray[np.int32] = np.array([[token for token, _ in row] for row in table], np.int32)
    chances = np.array([[chance for _, chance in row] for row in table], np.float32)
    return Answer(
        question=7,
        domain=domain,
        sampling=sampling or Sampling(),
        prompt=prompt,
        tokens=tokens,
        likely_ids=ids.reshape(len(tokens), -1),
        likely_logs=np.log(chances).astype(np.float16).reshape(len(tokens), -1),
    )


def trained(run: Run, work: Path, out: Path, *arguments: str) -> dict[str, Any]:
    given = ["--target", "zoo:target", "--work", str(work), "--out", str(out), "--device", "cpu", "--threads", "1"]
    told = run("zoo", "train", "--json", *given, *arguments)
    assert told.code == 0, told.err
    return dict(json.loads(told.out))
