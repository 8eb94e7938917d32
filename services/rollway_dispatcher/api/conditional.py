"""Which form a caller asks for, and whether it has the answer already (RFC 9110)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from fastapi import Request, Response

from rollway_wire.problems import NotAcceptable


def chosen_form(accept: str, offered: Sequence[str]) -> str:
    """The offered media type that ``Accept`` ranks highest; among equals the one it names first, or offered first.

    Raises:
        NotAcceptable: it takes none of them.
    """
    ranges = [_range(part) for part in accept.split(",") if part.strip()] or [("*/*", 1.0)]
    best: tuple[float, int, int] | None = None
    for place, form in enumerate(offered):
        matching = [(_fit(pattern, form), -at, q) for at, (pattern, q) in enumerate(ranges) if _fit(pattern, form)]
        if matching:
            _, at, q = max(matching)
            best = max(best or (0.0, 0, 0), (q, at, -place)) if q > 0 else best
    if best is None:
        raise NotAcceptable(f"this route answers with {', '.join(offered)}; Accept asks for {accept!r:.200}")
    return offered[-best[2]]


def _range(part: str) -> tuple[str, float]:
    pattern, *parameters = (p.strip().lower() for p in part.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return pattern, float(value)
            except ValueError:
                return pattern, 0.0
    return pattern, 1.0


def _fit(pattern: str, form: str) -> int:
    """How exactly a range names a form; 0: not at all."""
    if pattern == form:
        return 3
    if pattern == form.partition("/")[0] + "/*":
        return 2
    return int(pattern == "*/*")


def tagged(request: Request, tag: str) -> Response | None:
    """304, if the caller has the answer with this tag; None: it must be sent, with `headers`."""
    known = [t.strip().removeprefix("W/") for t in request.headers.get("if-none-match", "").split(",")]
    return Response(status_code=304, headers=headers(tag)) if f'"{tag}"' in known or known == ["*"] else None


def headers(tag: str) -> dict[str, str]:
    return {"etag": f'"{tag}"', "cache-control": "private, no-cache", "vary": "accept, authorization"}


def answer(request: Request, body: bytes, media_type: str = "application/json", **more: str) -> Response:
    """``body``, or 304 where the caller has it."""
    tag = hashlib.blake2b(body, digest_size=12).hexdigest()
    return tagged(request, tag) or Response(body, media_type=media_type, headers=headers(tag) | more)
