"""One request at a verifier: its stream so far, its live tree, and what a pass over it means."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from cosine_node.engine.base import PREFIX, Choice, Row
from cosine_node.verifier.account import SpeculationAccount
from cosine_node.verifier.prompt_lookup import PromptLookup
from cosine_p2p.speculation.tree import LiveTree, TreeNode
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.messages import FinishReason, Pacing
from cosine_protocol.request import Request

NEAR_TIE: Final = 1e-4
OWN: Final = 0
"""The author of the target's own tokens, and of what the verifier drafts itself."""


class Stage(Enum):
    """Where a request stands in the step loop."""

    PREFILL = auto()
    DECODE = auto()
    AWAIT_VERIFY = auto()
    """Stepped pacing: nothing happens until the client asks for a pass."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one pass committed. `authors` credits each token (0 = the target's own)."""

    base: bytes
    position: int
    tokens: tuple[int, ...]
    authors: bytes
    accepted_nodes: tuple[int, ...]
    """Names of the row's nodes that are now part of the prefix, in order."""
    near_ties: int
    finish: FinishReason | None


@dataclass(slots=True)
class VerifierRequest:
    """The state of a request between passes. `output` includes what it was resumed with."""

    number: int
    request: Request
    pacing: Pacing
    authors: int
    sequence: int
    output: list[int]
    stage: Stage = Stage.PREFILL
    stage_after: Stage | None = None
    """Where it goes on once all is fed again that a preemption took; None at its first prefill."""
    fed_tokens: int = 0
    """Of prompt and output, in the engine's prefix; counted while they are fed in chunks."""
    waited_passes: int = 0
    """Passes in a row in which it had no place."""
    scope: str | None = None
    """Who may share the pages of its prefix (`cosine_node.engine.base.Engine.open`)."""
    has_looked_for_pages: bool = False
    """Whether the engine was asked for pages that hold the beginning of the prefix already."""
    admission: int = 0
    """Its place in the order in which requests came."""
    has_pages: bool = False
    is_cancelled: bool = False
    nodes: list[TreeNode] = field(default_factory=list)
    """Tree nodes of the pass under way; node i of the row is `nodes[i - 1]`, node 0 the pending token."""
    lookup: PromptLookup | None = None
    """Where the verifier adds drafts of its own."""
    keeps_account: bool = True
    account: SpeculationAccount = field(default_factory=SpeculationAccount)
    accepted: dict[int, int] = field(default_factory=dict)
    d_0: bytes = b""
    tree: LiveTree = field(init=False)

    def __post_init__(self) -> None:
        self.d_0 = request_digest(self.request)
        self.tree = LiveTree(roll_digest(self.d_0, self.output), len(self.output))

    @property
    def tokens_left(self) -> int:
        return self.request.max_new_tokens - len(self.output)

    @property
    def awaits_verify(self) -> bool:
        """Whether a stepped client has to ask for the next pass."""
        return Stage.AWAIT_VERIFY in (self.stage, self.stage_after)

    def ask(self) -> None:
        """The client of a stepped request asks for a pass."""
        if self.stage is Stage.PREFILL:
            self.stage_after = Stage.DECODE
        else:
            self.stage = Stage.DECODE

    @property
    def unfed_tokens(self) -> int:
        """Certain tokens to be fed in chunks before it decodes; 0 once it does."""
        return self._certain_length() - self.fed_tokens if self.stage is Stage.PREFILL else 0

    def _certain_length(self) -> int:
        """Prompt and output; what is fed again stops before the pending token, which a pass feeds as before."""
        return len(self.request.prompt) + len(self.output) - (self.stage_after is not None)

    def chunk_row(self, tokens: int) -> Row:
        """The row that feeds the next `tokens` of the prompt and of what it was resumed with.

        A choice is asked for only after the last of them, and not at all where they were fed before.
        """
        certain = self.certain_tokens
        chunk = certain[self.fed_tokens : self.fed_tokens + tokens]
        is_last = self.stage_after is None and self.fed_tokens + len(chunk) == len(certain)
        return Row(
            self.sequence,
            chunk,
            tuple(range(len(chunk))),
            tuple(range(-1, len(chunk) - 1)),
            scored_from=len(chunk) - is_last,
        )

    @property
    def certain_tokens(self) -> tuple[int, ...]:
        """All that is to be fed in chunks."""
        return (*self.request.prompt, *self.output)[: self._certain_length()]

    def note_fed(self, tokens: int) -> None:
        """Tokens are part of the prefix now; what was only fed again decodes once all of it is."""
        self.fed_tokens += tokens
        if self.stage_after is not None and not self.unfed_tokens:
            self.stage, self.stage_after = self.stage_after, None

    def preempt(self, sequence: int) -> None:
        """Its pages were taken away: everything is fed again, to this new sequence, and then goes on as before."""
        self.sequence, self.fed_tokens, self.nodes = sequence, 0, []
        self.has_pages = self.has_looked_for_pages = False
        if self.stage is not Stage.PREFILL:
            self.stage_after, self.stage = self.stage, Stage.PREFILL

    def decode_row(self, chosen: Sequence[TreeNode]) -> Row:
        """The row that feeds the pending token and chosen nodes of the live tree, parents first."""
        self.nodes = sorted(chosen, key=lambda node: node.position)
        name_of: dict[TreeNode | None, int] = {node: name for name, node in enumerate(self.nodes, 1)}
        parents = (name_of.get(node.parent, 0) for node in self.nodes)
        return Row(
            self.sequence,
            (self.output[-1], *(node.token for node in self.nodes)),
            tuple(range(len(self.nodes) + 1)),
            (PREFIX, *parents),
        )

    def accept(self, row: Row, choices: Sequence[Choice]) -> Step:
        """Walk down from the row's last certain token while a fed child equals the target's own choice."""
        base, position = self.tree.root.digest, len(self.output)
        children = self._fed_children()
        name = 0
        tokens, authors, path, near_ties = [], bytearray(), [*row.nodes[: row.scored_from + 1]], 0
        finish = None
        while finish is None:
            choice = choices[name]
            near_ties += choice.margin < NEAR_TIE
            tokens.append(choice.token)
            finish = self._finish_after(choice.token, len(tokens))
            child = children.get((name, choice.token))
            authors.append(0 if child is None else self.nodes[child - 1].most_confident_author())
            if child is None or finish is not None:
                break
            name = child
            path.append(child)
        return Step(base, position, tuple(tokens), bytes(authors), tuple(path), near_ties, finish)

    def apply(self, step: Step) -> None:
        """Take a step into the stream and the tree."""
        self.output.extend(step.tokens)
        self.tree.advance(step.tokens)
        if self.lookup is not None:
            self.lookup.extend(step.tokens)
            nodes = self.lookup.draft()
            self.tree.attach(self.tree.root.digest, self.tree.position, nodes, [OWN] * len(nodes))
        self.nodes = []
        for author in step.authors:
            if author:
                self.accepted[author] = self.accepted.get(author, 0) + 1

    def book(self, step: Step, *, elapsed_s: float, plain_pass_s: float, nodes: int) -> None:
        """Charge a pass to the account.

        A pass without drafts is what plain decoding costs, however long it took; one with drafts is compared with
        `plain_pass_s`.
        """
        if self.keeps_account and self.stage is not Stage.PREFILL:
            plain_s = plain_pass_s if nodes else elapsed_s
            self.account.charge(spent_s=elapsed_s, tokens=len(step.tokens), plain_pass_s=plain_s)

    def _fed_children(self) -> dict[tuple[int, int], int]:
        name_of: dict[TreeNode | None, int] = {node: name for name, node in enumerate(self.nodes, 1)}
        return {(name_of.get(node.parent, 0), node.token): name for name, node in enumerate(self.nodes, 1)}

    def _finish_after(self, token: int, new_tokens: int) -> FinishReason | None:
        if token in self.request.eos:
            return FinishReason.EOS
        return FinishReason.LENGTH if new_tokens >= self.tokens_left else None
