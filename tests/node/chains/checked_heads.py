"""A head that checks the stages it writes over, of which some may lie."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from cosine_engine.base import Row
from cosine_engine.torch.pass_way import PassWay
from cosine_lab.emulation.memory_directory import MemoryDirectory
from cosine_node.chains.checks import ChainChecks
from cosine_node.chains.engine import StagedEngine
from cosine_node.chains.finder import ChainFinder
from cosine_node.chains.known_stages import ChainNeeds
from cosine_node.chains.links import StageLinks
from cosine_node.stages.host import StageModel, load_part
from cosine_protocol.records import NodeRecord, Role
from cosine_protocol.request import Sampling
from cosine_protocol.stage import LayerRange
from tests.cosine_p2p.samples import stage_offer
from tests.node.chains.liars import CandidService, Lie, lying_hosts
from tests.node.stages.chains import POOL_TOKENS, TARGET, ServedStages, served
from tests.protocol.samples import record_of

PROMPT: Final = tuple(range(3, 23))
TOKENS: Final = 12
NAMES: Final = (TARGET.hex(),)
TYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load(folder: Path, parts: Sequence[LayerRange], *, holders: int, dtype: torch.dtype) -> list[StageModel]:
    """Each part `holders` times, in the order of the parts."""
    return [
        StageModel(load_part(str(folder), part, dtype=dtype), part, slots=POOL_TOKENS, way=PassWay.PACKED)
        for _ in range(holders)
        for part in parts
    ]


def offered(peer_id: str, model: StageModel, **changes: Any) -> NodeRecord:
    """The record of a stage; `changes` are fields of the record or of its offer."""
    layers = model.layers
    offer = stage_offer(
        layers.first, layers.end, layers=layers.layers, wide_tokens=64, wide_pass_us=20_000, pool_tokens=model.slots
    )
    of_offer = {name: changes.pop(name) for name in list(changes) if hasattr(offer, name)}
    fields = {"numerics": model.numerics, "stage": replace(offer, **of_offer), **changes}
    return record_of(peer_id=peer_id, role=Role.STAGE, target_digest=TARGET, **fields)


class Head:
    """A head that checks the stages it writes over."""

    def __init__(self, stages: ServedStages) -> None:
        self.stages = stages
        self.directory = MemoryDirectory()
        rng = random.Random(0)
        slots = stages.models[0].slots
        needs = ChainNeeds(
            target_digest=TARGET,
            layers=stages.models[0].layers.layers,
            vocab_tokens=stages.models[0].vocab_tokens,
            pool_tokens=slots * 3 // 5,
            least_pool_tokens=32,
        )
        transport = stages.network.join("head")
        self.finder = ChainFinder(transport, self.directory, needs, chance=rng.random)
        self.checks = ChainChecks(self.finder, chance=rng.random, draw=rng.randbytes)
        self.disputes = self.finder.disputes
        self.engine: StagedEngine | None = None

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def links(self) -> StageLinks:
        assert self.engine is not None
        return self.engine.links

    async def announce(self, number: int, **fields: Any) -> None:
        """Announce a stage; lower numbers announce a higher speed."""
        record = offered(
            self.stages.names[number], self.stages.models[number], **{"pass_us": 1000 * (1 + number)} | fields
        )
        await self.directory.announce(record, NAMES)

    async def kill(self, number: int) -> None:
        await self.stages.network.transports[self.stages.names[number]].close()

    async def open(self) -> None:
        """Open the best chain. Raises `NoChain`."""
        links = await self.finder.open(first_sequence=self.engine.opened if self.engine is not None else 0)
        if self.engine is None:
            self.engine = StagedEngine(links, context_tokens=256)
        self.engine.go_on(links, self.checks.begin(links))

    async def write(self, prompt: Sequence[int] = PROMPT) -> list[int]:
        """Write a text token by token, over a new chain if the last was lost."""
        if self.engine is None or self.links.lost.is_set():
            await self.open()
        assert self.engine is not None
        sequence = self.engine.open(sampling=Sampling(), prompt_tokens=len(prompt), scope="all")
        known = self.engine.reuse_prefix(sequence, prompt)
        fed, text = tuple(prompt[known:]), list[int]()
        while len(text) < TOKENS:
            row = Row.chain(sequence, fed, scored_from=len(fed) - 1)
            self.engine.begin([row])
            [result] = self.engine.end([row], list(await self.links.answer()))
            self.engine.keep(sequence, row.nodes)
            text.append(result.choices[0].token)
            fed = (text[-1],)
        self.engine.release(sequence)
        return text

    async def checked(self, prompt: Sequence[int] = PROMPT) -> list[int]:
        """Write a text and finish its check."""
        text = await self.write(prompt)
        await self.checks.idle()
        return text

    @property
    def rejected(self) -> set[str]:
        return set(self.disputes.standings.rejected(self.now_s))

    @property
    def used(self) -> list[str]:
        return list(self.links.stages)


@asynccontextmanager
async def head_of(
    models: Sequence[StageModel],
    lies: dict[int, Lie] | None = None,
    *,
    holders: Sequence[int] | None = None,
) -> AsyncIterator[Head]:
    """A head among stages, of which `holders` (all by default) are announced."""
    async with served(models, host_of=lying_hosts(lies or {}), service_of=CandidService) as stages:
        head = Head(stages)
        try:
            for number in range(len(models)) if holders is None else holders:
                await head.announce(number)
            yield head
        finally:
            await head.checks.close()
            await head.finder.close()
