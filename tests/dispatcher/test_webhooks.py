"""Webhooks: signed, in order, repeated until taken, over restarts too, and only to hosts that may be called."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pydantic import SecretStr

from rollway_dispatcher import webhooks
from rollway_dispatcher.settings import DispatcherSettings
from rollway_dispatcher.webhook_signature import check_target, signed, signing_key
from rollway_wire.problems import Forbidden
from tests.dispatcher.harness import Api, calling, on_both, serving
from tests.dispatcher.test_restart import environment
from tests.kit.deadlines import eventually
from tests.kit.ports import HeldPort
from tests.kit.services import Services

Make = Callable[..., dict[str, Any]]
RUN = ["-m", "rollway_dispatcher"]
SECRET = "whsec_" + base64.b64encode(b"a secret of the receiver's").decode()

HOOKS = {"ROLLWAY_DISPATCHER_WEBHOOK_HOSTS": "127.0.0.1", "ROLLWAY_DISPATCHER_WEBHOOK_SECRET": SECRET}


class Receiver:
    """A real server that keeps what it is sent and answers as told."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.answers: list[int] = []
        """Statuses of the next answers; 200 when there are none."""
        self._held = HeldPort()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"{self._held.url}/hook"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/hook", self._take)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._held.number).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def close(self) -> None:
        await self.stop()
        self._held.close()

    async def _take(self, request: web.Request) -> web.Response:
        raw = await request.read()
        stamp, event_id = request.headers["webhook-timestamp"], request.headers["webhook-id"]
        mac = hmac.new(b"a secret of the receiver's", f"{event_id}.{stamp}.".encode() + raw, hashlib.sha256).digest()
        assert request.headers["webhook-signature"] == "v1," + base64.b64encode(mac).decode()
        self.calls.append({"id": event_id, **json.loads(raw)})
        status = self.answers.pop(0) if self.answers else 200
        return web.Response(status=status, headers={"location": "/hook"} if status == 302 else {})


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    await made.start()
    yield made
    await made.close()


@pytest.fixture
def hooked(settings: DispatcherSettings, monkeypatch: pytest.MonkeyPatch) -> DispatcherSettings:
    monkeypatch.setattr(webhooks, "FIRST_PAUSE_S", 0.02)
    return settings.model_copy(update={"webhook_hosts": ("127.0.0.1",), "webhook_secret": SecretStr(SECRET)})


async def over(api: Api, batch_id: str, state: str = "done") -> dict[str, Any]:
    """Its status, once the webhook is in this state."""

    async def there() -> bool:
        return bool((await api.status(batch_id))["webhook"]["state"] == state)

    await eventually(there, f"the webhook is {state}", 200)
    return await api.status(batch_id)


@on_both
async def test_each_result_and_the_end_are_told_in_order_and_repeated_until_taken(
    hooked: DispatcherSettings, batch: Make, receiver: Receiver
) -> None:
    receiver.answers = [500, 302, 200, 503]
    async with serving(hooked) as api:
        wanted = {"url": receiver.url, "events": ["rollout.finished", "batch.finished"]}
        made = await api.submit(batch([{"reward": 1}, {"act": "raise"}, {"reward": 2}], webhook=wanted))
        batch_id = made["batch_id"]
        results = await api.results(batch_id)
        status = await over(api, batch_id)
        assert (await api.submit(batch([{"reward": 1}])))["webhook"] is None
    assert status["webhook"] == {"state": "done", "delivered": 3, "attempt": 0, "last_error": None}
    ids = [f"{batch_id}.{n}" for n in (1, 1, 1, 2, 2, 3)]
    assert [c["id"] for c in receiver.calls] == [*ids, f"{batch_id}.finished"]
    told = {c["id"]: c for c in receiver.calls}
    for cursor, result in enumerate(results, 1):
        call = told[f"{batch_id}.{cursor}"]
        assert call["type"] == "rollout.finished"
        assert call["data"] == {"cursor": cursor, "rollout": result["rollout"]}
    assert receiver.calls[-1]["type"] == "batch.finished"
    assert receiver.calls[-1]["data"] == {k: v for k, v in status.items() if k != "webhook"}


async def test_a_receiver_that_is_gone_is_not_called_again(
    hooked: DispatcherSettings, batch: Make, receiver: Receiver
) -> None:
    receiver.answers = [410]
    async with serving(hooked) as api:
        made = await api.submit(batch([{"reward": 1}], webhook={"url": receiver.url}))
        status = await over(api, made["batch_id"], "given_up")
    assert status["webhook"]["last_error"] == "answered 410"
    assert len(receiver.calls) == 1


