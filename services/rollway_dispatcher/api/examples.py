"""Examples and shared answers of the OpenAPI description."""

from __future__ import annotations

from typing import Any

BATCH_REQUEST: dict[str, Any] = {
    "experiment_id": "gsm8k-grpo",
    "groups": [{"group_id": "q-17", "payload": {"prompt": "What is 17 * 23?", "answer": "391"}, "n": 8}],
    "runtime": {
        "kind": "agentcore",
        "agent_runtime_arn": "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/math_agent-a1B2c3",
    },
    "model_id": "policy",
    "sampling_params": {"temperature": 1.0, "max_tokens": 512},
    "capture": {"pool": "default"},
    "limits": {"rollout_timeout_s": 600, "max_attempts": 2},
}

BATCH_STATUS: dict[str, Any] = {
    "batch_id": "b3f9c2d41a7e8050",
    "experiment_id": "gsm8k-grpo",
    "state": "running",
    "created_at": 1764000000.0,
    "finished_at": None,
    "total": 8,
    "counts": {"running": 5, "succeeded": 2, "failed": 1},
    "failures": {"agent_error": 1},
    "contract_error": None,
}

RESULTS_PAGE: dict[str, Any] = {
    "results": [
        {
            "rollout": {
                "rollout_id": "b3f9c2d41a7e8050/q-17/0",
                "batch_id": "b3f9c2d41a7e8050",
                "group_id": "q-17",
                "index": 0,
                "state": "failed",
                "attempt": 1,
                "session_id": "7c1d7d5e-6f0a-4a55-9d0f-2f7f3f1a9b10",
                "failure": {
                    "type": "agent_error",
                    "message": "the agent raised (status 500): division by zero",
                    "traceback": "Traceback …",
                },
                "rewards": None,
                "result": {"status_code": 500, "stop_reason": "division by zero"},
                "timings": {
                    "admitted_at": 1764000000.1,
                    "invoked_at": 1764000000.4,
                    "started_at": 1764000000.4,
                    "noticed_at": 1764000007.9,
                    "finished_at": 1764000008.0,
                },
            },
            "trajectory": None,
        }
    ],
    "cursor": 1,
    "finished": False,
}

_PROBLEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
    },
}

_MEANING = {
    400: "The body is not JSON.",
    401: "No key, or not the right one.",
    403: "Not allowed by this dispatcher's settings.",
    404: "No such batch.",
    406: "No form that `Accept` takes.",
    409: "The Idempotency-Key was used with another body.",
    413: "The body is larger than the dispatcher takes.",
    422: "A field is unknown, missing or wrong; `detail` and `errors` say which.",
    503: "S3, the gateway or the state file cannot be used now; `detail` says which.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problem+json answers of a route."""
    content = {"application/problem+json": {"schema": _PROBLEM_SCHEMA}}
    return {status: {"description": _MEANING[status], "content": content} for status in statuses}
