"""A drafter that learns: keeps streams, trains on them in idle time in a child process, and serves the best."""

import asyncio
import logging
import math
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from cosine_engine.base import Engine
from cosine_node.drafter.service import DrafterService
from cosine_node.passes.runner import in_ending_thread
from cosine_p2p.directory.learned_name import DIGEST_CHARACTERS, LearnedName
from cosine_protocol.errors import UsageError
from cosine_protocol.records import MAX_EXPERTISE
from cosine_terminal.events import Emit
from cosine_train.learning.child import (
    ChildFailed,
    Comparison,
    ComparisonOrder,
    LearningChild,
    RoundOrder,
    RoundOutcome,
)
from cosine_train.learning.decision import (
    LIVE_TOKENS,
    Acceptance,
    LearningState,
    goes_back,
    goes_live,
    is_due,
    is_suspect,
    keeps_expertise,
    pause_s,
    refreshed_expertise,
)
from cosine_train.learning.domain_texts import NEAR
from cosine_train.learning.home import LearnerHome
from cosine_train.learning.learner_report import Activity, LearnerNow, hold
from cosine_train.learning.replaceable import ReplaceableEngine
from cosine_train.learning.served_weights import serving_folder
from cosine_train.learning.stream_store import KeptStreams, StreamStore
from cosine_train.learning.streams import StreamRecords, VerifiedStream
from cosine_train.learning.versions import SHIPPED, DamagedVersion, LiveVersion, Versions

if TYPE_CHECKING:
    from cosine_node.metrics.node import Series

QUIET_S: Final = 2.0
"""Delay after the last request before the child continues, since requests often follow each other."""
LOOK_EVERY_S: Final = 0.2
"""Interval of checks: the delay of the child, and the shortest moment without requests that is noticed."""
PATIENCE_S: Final = 60.0
"""Maximum wait of new weights for a moment without requests; then running requests are released."""
TELL_EVERY_S: Final = 1.0
"""Interval of writing the activity and the counts for other programs and the next run."""
MAX_WAITING: Final = 64
"""Bounds memory: streams that wait to be written; further ones are lost."""

LOG = logging.getLogger(__name__)
_Read = TypeVar("_Read")


