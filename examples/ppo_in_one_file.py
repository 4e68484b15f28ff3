"""PPO for an agent in one file: a critic predicts returns, and the policy is updated twice on each rollout.

    python examples/ppo_in_one_file.py         # two minutes on two CPU cores; prints a curve that rises

The environment, the rollout and the mask are those of grpo_in_one_file.py, and so is the task: to find out that looking
into a box pays. Every episode is of another task, as the critic is the baseline. `AgentPPOTrainer` computes the same
loss: a test holds both to 1e-6. It adds a separate model as critic, other forms of GAE, vLLM, several processes.

Shapes: B rows, T tokens. Each episode is one row here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from grpo_in_one_file import BUDGET, BoxesEnv, layout, play
from torch.nn.functional import pad

from agent_gym.policies import TransformersPolicy
from agent_gym.rollout import Episode, Runner
from agent_gym.speedrun.quickstart import warm_start

ROLLOUTS, EPISODES, EPOCHS, TEST = 16, 64, 2, 100  # of training; a rollout; updates on each; held-out episodes
LEARNING_RATE, CRITIC_LEARNING_RATE = 5e-4, 5e-3
GAMMA, LAM, CLIP, VALUE_CLIP, VALUE_FACTOR = 1.0, 1.0, 0.2, 0.2, 0.5


class Batch(NamedTuple):
    """A rollout as tensors (B, T), scored by the weights that played it."""

    input_ids: torch.Tensor
    mask: torch.Tensor  # True where the policy wrote the token
    logprobs: torch.Tensor
    values: torch.Tensor  # of the state before each token
    advantages: torch.Tensor
    returns: torch.Tensor


def score(model: Any, critic: torch.nn.Linear, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probability of each token, and the value of the state before it, both (B, T); column 0 is 0.

    The critic is a linear map of the policy's last hidden states, and sends no gradient into them.
    """
    output = model(input_ids, output_hidden_states=True)
    logprobs = output.logits[:, :-1].float().log_softmax(-1).gather(2, input_ids[:, 1:, None])[..., 0]
    values = critic(output.hidden_states[-1].detach()[:, :-1])[..., 0]
    return pad(logprobs, (1, 0)), pad(values, (1, 0))


def token_rewards(episodes: Sequence[Episode], shape: torch.Size) -> torch.Tensor:
    """Put the reward of each turn at the last token of it: (B, T)."""
    rewards = torch.zeros(shape)
    for b, episode in enumerate(episodes):
        for step in episode.steps:
            rewards[b, step.stop - 1] += step.reward
    return rewards


def gae(rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return advantages and returns, both (B, T), by generalised advantage estimation (arXiv:1506.02438).

    delta_t = r_t + gamma V(s_{t+1}) - V(s_t), and A_t = delta_t + gamma lam A_{t+1}. Moments are the policy's tokens:
    the tokens of the environment in between are skipped. Nothing follows the end of an episode.
    """
    advantages = torch.zeros_like(values)
    next_value, next_advantage = torch.zeros(len(values)), torch.zeros(len(values))
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + GAMMA * next_value - values[:, t]
        advantage = delta + GAMMA * LAM * next_advantage
        advantages[:, t] = torch.where(mask[:, t], advantage, 0.0)
        next_value = torch.where(mask[:, t], values[:, t], next_value)
        next_advantage = torch.where(mask[:, t], advantage, next_advantage)
    return advantages, torch.where(mask, advantages + values, 0.0)


@torch.no_grad()
def rollout_batch(model: Any, critic: torch.nn.Linear, episodes: Sequence[Episode], pad_token_id: int) -> Batch:
    """Score a rollout before the first update on it; advantages are whitened over the policy's tokens."""
    input_ids, mask, _ = layout(episodes, pad_token_id)
    logprobs, values = score(model, critic, input_ids)
    advantages, returns = gae(token_rewards(episodes, mask.shape), values, mask)
    chosen = advantages[mask]
    return Batch(input_ids, mask, logprobs, values, (advantages - chosen.mean()) / (chosen.std() + 1e-8), returns)


def ppo_loss(model: Any, critic: torch.nn.Linear, batch: Batch) -> torch.Tensor:
    """Return the clipped loss of the policy and half of the clipped error of the critic (arXiv:1707.06347)."""
    logprobs, values = score(model, critic, batch.input_ids)
    ratio = (logprobs - batch.logprobs).exp()
    policy = torch.minimum(ratio * batch.advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * batch.advantages)
    near = batch.values + (values - batch.values).clamp(-VALUE_CLIP, VALUE_CLIP)
    error = 0.5 * torch.maximum((values - batch.returns) ** 2, (near - batch.returns) ** 2)
    return (VALUE_FACTOR * error - policy)[batch.mask].mean()


def main() -> list[float]:
    """Train, print a line every fourth rollout, and return the success on held-out tasks at these points."""
    learner = warm_start(BoxesEnv, steps=500, styles={"default": 0.5, "guess": 0.5})
    model, tokenizer, env = learner.model, learner.tokenizer, learner.preset
    critic = torch.nn.Linear(model.config.hidden_size, 1)
    torch.nn.init.zeros_(critic.weight)
    groups = [
        {"params": model.parameters(), "lr": LEARNING_RATE},
        {"params": critic.parameters(), "lr": CRITIC_LEARNING_RATE},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98))
    policy = TransformersPolicy(model, {tokenizer.eos_token_id}, tokenizer.pad_token_id)
    runner, curve = Runner(policy, tokenizer, BUDGET), []
    for number in range(ROLLOUTS + 1):
        if number % 4 == 0:
            held_out = play(runner, env, "test", range(TEST), group=1)
            curve.append(sum(bool(episode.success) for episode in held_out) / TEST)
            bar = "#" * round(40 * curve[-1])
            print(f"rollout {number:3}: {curve[-1]:4.0%} of {TEST} held-out tasks {bar}", flush=True)
        tasks = [(number * EPISODES + place) % 300 for place in range(EPISODES)]
        episodes = play(runner, env, "train", tasks, group=1)
        batch = rollout_batch(model, critic, episodes, tokenizer.pad_token_id)
        for _ in range(EPOCHS):
            ppo_loss(model, critic, batch).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    runner.close()
    return curve


if __name__ == "__main__":
    main()
