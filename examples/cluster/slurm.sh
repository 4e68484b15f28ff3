#!/bin/bash
# One machine serves Qwen2.5-7B on its four GPUs, two train it on theirs: sbatch examples/cluster/slurm.sh
# A machine that is lost takes its tasks with it, and the others go on (--no-kill): without a server at once, without a
# trainer from the last checkpoint when the job has it back (--requeue).
#SBATCH --nodes=3 --ntasks-per-node=1 --gpus-per-node=4 --cpus-per-task=32 --time=24:00:00
#SBATCH --no-kill --requeue
set -euo pipefail

nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd,)
run=$SLURM_SUBMIT_DIR/run
mkdir -p "$run"

srun --no-kill agent-gym launch --nodes "$nodes" --serving 1 --servers 4 --restarts 5 \
    grpo AgentR1/HotpotQA-v0 --model_name_or_path Qwen/Qwen2.5-7B-Instruct --output_dir "$run/out" \
    --max_episode_tokens 8192 --max_staleness 2 --weights_transfer files --save_steps 20 \
    --accelerate_config fsdp2 --num_processes 8
