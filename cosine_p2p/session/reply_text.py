"""The text of a generation: committed tokens become chunks of text, with their origins and parts. Pure."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

from cosine_p2p.replies.calls import call_id
from cosine_p2p.replies.parts import Content, Part, Reply
from cosine_p2p.request.logprobs import TokenLogprob
from cosine_p2p.request.origins import OWN_SOURCES, OriginCount, TokenOrigin
from cosine_p2p.request.results import Chunk
from cosine_p2p.session.plan import GenerationPlan
from cosine_p2p.session.upstream import Tokens, end_of
from cosine_p2p.strategy.prediction import Prediction
from cosine_p2p.text.detokenizer import Piece, TextAssembler
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.told_logprobs import ToldLogprobs
from cosine_protocol.request import Request


class ReplyText:
    """The text of a plan so far. `d_0` names the calls of a chat's reply."""

    def __init__(self, plan: GenerationPlan, codec: TextTokenizer, d_0: bytes) -> None:
        options, reply = plan.options, plan.reply
        self.token_ids: list[int] = []
        self.text = ""
        self.parts: list[Part] = []
        self.logprobs: list[TokenLogprob] = []
        self.origins = OriginCount()
        self.prediction = Prediction(plan.prediction or ())
        self.reasoning_tokens = 0
        self.is_stopped = False
        """True after a stop string, or once no further tool call may follow."""
        self.is_ended = False
        """True after the last token of the request."""
        self.stop_text: str | None = None
        self.told = ToldLogprobs(codec, of_output=options.get("logprobs"), of_prompt=options.get("prompt_logprobs"))
        self._silent = frozenset(options["stop_token_ids"])
        stops = [text for text in options["stop"] if text]
        self._assembler = TextAssembler(codec, plan.ask.tokens, stops, shows_special=reply is not None)
        self._reader = None if reply is None else reply.reader(partial(call_id, d_0))

    def add(self, committed: Tokens, request: Request, drafters: Sequence[str]) -> Iterator[Chunk]:
        """Yield a chunk for each run of one source, up to the end of the text.

        `drafters` are peer ids in the order of their author numbers. The last token of a pass is decoded; others of
        the verifier are copied from earlier text.
        """
        last = len(committed.tokens) - 1
        sources = [(author, not author and index < last) for index, author in enumerate(committed.authors)]
        confidences = committed.confidences or (None,) * len(committed.tokens)
        triples = zip(committed.tokens, sources, confidences, strict=True)
        first = 0
        for (author, is_copied), run in groupby(triples, key=lambda triple: triple[1]):
            source = OWN_SOURCES.get(author) or drafters[author - 1]
            texts: list[str] = []
            parts: list[Part] = []
            origins: list[TokenOrigin] = []
            for token, _, confidence in run:
                text, with_it = self._add_token(token, request)
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
                if self.is_stopped:
                    break
            ids = tuple(origin.token for origin in origins)
            text, logprobs = "".join(texts), self.told.of_output(ids, committed.likelihoods[first:])
            first += len(ids)
            self.prediction.follow(ids)
            self.origins.note(source, is_copied=is_copied, tokens=len(ids))
            self.text += text
            self.parts += parts
            self.logprobs += logprobs
            yield Chunk(text, ids, source, is_copied, tuple(parts), logprobs, tuple(origins))
            if self.is_stopped:
                return

    def _add_token(self, token: int, request: Request) -> tuple[str, list[Part]]:
        """Return the text and parts that the token makes certain."""
        reader = self._reader
        self.token_ids.append(token)
        self.reasoning_tokens += reader is not None and reader.is_thinking
        piece = Piece("") if token in self._silent else self._assembler.add(token)
        text, parts = piece.text, self._read(piece)
        self.is_stopped = piece.is_stopped or (reader is not None and reader.is_full)
        self.is_ended = end_of(self.token_ids, request) is not None
        if self.is_ended and not self.is_stopped:
            piece = self._assembler.finish()
            text, parts = text + piece.text, parts + self._read(piece)
            self.is_stopped = piece.is_stopped
        self.stop_text = piece.stop
        if reader is not None and (self.is_ended or self.is_stopped):
            parts += reader.finish()
        return text, parts

    def _read(self, piece: Piece) -> list[Part]:
        if self._reader is None:
            return [Content(piece.text)] if piece.text else []
        return [part for each in piece.shown for part in self._reader.add(each.text, is_special=each.is_special)]
