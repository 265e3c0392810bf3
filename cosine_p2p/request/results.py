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
    """Text as it comes. `source` is the peer id of the drafter whose tokens these are, `"home"` for
    the verifier's own drafter, `"forced"` where the request's constraint left no choice, or `"target"`.

    Of the target's tokens those with `is_copied` were found earlier in the text (prompt lookup) and verified, the
    others decoded. `text` may be empty while a character or a possible stop string is incomplete. `parts` tell
    apart what the text says, thinks and calls, as soon as it is certain; of a prompt that is no chat all is said.
    `logprobs` has one for each token, where they are asked for, `origins` says of each whose it is.
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

    `options` are those that it gave, with their values; `not_honoured` names those that it sets and a swarm cannot
    follow, so that the text is not that of `generate` of transformers.
    """

    options: Mapping[str, int | float] = field(default_factory=dict)
    not_honoured: tuple[str, ...] = ()

    def told_options(self) -> tuple[str, ...]:
        """Each option with its value, for people."""
        return tuple(f"{name} {value:g}" for name, value in self.options.items())


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The audit of a generation, as far as it had come: for each part that a verifier signed, what auditors said.

    `cosine-node audit` reads it: parts that nobody has judged can be audited later.
    """

    state: AuditState
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A generation under way, as far as it has come.

    `serving` are the verifiers that have the request now, `tried` those that refused it or were lost, with the
    reason, `why` the latest of `decisions` decisions. `plain_pass_s` is what a pass without drafts takes, by the
    passes of this request, None before any; without `has_plain_pass` all had drafts, and it takes no longer.
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

    `drafted` counts the nodes that drafters sent, on all branches, `offered` the positions of the output for which
    one of them had come: accepted by offered is the acceptance rate. `home_tokens` were drafted by the verifier's
    own drafter, if it has one, and by nobody else in time. `cached_tokens` of the prompt the first verifier knew
    already, by its own word. `origins` counts the tokens of the text by who they are
    from; where a stop string cut a commit, less than was committed.

    `coordinator` is `"verifier"` where one coordinated the drafters by a mandate to the end, else `"client"`. Then
    `drafted`, `offered` and the drafters' round-trip times, from there, are the verifier's word; accepted tokens
    are proven by their drafters' signatures all the same.

    `near_ties` counts committed tokens whose two best scores lay so close that rounding may decide in the target's
    data type: within 1e-4 in float32. `numerics` are those of its verifiers (`cosine_protocol.numerics`).
    `audit` is None where a client audits nothing at all. `plain_pass_s` is what a pass without drafts took in this
    request, None where there was none.

    `text` is all that was written, without special tokens. Of a chat's reply `content` is what it says,
    `reasoning` what it thinks before that, in so many `reasoning_tokens`, and `tool_calls` are the functions that
    it calls. Of any other prompt `content` is the text. `stop_text` is the stop text that ended it, if one did.

    Of a prediction `accepted_prediction_tokens` came in the text, where that had come to in it, and
    `rejected_prediction_tokens` did not.

    `logprobs` has one for each of `token_ids`, `prompt_logprobs` one for each token of the prompt, of which the
    first is without a log-probability; both are empty where they are not asked for.
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
        """Its user left, or it failed; what it says of its end means nothing."""
        ...
