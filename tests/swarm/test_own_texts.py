"""Tests of drafts from the user's own texts: the text stays the target's, and takes fewer passes."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_p2p.own_texts import folders
from cosine_p2p.request.results import Generation
from tests.swarm.reference import generated, heard, in_a_swarm
from tests.thoroughness import quick_first

LETTERS = LetterCodec()
PROMPT = LETTERS.decode([3, 9, 4, 7])
TOKENS = 120


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(folders, "REST", 0.0)


def written(folder: Path, *texts: Sequence[int]) -> str:
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        (folder / str(number)).write_text(LETTERS.decode(text))
    return str(folder)


def drafted(draft_from: Sequence[str] = (), *, fidelities: tuple[float, ...] = (), **options: Any) -> Generation:
    return generated(
        PROMPT,
        target=ScriptedEngine,
        drafters=[ScriptedEngine(fidelity=each) for each in fidelities],
        client={"draft_from": draft_from},
        **{"max_new_tokens": TOKENS} | options,
    )


undrafted = cache(drafted)


@pytest.mark.parametrize("coordination", quick_first(["client", "verifier"]))
@pytest.mark.parametrize("one_way_s", quick_first([0.005, 0.15]))
def test_a_known_text_takes_a_fraction_of_the_passes(tmp_path: Path, one_way_s: float, coordination: str) -> None:
    options: dict[str, Any] = {"one_way_s": one_way_s, "coordination": coordination}
    without = undrafted(**options)
    folder = written(tmp_path / "texts", (*without.token_ids, 1, 2, 3), without.token_ids[::-1])
    done = drafted([folder], **options)
    assert done.token_ids == without.token_ids
    assert done.swarm.rounds < without.swarm.rounds / 3
    assert sum(origin.tokens for origin in done.swarm.origins if origin.name == "copied") > TOKENS / 2
    assert drafted([folder], strategy="plain").swarm.rounds == TOKENS


def test_another_verifier_that_continues_gets_the_drafts_too(tmp_path: Path) -> None:
    without = undrafted(is_lost=True)
    done = drafted([written(tmp_path / "texts", without.token_ids)], is_lost=True)
    assert done.token_ids == without.token_ids and len(done.swarm.verifiers) == 2
    assert done.swarm.rounds < without.swarm.rounds / 3


@in_a_swarm
async def test_a_kept_reply_is_drafted_from_and_a_forgotten_one_is_gone(swarm: SimulatedSwarm) -> None:
    await swarm.verifier(ScriptedEngine())
    client = await swarm.client(past_replies="keep")
    first, second = [
        (await heard(await client.start(PROMPT, max_new_tokens=TOKENS, seed=7))).result() for _ in range(2)
    ]
    assert first.token_ids == second.token_ids
    assert second.swarm.rounds < first.swarm.rounds / 3
    other = await swarm.client(past_replies="forget")
    await other.generate(PROMPT, max_new_tokens=1, seed=7)
    assert not folders.own_folder().exists()
