"""The shim: one decorator makes an agent a fire-and-forget rollout server."""
