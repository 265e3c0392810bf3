"""A running generation: its sessions one after the other, and its result."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from cosine_p2p.directory.draft_cost import drafts_sentence
from cosine_p2p.own_texts.folders import OwnTexts
from cosine_p2p.replies.parts import Reply
from cosine_p2p.request.logprobs import NamedToken
from cosine_p2p.request.results import (
    AppliedConfig,
    Chunk,
    Generation,
    Observer,
    Progress,
    SwarmReport,
    Usage,
    VerifierReport,
)
from cosine_p2p.session.auditing import Auditing, FailoverCheck, StreamAudit, TextAccused
from cosine_p2p.session.delegation import Coordinator
from cosine_p2p.session.job import Shared
from cosine_p2p.session.peer_search import Forms
from cosine_p2p.session.plan import GenerationPlan, RequestForm
from cosine_p2p.session.probation import Probation
from cosine_p2p.session.reply_text import ReplyText
from cosine_p2p.session.request_log import RequestLogger
from cosine_p2p.session.session import Session
from cosine_p2p.session.upstream import Tokens
from cosine_p2p.session.warm_spare import WarmSpare
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.transport.link import Links
from cosine_p2p.transport.patience import end_all
from cosine_protocol.errors import GenerationFailed, GenerationTimedOut, OptionRefused, UsageError
from cosine_protocol.request import Request
from cosine_protocol.stream import FinishReason
from cosine_protocol.verify import VERIFY, Pacing

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The parts of a client that all its generations use."""

    links: Links
    shared: Shared
    auditing: Auditing
    probation: Probation
    own_texts: OwnTexts | None = None
    """Texts of the user to draft from."""
    observer: Observer | None = None


