"""Seeded links for the in-memory network: delay, jitter, loss, rate, processing and partitions.

A write waits for its sender, then for every partition between the two peers, then for the wire, and is readable
after the one-way delay, the jitter and the retransmissions of its lost packets, never before an earlier write of
its stream: TCP delivers in order, so one lost packet holds up all that follows.

What a lost packet costs is TCP's retransmission timeout. RFC 6298 (2.3) sets it to SRTT + max(G, 4 RTTVAR). Its
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

from cosine_protocol.errors import UsageError

PACKET_BYTES: Final = 1200
RTO_FLOOR_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkModel:
    """One direction between two peers. Raises `UsageError` for what no link can have.

    `jitter_s` is the mean of an exponential delay added to each write, `loss` the probability that a packet of
    `PACKET_BYTES` is lost, `retransmit_s` the delay each lost packet adds (by default the timeout of the module
    docstring), `rate_bytes_per_s` what the wire takes in, one write after the other, and `send_cost_s` the time
    the sending peer works on each write, during which it works on no other.
    """

    one_way_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    retransmit_s: float | None = None
    rate_bytes_per_s: float = math.inf
    send_cost_s: float = 0.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None and not value >= 0:
                raise UsageError(f"A link's {item.name} is at least 0, not {value}.")
        if self.loss >= 1 or self.rate_bytes_per_s == 0:
            raise UsageError("A link loses less than every packet and has a rate above 0.")

    @property
    def timeout_s(self) -> float:
        """What a lost packet costs. The mean deviation of both ways' jitter is taken as one `jitter_s`."""
        if self.retransmit_s is not None:
            return self.retransmit_s
        return 2 * (self.one_way_s + self.jitter_s) + max(RTO_FLOOR_S, 4 * self.jitter_s)

    def shortest_s(self, size_bytes: int) -> float:
        """The time of a write on an idle link that neither loses nor delays a packet."""
        return self.send_cost_s * (size_bytes > 0) + size_bytes / self.rate_bytes_per_s + self.one_way_s


