from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.driver_client.scripted_dispatcher import ScriptedDispatcher, scripted_dispatcher


@pytest.fixture
def script() -> Iterator[ScriptedDispatcher]:
    with scripted_dispatcher() as made:
        yield made
