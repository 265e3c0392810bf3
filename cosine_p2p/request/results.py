"""The result of a generation, with the fields of the command line's JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from cosine_p2p.replies.parts import Part, ToolCall
from cosine_p2p.request.logprobs import NamedToken, TokenLogprob
from cosine_p2p.request.origins import Origin, TokenOrigin
from cosine_p2p.trust.audit_rule import AuditState
from cosine_p2p.trust.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Chunk:
    """New text from one `source`: a drafter's peer id, `"home"`, `"forced"` or `"target"`.

    `"home"` is the verifier's own drafter; `"forced"` tokens are the only ones that a constraint allows. Tokens of
    the target with `is_copied` were drafted from earlier text. `text` may be empty while a character or a possible
    stop string is incomplete. `parts` separate content, reasoning and calls. `logprobs`, if requested, and
    `origins` have an entry for each token.
    """

    text: str
    token_ids: tuple[int, ...]
    source: str
    is_copied: bool = False
    parts: tuple[Part, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    origins: tuple[TokenOrigin, ...] = ()


@dataclass(frozen=True, slots=True)
class DrafterReport:
    """One drafter's part: the numbers of nodes received and committed."""

    peer_id: str
    domain: str
    drafted: int
    accepted: int
    rtt_ms: float


@dataclass(frozen=True, slots=True)
class VerifierReport:
    """One verifier's part: the number of committed tokens. `drafts` explains why drafts do not pay there, if so."""

    peer_id: str
    rtt_ms: float
    tokens: int
    drafts: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedConfig:
    """The effect of the model's generation config on a text.

    `options` were applied; `not_honoured` names those that a swarm does not support, so that the text differs from
    that of `generate` of transformers.
    """

    options: Mapping[str, int | float] = field(default_factory=dict)
    not_honoured: tuple[str, ...] = ()

    def options_text(self) -> tuple[str, ...]:
        return tuple(f"{name} {value:g}" for name, value in self.options.items())


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The audit of a generation so far, with auditors' statements for each part that a verifier signed."""

    state: AuditState
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a generation.

    `serving` are the verifiers that have the request now, `tried` those that refused it or were lost, with the
    reason, `why` the latest of `decisions` decisions. `plain_pass_s` is the time of a pass without drafts, None
    before any; without `has_plain_pass` it is an upper bound.
    """

    tokens: int
    rounds: int
    accepted: int
    serving: tuple[str, ...]
    tried: tuple[str, ...]
    drafters: tuple[DrafterReport, ...]
    why: tuple[str, ...]
    decisions: int
    plain_pass_s: float | None = None
    has_plain_pass: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The tokens of a generation, with the names of OpenAI's API."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Tokens of the prompt that the first verifier had cached, by its own statement."""
    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    """Tokens of the given prediction that are in the text."""
    rejected_prediction_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmReport:
    """The swarm's part in a generation. Signatures prove `accepted`; the other figures are verifiers' claims."""

    strategy: str = ""
    rounds: int = 0
    """Passes of the verifiers."""
    drafted: int = 0
    """Nodes that drafters sent."""
    offered: int = 0
    """Positions of the output for which there was such a node: `accepted` by `offered` is the acceptance rate."""
    accepted: int = 0
    """Committed tokens that were drafted."""
    home_tokens: int = 0
    """Committed tokens that only the verifier's own drafter guessed."""
    origins: tuple[Origin, ...] = ()
    """Tokens of the text by source."""
    drafters: tuple[DrafterReport, ...] = ()
    verifiers: tuple[VerifierReport, ...] = ()
    numerics: str = ""
    """Those of the verifiers (`cosine_protocol.numerics`)."""
    near_ties: int = 0
    """Tokens whose two best scores are so close that rounding may decide: within 1e-4 in float32."""
    coordinator: str = "client"
    """`"verifier"` if one coordinated by a mandate to the end."""
    why: tuple[str, ...] = ()
    """The decisions about drafters, in words."""
    plain_pass_s: float | None = None
    """Time of a pass without drafts, if there was one."""
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A finished generation: the text, the tokens that it took, and how the swarm made it."""

    text: str
    """The whole text, without special tokens."""
    token_ids: tuple[int, ...]
    content: str = ""
    """The text, or of a chat's reply the answer."""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: Literal["stop", "length"]
    """`"stop"` at its own end or at a stop text, `"length"` at the limit of tokens."""
    stop_text: str | None = None
    """The stop text that ended it, if one did."""
    seed: int
    """Gives the same text again."""
    usage: Usage
    swarm: SwarmReport = SwarmReport()
    seconds: float
    time_to_first_token_s: float
    logprobs: tuple[TokenLogprob, ...] = field(default=(), repr=False)
    """An entry for each of `token_ids`, if requested."""
    prompt_logprobs: tuple[NamedToken, ...] = field(default=(), repr=False)
    """An entry for each token of the prompt, if requested; the first has no log-probability."""
    generation_config: AppliedConfig = AppliedConfig()
    audit: AuditReport | None = field(default=None, repr=False)
    """None if the client audits nothing."""


class Observer(Protocol):
    """An object that is notified once of every generation."""

    def observe(self, done: Generation) -> None: ...

    def observe_abandoned(self, part: Generation) -> None:
        """Note a generation that failed or whose user left."""
