"""Seeded links for the in-memory network: delay, jitter, loss, rate, processing and partitions.

A write waits for its sender, then for every partition between the two peers, then for the wire, and is readable
after the one-way delay, the jitter and the retransmissions of its lost packets, never before an earlier write of
its stream: TCP delivers in order, so one lost packet holds up all that follows.

A lost packet costs TCP's retransmission timeout. RFC 6298 (2.3) sets it to SRTT + max(G, 4 RTTVAR). Its
lower bound of one second (2.4) is followed by no common system; Linux puts a floor of 200 ms (TCP_RTO_MIN) under
the second term, and that is the default here. Losses of one write are repaired one after the other. TCP with
selective acknowledgements is often faster (fast retransmit, tail loss probes), so figures here are cautious.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from random import Random
from typing import Final

from cosine_lab.emulation.cities import rtt_s
from cosine_protocol.errors import UsageError

PACKET_BYTES: Final = 1200
"""The size of the packets that are lost: what fits in the 1,280 bytes of every IPv6 path (RFC 8200, 5)."""
RTO_FLOOR_S: Final = 0.2
"""Linux's TCP_RTO_MIN, see above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkModel:
    """One direction of a link between two peers. Raises `UsageError` for impossible values.

    jitter_s: mean of an exponential delay added to each write.
    loss: probability that a packet of `PACKET_BYTES` is lost.
    rate_bytes_per_s: rate of the wire.
    send_cost_s: time that the sending peer works on each write, one write at a time.
    """

    one_way_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    rate_bytes_per_s: float = math.inf
    send_cost_s: float = 0.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not value >= 0:
                raise UsageError(f"A link's {item.name} is at least 0, not {value}.")
        if self.loss >= 1 or self.rate_bytes_per_s == 0:
            raise UsageError("A link's loss must be below 1 and its rate above 0.")

    @property
    def timeout_s(self) -> float:
        """The delay of a lost packet. The mean deviation of both directions' jitter is taken as one `jitter_s`."""
        return 2 * (self.one_way_s + self.jitter_s) + max(RTO_FLOOR_S, 4 * self.jitter_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition of the network: from `start_s` to `end_s` nothing passes between `group` and all other peers."""

    start_s: float
    end_s: float
    group: frozenset[str]

    def __post_init__(self) -> None:
        if not self.start_s < self.end_s:
            raise UsageError("A partition must end after it starts.")

    def separates(self, a: str, b: str) -> bool:
        """Return True if the partition lies between two peers."""
        return (a in self.group) != (b in self.group)


@dataclass(slots=True)
class FifoServer:
    """A queue that serves one write at a time, in order of arrival."""

    free_s: float = 0.0

    def finish_s(self, arrival_s: float, takes_s: float) -> float:
        """Return the time at which a write is served. Must be called in order of arrival."""
        self.free_s = max(self.free_s, arrival_s) + takes_s
        return self.free_s


class SeededRoute:
    """One direction of a stream: a `Route`.

    `partitions` are those between its two peers. Streams of the same direction share a `wire`, all streams of a
    peer share a `sender`. Opening and closing a stream (0 bytes) takes no processing time and no rate.
    """

    def __init__(
        self,
        model: LinkModel,
        rng: Random,
        partitions: tuple[Partition, ...] = (),
        *,
        wire: FifoServer | None = None,
        sender: FifoServer | None = None,
    ) -> None:
        self.model = model
        self._rng = rng
        self._partitions = partitions
        self._wire = wire or FifoServer()
        self._sender = sender or FifoServer()
        self._newest_s = 0.0

    def arrival_s(self, now_s: float, size_bytes: int) -> float:
        """Return the time at which a write can be read; `math.inf` behind an endless partition.

        A write that is ready during a partition is sent one retransmission timeout after its end.
        """
        model = self.model
        sent_s = self._sender.finish_s(now_s, model.send_cost_s) if size_bytes else now_s
        begun_s = max(sent_s, self._wire.free_s)
        while ends := [p.end_s for p in self._partitions if p.start_s <= begun_s < p.end_s]:
            begun_s = max(ends) + model.timeout_s
        left_s = self._wire.finish_s(begun_s, size_bytes / model.rate_bytes_per_s) if size_bytes else begun_s
        delay_s = model.one_way_s
        if model.jitter_s:
            delay_s += self._rng.expovariate(1 / model.jitter_s)
        if model.loss:
            packets = max(1, math.ceil(size_bytes / PACKET_BYTES))
            delay_s += sum(self._rng.random() < model.loss for _ in range(packets)) * model.timeout_s
        self._newest_s = max(self._newest_s, left_s + delay_s)
        return self._newest_s


def seeded(seed: int, *names: object) -> Random:
    """Return a separate generator for each list of names, the same in every process and on every machine."""
    text = repr((seed, *map(str, names)))
    return Random(int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "big"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTable:
    """The links of a network. Pass `route` to one `MemoryNetwork`.

    default: the link between any two peers.
    send_costs_s: processing time of each write, by sending peer.
    one_ways_s: one-way delay of all links of a peer.
    cities: city of a peer; between two such peers the distance decides the delay.
    ring, ring_one_way_s: peers, and the one-way delay between any two of them.

    Each route draws from a generator seeded by `seed`, its two peers and the number of streams before.
    """

    seed: int
    default: LinkModel = field(default_factory=LinkModel)
    send_costs_s: Mapping[str, float] = field(default_factory=dict)
    one_ways_s: Mapping[str, float] = field(default_factory=dict)
    cities: Mapping[str, str] = field(default_factory=dict)
    ring: frozenset[str] = frozenset()
    ring_one_way_s: float = 0.0
    partitions: tuple[Partition, ...] = ()
    _opened: Counter[tuple[str, str]] = field(default_factory=Counter, init=False, repr=False)
    _wires: dict[tuple[str, str], FifoServer] = field(default_factory=dict, init=False, repr=False)
    _senders: dict[str, FifoServer] = field(default_factory=dict, init=False, repr=False)

    def route(self, source: str, target: str) -> SeededRoute:
        """Return the route of a new stream from one peer to another."""
        pair = (source, target)
        number = self._opened[pair]
        self._opened[pair] += 1
        model = self.default
        if source in self.send_costs_s:
            model = replace(model, send_cost_s=self.send_costs_s[source])
        for peer_id in (source, target):
            if peer_id in self.one_ways_s:
                model = replace(model, one_way_s=self.one_ways_s[peer_id])
        if source in self.cities and target in self.cities:
            model = replace(model, one_way_s=rtt_s(self.cities[source], self.cities[target]) / 2)
        if source in self.ring and target in self.ring:
            model = replace(model, one_way_s=self.ring_one_way_s)
        return SeededRoute(
            model,
            seeded(self.seed, source, target, number),
            tuple(partition for partition in self.partitions if partition.separates(source, target)),
            wire=self._wires.setdefault(pair, FifoServer()),
            sender=self._senders.setdefault(source, FifoServer()),
        )
