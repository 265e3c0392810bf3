"""The result of a generation, with the fields of the command line's JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

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

    def told_options(self) -> tuple[str, ...]:
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
class Generation:
    """A finished generation. `rounds` counts the verifier's passes, `accepted` committed tokens that were drafted.

    `drafted` counts the nodes that drafters sent, `offered` the output positions with such a node: accepted by
    offered is the acceptance rate. `home_tokens` counts those of the verifier's own drafter. `cached_tokens` of the
    prompt were cached at the first verifier, by its statement. `origins` counts the tokens of the text by source.

    `coordinator` is `"verifier"` if one coordinated by a mandate to the end, else `"client"`. A verifier reports
    `drafted`, `offered` and round-trip times itself; signatures prove accepted tokens.

    `near_ties` counts committed tokens whose two best scores are so close that rounding may decide: within 1e-4 in
    float32; none of a verifier with the same bits in every pass. `numerics` are those of its verifiers
    (`cosine_protocol.numerics`). `audit` is None if a client audits nothing. `plain_pass_s` is the time of a pass
    without drafts, None without any.

    `text` is the whole text without special tokens. A chat's reply has `content`, `reasoning` of
    `reasoning_tokens` tokens, and `tool_calls`; otherwise `content` is the text. `stop_text` is the stop text that
    ended it. `accepted_prediction_tokens` counts tokens of a prediction in the text. `logprobs` has an entry for
    each of `token_ids`, `prompt_logprobs` for each token of the prompt, the first without a log-probability; both
    are empty unless requested.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    tokens: int
    finish_reason: str
    seconds: float
    time_to_first_token_s: float
    strategy: str
    seed: int
    rounds: int
    drafted: int
    offered: int
    accepted: int
    home_tokens: int = 0
    cached_tokens: int = 0
    origins: tuple[Origin, ...] = ()
    near_ties: int
    bytes_sent: int
    bytes_received: int
    drafters: tuple[DrafterReport, ...]
    verifiers: tuple[VerifierReport, ...]
    why: tuple[str, ...]
    coordinator: str = "client"
    generation_config: AppliedConfig = AppliedConfig()
    plain_pass_s: float | None = None
    audit: AuditReport | None = None
    content: str = ""
    reasoning: str = ""
    reasoning_tokens: int = 0
    tool_calls: tuple[ToolCall, ...] = ()
    stop_text: str | None = None
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[NamedToken, ...] = ()
    numerics: str = ""


class Observer(Protocol):
    """An object that is notified once of every generation."""

    def observe(self, done: Generation) -> None: ...

    def observe_abandoned(self, part: Generation) -> None:
        """Note a generation that failed or whose user left."""
