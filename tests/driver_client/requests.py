"""Batches that tests post."""

from __future__ import annotations

from rollway_driver.client import RetryPolicy
from rollway_wire.batch import BatchRequest, Group, HttpRuntime

QUICK = RetryPolicy(deadline_s=90.0, first_wait_s=0.01, max_wait_s=0.1)
"""Retries soon, so that tests are short, for longer than a service takes to start on a busy machine."""
IMPATIENT = RetryPolicy(deadline_s=0.0)
RUNTIME = HttpRuntime(urls=["http://127.0.0.1:9"])


def a_request(groups: int = 3, n: int = 1) -> BatchRequest:
    return BatchRequest(
        groups=[Group(group_id=f"g{i}", payload={"prompt": f"{i} + 1"}, n=n) for i in range(groups)], runtime=RUNTIME
    )
