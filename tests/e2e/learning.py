"""A drafter that learns as a process beside a verifier, and what it says and keeps."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cosine_lab.rivals import ALL_STRATEGIES
from cosine_node import zoo
from cosine_node.learning.decision import is_due
from cosine_node.learning.stream_store import read_streams
from cosine_p2p import Client
from tests.e2e.nodes import Node, run
from tests.e2e.reference import encoded, greedy

NEW_TOKENS: Final = 64
MODEL: Final = "zoo:draft-code"
PATIENCE_S: Final = 600.0


def texts(*domains: str) -> list[str]:
    """Prompts of some domains, and their beginnings."""
    prompts = [one.messages[-1].content for domain in domains for one in zoo.prompts(domain) if one.messages]
    return [prompt[: len(prompt) * part // 2] for part in (2, 1) for prompt in prompts]


@dataclass
class Learning:
    """A verifier, and a drafter that learns beside it, with an identity and a state of its own."""

    verifier: Node
    folder: Path
    drafter: Node = field(init=False)

    def __post_init__(self) -> None:
        self.state = self.folder / "state"
        self.drafter = self.start_drafter("drafter")

    def start_drafter(self, name: str) -> Node:
        place = ("--initial-peers", self.verifier.maddr, "--identity", str(self.folder / "key"))
        join = ("join", "--role", "drafter", "--model", MODEL, "--threads", "1", "--dtype", "float32", *place)
        return Node.start(name, (*join, "--learn"), self.folder, XDG_STATE_HOME=str(self.state)).wait_ready()

    def asked(self, command: str, *arguments: str) -> Any:
        """What a command says to machines, run as the user of the drafter."""
        done = run(command, *arguments, "--json", environment={"XDG_STATE_HOME": str(self.state)})
        return json.loads(done.stdout)

    def learned(self) -> dict[str, Any]:
        """What `cosine-node learned` says of the drafter."""
        (drafter,) = self.asked("learned")["drafters"]
        return dict(drafter)

    def has_enough(self) -> bool:
        """True if it keeps enough to learn from, and to measure that by."""
        facts = self.learned()
        held_out = read_streams(Path(facts["folder"]), held_out=True)
        held_out_tokens = sum(len(stream.tokens) for stream in held_out)
        return is_due(new_tokens=facts["new_tokens"], held_out_tokens=held_out_tokens)

    def event(self, name: str) -> dict[str, Any]:
        """The drafter's first event of that name; waits for it."""
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            for line in self.drafter.log.read_text().splitlines():
                if line.startswith("{") and (found := json.loads(line)).get("event") == name:
                    return dict(found)
            assert self.drafter.process.poll() is None, self.drafter.log.read_text()
            time.sleep(0.5)
        raise AssertionError(f"no {name} in time: {self.drafter.log.read_text()} {self.learned()}")

    def client(self, *, share_feedback: bool | None, **options: Any) -> Client:
        """A client of this verifier and drafter, unless told otherwise."""
        own: dict[str, Any] = {"trust": (self.verifier.peer_id, self.drafter.peer_id), "strategies": ALL_STRATEGIES}
        return Client([self.verifier.maddr], dtype="float32", share_feedback=share_feedback, **(own | options))

    def ask(self, texts: list[str], *, share_feedback: bool | None) -> int:
        """Ask for texts, which are the target's; the drafted tokens that were accepted."""
        accepted = 0
        with self.client(share_feedback=share_feedback) as client:
            for text in texts:
                done = client.generate(text, max_new_tokens=NEW_TOKENS, strategy="speculative")
                assert done.token_ids == greedy(encoded(text), NEW_TOKENS), text
                accepted += sum(one.accepted for one in done.drafters)
        return accepted
