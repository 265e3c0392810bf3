"""The plan of a generation: everything that is decided before a session runs. Pure.

A client checks options, finds peers and encodes the prompt; from these a plan is made. `forms_of` adapts it to
verifiers. No record restricts other verifiers: one with a short context or different numerics gets a separate form,
and the next form is tried if no verifier of the first one serves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import median_low
from types import MappingProxyType
from typing import Any, Final

from cosine_p2p.request.chat import Chat
from cosine_p2p.request.model_defaults import apply_defaults, default_sampling
from cosine_p2p.request.options import ClientOptions, GenerationOptions, window_of
from cosine_p2p.request.results import AppliedConfig
from cosine_p2p.session.job import AnnouncedVerifier, Job
from cosine_p2p.strategy.base import StrategyKind
from cosine_p2p.text.prompt import EncodedPrompt
from cosine_p2p.text.reply_form import ReplyForm
from cosine_p2p.trust.mandates import Coordination
from cosine_protocol.errors import OptionRefused, PromptTooLong, UsageError
from cosine_protocol.fields import fields_of
from cosine_protocol.records import NodeRecord
from cosine_protocol.request import (
    MAX_EOS_TOKENS,
    AskedLogprobs,
    Constraint,
    ConstraintKind,
    Request,
    Sampling,
    Shaping,
    TokenBias,
)
from cosine_protocol.verify import check_room

NO_LEVELS: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The checked request of a client's caller."""

    prompt: str | tuple[int, ...] | Chat | EncodedPrompt
    options: ClientOptions
    otherwise: GenerationOptions
    """Defaults of what neither the options nor the model's generation config set."""
    cache_scope: bytes | None = None

    def defaults_of(self, verifier: NodeRecord) -> AppliedConfig:
        """Return the values that the generation config of a verifier's model sets."""
        published = default_sampling(verifier, asked=self.options, otherwise=self.otherwise)
        return apply_defaults(published, asked=self.options, otherwise=self.otherwise)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The part of a request that is the same for all verifiers of the target."""

    tokens: tuple[int, ...]
    """The prompt."""
    options: Mapping[str, Any]
    """The options of the text with all defaults, bad words as tokens, and a forced call as its grammar."""
    client: str
    nonce: bytes
    seed: int
    """Used if the options have none."""


@dataclass(frozen=True, slots=True)
class RequestForm:
    """A form of a request, and the verifiers that serve it, best first."""

    request: Request
    verifiers: tuple[NodeRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPlan:
    """A generation before it runs."""

    ask: Ask
    options: ClientOptions
    """The checked options of the generation."""
    strategy: StrategyKind
    drafters: tuple[NodeRecord, ...]
    began_s: float
    """The start of the timeout, by the event loop's clock."""
    patience_s: float = 0.0
    applied: AppliedConfig = field(default_factory=AppliedConfig)
    """The values that the model's generation config has set."""
    reply: ReplyForm | None = None
    """The format of a chat's reply."""
    prediction: tuple[int, ...] | None = None
    cache_scope: bytes | None = None

    def job(self, form: RequestForm) -> Job:
        """Return the job of one form."""
        return Job(
            request=form.request,
            strategy=self.strategy,
            verifiers=AnnouncedVerifier.by_peer(form.verifiers),
            drafters=self.drafters,
            deadline_s=self.began_s + self.options["timeout_s"],
            patience_s=self.patience_s,
            prediction=self.prediction,
            cache_scope=self.cache_scope,
            coordination=Coordination(self.options["coordination"]),
            prompt_window_tokens=window_of(self.options),
        )


def forms_of(
    ask: Ask, verifiers: Sequence[NodeRecord], *, standing: Mapping[str, int] = NO_LEVELS
) -> list[RequestForm]:
    """Return the forms of a request that ranked verifiers of one target serve, best first.

    Raises `PromptTooLong`, and `OptionRefused` for too many EOS tokens, an invalid constraint, or log-probabilities
    beyond the limit.
    """
    whole, tokens = _whole_request(ask, verifiers[0]), ask.tokens
    forms: list[RequestForm] = []
    for numerics in dict.fromkeys(record.numerics for record in verifiers):
        rooms = {record: record.context_tokens - len(tokens) for record in verifiers if record.numerics == numerics}
        if able := tuple(record for record, room in rooms.items() if room >= whole.max_new_tokens):
            forms.append(RequestForm(replace(whole, numerics=numerics), able))
        if short := {record: room for record, room in rooms.items() if 1 <= room < whole.max_new_tokens}:
            usual = median_low(short.values())
            able = tuple(record for record, room in short.items() if room >= usual)
            forms.append(RequestForm(replace(whole, numerics=numerics, max_new_tokens=usual), able))
    if not forms:
        longest = max(verifier.context_tokens for verifier in verifiers)
        # Claude Code, LiteLLM and Aider recognise these words.
        raise PromptTooLong(
            f"The prompt is too long: {len(tokens)} tokens > {longest - 1} that fit into the target's context "
            "with a text; shorten it."
        )

    def rank(form: RequestForm) -> tuple[int, bool, bool]:
        """The highest standing first; without standing, contexts that others can judge."""
        level = max(standing.get(record.peer_id, 0) for record in form.verifiers)
        is_cramped = form.request.max_new_tokens < whole.max_new_tokens
        needed = len(tokens) + form.request.max_new_tokens
        judges = sum(record.context_tokens >= needed for record in verifiers)
        is_odd = not level and (len(form.verifiers) == 1 if is_cramped else 2 * judges < len(verifiers))
        return -level, is_odd, is_cramped

    return sorted(_within_log_probability_limit(forms), key=rank)


