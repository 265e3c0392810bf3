"""The client for asyncio programs; `blocking.py` has the one for everybody else."""

import asyncio
import logging
import random
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Any, Final, Protocol

from cosine_p2p.directory import Directory
from cosine_p2p.fragments import Offload
from cosine_p2p.generation import Chunk, Generation, Observer
from cosine_p2p.link import Links
from cosine_p2p.network import DEFAULT_NETWORK, joining
from cosine_p2p.run import Ask, Prompt, Run
from cosine_p2p.selection import Chance, pick_drafters, rank_verifiers
from cosine_p2p.session import Job, Session
from cosine_p2p.strategies import STRATEGIES
from cosine_p2p.strategies.base import StrategyKind
from cosine_p2p.target import Target
from cosine_p2p.tokenizer import TextCodec
from cosine_p2p.transport.base import Transport
from cosine_protocol.errors import GenerationFailed, PeerLost, PromptRefused, PromptTooLong, UsageError
from cosine_protocol.limits import MAX_EOS_TOKENS, MAX_TOKEN_ID, NONCE_BYTES
from cosine_protocol.protocols import DRAFT, VERIFY
from cosine_protocol.records import NodeRecord, Role
from cosine_protocol.request import Request, Sampling

LOOK_UP_PAUSES_S: Final = (0.5, 1.5)
MAX_ASKED_DRAFTERS: Final = 8
WANTED_VERIFIERS: Final = 32
WANTED_DRAFTERS: Final = 128
DEFAULT_MAX_NEW_TOKENS: Final = 128
DEFAULT_TIMEOUT_S: Final = 600.0

LOG = logging.getLogger(__name__)


class Swarm(Protocol):
    """A client's place in a network: how it reaches peers, finds them, and reads their target's text."""

    @property
    def transport(self) -> Transport: ...

    @property
    def directory(self) -> Directory: ...

    async def text_codec(self, verifiers: Sequence[NodeRecord]) -> TextCodec:
        """The tokenizer of a target, from a local folder or from one of its verifiers, checked."""
        ...

    def choose_digest(self, name: str, offered: Sequence[bytes]) -> bytes:
        """Which of the targets offered under a bare name is meant. Raises `UsageError`."""
        ...

    async def close(self) -> None: ...


