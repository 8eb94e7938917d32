"""Running an evaluation: post what is missing, keep each result as it comes, until every input has its samples."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollway_driver.client import DispatcherClient, GatewayClient
from rollway_driver.client.gateways import split_urls
from rollway_driver.evaluation.data_set import DataSet, EvaluationError
from rollway_driver.evaluation.journal import Journal
from rollway_driver.evaluation.score import counts, sample_of
from rollway_driver.evaluation.services import Services
from rollway_wire.batch import BatchRequest, Capture, Group, Limits, RuntimeSpec
from rollway_wire.gateway import WorkerSpec
from rollway_wire.problems import NotFound


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run."""

    name: str
    """First part of the S3 prefix."""
    data: DataSet
    runtime: RuntimeSpec
    n: int
    model: str
    base_url: str | None
    direct: bool
    """Agents call ``base_url`` themselves."""
    sampling_params: dict[str, Any]
    limits: Limits
    threshold: float

    @property
    def total(self) -> int:
        return self.n * len(self.data.rows)

    def request(self, wanted: dict[str, int]) -> BatchRequest:
        """The batch for the samples that are missing, by input."""
        pool = self.pool
        return BatchRequest(
            experiment_id=self.name,
            groups=[Group(group_id=i, payload=self.data.rows[i], n=n) for i, n in wanted.items()],
            runtime=self.runtime,
            model_id=self.model,
            sampling_params=self.sampling_params,
            capture=None if pool is None else Capture(pool=pool, require_complete=False),
            rollout={"base_url": self.base_url} if self.direct else {},
            limits=self.limits,
            require_rewards=False,
        )

    @property
    def pool(self) -> str | None:
        """The gateway pool that serves the agents; None: no gateway."""
        return None if self.direct else f"eval-{self.name}"[:64] if self.base_url else "default"

    def missing(self, journal: Journal) -> dict[str, int]:
        done = journal.done()
        return {i: self.n - done[i] for i in self.data.rows if done[i] < self.n}


def register_model(plan: Plan, services: Services) -> None:
    """Put the model server behind the gateway, in a pool of the evaluation's own.

    Raises:
        EvaluationError: no gateway is known, or it cannot use the server.
    """
    if plan.base_url is None or plan.pool is None:
        return
    if services.gateway_url is None:
        raise EvaluationError("--base-url needs the gateway: give --gateway URL, or --direct to call the model without")
    for url in split_urls(services.gateway_url):
        with GatewayClient(url, api_key=services.gateway_key) as gateway:
            worker = gateway.add_worker(WorkerSpec(url=plan.base_url, model_name=plan.model or None), plan.pool)
            if not worker.healthy:
                raise EvaluationError(f"the model server {plan.base_url} cannot be used by {url}: {worker.detail}")
            gateway.open_pool(plan.pool)


def run(plan: Plan, services: Services, journal: Journal, redraw: Callable[[], None] = lambda: None) -> None:
    """Until every input has its samples. Safe to interrupt at any point; a later call goes on.

    Raises:
        EvaluationError: the set-up is broken, or somebody cancelled the batch.
    """
    with DispatcherClient(services.dispatcher_url, api_key=services.dispatcher_key) as client:
        if journal.batch is not None and journal.batch["dispatcher"] == services.dispatcher_url:
            _collect(plan, client, journal, journal.batch)
        if wanted := plan.missing(journal):
            batch = {
                "key": str(uuid.uuid4()), "dispatcher": services.dispatcher_url, "batch_id": None, "wanted": wanted,
            }  # fmt: skip
            journal.set_batch(batch)
            _collect(plan, client, journal, batch)
        redraw()
        if left := sum(plan.missing(journal).values()):
            raise EvaluationError(f"{left} rollouts were cancelled at the dispatcher; go on with --resume")


def _collect(plan: Plan, client: DispatcherClient, journal: Journal, batch: dict[str, Any]) -> None:
    """Every result of a batch that is not kept yet; a batch that is no longer known has none."""
    if batch["batch_id"] is None:
        status = client.submit(plan.request(batch["wanted"]), idempotency_key=batch["key"])
        batch = {**batch, "batch_id": status.batch_id}
        journal.set_batch(batch)
    batch_id: str = batch["batch_id"]
    done = journal.done()
    captured = plan.pool is not None
    try:
        for found in client.follow(batch_id, cursor=journal.cursor(batch_id), trajectories=captured):
            if counts(found):
                journal.add(sample_of(found, done[found.rollout.group_id], plan.threshold))
                done[found.rollout.group_id] += 1
        error = client.status(batch_id).contract_error
    except NotFound:
        return
    if error is not None:
        raise EvaluationError(f"the set-up is broken: {error}")
    journal.set_batch(None)
