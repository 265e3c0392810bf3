"""A real network: joins it, surveys it every few seconds, generates in it, and joins again after a loss."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final

from cosine_p2p.client import AsyncClient, Swarm
from cosine_p2p.client_memory import ClientMemory
from cosine_p2p.request.options import Prompt
from cosine_p2p.survey import Surveyor
from cosine_p2p.trust.denied_peers import BanFile
from cosine_protocol.errors import GenerationFailed, PeerLost, RemoteProtocolError
from cosine_protocol.records import ALL_TARGETS
from cosine_tui.sources.running_requests import RunningRequests
from cosine_tui.state.monitor_state import MonitorState, why_lost
from cosine_tui.state.prompt_line import Options
from cosine_tui.state.snapshot import ConnectionState, RequestDescription, Snapshot

SURVEY_EVERY_S: Final = 3.0
LONGEST_PAUSE_S: Final = 30.0  # Before joining again; the pause doubles after each failure.
LOST_SURVEYS: Final = 2  # Consecutive surveys without nodes before the monitor joins again.

Join = Callable[[], Awaitable[Swarm]]


class LiveSource:
    """Implements `cosine_tui.state.feed.SnapshotSource` on a network that `join` enters.

    After a loss the last snapshot stays, and joining is retried with growing pauses. `run` raises the `UsageError`
    of entering a client.
    """

    def __init__(
        self,
        join: Join,
        *,
        network: str,
        target: str | None,
        began_unix_s: float,
        bans: BanFile,
        memory: ClientMemory,
    ) -> None:
        self._join = join
        self._bans = bans
        self._memory = memory
        self._target = target
        self._state = MonitorState(
            title=f"network {network}", target=target or ALL_TARGETS, began_unix_s=began_unix_s
        )
        self._requests: RunningRequests | None = None
        self._client: AsyncClient | None = None

    async def run(self, publish: Callable[[Snapshot], None]) -> None:
        self._requests = RunningRequests(self._state)
        tasks = [
            asyncio.ensure_future(self._requests.publish(publish)),
            asyncio.ensure_future(self._stay(self._requests)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, self._requests.close(), return_exceptions=True)

    def ask(self, prompt: str, options: Options) -> None:
        if self._requests is None:
            return
        asked = RequestDescription(prompt=prompt, strategy=options.strategy)
        if self._client is None:
            self._requests.refuse(asked, "the swarm does not answer; the monitor retries to join it")
            return
        messages: Prompt = [{"role": "user", "content": prompt}] if options.is_chat else prompt
        self._requests.begin(
            self._client,
            messages,
            asked,
            **options.asked(),
            generation_config=options.generation_config,
            seed=options.seed,
            strategy=options.strategy,
        )

    def cancel(self, number: int) -> None:
        if self._requests is not None:
            self._requests.cancel(number)

    async def _stay(self, requests: RunningRequests) -> None:
        pause_s = 1.0
        while True:
            async with AsyncExitStack() as stack:
                client = AsyncClient(join=self._join, target=self._target, memory=self._memory)
                try:
                    await stack.enter_async_context(client)
                except (PeerLost, RemoteProtocolError, GenerationFailed, OSError) as error:
                    self._state.mark_lost(str(error), requests.now_s(), retry_at_s=requests.now_s() + pause_s)
                    await asyncio.sleep(pause_s)
                    pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
                    continue
                if await self._stay_joined(client, requests):
                    pause_s = 1.0

    async def _stay_joined(self, client: AsyncClient, requests: RunningRequests) -> bool:
        """Survey until the swarm is lost and no request runs; return True if it was ever found."""
        self._client = client
        surveyor = Surveyor(client.swarm, target=client.target)
        misses, was_there = 0, False
        try:
            while misses < LOST_SURVEYS or not requests.is_idle:
                survey = await surveyor.survey()
                self._state.bans = tuple(self._bans.read().values())
                reason = why_lost(survey, has_known_nodes=bool(self._state.nodes))
                if reason:
                    misses += 1
                    if misses >= LOST_SURVEYS or self._state.connection.state is not ConnectionState.LIVE:
                        self._state.mark_lost(reason, requests.now_s())
                else:
                    misses, was_there = 0, True
                    self._state.mark_live(requests.now_s())
                if survey.nodes or not reason:
                    self._state.add_survey(survey, requests.now_s())
                await asyncio.sleep(SURVEY_EVERY_S)
        finally:
            self._client = None
            await surveyor.close()
        return was_there