def _whole_request(ask: Ask, target: NodeRecord) -> Request:
    """Return the request at the full length. All records of a target have the same tokenizer and EOS ids."""
    wanted, eos = ask.options, _ends(target, ask.options)
    parameters: dict[str, Any] = {
        "seed": ask.seed,
        **wanted,
        "shaping": _shaping(wanted, eos),
        "constraint": _constraint(wanted, eos),
    }
    of_output, of_prompt = wanted.get("logprobs"), wanted.get("prompt_logprobs")
    logprobs = None
    if of_output is not None or of_prompt is not None:
        logprobs = AskedLogprobs(max(of_output or 0, of_prompt or 0), of_prompt is not None)
    return Request(
        target_digest=target.target_digest,
        tokenizer_digest=target.tokenizer_digest,
        numerics=target.numerics,
        prompt=ask.tokens,
        sampling=Sampling(**{each.name: parameters[each.name] for each in fields(Sampling)}),
        eos=eos,
        client=ask.client,
        nonce=ask.nonce,
        max_new_tokens=wanted["max_new_tokens"],
        logprobs=logprobs,
    )


def _within_log_probability_limit(forms: Sequence[RequestForm]) -> list[RequestForm]:
    """Return the forms whose log-probabilities fit the limit. Raises `OptionRefused` if none does."""
    found, refusal = [], ""
    for form in forms:
        request, asked = form.request, form.request.logprobs
        try:
            if asked is not None:
                check_room(
                    prompt_tokens=len(request.prompt),
                    new_tokens=request.max_new_tokens,
                    top=asked.top,
                    of_prompt=asked.of_prompt,
                )
            found.append(form)
        except UsageError as error:
            refusal = str(error)
    if not found:
        raise OptionRefused("logprobs", refusal)
    return found


def _ends(target: NodeRecord, wanted: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the tokens that end a text. Raises `OptionRefused` for too many."""
    own = target.eos if wanted.get("eos") is None else wanted["eos"]
    eos = tuple(dict.fromkeys((*(() if wanted.get("ignore_eos") else own), *wanted.get("stop_token_ids", ()))))
    if len(eos) > MAX_EOS_TOKENS:
        raise OptionRefused(
            "stop_token_ids", f"At most {MAX_EOS_TOKENS} tokens may end a text, with the target's own; give fewer."
        )
    return eos


def _shaping(wanted: Mapping[str, Any], eos: tuple[int, ...]) -> Shaping | None:
    given = {name: wanted[name] for name, _ in fields_of(Shaping) if name in wanted}
    given["logit_bias"] = tuple(TokenBias(*each) for each in sorted(wanted.get("logit_bias", {}).items()))
    if not eos:
        given["min_tokens"] = 0
    shaping = Shaping(**given, held_back=eos if given.get("min_tokens") else ())
    return None if shaping == Shaping() else shaping


def _constraint(wanted: Mapping[str, Any], eos: tuple[int, ...]) -> Constraint | None:
    kinds = [kind for kind in ConstraintKind if wanted.get(kind.option) is not None]
    if not kinds:
        return None
    name = kinds[0].option
    if len(kinds) > 1:
        raise OptionRefused(
            name, f"{' and '.join(kind.option for kind in kinds)} constrain the text: give one of them."
        )
    if not eos:
        raise OptionRefused(name, f"With {name} a text must be able to end, and here no token ends it.")
    if wanted.get("bad_words") or wanted.get("min_tokens"):
        raise OptionRefused(name, f"{name} goes with no bad_words, nor with min_tokens.")
    try:
        return Constraint(kinds[0], wanted[name], eos)
    except UsageError as error:
        raise OptionRefused(name, str(error)) from None
