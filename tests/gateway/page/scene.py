"""A demonstration swarm: a target with a prepared reply, and drafters that know parts of it."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from cosine_engine.curve import CostCurve
from cosine_lab.simulation.records import facts_of
from cosine_lab.simulation.swarm import SimulatedSwarm, numbered_identity
from cosine_node.serving.status_service import StatusService
from cosine_protocol.discover import STATUS
from cosine_protocol.records import NetworkCoordinate, NodeRecord, Role
from tests.cosine_p2p.samples import stage_offer
from tests.gateway.gateways import MODEL
from tests.gateway.played import END, Letters, Play, Player

REPLY: Final = """A text is written by **one** model, the target. Others only guess what comes next:

- a *drafter* sends a tree of guesses, signed;
- the client merges them and drops what is unlikely;
- the verifier checks the whole tree in one pass.

A guess is kept only where the target chooses it itself, so the text is the same, only sooner:

```python
def accepted(tree, choose):
    path, node = [], tree.root
    while (token := choose(path)) in node.children:
        node = node.children[token]
        path.append(token)
    return path + [token]
```

With two tokens a pass it comes about twice as soon, and with none it comes as fast as without drafters."""
"""A typical reply with prose, a list and code, each known to a different drafter."""
LIE: Final = REPLY.replace("one** model", "any** model").replace("sooner", "later")

PIECE: Final = re.compile(r" ?[A-Za-z]+| +|\n+|.", re.DOTALL)
VERIFY: Final = CostCurve(((1, 0.030), (16, 0.031), (64, 0.040)))
LARGE: Final = CostCurve(((1, 0.160), (16, 0.162), (64, 0.190)))
"""The cost of a large target, much slower than drafters."""
DRAFT: Final = CostCurve(((1, 0.002), (64, 0.004)))
SLOW: Final = CostCurve(((1, 0.25), (64, 0.3)))
PLACES: Final = (
    *((-14, 3, 9), (11, -8, 6), (16, 9, 4), (-3, 12, 7), (4, -2, 2), (-9, -11, 8)),
    *((-11, 9, 5), (8, 5, 3), (-19, -4, 6), (1, -13, 4), (14, 1, 5), (-6, 1, 2)),
)
"""The coordinates of the nodes: x, y and height in milliseconds."""


class Words(Letters):
    """A codec whose tokens are the words of some texts, and single letters otherwise."""

    def __init__(self, *texts: str) -> None:
        super().__init__()
        words = sorted({piece for text in texts for piece in PIECE.findall(text) if len(piece) > 1})
        self._words = {word: END + 1 + index for index, word in enumerate(words)}
        self._texts = {token: word for word, token in self._words.items()}
        self.vocab_tokens = END + 1 + len(words)

    def encode(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        letters = super().encode
        return tuple(
            token
            for piece in PIECE.findall(text)
            for token in ([self._words[piece]] if piece in self._words else letters(piece))
        )

    def decode(self, tokens: Sequence[int]) -> str:
        return self._decoded(tuple(tokens))

    @lru_cache(maxsize=4096)  # noqa: B019 - a codec lives as long as its test, and all engines read the same texts
    def _decoded(self, tokens: tuple[int, ...]) -> str:
        return "".join(self._texts.get(token) or super(Words, self).decode([token]) for token in tokens)

    def token_bytes(self, token: int) -> bytes:
        return self.decode([token]).encode()


class Guesser(Player):
    """A drafter that knows some parts of the reply better than others, with calibrated confidence."""

    def __init__(self, codec: Words, reply: Play, *, knows: Callable[[str], bool], seed: int) -> None:
        super().__init__(reply, codec)
        self._knows = knows
        self._seed = seed

    def scores_of(self, token: int, text: str) -> list[float]:
        chance = sha256(f"{self._seed} {text[-60:]}".encode()).digest()[0] / 256
        scores = [0.0] * self.vocab_tokens
        scores[token] = 12.0 if self._knows(text) and chance < 0.93 else 3.5 + 5 * chance
        scores[END - 1 - int(40 * chance)] = 8.0
        return scores


def in_code(text: str) -> bool:
    return text.count("```") % 2 == 1


def in_list(text: str) -> bool:
    return not in_code(text) and text.rpartition("\n")[2].startswith("- ")


def in_prose(text: str) -> bool:
    return not in_code(text) and not in_list(text)


EXPERTS: Final = {"code": in_code, "prose": in_prose, "lists": in_list}


async def announce(swarm: SimulatedSwarm, record: NodeRecord) -> None:
    """Announce a record by the target's name, and by its digest for audits."""
    await swarm.directory.announce(record, [MODEL, record.target_digest.hex()])


async def listener(swarm: SimulatedSwarm, number: int, **record: Any) -> None:
    """A node that only answers status: the record of the first verifier with these changes."""
    identity = numbered_identity(number)
    transport = swarm.join(identity)
    await transport.serve(STATUS, StatusService(lambda: (b"", 0, 0)).handle)
    like = (await swarm.directory.find(Role.VERIFIER, MODEL))[0]
    await announce(swarm, replace(like, peer_id=identity.peer_id, **{"generation_defaults": None, **record}))


async def place(swarm: SimulatedSwarm) -> None:
    """Give every node's record an address and a coordinate."""
    for role in Role:
        for index, record in enumerate(await swarm.directory.find(role, MODEL)):
            x, y, height = PLACES[(index + 4 * list(Role).index(role)) % len(PLACES)]
            stands = NetworkCoordinate(
                x_us=1000 * x, y_us=1000 * y, z_us=0, height_us=1000 * height, error_permille=120
            )
            address = f"/ip4/203.0.113.{10 + index}/tcp/31337/p2p/{record.peer_id}"
            await announce(swarm, replace(record, coordinate=stands, addresses=(address,)))


async def join_honest(swarm: SimulatedSwarm, *, count: int) -> None:
    """Add honest verifiers."""
    assert isinstance(swarm.codec, Words)
    for _ in range(count):
        await swarm.verifier(Player(lambda _: REPLY, swarm.codec), curve=VERIFY)
    await place(swarm)


def scene(
    *,
    verifiers: int = 3,
    liars: int = 0,
    stages: Sequence[tuple[int, int]] = (),
    curve: CostCurve = VERIFY,
    reply: Play = lambda _: REPLY,
) -> Any:
    """Makes swarms for `served`."""
    codec = Words(REPLY, LIE, reply(""))

    @asynccontextmanager
    async def swarm_of(**__: Any) -> AsyncIterator[SimulatedSwarm]:
        async with SimulatedSwarm(one_way_s=0.002, codec=codec, facts=facts_of((END,))) as swarm:
            for _ in range(liars):
                await swarm.verifier(Player(lambda _: LIE, codec), curve=CostCurve(((1, 0.005), (64, 0.006))))
            for _ in range(verifiers):
                await swarm.verifier(Player(reply, codec), curve=curve)
            for seed, (domain, knows) in enumerate(EXPERTS.items()):
                guesser = Guesser(codec, reply, knows=knows, seed=seed)
                await swarm.drafter(guesser, curve=DRAFT, domain=domain)
            for number, (first, end) in enumerate(stages):
                room = {"wide_tokens": 64, "wide_pass_us": 9000, "pool_tokens": 4096}
                offer = stage_offer(first, end, layers=28, busy_permille=130 + 90 * number, **room)
                await listener(swarm, 900 + number, role=Role.STAGE, numerics="bfloat16", stage=offer)
            await place(swarm)
            yield swarm
            await asyncio.sleep(0)

    return swarm_of
