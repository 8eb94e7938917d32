"""Rows into verl's TransferQueue, in the form its v1 trainer reads (``trainer/ppo/v1/replay_buffer.py``)."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from typing import Any

import torch
import transfer_queue
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from rollway_driver.verl.batches import Order, Partition, Status
from rollway_driver.verl.prompts import Prompt
from rollway_driver.verl.rows import Row, Session
from rollway_wire.routing import RoutedExperts


class TransferQueueSink:
    """A `RowSink`. The queue's client blocks, so it is called on threads. Call ``transfer_queue.init`` first."""

    async def running(self, partition: Partition, uids: Sequence[str]) -> None:
        await asyncio.to_thread(
            transfer_queue.kv_batch_put,
            keys=list(uids),
            partition_id=partition,
            tags=[{"status": "running"} for _ in uids],
        )

    async def put(self, order: Order, prompt: Prompt, sessions: Sequence[Session]) -> None:
        await asyncio.to_thread(self._put, order, prompt, sessions)

    async def end(self, partition: Partition, uid: str, status: Status) -> None:
        await asyncio.to_thread(transfer_queue.kv_put, key=uid, partition_id=partition, tag={"status": status})

    def _put(self, order: Order, prompt: Prompt, sessions: Sequence[Session]) -> None:
        keys, fields, tags = [], [], []
        for session in sessions:
            for i, row in enumerate(session.rows):
                keys.append(f"{prompt.uid}_{session.index}_{i}")
                fields.append(row_fields(order, prompt, session, row))
                tags.append(row_tag(order, row))
        transfer_queue.kv_batch_put(
            keys=keys, partition_id=order.partition, fields=list_of_dict_to_tensordict(fields), tags=tags
        )


def row_fields(order: Order, prompt: Prompt, session: Session, row: Row) -> dict[str, Any]:
    """A row's fields: tensors of shape (prompt,), (response,) or (prompt + response,); ids and masks int64. Where
    routing is replayed, ``routed_experts`` too (`routing`)."""
    prompts, responses = _tensor(row.prompt_ids, torch.int64), _tensor(row.response_ids, torch.int64)
    mask = _tensor(row.response_mask, torch.int64)
    score = torch.zeros(len(row.response_ids), dtype=torch.float32)
    score[-1] = session.score
    version = order.policy_version
    return {
        "prompts": prompts,
        "responses": responses,
        "response_mask": mask,
        "loss_mask": mask,
        "input_ids": torch.cat([prompts, responses]),
        "position_ids": torch.arange(row.length),
        "rollout_log_probs": _tensor(row.logprobs, torch.float32),
        "rm_scores": score,
        "num_turns": session.turns,
        "multi_modal_inputs": {},
        "extra_fields": {"reward_extra_info": {}, "min_global_steps": version, "max_global_steps": version},
        "uid": prompt.uid,
        "session_id": session.index,
        "global_steps": order.step,
        **({} if row.routed_experts is None else {"routed_experts": routing(row.routed_experts)}),
        **prompt.kept,
    }


def row_tag(order: Order, row: Row) -> dict[str, Any]:
    return {
        "status": "success",
        "prompt_len": len(row.prompt_ids),
        "response_len": len(row.response_ids),
        "seq_len": row.length,
        "global_steps": order.step,
        "min_global_steps": order.policy_version,
        "max_global_steps": order.policy_version,
    }


def routing(routed: RoutedExperts) -> torch.Tensor:
    """What verl's own agent loop makes of a server's routed experts (`AgentLoopOutput.as_dict`): int16, shape
    (tokens, layers, experts per token), the row of the last token zero. verl's mode R3 does not replay that row.

    Raises:
        ValueError: an expert id that int16 does not hold.
    """
    rows = torch.frombuffer(routed.data, dtype=_TYPES[routed.data.typecode])
    if routed.data.typecode == "H" and bool((rows < 0).any()):
        raise ValueError("an expert id above 32767: verl carries routed experts as int16")
    out = torch.zeros((routed.end + 1, routed.layers, routed.top_k), dtype=torch.int16)
    out[:-1] = rows.view(routed.rows, routed.layers, routed.top_k)
    return out


_TYPES = {"i": torch.int32, "f": torch.float32, "B": torch.uint8, "H": torch.int16}


def _tensor(values: array[Any], dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(values, dtype=_TYPES[values.typecode]).to(dtype, copy=True)
