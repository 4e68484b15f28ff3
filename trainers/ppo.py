"""`AgentPPOTrainer`: the same episodes, rows and losses as `AgentGRPOTrainer`, with a critic.

The critic adds these parts:

    scoring before any update     one pass gives old logprobs and old values, the same for all epochs
    credit                        a GAE estimator (estimators/gae.py)
    loss                          policy loss + vf_coef x clipped value loss, one forward and backward pass
    optimizer                     a separate learning rate and gradient clip for the critic
    checkpoints                   the policy's folder is a plain Hugging Face model, with the critic in critic/
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import TrainerCallback
from trl import SyncRefModelCallback

from agent_gym.errors import ConfigError
from agent_gym.trainers.batch import Batch
from agent_gym.trainers.config import AgentPPOConfig
from agent_gym.trainers.credit import Estimate, Timeline
from agent_gym.trainers.critic import PREFIX, attach, load_critic, make_critic, policy_only, save_critic
from agent_gym.trainers.grpo import AgentGRPOTrainer
from agent_gym.trainers.losses import value_loss
from agent_gym.trainers.resumed import best_here
from agent_gym.trainers.rows import Scores


class AgentPPOTrainer(AgentGRPOTrainer):
    """Train a language model on an environment by PPO (arXiv:1707.06347) with a critic.

    Arguments and errors are as in `AgentGRPOTrainer`. `args` is an `AgentPPOConfig`, and `optimizers` must not hold an
    optimizer.
    """

    _tag_names = ["trl", "agent-gym", "ppo"]
    _name = "AgentPPO"
    config_class = AgentPPOConfig
    has_critic = True
    args: AgentPPOConfig

    def __init__(self, model: Any, env: str | None = None, args: AgentPPOConfig | None = None, **kwargs: Any) -> None:
        if args is not None and not isinstance(args, AgentPPOConfig):
            raise ConfigError(f"args is of class {type(args).__name__}; AgentPPOTrainer takes AgentPPOConfig")
        if kwargs.get("optimizers", (None, None))[0] is not None:
            raise ConfigError(
                "optimizers has an optimizer, which was made before the critic and would never train it: leave it, and "
                "set learning_rate, critic_learning_rate and optim"
            )
        settings = AgentPPOConfig if args is None else args  # the class holds the defaults
        init: Any = args.model_init_kwargs if args is not None and isinstance(model, str) else None
        # The critic is made before TRL puts an adapter into the model, and so starts from the plain weights.
        critic = make_critic(model, settings.critic, **(init or {}))
        super().__init__(model, env, args, **kwargs)
        if self.is_deepspeed_enabled and self.args.critic_warmup_steps:
            raise ConfigError("critic_warmup_steps does not work with DeepSpeed, which steps all parameters at once")
        if self.args.gradient_checkpointing and critic.backbone is not None:
            critic.backbone.gradient_checkpointing_enable(self.args.gradient_checkpointing_kwargs)
        if critic.backbone is not None:
            # The critic is stored in fp32 for any dtype of the policy, even over a frozen base in bf16: updates of 1e-5
            # vanish in bf16 weights.
            critic.backbone.float()
        attach(self.model, critic.to(self.accelerator.device))
        self.add_callback(_FreezePolicy(self))
        if self.pop_callback(SyncRefModelCallback) and self.ref_model is not None:
            self.add_callback(_SyncPolicy(self.ref_model, self.accelerator))

    @property
    def warming_up(self) -> bool:
        """Whether only the critic learns at present."""
        return self.state.global_step < self.args.critic_warmup_steps

    @property
    def _scores_first(self) -> bool:
        return True

    def _take_scores(self, batch: Batch, scores: Scores) -> None:
        super()._take_scores(batch, scores)
        assert scores.values is not None
        # The value of the state in which a token was sampled is the value after the token before it.
        batch["old_values"] = pad(scores.values[:, :-1], (1, 0))

    def _evidence(self, batch: Batch, timeline: Timeline) -> dict[str, torch.Tensor]:
        return super()._evidence(batch, timeline) | {"values": timeline.read(batch["old_values"])}

    def _take_estimate(self, batch: Batch, timeline: Timeline, estimate: Estimate) -> None:
        super()._take_estimate(batch, timeline, estimate)
        assert estimate.returns is not None and estimate.value_mask is not None
        batch["returns"] = timeline.write(estimate.returns)
        # An episode that is left out of the policy's loss is left out of the critic's loss, too.
        batch["value_mask"] = timeline.write(estimate.value_mask) & (batch["weights"] > 0)
        batch["value_weights"] = self._weigh(batch, batch["value_mask"])
        self._log_critic(batch)

    def _log_critic(self, batch: Batch) -> None:
        """Log the quality of the critic before this update: 1 - Var(R - V) / Var(R) is 1 at best, 0 for a constant."""
        mask = batch["value_mask"]
        returns, errors = batch["returns"][mask], (batch["returns"] - batch["old_values"])[mask]
        sums = [torch.tensor(float(len(returns)))]
        sums += [part for values in (returns, errors) for part in (values.sum(), (values**2).sum())]
        count, r, rr, e, ee = self.total(torch.stack(sums).float()).tolist()
        if not count:
            return
        spread, missed = rr / count - (r / count) ** 2, ee / count - (e / count) ** 2
        explained = 1 - missed / spread if spread > 1e-8 else 0.0
        means = {"critic/return_mean": r / count, "critic/value_mean": (r - e) / count}
        self.record({"critic/explained_variance": explained, **means})

    def _loss(self, scores: Scores, inputs: Batch) -> torch.Tensor:
        assert scores.values is not None
        values, mask = pad(scores.values[:, :-1], (1, 0)), inputs["value_mask"]
        clip = self.args.cliprange_value
        error = value_loss(values, inputs["old_values"], inputs["returns"], clip)
        self._means.add("critic/loss", error, mask)
        if clip is not None:
            self._means.add("critic/clip_ratio", (values - inputs["old_values"]).abs() > clip, mask)
        critic_loss = (error * inputs["value_weights"]).sum() * self._loss_scale
        policy_loss = super()._loss(scores, inputs)
        # The loss is multiplied by 0 and not left out: processes wait for the gradient of every parameter.
        return self.args.vf_coef * critic_loss + policy_loss * (0.0 if self.warming_up else 1.0)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Give the critic a separate learning rate; schedules scale both rates."""
        if self.optimizer is not None:
            return super().create_optimizer(model)
        optimizer = super().create_optimizer(model)
        named = (self.model if model is None else model).named_parameters()
        critic = {id(parameter) for name, parameter in named if PREFIX in name}
        groups = []
        for group in optimizer.param_groups:
            for is_critic, rate in ((False, group["lr"]), (True, self.args.critic_learning_rate)):
                if members := [p for p in group["params"] if (id(p) in critic) == is_critic]:
                    groups.append({**group, "params": members, "lr": rate})
        optimizer.param_groups[:] = groups
        return optimizer

    def _clip_grad_norm(self, model: Any) -> Any:
        """Clip policy and critic separately, so that a critic with large errors does not shrink the policy's step."""
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            return super()._clip_grad_norm(model)  # both clip their shards as a whole
        inner = self.accelerator.unwrap_model(model)
        policy = [parameter for name, parameter in inner.named_parameters() if not name.startswith(PREFIX)]
        self.accelerator.unscale_gradients()  # for fp16, once: accelerate repeats it at each clip
        norm = torch.nn.utils.clip_grad_norm_(inner.critic.parameters(), self.args.max_grad_norm)
        self.record({"critic/grad_norm": float(norm)})
        return torch.nn.utils.clip_grad_norm_(policy, self.args.max_grad_norm)

    def _write_weights(self, folder: Path, state_dict: Any) -> None:
        model = self.accelerator.unwrap_model(self.model)
        critic, policy = model.critic.state_dict(), None
        if state_dict is not None:  # gathered from shards
            policy = {name: value for name, value in state_dict.items() if not name.startswith(PREFIX)}
            critic = {name.removeprefix(PREFIX): v for name, v in state_dict.items() if name.startswith(PREFIX)}
        with policy_only(model):
            super()._write_weights(folder, policy)
        if critic:
            save_critic(critic, folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with self._critic_apart(resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        self.state.best_model_checkpoint = best_here(self.state.best_model_checkpoint, Path(str(self.args.output_dir)))
        with self._critic_apart(str(self.state.best_model_checkpoint)):
            super()._load_best_model()

    @contextlib.contextmanager
    def _critic_apart(self, folder: str) -> Iterator[None]:
        """Load the policy alone, then the critic from its separate file; shards hold both."""
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            yield
            return
        inner = self.accelerator.unwrap_model(self.model)
        with policy_only(inner):
            yield
        load_critic(inner.critic, folder)


class _SyncPolicy(SyncRefModelCallback):
    """Moves the reference model to the policy (`sync_ref_model`) without the critic, which that model lacks."""

    accelerator: Any

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        with policy_only(self.accelerator.unwrap_model(kwargs["model"])):
            super().on_step_end(args, state, control, **kwargs)


class _FreezePolicy(TrainerCallback):
    """Keeps the policy fixed while the critic warms up, by dropping the policy's gradients.

    A gradient of zero is not enough. AdamW would still decay the weights, and it would count steps that make the first
    real step three times too long. AdamW skips a parameter without a gradient.
    """

    def __init__(self, trainer: AgentPPOTrainer) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if self._trainer.warming_up:
            for name, parameter in self._trainer.accelerator.unwrap_model(self._trainer.model).named_parameters():
                if not name.startswith(PREFIX):
                    parameter.grad = None
