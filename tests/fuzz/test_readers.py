"""The gateway's readers take any bytes without a crash. FUZZ_EXAMPLES says how many; `make fuzz` runs far more."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.bodies import BODIES, OBJECTS, as_json
from tests.fuzz.targets import TARGETS

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "40"))
few = settings(
    max_examples=EXAMPLES, deadline=None, database=None, derandomize="FUZZ_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)  # fmt: skip
_EVENTS = st.lists(OBJECTS.map(as_json) | st.binary(max_size=40), max_size=5).map(b"\n".join)
_SSE = st.lists(
    st.sampled_from([b"data: ", b"data:", b"\n", b"\r", b"\r\n", b"\n\n", b"event: x", b": c", b"[DONE]", b"{}"])
    | st.binary(max_size=9),
    max_size=20,
).map(b"".join)
FOOD = {
    "sse": _SSE, "stream": _SSE, "chunks": _EVENTS, "answer": BODIES, "request": BODIES, "dialects": BODIES,
    "path_and_key": st.binary(max_size=80),
}  # fmt: skip


@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_reader_takes_anything(name: str) -> None:
    @few
    @given(FOOD[name])
    def fed(data: bytes) -> None:
        TARGETS[name](data)

    fed()
