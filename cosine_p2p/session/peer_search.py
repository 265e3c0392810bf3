"""Finding peers: recent look-ups, the choice among peers for one request, and further verifiers for a session."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from cosine_p2p.directory.directory import Directory
from cosine_p2p.directory.selection import Chance, Experience, pick_drafters, rank_verifiers
from cosine_p2p.request.options import ClientOptions
from cosine_p2p.session.auditing import Judge
from cosine_p2p.session.delegation import may_delegate
from cosine_p2p.session.job import AnnouncedVerifier, OtherVerifiers, Shared
from cosine_p2p.session.plan import Ask, RequestForm, forms_of
from cosine_p2p.storage.memory import Remembered
from cosine_p2p.strategy.base import StrategyKind
from cosine_p2p.text.target import Target, settled_digest
from cosine_p2p.transport.link import Links
from cosine_p2p.transport.patience import ask_patiently, end_all
from cosine_p2p.trust.mandates import Coordination
from cosine_protocol.errors import ClockOff, CosineError, GenerationFailed, PeerLost
from cosine_protocol.records import NodeRecord, Role
from cosine_protocol.request import Request
from cosine_protocol.verify import VERIFY

WANTED_VERIFIERS: Final = 32  # Bounds what a look-up reads; a sample of this size is enough to choose from.
MAX_ASKED_DRAFTERS: Final = 8
"""Default maximum. Each reads the end of the prompt, and three are kept: eight included the expert of each prompt
of the embedded family (decision 2)."""
WANTED_DRAFTERS: Final = 16 * MAX_ASKED_DRAFTERS  # Bounds a look-up in a large directory (docs/design.md).

REUSE_S: Final = 2.0  # A look-up and its checks take about 20 ms on two cores (measured): two short passes.
KEEP_S: Final = 120.0
"""The maximum age of a look-up that a request uses while the next one is running; records live for five minutes. If
peers are 20 ms away a look-up takes 0.2 to 0.3 s (measured)."""
PAUSES_S: Final = (0.5, 1.5)  # A DHT may take a moment to show a new node.
MAX_FINDS: Final = 64  # Bounds memory; a client has few look-ups: two roles of its target.

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Find:
    records: list[NodeRecord]
    found_at_s: float
    lost_links: int
    is_recalled: bool = False  # Of an earlier run.


_Key = tuple[Role, str, int | None]


class RecentFinds:
    """Looks nodes up in a directory, unless there is a recent result and no link was lost since.

    A result older than `reuse_s` but not `KEEP_S`, or recalled from an earlier run, is used while it is renewed.
    With a `reuse_s` of 0 nothing is reused. Empty results are kept for drafters only.
    """

    def __init__(
        self, directory: Directory, links: Links, clock: Callable[[], float], *, reuse_s: float = REUSE_S
    ) -> None:
        self._directory = directory
        self._links = links
        self._clock = clock
        self._reuse_s = reuse_s
        self._finds = Remembered[_Key, _Find](MAX_FINDS, forgotten_s=KEEP_S)
        self._renewing: dict[_Key, asyncio.Task[None]] = {}
        self._looking: dict[_Key, asyncio.Task[list[NodeRecord]]] = {}
        self._was_answered = False
        # Those of an earlier run are used once.
        self._begun: set[_Key] = set()

    async def find(
        self, role: Role, target: str, *, wanted: int | None = None, patience_s: float = 0.0
    ) -> list[NodeRecord]:
        """Return recent live records. Raises as `Directory.find`, if nodes answered before after `patience_s`.

        A disconnected client, for example while its network daemon restarts, soon reconnects. A client that never
        got an answer may not be a member of a private swarm.
        """
        key = role, target, wanted
        now_s = self._clock()
        known = self._finds.get(key, now_s) or self._recall(key, now_s)
        if not self._reuse_s or known is None or known.lost_links != self._links.lost_links:
            look_up = partial(self._look_up, key)
            return await ask_patiently(look_up, patience_s=patience_s if self._was_answered else 0.0)
        self.begin_renewal(role, target, wanted=wanted)
        return known.records

    def begin_renewal(self, role: Role, target: str, *, wanted: int | None = None) -> None:
        key, now_s = (role, target, wanted), self._clock()
        known = self._finds.get(key, now_s)
        is_old = known is None or now_s - known.found_at_s >= self._reuse_s
        if self._reuse_s and is_old and key not in self._renewing:
            self._renewing[key] = task = asyncio.ensure_future(self._renew(key))
            task.add_done_callback(lambda _: self._renewing.pop(key))

    async def find_anew(self, role: Role, target: str, *, wanted: int | None = None) -> list[NodeRecord]:
        """The result of a new look-up, shared by concurrent callers. Raises as `Directory.find`."""
        key = role, target, wanted
        looking = self._looking.get(key)
        if looking is None:
            self._looking[key] = looking = asyncio.ensure_future(self._look_up(key))
            looking.add_done_callback(lambda _: self._looking.pop(key))
        # A cancelled caller does not cancel it for others.
        return await asyncio.shield(looking)

    async def find_some(
        self, role: Role, target: str, *, wanted: int | None = None, patience_s: float = 0.0
    ) -> list[NodeRecord]:
        """`find`, repeated after pauses while no node is found. Raises `ClockOff` only after the last."""
        find = partial(self.find, role, target, wanted=wanted, patience_s=patience_s)
        for pause_s in PAUSES_S:
            with suppress(ClockOff):
                if found := await find():
                    return found
            await asyncio.sleep(pause_s)
        return await find()

    def is_recalled(self, role: Role, target: str, *, wanted: int | None = None) -> bool:
        known = self._finds.get((role, target, wanted), self._clock())
        return known is not None and known.is_recalled

    async def look_again(self, role: Role, target: str, *, wanted: int | None = None) -> None:
        """Wait until a recalled result is renewed; if that fails, the next `find` looks up."""
        key = role, target, wanted
        if key in self._renewing:
            await asyncio.wait((self._renewing[key],))
        if self.is_recalled(role, target, wanted=wanted):
            self._finds.pop(key)

    def _recall(self, key: _Key, now_s: float) -> _Find | None:
        role, target, _ = key
        records = self._directory.recall(role, target) if self._reuse_s and key not in self._begun else None
        self._begun.add(key)
        if records is None or not (records or role is Role.DRAFTER):
            return None
        find = _Find(records, now_s - self._reuse_s, self._links.lost_links, is_recalled=True)
        self._finds.note(key, find, now_s)
        return find

    async def _look_up(self, key: _Key) -> list[NodeRecord]:
        role, target, wanted = key
        lost_links = self._links.lost_links
        records = await self._directory.find(role, target, wanted=wanted)
        self._was_answered = True
        self._finds.pop(key)
        self._begun.add(key)
        if records or role is Role.DRAFTER:
            now_s = self._clock()
            self._finds.note(key, _Find(records, now_s, lost_links), now_s)
        return records

    async def _renew(self, key: _Key) -> None:
        try:
            await self._look_up(key)
        except Exception as error:
            # The next request looks up once this is too old.
            logger.info("%ss could not be looked up again: %s", key[0], error)

    async def close(self) -> None:
        await end_all([*self._renewing.values(), *self._looking.values()])


@dataclass(frozen=True, slots=True)
class Candidates:
    """The verifiers of a target, best first, with level and measured seconds of a pass by peer id."""

    records: Sequence[NodeRecord]
    standing: Mapping[str, int]
    passes_s: Mapping[str, float]
    are_recalled: bool = False

    def judges(self) -> dict[str, Judge]:
        return {record.peer_id: Judge.of(record) for record in self.records}


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSearch:
    """Finds a target's peers for a request with some options. Times are from the event loop's clock."""

    finds: RecentFinds
    shared: Shared
    choose_digest: Callable[[str, Mapping[bytes, int]], bytes]
    target: Target
    named: str
    """The target as the user names it."""
    strategy: StrategyKind
    options: ClientOptions
    chance: Chance

    async def find(
        self, *, is_anew: bool = False, takes_recalled: bool = False, patience_s: float = 0.0
    ) -> Candidates:
        """Return suitable verifiers, best first, at least one.

        With `takes_recalled` those of an earlier run are used, if any is suitable and the digest is known. Raises
        `GenerationFailed`, `UsageError`, and as `RecentFinds.find`.
        """
        look = self.finds.find_anew if is_anew else partial(self.finds.find_some, patience_s=patience_s)
        find = partial(look, Role.VERIFIER, self.target.name, wanted=self._wanted)
        found = await find()
        if self.finds.is_recalled(Role.VERIFIER, self.target.name, wanted=self._wanted):
            digest = self.target.digest or settled_digest(self.target.name)
            known = [record for record in found if record.target_digest == digest]
            recalled = self._ranked(known, are_recalled=True)
            if takes_recalled and recalled.records:
                return recalled
            await self._renew()
            found = await find()
        if found:
            digest = self.target.digest or self.choose_digest(
                self.target.name, Counter(record.target_digest for record in found)
            )
            found = [record for record in found if record.target_digest == digest]
        if not found:
            raise GenerationFailed(
                f"No verifier serves {self.named!r} in this network; check --initial-peers, or start one with "
                f"`cosine-node verify --model {self.named}`."
            )
        candidates = self._ranked(found)
        if not candidates.records:
            offered = ", ".join(sorted({f"{record.peer_id} ({record.numerics})" for record in found}))
            raise GenerationFailed(f"No verifier of {self.named!r} fits the options; available: {offered}.")
        return candidates

    async def find_present(self) -> Candidates:
        """Return those of the look-up that has begun with the use of an earlier run's. Raises as `find`."""
        await self._renew()
        return await self.find()

    async def _renew(self) -> None:
        await self.finds.look_again(Role.VERIFIER, self.target.name, wanted=self._wanted)

    @property
    def _wanted(self) -> int | None:
        """Maximum number of records of a look-up; None if the options select verifiers that a sample may lack."""
        named = (self.options.get("verifier"), self.options["trust"], self.options.get("dtype"), self.target.digest)
        return None if any(named) else WANTED_VERIFIERS

    def _ranked(self, found: Sequence[NodeRecord], *, are_recalled: bool = False) -> Candidates:
        now_s = asyncio.get_running_loop().time()
        peer_ids = [record.peer_id for record in found]
        experience = Experience(
            rtts_s=self.shared.distances.measured(found, self.shared.links, VERIFY),
            passes_s=self.shared.speeds.passes_s(peer_ids, now_s=now_s),
            standing=self.shared.standings.levels(peer_ids, now_s=now_s),
            avoided=self.shared.failures.avoided(now_s) | self.shared.standings.rejected(now_s),
        )
        ranked = rank_verifiers(
            found,
            experience,
            chance=self.chance,
            dtype=self.options.get("dtype"),
            only=self.options.get("verifier"),
            trust=self.options["trust"],
        )
        return Candidates(ranked, experience.standing, experience.passes_s, are_recalled)

    @property
    def drafter_limit(self) -> int:
        given = self.options.get("max_drafters")
        return MAX_ASKED_DRAFTERS if given is None else given

    @property
    def _wanted_drafters(self) -> int | None:
        return None if self.options["trust"] else max(WANTED_DRAFTERS, self.drafter_limit)

    async def look_up_drafters(self) -> list[NodeRecord]:
        """Return the target's drafters by its name; none if the directory does not answer."""
        if not self.strategy.wants_drafters or not self.drafter_limit:
            return []
        try:
            return await self.finds.find(Role.DRAFTER, self.target.name, wanted=self._wanted_drafters)
        except (PeerLost, ClockOff) as lost:
            logger.warning("no drafters could be looked up: %s", lost)
            return []

    def look_out_for_drafters(self, *, asked: int) -> None:
        """Look up new drafters for the next request, if fewer than `drafter_limit` were asked."""
        if self.strategy.wants_drafters and asked < self.drafter_limit:
            self.finds.begin_renewal(Role.DRAFTER, self.target.name, wanted=self._wanted_drafters)

    def choose_drafters(
        self, found: Sequence[NodeRecord], verifier: NodeRecord, *, now_s: float
    ) -> tuple[NodeRecord, ...]:
        """Return the drafters to ask for a request to a verifier, without those that failed recently.

        If the client may delegate, those near the verifier are preferred: a client that coordinates nevertheless is
        near it too.
        """
        avoided = self.shared.failures.avoided(now_s)
        able = [record for record in found if record.peer_id not in avoided]
        distances, links = self.shared.distances, self.shared.links
        if may_delegate(self.shared.mandates, self.strategy, Coordination(self.options["coordination"])):
            rtts_s = distances.by_verifier(able, verifier, links, now_s=now_s)
        else:
            rtts_s = distances.by_client(able, verifier, links)
        return pick_drafters(
            able,
            tokenizer_digest=verifier.tokenizer_digest,
            limit=self.drafter_limit,
            chance=self.chance,
            trust=self.options["trust"],
            rtts_s=rtts_s,
        )


