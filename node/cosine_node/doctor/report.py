"""A report of the doctor's findings that is safe to publish."""

import os
import platform
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from ipaddress import ip_address
from typing import Final

from cosine_engine.processor import processor_name
from cosine_node.doctor.finding import Finding
from cosine_p2p.transport.addresses import Scope, scope_of
from cosine_p2p.transport.reach import parsed
from cosine_protocol.__version__ import __version__

PACKAGES: Final = ("torch", "transformers", "numba", "hivemind", "libp2p", "xllamacpp", "starlette")
KINDS: Final = {
    Scope.PUBLIC: "public",
    Scope.PRIVATE: "private",
    Scope.LOOPBACK: "loopback",
}
PEER: Final = re.compile(r"\b(?:12D3KooW[1-9A-HJ-NP-Za-km-z]{44}|Qm[1-9A-HJ-NP-Za-km-z]{44})\b")
MULTIADDR: Final = re.compile(r"/(?:ip4|ip6|dns|dns4|dns6|dnsaddr)/[^\s,;'\"`)]+")
URL: Final = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s,;'\"`)]+")
HOST: Final = re.compile(
    r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4})(?![\w.:])", re.I
)
PATH: Final = re.compile(r"(?<![\w/.~])~?/(?:[^\s,;:'\"`()]+/)*[^\s/,;:'\"`()]*")


class Redaction:
    """Replaces identifying text: addresses by their kind, peers by numbers, and paths."""

    def __init__(self) -> None:
        self._peers: dict[str, int] = {}

    def __call__(self, text: str) -> str:
        text = URL.sub("<url>", text)
        text = MULTIADDR.sub(lambda found: self._address(found[0]), text)
        text = PEER.sub(lambda found: self._peer(found[0]), text)
        text = HOST.sub(lambda found: _host(found[0]), text)
        return PATH.sub("<path>", text)

    def _address(self, maddr: str) -> str:
        address = parsed(maddr)
        if address is None:
            return "<address>"
        kind = "named" if address.host_kind.startswith("dns") else _kind(address.host)
        peers = ", ".join(map(self._peer, address.peer_ids))
        return f"<{kind} address, {address.port_kind}{f', of {peers}' if peers else ''}>"

    def _peer(self, peer_id: str) -> str:
        return f"<peer {self._peers.setdefault(peer_id, len(self._peers) + 1)}>"


def _host(text: str) -> str:
    try:
        ip_address(text)
    except ValueError:
        return text
    return f"<{_kind(text)} address>"


def _kind(host: str) -> str:
    return KINDS.get(scope_of(host), "other")


def report_of(findings: Sequence[Finding]) -> str:
    """Return the report in Markdown."""
    redact = Redaction()
    lines = [
        f"- {finding.status}: {finding.what}: {finding.found}{f' -> {finding.fix}' if finding.fix else ''}"
        for finding in findings
    ]
    return "\n".join(["### Machine", "", *_machine(), "", "### Checks", "", *map(redact, lines), ""])


def _machine() -> Iterator[str]:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield f"- CoSine P2P {__version__}, Python {platform.python_version()}"
    yield f"- {platform.system()} {platform.release()}, {processor_name()}, {memory_bytes / 2**30:.1f} GiB"
    yield f"- {', '.join(_versions())}"


def _versions() -> Iterator[str]:
    for name in PACKAGES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
