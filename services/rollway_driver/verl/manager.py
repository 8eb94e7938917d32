"""The class that verl's v1 trainer is given by name: ``rollway_driver.verl.RemoteRolloutManager``.

verl's own contract (``trainer/main_ppo.py``): a ``create`` and a ``generate_sequences`` that returns at once and lets
rows appear in the TransferQueue. Everything else happens on a thread of this class's own.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Self

import ray
import transfer_queue
from omegaconf import DictConfig, OmegaConf
from tensordict import NonTensorData, NonTensorStack, TensorDict

from rollway_driver.client import AsyncDispatcherClient, AsyncGateways
from rollway_driver.verl.batches import Batches, Order
from rollway_driver.verl.loop_thread import LoopThread
from rollway_driver.verl.mini_steps import mini_batch_prompts, row_multiple
from rollway_driver.verl.prompts import read_prompt
from rollway_driver.verl.settings import DriverSettings, read_settings
from rollway_driver.verl.sources import SettingsError
from rollway_driver.verl.trainer_facts import TrainerFacts, read_facts
from rollway_driver.verl.transfer import TransferQueueSink
from rollway_wire.gateway import WorkerSpec
from rollway_wire.problems import RollwayError

log = logging.getLogger(__name__)

DISCONNECT_TIMEOUT_S = 10.0


class RemoteRolloutManager:
    """Registers verl's inference servers with the gateways and has the dispatcher run each batch.

    Raises:
        SettingsError: a setting is missing or would train on wrong numbers.
        RollwayError: a gateway or the dispatcher cannot be reached.
    """

    @classmethod
    def create(
        cls,
        config: DictConfig,
        llm_client: Any,
        teacher_client: Any = None,
        reward_loop_worker_handles: Any = None,
    ) -> Self:
        """verl's constructor. Rewards come from the agents: the reward workers are not used."""
        # The load balancer's ids are the servers' addresses (workers/rollout/llm_server.py); verl offers no other way.
        addresses = ray.get(llm_client._load_balancer.get_all_servers.remote())
        transfer_queue.init()
        return cls(config, [f"http://{address}" for address in addresses])

    def __init__(self, config: DictConfig, servers: list[str]) -> None:
        _speak_up()
        self._config = config
        plain: Mapping[str, Any] = OmegaConf.to_container(config, resolve=True)
        self._settings = read_settings(plain)
        self._facts = read_facts(plain)
        _refuse_lone_survivors(self._settings, self._facts)
        self._row_multiple = row_multiple(plain, self._facts.devices)
        self._refills: Counter[int] = Counter()
        self._orders = 0
        self._worker_ids: list[str] = []
        self._closed = False
        self._loop = LoopThread("rollway-driver")
        try:
            self._loop.run(self._connect(servers))
        except BaseException:
            self._loop.close()
            raise
        atexit.register(self.close)
        log.info("rollouts go to %s, pool %s", self._settings.dispatcher_url, self._settings.pool)
        if self._settings.gateway_cumulative_token_mode:
            log.info("gateway_cumulative_token_mode: the gateway itself decides how turns are joined, always exactly")

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Begin a batch and return.

        Raises:
            RuntimeError: an earlier batch failed for a reason that this one would meet too, or verl has asked for more
                replacement prompts in one step than ``max_refills_per_step``.
        """
        if self._loop.failure is not None:
            raise RuntimeError(f"rollouts stopped: {self._loop.failure}") from self._loop.failure
        rows = [_row(prompts, i) for i in range(len(prompts))]
        validate = bool(rows[0].get("validate", False))
        step = int(rows[0]["global_steps"])
        if not validate:
            self._count_refills(step, len(rows))
        self._orders += 1
        order = Order(
            key=f"{self._settings.pool}-{self._orders}-{time.time_ns():x}",
            step=step,
            validate=validate,
            prompts=tuple(read_prompt(row) for row in rows),
        )
        self._loop.start(self._batches.run(order))

    def close(self) -> None:
        """Cancel what runs, take the servers out of the gateways, stop the thread. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        try:
            self._loop.end_tasks()
            self._loop.run(self._disconnect())
        except (TimeoutError, RollwayError) as e:
            log.warning("pool %s may keep this run's servers: %s", self._settings.pool, e or "no answer in time")
        self._loop.close()

    async def _connect(self, servers: list[str]) -> None:
        settings = self._settings
        self._dispatcher = AsyncDispatcherClient(settings.dispatcher_url)
        self._gateways = AsyncGateways(settings.gateway_urls)
        self._batches = Batches(
            settings,
            self._facts,
            dispatcher=self._dispatcher,
            gateways=self._gateways,
            sink=TransferQueueSink(),
            on_last=self._fix_mini_batch,
        )
        await self._dispatcher.health()
        for url in servers:
            spec = WorkerSpec(url=url, tokenizer=settings.tokenizer, routed_experts=self._facts.routing_replay)
            states = await self._gateways.add_worker(spec, settings.pool)
            self._worker_ids.append(states[0].worker_id)

    async def _disconnect(self) -> None:
        try:
            async with asyncio.timeout(DISCONNECT_TIMEOUT_S):
                for worker_id in self._worker_ids:
                    await self._gateways.remove_worker(worker_id, self._settings.pool)
        finally:
            await self._gateways.aclose()
            await self._dispatcher.aclose()

    def _count_refills(self, step: int, prompts: int) -> None:
        first = step not in self._refills
        self._refills[step] += 0 if first else prompts
        limit = self._settings.max_refills_per_step
        if self._refills[step] > limit:
            raise RuntimeError(
                f"step {step}: {self._refills[step]} groups failed and were replaced, more than "
                f"rollway.max_refills_per_step={limit}; the log names each rollout's failure"
            )

    def _fix_mini_batch(self, step: int, rows: int) -> None:
        """Give verl the mini-batch size that makes ``ppo_mini_steps`` of the step's rows: it is read anew each step."""
        steps = self._settings.ppo_mini_steps
        if steps is None or rows == 0:
            return
        prompts = mini_batch_prompts(rows, steps, self._facts.n, self._row_multiple)
        self._config.actor_rollout_ref.actor.ppo_mini_batch_size = prompts
        log.info("step %d: %d rows, %d optimizer step(s), ppo_mini_batch_size=%d", step, rows, steps, prompts)


def _speak_up() -> None:
    """Log to standard error whatever became of the root logger: Ray and the engine both rearrange it."""
    ours = logging.getLogger("rollway_driver")
    if not ours.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s:%(asctime)s:rollway: %(message)s"))
        ours.addHandler(handler)
        ours.setLevel(logging.INFO)
        ours.propagate = False


def _refuse_lone_survivors(settings: DriverSettings, facts: TrainerFacts) -> None:
    least = settings.min_group_survivors
    if facts.group_relative and least < 2:
        raise SettingsError(
            "rollway.min_group_survivors must be at least 2 with adv_estimator=grpo: "
            "a lone survivor's advantage is its raw reward"
        )
    if least > facts.n:
        raise SettingsError(
            f"rollway.min_group_survivors={least} but rollout.n={facts.n}: no group could ever train; raise n"
        )


def _row(prompts: TensorDict, i: int) -> dict[str, Any]:
    """Row ``i`` of the batch as plain values."""
    row = {}
    for key, value in prompts.items():
        if isinstance(value, NonTensorStack):
            row[key] = value[i].data
        elif isinstance(value, NonTensorData):
            row[key] = value.data
        else:
            row[key] = value[i]
    return row
