"""`RowTrainer`: a variable number of rows through TRL's fixed number of steps.

TRL's trainer knows one row per prompt and one forward pass per micro-step. Episodes give as many rows as they must, of
very different lengths. This class holds what lies between a batch of rows and an optimizer step: which tokens are
scored, how rows are shuffled and cut, and when processes exchange gradients. Where the rows come from is its
subclass's business (`_generate_and_score_completions`).
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch
from trl import GRPOTrainer
from trl.trainer.utils import use_adapter

from agent_gym.errors import RolloutError
from agent_gym.rollout import derive_seed
from agent_gym.trainers.batching import Batch, take
from agent_gym.trainers.config import AgentGRPOConfig
from agent_gym.trainers.correction import engine_ratio


class RowTrainer(GRPOTrainer):
    """TRL's GRPO trainer over batches of rows, see `batching.collate`."""

    # What the base classes set, as this class knows it.
    args: AgentGRPOConfig
    model: Any
    num_iterations: int
    _buffered_inputs: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Start without rows."""
        super().__init__(*args, **kwargs)
        self._generated: Batch = {}
        self._loss_inputs: Batch | None = None
        self._micro_step = 0  # within the optimizer step
        self._n_pieces = 1

    @property
    def _rollout_number(self) -> int:
        """How many rollouts came before the present one.

        Counted from the position in the run, so that a resumed run samples what the straight one would have, and in
        rollouts, so that gradient accumulation over the same episodes does not change what is sampled.
        """
        position = self.state.global_step * self.args.gradient_accumulation_steps + self._micro_step
        return position // (self.args.chunks * self.num_iterations)

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"

    # Which tokens are scored, and by which weights.

    def _add_reference_logps(self, batch: Batch) -> None:
        """Score the rows before any update, as far as the loss will need it."""
        args = self.args
        # With a single update per rollout the current policy is the old one, and the loss takes its own logprobs.
        if args.gradient_accumulation_steps % (args.chunks * self.num_iterations) != 0:
            batch["old_per_token_logps"] = self._score(self.model, batch)
            self._add_engine_ratio(batch, batch["old_per_token_logps"])
        if self.beta != 0.0:
            with self._reference_model() as model:
                batch["ref_per_token_logps"] = self._score(model, batch)

    @contextlib.contextmanager
    def _reference_model(self) -> Any:
        if self.ref_model is not None:
            yield self.ref_model
            return
        model = self.accelerator.unwrap_model(self.model)
        with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
            yield self.model

    def _score(self, model: Any, batch: Batch) -> torch.Tensor:
        """(B, T) logprobs without gradient, in micro-batches."""
        width = batch["completion_ids"].size(1)
        parts = []
        with torch.no_grad():
            for index in torch.arange(len(batch["prompt_ids"])).split(self.args.micro_batch_size):
                part = take(batch, index)
                ids = torch.cat([part["prompt_ids"], part["completion_ids"]], dim=1)
                attended = torch.cat([part["prompt_mask"], part["completion_mask"]], dim=1)
                logps = self._sampled_logps(model, ids, attended, part["tool_mask"]).log_probs
                parts.append(torch.nn.functional.pad(logps, (0, width - logps.size(1))))
        return torch.cat(parts)

    def _sampled_logps(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        action_mask: torch.Tensor,
        **kwargs: Any,
    ) -> Any:
        """Run the model and score the sampled tokens only.

        The world's tokens are context and nothing else: they have no label, so that no logprob of theirs exists that a
        loss could pick up by mistake, and on a GPU the output layer skips them.

        Returns:
            TRL's fused output with log_probs and entropy (B, T), both 0 outside the action mask.
        """
        labels = torch.cat([torch.zeros_like(input_ids[:, :1]), action_mask], dim=1)
        labels = input_ids.masked_fill(labels == 0, -100)
        with self.accelerator.autocast():
            return model(
                input_ids=input_ids, attention_mask=attention_mask, labels=labels, fused_lm_head=True, **kwargs
            )

    # The loss, with one addition to TRL's.

    def _compute_loss(self, model: Any, inputs: Batch) -> torch.Tensor:
        self._loss_inputs = inputs
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self._loss_inputs = None

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Score the rows of the loss that is being computed. TRL's other arguments are for images."""
        inputs = self._loss_inputs
        assert inputs is not None
        router = {"output_router_logits": True} if compute_aux_loss else {}
        output = self._sampled_logps(model, input_ids, attention_mask, inputs["tool_mask"], **router)
        if "importance_sampling_ratio" not in inputs:
            # TRL runs a forward pass of its own to compare the engine with the trainer. While the policy is still the
            # one that sampled, the pass of the loss has just given the same numbers.
            self._add_engine_ratio(inputs, output.log_probs.detach())
        aux_loss = output.aux_loss
        if aux_loss is not None:
            # The load balance of a mixture of experts is a mean over rows, and TRL adds it once per call.
            aux_loss = aux_loss / self._n_pieces
        return output.log_probs, output.entropy, aux_loss

    def _add_engine_ratio(self, batch: Batch, logps: torch.Tensor) -> None:
        """Weight tokens by how much more likely the trainer finds them than the engine did; see correction.py."""
        if not (self.use_vllm and self.vllm_importance_sampling_correction):
            return
        mask, engine = batch["tool_mask"], batch["sampling_per_token_logps"]
        ratio = engine_ratio(
            logps,
            engine,
            mask,
            mode=self.vllm_importance_sampling_mode,
            low=self.vllm_importance_sampling_clip_min,
            high=self.vllm_importance_sampling_clip_max,
        )
        batch["importance_sampling_ratio"] = ratio
        metrics = self._metrics[self._mode]
        metrics["sampling/logp_difference_max"].append(((logps - engine) * mask).abs().max().item())
        metrics["sampling/ratio_mean"].append(((ratio * mask).sum() / mask.sum().clamp(min=1)).item())

    # Seams 2 and 3: a variable number of rows through a fixed number of steps.

    def _prepare_inputs(self, generation_batch: Any) -> Batch:
        chunks = self.args.chunks
        if not self._generated or self._step % (chunks * self.num_iterations) == 0:
            self._generated = self._generate_and_score_completions(generation_batch)
        if self._buffered_inputs is None or self._step % chunks == 0:
            # A new permutation for each pass over the rows, from the position in the run and not from global state.
            count = len(self._generated["prompt_ids"])
            seed = derive_seed(self.args.seed, self.state.global_step, self._step % (chunks * self.num_iterations))
            order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
            self._buffered_inputs = [take(self._generated, index) for index in order.chunk(chunks)]
        return self._buffered_inputs[self._step % chunks]

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Run one optimizer micro-step: all rows of the chunk, `micro_batch_size` at a time.

        Returns:
            The summed loss, detached.
        """
        started = time.perf_counter()
        model.train()
        chunk = self._prepare_inputs(inputs)
        generated = time.perf_counter()
        # Neighbours of about equal length waste little padding; the loss is a sum over rows, so order is free.
        order = chunk["completion_mask"].sum(1).argsort(descending=True)
        pieces = order.split(self.args.micro_batch_size)
        self._n_pieces = len(pieces)
        sync = self.accelerator.sync_gradients
        total = torch.zeros((), device=self.accelerator.device)
        for i, index in enumerate(pieces):
            last = i + 1 == len(pieces)
            # Only the last backward pass of the step exchanges gradients between processes.
            with contextlib.nullcontext() if last else self.accelerator.no_sync(model):
                self.accelerator.gradient_state._set_sync_gradients(sync and last)
                with self.compute_loss_context_manager():
                    loss = self.compute_loss(model, take(chunk, index))
                self.accelerator.backward(loss, **({"scale_wrt_gas": False} if self.is_deepspeed_enabled else {}))
            total += loss.detach()
        if not torch.isfinite(total):
            raise RolloutError(f"the loss is {total.item()} at step {self.state.global_step}; nothing was updated")
        self._step += 1
        self._micro_step = 0 if sync else self._micro_step + 1
        now = time.perf_counter()
        self._metrics["train"]["time/update"].append(now - generated)
        self._current_train_step_time += now - started
        if self._step % self.current_gradient_accumulation_steps == 0:
            self._metrics["train"]["step_time"].append(self._current_train_step_time)
            self._current_train_step_time = 0.0
        return total
