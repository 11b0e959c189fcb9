"""The evaluation needs an extra; without it every command of `bench` says so and how to get it."""

from collections.abc import Iterator
from contextlib import contextmanager

from flowstate_local.errors import UsageError

_OF_EXTRA = ("bm25s", "numpy", "jinja2", "mem0", "qdrant_client", "scipy")


@contextmanager
def evaluation_extra() -> Iterator[None]:
    """Around imports of `flowstate_local.bench`.

    Raises:
        UsageError: a package of the extra isn't installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OF_EXTRA:
            raise
        raise UsageError(
            f"the evaluation needs the package {error.name}",
            hint="pip install 'flowstate-local[evaluation]'",
        ) from None
