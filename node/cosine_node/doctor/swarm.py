"""Checks of the swarm: initial peers, nodes of the target, and clocks."""

import asyncio
import re
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cosine_node.doctor.finding import CheckStatus, Finding, failure, fine, skipped, warning
from cosine_node.doctor.reach import Way, connect, judge_reachability, parse_node_address
from cosine_node.serving.options import NetworkOptions
from cosine_p2p.dht.peer_clocks import PeerClocks, span
from cosine_p2p.storage.identity_file import load_identity
from cosine_p2p.transport.addresses import Scope, scope_of
from cosine_p2p.transport.channel import Channel
from cosine_p2p.transport.config import TransportConfig
from cosine_p2p.transport.hosts import local_hosts
from cosine_p2p.transport.lan import find_neighbours
from cosine_protocol.discover import DISCOVER, AskRecords, Records
from cosine_protocol.errors import CosineError, PeerLost, RemoteProtocolError, UsageError
from cosine_protocol.fields import MAX_RECORD_SKEW_S, decode_body
from cosine_protocol.identity import unseal
from cosine_protocol.records import ALL_TARGETS, NodeRecord, Role, cell_name, open_undated_record

if TYPE_CHECKING:
    from cosine_p2p.client import Swarm
    from cosine_p2p.survey import NodeSight
    from cosine_p2p.transport.full.daemon import Daemon

# Names of checks, and common fixes.
DAEMON: Final = "network daemon"
LOCAL: Final = "local network"
SWARM: Final = "swarm"
VERIFIERS: Final = f"{SWARM}: verifiers"
DRAFTERS: Final = f"{SWARM}: drafters"
CLOCK: Final = "clock"
REINSTALL: Final = "Reinstall it: `pip install --force-reinstall --no-deps hivemind`."
MEND_SILENT: Final = (
    "If it has not just ended, run `cosine-node doctor` there: it may need --relay or an open port."
)

DIAL_S: Final = 5.0
JOIN_PATIENCE_S: Final = 4.0
"""Duration of retries: enough for a node that restarts."""
Dates = Sequence[tuple[str, float, float]]
"""Owner, issue time and expiry time of records that peers consider valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood:
    """A view of the swarm.

    problem: Why the network could not be joined or read. "" if it could.
    nodes: The nodes of the target.
    """

    problem: str = ""
    nodes: "tuple[NodeSight, ...]" = ()
    dates: Dates = ()

    def of_role(self, role: Role) -> "list[NodeSight]":
        return [node for node in self.nodes if node.record.role == role]


async def look_at_peers(network: NetworkOptions) -> AsyncIterator[Finding]:
    """Judge the network daemon, initial peers and relays, and whether others can reach a node."""
    named = [(maddr, "--initial-peers") for maddr in network.initial_peers]
    named += [(maddr, "--relay") for maddr in network.relays]
    tried = await asyncio.gather(*(asyncio.to_thread(connect, maddr, option=option) for maddr, option in named))
    async with _daemon() as daemon:
        state = daemon if isinstance(daemon, Finding) else fine(DAEMON, "p2pd starts")
    yield state
    for (maddr, option), found in zip(named, tried, strict=True):
        if isinstance(found, Finding) and found.status is CheckStatus.FAILURE:
            yield found
        elif state.status is CheckStatus.OK:
            yield await judge_answer(maddr, option=option)
        else:
            yield found if isinstance(found, Finding) else fine(f"{option} {maddr}", "something listens there")
    yield judge_reachability(
        host_maddrs=network.host_maddrs,
        announce_maddrs=network.announce_maddrs,
        relays=network.relays,
        ways=[way for way in tried[: len(network.initial_peers)] if isinstance(way, Way)],
        local=[host for host in local_hosts(()) if scope_of(host) is not Scope.NONE],
    )


@asynccontextmanager
async def _daemon() -> "AsyncIterator[Daemon | Finding]":
    """A network daemon in client mode with a new identity. A finding if it cannot be started."""
    if find_spec("hivemind") is None:
        yield skipped(DAEMON, "hivemind is not installed")
        return
    with tempfile.TemporaryDirectory() as folder:
        identity_file = Path(folder) / "identity"
        load_identity(identity_file)
        try:
            from cosine_p2p.transport.full.daemon import start_daemon

            config = TransportConfig(identity_file=identity_file, client_mode=True)
            daemon = await start_daemon(config, host_maddrs=(), peers=())
        except (UsageError, PeerLost) as error:
            yield failure(DAEMON, str(error).partition("; ")[0], REINSTALL)
            return
        except (ImportError, AttributeError) as error:
            yield failure(DAEMON, f"hivemind cannot be imported: {error}", REINSTALL)
            return
        try:
            yield daemon
        finally:
            await daemon.close()


async def judge_answer(maddr: str, *, option: str) -> Finding:
    """Judge whether the named node answers at an address, or its relay."""
    what, meant = f"{option} {maddr}", parse_node_address(maddr).peer_ids[0]
    end = f"/p2p/{meant}"
    try:
        # A new daemon cannot know the node by another address.
        async with _daemon() as daemon:
            if isinstance(daemon, Finding):
                return daemon
            await daemon.connect(meant, [maddr.partition(end)[0] + end], DIAL_S)
    except PeerLost as lost:
        if (other := re.search(r"at its address, (\w+)", lost.reason)) is not None:
            fix = f"If that is the node you mean, use {option} {maddr.replace(meant, other[1])}."
            return failure(what, f"another node answers there, {other[1]}", fix)
        return failure(what, f"no node answers there: {lost.reason}", f"Correct the port in {option}.")
    return fine(what, "the node answers")


async def look_in_local_network(network: NetworkOptions) -> tuple[tuple[str, ...], Finding]:
    """Look for nodes in the local network, as a node without initial peers does. Returns their addresses."""
    if not network.access.uses_lan:
        return (), skipped(LOCAL, "it is not looked at, by --no-lan or COSINE_LAN")
    found = await find_neighbours(network.access.network)
    if not found:
        return (), skipped(LOCAL, f"no node of the network {network.access.network!r} answers there")
    count = len({maddr.rpartition("/")[2] for maddr in found})
    return found, fine(LOCAL, f"{count} node{'' if count == 1 else 's'} of the network {network.access.network!r}")


async def look_around(network: NetworkOptions, *, target: str, initial_peers: Sequence[str]) -> Neighbourhood:
    """Join as a client, in a private swarm with the node's identity, and look for the nodes of a target."""
    from cosine_p2p.network import joining

    access = network.access
    if access.swarm_file is not None:
        access = replace(access, identity_file=network.identity_file)
    try:
        swarm = await joining(initial_peers, access=access, patience_s=JOIN_PATIENCE_S)()
    except CosineError as error:
        return Neighbourhood(problem=str(error))
    try:
        peer_ids = [parse_node_address(maddr).peer_id for maddr in initial_peers]
        return await neighbourhood_of(swarm, network=access.network, target=target, peer_ids=peer_ids)
    finally:
        await swarm.close()


