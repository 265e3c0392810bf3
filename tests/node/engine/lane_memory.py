"""A memory of lanes that keeps what it is told, for tests."""


class ListedMemory:
    """Implements `cosine_node.engine.llama.lanes.LaneMemory`: the token at each position of a lane."""

    def __init__(self) -> None:
        self.lanes: dict[int, dict[int, str]] = {}

    def put(self, lanes: list[int], position: int, token: str) -> None:
        for lane in lanes:
            held = self.lanes.setdefault(lane, {})
            assert position == len(held), f"position {position} does not follow what lane {lane} holds"
            held[position] = token

    def text(self, lane: int) -> str:
        return "".join(token for _, token in sorted(self.lanes.get(lane, {}).items()))

    def share(self, source: int, target: int, start: int, stop: int) -> None:
        for position in range(start, stop):
            if position in self.lanes.get(source, {}):
                assert position not in self.lanes.get(target, {})
                self.lanes.setdefault(target, {})[position] = self.lanes[source][position]

    def forget(self, lane: int, start: int, stop: int | None = None) -> None:
        for position in list(self.lanes.get(lane, {})):
            if position >= start and (stop is None or position < stop):
                del self.lanes[lane][position]
