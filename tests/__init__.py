"""Tests of every package, by folder; real servers and waits with deadlines in `tests.kit`."""

import pytest

pytest.register_assert_rewrite("tests.kit")
