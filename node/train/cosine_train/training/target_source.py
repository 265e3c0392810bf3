"""The target in the training of a drafter: its tokenizer, its answers, and an initial drafter.

It is on this machine, or served by a swarm, where only its text is known.
"""

import asyncio
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from cosine_engine.gguf.model_files import ModelFiles
from cosine_engine.load_options import LoadOptions
from cosine_engine.models.loading import open_model
from cosine_engine.models.model_sizes import ModelSizes
from cosine_engine.pool_size import PoolSize
from cosine_engine.torch.loading import load_engine, load_model, resolve_device
from cosine_engine.vocabulary import DraftVocabulary
from cosine_p2p.blocking import Client
from cosine_p2p.client import AsyncClient, Join, Swarm
from cosine_p2p.request.options import ClientOptions
from cosine_p2p.request.results import Generation
from cosine_p2p.text.target import read_ends
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import UsageError
from cosine_train.training.answers import Answer, TargetPrompt
from cosine_train.training.local_target import LocalTarget
from cosine_train.training.loop import computes_in_bfloat16
from cosine_train.training.new_drafter import Shape, drafter_of, new_model

CONTEXT_TOKENS: Final = 8192
"""The context of a drafter if the target's is unknown. It costs nothing: positions are not learned."""

USUAL_PROMPT_TOKENS: Final = 256
"""Room for the prompt of each answer. Fewer answers are written at once where prompts are longer."""


@dataclass(frozen=True, kw_only=True)
class LocalSource:
    """A model on this machine, by any name that `join` takes, that gives `slots` answers at once.

    Its drafters begin with some of its layers; with a `width` they begin untrained, with as many layers. Raises
    `UsageError`.
    """

    model: str
    slots: int
    new_tokens: int
    layers: tuple[int, ...]
    width: int | None
    device: str
    seed: int

    @cached_property
    def files(self) -> ModelFiles:
        """The model's files, downloaded if necessary."""
        return open_model(self.model)

    @property
    def folder(self) -> Path:
        return self.files.folder

    @cached_property
    def codec(self) -> TextTokenizer:
        files = TokenizerFiles.read(self.folder)
        if files is None:
            raise UsageError(f"The target {self.model!r} has no tokenizer files; train for a model that has them.")
        return TextTokenizer(files.files)

    def loaded(self) -> Any:
        """Load the model, in 16 bits where these are fast. Raises `UsageError`."""
        where = resolve_device(self.device)
        dtype = torch.bfloat16 if computes_in_bfloat16(where.type) else torch.float32
        return load_model(self.files, dtype=dtype).to(where)

    def target(self) -> LocalTarget:
        """Load the target as a verifier does by default. Raises `UsageError`."""
        pool_tokens = self.slots * (USUAL_PROMPT_TOKENS + self.new_tokens)
        engine = load_engine(
            self.files, LoadOptions(device=self.device, pool_size=PoolSize(exact_tokens=pool_tokens))
        )
        return LocalTarget(engine, eos=read_ends(self.folder), slots=self.slots, new_tokens=self.new_tokens)

    def new_drafter(self, vocabulary: DraftVocabulary) -> Any:
        """Return an untrained drafter with these tokens. Raises `UsageError`."""
        if self.width is None:
            model = load_model(self.files, dtype=torch.float32)
            return drafter_of(model, layers=self.layers, vocabulary=vocabulary)
        context = ModelSizes.read(self.folder).context_tokens
        return new_model(Shape(len(self.layers), self.width, vocabulary.reserved_id + 1, context), self.seed)


@dataclass(frozen=True, kw_only=True)
class SwarmSource:
    """A target that a swarm serves, asked by ordinary requests with the client's `options`, `slots` at once.

    Its weights are unknown, so drafters begin as untrained models. Raises as the client does.
    """

    join: Join
    options: ClientOptions
    slots: int
    new_tokens: int
    layers: int
    width: int
    seed: int

    @cached_property
    def codec(self) -> TextTokenizer:
        return asyncio.run(self._find_codec())

    async def _find_codec(self) -> TextTokenizer:
        joined: list[Swarm] = []

        async def join() -> Swarm:
            joined.append(await self.join())
            return joined[0]

        async with AsyncClient(join=join, **self.options) as client:
            return await joined[0].text_codec(await client.find_verifiers())

    def target(self) -> "SwarmSource":
        """Return this source, which answers."""
        return self

    def new_drafter(self, vocabulary: DraftVocabulary) -> Any:
        """Return an untrained drafter with these tokens."""
        shape = Shape(self.layers, self.width, vocabulary.reserved_id + 1, CONTEXT_TOKENS)
        return new_model(shape, self.seed)

    def answers(self, prompts: Iterable[TargetPrompt]) -> Iterator[Answer]:
        """Yield the answers as they end, in any order."""
        under_way: dict[Future[Generation], TargetPrompt] = {}
        with Client(join=self.join, **self.options) as client:
            for prompt in prompts:
                asked = client.submit(
                    prompt.tokens,
                    max_new_tokens=self.new_tokens,
                    temperature=prompt.sampling.temperature,
                    seed=prompt.sampling.seed,
                    generation_config="none",
                )
                under_way[asked] = prompt
                if len(under_way) >= self.slots:
                    yield from _ended(under_way)
            while under_way:
                yield from _ended(under_way)


TargetSource = LocalSource | SwarmSource


def _ended(under_way: dict[Future[Generation], TargetPrompt]) -> Iterator[Answer]:
    """Wait for some of the requests, and remove them from those under way."""
    for future in wait(under_way, return_when=FIRST_COMPLETED).done:
        prompt, tokens = under_way.pop(future), future.result().token_ids
        if tokens:
            nothing = np.zeros((len(tokens), 0))
            yield prompt.answer(tuple(tokens), nothing.astype(np.int32), nothing.astype(np.float16))
