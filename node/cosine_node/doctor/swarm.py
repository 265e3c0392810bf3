"""The swarm as a newcomer meets it: it can be joined, the target is served, and the clocks agree.

A child process joins as a client and looks around (`probe_swarm`); what it has seen is judged here.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cosine_node.doctor.finding import Finding, failure, fine, skipped, warning
from cosine_node.doctor.processes import answer_parent
from cosine_p2p.directory.peer_clocks import PeerClocks, span
from cosine_protocol import messages as m
from cosine_protocol.codec import decode_body
from cosine_protocol.errors import CosineError, PeerLost, RemoteProtocolError
from cosine_protocol.limits import MAX_RECORD_SKEW_S
from cosine_protocol.protocols import DISCOVER
from cosine_protocol.records import ALL_TARGETS, NodeRecord, Role, SignedRecord, cell_name, open_undated_record

if TYPE_CHECKING:
    from cosine_p2p.client import Swarm
    from cosine_p2p.survey import Survey, Surveyor

# The names of checks.
SWARM: Final = "swarm"
VERIFIERS: Final = f"{SWARM}: verifiers"
DRAFTERS: Final = f"{SWARM}: drafters"
CLOCK: Final = "clock"
MEND_SILENT: Final = (
    "If it has not just ended, run `cosine-node doctor` there: it may need --relay or an open port."
)

JOIN_PATIENCE_S: Final = 4.0
"""Whoever asks what is wrong waits for no node that may come, but for one that is being started again."""
LOOK_AGAIN_S: Final = (0.5, 1.5)
"""Pauses before looking again: a DHT may take a moment to show a node to a peer that has just joined."""


async def first_survey(surveyor: "Surveyor") -> "Survey":
    """Look at a swarm that was just joined, again where nobody is seen."""
    survey = await surveyor.survey()
    for pause_s in LOOK_AGAIN_S:
        if not survey.nodes:
            await asyncio.sleep(pause_s)
            survey = await surveyor.survey()
    return survey


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A node of the target. `reason` says why it was not reached; "" if it was. Digests are in hex."""

    role: str
    peer_id: str
    target: str
    target_digest: str
    tokenizer_digest: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood:
    """The nodes and clocks that a probe saw at `now_s` on this machine's clock.

    `problem` says why the network could not be joined or read. `dates` are the owner, issue and expiry
    time of records that peers hold to be valid; `born_s` are times before which certificates of peers were not.
    """

    problem: str = ""
    nodes: tuple[Neighbour, ...] = ()
    dates: tuple[tuple[str, float, float], ...] = ()
    born_s: tuple[float, ...] = ()
    now_s: float = 0.0

    @classmethod
    def of_answer(cls, answer: dict[str, Any], *, born_s: Sequence[float]) -> "Neighbourhood":
        """The fields in the probe's answer, in which tuples have become lists."""
        nodes = tuple(Neighbour(**node) for node in answer["nodes"])
        dates = tuple((owner, issued_s, expires_s) for owner, issued_s, expires_s in answer["dates"])
        return cls(**answer | {"nodes": nodes, "dates": dates, "born_s": tuple(born_s)})

    def of_role(self, role: Role) -> list[Neighbour]:
        return [node for node in self.nodes if node.role == role]


async def look_around(swarm: "Swarm", *, target: str, network: str, peer_ids: Sequence[str]) -> Neighbourhood:
    """The nodes of a target, and the dates of the records that the peers named hold to be valid."""
    from cosine_p2p.survey import Surveyor
    from cosine_p2p.text.target import Target

    surveyor = Surveyor(swarm, target=target)
    try:
        survey = await first_survey(surveyor)
    finally:
        await surveyor.close()
    name = Target.parse(target).name
    cells = [cell_name(network=network, role=role, target=name, prefix="") for role in Role]
    dates = await asyncio.gather(*(_dates_at(swarm, peer_id, cells) for peer_id in peer_ids))
    nodes = [
        Neighbour(
            role=sight.record.role,
            peer_id=sight.record.peer_id,
            target=sight.record.target,
            target_digest=sight.record.target_digest.hex(),
            tokenizer_digest=sight.record.tokenizer_digest.hex(),
            reason=sight.reason,
        )
        for sight in survey.nodes
    ]
    return Neighbourhood(
        problem=survey.problem, nodes=tuple(nodes), dates=tuple(chain.from_iterable(dates)), now_s=time.time()
    )