def slower(a: LinkModel, b: LinkModel) -> LinkModel:
    """A link with the worse of two links' properties, each by itself."""
    return LinkModel(
        one_way_s=max(a.one_way_s, b.one_way_s),
        jitter_s=max(a.jitter_s, b.jitter_s),
        loss=max(a.loss, b.loss),
        retransmit_s=max((t for t in (a.retransmit_s, b.retransmit_s) if t is not None), default=None),
        rate_bytes_per_s=min(a.rate_bytes_per_s, b.rate_bytes_per_s),
        send_cost_s=max(a.send_cost_s, b.send_cost_s),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """From `start_s` until `end_s` nothing passes between the peers of `group` and all others."""

    start_s: float
    end_s: float
    group: frozenset[str]

    def __post_init__(self) -> None:
        if not self.start_s < self.end_s:
            raise UsageError("A partition ends after it starts.")

    def parts(self, a: str, b: str) -> bool:
        """Whether it comes between two peers."""
        return (a in self.group) != (b in self.group)


@dataclass(slots=True)
class Turnstile:
    """Lets one through at a time: who comes while it is taken waits until it is free."""

    free_s: float = 0.0

    def leave_s(self, arrival_s: float, takes_s: float) -> float:
        """When one who arrives then is through. Asked in the order in which they are let in."""
        self.free_s = max(self.free_s, arrival_s) + takes_s
        return self.free_s


class SeededRoute:
    """One direction of one stream, as the network's `Route`.

    `partitions` are those between its two peers. Streams over the same direction share its `wire`, and all
    streams of a peer share its `sender`. Openings and ends of streams (0 bytes) cost no processing and no rate.
    """

    def __init__(
        self,
        model: LinkModel,
        rng: Random,
        partitions: tuple[Partition, ...] = (),
        *,
        wire: Turnstile | None = None,
        sender: Turnstile | None = None,
    ) -> None:
        self.model = model
        self._rng = rng
        self._partitions = partitions
        self._wire = wire or Turnstile()
        self._sender = sender or Turnstile()
        self._newest_s = 0.0

    def arrival_s(self, now_s: float, size_bytes: int) -> float:
        """When a write is readable; `math.inf` behind a partition without end."""
        model = self.model
        sent_s = self._sender.leave_s(now_s, model.send_cost_s) if size_bytes else now_s
        begun_s = self._pass_partitions(max(sent_s, self._wire.free_s))
        left_s = self._wire.leave_s(begun_s, size_bytes / model.rate_bytes_per_s) if size_bytes else begun_s
        delay_s = model.one_way_s + self._jitter_s() + self._lost_packets(size_bytes) * model.timeout_s
        self._newest_s = max(self._newest_s, left_s + delay_s)
        return self._newest_s

    def _pass_partitions(self, at_s: float) -> float:
        """When what is ready at `at_s` gets through: at once, or one timeout after the partition has healed."""
        while ends := [p.end_s for p in self._partitions if p.start_s <= at_s < p.end_s]:
            at_s = max(ends) + self.model.timeout_s
        return at_s

    def _jitter_s(self) -> float:
        return self._rng.expovariate(1 / self.model.jitter_s) if self.model.jitter_s else 0.0

    def _lost_packets(self, size_bytes: int) -> int:
        if not self.model.loss:
            return 0
        packets = max(1, math.ceil(size_bytes / PACKET_BYTES))
        return sum(self._rng.random() < self.model.loss for _ in range(packets))


def seeded(seed: int, *names: object) -> Random:
    """A generator of its own for each list of names, the same in every process and on every machine."""
    text = repr((seed, *map(str, names)))
    return Random(int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "big"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTable:
    """Who has which link, and the source of every stream's routes: pass `route` to one `MemoryNetwork`.

    `pairs` holds single directions (sender, receiver) and goes before `peers`, which holds for everything to and
    from a peer and goes before `default`; between two peers of their own, each property is the worse one.
    `send_costs_s` sets what one peer's writes cost it, whatever its links say. Each route draws from a generator
    made of the seed, its two peers and the number of streams before it between them.
    """

    seed: int
    default: LinkModel = field(default_factory=LinkModel)
    peers: Mapping[str, LinkModel] = field(default_factory=dict)
    pairs: Mapping[tuple[str, str], LinkModel] = field(default_factory=dict)
    send_costs_s: Mapping[str, float] = field(default_factory=dict)
    partitions: tuple[Partition, ...] = ()
    _opened: Counter[tuple[str, str]] = field(default_factory=Counter, init=False, repr=False)
    _wires: dict[tuple[str, str], Turnstile] = field(default_factory=dict, init=False, repr=False)
    _senders: dict[str, Turnstile] = field(default_factory=dict, init=False, repr=False)

    def model(self, source: str, target: str) -> LinkModel:
        """The link from one peer to another."""
        model = self.pairs.get((source, target)) or self._between(source, target)
        cost_s = self.send_costs_s.get(source)
        return model if cost_s is None else replace(model, send_cost_s=cost_s)

    def _between(self, source: str, target: str) -> LinkModel:
        ours = [self.peers[peer] for peer in (source, target) if peer in self.peers]
        return slower(ours[0], ours[-1]) if ours else self.default

    def route(self, source: str, target: str) -> SeededRoute:
        """The route of a new stream's bytes from one peer to another."""
        pair = (source, target)
        number = self._opened[pair]
        self._opened[pair] += 1
        return SeededRoute(
            self.model(source, target),
            seeded(self.seed, source, target, number),
            tuple(partition for partition in self.partitions if partition.parts(source, target)),
            wire=self._wires.setdefault(pair, Turnstile()),
            sender=self._senders.setdefault(source, Turnstile()),
        )
