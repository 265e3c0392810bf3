"""The page's questions about the machine that serves it, which the packages of a node answer."""

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Protocol

from starlette.requests import Request

from cosine_gateway.body import Json
from cosine_p2p.survey import NodeSight
from cosine_protocol.records import NodeRecord


class PageMachine(Protocol):
    """The machine that serves a page. `target` is a client's target; `records` are of the nodes that answer."""

    async def facts(self, target: str, records: Sequence[NodeRecord]) -> Json:
        """Return resources, reachability, and the layers of the target that fit."""

    async def advice(self, target: str, *, way: tuple[str, ...], nodes: Sequence[NodeSight]) -> Json:
        """Measure the machine and suggest commands with `way`, the network's arguments. Raises `UsageError`."""

    def stages(self, records: Sequence[NodeRecord]) -> Json:
        """Return the layers that stages hold as `coverage`, and the expected speed of models as `outlook`."""

    def join_options(self, numerics: str) -> tuple[str, ...]:
        """Return the options of `cosine-node verify` for these numerics."""


def is_here(request: Request) -> bool:
    """Return True if a request comes from this machine; others may not read its facts."""
    try:
        return request.client is not None and ip_address(request.client.host).is_loopback
    except ValueError:
        return False
