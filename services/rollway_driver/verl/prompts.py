"""What verl asks for: one prompt per group, and what of its dataset row the agent is to see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PAYLOAD = "rollway_payload"
"""The field in which our dataset carries a row's raw columns."""
_VERLS_OWN = frozenset(
    {
        "uid", "index", "raw_prompt", "dummy_tensor", "global_steps", "validate", "tools_kwargs", "interaction_kwargs",
        "agent_name", "data_source", "reward_model", "__rollout_n__", "__do_sample__", PAYLOAD,
    }
)  # fmt: skip
_KEPT = ("data_source", "reward_model", "raw_prompt", "index")
"""Fields of a prompt that verl reads from the rows again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    uid: str
    payload: dict[str, Any]
    """The dataset row's columns, for the agent."""
    kept: dict[str, Any]
    """Fields that every row of the group repeats for verl."""


def read_prompt(fields: Mapping[str, Any]) -> Prompt:
    """A prompt from one row of the batch verl hands over.

    With our dataset class (``rollway_driver.verl.dataset``) the payload is the parquet row as it is. With another it is
    what is left without verl's own fields, ``prompt`` being the messages verl made of it.

    Raises:
        ValueError: the uid cannot stand in verl's row keys, which split at '_'.
    """
    uid = str(fields["uid"])
    if "_" in uid:
        raise ValueError(f"uid {uid!r} holds '_', at which verl splits row keys")
    if PAYLOAD in fields:
        payload = dict(fields[PAYLOAD])
    else:
        payload = {k: v for k, v in fields.items() if k not in _VERLS_OWN}
        if "raw_prompt" in fields:
            payload["prompt"] = fields["raw_prompt"]
    return Prompt(uid=uid, payload=payload, kept={k: fields[k] for k in _KEPT if k in fields})