async def _dates_at(swarm: "Swarm", peer_id: str, cells: Sequence[str]) -> list[tuple[str, float, float]]:
    """Owner, issue and expiry time of the records that a peer has in some cells; none if it does not answer."""
    from cosine_p2p.transport.channel import Channel

    dates = []
    try:
        # A peer that was just dialled answers within a second; all are asked at the same time.
        async with asyncio.timeout(5.0):
            stream = await swarm.transport.dial(peer_id, DISCOVER)
            async with Channel(stream, DISCOVER) as channel:
                for cell in cells:
                    channel.post(m.AskRecords(1, cell))
                    answer = await channel.receive()
                    for data in answer.records if isinstance(answer, m.Records) else ():
                        record = decode_body(NodeRecord, decode_body(SignedRecord, data).body)
                        # Whatever the time is: this machine's clock is what is in question.
                        open_undated_record(data, key=cell, owner=record.peer_id)
                        dates.append((record.peer_id, record.issued_at_s, record.expires_at_s))
    except (PeerLost, RemoteProtocolError, TimeoutError):
        return []
    return dates


def probe_swarm(question: dict[str, Any]) -> dict[str, Any]:
    """Join by the `initial_peers` of a question and look around, for its `network`, `target` and `peer_ids`.

    A private swarm, one with a `swarm_file`, is joined with its `identity_file`. Returns the fields of
    `Neighbourhood`.
    """
    from cosine_p2p.access import Access
    from cosine_p2p.network import joining

    network, target = question["network"], question["target"]
    access = Access(network=network)
    if question.get("swarm_file"):
        identity = Path(question["identity_file"]) if question["identity_file"] else None
        access = replace(access, swarm_file=Path(question["swarm_file"]), identity_file=identity)

    async def probe() -> Neighbourhood:
        try:
            swarm = await joining(question["initial_peers"], access=access, patience_s=JOIN_PATIENCE_S)()
        except CosineError as error:
            return Neighbourhood(problem=str(error), now_s=time.time())
        try:
            return await look_around(swarm, target=target, network=network, peer_ids=question["peer_ids"])
        finally:
            await swarm.close()

    return asdict(asyncio.run(probe()))


def judge_swarm(seen: Neighbourhood, *, network: str, target: str, role: Role | None) -> list[Finding]:
    """Judge whether the target is served, or the only one of all; `role` is this machine's, None for a client."""
    if seen.problem:
        fix = "Mend what is wrong with --initial-peers and the network daemon above, then look again."
        return [failure(SWARM, f"the network cannot be joined: {seen.problem}", fix)]
    served = sorted({node.target for node in seen.nodes})
    if target == ALL_TARGETS and len(served) > 1:
        found = f"{len(served)} targets are served, {', '.join(served)}; --target NAME looks at the nodes of one"
        return [fine(SWARM, found)]
    if target == ALL_TARGETS and not served:
        fix = "Check --network and --initial-peers, or start one: `cosine-node join --role verifier --model MODEL`."
        return [failure(VERIFIERS, f"nobody in the network {network!r} lists a target", fix)]
    name = target if target != ALL_TARGETS else served[0]
    return [_judge_verifiers(seen, network=network, target=name, role=role), _judge_drafters(seen, target=name)]


