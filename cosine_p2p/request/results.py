"""The result of a generation: the fields of the command line's JSON, as values."""

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
    """Text as it comes, from one `source`: a drafter's peer id, `"home"`, `"forced"` or `"target"`.

    `"home"` is the verifier's own drafter; `"forced"` is where a constraint left no choice. Tokens of the target
    with `is_copied` were found earlier in the text and verified. `text` may be empty while a character or a
    possible stop string is incomplete. `parts` separate content, reasoning and calls. `logprobs`, where asked for,
    and `origins` have one for each token.
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
    """One drafter's part: nodes received and nodes committed."""

    peer_id: str
    domain: str
    drafted: int
    accepted: int
    rtt_ms: float


@dataclass(frozen=True, slots=True)
class VerifierReport:
    """One verifier's part: output tokens it committed. `drafts` says why drafts do not pay there, if so."""

    peer_id: str
    rtt_ms: float
    tokens: int
    drafts: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedConfig:
    """The part of the model's own generation config in a text.

    `options` are those that it gave; `not_honoured` names those that a swarm cannot follow, so that the text is not
    that of `generate` of transformers.
    """

    options: Mapping[str, int | float] = field(default_factory=dict)
    not_honoured: tuple[str, ...] = ()

    def told_options(self) -> tuple[str, ...]:
        return tuple(f"{name} {value:g}" for name, value in self.options.items())


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The audit of a generation so far: for each part that a verifier signed, what auditors said."""

    state: AuditState
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A generation under way.

    `serving` are the verifiers that have the request now, `tried` those that refused it or were lost, with the
    reason, `why` the latest of `decisions` decisions. `plain_pass_s` is a pass without drafts, None before any;
    without `has_plain_pass` it is an upper bound.
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

    `drafted` counts the nodes that drafters sent, `offered` the output positions for which one had come: accepted
    by offered is the acceptance rate. `home_tokens` were drafted by the verifier's own drafter alone.
    `cached_tokens` of the prompt the first verifier knew, by its own word. `origins` counts the tokens of the text
    by source.

    `coordinator` is `"verifier"` where one coordinated by a mandate to the end, else `"client"`. Then `drafted`,
    `offered` and round-trip times are the verifier's word; accepted tokens are proven by signatures.

    `near_ties` counts committed tokens whose two best scores lay so close that rounding may decide: within 1e-4 in
    float32. `numerics` are those of its verifiers (`cosine_protocol.numerics`). `audit` is None where a client
    audits nothing. `plain_pass_s` is a pass without drafts, None without any.

    `text` is all that was written, without special tokens. Of a chat's reply `content` is what it says, `reasoning`
    what it thinks before, in `reasoning_tokens`, and `tool_calls` its calls; else `content` is the text.
    `stop_text` is the stop text that ended it. `accepted_prediction_tokens` of a prediction came in the text,
    others did not. `logprobs` has one for each of `token_ids`, `prompt_logprobs` for each token of the prompt, the
    first without a log-probability; both are empty unless asked for.
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
    """Told of every generation once, however it ends."""

    def observe(self, done: Generation) -> None: ...

    def observe_abandoned(self, part: Generation) -> None:
        """Its user left, or it failed; its end means nothing."""
