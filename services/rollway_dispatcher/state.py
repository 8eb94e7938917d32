"""Where the state lies, by the settings: a file of our own, or a PostgreSQL server shared with other dispatchers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from rollway_dispatcher.bell import Bell
from rollway_dispatcher.engine import Engine
from rollway_dispatcher.fleet import Fleet, SharedPace, running_fleet
from rollway_dispatcher.runtimes.tps import Pace, own_pace
from rollway_dispatcher.settings import DispatcherSettings
from rollway_dispatcher.shared_store import SharedStore, open_shared_store
from rollway_dispatcher.state_file import open_store
from rollway_dispatcher.store import Store


def open_state(settings: DispatcherSettings) -> AbstractAsyncContextManager[Store]:
    """The store.

    Raises:
        StateUnusable: in use, or of another version.
    """
    if settings.database_url is None:
        return open_store(settings.state_path)
    url, one_address = settings.database_url.get_secret_value(), settings.public_url is not None
    return open_shared_store(url, settings.lease_s, one_address=one_address)


def pace_of(store: Store) -> Pace:
    """How calls to one runtime ARN are spaced: among all dispatchers that share the store."""
    return partial(SharedPace, store) if isinstance(store, SharedStore) else own_pace


@asynccontextmanager
async def joined(
    settings: DispatcherSettings, store: Store, engine: Engine, bell: Bell, look_again: Callable[[], None]
) -> AsyncIterator[Fleet | None]:
    """Work beside the other dispatchers on the same database; None where there is none. See `Fleet`."""
    if settings.database_url is None:
        yield None
        return
    assert isinstance(store, SharedStore)
    url = settings.database_url.get_secret_value()
    async with running_fleet(Fleet(store, engine, bell, url, settings.lease_s, look_again)) as fleet:
        yield fleet
