"""What FastAPI cannot know by itself of the OpenAPI description: the body that a route parses, and the keys."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from rollway_dispatcher.api.examples import problems
from rollway_dispatcher.api.reports import FREE
from rollway_wire.batch import BatchRequest

_API_KEY = {
    "type": "http",
    "scheme": "bearer",
    "description": "One of ROLLWAY_DISPATCHER_API_KEY.",
}


def describe(app: FastAPI, *, locked: bool) -> None:
    """Complete ``app.openapi()``. ``locked``: routes ask for the API key."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = plain()
            model = BatchRequest.model_json_schema(ref_template="#/components/schemas/{model}")
            parts = schema["components"]
            parts["schemas"] |= {**model.pop("$defs"), "BatchRequest": model}
            if locked:
                _lock(schema)
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign] # FastAPI's documented way to extend the schema


def _lock(schema: dict[str, Any]) -> None:
    schema["components"].setdefault("securitySchemes", {})["apiKey"] = _API_KEY
    refused = problems(401)
    for path, operations in schema["paths"].items():
        if path not in FREE:
            for operation in operations.values():
                operation["security"] = [{"apiKey": []}]
                operation["responses"] |= {str(status): answer for status, answer in refused.items()}