class Learner:
    """The learning of one drafter. Create it in a thread: it loads the version that serves.

    `engine` is the one for the drafter to serve with. `load` loads weights from a folder, in a thread.
    """

    def __init__(
        self,
        home: LearnerHome,
        shipped: Engine,
        load: Callable[[Path], Engine],
        *,
        target_digest: bytes | None = None,
    ) -> None:
        self.records = StreamRecords(self.keep, target_digest=target_digest)
        self.engine = ReplaceableEngine(shipped, on_open=self._make_room)
        self.state = LearningState.read(home.folder)
        self.kept = KeptStreams()
        self._home = home
        self._load = load
        self._versions = Versions(home.folder)
        self._store = StreamStore(home.folder, max_bytes=home.max_bytes)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="streams")
        self._waiting = 0
        self._child = LearningChild(home.folder)
        self._service: DrafterService | None = None
        self._on_switch: Callable[[], None] | None = None
        self._live_from = self._since_earlier = Acceptance()
        self._new_tokens = 0
        self._doing = Activity.WAITING
        self._hold = hold(home.folder)
        self._looked_tokens = 0
        self._has_news = True
        self._busy_at_s = 0.0
        self.live = LiveVersion(SHIPPED)
        # The version that the last run left serves, if it is intact and can be loaded.
        word, version = self._versions.live()
        # No decision was made about a version above the live one when the last run ended.
        for number in self._versions.all():
            if number > word.number:
                self._versions.drop(number)
        if version is not None:
            try:
                self.engine.replace(self._load(serving_folder(version.folder)))
                self.live = word
            except UsageError as error:
                LOG.warning("what was learned cannot be loaded (%s); the model as shipped serves", error)
        if (told := LearnerNow.read(home.folder)).version == self.live.number:
            self._since_earlier = told.live_since

    @property
    def model_name(self) -> str:
        """The name in a record of the weights that serve."""
        if self.live.number == SHIPPED:
            return self._home.model_name
        return str(LearnedName(self._home.model_name, self.live.number, self.live.digest[:DIGEST_CHARACTERS]))

    @property
    def expertise(self) -> tuple[str, ...]:
        """The domains to announce: those that the volunteer named, and the learned ones."""
        return tuple(dict.fromkeys((*self._home.expertise, *self.live.expertise)))[:MAX_EXPERTISE]

    @property
    def live_since(self) -> Acceptance:
        """Live acceptance of the weights that serve, including earlier runs."""
        return self._since_earlier + (self._live_acceptance() - self._live_from)

    @property
    def now(self) -> LearnerNow:
        """The current activity, for other programs of its user."""
        is_stopped = self._doing in (Activity.LEARNING, Activity.COMPARING) and self._child.is_paused
        return LearnerNow(
            activity=Activity.STOPPED if is_stopped else self._doing,
            version=self.live.number,
            live_since=self.live_since,
            new_tokens=self._new_tokens,
        )

    def metrics(self) -> "Sequence[Series[Learner]]":
        """Return the metrics of learners; requires the extra `gateway`."""
        from cosine_train.learning.metrics import LEARNER

        return LEARNER

    def attach(self, service: DrafterService, on_switch: Callable[[], None]) -> None:
        """Learn for this service, which serves with `engine`; `on_switch` is called when other weights serve."""
        self._service, self._on_switch = service, on_switch

    def keep(self, stream: VerifiedStream) -> None:
        """Write a stream that the target has verified, in the background."""
        if self._waiting < MAX_WAITING:
            self._waiting += 1

            def write() -> KeptStreams:
                self._store.add(stream)
                return self._store.kept()

            asyncio.get_running_loop().run_in_executor(self._writer, write).add_done_callback(self._written)

    def _written(self, writing: "asyncio.Future[KeptStreams]") -> None:
        self._waiting -= 1
        if writing.cancelled():
            return
        if (error := writing.exception()) is not None:
            LOG.warning("a stream could not be kept: %s", error)
            return
        self.kept, self._has_news = writing.result(), True

    def _make_room(self) -> None:
        """Pause the child because a request has come."""
        self._child.pause()
        self._busy_at_s = time.monotonic()

    async def run(self, emit: Emit) -> None:
        """Learn until cancelled. No failure here ends the drafter."""
        try:
            async with asyncio.TaskGroup() as group:
                for work in (self._pace(), self._tell(), self._learn_in_turns(emit)):
                    group.create_task(work)
        except Exception:  # The task's boundary: drafting continues without learning.
            LOG.exception("learning has ended")
            await asyncio.Event().wait()

    async def _learn_in_turns(self, emit: Emit) -> None:
        """Check repeatedly, with a longer pause after each consecutive failure."""
        failures = 0
        self.kept = await self._in_writer(self._store.kept)
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self._look(emit)
                failures, self._doing = 0, Activity.WAITING
            except (ChildFailed, UsageError, DamagedVersion, OSError, sqlite3.Error) as error:
                failures, self._doing = failures + 1, Activity.FAILED
                LOG.warning("nothing is learned: %s; trying again in %g s", error, pause_s(failures))
                await asyncio.sleep(pause_s(failures))

    def close(self) -> None:
        """Write the waiting streams and close the store."""
        self._writer.shutdown()
        self._store.close()
        if self._service is not None:
            self.now.write(self._home.folder)
        self._hold.close()

    async def _pace(self) -> None:
        """Resume the child after a while without requests; `_make_room` pauses it."""
        assert self._service is not None
        while True:
            if self.engine.open_sequences:
                self._make_room()
            elif time.monotonic() - self._busy_at_s > QUIET_S:
                self._child.resume()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _tell(self) -> None:
        """Write the current activity, for other programs and for the next run."""
        told: LearnerNow | None = None
        while True:
            if (now := self.now) != told:
                told = now
                await self._in_writer(partial(now.write, self._home.folder))
            await asyncio.sleep(TELL_EVERY_S)

    async def _look(self, emit: Emit) -> None:
        """Compare a suspect version, and learn if there is enough new text."""
        if self.live.number != SHIPPED and not self._versions.path(self.live.number).is_dir():
            # `cosine-node learned forget --versions` was called.
            self.state.earlier = SHIPPED
            self.state.live_before = self.state.expected = Acceptance()
            await self._serve(LiveVersion(SHIPPED))
        since = self.live_since
        if self.state.earlier != self.live.number and since.tokens >= self._looked_tokens + LIVE_TOKENS:
            self._looked_tokens = since.tokens
            if is_suspect(before=self.state.expected, since=since):
                await self._compare(since, emit)
        if not self._has_news:
            return
        self._has_news = False
        if self.kept.newest < self.state.seen:
            # The store was damaged and created again, with numbers from 1.
            self.state.seen = self.state.switched_at = 0
        self._new_tokens = await self._in_writer(lambda: self._store.tokens_after(self.state.seen))
        if is_due(new_tokens=self._new_tokens, held_out_tokens=self.kept.held_out_tokens):
            # After a failure it is tried again.
            self._has_news = True
            await self._learn(emit)

    async def _learn(self, emit: Emit) -> None:
        """Perform one round: the child writes a version, which goes live if it is better."""
        self._doing = Activity.LEARNING
        state, newest = self.state, self.kept.newest
        state.begun = 1 + max(state.begun, self.live.number, *self._versions.all(), 0)
        state.write(self._home.folder)
        order = RoundOrder(
            folder=str(self._home.folder),
            number=state.begun,
            base=str(self._folder_of(self.live.number)),
            shipped=str(self._home.shipped),
            kind=self._home.kind,
            target=str(self._home.target),
        )
        outcome = await self._child.ask(order)
        assert isinstance(outcome, RoundOutcome)
        state.rounds, state.seen = state.rounds + 1, newest
        state.write(self._home.folder)
        is_better = goes_live(before=outcome.before, after=outcome.after)
        is_own = keeps_expertise(self.expertise, before=outcome.nll_before, after=outcome.nll, factor=NEAR)
        is_live = is_better and is_own
        verdict = "it will serve" if is_live else "it has forgotten" if is_better else "that may be chance"
        if not is_live:
            await asyncio.to_thread(self._versions.drop, order.number)
        before, after = outcome.before, outcome.after
        fields: dict[str, object] = {
            "model": self.model_name,
            "trained_tokens": outcome.trained_tokens,
            "steps": outcome.steps,
            "seconds": round(outcome.seconds, 1),
            "held_out_tokens": after.tokens,
            "acceptance_before": round(before.share, 4),
            "acceptance_after": round(after.share, 4),
            "nll_before": {domain: round(nll, 3) for domain, nll in outcome.nll_before.items()},
            "nll_after": {domain: round(nll, 3) for domain, nll in outcome.nll.items()},
            "said": (
                f"has learned from {outcome.trained_tokens} tokens in {outcome.seconds:.0f} s: right at "
                f"{100 * after.share:.1f} % of {after.tokens} held-out tokens, before at "
                f"{100 * before.share:.1f} %; {verdict}"
            ),
            "goes_live": is_live,
        }
        emit("learned", fields)
        if not is_live:
            return
        found = await asyncio.to_thread(self._versions.find, order.number)
        near = refreshed_expertise(self._home.expertise, outcome.nll, factor=NEAR)
        added = tuple(domain for domain in near if domain not in self._home.expertise)
        word = LiveVersion(found.number, found.digest, added)
        state.earlier, state.earlier_expertise = self.live.number, self.live.expertise
        state.switched_at = newest
        state.before, state.after = before, after
        state.live_before = state.expected = self.live_since
        await self._serve(word)
        emit("switched", self._switch_fields())

    async def _compare(self, since: Acceptance, emit: Emit) -> None:
        """Compare the live version with the earlier one along the same streams, and drop the worse."""
        self._doing = Activity.COMPARING
        state = self.state
        # The texts with the lower acceptance have just ended, and wait to be kept.
        self.records.keep_left()
        await self._in_writer(lambda: None)
        order = ComparisonOrder(
            folder=str(self._home.folder),
            earlier=str(self._folder_of(state.earlier)),
            live=str(self._folder_of(self.live.number)),
            target=str(self._home.target),
            after=state.switched_at,
        )
        answer = await self._child.ask(order)
        assert isinstance(answer, Comparison)
        if not goes_back(earlier=answer.earlier, live=answer.live):
            # The texts are harder, not the drafter worse.
            state.expected = since
            state.write(self._home.folder)
            return
        worse, state.rollbacks = self.live.number, state.rollbacks + 1
        word = LiveVersion(SHIPPED)
        if state.earlier != SHIPPED:
            found = await asyncio.to_thread(self._versions.find, state.earlier)
            word = LiveVersion(found.number, found.digest, state.earlier_expertise)
        state.live_before = state.expected = state.before = state.after = Acceptance()
        await self._serve(word)
        # It never serves again.
        await asyncio.to_thread(self._versions.drop, worse)
        live, earlier = answer.live, answer.earlier
        fields = {
            "from_version": worse,
            "compared_tokens": live.tokens,
            "acceptance_earlier": round(earlier.share, 4),
            "acceptance_live": round(live.share, 4),
            "said": (
                f"version {worse} was right at {100 * live.share:.1f} % of {live.tokens} tokens that came since, "
                f"where this would have been at {100 * earlier.share:.1f} %"
                if live.tokens
                else f"version {worse} was right less often than expected, and no text was kept to compare them on"
            ),
        }
        emit("rolled_back", self._switch_fields() | fields)

    async def _serve(self, word: LiveVersion) -> None:
        """Serve with a version from the next request on, and after a restart.

        Raises `UsageError` if its weights cannot be loaded; then nothing has changed.
        """
        service = self._service
        assert service is not None
        self._doing = Activity.SWITCHING
        await self._unused(until_s=time.monotonic() + PATIENCE_S)
        # No drafts wait while weights are loaded: clients retry a moment later.
        service.set_aside(True)
        try:
            engine = await in_ending_thread(self._load, serving_folder(self._folder_of(word.number)))
            self.state.write(self._home.folder)
            # A disk may be slow, and heartbeats must continue.
            await asyncio.to_thread(self._versions.switch, word)
            await self._unused()
            self.engine.replace(engine)
        finally:
            service.set_aside(False)
        service.capacity_tokens = engine.free_tokens
        self.live, self._live_from, self._looked_tokens = word, self._live_acceptance(), 0
        self._since_earlier = Acceptance()
        if self._on_switch is not None:
            self._on_switch()
        await asyncio.to_thread(self._versions.keep_newest, live=word.number)

    async def _unused(self, *, until_s: float = math.inf) -> None:
        """Wait for a moment in which the engine is not in use, or until then."""
        # The engine has no event to wait for.
        while self.engine.open_sequences and time.monotonic() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S / 10)

    def _folder_of(self, number: int) -> Path:
        return self._home.shipped if number == SHIPPED else self._versions.path(number)

    def _live_acceptance(self) -> Acceptance:
        """Return the acceptance of all requests since the start."""
        assert self._service is not None
        return Acceptance(self._service.counts.right_first_choices, self._service.counts.first_choices)

    async def _in_writer(self, read: Callable[[], _Read]) -> _Read:
        return await asyncio.get_running_loop().run_in_executor(self._writer, read)

    def _switch_fields(self) -> dict[str, object]:
        fields = {"model": self.model_name, "version": self.live.number, "digest": self.live.digest}
        return fields | {"expertise": list(self.expertise)}
