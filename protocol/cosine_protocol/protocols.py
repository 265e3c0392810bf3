"""Protocol ids and which messages each one carries, and the rules of a stream's start."""

from types import MappingProxyType
from typing import Final

from cosine_protocol import messages as m
from cosine_protocol.errors import MalformedMessage
from cosine_protocol.messages import AskAudit, AskFile, Audited, FilePiece, Member, Receipted, Revoked
from cosine_protocol.stage_messages import (
    Activations,
    FeedPass,
    Follow,
    Join,
    Joined,
    KeepPath,
    OpenSequence,
    PruneNodes,
    ReleaseSequence,
    ReserveRoom,
    Results,
    ReusePrefix,
)

# Plain names, see docs/protocol.md.
VERSION: Final = 1
VERIFY: Final = "/cosine/verify/2.0.0"
DRAFT: Final = "/cosine/draft/2.0.0"
DISCOVER: Final = "/cosine/discover/1.0.0"
STATUS: Final = "/cosine/status/1.0.0"
AUDIT: Final = "/cosine/audit/1.0.0"
STAGE: Final = "/cosine/stage/1.0.0"

MANDATES: Final = "mandate"
"""The feature of ends that know mandates (docs/protocol.md, section 3)."""

RECEIPTS: Final = "receipt"
"""The feature of ends that know receipts (docs/protocol.md, section 3)."""

WINDOWS: Final = "window"
"""The feature of ends that know windows of prompts (docs/protocol.md, section 3)."""

LEARNING: Final = "learn"
"""The feature of drafters that learn, which no other end names (docs/protocol.md, section 3)."""

_COMMON = frozenset({Member, Revoked, m.Hello, m.Ping, m.Pong, m.Error})

MESSAGES: Final = MappingProxyType(
    {
        VERIFY: _COMMON
        | {m.Open, m.Opened, m.Tree, m.Commit, m.Cancel, m.Final}
        | {m.Delegate, m.Declined, m.Revoke, m.Credit, m.Report, Receipted},
        DRAFT: _COMMON
        | {m.Start, m.Started, m.Assign, m.Fragment, m.Advance, m.Busy, m.Release, m.Final, Receipted},
        DISCOVER: _COMMON | {m.AskRecords, m.Records, AskFile, FilePiece},
        STATUS: _COMMON | {m.AskStatus, m.Status},
        AUDIT: _COMMON | {AskAudit, Audited},
        STAGE: _COMMON
        | {Join, Joined, Follow, OpenSequence, ReusePrefix, ReserveRoom, FeedPass, Activations}
        | {KeepPath, PruneNodes, ReleaseSequence, Results},
    }
)


def check_allowed(protocol: str, message: m.Message) -> None:
    """Raises `MalformedMessage` for a message that does not belong on this protocol."""
    if type(message) not in MESSAGES[protocol]:
        raise MalformedMessage(f"{type(message).__name__} does not belong on {protocol}")


def common_features(ours: tuple[str, ...], hello: m.Hello) -> frozenset[str]:
    """Features both ends have. Raises `MalformedMessage` for another major version."""
    if hello.version != VERSION:
        raise MalformedMessage(f"the peer speaks version {hello.version}, we speak {VERSION}")
    return frozenset(ours) & frozenset(hello.features)
