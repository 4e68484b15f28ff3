"""`RowTrainer`: a variable number of rows through TRL's fixed number of steps.

TRL's trainer knows one row per prompt and one forward pass per micro-step, but an episode gives as many rows as it
needs. This class holds the path from a batch of rows to an optimizer step. The rows come from the subclass.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch.nn.functional import pad
from transformers.integrations import is_deepspeed_zero3_enabled
from trl.trainer.utils import use_adapter

from agent_gym.distributed import gather, gather_items
from agent_gym.errors import ConfigError, RolloutError
from agent_gym.images import Vision
from agent_gym.rollout import derive_seed
from agent_gym.threads import use_cores
from agent_gym.trainers.batch import Batch, common_prefixes, micro_batches, select_rows
from agent_gym.trainers.checkpoints import WholeCheckpoints
from agent_gym.trainers.config import AgentGRPOConfig
from agent_gym.trainers.forward import Scores, aux_loss_of, fast_forward, padded_layout
from agent_gym.trainers.hook import Hook
from agent_gym.trainers.losses import (
    RunningMeans,
    cispo_loss,
    clipped_loss,
    engine_ratio,
    kl_estimate,
    probability_ratio,
    reinforce_loss,
)
from agent_gym.trainers.model_probes import can_share_prefixes, check_packing, probe_fused_head, probe_router
from agent_gym.trainers.noise import leave_training_mode, remove_noise
from agent_gym.trainers.trl_base import GRPOTrainer

_STEPS = "micro_steps"  # a key in the trainer's state, which checkpoints keep


class RowTrainer(WholeCheckpoints, GRPOTrainer):
    """TRL's GRPO trainer over batches of rows; see `batch.collate`."""

    # The types of attributes that the base classes set.
    args: AgentGRPOConfig
    model: Any
    num_iterations: int
    _buffered_inputs: Any
    vision: Vision | None = None  # for a model that reads images
    has_critic = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        use_cores(self.model)
        self._policy_loss = self.args.policy_loss
        self._chunks = cast(int, self.args.steps_per_generation)
        self._generated: Batch = {}
        self._generated_in = -1  # the number of the rollout
        self._generated_at = -1  # the optimizer steps before the rollout
        # The abilities of the model, found by probes before the first rollout (model_probes.py, noise.py).
        self.shares_prefixes = False  # whether rows share their prefixes in a forward pass
        self.fused_lm_head = True  # whether TRL's fused output layer gives the model's logprobs
        self._noisy = False  # whether the model has noise in training mode that no setting removes
        self._micro_step = 0  # counted within the optimizer step
        self._share = 1.0  # the share of the minibatch's tokens in the present piece
        self._means = RunningMeans()

    @property
    def hooks(self) -> list[Hook]:
        """The hooks among the callbacks, in the order of their calls."""
        return [callback for callback in self.callback_handler.callbacks if isinstance(callback, Hook)]

    @property
    def kept(self) -> dict[str, Any]:
        """The values that checkpoints keep in addition to the fields of the trainer's state."""
        return cast(dict[str, Any], self.state.stateful_callbacks)

    @property
    def _position(self) -> int:
        """The micro-steps of the whole run so far; a resumed run includes the micro-steps before its checkpoint."""
        # The micro-steps are counted, because the last step of an epoch has fewer if `gradient_accumulation_steps` does
        # not divide the epoch.
        return self.kept.get(_STEPS, self.state.global_step * self.args.gradient_accumulation_steps)

    @_position.setter
    def _position(self, count: int) -> None:
        self.kept[_STEPS] = count

    @property
    def _uses(self) -> int:
        """The number of micro-steps that train on one rollout."""
        return self._chunks * self.num_iterations

    @property
    def _rollout_number(self) -> int:
        """The number of rollouts before the present one; by it a resumed run samples like an uninterrupted one."""
        return self._position // self._uses

    def record(self, values: Mapping[str, float]) -> None:
        """Add numbers to the next log, either of training or of the present evaluation."""
        for name, value in values.items():
            self._metrics["train" if self.model.training else "eval"][name].append(value)

    def create_accelerator_and_postprocess(self) -> None:
        """Let FSDP2 compute in bf16 without rounding its outputs.

        accelerate would cast the outputs to bf16, which are logprobs and values here, and sum gradients in bf16.
        """
        super().create_accelerator_and_postprocess()
        plugin = self.accelerator.state.fsdp_plugin if self.is_fsdp_enabled else None
        if plugin is not None and plugin.fsdp_version != 2:
            raise ConfigError(f"fsdp_version is {plugin.fsdp_version}; allowed: 2, as in --accelerate_config fsdp2")
        if plugin is not None and plugin.mixed_precision_policy is not None:
            # Without a dtype, outputs keep the computed one: bf16 between layers, fp32 for the loss.
            plugin.mixed_precision_policy = dataclasses.replace(
                plugin.mixed_precision_policy, reduce_dtype=torch.float32, output_dtype=None
            )

    @property
    def sharded(self) -> bool:
        """Whether each process holds only a part of the weights (FSDP2, ZeRO-3)."""
        return self.accelerator.num_processes > 1 and (self.is_fsdp_enabled or is_deepspeed_zero3_enabled())

    # The scoring of tokens.

    def plain_forward(self, model: Any, batch: Batch, **kwargs: Any) -> Scores:
        """Score the sampled tokens of padded rows from all logits; `fast_forward` gives the same numbers.

        A token is predicted at the place before it.
        """
        mask = batch["action_mask"]
        with self.accelerator.autocast():
            output = model(**padded_layout(self, batch).inputs, use_cache=False, **kwargs)
        logprobs = (output.logits[:, :-1].float() / self.temperature).log_softmax(-1)
        labels = torch.where(mask, batch["input_ids"], 0)[:, 1:]
        logps = logprobs.gather(-1, labels[..., None])[..., 0]
        entropy = -(logprobs.exp() * logprobs).nan_to_num(0.0).sum(-1)
        logps, entropy = (torch.where(mask, pad(numbers, (1, 0)), 0.0) for numbers in (logps, entropy))
        return Scores(logps, entropy, aux_loss_of(output))

    def _forward(self, model: Any, batch: Batch, *, critic: bool | None = None, **kwargs: Any) -> Scores:
        """Score the sampled tokens of rows, with values of the critic if there is one, or as `critic` says."""
        return fast_forward(self, model, batch, critic=self.has_critic if critic is None else critic, **kwargs)

    def _score(self, model: Any, batch: Batch, **kwargs: Any) -> Scores:
        """Run `_forward` over all rows without gradient, in micro-batches, for the columns that updates need."""
        columns: dict[str, torch.Tensor] = {}
        self._leave_training_mode()
        with torch.no_grad():
            for index in self._pieces(batch):
                scores = self._forward(model, select_rows(batch, index, self.accelerator.device), **kwargs)
                for name, part in {"logps": scores.logps, "values": scores.values}.items():
                    if part is not None:
                        shape = *batch["input_ids"].shape, *part.shape[2:]
                        rows = columns.setdefault(name, part.new_zeros(shape, device="cpu"))
                        rows[index, : part.size(1)] = part.cpu()
        return Scores(**columns)

    def _leave_training_mode(self) -> None:
        """Leave training mode if it adds noise; only the outermost module stays marked as training."""
        if self._noisy:
            leave_training_mode(self.accelerator.unwrap_model(self.model))

    def _score_rows(self, batch: Batch) -> None:
        if self._scores_first:
            self._take_scores(batch, self._score(self.model, batch))
        if self.beta != 0.0 and self.ref_model is not None:
            batch["ref_logps"] = self._score(self.ref_model, batch, critic=False).logps
        elif self.beta != 0.0:
            with self.initial_adapter():
                batch["ref_logps"] = self._score(self.model, batch, critic=False).logps

    def initial_adapter(self) -> contextlib.AbstractContextManager[None]:
        """Disable the model's adapter, or use the copy with which training began if TRL keeps one."""
        model = self.accelerator.unwrap_model(self.model)
        return use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None)

    @property
    def _scores_first(self) -> bool:
        """Whether rows are scored before the first update on them.

        With a single update per rollout the current policy is the old one, and the loss uses its own logprobs.
        """
        several = self.args.gradient_accumulation_steps % self._uses != 0
        needed = self.kl_in_reward or any(hook.needs_old_logps for hook in self.hooks)
        return (several and not self._engine_scores) or needed

    @property
    def kl_in_reward(self) -> bool:
        """Whether the KL to the reference model is a part of the reward, before credit is given."""
        return self.beta != 0.0 and self.args.kl_in == "reward"

    def _take_scores(self, batch: Batch, scores: Scores) -> None:
        batch["old_logps"] = scores.logps

    @property
    def _engine_differs(self) -> bool:
        """Whether the engine's logprobs differ from the loss's logprobs, by its kernels or its weights' age."""
        return self.use_vllm or self.args.max_staleness > 0

    @property
    def _engine_scores(self) -> bool:
        """Whether the old logprobs of the probability ratio are the logprobs under which the engine sampled."""
        corrects = self._engine_differs and self.vllm_importance_sampling_correction
        return corrects and self.args.vllm_importance_sampling_mode == "in_ratio"

    def _add_engine_ratio(self, batch: Batch, logps: torch.Tensor) -> None:
        """Weight tokens by the ratio of the trainer's probability to the engine's (`losses.engine_ratio`)."""
        if not (self._engine_differs and self.vllm_importance_sampling_correction) or self._engine_scores:
            return
        mask, engine, args = batch["action_mask"], batch["engine_logps"], self.args
        mode, low = args.vllm_importance_sampling_mode, args.vllm_importance_sampling_clip_min
        ratio = engine_ratio(logps, engine, mask, mode=mode, low=None, high=None)
        bounded = engine_ratio(logps, engine, mask, mode=mode, low=low, high=args.vllm_importance_sampling_clip_max)
        batch["engine_ratio"] = bounded
        self._means.add("sampling/bounded", (bounded != ratio).expand_as(mask), mask)

    # The loss: a weighted sum over tokens.

    def total(self, counts: torch.Tensor) -> torch.Tensor:
        """Sum numbers that lie on the CPU over all processes, which exchange them by their devices."""
        return self.accelerator.reduce(counts.to(self.accelerator.device), reduction="sum").cpu()

    @property
    def _loss_scale(self) -> float:
        """The factor of the weighted sum.

        The weights of a rollout sum to 1 over all processes. An optimizer step sees a part of the rollout, and
        processes average.
        """
        share = self._chunks / self.current_gradient_accumulation_steps
        return self.accelerator.num_processes * share

    def _compute_loss(self, model: Any, inputs: Batch) -> torch.Tensor:
        router = {"output_router_logits": True} if self.aux_loss_enabled else {}
        return self._loss(self._forward(model, inputs, **router), inputs)

    def _loss(self, scores: Scores, inputs: Batch) -> torch.Tensor:
        """Return the policy's loss on some rows, as their share of the optimizer step."""
        for hook in self.hooks:
            inputs = hook.before_loss(inputs)
        args, mask, weights = self.args, inputs["action_mask"], inputs["weights"]
        assert scores.entropy is not None
        old_logps = inputs.get("old_logps", scores.logps.detach())
        if self._engine_scores:  # if the engine has no logprob, the ratio is 1
            old_logps = torch.where(inputs["engine_logps"].isfinite(), inputs["engine_logps"], old_logps)
        ratio = probability_ratio(scores.logps, old_logps, inputs["step_of"], args.importance_sampling_level)
        if self._policy_loss == "reinforce":
            policy = reinforce_loss(ratio, scores.logps, inputs["advantages"])
        elif self._policy_loss == "cispo":
            policy = cispo_loss(ratio, scores.logps, inputs["advantages"], self.epsilon_high)
        else:
            policy = clipped_loss(ratio, inputs["advantages"], self.epsilon_low, self.epsilon_high, args.delta)
        if "engine_ratio" not in inputs:
            self._add_engine_ratio(inputs, scores.logps.detach())
        per_token = policy.loss * inputs.get("engine_ratio", 1.0)
        if self.beta != 0.0:
            kl = kl_estimate(scores.logps, inputs["ref_logps"])
            self._means.add("kl", kl, mask)
            if args.kl_in == "loss":
                # The sample came from the old policy. With the ratio as weight, the gradient is that of the present KL.
                per_token = per_token + self.beta * kl * (ratio if args.use_bias_correction_kl else 1.0)
        per_token = per_token - args.entropy_coef * scores.entropy
        loss = (per_token * weights).sum() * self._loss_scale
        if scores.aux_loss is not None and self.aux_loss_enabled:
            # The load balance of experts is a mean over tokens, and is computed once per piece of the batch.
            aux_loss = scores.aux_loss * self._share
            loss = loss + self.router_aux_loss_coef * aux_loss / self.current_gradient_accumulation_steps
            self._means.add("aux_loss", scores.aux_loss[None], torch.ones_like(mask[:1, 0]))
        self._means.add("entropy", scores.entropy, mask)
        self._means.add("clip_ratio/low_mean", policy.low, mask)
        self._means.add("clip_ratio/high_mean", policy.high, mask)
        self._means.add("clip_ratio/region_mean", policy.low | policy.high, mask)
        for hook in self.hooks:
            term = hook.on_loss(scores, inputs)
            loss = loss if term is None else loss + term
        return loss

    @property
    def policy_is_old(self) -> bool:
        """Whether the policy is still the one that sampled the rollout."""
        return self.state.global_step == self._generated_at

    # A variable number of rows through a fixed number of steps.

    def _prepare_inputs(self, generation_batch: Any) -> Batch:
        chunks = self._chunks
        if self._generated_in < 0:
            self.fused_lm_head = probe_fused_head(self)
            self._noisy = remove_noise(self)
            probe_router(self)
            self.shares_prefixes = can_share_prefixes(self)
            if self.args.packing:
                check_packing(self)
        if self._position % self._uses == 0 or self._generated_in != self._rollout_number:
            self._generated_at = self.state.global_step
            self._generated = self._generate_and_score_completions(generation_batch)
            self._generated_in = self._rollout_number
            self._buffered_inputs = None
        if self._buffered_inputs is None or self._position % chunks == 0:
            # Each pass over the rows has a new permutation, by the position in the run and not by global state.
            seed = derive_seed(self.args.seed, self.state.global_step, self._position % self._uses)
            self._buffered_inputs = [select_rows(self._generated, index) for index in self._minibatches(chunks, seed)]
        return self._buffered_inputs[self._position % chunks]

    def _minibatches(self, count: int, seed: int) -> list[torch.Tensor]:
        """Divide the rows into minibatches at random.

        All processes get minibatches of the same number of rows, since they must run the same number of passes.
        """
        owner = self._generated["episode_of"]
        rows = (owner >= 0).nonzero().view(-1)
        order = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]
        minibatches = [part.sort().values for part in order.tensor_split(count)]
        dummy = len(owner) - 1
        if self.args.micro_batch_tokens is not None:  # then `_pieces` equalizes passes, and needs a dummy
            return [pad(index, (0, 1), value=dummy) for index in minibatches]
        size = max(1, *gather_items([len(index) for index in minibatches]))
        return [pad(index, (0, size - len(index)), value=dummy) for index in minibatches]

    def _pieces(self, batch: Batch) -> list[torch.Tensor]:
        """Divide rows into the micro-batches of one forward pass each, equally many on all processes.

        With `micro_batch_tokens`, a process that needs fewer gets micro-batches of the dummy row, the last one.
        """
        args, lengths = self.args, batch["attention_mask"].sum(1).tolist()
        by_tokens = args.micro_batch_tokens is not None
        owned = (batch["episode_of"] >= 0).nonzero().view(-1).tolist() if by_tokens else list(range(len(lengths)))
        order = common = None
        if self.shares_prefixes:  # lexicographic order brings rows with a common prefix together
            ids = batch["input_ids"].numpy().astype(">i4")  # so that bytes have the order of numbers
            order = sorted(range(len(owned)), key=lambda i: ids[owned[i]].tobytes())
            common = common_prefixes([ids[row][: lengths[row]] for row in owned], order) if by_tokens else None
        pieces = micro_batches(
            [lengths[row] for row in owned],
            max_rows=args.micro_batch_size,
            max_tokens=args.micro_batch_tokens,
            packed=by_tokens and args.packing,
            order=order,
            common=common,
        )
        if not by_tokens:
            return [torch.tensor(piece) for piece in pieces]
        filler = [torch.tensor([len(lengths) - 1])] * (max(1, *gather(len(pieces))) - len(pieces))
        return [torch.tensor([owned[i] for i in piece]) for piece in pieces] + filler

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Return the gradient's norm; a norm that is not finite stops the run before it reaches the weights."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        # In fp16 an overflow is a part of the method: the scaler skips the step and lowers its scale.
        if norm is not None and self.accelerator.scaler is None and not math.isfinite(norm):
            raise RolloutError(
                f"the gradient norm is {float(norm)} at step {self.state.global_step}; nothing was updated"
            )
        return norm

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Run all rows of a minibatch, one micro-batch after the other, and return the summed loss, detached."""
        started = time.perf_counter()
        model.train()
        chunk = self._prepare_inputs(inputs)
        self._leave_training_mode()
        generated = time.perf_counter()
        pieces = self._pieces(chunk)
        attended = chunk["attention_mask"].sum(1) * (chunk["episode_of"] >= 0)
        sync = self.accelerator.sync_gradients
        if self.is_fsdp_enabled:
            # Gradients that wait for an exchange are whole in each process, which FSDP2 exists to avoid. Every pass
            # shards them, even where the base class delays the exchange to accumulate steps.
            model.set_requires_gradient_sync(True)
        total = torch.zeros((), device=self.accelerator.device)
        for i, index in enumerate(pieces):
            last = i + 1 == len(pieces)
            self._share = (attended[index].sum() / attended.sum().clamp(min=1)).item()
            # Without FSDP only the last backward pass of the step exchanges gradients between processes.
            with contextlib.nullcontext() if last or self.is_fsdp_enabled else self.accelerator.no_sync(model):
                self.accelerator.gradient_state._set_sync_gradients(sync and last)
                with self.compute_loss_context_manager():
                    loss = self.compute_loss(model, select_rows(chunk, index, self.accelerator.device))
                self.accelerator.backward(loss, **({"scale_wrt_gas": False} if self.is_deepspeed_enabled else {}))
            total += loss.detach()
        if not torch.isfinite(total):
            raise RolloutError(f"the loss is {total.item()} at step {self.state.global_step}; nothing was updated")
        found = self._means.pop(self.accelerator)
        found["time/update"] = time.perf_counter() - generated
        for hook in self.hooks:
            self.record(hook.after_backward(found, found["time/update"]))
        self._position += 1
        self._micro_step = 0 if sync else self._micro_step + 1
        self.record(found)
        self._current_train_step_time += time.perf_counter() - started
        if sync:
            self.record({"step_time": self._current_train_step_time})
            self._current_train_step_time = 0.0
        return total
