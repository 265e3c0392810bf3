"""Events of nodes between two surveys of the swarm, and the reason why a swarm is thought lost."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from cosine_node.learning.home import LearnedName
from cosine_p2p.survey import Survey
from cosine_protocol.records import Role
from cosine_tui.formatting import counted, short_name
from cosine_tui.snapshot import Event, EventKind, NodeView, Reachability


def node_title(node: NodeView) -> str:
    """A node in a few words: `code drafter 4fQk2v`."""
    expertise = node.record.expertise
    domains = f"{'+'.join(expertise)} " if expertise and node.role == Role.DRAFTER else ""
    return f"{domains}{node.role} {short_name(node.peer_id)}"


def node_events(before: Mapping[str, NodeView], after: Sequence[NodeView], now_s: float) -> Iterator[Event]:
    """Nodes that joined, left, ceased to answer or answer again; the first survey is one event."""
    if not before:
        if after:
            roles = Counter(node.role for node in after)
            stages = f" and {counted(roles[Role.STAGE], 'stage')}" if roles[Role.STAGE] else ""
            lost = sum(node.reachability is Reachability.LOST for node in after)
            rest = f", {lost:,} of them unreachable" if lost else ""
            verifiers, drafters = counted(roles[Role.VERIFIER], "verifier"), counted(roles[Role.DRAFTER], "drafter")
            found = f"{verifiers} and {drafters}{stages}{rest}"
            yield Event(now_s, EventKind.JOINED, f"found {found}")
        return
    present = {node.peer_id for node in after}
    for node in after:
        old = before.get(node.peer_id)
        if old is None:
            yield Event(now_s, EventKind.JOINED, node_title(node))
        if node.reachability is Reachability.LOST and (old is None or old.reachability is Reachability.UP):
            yield Event(now_s, EventKind.UNREACHABLE, f"{node_title(node)}: {node.reason}")
        elif node.reachability is Reachability.UP and old is not None and old.reachability is Reachability.LOST:
            yield Event(now_s, EventKind.REACHABLE, node_title(node))
        if old is not None and old.record.model != node.record.model:
            yield from _switched(old, node, now_s)
    for peer_id, node in before.items():
        if peer_id not in present:
            yield Event(now_s, EventKind.LEFT, node_title(node))


def _switched(old: NodeView, node: NodeView, now_s: float) -> Iterator[Event]:
    """By its own word, a drafter serves with other weights that it has learned."""
    before, after = LearnedName.of(old.record.model), LearnedName.of(node.record.model)
    if after is not None and (before is None or after.number > before.number):
        yield Event(now_s, EventKind.LEARNED, f"{node_title(node)} serves version {after.number} of {after.model}")
    elif before is not None and node.record.model.startswith(before.model):
        to = f"version {after.number}" if after is not None else "the model as it came"
        yield Event(now_s, EventKind.WENT_BACK, f"{node_title(node)} from version {before.number} to {to}")


def why_lost(survey: Survey, *, has_known_nodes: bool) -> str:
    """The reason why the swarm must be thought lost after a survey; "" if it is there."""
    if any(not node.reason for node in survey.nodes):
        return ""
    if survey.problem:
        return survey.problem
    if survey.nodes:
        return f"none of {len(survey.nodes)} announced nodes answers"
    return "nobody is announced any more" if has_known_nodes else ""