async def neighbourhood_of(swarm: "Swarm", *, network: str, target: str, peer_ids: Sequence[str]) -> Neighbourhood:
    """The nodes of a target, and the dates of the records that these peers consider valid."""
    from cosine_p2p.survey import Surveyor, first_survey
    from cosine_p2p.text.target import Target

    surveyor = Surveyor(swarm, target=target)
    try:
        survey = await first_survey(surveyor)
    finally:
        await surveyor.close()
    name = Target.parse(target).name
    cells = [cell_name(network=network, role=role, target=name, prefix="") for role in Role]
    dates = await asyncio.gather(*(_dates_at(swarm, peer_id, cells) for peer_id in peer_ids))
    return Neighbourhood(problem=survey.problem, nodes=survey.nodes, dates=tuple(chain.from_iterable(dates)))


async def _dates_at(swarm: "Swarm", peer_id: str, cells: Sequence[str]) -> Dates:
    """The dates of a peer's records in these cells. Empty if it does not answer."""
    dates = []
    try:
        # A peer that was just dialled answers within a second.
        async with asyncio.timeout(5.0):
            stream = await swarm.transport.dial(peer_id, DISCOVER)
            async with Channel(stream, DISCOVER) as channel:
                for cell in cells:
                    channel.post(AskRecords(1, cell))
                    answer = await channel.receive()
                    for data in answer.records if isinstance(answer, Records) else ():
                        record = decode_body(NodeRecord, unseal(NodeRecord, data).body)
                        # Dates are not checked, since this machine's clock may be wrong.
                        open_undated_record(data, key=cell, owner=record.peer_id)
                        dates.append((record.peer_id, record.issued_at_s, record.expires_at_s))
    except (PeerLost, RemoteProtocolError, TimeoutError):
        return []
    return dates


async def look_at_swarm(
    network: NetworkOptions, *, target: str, role: Role | None, initial_peers: Sequence[str]
) -> tuple[Neighbourhood, list[Finding]]:
    """Join and judge the swarm and the clock. `role` is that of this machine, None for a client."""
    if not initial_peers:
        nobody = "no initial peer can be asked" if network.initial_peers else "no --initial-peers is given"
        return Neighbourhood(), [skipped(SWARM, nobody), skipped(CLOCK, nobody)]
    seen = await look_around(network, target=target, initial_peers=initial_peers)
    swarm = judge_swarm(seen, network=network.access.network, target=target, role=role)
    return seen, [*swarm, judge_clock(seen.dates, now_s=time.time())]


