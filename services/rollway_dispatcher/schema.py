"""The state on disk: tables, and how rows and values turn into one another."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import orjson

from rollway_dispatcher.rollout import Rollout
from rollway_dispatcher.step import Published
from rollway_wire.batch import RolloutResult, RolloutState, RolloutView
from rollway_wire.failures import Failure

VERSION = 1

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batches (
  position INTEGER PRIMARY KEY AUTOINCREMENT,
  batch_id TEXT NOT NULL UNIQUE,
  idempotency_key TEXT UNIQUE,
  fingerprint TEXT NOT NULL,
  document BLOB NOT NULL,             -- Order as JSON
  total INTEGER NOT NULL,
  created_at REAL NOT NULL,
  cancelled INTEGER NOT NULL DEFAULT 0,
  contract_error TEXT,
  finished_at REAL
);
CREATE INDEX IF NOT EXISTS batches_open ON batches (finished_at);
CREATE TABLE IF NOT EXISTS groups (
  batch_id TEXT NOT NULL, position INTEGER NOT NULL, group_id TEXT NOT NULL, payload BLOB NOT NULL,
  PRIMARY KEY (batch_id, position)
);
CREATE TABLE IF NOT EXISTS rollouts (
  batch_id TEXT NOT NULL, ordinal INTEGER NOT NULL, grp INTEGER NOT NULL, group_id TEXT NOT NULL, idx INTEGER NOT NULL,
  state TEXT NOT NULL, attempt INTEGER NOT NULL, session_id TEXT, not_before REAL NOT NULL, refused_since REAL,
  reports INTEGER NOT NULL, suspicion BLOB, failure BLOB,
  admitted_at REAL, invoked_at REAL, started_at REAL, noticed_at REAL, finished_at REAL,
  PRIMARY KEY (batch_id, ordinal)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS rollouts_state ON rollouts (batch_id, state);
CREATE TABLE IF NOT EXISTS results (
  batch_id TEXT NOT NULL, seq INTEGER NOT NULL, rollout_id TEXT NOT NULL UNIQUE,
  document BLOB NOT NULL,             -- RolloutResult as JSON
  trajectory BLOB,                    -- packed tree
  PRIMARY KEY (batch_id, seq)
);
CREATE TABLE IF NOT EXISTS stops (
  session_id TEXT PRIMARY KEY, batch_id TEXT NOT NULL, since REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS stops_batch ON stops (batch_id);
CREATE TABLE IF NOT EXISTS webhooks (
  batch_id TEXT PRIMARY KEY,
  document BLOB NOT NULL,             -- Webhook as JSON
  delivered INTEGER NOT NULL DEFAULT 0, attempt INTEGER NOT NULL DEFAULT 0, next_at REAL NOT NULL DEFAULT 0,
  failing_since REAL, last_error TEXT, state TEXT NOT NULL DEFAULT 'open'
) WITHOUT ROWID;
"""


def postgres() -> str:
    """`SCHEMA` in PostgreSQL's words."""
    words = {
        "INTEGER PRIMARY KEY AUTOINCREMENT": "BIGSERIAL PRIMARY KEY", " BLOB": " BYTEA", " REAL": " DOUBLE PRECISION",
        " WITHOUT ROWID": "",
    }  # fmt: skip
    text = SCHEMA
    for ours, theirs in words.items():
        text = text.replace(ours, theirs)
    return text


def first_meta() -> list[tuple[str, str]]:
    """What a new database is given, and an old one has."""
    return [("version", str(VERSION)), ("secret", secrets.token_hex(32))]


_MUTABLE = (
    "state", "attempt", "session_id", "not_before", "refused_since", "reports", "suspicion", "failure",
    "admitted_at", "invoked_at", "started_at", "noticed_at", "finished_at",
)  # fmt: skip
_COLUMNS = ("batch_id", "ordinal", "grp", "group_id", "idx", *_MUTABLE)

ROLLOUTS = f"rollouts ({', '.join(_COLUMNS)})"
OVERWRITE_ROLLOUT = (
    f"ON CONFLICT (batch_id, ordinal) DO UPDATE SET {', '.join(f'{c} = excluded.{c}' for c in _MUTABLE)}"
)
"""After an insertion into `ROLLOUTS`: a rollout that is there is changed."""
SELECT_ROLLOUT = f"SELECT {', '.join(_COLUMNS)} FROM rollouts"


def _dump_failure(failure: Failure | None) -> bytes | None:
    return None if failure is None else failure.model_dump_json().encode()


def _load_failure(raw: bytes | None) -> Failure | None:
    return None if raw is None else Failure.model_validate_json(raw)


def _mutable(r: Rollout) -> tuple[Any, ...]:
    return (
        r.state.value, r.attempt, r.session_id, r.not_before, r.refused_since, int(r.reports),
        _dump_failure(r.suspicion), _dump_failure(r.failure),
        r.admitted_at, r.invoked_at, r.started_at, r.noticed_at, r.finished_at,
    )  # fmt: skip


def rollout_row(r: Rollout) -> tuple[Any, ...]:
    return (r.batch_id, r.ordinal, r.group, r.group_id, r.index, *_mutable(r))


def rollout_of(row: Sequence[Any]) -> Rollout:
    v = dict(zip(_COLUMNS, row, strict=True))
    v["group"], v["index"] = v.pop("grp"), v.pop("idx")
    v["state"], v["reports"] = RolloutState(v["state"]), bool(v["reports"])
    v["suspicion"], v["failure"] = _load_failure(v["suspicion"]), _load_failure(v["failure"])
    return Rollout(**v)


def view_of(r: Rollout) -> RolloutView:
    return RolloutView(
        rollout_id=r.rollout_id,
        batch_id=r.batch_id,
        group_id=r.group_id,
        index=r.index,
        state=r.state,
        attempt=r.attempt,
        session_id=r.session_id,
        failure=r.failure,
    )


def result_row(p: Published) -> tuple[Any, ...]:
    """(batch_id, seq, rollout_id, document, trajectory)."""
    r, outcome = p.rollout, p.outcome
    succeeded = r.state is RolloutState.SUCCEEDED
    document = RolloutResult(
        rollout_id=r.rollout_id,
        batch_id=r.batch_id,
        group_id=r.group_id,
        index=r.index,
        state=r.state,
        attempt=r.attempt,
        session_id=r.session_id,
        failure=r.failure,
        rewards=outcome.rewards if outcome and succeeded else None,
        result=None,
        timings=r.timings(),
    ).model_dump(mode="json")
    document["result"] = outcome.result if outcome else None
    return (r.batch_id, p.seq, r.rollout_id, orjson.dumps(document), outcome.trajectory if outcome else None)
