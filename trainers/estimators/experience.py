"""What an advantage estimator sees: episodes as lists of steps, and steps as lists of the policy's own tokens.

Everything else is gone. Tokens of the world, padding and the cut into rows matter to the forward pass; they say
nothing about credit, and an estimator that never sees them cannot get them wrong. A rewritten context spreads an
episode over several rows, and here its tokens stand behind each other again, in the order in which they were sampled.

Shapes: N episodes, K steps of the longest, L sampled tokens of the longest. All tensors are padded on the right, live
on the CPU and are float64: they are small, and a recursion over thousands of tokens adds up its rounding errors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from agent_gym.errors import ConfigError


@dataclass(slots=True)
class Experience:
    """N finished episodes, failed ones left out.

    An episode whose machinery broke has no reward, which is not the same as 0, so it cannot be compared with others. It
    never gets here, and nothing here looks for NaN.

    Attributes:
        outcome: (N, K) reward of each step without its process terms, 0 in padding.
        process: (N, K) process reward of each step, already normalised, 0 in padding.
        penalty: (N, L) reward per token, here the KL penalty where that is part of the reward; else 0.
        step_mask: (N, K) True where there is a step.
        token_mask: (N, L) True where there is a token.
        step_of: (N, L) index of the step that sampled the token, rising along L; 0 in padding.
        terminated: (N,) True where the task itself ended; False where we stopped the episode.
        groups: (N,) which episodes answer the same task.
        values: (N, L) critic's value of the state before each token, None without a critic.
        last_values: (N,) critic's value of the state after the last token and the world's answer to it.
        anchors: (N, K) number of the state in which each step was taken; equal numbers are equal states (GiGPO).
        baselines: (N,) return of a greedy episode of the same task (ReMax), None where it was not played.
        sources: (N,) number of each episode's environment; what is scaled by the batch is scaled by the episodes of the
            same environment. None where there is one.
    """

    outcome: torch.Tensor
    process: torch.Tensor
    penalty: torch.Tensor
    step_mask: torch.Tensor
    token_mask: torch.Tensor
    step_of: torch.Tensor
    terminated: torch.Tensor
    groups: torch.Tensor
    values: torch.Tensor | None = None
    last_values: torch.Tensor | None = None
    anchors: torch.Tensor | None = None
    baselines: torch.Tensor | None = None
    sources: torch.Tensor | None = None

    def __post_init__(self) -> None:
        """Take numbers of any precision."""
        for name in ("outcome", "process", "penalty", "values", "last_values", "baselines"):
            if (given := getattr(self, name)) is not None:
                setattr(self, name, given.double())

    @property
    def step_penalty(self) -> torch.Tensor:
        """(N, K) the token penalties of each step, summed."""
        return self._sum_to_steps(self.penalty)

    @property
    def episode_returns(self) -> torch.Tensor:
        """(N,) what each episode earned, its process rewards left out."""
        return (self.outcome + self.step_penalty).sum(1)

    @property
    def step_rewards(self) -> torch.Tensor:
        """(N, K) all that a step earned."""
        return self.outcome + self.process + self.step_penalty

    @property
    def token_rewards(self) -> torch.Tensor:
        """(N, L) the same per token: what a step earned stands on its last token.

        A step without tokens cannot carry a reward, and a reward that is put on a masked token vanishes. So the reward
        of such a step goes to the last token before it, or to the first one if there is none before. An episode without
        any token teaches nothing, whatever it earned.
        """
        n_steps = self.outcome.size(1)
        # (N, K) number of tokens sampled up to the end of each step.
        ends = torch.zeros_like(self.outcome).scatter_add(1, self.step_of, self.token_mask.double()).cumsum(1).long()
        last = (ends - 1).clamp(min=0)
        rewards = torch.zeros_like(self.penalty)
        if n_steps and rewards.size(1):
            rewards.scatter_add_(1, last, (self.outcome + self.process) * self.step_mask)
        return (rewards + self.penalty) * self.token_mask

    @property
    def acting_steps(self) -> torch.Tensor:
        """(N, K) True at steps that sampled at least one token."""
        return self._sum_to_steps(torch.ones_like(self.penalty)) > 0

    @property
    def acting_rewards(self) -> torch.Tensor:
        """(N, K) `token_rewards` summed over each step: 0 at steps without tokens, whose reward went to a neighbour."""
        return self._sum_to_steps(self.token_rewards)

    @property
    def first_token_mask(self) -> torch.Tensor:
        """(N, L) True at the first token of each step."""
        before = torch.full_like(self.step_of[:, :1], -1)
        return self.token_mask & (self.step_of != torch.cat([before, self.step_of[:, :-1]], dim=1))

    @property
    def last_token_mask(self) -> torch.Tensor:
        """(N, L) True at the last token of each step."""
        after = torch.full_like(self.step_of[:, :1], -1)
        following = torch.where(self.token_mask, self.step_of, -1)[:, 1:]
        return self.token_mask & (self.step_of != torch.cat([following, after], dim=1))

    def to_tokens(self, per_step: torch.Tensor) -> torch.Tensor:
        """Give each token the number of its step: (N, K) to (N, L), 0 in padding."""
        return torch.where(self.token_mask, per_step.gather(1, self.step_of), 0.0)

    def to_steps(self, per_token: torch.Tensor) -> torch.Tensor:
        """Read a number at the first token of each step: (N, L) to (N, K), 0 for steps without tokens."""
        return self._sum_to_steps(per_token * self.first_token_mask)

    def _sum_to_steps(self, per_token: torch.Tensor) -> torch.Tensor:
        """(N, L) to (N, K), padding left out."""
        return torch.zeros_like(self.outcome).scatter_add(1, self.step_of, per_token * self.token_mask)


def required(tensor: torch.Tensor | None, name: str) -> torch.Tensor:
    """Return an optional tensor of an `Experience` that an estimator cannot do without.

    Raises:
        ConfigError: if it is None.
    """
    if tensor is None:
        raise ConfigError(
            f"this advantage estimator reads Experience.{name}, which is None; fill it in, or choose an estimator that "
            "does without (ESTIMATORS says what each needs)"
        )
    return tensor


@dataclass(slots=True)
class Estimate:
    """What an estimator returns.

    Attributes:
        advantages: (N, L) of each token, 0 in padding.
        returns: (N, L) what the critic should have said, None for estimators without a critic.
        value_mask: (N, L) True at the tokens where the critic is asked.
    """

    advantages: torch.Tensor
    returns: torch.Tensor | None = None
    value_mask: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Credit:
    """The settings of the estimators; each reads those that concern it.

    Attributes:
        gamma: discount per token.
        lam: lambda of the GAE over tokens.
        step_gamma: discount per step.
        step_lam: lambda of the GAE over steps.
        scale: what `grpo` and `gigpo` divide by: the standard deviation of the "group", of the "batch", or "none".
        whiten: whether the estimators with a critic and the two of REINFORCE++ bring their advantages to mean 0 and
            deviation 1 over the batch. In a mixture the batch is the episodes of the same environment, here and in
            `scale`.
        step_weight: weight of GiGPO's step advantage.
    """

    gamma: float = 1.0
    lam: float = 1.0
    step_gamma: float = 1.0
    step_lam: float = 1.0
    scale: str = "group"
    whiten: bool = True
    step_weight: float = 1.0
