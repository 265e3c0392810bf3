"""Plain decoding: the verifier alone."""

from cosine_p2p.strategies.base import Action, Event


class Plain:
    """Asks nobody for drafts."""

    def __init__(self, root: bytes, position: int = 0) -> None:
        del root, position

    def on(self, event: Event, now_s: float) -> list[Action]:
        del event, now_s
        return []
