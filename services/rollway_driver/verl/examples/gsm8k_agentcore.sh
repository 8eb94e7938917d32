#!/usr/bin/env bash
# GRPO on GSM8K with an agent on Bedrock AgentCore and verl on one node with GPUs.
#
# Before:  pip install 'rollway[verl]' and verl's own vllm and fsdp extras; a math agent image made with rollway_shim (or
#          agentcore-rl-toolkit) deployed to AgentCore Runtime; a gateway and a dispatcher running (deploy/). The gateway must
#          reach this node's inference servers, the agents must reach the gateway.
#
#   AGENT_RUNTIME_ARN=arn:aws:bedrock-agentcore:... S3_BUCKET=... DISPATCHER_URL=http://... GATEWAY_URL=http://... \
#       bash gsm8k_agentcore.sh [verl's KEY=VALUE ...]
set -euo pipefail

: "${AGENT_RUNTIME_ARN:?set it to the ARN of the agent runtime}"
: "${S3_BUCKET:?set it to the bucket that the agents write results to}"
: "${DISPATCHER_URL:?set it to the dispatcher base URL}"
: "${GATEWAY_URL:?set it to the gateway admin base URL}"
MODEL=${MODEL:-Qwen/Qwen3-4B-Instruct-2507}
GPUS=${GPUS:-8}
WORK=${WORK:-$PWD/gsm8k}

# prompt and answer columns, which the agent gets as its payload.
[ -f "$WORK/data/train.parquet" ] || python -m rollway_driver.data gsm8k --out "$WORK/data"

settings=(
  data.train_files="$WORK/data/train.parquet"
  data.val_files="$WORK/data/val.parquet"
  data.train_batch_size=64                  # prompts a step
  data.max_prompt_length=2048               # with max_response_length: the longest row that is trained
  data.max_response_length=6144

  actor_rollout_ref.model.path="$MODEL"
  actor_rollout_ref.actor.optim.lr=1e-6
  actor_rollout_ref.actor.ppo_mini_batch_size=64
  actor_rollout_ref.actor.ppo_mini_steps=1  # optimizer steps a batch, however many rows the sessions give
  actor_rollout_ref.actor.use_dynamic_bsz=True
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384
  actor_rollout_ref.actor.use_kl_loss=False

  actor_rollout_ref.rollout.n=8             # rollouts a prompt
  actor_rollout_ref.rollout.temperature=1.0
  actor_rollout_ref.rollout.max_model_len=8192   # max_prompt_length + max_response_length
  actor_rollout_ref.rollout.tensor_model_parallel_size=1
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6
  +actor_rollout_ref.rollout.engine_kwargs.vllm.enable_auto_tool_choice=True
  +actor_rollout_ref.rollout.engine_kwargs.vllm.tool_call_parser=hermes

  actor_rollout_ref.rollout.agentcore.agent_runtime_arn="$AGENT_RUNTIME_ARN"
  actor_rollout_ref.rollout.agentcore.s3_bucket="$S3_BUCKET"
  actor_rollout_ref.rollout.agentcore.reqs_per_sec=25       # invoke and stop together: AgentCore's own quota
  actor_rollout_ref.rollout.agentcore.max_rollout_time=300  # seconds
  rollway.dispatcher_url="$DISPATCHER_URL"
  rollway.gateway_url="$GATEWAY_URL"
  rollway.max_tokens=1024                   # of one model call
  rollway.metrics_path="$WORK/batches.jsonl"
  rollway.trajectories_dir="$WORK/trajectories"

  trainer.n_gpus_per_node="$GPUS"
  trainer.nnodes=1
  trainer.project_name=rollway
  trainer.experiment_name=gsm8k
  'trainer.logger=[console]'
  trainer.v1.sampler.sync_refill_failed_groups=True  # a group without rows is replaced by another prompt
  trainer.default_local_dir="$WORK/checkpoints"
  trainer.save_freq=50
  trainer.test_freq=10
  trainer.total_epochs=1
)
exec python -m verl.trainer.main_ppo --config-path=pkg://rollway_driver.verl.config --config-name=rollway_grpo "${settings[@]}" "$@"
