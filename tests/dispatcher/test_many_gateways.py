"""Several gateways: a session is at one of them, the same one whoever asks and whenever; all of them must be well."""

from __future__ import annotations

import pytest

from rollway_dispatcher.gateway import open_gateway
from rollway_dispatcher.settings import DispatcherSettings
from rollway_wire.codec import load_packed, load_trajectory
from rollway_wire.gateway import SessionSpec
from rollway_wire.ids import new_session_id
from rollway_wire.problems import NotFound, Unavailable
from tests.gateway.conftest import running_gateway

KEY = "the admin key of both gateways"


async def test_sessions_are_spread_and_found_again() -> None:
    async with running_gateway(admin_key=KEY) as one, running_gateway(admin_key=KEY) as two:
        ids = [new_session_id() for _ in range(24)]
        async with open_gateway([one.url, two.url], KEY) as gateways:
            await gateways.check()
            tickets = [await gateways.open_session(SessionSpec(session_id=i)) for i in ids]
        homes = {ticket.session_id: ticket.base_url.partition("/sessions/")[0] for ticket in tickets}
        assert set(homes.values()) == {one.url, two.url}
        async with open_gateway([two.url, one.url], KEY) as again:  # another process, told in another order
            for ticket in tickets:
                assert await again.open_session(SessionSpec(session_id=ticket.session_id)) == ticket
            sealed = load_trajectory(load_packed(await again.seal_session(ids[0])))
            assert sealed.session_id == ids[0]
            with pytest.raises(NotFound):
                await again.seal_session(new_session_id())
        async with open_gateway([one.url, "http://127.0.0.1:1"], KEY) as lame:
            with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
                await lame.check()


def test_the_setting_takes_several() -> None:
    assert DispatcherSettings(gateway_url="http://a:1/, http://b:2").gateway_urls == ["http://a:1", "http://b:2"]
    assert DispatcherSettings(gateway_url="").gateway_urls == []
    with pytest.raises(ValueError, match="must start with"):
        DispatcherSettings(gateway_url="http://a:1,b:2")