Join = Callable[[], Awaitable[Swarm]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """What holds for all generations of a client."""

    target: str = "zoo:target"
    strategy: str = "cosine"
    dtype: str | None = None
    max_drafters: int | None = None
    trust: tuple[str, ...] = ()
    verifier: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        if self.max_drafters is not None and self.max_drafters < 0:
            raise UsageError("max_drafters must be 0 or more.")
        if self.timeout_s <= 0:
            raise UsageError("The timeout must be above 0 seconds.")


class AsyncClient:
    """Generates text with a swarm. Use `async with`.

    `initial_peers` are addresses of bootstrap nodes; further options are the fields of `ClientConfig`. `transport`
    is "full" (hivemind) or "light" (py-libp2p); without it `COSINE_TRANSPORT` decides, else full where installed.
    `observer` is told of every generation. `join` replaces the way into the network (`cosine_p2p.network`),
    `offload` the thread that checks signatures, `strategies` the known ones and `nonces` the source of each
    request's nonce, for tests, simulations and other transports.
    """

    def __init__(
        self,
        initial_peers: Sequence[str] = (),
        *,
        network: str = DEFAULT_NETWORK,
        transport: str | None = None,
        observer: Observer | None = None,
        join: Join | None = None,
        offload: Offload | None = None,
        strategies: Mapping[str, StrategyKind] = STRATEGIES,
        nonces: Callable[[], bytes] = lambda: secrets.token_bytes(NONCE_BYTES),
        **options: Any,
    ) -> None:
        self._config = ClientConfig(**options)
        self._observer = observer
        self._strategies = strategies
        self._nonces = nonces
        self._kind(self._config.strategy)
        self._target = Target.parse(self._config.target)
        self._join = join or joining(
            initial_peers, network=network, tokenizer_folder=self._target.folder, transport=transport
        )
        self._swarm: Swarm | None = None
        self._links: Links | None = None
        self._numbers = count(1)
        self._offload = offload or self._check_in_thread
        self._checker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="signatures")

    async def __aenter__(self) -> "AsyncClient":
        self._swarm = await self._join()
        self._links = Links(self._swarm.transport)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._links is not None:
            await self._links.close()
        if self._swarm is not None:
            await self._swarm.close()
        self._checker.shutdown(wait=False, cancel_futures=True)

    async def generate(self, prompt: Prompt, **options: Any) -> Generation:
        """Generate to the end. Options as for `stream`."""
        run = await self.start(prompt, **options)
        async for _ in run.chunks():
            pass
        return run.result()

    async def stream(self, prompt: Prompt, **options: Any) -> AsyncGenerator[Chunk, None]:
        """Generate chunk by chunk; options are those of `start`."""
        run = await self.start(prompt, **options)
        async with aclosing(run.chunks()) as chunks:
            async for chunk in chunks:
                yield chunk

    async def start(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        eos: Sequence[int] | None = None,
        strategy: str | None = None,
    ) -> Run:
        """Find peers and prepare a generation.

        Without `seed` one is drawn; without `eos`, token ids that end the output, those hold that the target
        announces. Raises `UsageError` for what cannot be served and `GenerationFailed` if nobody serves the target.
        """
        if max_new_tokens < 1:
            raise UsageError("max_new_tokens must be 1 or more.")
        sampling = Sampling(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=secrets.randbits(63) if seed is None else seed,
        )
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        ask = Ask(
            prompt=prompt,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            stop=tuple(s for s in stops if s),
            eos=None if eos is None else _checked_eos(eos),
        )
        return await self._prepare(ask, strategy or self._config.strategy)

    async def find_verifiers(self) -> tuple[NodeRecord, ...]:
        """Those a generation would be asked of now, best first; never empty. Raises as `start`."""
        swarm, links = self._joined()
        return await self._find_verifiers(swarm, links, random.Random(0).random)

    async def _prepare(self, ask: Ask, strategy: str) -> Run:
        swarm, links = self._joined()
        kind = self._kind(strategy)
        nonce = self._nonces()
        chance = random.Random(nonce).random
        # Drafters are looked up beside the verifiers: over a DHT each look-up takes round trips.
        looking = asyncio.ensure_future(self._look_up_drafters(swarm, kind))
        try:
            verifiers = await self._find_verifiers(swarm, links, chance)
            codec = await swarm.text_codec(verifiers)
            prompt = _encode(codec, ask.prompt)
            request = _request(ask, prompt, verifiers[0], client=swarm.transport.peer_id, nonce=nonce)
            drafters = self._pick_drafters(await looking, links, verifiers[0], chance)
        finally:
            looking.cancel()
        job = Job(
            number=next(self._numbers),
            deadline_s=asyncio.get_running_loop().time() + self._config.timeout_s,
            request=request,
            strategy=kind,
            verifiers=verifiers,
            drafters=drafters,
        )
        return Run(ask, Session(job, links, self._offload), codec, links, observer=self._observer)

    def _kind(self, strategy: str) -> StrategyKind:
        if strategy not in self._strategies:
            known = ", ".join(sorted(self._strategies))
            raise UsageError(f"There is no strategy {strategy!r}; choose one of {known}.")
        return self._strategies[strategy]

    def _joined(self) -> tuple[Swarm, Links]:
        if self._swarm is None or self._links is None:
            raise UsageError("The client has not joined a network; use it in an `async with` block.")
        return self._swarm, self._links

    async def _find_verifiers(self, swarm: Swarm, links: Links, chance: Chance) -> tuple[NodeRecord, ...]:
        config = self._config
        found = await self._look_up(swarm)
        if found:
            digest = self._target.digest or swarm.choose_digest(
                self._target.name, sorted({record.target_digest for record in found})
            )
            found = [record for record in found if record.target_digest == digest]
        ranked = rank_verifiers(
            found,
            chance=chance,
            numerics=config.dtype,
            only=config.verifier,
            trust=config.trust,
            rtts_s=_known_rtts_s(found, links, VERIFY),
        )
        if ranked:
            return ranked
        if not found:
            raise GenerationFailed(
                f"No verifier serves {config.target!r} in this network; check --initial-peers, or start one with "
                f"`cosine-node join --role verifier --model {config.target}`."
            )
        offered = ", ".join(sorted({f"{record.peer_id} ({record.numerics})" for record in found}))
        raise GenerationFailed(f"No verifier of {config.target!r} fits what was asked for; there is {offered}.")

    async def _look_up(self, swarm: Swarm) -> list[NodeRecord]:
        """Verifiers of the target; a DHT may take a moment to show one that has just joined."""
        config = self._config
        # Any few will do, unless some are meant that a sample may lack.
        is_choosy = bool(config.verifier or config.trust or config.dtype or self._target.digest)
        wanted = None if is_choosy else WANTED_VERIFIERS
        found = await swarm.directory.find(Role.VERIFIER, self._target.name, wanted=wanted)
        for pause_s in LOOK_UP_PAUSES_S:
            if found:
                break
            await asyncio.sleep(pause_s)
            found = await swarm.directory.find(Role.VERIFIER, self._target.name, wanted=wanted)
        return found

    async def _look_up_drafters(self, swarm: Swarm, kind: StrategyKind) -> list[NodeRecord]:
        if not kind.wants_drafters or not self._max_drafters:
            return []
        wanted = None if self._config.trust else max(WANTED_DRAFTERS, self._max_drafters)
        try:
            return await swarm.directory.find(Role.DRAFTER, self._target.name, wanted=wanted)
        except PeerLost as lost:
            LOG.warning("no drafters could be looked up: %s", lost)
            return []

    def _pick_drafters(
        self, found: list[NodeRecord], links: Links, verifier: NodeRecord, chance: Chance
    ) -> tuple[NodeRecord, ...]:
        return pick_drafters(
            found,
            tokenizer_digest=verifier.tokenizer_digest,
            limit=self._max_drafters,
            chance=chance,
            trust=self._config.trust,
            rtts_s=_known_rtts_s(found, links, DRAFT),
        )

    @property
    def _max_drafters(self) -> int:
        given = self._config.max_drafters
        return MAX_ASKED_DRAFTERS if given is None else given

    async def _check_in_thread(self, check: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._checker, check)


