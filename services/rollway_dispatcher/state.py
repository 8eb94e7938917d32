"""Where the state lies, by the settings: a file of our own, or a PostgreSQL server shared with other dispatchers.

The second needs a driver that not everybody installs, so nothing of it is imported before it is asked for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from rollway_dispatcher.bell import Bell
from rollway_dispatcher.engine import Engine
from rollway_dispatcher.runtimes.tps import Pace, own_pace
from rollway_dispatcher.settings import DispatcherSettings
from rollway_dispatcher.state_file import StateUnusable, open_store
from rollway_dispatcher.store import Store

if TYPE_CHECKING:
    from rollway_dispatcher.fleet import Fleet


def open_state(settings: DispatcherSettings) -> AbstractAsyncContextManager[Store]:
    """The store.

    Raises:
        StateUnusable: in use, of another version, or its driver is missing.
    """
    if settings.database_url is None:
        return open_store(settings.state_path)
    try:
        from rollway_dispatcher.shared_store import open_shared_store
    except ImportError as e:
        raise StateUnusable("database_url needs PostgreSQL's driver: pip install 'rollway[postgres]'") from e
    return open_shared_store(settings.database_url.get_secret_value(), settings.lease_s)


def pace_of(store: Store) -> Pace:
    """How calls to one runtime ARN are spaced: among all dispatchers that share the store."""
    if not hasattr(store, "slot"):
        return own_pace
    from rollway_dispatcher.fleet import SharedPace

    return partial(SharedPace, store)  # type: ignore[arg-type] # a store with slots is a shared one


@asynccontextmanager
async def joined(settings: DispatcherSettings, store: Store, engine: Engine, bell: Bell) -> AsyncIterator[Fleet | None]:
    """Work beside the other dispatchers on the same database; None where there is none."""
    if settings.database_url is None:
        yield None
        return
    from rollway_dispatcher.fleet import Fleet, running_fleet
    from rollway_dispatcher.shared_store import SharedStore

    assert isinstance(store, SharedStore)
    url = settings.database_url.get_secret_value()
    async with running_fleet(Fleet(store, engine, bell, url, settings.lease_s)) as fleet:
        yield fleet
