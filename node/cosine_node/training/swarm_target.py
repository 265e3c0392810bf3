"""A target that a swarm serves, asked by ordinary requests: of what it found likely only its text is known."""

import asyncio
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait

import numpy as np

from cosine_node.training.answers import Answer
from cosine_node.training.local_target import TargetPrompt
from cosine_p2p.blocking import Client
from cosine_p2p.client import AsyncClient, Join, Swarm
from cosine_p2p.request.options import ClientOptions
from cosine_p2p.request.results import Generation
from cosine_p2p.text.tokenizer import TextCodec
from cosine_protocol.errors import UsageError


class SwarmTarget:
    """Asks a swarm for `new_tokens` tokens at most, up to `slots` requests at a time, with the options of a client.

    `join` is the client's way into the network. Raises as the client does.
    """

    def __init__(self, join: Join, options: ClientOptions, *, slots: int, new_tokens: int) -> None:
        self._join = join
        self._options = options
        self._slots = slots
        self._new_tokens = new_tokens
        self.codec: TextCodec = asyncio.run(self._find_codec())

    @property
    def vocab_tokens(self) -> int:
        """Tokens of the target's vocabulary, as far as its tokenizer tells."""
        return self.codec.vocab_tokens

    def answers(self, prompts: Iterable[TargetPrompt]) -> Iterator[Answer]:
        """The answers as they end, in no order."""
        under_way: dict[Future[Generation], TargetPrompt] = {}
        with Client(join=self._join, **self._options) as client:
            for prompt in prompts:
                asked = client.submit(
                    prompt.tokens,
                    max_new_tokens=self._new_tokens,
                    temperature=prompt.sampling.temperature,
                    seed=prompt.sampling.seed,
                    generation_config="none",
                )
                under_way[asked] = prompt
                if len(under_way) >= self._slots:
                    yield from _ended(under_way)
            while under_way:
                yield from _ended(under_way)

    def readings(self, prompts: Iterable[TargetPrompt]) -> Iterator[Answer]:
        """Raises `UsageError`: a swarm writes, and tells nothing of what is given."""
        raise UsageError("Texts can be read by a target on this machine alone; leave --read out for a swarm.")

    async def _find_codec(self) -> TextCodec:
        joined: list[Swarm] = []

        async def join() -> Swarm:
            joined.append(await self._join())
            return joined[0]

        async with AsyncClient(join=join, **self._options) as client:
            return await joined[0].text_codec(await client.find_verifiers())


def _ended(under_way: dict[Future[Generation], TargetPrompt]) -> Iterator[Answer]:
    """Wait for some of the requests, which then are under way no more."""
    for future in wait(under_way, return_when=FIRST_COMPLETED).done:
        prompt, tokens = under_way.pop(future), future.result().token_ids
        if tokens:
            yield Answer(
                question=prompt.question,
                domain=prompt.domain,
                sampling=prompt.sampling,
                prompt=prompt.tokens,
                tokens=tuple(tokens),
                likely_ids=np.zeros((len(tokens), 0), np.int32),
                likely_logs=np.zeros((len(tokens), 0), np.float16),
            )
