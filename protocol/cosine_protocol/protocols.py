"""Protocol ids, the registry of the messages that each one carries, and the rules of a stream's start."""

from types import MappingProxyType
from typing import Final

from cosine_protocol import messages as m
from cosine_protocol import stage_messages as s
from cosine_protocol.errors import MalformedMessage
from cosine_protocol.request import Request

VERSION: Final = 1
VERIFY: Final = "/cosine/verify/2.0.0"
DRAFT: Final = "/cosine/draft/2.0.0"
DISCOVER: Final = "/cosine/discover/1.0.0"
STATUS: Final = "/cosine/status/1.0.0"
AUDIT: Final = "/cosine/audit/1.0.0"
STAGE: Final = "/cosine/stage/1.0.0"
WEIGHTS: Final = "/cosine/weights/1.0.0"

# Features that ends name in their hello (docs/protocol.md, section 3): they know mandates, windows of
# prompts, the shaping of scores, constraints of texts, log-probabilities, probes or times of stages; and a drafter
# learns.
MANDATES: Final = "mandate"
WINDOWS: Final = "window"
SHAPING: Final = "shaping"
CONSTRAINTS: Final = "constraint"
LOGPROBS: Final = "logprobs"
PROBES: Final = "probe"
TIMES: Final = "times"
LEARNING: Final = "learn"

_COMMON: Final = {1: m.Hello, 2: m.Ping, 3: m.Pong, 4: m.Error, 96: m.Member, 97: m.Revoked}

MESSAGES: Final = MappingProxyType(
    {
        VERIFY: _COMMON
        | {5: m.Final, 16: m.Open, 17: m.Opened, 18: m.Tree, 21: m.Commit, 22: m.Cancel}
        | {23: m.Delegate, 24: m.Declined, 25: m.Revoke, 26: m.Credit, 27: m.Report, 28: m.PromptLikelihoods},
        DRAFT: _COMMON
        | {5: m.Final, 32: m.Start, 33: m.Started, 34: m.Assign, 35: m.Fragment, 36: m.Advance}
        | {37: m.Busy, 38: m.Release},
        DISCOVER: _COMMON | {48: m.AskRecords, 49: m.Records, 50: m.AskFile, 51: m.FilePiece},
        STATUS: _COMMON | {64: m.AskStatus, 65: m.Status},
        AUDIT: _COMMON | {80: m.AskAudit, 81: m.Audited},
        STAGE: _COMMON
        | {112: s.Join, 113: s.Joined, 114: s.Follow, 115: s.OpenSequence, 116: s.ReusePrefix}
        | {117: s.ReserveRoom, 118: s.FeedPass, 119: s.Activations, 120: s.KeepPath, 121: s.PruneNodes}
        | {122: s.ReleaseSequence, 123: s.Results, 124: s.Probe, 125: s.Probed, 126: s.Passed},
        WEIGHTS: _COMMON | {128: m.AskWeights, 129: m.WeightBytes},
    }
)
"""By protocol the messages it carries, by their tags on the wire. A tag never changes its meaning."""

TAGS: Final[MappingProxyType[int, type]] = MappingProxyType(
    dict(sorted({tag: cls for messages in MESSAGES.values() for tag, cls in messages.items()}.items()))
)
TAG_OF: Final = MappingProxyType({cls: tag for tag, cls in TAGS.items()})


def check_allowed(protocol: str, message: m.Message) -> None:
    """Raises `MalformedMessage` for a message that does not belong on this protocol."""
    if TAG_OF[type(message)] not in MESSAGES[protocol]:
        raise MalformedMessage(f"{type(message).__name__} does not belong on {protocol}")


def features_of(request: Request) -> frozenset[str]:
    """The features without which a peer would take a request for another one."""
    sampling = request.sampling
    given = {SHAPING: sampling.shaping, CONSTRAINTS: sampling.constraint, LOGPROBS: request.logprobs}
    return frozenset(name for name, value in given.items() if value is not None)


def common_features(ours: tuple[str, ...], hello: m.Hello) -> frozenset[str]:
    """Features both ends have. Raises `MalformedMessage` for another major version."""
    if hello.version != VERSION:
        raise MalformedMessage(f"the peer speaks version {hello.version}, we speak {VERSION}")
    return frozenset(ours) & frozenset(hello.features)
