"""Running requests: each in a separate task that updates the monitor's state."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from cosine_p2p.client import AsyncClient
from cosine_p2p.request.options import Prompt
from cosine_p2p.session.run import Run
from cosine_p2p.transport.patience import end_all
from cosine_protocol.errors import CosineError
from cosine_tui.state.feed import FRAMES_PER_S
from cosine_tui.state.monitor_state import MonitorState
from cosine_tui.state.snapshot import RequestDescription, RequestState, Snapshot
from cosine_tui.state.tracked_request import TrackedRequest

logger = logging.getLogger(__name__)


class RunningRequests:
    """The unfinished requests of a source. Create it inside the event loop; its time begins then."""

    def __init__(self, state: MonitorState) -> None:
        self._state = state
        self._began_s = asyncio.get_running_loop().time()
        self._runs: dict[int, tuple[TrackedRequest, Run]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def now_s(self) -> float:
        """Seconds since the monitor began."""
        return asyncio.get_running_loop().time() - self._began_s

    @property
    def is_idle(self) -> bool:
        return not self._tasks

    def begin(
        self, client: AsyncClient, prompt: Prompt, asked: RequestDescription, **options: Any
    ) -> asyncio.Task[None]:
        """Start a request; the task raises only its cancellation."""
        request = self._state.add_request(asked, self.now_s())
        task = asyncio.ensure_future(self._perform(request, client, prompt, options))
        self._tasks[request.number] = task
        task.add_done_callback(lambda _: self._tasks.pop(request.number, None))
        return task

    def refuse(self, asked: RequestDescription, error: str) -> None:
        request = self._state.add_request(asked, self.now_s())
        self._state.end_request(request, RequestState.FAILED, self.now_s(), error=error)

    def cancel(self, number: int) -> None:
        if task := self._tasks.get(number):
            task.cancel()

    async def close(self) -> None:
        await end_all(self._tasks.values())

    async def publish(self, publish: Callable[[Snapshot], None]) -> None:
        """Publish a snapshot `FRAMES_PER_S` times a second until cancelled."""
        while True:
            publish(self.snapshot())
            await asyncio.sleep(1 / FRAMES_PER_S)

    def snapshot(self) -> Snapshot:
        for request, run in self._runs.values():
            self._state.note_progress(request, run.progress(), self.now_s())
        return self._state.snapshot(self.now_s())

    async def _perform(
        self, request: TrackedRequest, client: AsyncClient, prompt: Prompt, options: dict[str, Any]
    ) -> None:
        state, error, account = RequestState.CANCELLED, "", None
        try:
            run = await client.start(prompt, **options)
            request.seed = run.request.sampling.seed
            request.note_generation_config(run.generation_config, self.now_s())
            self._runs[request.number] = (request, run)
            try:
                async with aclosing(run.chunks()) as chunks:
                    async for chunk in chunks:
                        request.note_chunk(chunk, rounds=run.progress().rounds, now_s=self.now_s())
            finally:
                del self._runs[request.number]
                self._state.note_progress(request, run.progress(), self.now_s())
                account = run.result()
            state = RequestState.FINISHED
        except CosineError as failed:
            state, error = RequestState.FAILED, str(failed)
        except Exception as bug:
            logger.exception("request %d", request.number)
            state, error = RequestState.FAILED, f"an unexpected error ended it ({bug!r})"
        finally:
            self._state.end_request(request, state, self.now_s(), error=error, account=account)
