"""Measures how far what honest stages compute lies apart, as their heads see it: by projections of activations.

    python -m tests.node.chains.measure_traces --texts 4

A text is written token by token, beside others, PyTorch with one thread; then read in pieces of 64, alone, with two
threads. A line for each model and data type has the boundaries between layers, the positions, and the widest, the
99.9th percentile and the median of the length of the difference as a share of the vector's; then the same of the
widest in a text, of which a head takes the median of positions.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cosine_node import zoo
from cosine_node.chains.comparison import apart
from cosine_node.engine.base import Row, RowResult
from cosine_node.engine.kv_pool import PagePool
from cosine_node.engine.torch.loading import load_gguf_model, read_config
from cosine_node.engine.torch.pass_way import PassWay
from cosine_node.gguf.file import GgufFile
from cosine_node.gguf.unfolding import unfold
from cosine_node.stages.engine import StageEngine, StageModel, load_part
from cosine_node.stages.projections import Projections, project, read_projections
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.request import Sampling
from tests.node.engine.staged import ranges

TYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PIECE_TOKENS: Final = 64
POOL_TOKENS: Final = 4096
PROMPTS: Final = (
    "Question: What do we know of rivers, mountains and the open sea? Tell me about the sun.",
    "The old lighthouse keeper opened the door and",
    "def reverse(items):\n    ",
    "Once upon a time there was a king who",
)
Vectors = list[list[Tensor]]
"""By boundary and text, what goes over it: [tokens, hidden]."""


class Chain:
    """Stages of one layer each, which keep what goes from one to the next."""

    def __init__(self, models: Sequence[StageModel]) -> None:
        self.stages = [StageEngine(model, PagePool(tokens=POOL_TOKENS)) for model in models]

    def open(self, prompt_tokens: int) -> int:
        for stage in self.stages:
            number = stage.open(sampling=Sampling(), prompt_tokens=prompt_tokens)
        return number

    def feed(self, rows: Sequence[Row]) -> tuple[list[Tensor], list[RowResult]]:
        """What went over each boundary, and the results."""
        over: list[Tensor] = []
        passed: Any = None
        for stage in self.stages:
            passed = stage.forward(rows, passed)
            if isinstance(passed, Tensor):
                over.append(passed.clone())
        for stage in self.stages:
            for row in rows:
                stage.keep(row.sequence, row.nodes)
        return over, passed

    def release(self, sequence: int) -> None:
        for stage in self.stages:
            stage.release(sequence)


def written(chain: Chain, prompts: Sequence[Sequence[int]], tokens: int) -> tuple[list[list[int]], Vectors]:
    """Texts written side by side, and their vectors."""
    sequences = [chain.open(len(prompt)) for prompt in prompts]
    texts = [list(prompt) for prompt in prompts]
    over: Vectors = [[] for _ in chain.stages[1:]]
    fed = [0] * len(texts)
    parts: list[list[list[Tensor]]] = [[[] for _ in texts] for _ in over]
    for _ in range(tokens):
        rows = [
            Row.chain(sequence, text[done:]) for sequence, text, done in zip(sequences, texts, fed, strict=True)
        ]
        found, results = chain.feed(rows)
        start = 0
        for number, (row, result) in enumerate(zip(rows, results, strict=True)):
            for boundary, vectors in enumerate(found):
                parts[boundary][number].append(vectors[start : start + len(row.tokens)])
            start += len(row.tokens)
            fed[number] += len(row.tokens)
            texts[number].append(result.choices[-1].token)
    for sequence in sequences:
        chain.release(sequence)
    return texts, [[torch.cat(text) for text in of_boundary] for of_boundary in parts]


def read(chain: Chain, texts: Sequence[Sequence[int]]) -> Vectors:
    """The vectors of texts that are read one after the other."""
    over: Vectors = [[] for _ in chain.stages[1:]]
    for text in texts:
        sequence = chain.open(len(text))
        parts: list[list[Tensor]] = [[] for _ in over]
        for start in range(0, len(text) - 1, PIECE_TOKENS):
            found, _ = chain.feed([Row.chain(sequence, text[start : min(len(text) - 1, start + PIECE_TOKENS)])])
            for boundary, vectors in enumerate(found):
                parts[boundary].append(vectors)
        chain.release(sequence)
        for boundary, pieces in enumerate(parts):
            over[boundary].append(torch.cat(pieces))
    return over


def projected(vectors: Tensor, numerics: str, seed: bytes) -> Projections:
    raw = vectors.contiguous().view(torch.uint8).numpy().tobytes()
    found = read_projections(project(raw, tokens=len(vectors), numerics=numerics, seed=seed), tokens=len(vectors))
    assert found is not None
    return found


def gaps(one: Vectors, other: Vectors, numerics: str) -> Iterator[npt.NDArray[np.float64]]:
    """How far each boundary's vectors of each text are apart, position by position."""
    number = 0
    for of_one, of_other in zip(one, other, strict=True):
        for first, second in zip(of_one, of_other, strict=True):
            seed = number.to_bytes(16)
            number += 1
            yield apart(projected(first, numerics, seed), projected(second, numerics, seed))


def folder_of(name: str, scratch: Path) -> Path:
    """Weights that can be cut: those of a GGUF file are written anew."""
    place = zoo.location(name)
    if name != "smol-target":
        return place
    unfolded = unfold(place, cache_folder=scratch / "unfolded")
    folder = scratch / name
    file = GgufFile.in_folder(unfolded)
    assert file is not None
    load_gguf_model(file, read_config(str(unfolded)), dtype=torch.float32).save_pretrained(folder)
    for each in unfolded.iterdir():
        if each.suffix == ".json" and not (folder / each.name).exists():
            (folder / each.name).write_bytes(each.read_bytes())
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="target,draft-general,smol-target")
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--types", default=",".join(TYPES))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.models.split(","):
            folder = folder_of(name, Path(scratch))
            files = TokenizerFiles.read(folder) or TokenizerFiles.read(zoo.location("target"))
            assert files is not None
            codec = TextTokenizer(files.files)
            prompts = [codec.encode(prompt) for prompt in PROMPTS]
            layers: int = read_config(str(folder)).get_text_config().num_hidden_layers
            for numerics in options.types.split(","):
                models = [
                    StageModel(
                        load_part(str(folder), part, dtype=TYPES[numerics]),
                        part,
                        slots=POOL_TOKENS,
                        way=PassWay.PACKED,
                    )
                    for part in ranges(*range(1, layers + 1))
                ]
                torch.set_num_threads(1)
                texts, alone = written(Chain(models), prompts, options.tokens)
                torch.set_num_threads(2)
                found = list(gaps(alone, read(Chain(models), texts), numerics))
                every = np.concatenate(found)
                medians = [float(np.median(each)) for each in found]
                sys.stdout.write(
                    f"{name} {numerics}: {layers - 1} boundaries, {len(every)} positions, "
                    f"widest {every.max():.2e}, 99.9 % {np.quantile(every, 0.999):.2e}, "
                    f"median {np.median(every):.2e}; of a text's medians the widest {max(medians):.2e}\n"
                )
                sys.stdout.flush()


if __name__ == "__main__":
    main()
