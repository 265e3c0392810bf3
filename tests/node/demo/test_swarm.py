"""The processes of a demo: progress, and logs of failed ones."""

import asyncio
import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from cosine_node.demo.swarm import LOG_LINES, START_SILENCE_S, NodeDied, NodeProcess, blaming_the_dead
from cosine_protocol.errors import CosineError, GenerationFailed
from tests.scenes import in_virtual_time


def node_with(log: Path) -> NodeProcess:
    return NodeProcess("verifier", Mock(), log)


def line(event: str, **fields: object) -> str:
    return json.dumps({"event": event, **fields}) + "\n"


def test_the_last_words_of_a_node_are_the_end_of_its_log_for_people(tmp_path: Path) -> None:
    log = tmp_path / "verifier.log"
    log.write_text(line("loading", model="m") + "noise\n" * 50)
    error = {"level": "error", "logger": "cosine_node.x", "message": "a pass failed"}
    with log.open("a") as file:
        file.write(line("log", **error, traceback="Traceback:\nValueError: odd") + "Error: It is no use.\n")
    words = node_with(log).last_words().splitlines()
    assert [word.strip() for word in words[-4:]] == [
        "error cosine_node.x: a pass failed", "Traceback:", "ValueError: odd", "Error: It is no use.",
    ]  # fmt: skip
    assert len(words) == LOG_LINES
    log.write_text("")
    assert "said nothing while starting" in node_with(log).last_words()


def test_a_client_that_fails_where_a_node_has_ended_shows_what_that_node_said(tmp_path: Path) -> None:
    log = tmp_path / "verifier.log"
    log.write_text("Killed by the kernel.\n")
    node, failure = node_with(log), GenerationFailed("No verifier could finish the request.")
    for code, said in ((None, []), (-9, ["verifier ended with code -9:", "    Killed by the kernel."])):
        node.process.returncode = code  # type: ignore[misc]  # of the mock
        # Where all ways race at once, their requests fail together.
        for raised in (failure, ExceptionGroup("lanes", [failure, failure])):
            with pytest.raises(CosineError) as error, blaming_the_dead([node]):
                raise raised
            assert str(error.value).splitlines() == [str(failure), *said]


@in_virtual_time
async def test_a_node_that_goes_on_is_waited_for_and_one_that_does_not_is_given_up(tmp_path: Path) -> None:
    log = tmp_path / "verifier.log"
    log.touch()
    node, told = node_with(log), asyncio.StreamReader()
    node.process.stdout = told
    waiting = asyncio.ensure_future(node.wait_ready())
    for stage in ("importing", "loading", "testing"):
        await asyncio.sleep(0.8 * START_SILENCE_S)
        with log.open("a") as file:
            file.write(line(stage, model="m"))
    await asyncio.sleep(0.8 * START_SILENCE_S)
    assert not waiting.done()
    told.feed_data(line("ready").encode())
    await waiting
    silent = asyncio.ensure_future(node.wait_ready(nodes=2))
    await asyncio.sleep(1.2 * START_SILENCE_S)
    with pytest.raises(NodeDied, match="reported no progress for 150 s"):
        await silent


def test_a_node_that_cannot_start_is_told_with_what_it_said(tmp_path: Path) -> None:
    async def started() -> None:
        node = await NodeProcess.start("drafters", ("join", "--role", "juggler"), tmp_path)
        try:
            await node.wait_ready()
        finally:
            await node.stop()

    with pytest.raises(NodeDied) as died:
        asyncio.run(started())
    first, *rest = str(died.value).splitlines()
    assert first == "drafters ended before it was ready."
    assert any("juggler" in told for told in rest)