class Forms(OtherVerifiers):
    """The forms of a request, which are tried one after the other, and further verifiers for the present one.

    If the verifiers in `candidates` were found by an earlier run, present ones are looked up meanwhile. End that
    with `close`.
    """

    def __init__(self, search: PeerSearch, candidates: Candidates, ask: Ask) -> None:
        """Raises as `forms_of`."""
        self.candidates = candidates
        self.search = search
        self._ask = ask
        self._forms = forms_of(ask, candidates.records, standing=candidates.standing)
        self._present: list[RequestForm] = []
        self._tried: list[Request] = []
        self._finding = asyncio.ensure_future(self._find_present()) if candidates.are_recalled else None

    def take(self) -> RequestForm | None:
        """Return the best form that was not taken yet; the other methods are about this one."""
        form = next(self._untried(), None)
        if form is not None:
            self._tried.append(form.request)
            self.other_numerics = {one.request.numerics for one in self._forms} - {form.request.numerics}
        return form

    @property
    def has_other_form(self) -> bool:
        return any(self._untried())

    async def present(self) -> dict[str, AnnouncedVerifier]:
        if self._finding is not None:
            await asyncio.wait((self._finding,))
        found = (form.verifiers for form in self._present if form.request == self._tried[-1])
        return AnnouncedVerifier.by_peer(next(found, ()))

    async def found_again(self) -> dict[str, AnnouncedVerifier]:
        request = self._tried[-1]
        needed_tokens = len(request.prompt) + request.max_new_tokens
        try:
            found = await self.search.find(is_anew=True)
        except CosineError as error:
            logger.info("no verifier was found to continue: %s", error)
            return {}
        of_target = [record for record in found.records if record.target_digest == request.target_digest]
        self.other_numerics = {record.numerics for record in of_target} - {request.numerics}
        alike = [record for record in of_target if record.numerics == request.numerics]
        return AnnouncedVerifier.by_peer([record for record in alike if record.context_tokens >= needed_tokens])

    async def close(self) -> None:
        if self._finding is not None:
            await end_all([self._finding])

    def _untried(self) -> Iterator[RequestForm]:
        return (form for form in (*self._forms, *self._present) if form.request not in self._tried)

    async def _find_present(self) -> None:
        try:
            found = await self.search.find_present()
            self._present = forms_of(self._ask, found.records, standing=found.standing)
            self.candidates = found
        except CosineError as error:
            logger.info("the verifiers of an earlier run were not found again: %s", error)
