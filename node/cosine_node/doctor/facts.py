"""Facts about this machine, its models and its network, each gathered once for all the checks that need it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from cosine_node import zoo
from cosine_node.doctor.addresses import Dialled, DialOutcome, dial
from cosine_node.doctor.machine import EXTRAS, MachineFacts
from cosine_node.doctor.model_files import ModelFiles, read_model
from cosine_node.doctor.processes import ask_child, in_thread
from cosine_node.doctor.swarm import Neighbourhood
from cosine_node.engine.pool_size import free_memory_bytes
from cosine_node.models.engine_kind import EngineChoice, EngineKind
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role

NGRAM: Final = "ngram"
"""The model of `join` that has no files: it is counted from the text."""

DIAL_S: Final = 3.0
"""A choice: a node far away connects within a second, and each of the few steps of a dial gets this long."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """The options that `join` would get.

    `role` is None for a client. In a private swarm `network` is its id. `unknown` are the names in the
    configuration file that no command has.
    """

    initial_peers: tuple[str, ...]
    relays: tuple[str, ...]
    host_maddrs: tuple[str, ...]
    announce_maddrs: tuple[str, ...]
    network: str
    target: str
    role: Role | None
    models: tuple[str, ...]
    identity: Path | None
    engine: EngineChoice
    config: Path
    is_config_named: bool
    unknown: tuple[str, ...]
    swarm_file: Path | None = None

    @property
    def extra(self) -> str:
        """The extra whose packages load the models: `llama` where llama.cpp runs all of them, else `node`."""
        kinds = {_kind_of(model, self.engine) for model in self.loaded_models}
        return "llama" if kinds == {EngineKind.LLAMA} else "node"

    @property
    def loaded_models(self) -> tuple[str, ...]:
        """The models that would be loaded, without the one that has no weights."""
        return tuple(model for model in self.models if model != NGRAM)


def _kind_of(model: str, engine: EngineChoice) -> EngineKind:
    """The library that would run a model; PyTorch for a name that means nothing, which other checks tell."""
    try:
        return engine.kind_for(zoo.resolve(model))
    except UsageError:
        return EngineKind.TORCH


class Facts:
    """Facts that several checks ask for; each is gathered once, when first asked for. End them with `close`."""

    def __init__(self, options: DoctorOptions) -> None:
        self._options = options
        self._tasks: dict[str, asyncio.Task[Any]] = {}

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def dialled(self, maddr: str) -> Awaitable[Dialled]:
        return self._once(f"dial {maddr}", lambda: in_thread(partial(dial, maddr, timeout_s=DIAL_S)))

    async def initial_peers(self) -> list[Dialled]:
        return list(await asyncio.gather(*map(self.dialled, self._options.initial_peers)))

    def model(self, source: str) -> Awaitable[ModelFiles]:
        return self._once(f"model {source}", lambda: in_thread(partial(read_model, source)))

    async def models(self) -> list[ModelFiles]:
        return list(await asyncio.gather(*map(self.model, self._options.loaded_models)))

    def machine(self) -> Awaitable[MachineFacts]:
        """Raises `ProbeFailed`."""

        async def probe() -> MachineFacts:
            folders = [str(model.folder) for model in await self.models() if model.folder and model.config]
            engine = self._options.engine
            question: dict[str, Any] = {"folders": folders, "dtype": engine.dtype, "device": engine.device}
            question["packages"] = EXTRAS[self._options.extra]
            answer = await ask_child("cosine_node.doctor.probe_machine", question)
            return MachineFacts.of_answer(answer, free_bytes=free_memory_bytes() or 0)

        return self._once("machine", probe)

    def neighbourhood(self) -> Awaitable[Neighbourhood | None]:
        """None if there is nobody to ask. Raises `ProbeFailed`."""

        async def probe() -> Neighbourhood | None:
            # Those who proved to be the peer that was meant, and those who can only be reached by joining.
            reached = [
                each
                for each in await self.initial_peers()
                if (each.answer is DialOutcome.NODE and f"/p2p/{each.peer_id}" in each.address)
                or each.answer is DialOutcome.UNTESTED
            ]
            if not reached:
                return None
            question = {
                "initial_peers": [each.address for each in reached],
                "peer_ids": [each.peer_id for each in reached if each.peer_id],
                "network": self._options.network,
                "swarm_file": None if self._options.swarm_file is None else str(self._options.swarm_file),
                "identity_file": None if self._options.identity is None else str(self._options.identity),
                "target": self._options.target,
            }
            answer = await ask_child("cosine_node.doctor.probe_swarm", question)
            born_s = [each.born_s for each in reached if each.born_s is not None]
            return Neighbourhood.of_answer(answer, born_s=born_s)

        return self._once("swarm", probe)

    def _once(self, name: str, gather: Callable[[], Awaitable[_T]]) -> Awaitable[_T]:
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = asyncio.ensure_future(gather())
        # The deadline of one check must not end what others still wait for.
        return cast("Awaitable[_T]", asyncio.shield(task))
