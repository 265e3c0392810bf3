"""A generating request: passes feed the nodes of its live tree, and the target's choices are committed. Pure.

`served_request` describes its stages.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from cosine_engine.base import PREFIX, Choice, Row, RowResult
from cosine_node.verifier.free_drafts import TARGET_AUTHOR, FreeDrafts
from cosine_node.verifier.served_request import (
    SCORED_TOKENS,
    Outcome,
    PassShare,
    RequestEnd,
    RequestStage,
    ServedRequest,
)
from cosine_node.verifier.speculation import SpeculationAccount, is_planned, probability_of_others
from cosine_p2p.strategy.tree import LiveTree, TreeNode
from cosine_p2p.trust.audit_rule import is_near_tie
from cosine_protocol.codec import Message
from cosine_protocol.digests import roll_digest
from cosine_protocol.identity import Identity, sign
from cosine_protocol.stream import Account, FinishReason
from cosine_protocol.stream import Final as FinalMessage
from cosine_protocol.verify import (
    FORCED_AUTHOR,
    HOME_AUTHOR,
    Commit,
    Likelihood,
    LikelihoodDigest,
    Pacing,
    PassStats,
    PromptLikelihoods,
    Transcript,
    is_transcript_due,
)

MIN_EXPECTED: Final = 0.005
"""Paths less likely than this bring less than 1/200 of a token; wide trees have hundreds."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The tokens that one pass commits after `position` output tokens, with the author and likelihood of each.

    `accepted_nodes` are the names of the row's nodes that become part of the prefix, in order.
    """

    position: int
    tokens: tuple[int, ...]
    authors: bytes
    accepted_nodes: tuple[int, ...]
    near_ties: int
    finish: FinishReason | None
    likelihoods: tuple[Likelihood, ...] = ()


def is_drafter(author: int) -> bool:
    """True for an author that is a peer, and not the verifier itself."""
    return author not in (TARGET_AUTHOR, HOME_AUTHOR, FORCED_AUTHOR)


@dataclass(slots=True, eq=False, kw_only=True)
class VerifierRequest(ServedRequest):
    """A request that generates. `output` includes the tokens before `first` that it was resumed with.

    `signer` signs transcripts and the account. `drafters` are the authors 1, 2, ... of its drafts, as the client
    names them. `free` are the verifier's copies and forced tokens, None unless the client leaves the pace to the
    verifier. `has_home_drafts`: the verifier's drafter drafted for
    the next pass, which feeds `beside_home` nodes of others. `is_drafted_ahead`: that drafter drafts all the time,
    concurrently with passes over stages.

    `fed` maps the pending token (the tree's root) and fed live nodes to their names in the sequence, of which
    `named` were given so far; `choices` and `likelihoods` are the results after such names. `told` is the digest of
    the likelihoods sent to the client, of which `prompt_told` are of prompt tokens.
    """

    signer: Identity
    pacing: Pacing
    drafters: tuple[str, ...] = ()
    free: FreeDrafts | None = None
    account: SpeculationAccount = field(default_factory=SpeculationAccount)
    has_home_drafts: bool = False
    is_drafted_ahead: bool = False
    beside_home: int = 0
    fed: dict[TreeNode, int] = field(default_factory=dict)
    named: int = 0
    choices: dict[int, Choice] = field(default_factory=dict)
    likelihoods: dict[int, Likelihood] = field(default_factory=dict)
    told: LikelihoodDigest = field(default_factory=LikelihoodDigest)
    prompt_told: int = 0
    accepted: Counter[int] = field(default_factory=Counter)
    tree: LiveTree = field(init=False)
    first: int = field(init=False)
    _note: Callable[[Message], Message] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        ServedRequest.__post_init__(self)
        self.first = len(self.output)
        self.tree = LiveTree(roll_digest(self.d_0, self.output), len(self.output))

    def post(self, message: Message) -> bool:
        return self.channel.post(message if self._note is None else self._note(message))

    @property
    def is_coordinated(self) -> bool:
        """True if it was coordinated here, even if no longer."""
        return self._note is not None

    def coordinate(self, note: Callable[[Message], Message]) -> None:
        """Post what `note` makes of messages from now on, for a coordinator in this node."""
        self._note = note

    @property
    def authors(self) -> int:
        """The number of drafters."""
        return len(self.drafters)

    @property
    def tokens_left(self) -> int:
        return self.request.max_new_tokens - len(self.output)

    def expected_tokens(self) -> float:
        """The expected number of accepted tokens of the current tree, at the client's acceptance rates."""
        deepest = self.tree.position + self.tokens_left - 1

        def likely(node: TreeNode) -> float | None:
            if node.position >= deepest:
                return None
            said = probability_of_others(node)
            return node.draft_probability if said is None else self.account.rates.usual(said)

        found = self.tree.path_probabilities(likely)
        return sum(probability for probability in found.values() if probability >= MIN_EXPECTED)

    @property
    def may_be_drafted_for(self) -> bool:
        """True if the verifier may add its own drafts."""
        return self.pacing is Pacing.FREE

    @property
    def tells_prompt(self) -> bool:
        """True while likelihoods of prompt tokens are to be sent; a client that resumes has them already."""
        asked = self.request.logprobs
        return asked is not None and asked.of_prompt and not self.first and self.stage is RequestStage.PREFILL

    @property
    def may_reuse_prefix(self) -> bool:
        # The prefix cache has no scores.
        return not self.tells_prompt

    @property
    def is_pending_fed(self) -> bool:
        return self.tree.root in self.fed

    def prefill_row(self, tokens: int) -> Row:
        """The row that feeds at most `tokens` of the next known tokens.

        Only the last known token is scored, and none while recomputing, unless prompt likelihoods are due.
        """
        known, fed = self.known_tokens, self.kv.fed_tokens
        chunk = known[fed : fed + (min(tokens, SCORED_TOKENS) if self.tells_prompt else tokens)]
        is_scored = fed + len(chunk) == len(known) and self.stage is RequestStage.PREFILL
        row = Row.chain(self.kv.sequence, chunk, scored_from=len(chunk) - is_scored)
        if self.request.logprobs is None:
            return row
        followers: tuple[int | None, ...] = (None,) * is_scored
        if self.tells_prompt:
            # A preemption may have come after some were sent.
            followers = (*self.request.prompt[max(fed, self.prompt_told) + 1 : fed + len(chunk) + 1], *followers)
        return replace(row, followers=followers, top=self.request.logprobs.top)

    def decode_row(self, chosen: Sequence[TreeNode]) -> Row:
        """The row of the pending token, unless it was fed, and chosen nodes. Raises `ValueError` if it is empty."""
        pending = [] if self.is_pending_fed else [self.tree.root]
        nodes = [*pending, *sorted(chosen, key=lambda node: node.position)]
        # Names are never reused: the choice after a dropped node may still arrive.
        first = self.named
        self.named += len(nodes)
        self.fed |= {node: name for name, node in enumerate(nodes, first)}
        self.beside_home = sum(not is_planned(node) for node in chosen) if self.has_home_drafts else 0
        asked = self.request.logprobs
        return Row(
            self.kv.sequence,
            (*self.output[-1:] * len(pending), *(node.token for node in nodes[len(pending) :])),
            tuple(range(first, first + len(nodes))),
            tuple(PREFIX if node.parent is None else self.fed[node.parent] for node in nodes),
            followers=() if asked is None else (None,) * len(nodes),
            top=0 if asked is None else asked.top,
        )

    def unfeed(self, row: Row) -> None:
        ServedRequest.unfeed(self, row)
        self.fed = {node: name for node, name in self.fed.items() if name not in row.nodes}

    def preempt(self, sequence: int) -> None:
        ServedRequest.preempt(self, sequence)
        self.fed, self.choices, self.likelihoods = {}, {}, {}
        if self.stage is RequestStage.DECODE:
            self.stage = RequestStage.RECOMPUTE

    def note_fed(self, tokens: int) -> None:
        """Count known tokens that are in the KV cache now; after the last recomputed one it decodes again."""
        ServedRequest.note_fed(self, tokens)
        if self.stage is RequestStage.RECOMPUTE and not self.unfed_tokens:
            self.stage = RequestStage.DECODE

    def take(self, row: Row, result: RowResult, share: PassShare) -> Outcome:
        """Take known tokens into the prefix, or commit the tokens that the target's choices lead to."""
        told = self._told_of_prompt(row, result.likelihoods)
        if not row.is_scored:
            self.note_fed(len(row.tokens))
            return Outcome(row.nodes, known_tokens=len(row.tokens), messages=told)
        is_prefill = self.stage is RequestStage.PREFILL
        verdict = self.judge(row, result.choices, result.likelihoods)
        if not verdict.tokens:
            return Outcome(messages=told)
        if is_prefill:
            self.note_fed(len(row.tokens))
        else:
            self.charge(verdict, share)
        return Outcome(
            verdict.accepted_nodes,
            self.commit(verdict),
            len(row.tokens) if is_prefill else 0,
            verdict.authors,
            (*told, self._commit_message(verdict, share)),
            verdict.finish,
        )

    def _told_of_prompt(self, row: Row, likelihoods: Sequence[Likelihood]) -> tuple[Message, ...]:
        """The message with the prompt likelihoods of a row, if there are any."""
        told = likelihoods[: sum(token is not None for token in row.followers)]
        if not told:
            return ()
        position = self.prompt_told + 1
        self.prompt_told += len(told)
        self.told.add(told)
        return (PromptLikelihoods(self.number, position, tuple(told)),)

    def judge(self, row: Row, choices: Sequence[Choice], likelihoods: Sequence[Likelihood] = ()) -> Verdict:
        """Add the choices after a row, and walk down the tree while choices and fed children are known."""
        self.awaits_choices = False
        self.choices |= zip(row.nodes[row.scored_from :], choices, strict=True)
        self.likelihoods |= zip(row.nodes[row.reported_from :], likelihoods, strict=True)
        node = self.tree.root
        is_prefill = self.stage is RequestStage.PREFILL
        name = row.nodes[-1] if is_prefill else self.fed.get(node)
        accepted = list(row.nodes[:-1]) if is_prefill else []
        tokens: list[int] = []
        told: list[Likelihood] = []
        authors = bytearray()
        near_ties = 0
        finish = None
        while finish is None and name is not None and (choice := self.choices.get(name)) is not None:
            accepted.append(name)
            near_ties += is_near_tie(choice.margin, sampling=self.request.sampling, near_tie=self.near_tie)
            tokens.append(choice.token)
            if self.request.logprobs is not None:
                told.append(self.likelihoods[name])
            if choice.token in self.request.eos:
                finish = FinishReason.EOS
            elif len(tokens) >= self.tokens_left:
                finish = FinishReason.LENGTH
            child = node.children.get(choice.token)
            name = None if child is None else self.fed.get(child)
            if child is None or name is None:
                authors.append(TARGET_AUTHOR)
            else:
                node = child
                authors.append(self._author_of(child))
        return Verdict(
            len(self.output), tuple(tokens), bytes(authors), tuple(accepted), near_ties, finish, tuple(told)
        )

    def _author_of(self, node: TreeNode) -> int:
        """The author that is credited for an accepted node."""
        # Forced and copied tokens are free, so no drafter is credited for them; the verifier's own drafter is
        # credited for those without another author, over stages for those that it drafted first.
        said = node.draft_probabilities
        if FORCED_AUTHOR in said:
            return FORCED_AUTHOR
        if TARGET_AUTHOR in said:
            return TARGET_AUTHOR
        others = said.keys() - {HOME_AUTHOR}
        is_first = self.is_drafted_ahead and next(iter(said)) == HOME_AUTHOR
        return HOME_AUTHOR if is_first or not others else node.most_confident_author(others)

    def charge(self, verdict: Verdict, share: PassShare) -> None:
        """Charge a pass against a plain one at the same load.

        A pass without drafts costs nothing. With home drafts, which are planned by their own rates, only the nodes
        of others are charged, by the time by which they lengthened the pass.
        """
        spent_s, plain_s, tokens = share.spent_s, share.plain_s, len(verdict.tokens)
        if self.has_home_drafts:
            brought = sum(not is_planned(node) for node in self.tree.follow(verdict.tokens[:-1]))
            spent_s = share.longer_s(self.beside_home) + (tokens - brought) * plain_s
        elif not share.nodes:
            plain_s = spent_s
        self.account.charge(spent_s=spent_s, tokens=tokens, plain_pass_s=plain_s)
        self.has_home_drafts = False

    def commit(self, verdict: Verdict) -> tuple[int, ...]:
        """Append a verdict, advance the tree and draft below it; return the names of fed nodes off the path."""
        self.account.rates.learn(self.tree, verdict.tokens)
        self.output.extend(verdict.tokens)
        self.tree.advance(verdict.tokens)
        followed = {self.tree.root, *self.tree.walk()} if self.fed else set()
        dropped = tuple(name for node, name in self.fed.items() if node not in followed)
        self.fed = {node: name for node, name in self.fed.items() if node in followed}
        self.choices = {name: self.choices[name] for name in self.fed.values() if name in self.choices}
        self.likelihoods = {name: self.likelihoods[name] for name in self.choices if name in self.likelihoods}
        for nodes, authors in () if self.free is None else self.free.after(verdict.tokens, self.output):
            self.tree.attach(self.tree.root.digest, self.tree.position, nodes, authors)
        self.accepted.update(filter(is_drafter, verdict.authors))
        self.stage = RequestStage.DECODE
        return dropped

    def _commit_message(self, verdict: Verdict, share: PassShare) -> Commit:
        """The committed tokens for the client, with a transcript when it is due."""
        is_first = verdict.position == self.first
        cached = min(self.kv.cached_tokens, len(self.request.prompt)) if is_first else 0
        stats = PassStats(share.nodes, verdict.near_ties, round(1e6 * share.elapsed_s), cached or None)
        digest = self.tree.root.digest
        transcript = told = None
        if self.request.logprobs is not None:
            self.told.add(verdict.likelihoods)
            told = self.told.digest()
        has_ended = verdict.finish is not None
        if is_transcript_due(before=verdict.position, after=len(self.output), has_ended=has_ended):
            committed = Transcript(self.first, len(self.output), digest, told)
            transcript = sign(self.signer, committed, digest=self.d_0)
        place = (verdict.position, verdict.tokens, digest, verdict.authors, stats, transcript)
        return Commit(self.number, *place, None if told is None else verdict.likelihoods)

    def end(self, reason: FinishReason, stages: Sequence[str]) -> RequestEnd:
        """End with a signed account of the accepted tokens of each drafter."""
        accepted = tuple(self.accepted[author] for author in range(1, self.authors + 1))
        account = Account(self.number, reason, len(self.output), self.tree.root.digest, accepted)
        signed = sign(self.signer, account, digest=self.d_0)
        final = FinalMessage(signed.body, signed.signature)
        return RequestEnd(reason.name.lower(), f"{len(self.output)} tokens", final)
