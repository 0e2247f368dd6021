"""One engine over the embedded model for all tests of this folder that do not change how it is loaded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import finback


@pytest.fixture(scope="session")
def engine() -> Iterator[finback.Engine]:
    with finback.load(context=4096, threads=2) as loaded:
        yield loaded