def _judge_verifiers(seen: Neighbourhood, *, network: str, target: str, role: Role | None) -> Finding:
    verifiers = seen.of_role(Role.VERIFIER)
    if not verifiers and role is Role.VERIFIER:
        return fine(VERIFIERS, f"none of {target} in the network {network!r} yet; this will be the first")
    if not verifiers:
        start = f"start one: `cosine-node join --role verifier --model {target}`"
        fix = f"Check --network, --target and --initial-peers, or {start}."
        return failure(VERIFIERS, f"nobody in the network {network!r} verifies {target}", fix)
    silent = [node for node in verifiers if node.reason]
    if len(silent) == len(verifiers):
        found = f"none of {len(verifiers)} can be reached; {silent[0].peer_id}: {silent[0].reason}"
        return failure(VERIFIERS, found, MEND_SILENT)
    models = {node.target_digest for node in verifiers}
    if len(models) > 1:
        fix = f"Say which one is meant: --target {target}@{min(models)}."
        return warning(VERIFIERS, f"{target} stands for {len(models)} different models", fix)
    return fine(VERIFIERS, f"{len(verifiers) - len(silent)} of {len(verifiers)} of {target} reached")


def _judge_drafters(seen: Neighbourhood, *, target: str) -> Finding:
    drafters = seen.of_role(Role.DRAFTER)
    if not drafters:
        found = f"nobody drafts for {target}: its verifiers decode alone"
        fix = f"A drafter can make it faster: `cosine-node join --role drafter --model MODEL --target {target}`."
        return warning(DRAFTERS, found, fix)
    silent = [node for node in drafters if node.reason]
    reached = f"{len(drafters) - len(silent)} of {len(drafters)} reached"
    if silent:
        return warning(DRAFTERS, f"{reached}; {silent[0].peer_id}: {silent[0].reason}", MEND_SILENT)
    return fine(DRAFTERS, reached)


def judge_clock(seen: Neighbourhood) -> Finding:
    """Judge this clock by the median of the owners of records, and where there are none by peers' certificates."""
    clocks = PeerClocks()
    for owner, issued_s, expires_s in seen.dates:
        clocks.note(owner, issued_s=issued_s, oldest_s=expires_s - issued_s, now_s=seen.now_s)
    if not seen.dates:
        for number, born_s in enumerate(seen.born_s):
            clocks.note(str(number), issued_s=born_s, oldest_s=math.inf, now_s=seen.now_s)
    ahead_s, most_s = clocks.ahead_s(seen.now_s) or (-math.inf, math.inf)
    behind_s = -most_s
    # Clocks that the system keeps differ by less than a second, and the records were on their way.
    close_s = 5.0
    set_clock = "Let the system keep it: `sudo timedatectl set-ntp true`."
    if behind_s > MAX_RECORD_SKEW_S:
        found = f"this clock is at least {span(behind_s)} behind those of peers, whose records it takes for forged"
        return failure(CLOCK, found, set_clock)
    if ahead_s > close_s:
        found = (
            f"this clock is at least {span(ahead_s)} ahead of those of peers, whose records it takes for expired"
        )
        return failure(CLOCK, found, set_clock)
    if behind_s > close_s:
        return warning(CLOCK, f"this clock is at least {span(behind_s)} behind those of peers", set_clock)
    if not seen.dates:
        return skipped(CLOCK, "no peer has a record to compare with")
    between = f"{span(max(0.0, -ahead_s))} behind and {span(max(0.0, -behind_s))} ahead"
    return fine(CLOCK, f"between {between} of peers' clocks; records tell it no more exactly")


def judge_tokenizer(source: str, digest: str, seen: Neighbourhood, *, role: Role) -> Finding:
    """Judge whether a model's tokens are those of the target's verifiers.

    `digest` is of the model's tokenizer files, in hex.
    """
    what = f"tokenizer of {source}"
    theirs = {node.tokenizer_digest for node in seen.of_role(Role.VERIFIER)}
    if not digest or not theirs:
        return skipped(what, "the model has none of its own" if theirs else "no verifier to compare with")
    if digest in theirs:
        return fine(what, "the target's")
    if role is Role.VERIFIER:
        fix = "Serve it under a name of its own with --target NAME, or fetch the model that the others serve."
        return failure(what, "other verifiers of this name have another tokenizer, so another model", fix)
    fix = "A drafter of the target's own family is faster and more often right; name one with --model."
    return warning(what, "not the target's files: unless the tokens are the same, drafts are matched as text", fix)


if __name__ == "__main__":
    answer_parent(probe_swarm)
