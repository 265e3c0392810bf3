"""Writers of one response: whole, or in server-sent events."""

from dataclasses import replace
from typing import Final

from starlette.responses import JSONResponse
from starlette.types import Send

from cosine_node.gateway import replies
from cosine_node.gateway.api_errors import ApiError
from cosine_node.gateway.choices import ChoiceEvent, ChoiceFinished, ChoiceStarted, ChoiceText
from cosine_node.gateway.replies import Heading, Json

SSE_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
"""No proxy may keep pieces back, or all; the last is nginx's own header for that."""


class WholeReplyWriter:
    """Takes the events of all choices and writes one JSON body once it is ended.

    `is_begun` is true once a status has been sent.
    """

    def __init__(self, heading: Heading, *, seed: int, send: Send) -> None:
        self.finished: list[ChoiceFinished] = []
        self.is_begun = False
        self._heading = heading
        self._seed = seed
        self._send = send
        self._texts: dict[int, str] = {}

    async def take(self, event: ChoiceEvent) -> None:
        match event:
            case ChoiceStarted(_, request):
                self._heading = replace(self._heading, fingerprint=replies.fingerprint(request))
            case ChoiceText(choice, text):
                self._texts[choice.index] = self._texts.get(choice.index, "") + text
            case ChoiceFinished():
                self.finished.append(event)

    async def end(self) -> None:
        in_order = sorted(self.finished, key=lambda each: each.choice.index)
        done = [(each, self._texts.get(each.choice.index, "")) for each in in_order]
        response = JSONResponse(replies.whole_reply(self._heading, done, seed=self._seed))
        # Sent by hand: a Response takes the scope of a request, which has no part in this.
        start = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": response.body})

    async def fail(self, problem: ApiError) -> None:
        """Raise the problem: nothing has been sent."""
        raise problem


class StreamedReplyWriter:
    """Writes the events of all choices as they come; the status waits for the first.

    `is_begun` is true once it has been sent. The last piece carries the metrics; with `includes_usage` it is one
    more, without choices.
    """

    def __init__(self, heading: Heading, *, seed: int, send: Send, choices: int, includes_usage: bool) -> None:
        self.finished: list[ChoiceFinished] = []
        self.is_begun = False
        self._heading = heading
        self._seed = seed
        self._send = send
        self._choices = choices
        self._includes_usage = includes_usage
        self._opened: set[int] = set()

    async def take(self, event: ChoiceEvent) -> None:
        match event:
            case ChoiceStarted(_, request):
                self._heading = replace(self._heading, fingerprint=replies.fingerprint(request))
            case ChoiceText(choice, text):
                await self._open(choice.index)
                await self._piece(replies.text_piece(self._heading, choice.index, text))
            case ChoiceFinished(choice):
                await self._open(choice.index)
                self.finished.append(event)
                piece = replies.last_piece(self._heading, event)
                is_last = len(self.finished) == self._choices and not self._includes_usage
                await self._piece(piece | self._metrics() if is_last else piece)

    async def end(self) -> None:
        if self._includes_usage:
            closing = replies.usage_piece(self._heading, self.finished) | self._metrics()
            await self._write(replies.event(closing))
        await self._close()

    async def fail(self, problem: ApiError) -> None:
        """End with an error: in the stream, or by raising it while no status has been sent."""
        if not self.is_begun:
            raise problem
        await self._write(replies.event(problem.body))
        await self._close()

    async def _open(self, index: int) -> None:
        """Write what comes before the first piece of a choice."""
        if index in self._opened:
            return
        self._opened.add(index)
        if opening := replies.first_piece(self._heading, index):
            await self._piece(opening)

    async def _piece(self, body: Json) -> None:
        await self._write(replies.event(body | {"usage": None} if self._includes_usage else body))

    def _metrics(self) -> Json:
        return {"metrics": replies.metrics([each.generation for each in self.finished], seed=self._seed)}

    async def _write(self, data: bytes) -> None:
        if not self.is_begun:
            self.is_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _close(self) -> None:
        await self._send({"type": "http.response.body", "body": replies.event("[DONE]")})


ReplyWriter = WholeReplyWriter | StreamedReplyWriter
