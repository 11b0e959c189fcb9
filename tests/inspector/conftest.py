"""The recorded memory, served once for all tests of this folder: they only read."""

from collections.abc import Iterator

import pytest
from recorded_story import Recorded, recorded


@pytest.fixture(scope="package")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    with recorded(tmp_path_factory.mktemp("inspector")) as served:
        yield served
