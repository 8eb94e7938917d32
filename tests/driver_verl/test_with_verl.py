"""Against verl itself: our configuration composes, its classes take our keys, the dataset hands rows over raw."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.driver_verl.made import ARN
from tests.kit.vllm_server import ROOT, trainer_python

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200)]

COMPOSE = """
import json, sys
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from rollway_driver.verl.settings import read_settings
from rollway_driver.verl.trainer_facts import read_facts
from verl.utils.config import omega_conf_to_dataclass
made = {}
with initialize_config_module("rollway_driver.verl.config", version_base=None):
    for case, (name, overrides) in json.loads(sys.argv[1]).items():
        config = compose(name, overrides)
        plain = OmegaConf.to_container(config, resolve=True)
        settings, facts = read_settings(plain), read_facts(plain)
        rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        # what verl's worker adds before it converts the actor's part
        OmegaConf.update(config.actor_rollout_ref.actor, "rollout_n", 4, force_add=True)
        actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        made[case] = {
            "settings": settings.model_dump(mode="json"), "budget": [facts.budget.prompt, facts.budget.response],
            "rollout": type(rollout).__name__, "arn": rollout.agentcore.agent_runtime_arn,
            "manager": rollout.agent.agent_loop_manager_class,
            "actor": type(actor).__name__, "steps": actor.ppo_mini_steps,
        }
print(json.dumps(made))
"""
ROW = """
import json, sys
from omegaconf import OmegaConf
from verl.utils.dataset.rl_dataset import collate_fn, get_dataset_class
from verl.utils import tensordict_utils
from rollway_driver.verl.manager import _row
from rollway_driver.verl.prompts import read_prompt
config = OmegaConf.create({
    "custom_cls": {"path": "pkg://rollway_driver.verl.dataset", "name": "RawRows"}, "max_prompt_length": 1,
    "filter_overlong_prompts": True, "cache_dir": sys.argv[2],
})
rows = get_dataset_class(config)(data_files=sys.argv[1], tokenizer=None, config=config, processor=None)
batch = collate_fn([rows[0], rows[1]])
batch["uid"] = ["u-0", "u-1"]
batch = tensordict_utils.get_tensordict(batch)
tensordict_utils.assign_non_tensor_data(batch, "global_steps", 3)
prompts = [read_prompt(_row(batch, i)) for i in range(len(batch))]
print(json.dumps([{"uid": p.uid, "payload": p.payload, "kept": p.kept} for p in prompts]))
"""
ROUTED = """
import json, sys
from array import array
import numpy as np
import torch
from rollway_driver.verl.batches import Order
from rollway_driver.verl.prompts import Prompt
from rollway_driver.verl.rows import read_session
from rollway_driver.verl.transfer import routing, row_fields, row_tag
from rollway_wire.routing import RoutedExperts
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.utils.veomni.router_replay import VeOmniRouterReplay
sys.path.insert(0, "tests/driver_verl")  # this environment has no pytest, which the package of tests imports
from made import result, routed_trajectory, rules

LAYERS, TOP_K = 3, 2
order = Order(key="k", step=1, validate=False, prompts=())
prompt = Prompt(uid="u", payload={}, kept={})

def rows_of(wide):
    for parts in ([(3, 0), (4, 1)], [(2, 0), (2, 1), (1, 0), (5, 1)]):
        trajectory = routed_trajectory(parts, layers=LAYERS, top_k=TOP_K, wide=wide)
        session = read_session(result(), trajectory, rules(routing_replay=True))
        yield trajectory, session, session.rows[0]

def verls_own(trajectory, row):
    routed = trajectory.turns[0].routed_experts
    rows = np.array(routed.data.tolist()).reshape(-1, LAYERS, TOP_K)
    made = AgentLoopOutput(prompt_ids=list(row.prompt_ids), response_ids=list(row.response_ids),
        response_mask=list(row.response_mask), routed_experts=rows, metrics=AgentLoopMetrics())
    return made.as_dict()["routed_experts"]

made = {"same": [], "types": []}
for wide in (False, True):
    fields = []
    for trajectory, session, row in rows_of(wide):
        fields.append(row_fields(order, prompt, session, row))
        ours, theirs = fields[-1]["routed_experts"], verls_own(trajectory, row)
        made["same"].append(bool(torch.equal(ours, theirs)))
        made["types"].append([str(ours.dtype), str(theirs.dtype), list(ours.shape)])
padding, _ = construct_minimal_padding_template(fields[0], row_tag(order, row), 0)
batch = list_of_dict_to_tensordict([*fields, {**padding, **{k: fields[0][k] for k in fields[0] if k not in padding}}])
experts, ids = batch["routed_experts"], batch["input_ids"]
made["jagged"] = [experts.is_nested, bool(torch.equal(experts.offsets(), ids.offsets())), list(experts.values().shape)]
made["padding"] = int(experts[2].abs().sum())

