"""A running generation: converts committed tokens to chunks of text and finally to a `Generation`."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Literal

from cosine_p2p.directory.draft_cost import drafts_sentence
from cosine_p2p.replies.calls import call_id
from cosine_p2p.replies.parts import Content, Part, Reply
from cosine_p2p.request.logprobs import NamedToken, TokenLogprob
from cosine_p2p.request.origins import OWN_SOURCES, OriginCount, TokenOrigin
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
from cosine_p2p.session.auditing import FailoverCheck, StreamAudit, TextAccused
from cosine_p2p.session.delegation import Coordinator
from cosine_p2p.session.request_log import request_log
from cosine_p2p.session.session import Session
from cosine_p2p.session.upstream import Tokens, end_of
from cosine_p2p.session.warm_spare import WarmSpare
from cosine_p2p.strategy.prediction import Prediction
from cosine_p2p.text.detokenizer import Piece, TextAssembler
from cosine_p2p.text.reply_form import ReplyForm
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.told_logprobs import ToldLogprobs
from cosine_p2p.transport.link import Links
from cosine_p2p.transport.patience import end_all
from cosine_protocol.errors import GenerationFailed, GenerationTimedOut, OptionRefused
from cosine_protocol.request import Request
from cosine_protocol.stream import FinishReason
from cosine_protocol.verify import VERIFY

logger = logging.getLogger(__name__)


class Run:
    """A running generation: iterate `chunks`, then read `result`.

    The next of `sessions` is used if the previous one ended without a commit. `unspoken` tokens have no text.
    `audit` starts the audit of a complete text, `check` checks a session's stream as it arrives. `reply` is the
    format of a chat's reply.
    """

    def __init__(
        self,
        sessions: Iterator[Session],
        codec: TextTokenizer,
        links: Links,
        *,
        reply: ReplyForm | None,
        stop: Iterable[str],
        unspoken: Collection[int],
        observer: Observer | None,
        applied: AppliedConfig,
        audit: Callable[..., StreamAudit],
        check: Callable[[Session], FailoverCheck] | None,
        keeps_spare_warm: bool,
        told: ToldLogprobs,
        prediction: Sequence[int] | None,
    ) -> None:
        self._observer = observer
        self._begin_audit = audit
        self._check = check
        self._audit: StreamAudit | None = None
        self._keeps_spare_warm = keeps_spare_warm
        self.generation_config = applied
        self._sessions = sessions
        self._session = next(sessions)
        self._log = request_log(logger, self._session.d_0)
        self._links = links
        self._unspoken = frozenset(unspoken)
        stops = [text for text in stop if text]
        self._assembler = TextAssembler(codec, self.request.prompt, stops, shows_special=reply is not None)
        self._reader = None if reply is None else reply.reader(partial(call_id, self._session.d_0))
        self._is_forced = reply is not None and reply.grammar is not None
        self._parts: list[Part] = []
        self._reasoning_tokens = 0
        self._began_s = asyncio.get_running_loop().time()
        self._first_s: float | None = None
        self._ended_s = self._began_s
        self._told = told
        self._logprobs: list[TokenLogprob] = []
        self._prediction = Prediction(prediction or ())
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._origins = OriginCount()
        self._is_stopped = False
        self._is_ended = False
        self._stop_text: str | None = None
        self._bytes = links.traffic()

    @property
    def request(self) -> Request:
        return self._session.job.request

    @property
    def verifiers(self) -> tuple[str, ...]:
        """The peer ids of the verifiers that may be asked, best first."""
        return tuple(self._session.job.verifiers)

    @property
    def prompt_logprobs(self) -> tuple[NamedToken, ...]:
        """Log-probabilities of the prompt; empty unless requested, and before the first commit."""
        return self._told.of_prompt(self.request.prompt, self._session.prompt_likelihoods)

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Yield chunks as tokens are committed, to the maximum length, an EOS token or a stop string."""
        stream = self._stream()
        is_whole = False
        self._log.info("%d prompt tokens", len(self.request.prompt))
        try:
            async for tokens in stream:
                if self._first_s is None:
                    self._first_s = asyncio.get_running_loop().time()
                for chunk in self._chunks_of(tokens):
                    yield chunk
                if self._is_stopped and not self._is_ended:
                    break
            is_whole = True
        finally:
            await stream.aclose()
            self._ended_s = asyncio.get_running_loop().time()
            reason = self._finish_reason() if is_whole else "given up"
            self._log.info("%d tokens, %s", len(self._token_ids), reason)
            if is_whole:
                self._audit = self._begin_audit(self._session)
            if self._observer is not None:
                (self._observer.observe if is_whole else self._observer.observe_abandoned)(self.result())

    async def _stream(self) -> AsyncGenerator[Tokens, None]:
        while True:
            stream = self._session.stream()
            checked = stream if self._check is None else self._check(self._session).checked(stream)
            spare = WarmSpare(self._session, self._links)
            warming = [asyncio.ensure_future(spare.run())] if self._keeps_spare_warm else []
            try:
                async for tokens in checked:
                    yield tokens
                return
            except OptionRefused as refused:
                if self._is_forced:
                    refused = OptionRefused("tools", f"A call of these tools cannot be forced: {refused}")
                raise refused from None
            except GenerationTimedOut:
                raise
            except TextAccused:
                # The transcript that its author signed may convict it.
                self._audit = self._begin_audit(self._session, share=1.0)
                raise
            except GenerationFailed:
                other = None if self._session.output else next(self._sessions, None)
                if other is None:
                    raise
                other.counts.tried[:0] = self._session.counts.tried
                self._session = other
                self._log.info("asked again of verifiers with %s", self.request.numerics)
            finally:
                await end_all(warming)
                await checked.aclose()
                await stream.aclose()

    def _chunks_of(self, committed: Tokens) -> Iterator[Chunk]:
        """Yield a chunk for each run of one source; the last token of a pass is decoded, others are copied."""
        ledger = self._session.ledger
        last = len(committed.tokens) - 1
        sources = [(author, not author and index < last) for index, author in enumerate(committed.authors)]
        confidences = committed.confidences or (None,) * len(committed.tokens)
        triples = zip(committed.tokens, sources, confidences, strict=True)
        first = 0
        for (author, is_copied), run in groupby(triples, key=lambda triple: triple[1]):
            source = OWN_SOURCES.get(author) or ledger.peer_ids[author - 1]
            ids, texts = [], []
            parts: list[Part] = []
            origins: list[TokenOrigin] = []
            for token, _, confidence in run:
                self._token_ids.append(token)
                ids.append(token)
                self._reasoning_tokens += self._reader is not None and self._reader.is_thinking
                text, with_it = self._told_with(token)
                texts.append(text)
                parts += with_it
                reply = Reply.of(with_it)
                origins.append(
                    TokenOrigin(
                        token=token,
                        source=source,
                        is_copied=is_copied,
                        round=committed.round,
                        confidence=confidence,
                        content=reply.content,
                        reasoning=reply.reasoning,
                    )
                )
                if self._is_stopped:
                    break
            self._prediction.follow(ids)
            self._text.append("".join(texts))
            self._parts += parts
            self._origins.note(source, is_copied=is_copied, tokens=len(ids))
            logprobs = self._told.of_output(ids, committed.likelihoods[first:])
            self._logprobs += logprobs
            first += len(ids)
            yield Chunk("".join(texts), tuple(ids), source, is_copied, tuple(parts), logprobs, tuple(origins))
            if self._is_stopped:
                return

    def _told_with(self, token: int) -> tuple[str, list[Part]]:
        """Return the text and parts that the latest token makes certain."""
        piece = Piece("") if token in self._unspoken else self._assembler.add(token)
        text, parts = piece.text, self._read(piece)
        self._is_stopped = piece.is_stopped or (self._reader is not None and self._reader.is_full)
        self._is_ended = end_of(self._token_ids, self.request) is not None
        if self._is_ended and not self._is_stopped:
            piece = self._assembler.finish()
            text, parts = text + piece.text, parts + self._read(piece)
            self._is_stopped = piece.is_stopped
        self._stop_text = piece.stop
        if self._reader is not None and (self._is_ended or self._is_stopped):
            parts += self._reader.finish()
        return text, parts

    def _read(self, piece: Piece) -> list[Part]:
        if self._reader is None:
            return [Content(piece.text)] if piece.text else []
        return [part for each in piece.shown for part in self._reader.add(each.text, is_special=each.is_special)]

    async def audited(self) -> None:
        """Wait up to `FINISH_S` for an audit in progress; `result` has its findings."""
        if self._audit is not None:
            await self._audit.wait()

    def progress(self) -> Progress:
        session, counts = self._session, self._session.counts
        return Progress(
            tokens=len(self._token_ids),
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
        session, counts = self._session, self._session.counts
        sent, received = self._links.traffic()
        drafters = session.ledger.reports()
        reply = Reply.of(self._parts)
        usage = Usage(
            prompt_tokens=len(session.job.request.prompt),
            completion_tokens=len(self._token_ids),
            cached_tokens=min(counts.cached_tokens, len(session.job.request.prompt)),
            reasoning_tokens=self._reasoning_tokens,
            accepted_prediction_tokens=self._prediction.accepted,
            rejected_prediction_tokens=len(self._prediction.tokens) - self._prediction.accepted,
        )
        swarm = SwarmReport(
            strategy=session.job.strategy.name,
            rounds=counts.rounds,
            drafted=session.ledger.drafted,
            offered=session.ledger.offered,
            accepted=counts.accepted,
            home_tokens=counts.home_tokens,
            origins=self._origins.origins({drafter.peer_id: drafter.domain for drafter in drafters}),
            drafters=drafters,
            verifiers=tuple(
                VerifierReport(
                    peer_id,
                    round(1e3 * link.rtt_s, 2) if link else 0.0,
                    tokens,
                    drafts_sentence(session.job.four_tokens_permille.get(peer_id)),
                )
                for peer_id, tokens in counts.tokens_by_verifier.items()
                for link in [self._links.alive(peer_id, VERIFY)]
            ),
            numerics=self.request.numerics,
            near_ties=counts.near_ties,
            coordinator="verifier" if session.delegation.coordinator is Coordinator.VERIFIER else "client",
            why=tuple(counts.why),
            plain_pass_s=counts.passes.plain_s if counts.passes.has_plain else None,
            bytes_sent=sent - self._bytes[0],
            bytes_received=received - self._bytes[1],
        )
        return Generation(
            text="".join(self._text),
            token_ids=tuple(self._token_ids),
            content=reply.content,
            reasoning=reply.reasoning,
            tool_calls=reply.tool_calls,
            finish_reason=self._finish_reason(),
            stop_text=self._stop_text,
            seed=self.request.sampling.seed,
            usage=usage,
            swarm=swarm,
            seconds=self._ended_s - self._began_s,
            time_to_first_token_s=(self._first_s or self._ended_s) - self._began_s,
            logprobs=tuple(self._logprobs),
            prompt_logprobs=self.prompt_logprobs,
            generation_config=self.generation_config,
            audit=self._audit.report() if self._audit is not None else None,
        )

    def _finish_reason(self) -> Literal["stop", "length"]:
        return "stop" if self._is_stopped or self._session.finish is FinishReason.EOS else "length"
