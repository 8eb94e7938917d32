"""The dispatcher as a program: help, refusals, exit codes, and its OpenAPI description."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollway_dispatcher.app import create
from rollway_dispatcher.settings import DispatcherSettings
from tests.dispatcher.harness import calling
from tests.kit.services import Services


def test_help_names_every_setting(services: Services) -> None:
    service = services.spawn("help", ["-m", "rollway_dispatcher", "--help"])
    assert service.wait() == 0
    for name in DispatcherSettings.model_fields:
        assert f"--{name.replace('_', '-')}" in service.logs()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "many"),
        ("GATEWAY_URL", "gateway:80"),
        ("MAX_CONCURRENT", "0"),
        ("LOG_LEVEL", "loud"),
        ("STATE_PATH", "/proc/nowhere/state.sqlite3"),
    ],
)
def test_a_wrong_setting_refuses_to_start_and_is_named(
    services: Services, tmp_path: Path, name: str, value: str
) -> None:
    env = {"ROLLWAY_DISPATCHER_STATE_PATH": str(tmp_path / "s"), f"ROLLWAY_DISPATCHER_{name}": value}
    service = services.spawn("dispatcher", ["-m", "rollway_dispatcher"], env=env)
    assert service.wait() == 2
    assert f"refusing to start: ROLLWAY_DISPATCHER_{name}" in service.logs()
    assert "Traceback" not in service.logs()


def test_a_heartbeat_window_of_one_beat_is_refused() -> None:
    with pytest.raises(ValueError, match="heartbeat_window_s"):
        DispatcherSettings(heartbeat_interval_s=5, heartbeat_window_s=6)


def test_a_state_file_that_is_none_is_refused(services: Services, tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite3"
    path.write_bytes(b"not a database, whatever it says" * 100)
    env = {"ROLLWAY_DISPATCHER_STATE_PATH": str(path)}
    service = services.spawn("dispatcher", ["-m", "rollway_dispatcher"], env=env)
    assert service.wait() == 2
    assert "ROLLWAY_DISPATCHER_STATE_PATH" in service.logs()


async def test_it_serves_its_description_and_ends_cleanly_on_sigterm(services: Services, tmp_path: Path) -> None:
    env = {"ROLLWAY_DISPATCHER_STATE_PATH": str(tmp_path / "s"), "ROLLWAY_DISPATCHER_PORT": "0"}
    service = await services.start_async("dispatcher", ["-m", "rollway_dispatcher"], env=env)
    async with calling(service.url) as api:
        assert (await api.http.get("/openapi.json")).json()["info"]["title"] == "Rollway dispatcher"
    assert service.stop() == 0


def test_every_route_is_described_with_its_body_and_its_problems(tmp_path: Path) -> None:
    spec = create(DispatcherSettings(state_path=tmp_path / "s")).openapi()
    operations = {(m, p): op for p, ops in spec["paths"].items() for m, op in ops.items()}
    assert set(operations) == {
        ("post", "/v1/batches"), ("get", "/v1/batches"), ("get", "/v1/batches/{batch_id}"),
        ("get", "/v1/batches/{batch_id}/rollouts"), ("get", "/v1/batches/{batch_id}/results"),
        ("post", "/v1/batches/{batch_id}/cancel"), ("get", "/v1/batches/{batch_id}/failures"),
        ("post", "/v1/batches/{batch_id}/rollouts/{group_id}/{index}/cancel"),
        ("get", "/v1/sessions"), ("post", "/v1/sessions/stop"), ("post", "/v1/reports"), ("get", "/health"),
    }  # fmt: skip
    assert all(op.get("summary") for op in operations.values())
    submit = operations["post", "/v1/batches"]
    assert {"200", "201", "400", "403", "409", "413", "422", "503"} <= submit["responses"].keys()
    body = submit["requestBody"]["content"]["application/json"]
    assert body["schema"] == {"$ref": "#/components/schemas/BatchRequest"}
    assert "groups" in spec["components"]["schemas"]["BatchRequest"]["properties"]
    assert _unresolved(spec, spec["components"]["schemas"].keys()) == set()


def _unresolved(node: object, known: object) -> set[str]:
    """References to components that are not there."""
    if isinstance(node, dict):
        ref = node.get("$ref")
        missing = {ref} if isinstance(ref, str) and ref.rsplit("/", 1)[1] not in known else set()  # type: ignore[operator]
        return missing.union(*(_unresolved(v, known) for v in node.values()))
    if isinstance(node, list):
        return set().union(*(_unresolved(v, known) for v in node))
    return set()
