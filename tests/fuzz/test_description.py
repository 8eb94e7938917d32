"""The dispatcher answers whatever its description allows, and whatever it forbids, as the description says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.schemathesis_run import fuzz
from tests.kit.object_storage import Bucket
from tests.kit.services import Services

KEY = "the-key-of-the-fuzzed-dispatcher"


@pytest.mark.timeout(3600)
def test_every_answer_is_one_that_is_described(services: Services, s3: Bucket, tmp_path: Path) -> None:
    service = services.start(
        "dispatcher",
        ["-m", "rollway_dispatcher"],
        env={
            "ROLLWAY_DISPATCHER_PORT": "0",
            "ROLLWAY_DISPATCHER_API_KEY": KEY,
            "ROLLWAY_DISPATCHER_S3_ENDPOINT_URL": s3.endpoint_url,
            "ROLLWAY_DISPATCHER_S3_BUCKET": s3.name,
            "ROLLWAY_DISPATCHER_STATE_PATH": str(tmp_path / "state.sqlite3"),
            # Batches that are valid by chance call no cloud.
            "AWS_ENDPOINT_URL_BEDROCK_AGENTCORE": "http://127.0.0.1:9",
        },
    )
    fuzz(service.url, tmp_path, key=KEY)
    assert "unhandled_exception" not in service.logs() and "engine_crashed" not in service.logs()
    assert service.stop() == 0
