"""Seeded links for the in-memory network: delay, jitter, loss, rate, processing and partitions.

A write waits for its sender, then for every partition between the two peers, then for the wire, and is readable
after the one-way delay, the jitter and the retransmissions of its lost packets, never before an earlier write of
its stream: TCP delivers in order, so one lost packet holds up all that follows.

A lost packet costs TCP's retransmission timeout. RFC 6298 (2.3) sets it to SRTT + max(G, 4 RTTVAR). Its
lower bound of one second (2.4) is followed by no common system; Linux puts a floor of 200 ms (TCP_RTO_MIN) under
the second term, and that is the default here. Losses of one write are repaired one after the other. TCP with
selective acknowledgements is often faster (fast retransmit, tail loss probes), so figures here are cautious.

A connection that is new, or was idle, sends no more than ten packets before it hears of the first, then twice as
many each round trip (RFC 6928, RFC 5681): a file of 100 kB takes three round trips, whatever the rate. Links do so
that have an `initial_window_bytes`.
"""

import math
from collections import Counter, deque
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
INITIAL_WINDOW_BYTES: Final = 14_600
"""Ten packets of usual size, the upper bound of RFC 6928."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkModel:
    """One direction between two peers. Raises `UsageError` for what no link can have.

    `jitter_s` is the mean of an exponential delay added to each write, `loss` the probability that a packet of
    `PACKET_BYTES` is lost, `retransmit_s` the delay each lost packet adds (by default the timeout of the module
    docstring), `initial_window_bytes` how much a connection sends before it hears of it, `rate_bytes_per_s` the
    rate at which the wire takes in one write after the other, and `send_cost_s` the time the sending peer works on
    each write, during which it works on no other.
    """

    one_way_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    retransmit_s: float | None = None
    initial_window_bytes: float = math.inf
    rate_bytes_per_s: float = math.inf
    send_cost_s: float = 0.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None and not value >= 0:
                raise UsageError(f"A link's {item.name} is at least 0, not {value}.")
        if self.loss >= 1 or 0 in (self.rate_bytes_per_s, self.initial_window_bytes):
            raise UsageError("A link loses less than every packet and has a rate and a window above 0.")

    @property
    def timeout_s(self) -> float:
        """The delay of a lost packet. The mean deviation of both ways' jitter is taken as one `jitter_s`."""
        if self.retransmit_s is not None:
            return self.retransmit_s
        return 2 * (self.one_way_s + self.jitter_s) + max(RTO_FLOOR_S, 4 * self.jitter_s)

    def slow_start(self) -> "SlowStart":
        """The window of a new connection."""
        return SlowStart(2 * (self.one_way_s + self.jitter_s), self.initial_window_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """From `start_s` until `end_s` nothing passes between the peers of `group` and all others."""

    start_s: float
    end_s: float
    group: frozenset[str]

    def __post_init__(self) -> None:
        if not self.start_s < self.end_s:
            raise UsageError("A partition ends after it starts.")

    def separates(self, a: str, b: str) -> bool:
        """True if nothing passes between two peers while it lasts."""
        return (a in self.group) != (b in self.group)


@dataclass(slots=True)
class FifoServer:
    """Serves one write at a time in the order of arrival; who comes while it is busy waits until it is free."""

    free_s: float = 0.0

    def finish_s(self, arrival_s: float, takes_s: float) -> float:
        """The time at which a write that arrives then is served. Call it in the order of arrival."""
        self.free_s = max(self.free_s, arrival_s) + takes_s
        return self.free_s


@dataclass(slots=True)
class SlowStart:
    """What a sender has under way of a connection, and may have, whose acknowledgements take `rtt_s`."""

    rtt_s: float
    initial_bytes: float = INITIAL_WINDOW_BYTES
    _window_bytes: float = field(init=False)
    _under_way: deque[tuple[float, float]] = field(default_factory=deque, init=False)
    _under_way_bytes: float = field(default=0.0, init=False)
    _idle_since_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._window_bytes = self.initial_bytes

    def left_s(self, now_s: float, size_bytes: int) -> float:
        """The time at which the last byte of a write leaves. Call it in the order of time."""
        left_s, left_bytes = now_s, float(size_bytes)
        if self.initial_bytes == math.inf:
            return left_s
        while left_bytes:
            self._note_acknowledged(left_s)
            piece_bytes = min(left_bytes, self._window_bytes - self._under_way_bytes)
            if piece_bytes:
                self._under_way.append((left_s + self.rtt_s, piece_bytes))
                self._under_way_bytes += piece_bytes
                left_bytes -= piece_bytes
            else:
                left_s = self._under_way[0][0]
        return left_s

    def _note_acknowledged(self, now_s: float) -> None:
        while self._under_way and self._under_way[0][0] <= now_s:
            self._idle_since_s, acknowledged_bytes = self._under_way.popleft()
            self._under_way_bytes -= acknowledged_bytes
            self._window_bytes += acknowledged_bytes
        # Linux begins anew after a timeout (net.ipv4.tcp_slow_start_after_idle).
        if not self._under_way and now_s - self._idle_since_s > self.rtt_s + RTO_FLOOR_S:
            self._window_bytes = self.initial_bytes


class SeededRoute:
    """One direction of one stream, as the network's `Route`.

    `partitions` are those between its two peers. Streams over the same direction share its `wire` and `window`, and
    all streams of a peer share its `sender`. Openings and ends of streams (0 bytes) cost no processing and no rate.
    """

    def __init__(
        self,
        model: LinkModel,
        rng: Random,
        partitions: tuple[Partition, ...] = (),
        *,
        wire: FifoServer | None = None,
        sender: FifoServer | None = None,
        window: SlowStart | None = None,
    ) -> None:
        self.model = model
        self._rng = rng
        self._partitions = partitions
        self._wire = wire or FifoServer()
        self._sender = sender or FifoServer()
        self._window = window or model.slow_start()
        self._newest_s = 0.0

    def arrival_s(self, now_s: float, size_bytes: int) -> float:
        """The time at which a write can be read; `math.inf` behind a partition without end.

        A write that is ready during a partition goes one retransmission timeout after the partition has healed.
        """
        model = self.model
        sent_s = self._sender.finish_s(now_s, model.send_cost_s) if size_bytes else now_s
        begun_s = max(sent_s, self._wire.free_s)
        while ends := [p.end_s for p in self._partitions if p.start_s <= begun_s < p.end_s]:
            begun_s = max(ends) + model.timeout_s
        if begun_s < math.inf:
            begun_s = self._window.left_s(begun_s, size_bytes)
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
    """A generator of its own for each list of names, the same in every process and on every machine."""
    text = repr((seed, *map(str, names)))
    return Random(int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "big"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTable:
    """The links of a network, and the source of every stream's routes: pass `route` to one `MemoryNetwork`.

    `default` is the link between any two peers, but for the peers in `send_costs_s`, whose writes cost them that
    much, those in `one_ways_s`, whose links delay so much either way, and those in `cities`, which are as far from
    each other as these. Any two peers of `ring` are `ring_one_way_s` apart. Each route draws from a generator made
    of the seed, its two peers and the number of streams before it between them.
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
    _windows: dict[tuple[str, str], SlowStart] = field(default_factory=dict, init=False, repr=False)

    def route(self, source: str, target: str) -> SeededRoute:
        """The route of a new stream's bytes from one peer to another."""
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
            window=self._windows.setdefault(pair, model.slow_start()),
        )
