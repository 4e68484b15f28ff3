"""GRPO for an agent in one file: play groups of episodes, compare within each group, move the policy's own tokens.

    python examples/grpo_in_one_file.py        # a minute on two CPU cores; prints a curve that rises

Ten boxes hold a digit each. The policy may look into a box, or guess. It starts from the imitation of a player that
looks in half of its episodes; GRPO finds out that looking pays. `AgentGRPOTrainer` computes the same loss: a test holds
both to 1e-6. It adds vLLM, several processes, checkpoints, other estimators, a critic and clipped updates.

Shapes: B rows, T tokens, N episodes. A row is the token sequence of one episode, as the model saw it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch

from agent_gym import Reply, ToolEnv, tool
from agent_gym.policies import TransformersPolicy
from agent_gym.rewards import final_answer
from agent_gym.rollout import Budget, Episode, EpisodeSpec, Runner
from agent_gym.speedrun.presets import Preset
from agent_gym.speedrun.quickstart import warm_start

STEPS, TASKS, GROUP, TEST = 24, 8, 8, 100  # optimizer steps; tasks a step; episodes a task; held-out episodes
LEARNING_RATE, BUDGET = 5e-4, Budget(max_turn_tokens=40, max_tokens=400)


class BoxesEnv(ToolEnv):
    """Tell the digit in a box: a guess is right one time in ten, a look always."""

    reward_weights: ClassVar[dict[str, float]] = {"answer": 1.0}

    def __init__(self, **kwargs: Any) -> None:
        """Make the tasks: pairs of a box and its digit."""
        tasks = [("ABCDEFGHIJ"[n % 10], str(n * 7 // 10 % 10)) for n in range(400)]
        super().__init__({"train": tasks[:300], "test": tasks[300:]}, tools=[tool(self.look)], max_turns=3, **kwargs)

    def look(self, box: str) -> str:
        """Look into a box."""
        return self.digit if box == self.box else "nothing"

    def begin(self, task: Any) -> str:
        """Return the question of a task; `reset` calls it."""
        self.box, self.digit = task
        return f"What is in box {self.box}?"

    def answer(self, text: str) -> Reply:
        """Score a turn without a call; it ends the episode."""
        right = final_answer(text) == self.digit
        return Reply(terms={"answer": float(right)}, terminated=True, success=right)

    def expert_action(self, style: str = "default") -> str:
        """Return the next turn of the player that is imitated."""
        if style == "guess":
            return f"<answer>{self.np_random.integers(10)}</answer>"
        return f"<answer>{self.digit}</answer>" if self.turn else self.parser.render("look", {"box": self.box})


def play(runner: Runner, env: Preset, split: str, tasks: Iterable[int], group: int) -> list[Episode]:
    """Play `group` episodes of each task: the same task and seed, other samples."""
    specs = [
        EpisodeSpec(env.env_id, env.env_kwargs, seed=k, split=split, index=k, group=k)
        for k in tasks
        for _ in range(group)
    ]
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


def main() -> list[float]:
    """Train, print a line every fourth step and return the success on held-out tasks, before, meanwhile and after."""
    learner = warm_start(BoxesEnv, steps=500, styles={"default": 0.5, "guess": 0.5})
    model, tokenizer, env = learner.model, learner.tokenizer, learner.preset
    policy = TransformersPolicy(model, {tokenizer.eos_token_id}, tokenizer.pad_token_id)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98))
    runner, curve = Runner(policy, tokenizer, BUDGET), []
    for step in range(STEPS + 1):
        if step % 4 == 0:
            held_out = play(runner, env, "test", range(TEST), group=1)
            curve.append(sum(bool(episode.success) for episode in held_out) / TEST)
            print(f"step {step:3}: {curve[-1]:4.0%} of {TEST} held-out tasks {'#' * round(40 * curve[-1])}", flush=True)
        episodes = play(runner, env, "train", range(step * TASKS, (step + 1) * TASKS), GROUP)
        grpo_loss(model, episodes, tokenizer.pad_token_id).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    runner.close()
    return curve


if __name__ == "__main__":
    main()
