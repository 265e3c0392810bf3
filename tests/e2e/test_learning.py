"""A drafter that learns, as a process beside a verifier: it gets better, and comes back after a kill as it was."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from cosine_node import zoo
from cosine_p2p import Client
from tests.e2e.nodes import Node, close_all, run
from tests.e2e.reference import encoded, greedy

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(900)]

NEW_TOKENS: Final = 64
DOMAINS: Final = ("dialogue", "medical", "math")
MODEL: Final = "zoo:draft-code"
PATIENCE_S: Final = 240.0


def texts() -> list[str]:
    """Prompts that the drafter, an expert for code, knows little of, and their beginnings."""
    prompts = [one.messages[-1].content for domain in DOMAINS for one in zoo.prompts(domain) if one.messages]
    return [prompt[: len(prompt) * part // 2] for part in (2, 1) for prompt in prompts]


class Learning:
    """A verifier, and a drafter that learns beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        join = ("join", "--threads", "1", "--dtype", "float32")
        self.verifier = Node.start("verifier", (*join, "--role", "verifier", "--model", "zoo:target"), folder)
        self.verifier.wait_ready()
        self.drafter = self.start_drafter("drafter")

    def start_drafter(self, name: str, *options: str) -> Node:
        place = ("--initial-peers", self.verifier.maddr, "--identity", str(self.folder / "key"))
        join = ("join", "--role", "drafter", "--model", MODEL, "--threads", "1", "--dtype", "float32", *place)
        return Node.start(
            name, (*join, "--learn", *options), self.folder, XDG_STATE_HOME=str(self.state)
        ).wait_ready()

    def learned(self, *arguments: str) -> dict[str, Any]:
        """What `cosine-node learned` says of the drafter."""
        done = run("learned", *arguments, "--json", environment={"XDG_STATE_HOME": str(self.state)})
        (drafter,) = json.loads(done.stdout)["drafters"]
        return dict(drafter)

    def event(self, node: Node, name: str) -> dict[str, Any]:
        """The first event of that name; waits for it."""
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            for line in node.log.read_text().splitlines():
                if line.startswith("{") and (found := json.loads(line)).get("event") == name:
                    return dict(found)
            assert node.process.poll() is None, node.log.read_text()
            time.sleep(0.5)
        raise AssertionError(f"no {name} in time: {node.log.read_text()} {self.learned()}")

    def ask(self, texts: list[str], *, share_feedback: bool | None) -> int:
        """Ask for texts, which are the target's; the drafted tokens that were accepted."""
        trust = (self.verifier.peer_id, self.drafter.peer_id)
        accepted = 0
        with Client([self.verifier.maddr], dtype="float32", trust=trust, share_feedback=share_feedback) as client:
            for text in texts:
                done = client.generate(text, max_new_tokens=NEW_TOKENS, strategy="speculative")
                assert done.token_ids == greedy(encoded(text), NEW_TOKENS), text
                accepted += sum(one.accepted for one in done.drafters)
        return accepted


@pytest.fixture
def learning(tmp_path: Path) -> Iterator[Learning]:
    made = Learning(tmp_path)
    nodes = [made.verifier, made.drafter]
    try:
        yield made
    finally:
        close_all([*nodes, made.drafter])


def test_it_learns_switches_and_serves_the_same_after_a_kill(learning: Learning) -> None:
    asked = texts()
    learning.ask(asked[:2], share_feedback=None)
    assert learning.ask(asked, share_feedback=True) > 0
    learned = learning.event(learning.drafter, "learned")
    assert learned["goes_live"], learned
    switched = learning.event(learning.drafter, "switched")
    assert switched["model"].startswith(f"{MODEL}+learned-1-")
    learning.ask(asked[:4], share_feedback=None)
    learning.drafter.kill()
    again = learning.drafter = learning.start_drafter("again")
    assert again.ready["model"] == switched["model"]
    learning.ask(asked[:4], share_feedback=None)
    facts = learning.learned()
    assert (facts["live"], facts["versions"]) == (1, [1])
    assert facts["acceptance_after"] > facts["acceptance_before"]
