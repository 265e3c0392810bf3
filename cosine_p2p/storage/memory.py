"""A bounded map that forgets the oldest entries. Pure."""

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


class Remembered(Generic[_K, _V]):
    """A map of at most `most` keys, which forgets the oldest first, and each after `forgotten_s` seconds."""

    def __init__(self, most: int, *, forgotten_s: float = math.inf) -> None:
        self._most = most
        self._forgotten_s = forgotten_s
        self._entries: OrderedDict[_K, tuple[_V, float]] = OrderedDict()

    def note(self, key: _K, value: _V, now_s: float = 0.0) -> None:
        self._entries[key] = value, now_s
        self._entries.move_to_end(key)
        if len(self._entries) > self._most:
            self._entries.popitem(last=False)

    def get(self, key: _K, now_s: float = 0.0) -> _V | None:
        value, noted_s = self._entries.get(key, (None, now_s))
        return value if self._is_fresh(noted_s, now_s) else None

    def pop(self, key: _K) -> _V | None:
        value, _ = self._entries.pop(key, (None, 0.0))
        return value

    def items(self, now_s: float = 0.0) -> list[tuple[_K, _V]]:
        """All entries that are not forgotten, the oldest first."""
        entries = self._entries.items()
        return [(key, value) for key, (value, noted_s) in entries if self._is_fresh(noted_s, now_s)]

    def aged(self, now_s: float) -> list[tuple[_K, _V, float]]:
        """`items`, each with its age in seconds."""
        return [(key, value, now_s - self._entries[key][1]) for key, value in self.items(now_s)]

    def restore(
        self: "Remembered[str, _V]", aged: Any, kind: Callable[[Any], _V], *, now_s: float, away_s: float
    ) -> None:
        """Load what `aged` returned `away_s` ago, from JSON. Raises `ValueError` or `TypeError`."""
        for key, value, age_s in aged[-self._most :]:
            self.note(str(key), kind(value), now_s - float(age_s) - away_s)

    def _is_fresh(self, noted_s: float, now_s: float) -> bool:
        return 0.0 <= now_s - noted_s < self._forgotten_s
