"""The client for asyncio programs; `blocking.py` has the one for other programs."""

import asyncio
import os
import random
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Final, Protocol, TypeVar, Unpack

from cosine_p2p.access import Access
from cosine_p2p.client_memory import ClientMemory
from cosine_p2p.directory.directory import Directory
from cosine_p2p.directory.selection import Chance
from cosine_p2p.directory.served_targets import WANTED_NODES, only_target
from cosine_p2p.network import joining
from cosine_p2p.own_texts.folders import OwnTexts, forget_all
from cosine_p2p.request.chat import Chat
from cosine_p2p.request.offload import Offload, Threads
from cosine_p2p.request.options import (
    AUTO,
    DEFAULTS,
    FORGET,
    KEEP,
    TEXT_DEFAULTS,
    ClientOptions,
    GenerationOptions,
    Prompt,
    lists_options,
    merge_options,
)
from cosine_p2p.request.results import Generation
from cosine_p2p.session.auditing import AUDIT_ANSWER_S, UNFORESEEABLE, Auditing
from cosine_p2p.session.job import Shared
from cosine_p2p.session.peer_search import REUSE_S, Forms, PeerSearch, RecentFinds
from cosine_p2p.session.plan import Ask, GenerationPlan, Wanted
from cosine_p2p.session.probation import Probation
from cosine_p2p.session.run import AsyncTextStream, Host, Run
from cosine_p2p.strategy.base import StrategyKind
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_p2p.text.prompt import ENCODE_TIMEOUT_S, EncodedPrompt, PromptEncoder, read_prompt
from cosine_p2p.text.target import Target, is_name
from cosine_p2p.text.template_process import PLACES
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.transport.base import Transport
from cosine_p2p.transport.link import Links
from cosine_p2p.transport.patience import join_patience_s
from cosine_p2p.trust.evidence import Evidence, EvidenceFile
from cosine_p2p.trust.mandates import Mandates
from cosine_protocol.errors import (
    PromptRefused,
    UsageError,
)
from cosine_protocol.records import ALL_TARGETS, NodeRecord, Role
from cosine_protocol.request import NONCE_BYTES
from cosine_protocol.verify import CACHE_SCOPE_BYTES


class Swarm(Protocol):
    """A client's connection to a network: transport, directory, and the tokenizers of targets."""

    @property
    def transport(self) -> Transport: ...

    @property
    def directory(self) -> Directory: ...

    @property
    def mandates(self) -> Mandates | None:
        """The signer of this client's mandates; None for a client without a key."""

    async def text_codec(self, verifiers: Sequence[NodeRecord]) -> TextTokenizer:
        """Return the checked tokenizer of a target, from a local folder or from one of its verifiers."""

    def choose_digest(self, name: str, offered: Mapping[bytes, int]) -> bytes:
        """Return the digest of a name; `offered` counts verifiers by digest. Raises `UsageError`."""

    async def close(self) -> None: ...


Join = Callable[[], Awaitable[Swarm]]

DRAWN_SEED_BITS: Final = 53  # JSON is often read as float64, which is exact up to that size.


def draw_seed() -> int:
    """Return a random seed for a request without one."""
    return secrets.randbits(DRAWN_SEED_BITS)


_T = TypeVar("_T")


