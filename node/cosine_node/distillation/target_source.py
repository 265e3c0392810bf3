"""A target as the training of a drafter needs it: its tokenizer, its answers, and a drafter to begin with."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from cosine_node.distillation.asking_target import AnsweringTarget
from cosine_node.distillation.local_target import LocalTarget
from cosine_node.distillation.new_drafter import drafter_of
from cosine_node.distillation.small_model import Shape, new_model
from cosine_node.distillation.swarm_target import SwarmTarget
from cosine_node.engine.draft_vocabulary import DraftVocabulary
from cosine_node.engine.loading import load_model, read_config, resolve_device
from cosine_node.model import fetch_folder
from cosine_p2p.client import Join
from cosine_p2p.generation_config import read_eos
from cosine_p2p.options import ClientOptions
from cosine_p2p.tokenizer import TextCodec
from cosine_p2p.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import UsageError

CONTEXT_TOKENS: Final = 8192
"""A choice: the context of a drafter whose target's is unknown. It costs nothing: positions are not learned."""


class TargetSource(Protocol):
    """A target, and the drafters that can be made for it."""

    @property
    def codec(self) -> TextCodec: ...

    def target(self) -> AnsweringTarget:
        """The target, loaded or joined anew. Raises `UsageError`."""
        ...

    def new_drafter(self, vocabulary: DraftVocabulary) -> Any:
        """An untrained drafter with these tokens. Raises `UsageError`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Answering:
    """The answers of a target: at most so many at once, and tokens of each."""

    slots: int
    new_tokens: int


@dataclass(frozen=True, kw_only=True)
class LocalSource:
    """A model on this machine, by any name that `join` takes. Its drafters begin with some of its layers.

    With a `width` they begin untrained, with as many layers. Raises `UsageError`.
    """

    model: str
    answering: Answering
    layers: tuple[int, ...]
    width: int | None
    device: str
    seed: int

    @cached_property
    def folder(self) -> Path:
        """The model's folder, downloaded if need be."""
        return fetch_folder(self.model)

    @cached_property
    def codec(self) -> TextCodec:
        files = TokenizerFiles.read(self.folder)
        if files is None:
            raise UsageError(f"The target {self.model!r} has no tokenizer files; train for a model that has them.")
        return TextCodec(files.files)

    def target(self) -> AnsweringTarget:
        where = resolve_device(self.device)
        return LocalTarget(
            load_model(str(self.folder), dtype=_answering_dtype(where)).to(where),
            eos=read_eos(self.folder),
            slots=self.answering.slots,
            new_tokens=self.answering.new_tokens,
        )

    def new_drafter(self, vocabulary: DraftVocabulary) -> Any:
        if self.width is None:
            model = load_model(str(self.folder), dtype=torch.float32)
            return drafter_of(model, layers=self.layers, vocabulary=vocabulary)
        context = read_config(str(self.folder)).get_text_config().max_position_embeddings
        return new_model(Shape(len(self.layers), self.width, vocabulary.reserved_id + 1, context), self.seed)


@dataclass(frozen=True, kw_only=True)
class SwarmSource:
    """A target that a swarm serves. Its weights are unknown here, so drafters begin as untrained models."""

    join: Join
    options: ClientOptions
    answering: Answering
    layers: int
    width: int
    seed: int

    @cached_property
    def codec(self) -> TextCodec:
        return self._target.codec

    def target(self) -> AnsweringTarget:
        return self._target

    def new_drafter(self, vocabulary: DraftVocabulary) -> Any:
        shape = Shape(self.layers, self.width, vocabulary.reserved_id + 1, CONTEXT_TOKENS)
        return new_model(shape, self.seed)

    @cached_property
    def _target(self) -> SwarmTarget:
        return SwarmTarget(
            self.join, self.options, slots=self.answering.slots, new_tokens=self.answering.new_tokens
        )


def _answering_dtype(device: torch.device) -> torch.dtype:
    """16 bits where the device multiplies them fast."""
    is_fast = device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if is_fast else torch.float32
