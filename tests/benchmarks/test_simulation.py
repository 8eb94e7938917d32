"""The simulated cluster: the same draws for every policy, and what each policy must do to the numbers."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.dispatcher.cluster import Cluster
from benchmarks.dispatcher.simulated_batch import Outcomes, Simulation
from rollway_wire.batch import Policy

SMALL = Cluster(groups=24, n=4, max_concurrent=40, engine_slots=30, dies=0.05, hangs=0.02)


def run(policy: Policy, cluster: Cluster = SMALL) -> Outcomes:
    return Simulation(cluster, policy).run()


def test_the_same_cluster_and_policy_give_the_same_run() -> None:
    assert run(Policy()) == run(Policy())


def test_agents_that_hang_lose_their_group_and_an_extra_wins_it_back() -> None:
    plain, hedged, more = run(Policy()), run(Policy(extra=1, extra_start="straggler")), run(Policy(extra=2))
    assert plain.decided < 24
    assert hedged.decided == more.decided == 24
    assert plain.sessions < hedged.sessions < more.sessions, (
        "hedging pays for what is missing, over-sampling in advance"
    )
    assert more.all_s < hedged.all_s


def test_a_deadline_ends_the_batch_and_costs_groups() -> None:
    plain, cut = run(Policy()), run(Policy(deadline_s=7200))
    assert 7200 <= cut.all_s < 7200 + 60
    assert cut.decided < plain.decided


def test_starts_and_stops_share_the_rate() -> None:
    slow = run(Policy(), replace(SMALL, tps=0.05, work_s=1.0, sigma=0.1, dies=0, hangs=0))
    assert slow.all_s >= (slow.sessions - 1) / 0.05


def test_admission_that_looks_at_the_engines_keeps_fewer_sessions_waiting_for_them() -> None:
    crowded = replace(SMALL, max_concurrent=96, engine_slots=10, sigma=0.3, hangs=0)
    blind, seeing = run(Policy(), crowded), run(Policy(), replace(crowded, holds_at=1.2))
    assert seeing.session_hours < 0.7 * blind.session_hours
    assert seeing.all_s < 1.25 * blind.all_s