class Lifetime:
    """A lifetime that begins and ends once, and is not valid in a forked process."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over = False

    @property
    def is_of_this_process(self) -> bool:
        """False after a fork: threads, sockets and the network daemon stay with the parent."""
        return os.getpid() == self._pid

    @property
    def is_over(self) -> bool:
        return self._is_over

    def begin(self) -> None:
        """Begin on the running event loop. Raises `UsageError` if it has begun on another one."""
        self.check()
        running = asyncio.get_running_loop()
        self._loop = self._loop or running
        if running is not self._loop:
            raise UsageError("The client joined on another event loop; make a client on this one.")

    def end(self) -> None:
        self._is_over = True

    def check(self) -> None:
        """Raise `UsageError` in a forked process and after the end."""
        if not self.is_of_this_process:
            raise UsageError("This client was made before the process forked; make a client after the fork.")
        if self._is_over:
            raise UsageError("The client is closed; make another one.")


@dataclass(frozen=True, slots=True)
class _Joined:
    """The state of a client that has joined a network."""

    swarm: Swarm
    finds: RecentFinds
    host: Host

    async def leave(self) -> None:
        await self.finds.close()
        await self.host.links.close()
        await self.swarm.close()


class AsyncClient:
    """An asyncio client that generates text with a swarm.

    It joins the network with its first call. Use `async with`, or `close` it. What it learns about peers is kept
    for later clients.

    Args:
        initial_peers: Addresses of nodes of the network, or an invitation.
        memory: File for what the client learns about peers; `False` for none. Default: one in the state folder of
            the user, or none with `join`.
        options: Those of `ClientOptions`. Options of a generation are the defaults of all calls.

    The other arguments are for tests and simulations. Raises `UsageError` for invalid options.
    """

    @lists_options(ClientOptions)
    def __init__(
        self,
        initial_peers: Sequence[str] = (),
        *,
        join: Join | None = None,
        offload: Offload | None = None,
        strategies: Mapping[str, StrategyKind] = STRATEGIES,
        nonces: Callable[[], bytes] = lambda: secrets.token_bytes(NONCE_BYTES),
        memory: ClientMemory | str | PathLike[str] | bool | None = None,
        evidence_file: EvidenceFile | None = None,
        audit_chance: Chance = UNFORESEEABLE,
        reuse_finds_s: float = REUSE_S,
        patience_s: float | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        self._options = merge_options(DEFAULTS, options, ClientOptions)
        self._strategies = strategies
        self._nonces = nonces
        self._memory = ClientMemory.of(join is None if memory is None else memory, strategies=strategies)
        self._evidence_file = evidence_file
        self._audit_chance = audit_chance
        self._reuse_finds_s = reuse_finds_s
        self._patience_s = join_patience_s() if patience_s is None else patience_s
        self._strategy_kind(self._options)
        self._target = Target.parse(self.target)
        self._join = join or joining(
            initial_peers,
            access=Access.of(self._options),
            tokenizer_folder=self._target.folder,
            transport=self._options.get("transport"),
            listens=self._options["listen"],
            memory=self._memory,
            target=self._target.name,
        )
        self._lifetime = Lifetime()
        self._connecting = asyncio.Lock()
        self._joined: _Joined | None = None
        # A long text takes some tenths of a second, and blocks no other.
        self._threads = [Threads("signatures", 1), Threads("texts", PLACES), Threads("chats", PLACES)]
        self._offload, self._offload_texts, self._offload_chats = [offload or each for each in self._threads]
        self._encoder = PromptEncoder(self._offload_texts, self._offload_chats)
        self._own_texts = self._read_own_texts(offload)
        self._forms: list[Forms] = []

    async def __aenter__(self) -> "AsyncClient":
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def connect(self) -> None:
        """Join the network now; otherwise the first call does. Raises `UsageError` or `PeerLost`."""
        await self._connected()

    async def close(self) -> None:
        """Leave the network. End all generations before."""
        if not self._lifetime.is_of_this_process or self._lifetime.is_over:
            return
        self._lifetime.end()
        if self._joined is not None:
            await self._joined.host.probation.close()
            await self._joined.host.auditing.close()
            await asyncio.gather(*(forms.close() for forms in self._forms))
            self._memory.distances.measure_again(self._joined.host.links)
            self._memory.write(now_s=asyncio.get_running_loop().time())
            await self._joined.leave()
        for threads in self._threads:
            threads.close()

    async def _connected(self) -> _Joined:
        self._lifetime.begin()
        async with self._connecting:
            if self._joined is None:
                joined = await self._join_network()
                # The client may be closed meanwhile.
                if self._lifetime.is_over:
                    await joined.leave()
                self._lifetime.check()
                self._joined = joined
        return self._joined

    async def _join_network(self) -> _Joined:
        swarm, clock = await self._join(), asyncio.get_running_loop().time
        links = Links(
            swarm.transport, on_flood=lambda peer_id: self._memory.failures.note_failed(peer_id, now_s=clock())
        )
        shared = Shared(
            links=links,
            offload=self._offload,
            failures=self._memory.failures,
            speeds=self._memory.speeds,
            standings=self._memory.standings,
            trials=self._memory.trials,
            distances=self._memory.distances,
            mandates=swarm.mandates,
        )
        auditing = Auditing(
            swarm.transport, shared.failures, shared.standings, file=self._evidence_file, chance=self._audit_chance
        )
        host = Host(
            links=links,
            shared=shared,
            auditing=auditing,
            probation=Probation(auditing, chance=self._audit_chance),
            own_texts=self._own_texts,
            observer=self._options.get("observer"),
        )
        joined = _Joined(swarm, RecentFinds(swarm.directory, links, clock, reuse_s=self._reuse_finds_s), host)
        self._memory.restore(now_s=clock())
        if self._target.name == ALL_TARGETS:
            try:
                listed = await joined.finds.find_some(Role.VERIFIER, ALL_TARGETS, wanted=WANTED_NODES)
                named = [record for record in listed if is_name(record.target)]
                self._options = {**self._options, "target": only_target(named)}
            except BaseException:
                await joined.leave()
                raise
            self._target = Target.parse(self.target)
        return joined

    @lists_options(GenerationOptions)
    async def generate(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Generation:
        """Generate a text. Raises as `start`, and `GenerationFailed` if no verifier can finish it."""
        run = await self.start(prompt, **options)
        async for _ in run.chunks():
            pass
        return run.result()

    @lists_options(GenerationOptions)
    def stream(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> AsyncTextStream:
        """Generate a text in chunks. Raises `UsageError` at once, and as `generate` while it is read."""
        wanted = self._checked(prompt, options)
        return AsyncTextStream(lambda: self._begin(wanted))

    @lists_options(GenerationOptions)
    async def start(
        self,
        prompt: Prompt | EncodedPrompt,
        *,
        otherwise: GenerationOptions = TEXT_DEFAULTS,
        cache_scope: bytes | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Run:
        """Find peers and prepare a generation.

        `otherwise` has the defaults for values that neither the options nor the model's generation config set.
        Give each user of a shared client a `cache_scope` of `CACHE_SCOPE_BYTES` random bytes: users then share no
        cached prefix, and its first `USER_BYTES` identify them for fair scheduling. Raises `UsageError` for
        requests that cannot be served and `GenerationFailed` if no verifier serves the target.
        """
        if cache_scope is not None and len(cache_scope) != CACHE_SCOPE_BYTES:
            raise UsageError(f"A cache_scope must have {CACHE_SCOPE_BYTES} bytes, not {len(cache_scope)}.")
        return await self._begin(self._checked(prompt, options, otherwise=otherwise, cache_scope=cache_scope))

    def _checked(
        self,
        prompt: Prompt | EncodedPrompt,
        options: GenerationOptions,
        *,
        otherwise: GenerationOptions = TEXT_DEFAULTS,
        cache_scope: bytes | None = None,
    ) -> Wanted:
        checked = prompt if isinstance(prompt, EncodedPrompt) else read_prompt(prompt)
        asked = merge_options(self._options, options, GenerationOptions)
        return Wanted(prompt=checked, options=asked, otherwise=otherwise, cache_scope=cache_scope)

    async def _begin(self, wanted: Wanted) -> Run:
        joined = await self._connected()
        nonce, asked = self._nonces(), wanted.options
        search = self._search(joined, asked, random.Random(nonce).random)
        # Drafters and verifiers are looked up concurrently: over a DHT each look-up takes round trips.
        looking = asyncio.ensure_future(search.look_up_drafters())
        try:
            patience_s = min(self._patience_s, asked["timeout_s"])
            candidates = await search.find(takes_recalled=True, patience_s=patience_s)
            codec = await self._codec(joined, candidates.records)
            encoded = await self._encoded(codec, wanted.prompt, candidates.records)
            texts = await self._encoder.encode_options(codec, encoded.reply, asked)
            found = await looking
            now_s = asyncio.get_running_loop().time()
            drafters = search.choose_drafters(found, candidates.records[0], now_s=now_s)
        finally:
            looking.cancel()
        applied = wanted.defaults_of(candidates.records[0])
        plan = GenerationPlan(
            ask=Ask(
                tokens=encoded.tokens,
                options={**wanted.otherwise, **applied.options, **asked, **texts.options},
                client=joined.swarm.transport.peer_id,
                nonce=nonce,
                seed=draw_seed(),
            ),
            options=asked,
            strategy=search.strategy,
            drafters=drafters,
            began_s=now_s,
            patience_s=self._patience_s,
            applied=applied,
            reply=encoded.reply,
            prediction=texts.prediction,
            cache_scope=wanted.cache_scope,
        )
        forms = Forms(search, candidates, plan.ask)
        if candidates.are_recalled:
            self._forms.append(forms)
        return Run(plan, codec, forms, joined.host)

    async def encode(self, prompt: Prompt) -> EncodedPrompt:
        """Encode a prompt once, for several calls of `start`. Raises as `start`."""
        checked, joined = read_prompt(prompt), await self._connected()
        search = self._search(joined, self._options, random.Random(0).random)
        verifiers = (await search.find(patience_s=self._patience_s)).records
        return await self._encoded(await self._codec(joined, verifiers), checked, verifiers)

    async def _codec(self, joined: _Joined, verifiers: Sequence[NodeRecord]) -> TextTokenizer:
        codec = await joined.swarm.text_codec(verifiers)
        if self._own_texts is not None:
            await self._own_texts.begin(codec, verifiers[0].tokenizer_digest.hex())
        return codec

    async def _encoded(
        self,
        codec: TextTokenizer,
        prompt: str | tuple[int, ...] | Chat | EncodedPrompt,
        verifiers: Sequence[NodeRecord],
    ) -> EncodedPrompt:
        if isinstance(prompt, EncodedPrompt):
            return prompt
        most_tokens = max(record.context_tokens for record in verifiers)
        return await self._encoder.encode(codec, prompt, most_tokens=most_tokens)

    @property
    def target(self) -> str:
        """The name of the target, or of the only one in the network. `ALL_TARGETS` until that is known."""
        return self._options.get("target") or ALL_TARGETS

    @property
    def swarm(self) -> Swarm:
        """The connection to the network. Raises `UsageError` before the client has joined."""
        if self._joined is None:
            raise UsageError("The client has not joined a network yet; `connect` joins it.")
        return self._joined.swarm

    def checks(self) -> Mapping[str, int]:
        """Return the number of each verifier's texts that were checked and found correct, by peer id."""
        return self._memory.standings.all_checks(asyncio.get_running_loop().time())

    async def audit(self, evidence: Sequence[Evidence], *, wait_s: float = AUDIT_ANSWER_S) -> tuple[Evidence, ...]:
        """Have other verifiers judge signed texts, each within `wait_s`, and apply the findings.

        Returns the evidence in the same order. A claim with invalid signatures is returned unchanged.
        """
        joined, trust = await self._connected(), self._options["trust"]
        return await joined.host.auditing.judged(evidence, joined.swarm.directory, trust=trust, wait_s=wait_s)

    @property
    def convicted(self) -> frozenset[str]:
        """The verifiers that this client has found to be wrong or keeps evidence against."""
        return self._memory.standings.rejected(asyncio.get_running_loop().time())

    @property
    def takes_generation_config(self) -> bool:
        """True if the model's generation config provides defaults."""
        return self._options["generation_config"] == AUTO

    async def with_tokenizer(self, work: Callable[[TextTokenizer], _T]) -> _T:
        """Run `work` with the target's tokenizer in a thread. Raises as `start` and `work`."""
        joined = await self._connected()
        codec = await joined.swarm.text_codec(await self.find_verifiers())
        try:
            async with asyncio.timeout(ENCODE_TIMEOUT_S):
                return await self._offload_chats(partial(work, codec))
        except TimeoutError:
            raise PromptRefused(f"The text could not be read within {ENCODE_TIMEOUT_S:.0f} s.") from None

    async def find_verifiers(self) -> tuple[NodeRecord, ...]:
        """Return the target's present verifiers, best first, at least one. Raises as `start`."""
        found = await self._search(await self._connected(), self._options, random.Random(0).random).find()
        return tuple(found.records)

    def _read_own_texts(self, offload: Offload | None) -> OwnTexts | None:
        folders, replies = self._options["draft_from"], self._options.get("past_replies")
        if replies == FORGET:
            forget_all()
        if not folders and replies != KEEP:
            return None
        self._threads.append(threads := Threads("own-texts", 1))
        return OwnTexts(folders, keeps_replies=replies == KEEP, offload=offload or threads)

    def _strategy_kind(self, options: ClientOptions) -> StrategyKind:
        name = options["strategy"]
        if name not in self._strategies:
            known = ", ".join(sorted(self._strategies))
            raise UsageError(f"There is no strategy {name!r}; choose one of {known}.")
        return self._strategies[name]

    def _search(self, joined: _Joined, options: ClientOptions, chance: Chance) -> PeerSearch:
        return PeerSearch(
            finds=joined.finds,
            shared=joined.host.shared,
            choose_digest=joined.swarm.choose_digest,
            target=self._target,
            named=self.target,
            strategy=self._strategy_kind(options),
            options=options,
            chance=chance,
        )
