"""A store whose commits are timed."""

from collections.abc import Callable
from time import perf_counter
from typing import Any, cast

from flowstate_local.stores.base import Store

COMMITS = ("append", "persist", "append_task")


def timed(store: Store, observe: Callable[[str, float], None]) -> Store:
    """The same store; after each commit that went well, its name and seconds are told."""
    return cast(Store, _Timed(store, observe))


class _Timed:
    def __init__(self, store: Store, observe: Callable[[str, float], None]) -> None:
        self._store = store
        self._observe = observe
        for name in COMMITS:
            setattr(self, name, self._around(name, getattr(store, name)))

    def _around(self, name: str, commit: Callable[..., Any]) -> Callable[..., Any]:
        def around(*args: Any, **kwargs: Any) -> Any:
            begun = perf_counter()
            result = commit(*args, **kwargs)
            self._observe(name, perf_counter() - begun)
            return result

        return around

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
