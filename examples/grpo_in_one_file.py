"""GRPO for an agent in one file: play groups of episodes, compare within each group, move the policy's own tokens.

    python examples/grpo_in_one_file.py        # two minutes on two CPU cores; prints a curve that rises

The agent searches for the commit that broke a test suite (`AgentR1/Bisect-v0`). The model has two layers and starts
from a short imitation of a player. `AgentGRPOTrainer` computes the same loss (a test holds both to 1e-6). It adds vLLM,
several processes, checkpoints, other estimators, a critic, and several clipped updates per rollout.

Shapes: B rows, T tokens, N episodes. A row is the token sequence of one episode, as the model saw it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from agent_gym.policies import TransformersPolicy
from agent_gym.rollout import Budget, Episode, EpisodeSpec, Runner
from agent_gym.speedrun.quickstart import warm_start

ENV = "AgentR1/Bisect-v0"
STEPS, TASKS, GROUP, TEST = 30, 8, 8, 64  # optimizer steps; tasks a step; episodes a task; held-out tasks
LEARNING_RATE, BUDGET = 1e-3, Budget(max_turn_tokens=40, max_tokens=400)


def rollout(runner: Runner, env_kwargs: dict[str, Any], step: int) -> list[Episode]:
    """Play `GROUP` episodes of each of `TASKS` tasks: the same task and seed, other samples."""
    tasks = range(step * TASKS, (step + 1) * TASKS)
    specs = [EpisodeSpec(ENV, env_kwargs, seed=k, split="train", index=k, group=k) for k in tasks for _ in range(GROUP)]
    return [episode for episode in runner.run(specs, temperature=1.0) if not episode.failure]


def layout(episodes: Sequence[Episode], pad_token_id: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return `input_ids` (B, T), `mask` (B, T), True where the policy wrote the token, and `episode_of` (B,).

    The mask is read from the spans, which say of every token who wrote it. No text is parsed or encoded again.
    """
    rows = [(number, row) for number, episode in enumerate(episodes) for row in episode.rows]
    shape = len(rows), max(len(row.token_ids) for _, row in rows)
    input_ids = torch.full(shape, pad_token_id)
    mask = torch.zeros(shape, dtype=torch.bool)
    for b, (_, row) in enumerate(rows):
        input_ids[b, : len(row.token_ids)] = torch.tensor(row.token_ids)
        for span in row.spans:
            mask[b, span.start : span.stop] = span.source == "agent"
    return input_ids, mask, torch.tensor([number for number, _ in rows])


def group_advantages(rewards: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Compare each reward with those of the same task: (N,), (N,) to (N,), A = (r - mean) / (std + 1e-4).

    GRPO, arXiv:2402.03300, equation 3; 1e-4 is TRL's number. A group that agrees teaches nothing: its A is 0.
    """
    advantages = torch.zeros_like(rewards)
    for group in groups.unique():
        mine = groups == group
        advantages[mine] = (rewards[mine] - rewards[mine].mean()) / (rewards[mine].std() + 1e-4)
    return advantages


def token_logprobs(model: Any, input_ids: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of each token given those before it, (B, T); column 0 is 0, as nothing precedes it.

    The rows are padded on the right, where a causal model cannot look: no attention mask is needed.
    """
    logits = model(input_ids).logits[:, :-1].float()
    chosen = logits.log_softmax(-1).gather(2, input_ids[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(chosen, (1, 0))


def grpo_loss(model: Any, episodes: Sequence[Episode], pad_token_id: int) -> torch.Tensor:
    """Return -mean(ratio x advantage) over the policy's tokens. At the first update of a rollout the ratio is 1."""
    input_ids, mask, episode_of = layout(episodes, pad_token_id)
    rewards = torch.tensor([episode.reward for episode in episodes])
    advantages = group_advantages(rewards, torch.tensor([episode.spec.group for episode in episodes]))
    logprobs = token_logprobs(model, input_ids)
    ratio = (logprobs - logprobs.detach()).exp()  # 1, with the gradient of the log-probability
    return -(ratio * advantages[episode_of][:, None])[mask].mean()


def success(runner: Runner, env_kwargs: dict[str, Any]) -> float:
    """Return the share of held-out tasks that the policy solves when it samples."""
    specs = [EpisodeSpec(ENV, env_kwargs, seed=k, split="test", index=k, group=k) for k in range(TEST)]
    return sum(bool(episode.success) for episode in runner.run(specs, temperature=1.0)) / TEST


def main() -> list[float]:
    """Train, print a line per step and return the success before and after."""
    learner = warm_start(ENV, steps=60)
    model, tokenizer, env_kwargs = learner.model, learner.tokenizer, dict(learner.preset.env_kwargs)
    policy = TransformersPolicy(model, {tokenizer.eos_token_id}, tokenizer.pad_token_id)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98))
    runner, curve = Runner(policy, tokenizer, BUDGET), []
    for step in range(STEPS + 1):
        if step % 10 == 0:
            curve.append(success(runner, env_kwargs))
            print(f"step {step:3}: {curve[-1]:4.0%} of {TEST} held-out tasks {'#' * round(40 * curve[-1])}", flush=True)
        if step < STEPS:
            episodes = rollout(runner, env_kwargs, step)
            loss = grpo_loss(model, episodes, tokenizer.pad_token_id)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            reward = sum(episode.reward for episode in episodes) / len(episodes)
            print(f"step {step:3}: reward {reward:.2f}, loss {loss.item():+.4f}", flush=True)
    runner.close()
    return curve


if __name__ == "__main__":
    main()
