"""Schemathesis over a running service: requests made from its own OpenAPI description, valid and not.

Bounded for CI: few examples, always the same. ``make fuzz`` makes more of them, different each time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = "FUZZ_EXAMPLES"
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
    "negative_data_rejection", "unsupported_method", "ignored_auth", "missing_required_header",
)  # fmt: skip
CLI = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"


def fuzz(url: str, folder: Path, *arguments: str, key: str | None = None) -> None:
    """Fail with Schemathesis' own report unless every check holds."""
    asked = os.environ.get(EXAMPLES)
    amount = ["--max-examples", asked] if asked else ["--max-examples", "3", "--seed", "1", "--no-shrink"]
    auth = [] if key is None else ["--header", f"Authorization: Bearer {key}"]
    done = subprocess.run(
        [
            sys.executable, "-c", CLI, "run", f"{url}/openapi.json", "--phases", "examples,coverage,fuzzing",
            "--checks", ",".join(CHECKS), "--request-timeout", "20", "--suppress-health-check", "all",
            "--warnings", "off", "--generation-database", "none", "--no-color", "--continue-on-failure",
            *amount, *auth, *arguments,
        ],
        cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-12_000:]}\n{done.stderr[-3000:]}"
    assert "generated" in done.stdout, f"nothing was tried:\n{done.stdout[-3000:]}"
