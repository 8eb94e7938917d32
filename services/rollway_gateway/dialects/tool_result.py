"""A tool's result in chat messages: its texts joined, its images in a user message after it, as vLLM puts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def image_part(url: str, detail: str | None = None) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url} | ({"detail": detail} if detail else {})}


def result_messages(call_id: str, texts: Sequence[str], images: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """Args:
    images: chat content parts."""
    out: list[dict[str, Any]] = [{"role": "tool", "tool_call_id": call_id, "content": "\n".join(texts)}]
    if images:
        out.append({"role": "user", "content": list(images)})
    return out


def said(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """A message's content from chat content parts: one text alone is a string."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        text: str = parts[0]["text"]
        return text
    return parts