def _known_rtts_s(records: Sequence[NodeRecord], links: Links, protocol: str) -> dict[str, float]:
    """Measured round-trip times to those of some nodes that a link is open to."""
    open_links = {record.peer_id: links.alive(record.peer_id, protocol) for record in records}
    return {peer_id: link.rtt_s for peer_id, link in open_links.items() if link is not None and link.rtt_s}


def _request(ask: Ask, prompt: tuple[int, ...], verifier: NodeRecord, *, client: str, nonce: bytes) -> Request:
    room = verifier.context_tokens - len(prompt)
    if room < 1:
        raise PromptTooLong(
            f"The prompt has {len(prompt)} tokens, but the target's context holds {verifier.context_tokens}; "
            "shorten it."
        )
    return Request(
        target_digest=verifier.target_digest,
        tokenizer_digest=verifier.tokenizer_digest,
        numerics=verifier.numerics,
        prompt=prompt,
        sampling=ask.sampling,
        eos=verifier.eos if ask.eos is None else ask.eos,
        client=client,
        nonce=nonce,
        max_new_tokens=min(ask.max_new_tokens, room),
    )


def _encode(codec: TextCodec, prompt: Prompt) -> tuple[int, ...]:
    tokens = _tokens_of(codec, prompt)
    if not tokens:
        raise PromptRefused("The prompt is empty; give at least one character.")
    return tokens


def _tokens_of(codec: TextCodec, prompt: Prompt) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return codec.encode(prompt)
    tokens = tuple(item for item in prompt if isinstance(item, int))
    messages = [item for item in prompt if not isinstance(item, int)]
    if not tokens:
        return codec.encode_chat(messages) if messages else ()
    if messages or min(tokens) < 0 or max(tokens) >= codec.vocab_tokens:
        raise PromptRefused(f"Token ids of a prompt must be whole numbers from 0 to {codec.vocab_tokens - 1}.")
    return tokens


def _checked_eos(tokens: Sequence[int]) -> tuple[int, ...]:
    if len(tokens) > MAX_EOS_TOKENS or not all(0 <= token <= MAX_TOKEN_ID for token in tokens):
        raise UsageError(f"eos must be at most {MAX_EOS_TOKENS} token ids from 0 to {MAX_TOKEN_ID}.")
    return tuple(tokens)
