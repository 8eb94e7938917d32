"""Emulators for the tests: one for a module's ordinary calls, and a way to start one with settings of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.emulator.emulator_under_test import Emulator, open_emulator
from tests.kit.services import Services

StartEmulator = Callable[..., Emulator]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """Shared by a module: every test takes session ids of its own."""
    folder = tmp_path_factory.mktemp("emulator")
    services = Services(folder)
    try:
        with open_emulator(services, folder) as opened:
            yield opened
    finally:
        services.close()


@pytest.fixture
def start_emulator(services: Services, tmp_path: Path) -> Iterator[StartEmulator]:
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(open_emulator(services, tmp_path, **settings))