def judge_swarm(seen: Neighbourhood, *, network: str, target: str, role: Role | None) -> list[Finding]:
    """Judge whether the target is served. `role` is that of this machine, None for a client."""
    if seen.problem:
        fix = "Fix the failures of --initial-peers and the network daemon above, then try again."
        return [failure(SWARM, f"the network cannot be joined: {seen.problem}", fix)]
    served = sorted({node.record.target for node in seen.nodes})
    if target == ALL_TARGETS and len(served) > 1:
        found = f"{len(served)} targets are served, {', '.join(served)}; --target NAME looks at the nodes of one"
        return [fine(SWARM, found)]
    if target == ALL_TARGETS and not served:
        fix = "Check --network and --initial-peers, or start one: `cosine-node verify --model MODEL`."
        return [failure(VERIFIERS, f"no node in the network {network!r} lists a target", fix)]
    name = target if target != ALL_TARGETS else served[0]
    return [_judge_verifiers(seen, network=network, target=name, role=role), _judge_drafters(seen, target=name)]


def _judge_verifiers(seen: Neighbourhood, *, network: str, target: str, role: Role | None) -> Finding:
    verifiers = seen.of_role(Role.VERIFIER)
    if not verifiers and role in (Role.VERIFIER, Role.STAGE):
        return fine(VERIFIERS, f"none of {target} in the network {network!r} yet")
    if not verifiers:
        start = f"start one: `cosine-node verify --model {target}`"
        fix = f"Check --network, --target and --initial-peers, or {start}."
        return failure(VERIFIERS, f"no node in the network {network!r} verifies {target}", fix)
    silent = [node for node in verifiers if node.reason]
    if len(silent) == len(verifiers):
        found = f"none of {len(verifiers)} can be reached; {silent[0].record.peer_id}: {silent[0].reason}"
        return failure(VERIFIERS, found, MEND_SILENT)
    models = {node.record.target_digest.hex() for node in verifiers}
    if len(models) > 1:
        fix = f"Name one of them: --target {target}@{min(models)}."
        return warning(VERIFIERS, f"{target} stands for {len(models)} different models", fix)
    return fine(VERIFIERS, f"{len(verifiers) - len(silent)} of {len(verifiers)} of {target} reached")


def _judge_drafters(seen: Neighbourhood, *, target: str) -> Finding:
    drafters = seen.of_role(Role.DRAFTER)
    if not drafters:
        found = f"no node drafts for {target}: its verifiers decode without drafts"
        fix = f"A drafter can make it faster: `cosine-node draft --model MODEL --target {target}`."
        return warning(DRAFTERS, found, fix)
    silent = [node for node in drafters if node.reason]
    reached = f"{len(drafters) - len(silent)} of {len(drafters)} reached"
    if silent:
        return warning(DRAFTERS, f"{reached}; {silent[0].record.peer_id}: {silent[0].reason}", MEND_SILENT)
    return fine(DRAFTERS, reached)


def judge_clock(dates: Dates, *, now_s: float) -> Finding:
    """Judge this machine's clock, `now_s`, by the median of the record owners' clocks."""
    clocks = PeerClocks()
    for owner, issued_s, expires_s in dates:
        clocks.note(owner, issued_s=issued_s, oldest_s=expires_s - issued_s, now_s=now_s)
    bounds_s = clocks.ahead_s(now_s)
    if bounds_s is None:
        return skipped(CLOCK, "no peer has a record to compare with")
    ahead_s, behind_s = bounds_s[0], -bounds_s[1]
    # Clocks set by NTP differ by less than a second, and records travel for a while.
    close_s = 5.0
    set_clock = "Enable NTP: `sudo timedatectl set-ntp true`."
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
    between = f"{span(max(0.0, -ahead_s))} behind and {span(max(0.0, -behind_s))} ahead"
    return fine(CLOCK, f"between {between} of peers' clocks")


def judge_tokenizer(source: str, digest: bytes | None, seen: Neighbourhood, *, role: Role) -> Finding:
    """Judge whether a model has the tokenizer of the target's verifiers. `digest` is that of its files."""
    what = f"tokenizer of {source}"
    theirs = {node.record.tokenizer_digest for node in seen.of_role(Role.VERIFIER)}
    if digest is None or not theirs:
        return skipped(what, "the model has none" if theirs else "no verifier to compare with")
    if digest in theirs:
        return fine(what, "the target's")
    if role is not Role.DRAFTER:
        fix = "Serve it under another name with --target NAME, or fetch the model that the others serve."
        return failure(what, "other verifiers of this name have another tokenizer, so another model", fix)
    fix = "A drafter of the target's own family is faster and more often right; name one with --model."
    return warning(what, "not the target's files: unless the tokens are the same, drafts are matched as text", fix)
