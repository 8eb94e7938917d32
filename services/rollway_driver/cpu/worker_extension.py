"""Weight updates inside vLLM's CPU worker.

vLLM's CPU build packs each linear layer for its matrix kernel and frees the original, so verl's ``load_weights`` finds
nothing to load into: the update goes through vLLM's own layerwise reload instead. That reload leaves the packed
``lm_head`` of a model with tied embeddings as it was; it is packed again here, or every sample after the first update
would come from a mixture of two policies.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

WEIGHT_LOG = "ROLLWAY_WEIGHT_LOG"


class CpuWorkerExtension(vLLMColocateWorkerExtension):
    """verl's worker extension with the CPU's way of taking new weights. Full weights only: no LoRA adapters, no
    quantisation."""

    def update_weights_from_ipc(
        self, peft_config: dict[str, Any] | None = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        if peft_config:
            raise ValueError("the CPU worker takes merged weights only: set actor_rollout_ref.model.lora.merge=True")
        begin = time.monotonic()
        digest = hashlib.sha256()
        received: list[tuple[str, torch.Tensor]] = []

        def keep(weights: list[tuple[str, torch.Tensor]], is_last: bool) -> None:
            for name, tensor in weights:
                copy = tensor.clone()  # the bucket's memory is reused for the next one
                digest.update(name.encode())
                digest.update(memoryview(copy.contiguous().view(-1).view(torch.uint8).numpy()))
                received.append((name, copy))

        receiver = BucketedWeightReceiver(
            zmq_handle=self._get_zmq_handle(), device=torch.device("cpu"), use_shm=use_shm
        )
        receiver.receive_weights(on_bucket_received=keep)
        self.model_runner.reload_weights(weights_iterator=iter(received))
        self._repack_tied_head()
        _log(len(received), sum(t.numel() for _, t in received), digest.hexdigest(), time.monotonic() - begin)

    def _repack_tied_head(self) -> None:
        model = self.model_runner.get_model()
        if not getattr(model.config, "tie_word_embeddings", False):
            return
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

        model.lm_head.weight = model.model.embed_tokens.weight
        dispatch_cpu_unquantized_gemm(model.lm_head, remove_weight=False)


def _log(tensors: int, parameters: int, sha256: str, seconds: float) -> None:
    path = os.environ.get(WEIGHT_LOG)
    if path:
        line = {"at": time.time(), "tensors": tensors, "parameters": parameters, "sha256": sha256, "seconds": seconds}
        with Path(path).open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
