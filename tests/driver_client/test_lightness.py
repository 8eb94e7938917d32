"""The clients need the extra `client` alone, and a trainer's workers not even that until they ask for them."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rollway_driver

HEAVY = ("torch", "verl", "ray", "fastapi", "uvicorn", "structlog", "aiohttp", "boto3", "aioboto3", "pyarrow", "numpy")


def _loaded_by(code: str) -> set[str]:
    show = "import sys; print(' '.join({n.partition('.')[0] for n in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{show}"], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_clients_load_httpx_and_nothing_of_a_service_or_trainer() -> None:
    loaded = _loaded_by("import rollway_driver.client")
    assert {"httpx", "orjson", "pydantic"} <= loaded
    assert not loaded & {*HEAVY, "rollway_kit"}


def test_the_package_itself_loads_no_http_client() -> None:
    assert "httpx" not in _loaded_by("import rollway_driver")


def test_every_name_the_package_offers_is_there() -> None:
    for name in rollway_driver.__all__:
        assert getattr(rollway_driver, name).__module__.startswith("rollway_driver.client")
    with pytest.raises(AttributeError, match="NoSuch"):
        _ = rollway_driver.NoSuch  # type: ignore[attr-defined]
