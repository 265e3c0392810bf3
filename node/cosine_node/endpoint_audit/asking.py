"""Asks an OpenAI-compatible endpoint, in the dialect that it understands."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import httpx

from cosine_protocol.errors import CosineError, UsageError

ANSWER_TOKENS: Final = 24
TIMEOUT_S: Final = 120.0
"""A server may first load the model."""
ATTEMPTS: Final = 4
WAIT_S: Final = 2.0
MAX_WAIT_S: Final = 30.0
"""Bounds each wait that a busy server asks for."""
TOGETHER: Final = 4
"""Requests at a time: more would meet the limits of many services."""
MAX_FAULTS: Final = 5
"""Unanswered questions after which no other is asked."""
MAX_ANSWER_BYTES: Final = 1 << 20
OPTIONAL: Final = ("logprobs", "seed", "top_p")
"""Fields that are left out if a server refuses them."""
BUSY: Final = (408, 425, 429)


class EndpointFault(CosineError):
    """An endpoint that does not answer. The text is a clause, or after all questions a sentence."""


@dataclass(frozen=True, slots=True)
class EndpointQuestion:
    text: str
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class EndpointAnswer:
    """An answer with the log-probabilities of its tokens, if reported; `is_cut`: it reached the limit of tokens."""

    question: EndpointQuestion
    text: str
    is_cut: bool
    told: tuple[tuple[str, float], ...] = ()


def read_answer(question: EndpointQuestion, data: str | bytes) -> EndpointAnswer:
    """Read a chat completion. Raises `EndpointFault`."""
    try:
        body = json.loads(data)
        match body:
            case {"choices": [{"message": {"content": str(text)} as message, **choice}, *_]}:
                # Half a pair of surrogates is no text.
                text.encode()
            case _:
                raise EndpointFault(f"it sends what is no chat completion: {json.dumps(body)[:120]}")
    except (ValueError, RecursionError):
        raise EndpointFault("it sends what is no JSON") from None
    if any(message.get(name) for name in ("reasoning_content", "reasoning", "tool_calls")):
        raise EndpointFault("it separates texts into reasoning, calls and answer")
    match choice.get("logprobs"):
        case {"content": [*entries]}:
            pairs = [(one.get("token"), one.get("logprob")) for one in entries if isinstance(one, dict)]
        case _:
            pairs = []
    told = tuple(
        (str(token), float(nats)) for token, nats in pairs if isinstance(nats, int | float) and -1e3 < nats <= 0
    )
    # Some servers report probabilities after temperature 0: all choices are certain.
    is_told = any(nats < -1e-6 for _, nats in told)
    return EndpointAnswer(question, text, choice.get("finish_reason") == "length", told if is_told else ())


@dataclass(slots=True, kw_only=True)
class AskedEndpoint:
    """An endpoint, the requested model, the fields that it refused, and the reasons for missing answers."""

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    dropped: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    @classmethod
    def parse(cls, place: str, *, model: str, key: str | None) -> "AskedEndpoint":
        """Read `URL[#NAME]`; the endpoint's name of the model is by default `model`. Raises `UsageError`."""
        address, _, name = place.partition("#")
        try:
            parts = urlsplit(address)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:
            is_address = False
        if not is_address or parts.query or parts.username:
            raise UsageError(f"{place!r} is no endpoint; one is http://127.0.0.1:8000/v1#MODEL.")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise UsageError("--key must be printable ASCII.")
        url = address.rstrip("/").removesuffix("/chat/completions")
        return cls(url=url if parts.path.strip("/") else f"{url}/v1", model=name or model, key=key)

    async def ask_all(self, questions: Sequence[EndpointQuestion]) -> list[EndpointAnswer]:
        """Ask all questions, the first one alone.

        Raises `UsageError` if the key or the model is refused, and `EndpointFault` for too few answers.
        """
        answers: list[EndpointAnswer] = []
        places = asyncio.Semaphore(TOGETHER)
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        async with httpx.AsyncClient(headers=headers, timeout=TIMEOUT_S) as client:

            async def ask(question: EndpointQuestion) -> None:
                async with places:
                    if len(self.faults) < MAX_FAULTS:
                        try:
                            answers.append(await self._ask(client, question))
                        except (EndpointFault, UsageError) as fault:
                            if question is questions[0] and isinstance(fault, UsageError):
                                raise
                            self.faults.append(str(fault))

            await ask(questions[0])
            await asyncio.gather(*map(ask, questions[1:]))
        if len(self.faults) >= MAX_FAULTS or not answers:
            raise EndpointFault(f"{self.url} does not answer {self.model!r} well: {self.faults[-1]}.")
        return sorted(answers, key=lambda answer: answer.question.seed)

    async def _ask(self, client: httpx.AsyncClient, question: EndpointQuestion) -> EndpointAnswer:
        """Ask once, and again if the server is busy or refuses a field. Raises `EndpointFault`, `UsageError`."""
        said, attempt = "", 0
        while attempt < ATTEMPTS:
            status, said, asked_s = await self._post(client, question)
            if status == 200:
                return read_answer(question, said)
            said = f"status {status}, {' '.join(said.split())[:160]!r}"
            if status in (401, 403):
                raise UsageError(f"{self.url} refuses the key: {said}; give one with --key or COSINE_ENDPOINT_KEY.")
            if status == 404:
                raise UsageError(f"{self.url} has no chats of {self.model!r}: {said}; correct --endpoint URL#NAME.")
            if status in (400, 422) and self._drop(said):
                continue
            if status not in BUSY and status < 500:
                break
            attempt += 1
            await asyncio.sleep(min(MAX_WAIT_S, float(asked_s) if asked_s.isdecimal() else WAIT_S * 2**attempt))
        raise EndpointFault(said)

    async def _post(self, client: httpx.AsyncClient, question: EndpointQuestion) -> tuple[int, str, str]:
        """Return the status, the text and the requested wait. Raises `EndpointFault`."""
        chat = [{"role": "user", "content": question.text}]
        asked = {"temperature": question.temperature, "top_p": 1, "seed": question.seed, "logprobs": True}
        limit = "max_completion_tokens" if "max_tokens" in self.dropped else "max_tokens"
        fields = {name: value for name, value in asked.items() if name not in self.dropped}
        body = {"model": self.model, "messages": chat, limit: ANSWER_TOKENS, **fields}
        data = bytearray()
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                client.stream("POST", f"{self.url}/chat/completions", json=body) as reply,
            ):
                async for piece in reply.aiter_bytes():
                    data += piece
                    if len(data) > MAX_ANSWER_BYTES:
                        raise EndpointFault("it sends more than an answer")
        except (TimeoutError, httpx.TimeoutException):
            raise EndpointFault(f"it did not answer within {TIMEOUT_S:.0f} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EndpointFault(f"it cannot be reached ({error or type(error).__name__})") from None
        return reply.status_code, data.decode(errors="replace"), reply.headers.get("Retry-After", "")

    def _drop(self, said: str) -> bool:
        """Leave out a field that a refusal names, else an optional one; False if there is none left."""
        sent = [name for name in (*OPTIONAL, "max_tokens") if name not in self.dropped]
        refused = ([name for name in sent if name in said] or [name for name in sent if name in OPTIONAL])[:1]
        self.dropped.update(refused)
        return bool(refused)
