"""``rollway eval``: an agent on a JSONL file, n rollouts an input, scored by pass@k; can be interrupted and resumed.

With --dispatcher (or ROLLWAY_DISPATCHER_URL) it runs there; otherwise it starts S3, gateway and dispatcher on this
machine for its own time, and the agent as processes. The agent's model is called through the gateway, which may stand
in front of any OpenAI-compatible server.

Exit status: 0 when every rollout has a score, 1 when some failed (the table says of what), 2 when it could not be run,
130 when it was interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from rollway_driver.evaluation.agent import runtime_of
from rollway_driver.evaluation.data_set import EvaluationError, read_data_set
from rollway_driver.evaluation.journal import Journal, open_journal
from rollway_driver.evaluation.results_file import check_ending, write_results
from rollway_driver.evaluation.run import Plan, register_model, run
from rollway_driver.evaluation.score import summarize
from rollway_driver.evaluation.screen import Screen
from rollway_driver.evaluation.services import DISPATCHER_URL, Services, named_services, own_stack
from rollway_wire.batch import Limits, ProcessRuntime
from rollway_wire.problems import RollwayError


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("rollway eval", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    made.add_argument("data", type=Path, help="JSONL, one input a line; a field id names it")
    made.add_argument("--agent", required=True, help="arn:…, http://… (containers), a .py file, or a command line")
    made.add_argument("--n", type=_count, default=1, help="rollouts per input (%(default)s)")
    made.add_argument("--k", type=_counts, help="comma-separated, for pass@k (default: 1 and n)")
    made.add_argument("--threshold", type=float, default=1.0, help="least reward of a correct one (%(default)g)")
    made.add_argument("--base-url", help="the model's OpenAI-compatible server (default: what the gateway's pool has)")
    made.add_argument("--direct", action="store_true", help="agents call --base-url themselves, without the gateway")
    made.add_argument("--model", default="", help="name of the model, as agents ask for it")
    made.add_argument("--sampling-params", type=_object, default={}, help='JSON, like {"temperature": 0.6}')
    made.add_argument("--out", type=Path, help="results: a .jsonl or .parquet file (default: DATA.results.jsonl)")
    made.add_argument("--resume", action="store_true", help="go on with an interrupted run of the same --out")
    made.add_argument("--limit", type=_count, help="the first inputs alone")
    made.add_argument("--max-concurrent", type=_count, help="rollouts at once (default: the dispatcher's own)")
    made.add_argument("--timeout-s", type=float, default=900.0, help="for a rollout (%(default)g)")
    made.add_argument("--max-attempts", type=_count, default=3, help="where the runtime failed (%(default)s)")
    made.add_argument("--dispatcher", default=os.environ.get(DISPATCHER_URL), help="its URL")
    made.add_argument("--gateway", help="its admin URL, to register --base-url there; several, comma-separated")
    made.add_argument("--endpoint-url", help="of the AgentCore API, where it is not AWS's")
    return made


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({_count(part.strip()) for part in text.split(",")}))


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"not JSON: {e}") from e
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    chosen = parser().parse_args(given)
    console = Console()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return evaluate(chosen, given, console)
    except (EvaluationError, RollwayError) as e:
        Console(stderr=True).print(f"rollway eval: {e}", style="red", markup=False, highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        return 130


def evaluate(chosen: argparse.Namespace, given: list[str], console: Console) -> int:
    """Everything from the arguments to the written file; the exit status.

    Raises:
        EvaluationError, RollwayError: it cannot be run, or not to its end.
    """
    plan, out = plan_of(chosen), out_of(chosen)
    check_ending(out)
    ks = tuple(k for k in chosen.k or sorted({1, chosen.n}) if k <= chosen.n)
    if chosen.k and ks != chosen.k:
        raise EvaluationError(f"--k {chosen.k[-1]} needs --n {chosen.k[-1]}: pass@k takes k of n rollouts")
    journal = open_journal(out.with_name(f"{out.name}.run"), identity_of(chosen, plan), resume=chosen.resume)
    with contextlib.closing(journal):
        try:
            with _services(chosen, journal) as services:
                if plan.missing(journal):
                    register_model(plan, services)
                title = f"{chosen.data.name} · {chosen.agent.rpartition('/')[2]}"
                with Screen(console, title, journal.samples, plan.total, ks):
                    run(plan, services, journal)
        except KeyboardInterrupt:
            _say_how_to_go_on(console, given, journal, plan)
            return 130
        write_results(out, journal.samples, plan.data)
        console.print(f"results     {out}", highlight=False, soft_wrap=True)
        return 1 if summarize(journal.samples, ks).failed else 0


def plan_of(chosen: argparse.Namespace) -> Plan:
    if chosen.direct and not chosen.base_url:
        raise EvaluationError("--direct needs --base-url: the address that agents call")
    data = read_data_set(chosen.data, chosen.limit)
    return Plan(
        name=f"{chosen.data.stem}-{data.digest[:8]}".replace(" ", "_"),
        data=data,
        runtime=runtime_of(chosen.agent, chosen.endpoint_url),
        n=chosen.n,
        model=chosen.model,
        base_url=chosen.base_url,
        direct=chosen.direct,
        sampling_params=chosen.sampling_params,
        limits=Limits(
            rollout_timeout_s=chosen.timeout_s, max_concurrent=chosen.max_concurrent, max_attempts=chosen.max_attempts
        ),
        threshold=chosen.threshold,
    )


def out_of(chosen: argparse.Namespace) -> Path:
    out: Path = chosen.out or chosen.data.with_name(f"{chosen.data.stem}.results.jsonl")
    return out


def identity_of(chosen: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    """What makes results comparable: with any of it changed they are another run's."""
    return {
        "data": plan.data.digest, "agent": plan.runtime.model_dump(mode="json"), "n": chosen.n, "model": chosen.model,
        "base_url": chosen.base_url, "sampling_params": chosen.sampling_params, "threshold": chosen.threshold,
    }  # fmt: skip


@contextlib.contextmanager
def _services(chosen: argparse.Namespace, journal: Journal) -> Iterator[Services]:
    if chosen.dispatcher:
        yield named_services(chosen.dispatcher, chosen.gateway)
        return
    if not isinstance(runtime_of(chosen.agent), ProcessRuntime):
        raise EvaluationError(f"this agent is not a program here: give --dispatcher URL, or set {DISPATCHER_URL}")
    if not chosen.base_url:
        raise EvaluationError("no model: give --base-url, the OpenAI-compatible server that serves it")
    with own_stack(journal.folder / "stack") as services:
        yield services


def _say_how_to_go_on(console: Console, given: list[str], journal: Journal, plan: Plan) -> None:
    words = given if "--resume" in given else [*given, "--resume"]
    kept = f"{journal.kept()} of {plan.total} rollouts are kept in {journal.folder}"
    console.print(f"interrupted; {kept}. Go on with:", markup=False, highlight=False, soft_wrap=True)
    console.print(f"  rollway eval {shlex.join(words)}", markup=False, highlight=False, soft_wrap=True)
    if journal.batch is not None and journal.batch["batch_id"] is not None and "--dispatcher" in " ".join(given):
        console.print(f"  (batch {journal.batch['batch_id']} runs on at the dispatcher)", highlight=False)


if __name__ == "__main__":
    raise SystemExit(main())
