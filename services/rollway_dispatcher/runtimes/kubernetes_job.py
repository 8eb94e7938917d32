"""What a session is to Kubernetes: its Job as written, its pod as read. Pure."""

from __future__ import annotations

from typing import Any

from rollway_wire.batch import KubernetesRuntime
from rollway_wire.failures import FailureType

SESSION_LABEL = "rollway.dev/session"
LONGEST_S = 8 * 3600 + 900
"""A Job ends by then whatever becomes of us: no rollout may last longer than eight hours."""
KEPT_S = 600
"""A finished Job that nobody deleted is removed by Kubernetes after that."""

_HOPELESS = frozenset({"InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError"})
_FAILING = frozenset({"ErrImagePull", "ImagePullBackOff", "CrashLoopBackOff", "RunContainerError"})


def job_name(session_id: str) -> str:
    return f"rollway-{session_id}"


def manifest(spec: KubernetesRuntime, session_id: str) -> dict[str, Any]:
    """The Job: one pod, never restarted, for an agent runs once a session."""
    labels = {SESSION_LABEL: session_id, "app.kubernetes.io/managed-by": "rollway"}
    container: dict[str, Any] = {
        "name": "agent", "image": spec.image, "ports": [{"containerPort": spec.port}],
        "env": [{"name": name, "value": value} for name, value in ({"PORT": str(spec.port)} | spec.env).items()],
    }  # fmt: skip
    if spec.command is not None:
        container["command"] = spec.command
    if spec.resources:
        container["resources"] = spec.resources
    pod: dict[str, Any] = {
        **spec.pod_spec, "restartPolicy": "Never", "containers": [container, *spec.pod_spec.get("containers", [])],
    }  # fmt: skip
    if spec.service_account is not None:
        pod["serviceAccountName"] = spec.service_account
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job_name(session_id), "labels": labels},
        "spec": {
            "backoffLimit": 0, "activeDeadlineSeconds": LONGEST_S, "ttlSecondsAfterFinished": KEPT_S,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }  # fmt: skip


def verdict(pod: dict[str, Any] | None) -> FailureType | None:
    """Why a pod will never be ready; None: it may be."""
    if pod is None:
        return None
    if pod.get("status", {}).get("phase") in ("Failed", "Succeeded"):
        return FailureType.START_FAILED
    reasons = {state.get("waiting", {}).get("reason") for state in _states(pod)}
    if reasons & _HOPELESS:
        return FailureType.CONTRACT_ERROR
    return FailureType.START_FAILED if reasons & _FAILING else None


def describe(pod: dict[str, Any] | None) -> str:
    """What Kubernetes says of a pod, in a sentence."""
    if pod is None:
        return "there is no pod yet"
    said = [f"phase {pod.get('status', {}).get('phase', 'unknown')}"]
    for state in _states(pod):
        if (waiting := state.get("waiting")) is not None:
            said.append(f"waiting: {waiting.get('reason')} {waiting.get('message', '')}".strip())
        if (ended := state.get("terminated")) is not None:
            said.append(
                f"exit status {ended.get('exitCode')} {ended.get('reason', '')} {ended.get('message', '')}".strip()
            )
    for condition in pod.get("status", {}).get("conditions", ()):
        if condition.get("status") == "False" and condition.get("message"):
            said.append(condition["message"])
    return "; ".join(said)


def _states(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [c.get("state", {}) for c in pod.get("status", {}).get("containerStatuses", ())]