async def test_calls_that_were_not_taken_are_made_after_sigkill_and_restart(
    services: Services, settings: DispatcherSettings, batch: Make, receiver: Receiver, tmp_path: Path
) -> None:
    """The receiver is away, the dispatcher is killed, both come back: every event arrives, in order."""
    gate = tmp_path / "go"
    env = environment(settings, 0) | HOOKS
    service = await services.start_async("dispatcher", RUN, env=env)
    async with calling(service.url) as api:
        wanted = {"url": receiver.url, "events": ["rollout.finished", "batch.finished"]}
        made = await api.submit(batch([{"reward": 1}, {"reward": 2, "wait_for": str(gate)}], webhook=wanted))
        await eventually(lambda: len(receiver.calls) == 1, "the first is told", 120)
        await receiver.stop()
        await asyncio.to_thread(gate.touch)
        await api.results(made["batch_id"])

        async def refused() -> bool:
            return bool((await api.status(made["batch_id"]))["webhook"]["attempt"] > 0)

        await eventually(refused, "nobody took the second", 120)
    service.kill()
    await receiver.start()
    env |= {"ROLLWAY_DISPATCHER_PORT": str(service.port)}
    service = await services.start_async("dispatcher", RUN, env=env)
    async with calling(service.url) as api:
        await over(api, made["batch_id"])
    ids = list(dict.fromkeys(c["id"] for c in receiver.calls))
    assert ids == [f"{made['batch_id']}.{n}" for n in (1, 2, "finished")]


@pytest.mark.parametrize("state", ["postgres"], indirect=True)
@pytest.mark.parametrize("finished", [True, False], ids=["batch-finished", "batch-running"])
async def test_when_the_dispatcher_that_makes_the_calls_is_killed_another_goes_on_with_them(
    services: Services, taking_over: DispatcherSettings, batch: Make, receiver: Receiver, tmp_path: Path,
    finished: bool,
) -> None:  # fmt: skip
    gate = tmp_path / "go"
    env = environment(taking_over, 0) | HOOKS
    first, second = [await services.start_async("dispatcher", RUN, env=env) for _ in range(2)]
    async with calling(first.url) as api:
        wanted = {"url": receiver.url, "events": ["rollout.finished", "batch.finished"]}
        made = await api.submit(batch([{"reward": 1}, {"reward": 2, "wait_for": str(gate)}], webhook=wanted))
        batch_id = made["batch_id"]
        await api.until_state(batch_id, "running", 1)
        await eventually(lambda: len(receiver.calls) == 1, "the first is told", 120)
        await receiver.stop()
        if finished:
            await asyncio.to_thread(gate.touch)
            await api.results(batch_id)
            await eventually(lambda: "webhook_failed" in first.logs(), "nobody took the second", 120)
    assert "webhook" not in second.logs(), "one dispatcher makes a batch's calls"
    first.kill()
    await receiver.start()
    await asyncio.to_thread(gate.touch)
    async with calling(second.url) as api:
        status = await over(api, batch_id)
    assert status["webhook"] | {"attempt": 0} == {"state": "done", "delivered": 2, "attempt": 0, "last_error": None}
    ids = [f"{batch_id}.{n}" for n in (1, 2, "finished")]
    assert list(dict.fromkeys(c["id"] for c in receiver.calls)) == ids, "each at least once, in order"
    assert len(receiver.calls) <= len(ids) + 1, "only what was under way at the kill may come twice"


async def test_only_listed_hosts_are_called(hooked: DispatcherSettings, batch: Make) -> None:
    async with serving(hooked) as api:
        for url in ("http://169.254.169.254/latest", "http://127.0.0.1.evil.example/", "http://localhost:1/"):
            answer = await api.http.post("/v1/batches", json=batch([{}], webhook={"url": url}))
            assert answer.status_code == 403 and "WEBHOOK_HOSTS" in answer.json()["detail"]
        for url in ("ftp://127.0.0.1/", "http://user@127.0.0.1/", "http://127.0.0.1:99999/", "http:///x", "x"):
            answer = await api.http.post("/v1/batches", json=batch([{}], webhook={"url": url}))
            assert answer.status_code == 422, url
    assert (await batches_without_hosts(hooked, batch)).status_code == 403


async def batches_without_hosts(settings: DispatcherSettings, batch: Make) -> Any:
    async with serving(settings.model_copy(update={"webhook_hosts": (), "webhook_secret": None})) as api:
        return await api.http.post("/v1/batches", json=batch([{}], webhook={"url": "http://127.0.0.1/"}))


@pytest.mark.parametrize(
    ("url", "hosts", "allowed"),
    [
        ("https://hooks.example.com/x", ("hooks.example.com",), True),
        ("https://HOOKS.example.com/x", ("hooks.EXAMPLE.com",), True),
        ("https://a.b.example.com/", ("*.example.com",), True),
        ("https://example.com/", ("*.example.com",), False),
        ("https://badexample.com/", ("*.example.com",), False),
        ("https://hooks.example.com:444/", ("hooks.example.com:443",), False),
        ("https://hooks.example.com/", ("hooks.example.com:443",), True),
        ("http://hooks.example.com/", ("hooks.example.com:443",), False),
    ],
)
def test_hosts(url: str, hosts: tuple[str, ...], allowed: bool) -> None:
    if allowed:
        check_target(url, hosts)
    else:
        with pytest.raises(Forbidden):
            check_target(url, hosts)


def test_the_signature_is_the_one_of_the_specification() -> None:
    """The example of the Standard Webhooks libraries' own tests."""
    key = signing_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    made = signed(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert made["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    "wrong",
    [
        {"webhook_hosts": "a.example"},
        {"webhook_hosts": "http://a.example", "webhook_secret": SECRET},
        {"webhook_secret": "short"},
        {"webhook_secret": "whsec_not base64 at all"},
    ],
)
def test_settings_that_would_be_unsafe_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="webhook"):
        DispatcherSettings(**wrong)
