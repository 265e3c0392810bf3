"""Several verifiers agree before a text is shown: one writes it, with its drafters, and others replay it behind it.

Each check is an audit of all that has come, of which the positions not shown yet are compared. So it costs a judge
a pass or two over those, where writing the text again would cost it a pass a token; and what rounding explains is
no difference. The writer goes on meanwhile, and checks follow each other as fast as judges answer.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Final

from cosine_p2p.session.auditing import Auditing, Judge, TextAccused
from cosine_p2p.session.session import Session
from cosine_p2p.session.upstream import Tokens
from cosine_p2p.trust.audit_rule import AuditState, is_decided, state_of
from cosine_p2p.trust.mandates import Mandates
from cosine_p2p.trust.voices import Opinion, Poll
from cosine_protocol.digests import roll_digest
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.messages import AskAudit, Transcript
from cosine_protocol.statements import sign_transcript

LEAST_TOKENS: Final = 16
"""A text begins to show after so many passes and a check: after 1.3 s at 60 ms a pass (docs/generate.md). Half as
many would bring it half a second sooner, for a check or two more of some eight. Later checks wait for half of what
is shown, so that all together read three texts."""


class Quorum:
    """The verifiers of a session and `size` - 1 others that share nothing with them or with each other.

    `judges` are those that may be asked, by peer id, and the session's own among them.
    """

    def __init__(
        self, session: Session, *, size: int, judges: Mapping[str, Judge], mandates: Mandates, auditing: Auditing
    ) -> None:
        self._session = session
        self._wanted = size - 1
        self._judges = judges
        self._identity = mandates.identity
        self._auditing = auditing
        self._tokens: list[int] = []
        self._agreed: list[str] = []

    async def checked(self, stream: AsyncIterator[Tokens]) -> AsyncGenerator[Tokens, None]:
        """The stream, as far as all agree.

        Raises `TextAccused` where they do not, `GenerationFailed` where too few can be asked, and what ends it.
        """
        reading = _Reading(stream)
        try:
            has_ended = False
            while not has_ended:
                shown = len(self._tokens)
                has_ended = await reading.wait(max(LEAST_TOKENS, shown // 2))
                if isinstance(reading.failure, TextAccused):
                    raise reading.failure
                came = reading.take()
                self._tokens += [token for tokens in came for token in tokens.tokens]
                if came:
                    await self._agree(shown)
                for tokens in came:
                    yield tokens
            if reading.failure is not None:
                raise reading.failure
        finally:
            await reading.close()

    async def _agree(self, first: int) -> None:
        """Return once enough others would have written the tokens from position `first` on."""
        claim, writers = self._claim(first), self._writers(first)
        known = [self._judges[writer] for writer in writers if writer in self._judges]
        computers = frozenset(writers).union(*(judge.stages for judge in known))
        places = {await self._auditing.place(writer, self._judges) for writer in writers} - {""}
        waiting = [peer for peer in self._order() if peer not in writers]
        opinions: list[Opinion] = []
        while True:
            poll = Poll.of(opinions, author=computers)
            is_agreed = not poll.accusing and poll.clearing >= self._wanted
            if is_agreed or not waiting or (poll.accusing and is_decided(poll, left=len(waiting))):
                break
            asked = 1 if poll.accusing else self._wanted - poll.clearing
            now, waiting = waiting[:asked], waiting[asked:]
            asking = [self._auditing.opinion(judge, claim, self._judges) for judge in now]
            said = [answered[0] for answered in await asyncio.gather(*asking) if answered is not None]
            # Whoever is in a writer's address range is none beside it.
            opinions += [one for one in said if one.place not in places]
        state = state_of(poll)
        if poll.accusing:
            self._auditing.note_poll(state, opinions)
        if state is not AuditState.PASSED or poll.clearing < self._wanted:
            self._refuse(state, poll, opinions, writers)
        self._agreed = [one.judge for one in opinions if not one.is_accusation]

    def _writers(self, first: int) -> list[str]:
        """The verifiers that wrote what has come from position `first` on."""
        parts = self._session.signed.parts()
        ends = [start for _, start in parts[1:]] + [len(self._tokens)]
        return [
            writer
            for (writer, start), end in zip(parts, ends, strict=True)
            if end > first and start < len(self._tokens)
        ]

    def _refuse(self, state: AuditState, poll: Poll, opinions: Sequence[Opinion], writers: Sequence[str]) -> None:
        """Raise the error of a check in which too few agreed."""
        names = " and ".join(dict.fromkeys(writers))
        if not poll.accusing or state is AuditState.PASSED:
            raise GenerationFailed(
                f"Of {self._wanted} verifiers that share nothing with {names} only {poll.clearing} agreed with the "
                "text in time: ask for a smaller quorum, or again when there are more."
            )
        if state is AuditState.CONVICTED and len(set(writers)) == 1:
            self._auditing.standings.reject(writers[0], now_s=asyncio.get_running_loop().time())
        accusers = " and ".join(one.judge for one in opinions if one.is_accusation)
        raise TextAccused(
            f"Verifier {names} wrote what {accusers} would not have written; of {poll.accusing + poll.clearing} "
            f"that judged it {poll.clearing} agree, and nothing of it was shown, so ask again."
        )

    def _claim(self, first: int) -> AskAudit:
        """What has come, signed by the client itself: verifiers have not signed all of it yet."""
        request, tokens = self._session.job.request, tuple(self._tokens)
        part = Transcript(first, len(tokens), roll_digest(self._session.d_0, tokens))
        signed = sign_transcript(self._identity, part, d_0=self._session.d_0)
        return AskAudit(0, request, tokens, self._identity.peer_id, signed)

    def _order(self) -> list[str]:
        """Whom to ask: those that have read this text already, then others by lot, in which ranges take turns."""
        drawn = self._auditing.drawn(self._judges)
        return [*self._agreed, *(peer for peer in drawn if peer not in self._agreed)]


class _Reading:
    """A stream that is read as fast as it comes; `failure` is what ended it, if that was an error."""

    def __init__(self, stream: AsyncIterator[Tokens]) -> None:
        self.failure: Exception | None = None
        self._came: list[Tokens] = []
        self._has_news = asyncio.Event()
        self._task = asyncio.ensure_future(self._read(stream))

    async def _read(self, stream: AsyncIterator[Tokens]) -> None:
        try:
            async for tokens in stream:
                self._came.append(tokens)
                self._has_news.set()
        except Exception as failure:
            self.failure = failure

    async def wait(self, tokens: int) -> bool:
        """Return once so many tokens have come, or the stream has ended, which is True."""
        while not self._task.done() and sum(len(each.tokens) for each in self._came) < tokens:
            self._has_news.clear()
            news = asyncio.ensure_future(self._has_news.wait())
            await asyncio.wait([news, self._task], return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
        return self._task.done()

    def take(self) -> list[Tokens]:
        """What has come since."""
        came, self._came = self._came, []
        return came

    async def close(self) -> None:
        """Read no further."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