targets = list(experts.values().to(torch.int64).unbind(dim=1))
native = torch.tensor([[7000, 7001]]).expand(len(targets[0]), TOP_K)
replay = VeOmniRouterReplay()
replay.begin_replay()
replay.begin_microbatch(targets=targets)
layers = [torch.nn.Identity() for _ in range(LAYERS)]
routed = [replay.on_router_forward(layer, torch.zeros(len(native), 9000), native) for layer in layers]
lasts = [offset - 1 for offset in ids.offsets().tolist()[1:3]]
made["fired"] = [replay.num_fired, replay.num_targets]
kept = torch.stack([(picked == native).all(dim=1) for picked in routed]).any(dim=0)
made["native_rows"] = kept.nonzero().flatten().tolist()
made["expected_native"] = sorted({*lasts, *range(ids.offsets()[2], ids.offsets()[3])})
made["replayed"] = all(
    torch.equal(picked[i], target[i]) for picked, target in zip(routed, targets)
    for i in range(ids.offsets()[2]) if i not in lasts
)
made["widest"] = []
for expert in (32767, 32768):
    try:
        made["widest"].append(routing(RoutedExperts(layers=1, top_k=2, data=array("H", [0, expert]))).tolist())
    except ValueError as e:
        made["widest"].append(str(e))
print(json.dumps(made))
"""


def answer(code: str, *arguments: str) -> Any:
    done = subprocess.run(
        [str(trainer_python()), "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


COMMON = (
    "rollway.dispatcher_url=http://d:1",
    f"actor_rollout_ref.rollout.agentcore.agent_runtime_arn='{ARN}'",
    "actor_rollout_ref.rollout.agentcore.s3_bucket=rewards",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.model.path=/m",
)
CASES = {
    "toolkit": (
        "rollway_grpo",
        "actor_rollout_ref.rollout.agentcore.max_rollout_time=180",
        "actor_rollout_ref.rollout.agentcore.gateway_cumulative_token_mode=true",
        "actor_rollout_ref.rollout.agentcore.gateway_renderer_model_family=qwen3",
        "actor_rollout_ref.actor.ppo_mini_steps=2",
    ),
    "rllm": (
        "rollway_grpo",
        "rllm.remote_runtime.enabled=true",
        "rllm.remote_runtime.backend=agentcore",
        f"rllm.remote_runtime.agentcore.agent_runtime_arn='{ARN}'",
        "rllm.remote_runtime.agentcore.tps_limit=5",
        "rllm.remote_runtime.session_timeout=300",
    ),
    "cpu": ("rollway_cpu",),
}


@pytest.fixture(scope="module")
def composed() -> Any:
    """What verl makes of each case's command line: one process for all, it takes long to import."""
    return answer(COMPOSE, json.dumps({case: (name, [*COMMON, *said]) for case, (name, *said) in CASES.items()}))


def test_the_toolkits_command_line_keys_compose_and_convert(composed: Any) -> None:
    made = composed["toolkit"]
    assert (made["rollout"], made["actor"], made["steps"]) == ("RemoteRolloutConfig", "RemoteFSDPActorConfig", 2)
    assert made["arn"] == ARN and made["manager"] == "rollway_driver.verl.RemoteRolloutManager"
    assert (made["settings"]["rollout_timeout_s"], made["settings"]["ppo_mini_steps"]) == (180, 2)
    assert made["budget"] == [512, 512]


def test_rllms_command_line_keys_compose_too(composed: Any) -> None:
    assert composed["rllm"]["settings"]["rollout_timeout_s"] == 300
    assert composed["rllm"]["settings"]["runtime"]["tps_limit"] == 5


def test_the_configuration_for_machines_without_an_accelerator_composes(composed: Any) -> None:
    assert composed["cpu"]["actor"] == "RemoteFSDPActorConfig"


def test_verls_dataset_machinery_hands_the_raw_row_to_the_agent(tmp_path: Path) -> None:
    """``max_prompt_length`` of 1 filters nothing out, and no tokenizer is needed."""
    rows = [
        {"prompt": "What is 2 + 2?", "answer": "4", "extra": [1, 2]},
        {"prompt": "x" * 500, "answer": "y", "extra": []},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = answer(ROW, str(path), str(tmp_path / "cache"))
    assert (first["uid"], first["payload"], second["payload"]) == ("u-0", rows[0], rows[1])
    assert first["kept"]["reward_model"]["ground_truth"] == "4"
    assert first["kept"]["raw_prompt"] == [{"role": "user", "content": "What is 2 + 2?"}]


def test_rows_of_experts_are_what_verls_own_agent_loop_makes_and_what_its_replay_takes() -> None:
    """On a CPU verl's VeOmni controller can be asked; its engines that replay need VeOmni or Megatron."""
    made = answer(ROUTED)
    assert made["same"] == [True] * 4
    assert made["types"] == [["torch.int16", "torch.int16", [n, 3, 2]] for n in (7, 10, 7, 10)]
    assert made["jagged"] == [True, True, [7 + 10 + 128, 3, 2]]
    assert made["padding"] == 0
    assert made["fired"] == [3, 3]
    assert made["replayed"], "every row but a sequence's last is replayed as it was reported"
    assert made["native_rows"] == made["expected_native"], "a last token and verl's padding are routed natively"
    fits, refused = made["widest"]
    assert fits == [[[0, 32767]], [[0, 0]]]
    assert "above 32767" in refused
