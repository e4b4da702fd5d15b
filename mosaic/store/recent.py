"""A mapping that forgets what was not used for longest once it holds too much."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most `limit` units of values, counted by `size` (none: each is one); reading a value makes it recent."""

    def __init__(self, limit: int, size: Callable[[V], int] | None = None) -> None:
        self._limit = limit
        self._size = size
        self._held = 0
        self._values: OrderedDict[K, V] = OrderedDict()

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def get(self, key: K) -> V | None:
        """The value, now the most recent one; None when it is not known (any more)."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key]

    def update(self, values: Mapping[K, V]) -> None:
        """Add or replace values, then forget the oldest beyond the limit."""
        known = self._values
        for key, value in values.items():
            if key in known:
                self._held -= self._units([known.pop(key)])
            known[key] = value
        self._held += self._units(values.values())
        while self._held > self._limit:
            _, forgotten = known.popitem(last=False)
            self._held -= self._units([forgotten])

    def _units(self, values: Collection[V]) -> int:
        return len(values) if self._size is None else sum(map(self._size, values))

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()
        self._held = 0
