"""One client's batch, in the client's own environment: ``python batch_client.py toolkit|rollway JSON``.

JSON: arn, bucket, sleeps (seconds, one a rollout), tps, and ``dispatcher`` for ours. Prints one line of JSON: when it
began and, per result, when the caller had it (Unix seconds) and what the agent saved. Stands alone: no import of ours.
"""

import json
import sys
import time


def toolkit(plan: dict) -> object:
    from agentcore_rl_toolkit.client import RolloutClient

    client = RolloutClient(
        agent_runtime_arn=plan["arn"], s3_bucket=plan["bucket"], exp_id="toolkit", tps_limit=plan["tps"],
        max_pool_connections=64,
    )  # fmt: skip
    return client.run_batch([{"sleep_s": s} for s in plan["sleeps"]], max_concurrent_sessions=len(plan["sleeps"]))


def rollway(plan: dict) -> object:
    from rollway_driver.client import RolloutClient

    client = RolloutClient(
        agent_runtime_arn=plan["arn"], s3_bucket=plan["bucket"], exp_id="rollway", tps_limit=plan["tps"],
        dispatcher_url=plan["dispatcher"], capture=False,
    )  # fmt: skip
    return client.run_batch([{"sleep_s": s} for s in plan["sleeps"]], max_concurrent_sessions=len(plan["sleeps"]))


def main() -> None:
    which, plan = sys.argv[1], json.loads(sys.argv[2])
    began, results = time.time(), []
    for item in {"toolkit": toolkit, "rollway": rollway}[which](plan):
        done_at = item.result.get("done_at") if item.success else None
        results.append({"at": time.time(), "index": item.index, "done_at": done_at, "error": item.error})
    print(json.dumps({"began": began, "results": results}))


if __name__ == "__main__":
    main()
