"""A learning drafter: the weights that go live or back, and that no failure ends it."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cosine_engine.base import Row
from cosine_engine.curve import CostCurve
from cosine_lab.emulation.machine import InlineRunner
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.simulation.swarm import numbered_identity
from cosine_node.drafter.service import DrafterConfig, DrafterService
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from cosine_train.learning import child, decision
from cosine_train.learning import learner as module
from cosine_train.learning.decision import LIVE_TOKENS, Acceptance
from cosine_train.learning.home import LearnerHome
from cosine_train.learning.learner import MAX_WAITING, Learner
from cosine_train.learning.learner_report import Activity, LearnerNow
from cosine_train.learning.stream_store import MIN_BYTES
from cosine_train.learning.versions import SHIPPED, Versions
from tests.scenes import in_real_time
from tests.train.learning import scripted_child
from tests.train.learning.scripted_child import SCRIPT
from tests.train.learning.streams import stream
from tests.train.learning.test_streams import followed, noted
from tests.waiting import until

BETTER = {"before": 500, "after": 600}
CURVE = CostCurve(((1, 0.001), (64, 0.002)))


@pytest.fixture(autouse=True)
def _quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round needs few texts and is answered by a child that learns nothing; pauses are short."""
    monkeypatch.setattr(decision, "NEW_TOKENS", 500)
    monkeypatch.setattr(child, "COMMAND", (sys.executable, str(scripted_child.__file__)))
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(module, "TELL_EVERY_S", 0.05)
    monkeypatch.setattr(module, "QUIET_S", 0.2)


def scripted(seed: int) -> ScriptedEngine:
    return ScriptedEngine(model_seed=seed, vocab_tokens=64)


def load(folder: Path) -> ScriptedEngine:
    seed = folder / "seed"
    if not seed.exists():
        raise UsageError(f"{folder} has no weights")
    return scripted(int(seed.read_text()))


def text_of(engine: Any) -> list[int]:
    sequence = engine.open(sampling=Sampling(), prompt_tokens=3)
    (result,) = engine.forward([Row.chain(sequence, [1, 2, 3, 4, 5, 6, 7, 8])])
    engine.release(sequence)
    return [choice.token for choice in result.choices]


class Drafter:
    def __init__(self, folder: Path, **script: Any) -> None:
        self.folder = folder / "home"
        shipped = folder / "shipped"
        for place in (self.folder, shipped):
            place.mkdir(exist_ok=True)
        (shipped / "seed").write_text("0")
        self.tell(**script)
        home = LearnerHome(
            folder=self.folder,
            model_name="m",
            shipped=shipped,
            kind=None,
            target=folder,
            expertise=("code",),
            max_bytes=MIN_BYTES,
        )
        self.learner = Learner(home, load(shipped), load)
        self.service = DrafterService(
            engine=self.learner.engine,
            runner=InlineRunner(self.learner.engine, CURVE),
            curve=CURVE,
            identity=numbered_identity(1),
            config=DrafterConfig(tokenizer_digest=b"t" * 32),
            observer=self.learner.records,
        )
        self.switches: list[str] = []
        self.learner.attach(self.service, lambda: self.switches.append(self.learner.model_name))
        self.events: list[tuple[str, dict[str, object]]] = []

    def emit(self, event: str, fields: dict[str, object]) -> None:
        self.events.append((event, fields))

    def tell(self, **script: Any) -> None:
        (self.folder / SCRIPT).write_text(json.dumps(script))

    @in_real_time
    async def play(self, scene: Callable[[], Awaitable[None]]) -> None:
        """Run both as long as the scene lasts."""
        loops = [asyncio.ensure_future(work) for work in (self.service.run(), self.learner.run(self.emit))]
        try:
            await scene()
        finally:
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            self.learner.close()

    def keep(self, first: int = 0) -> None:
        for seed in range(first, first + 60):
            self.learner.keep(stream(f"client {seed % 4}", tokens=40, seed=seed, vocab=64))

    def accept(self, right: int, tokens: int) -> None:
        self.service.counts.right_first_choices += right
        self.service.counts.first_choices += tokens

    def serves(self) -> int:
        """Return the seed of the engine that serves."""
        return next(seed for seed in range(9) if text_of(self.learner.engine) == text_of(scripted(seed)))

    async def event(self, name: str) -> dict[str, object]:
        """Return the next event, which must have that name."""
        await until(lambda: bool(self.events))
        found, fields = self.events.pop(0)
        assert found == name, (found, fields)
        return fields

    async def learn(self) -> dict[str, object]:
        """Keep texts, and learn from them until the new version serves."""
        self.keep()
        await self.event("learned")
        return await self.event("switched")


def test_better_weights_serve_and_are_announced_and_serve_again_after_a_start(tmp_path: Path) -> None:
    drafter = Drafter(tmp_path, **BETTER, nll={"code": 2.0, "math": 2.1, "medical": 4.0})

    async def scene() -> None:
        drafter.accept(600, 1000)
        drafter.keep()
        learned = await drafter.event("learned")
        assert (learned["goes_live"], learned["acceptance_before"], learned["acceptance_after"]) == (True, 0.5, 0.6)
        switched = await drafter.event("switched")
        assert switched["expertise"] == ["code", "math"]
        assert drafter.switches == [switched["model"]] and drafter.switches[0].startswith("m+learned-1-")
        assert drafter.serves() == 1
        assert drafter.learner.live_since == Acceptance()
        drafter.accept(30, 40)

    drafter.play(scene)
    again = Drafter(tmp_path)
    assert (again.serves(), again.learner.model_name) == (1, drafter.switches[0])
    assert again.learner.expertise == ("code", "math")
    # The acceptance since the switch is kept over a restart.
    again.accept(3, 4)
    assert (again.learner.live_since, again.learner.state.live_before) == (
        Acceptance(33, 44),
        Acceptance(600, 1000),
    )
    again.learner.close()
    # The counts of one version do not apply to another.
    LearnerNow(version=7, live_since=Acceptance(1, 2)).write(again.folder)
    other = Drafter(tmp_path)
    assert other.learner.live_since == Acceptance()
    other.learner.close()