class Run:
    """A running generation: iterate `chunks`, then read `result`.

    The next of the request's forms is used if a session ended without a commit.
    """

    def __init__(self, plan: GenerationPlan, codec: TextTokenizer, forms: Forms, host: Host) -> None:
        self._plan = plan
        self._forms = forms
        self._host = host
        first = forms.take()
        assert first is not None
        self._session = self._session_for(first)
        self._log = RequestLogger(logger, self._session.d_0)
        self._text = ReplyText(plan, codec, self._session.d_0)
        self._audit: StreamAudit | None = None
        self._began_s = self._ended_s = asyncio.get_running_loop().time()
        self._first_s: float | None = None
        self._bytes = host.links.traffic()

    def _session_for(self, form: RequestForm) -> Session:
        host, job, own = self._host, self._plan.job(form), None
        if host.own_texts is not None and job.strategy.pacing is Pacing.FREE:
            own = host.own_texts.drafts(job.request.prompt)
        return Session(job, host.shared, others=self._forms, own_drafts=own)

    @property
    def request(self) -> Request:
        return self._session.job.request

    @property
    def generation_config(self) -> AppliedConfig:
        return self._plan.applied

    @property
    def verifiers(self) -> tuple[str, ...]:
        """The peer ids of the verifiers that may be asked, best first."""
        return tuple(self._session.verifiers)

    @property
    def prompt_logprobs(self) -> tuple[NamedToken, ...]:
        """Log-probabilities of the prompt; empty unless requested, and before the first commit."""
        return self._text.told.of_prompt(self.request.prompt, self._session.prompt_likelihoods)

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Yield chunks as tokens are committed, to the maximum length, an EOS token or a stop string."""
        stream, text = self._stream(), self._text
        is_whole = False
        self._log.info("%d prompt tokens", len(self.request.prompt))
        try:
            async for tokens in stream:
                if self._first_s is None:
                    self._first_s = asyncio.get_running_loop().time()
                for chunk in text.add(tokens, self.request, self._session.ledger.peer_ids):
                    yield chunk
                if text.is_stopped and not text.is_ended:
                    break
            is_whole = True
        finally:
            await stream.aclose()
            self._ended_s = asyncio.get_running_loop().time()
            reason = self._finish_reason() if is_whole else "given up"
            self._log.info("%d tokens, %s", len(text.token_ids), reason)
            if is_whole:
                self._finish()
            if (observer := self._host.observer) is not None:
                (observer.observe if is_whole else observer.observe_abandoned)(self.result())

    async def _stream(self) -> AsyncGenerator[Tokens, None]:
        host, options = self._host, self._plan.options
        while True:
            session = self._session
            stream = checked = session.stream()
            if host.shared.mandates is not None and options["audit"]:
                check = FailoverCheck(session, mandates=host.shared.mandates, auditing=host.auditing)
                checked = check.checked(stream)
            spare = WarmSpare(session, host.shared)
            warming = [asyncio.ensure_future(spare.run())] if options["warm_spare"] else []
            try:
                async for tokens in checked:
                    yield tokens
                return
            except OptionRefused as refused:
                if self._plan.reply is not None and self._plan.reply.grammar is not None:
                    refused = OptionRefused("tools", f"A call of these tools cannot be forced: {refused}")
                raise refused from None
            except GenerationTimedOut:
                raise
            except TextAccused:
                # The transcript that its author signed may convict it.
                self._finish(audited_share=1.0)
                raise
            except GenerationFailed:
                other = None if session.output else self._forms.take()
                if other is None:
                    raise
                self._session = self._session_for(other)
                self._session.counts.tried[:0] = session.counts.tried
                self._log.info("asked again of verifiers with %s", self.request.numerics)
            finally:
                await end_all(warming)
                await checked.aclose()
                await stream.aclose()

    def _finish(self, *, audited_share: float | None = None) -> None:
        """Begin the audit of the text and a trial of a new verifier, and look for further drafters."""
        host, done, candidates = self._host, self._session, self._forms.candidates
        share = self._plan.options["audit"] if audited_share is None else audited_share
        self._forms.search.look_out_for_drafters(asked=len(done.job.drafters))
        if host.own_texts is not None:
            host.own_texts.keep(done.output)
        if share:
            host.probation.begin(done, candidates, host.shared)
        self._audit = host.auditing.begin(done, judges=candidates.judges(), share=share)

    async def audited(self) -> None:
        """Wait up to `FINISH_S` for an audit in progress; `result` has its findings."""
        if self._audit is not None:
            await self._audit.wait()

    def progress(self) -> Progress:
        session, counts = self._session, self._session.counts
        return Progress(
            tokens=len(self._text.token_ids),
            rounds=counts.rounds,
            accepted=counts.accepted,
            serving=session.serving,
            tried=tuple(counts.tried),
            drafters=session.ledger.reports(),
            why=tuple(counts.latest_why),
            decisions=counts.decisions,
            plain_pass_s=counts.passes.plain_s,
            has_plain_pass=counts.passes.has_plain,
        )

    def result(self) -> Generation:
        text, counts, prediction = self._text, self._session.counts, self._text.prediction
        reply = Reply.of(text.parts)
        usage = Usage(
            prompt_tokens=len(self.request.prompt),
            completion_tokens=len(text.token_ids),
            cached_tokens=min(counts.cached_tokens, len(self.request.prompt)),
            reasoning_tokens=text.reasoning_tokens,
            accepted_prediction_tokens=prediction.accepted,
            rejected_prediction_tokens=len(prediction.tokens) - prediction.accepted,
        )
        return Generation(
            text=text.text,
            token_ids=tuple(text.token_ids),
            content=reply.content,
            reasoning=reply.reasoning,
            tool_calls=reply.tool_calls,
            finish_reason=self._finish_reason(),
            stop_text=text.stop_text,
            seed=self.request.sampling.seed,
            usage=usage,
            swarm=self._swarm_report(),
            seconds=self._ended_s - self._began_s,
            time_to_first_token_s=(self._first_s or self._ended_s) - self._began_s,
            logprobs=tuple(text.logprobs),
            prompt_logprobs=self.prompt_logprobs,
            generation_config=self.generation_config,
            audit=self._audit.report() if self._audit is not None else None,
        )

    def _swarm_report(self) -> SwarmReport:
        session, counts, links = self._session, self._session.counts, self._host.links
        (sent, received), drafters = links.traffic(), session.ledger.reports()
        verifiers = []
        for peer_id, tokens in counts.tokens_by_verifier.items():
            link, announced = links.alive(peer_id, VERIFY), session.verifiers[peer_id]
            rtt_ms = round(1e3 * link.rtt_s, 2) if link else 0.0
            verifiers.append(
                VerifierReport(peer_id, rtt_ms, tokens, drafts_sentence(announced.four_tokens_permille))
            )
        return SwarmReport(
            strategy=session.job.strategy.name,
            rounds=counts.rounds,
            drafted=session.ledger.drafted,
            offered=session.drafts.offered,
            accepted=counts.accepted,
            home_tokens=counts.home_tokens,
            origins=self._text.origins.origins({drafter.peer_id: drafter.domain for drafter in drafters}),
            drafters=drafters,
            verifiers=tuple(verifiers),
            numerics=self.request.numerics,
            near_ties=counts.near_ties,
            coordinator="verifier" if session.delegation.coordinator is Coordinator.VERIFIER else "client",
            why=tuple(counts.why),
            plain_pass_s=counts.passes.plain_s if counts.passes.has_plain else None,
            bytes_sent=sent - self._bytes[0],
            bytes_received=received - self._bytes[1],
        )

    def _finish_reason(self) -> Literal["stop", "length"]:
        is_stopped = self._text.is_stopped or self._session.finish is FinishReason.EOS
        return "stop" if is_stopped else "length"


class AsyncTextStream:
    """The chunks of one generation, to be read once. Use `async with`, or `aclose` it, to end it early."""

    def __init__(self, start: Callable[[], Awaitable[Run]]) -> None:
        """`start` begins the generation, when the first chunk is asked for."""
        self._start = start
        self._run: Run | None = None
        self._chunks = self._read()

    async def _read(self) -> AsyncGenerator[Chunk, None]:
        self._run = await self._start()
        async with aclosing(self._run.chunks()) as chunks:
            async for chunk in chunks:
                yield chunk

    @property
    def result(self) -> Generation:
        """The generation so far; the whole once all chunks were read. Raises `UsageError` before the first."""
        if self._run is None:
            raise UsageError("The stream has not begun: read its chunks first.")
        return self._run.result()

    def __aiter__(self) -> "AsyncTextStream":
        return self

    async def __anext__(self) -> Chunk:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        """End the generation."""
        await self._chunks.aclose()

    async def __aenter__(self) -> "AsyncTextStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