def test_weights_that_are_no_better_or_are_forgotten_do_not_serve(tmp_path: Path) -> None:
    drafter = Drafter(tmp_path, before=500, after=510)

    async def scene() -> None:
        drafter.keep()
        assert (await drafter.event("learned"))["goes_live"] is False
        await asyncio.sleep(0.1)
        assert (drafter.serves(), drafter.events, drafter.switches) == (0, [], [])
        # Used texts are not new any more; the next round has the next number.
        drafter.tell(**BETTER)
        drafter.keep(100)
        await drafter.event("learned")
        assert (await drafter.event("switched"))["version"] == 2
        assert Versions(drafter.folder).all() == [2]
        # A forgotten version serves no more.
        Versions(drafter.folder).forget()
        await until(lambda: drafter.switches[-1] == "m")
        assert drafter.serves() == 0

    drafter.play(scene)


def test_of_weights_that_are_right_less_often_the_worse_go(tmp_path: Path) -> None:
    drafter = Drafter(tmp_path, **BETTER)

    async def scene() -> None:
        drafter.accept(600, 1000)
        await drafter.learn()
        drafter.tell(earlier=600, live=500)
        await until(lambda: not drafter.learner._waiting)
        # A text that may still continue is used for the comparison as well.
        records, known = drafter.learner.records, drafter.learner.kept.streams
        records.leave(noted(followed(records), list(range(20))), now_s=0.0)
        drafter.accept(LIVE_TOKENS // 3, LIVE_TOKENS)
        back = await drafter.event("rolled_back")
        assert (back["version"], back["from_version"], back["model"]) == (SHIPPED, 1, "m")
        shares = (back["acceptance_earlier"], back["acceptance_live"], back["compared_tokens"])
        assert shares == (0.6, 0.5, 1000) and "right at 50.0 % of 1000 tokens" in str(back["said"])
        assert (drafter.switches[-1], drafter.serves(), drafter.learner.state.rollbacks) == ("m", 0, 1)
        assert drafter.learner.kept.streams == known + 1

    drafter.play(scene)
    assert Versions(drafter.folder).all() == []
    again = Drafter(tmp_path)
    assert again.serves() == 0
    again.learner.close()


def test_a_child_that_dies_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[int] = []

    def pause_s(failures: int) -> float:
        pauses.append(failures)
        return 0.01

    monkeypatch.setattr(module, "pause_s", pause_s)
    drafter = Drafter(tmp_path, die=True)

    async def scene() -> None:
        drafter.keep()
        await until(lambda: max(pauses, default=0) >= 3)
        drafter.tell(**BETTER)
        await drafter.event("learned")
        await drafter.event("switched")
        assert drafter.serves() == drafter.learner.live.number > 1

    drafter.play(scene)


def test_a_request_stops_the_child_and_a_quiet_while_lets_it_go_on(tmp_path: Path) -> None:
    drafter = Drafter(tmp_path, **BETTER)

    async def scene() -> None:
        sequence = drafter.learner.engine.open(sampling=Sampling(), prompt_tokens=1)
        assert drafter.learner._child.is_paused, "at once"
        drafter.keep()
        await until(lambda: LearnerNow.read(drafter.folder).activity is Activity.STOPPED)
        await asyncio.sleep(0.4)
        assert drafter.learner._child.is_paused and not drafter.events
        drafter.learner.engine.release(sequence)
        await drafter.event("learned")
        assert not drafter.learner._child.is_paused

    drafter.play(scene)


def test_weights_that_cannot_be_loaded_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "pause_s", lambda failures: 600.0)
    drafter = Drafter(tmp_path, **BETTER)

    async def scene() -> None:
        def fail(folder: Path) -> ScriptedEngine:
            raise UsageError("no memory")

        monkeypatch.setattr(drafter.learner, "_load", fail)
        drafter.keep()
        await drafter.event("learned")
        await until(lambda: LearnerNow.read(drafter.folder).activity is Activity.FAILED)
        assert (drafter.serves(), drafter.switches, drafter.learner.live.number) == (0, [], SHIPPED)

    drafter.play(scene)
    again = Drafter(tmp_path)
    assert (again.serves(), Versions(again.folder).all()) == (0, [])
    again.learner.close()


def test_a_flood_of_texts_waits_within_bounds(tmp_path: Path) -> None:
    drafter = Drafter(tmp_path, die=True)

    async def scene() -> None:
        for seed in range(10 * MAX_WAITING):
            drafter.learner.keep(stream(seed=seed))
        assert drafter.learner._waiting == MAX_WAITING
        await until(lambda: not drafter.learner._waiting)
        assert drafter.learner.kept.streams == MAX_WAITING

    drafter.play(scene)
