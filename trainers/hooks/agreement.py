"""The engine and the loss have to agree on the logprobs of the sampled tokens.

Each token comes with the logprob under which the engine drew it, and the loss computes the same number again. In a
sound run the two differ by rounding only. They differ widely if a cache has lost its history, if the loss leaves out a
layer, if the loss has noise, or if the weights are others. Training then reinforces the tokens of another policy.
Therefore this hook compares the first rollout after a start or a resume, with every engine, and it stops training
before the first optimizer step if the difference is too large. The weights of this rollout are fresh even where later
rollouts may be stale. The metrics `sampling/*` are logged for every rollout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from agent_gym.distributed import gather_items
from agent_gym.errors import ConfigError
from agent_gym.policies.base import ScriptedPolicy
from agent_gym.policies.transformers import TransformersPolicy
from agent_gym.trainers.batch import Batch
from agent_gym.trainers.hook import Hook, RolloutBatch
from agent_gym.trainers.losses import engine_ratio, mismatch_kl

HALF = 10.0
"""Factor of the tolerance where the engine or the loss computes in 16 bits.

A bf16 number has 8 bits, so that a logit around 20 has an error of up to 0.06 in the engine and in the loss. The KL
grows with the square of the difference. A spread of 0.1 nats gives a KL of 0.005. A mixture of experts sends some
tokens to another expert and comes to about 0.01. A wrong history or architecture gives 0.5 or more.
"""


class Worst(NamedTuple):
    """The token on which the engine and the loss differ most."""

    difference: float
    token: int
    engine: float
    loss: float


class Agreement(Hook):
    """Compares the logprobs of the engine with the logprobs of the loss."""

    def __init__(self, tolerance: float | None) -> None:
        self._settled = tolerance is None
        self._worst: Worst | None = None

    def after_credit(self, rollout: RolloutBatch) -> None:
        if "old_logps" in rollout.batch:
            self.add(rollout.batch, rollout.batch["old_logps"])

    def on_loss(self, scores: Any, inputs: Batch) -> None:
        if "old_logps" not in inputs and self.trainer.policy_is_old:
            # The policy is still the one that sampled, so that this pass has computed the logprobs to compare.
            self.add(inputs, scores.logps.detach())

    def add(self, batch: Batch, logps: torch.Tensor) -> None:
        """Count rows whose logprobs `logps` (B, T) come from the weights that sampled the rows."""
        engine = batch["engine_logps"]
        known = batch["action_mask"] & ~engine.isnan()  # NaN where the engine gave no logprob
        means, mode = self.trainer._means, self.trainer.args.vllm_importance_sampling_mode
        mode = "token_truncate" if mode == "in_ratio" else mode
        ratio = engine_ratio(logps, engine, batch["action_mask"], mode=mode, low=None, high=None).expand_as(known)
        means.add("sampling/ratio_mean", ratio, known)
        means.add("sampling/kl", mismatch_kl(logps, engine, known), known)
        means.largest("sampling/ratio_max", ratio, known)
        gap = torch.where(known, logps - engine, 0.0).abs().nan_to_num(math.inf, math.inf)
        means.largest("sampling/logp_difference_max", gap, known)
        if not self._settled and known.any():
            place = int(gap.argmax())
            most, token, *both = (values.flatten()[place].item() for values in (gap, batch["input_ids"], engine, logps))
            self._worst = max(filter(None, (self._worst, Worst(most, int(token), *both))))

    def after_backward(self, metrics: Mapping[str, float], seconds: float) -> dict[str, float]:
        """Check the means of a micro-step over all processes, and stop every process if the first KL is too large.

        Raises:
            ConfigError: names the numbers, the likely causes and the cure.
        """
        self._check(metrics)
        return {}

    def _check(self, found: Mapping[str, float]) -> None:
        if isinstance(self.trainer.scheduler.policy, ScriptedPolicy):  # a script has no logprobs
            self._settled = True
        if self._settled or "sampling/kl" not in found:
            return
        self._settled = True
        allowed = self.trainer.args.engine_tolerance * (HALF if self._is_half() else 1.0)
        if not found["sampling/kl"] <= allowed:  # NaN stops training, too
            raise ConfigError(self._described(found, allowed))

    def _described(self, found: Mapping[str, float], allowed: float) -> str:
        trainer = self.trainer
        worst = max(filter(None, gather_items([self._worst])))
        text = trainer._tokenizer.decode([worst.token])
        model = trainer.accelerator.unwrap_model(trainer.model)
        dtype = str(model.dtype).removeprefix("torch.")
        return (
            f"engine and loss disagree on the first rollout: sampling/kl is {found['sampling/kl']:.3g} nats per token, "
            f"and engine_tolerance allows {allowed:g}. Logprobs differ by up to {worst.difference:.3g}, there at the "
            f"token {worst.token} ({text!r}): {worst.engine:.3f} from {engine_name(trainer)}, {worst.loss:.3f} in the "
            f"loss of {model.config.model_type!r} in {dtype}. Nothing was updated. Likely causes: an architecture that "
            "one of them reads otherwise (a recurrence, attention that is not causal, a cap or scale of logits), other "
            "weights or another dtype or quantization in the engine, a temperature of its own, noise in the loss. Try "
            "the other engine (use_vllm), the same dtype in both, or a newer version; engine_tolerance=None (on the "
            "command line inf) trains in spite of it"
        )

    def _is_half(self) -> bool:
        trainer = self.trainer
        model = trainer.accelerator.unwrap_model(trainer.model)
        # A server chooses its dtype: 16 bits on a GPU by default.
        served = trainer.args.layout == "server"
        quantized = getattr(model, "is_quantized", False)
        return bool(trainer.accelerator.native_amp or model.dtype != torch.float32 or quantized or served)


def engine_name(trainer: Any) -> str:
    """Return the name of the engine that sampled, in words."""
    policy = trainer.scheduler.policy
    if isinstance(policy, TransformersPolicy):
        return "the transformers engine"
    kinds = {
        "VLLMPolicy": "vLLM in this process",
        "VLLMChildPolicy": "vLLM in a process of its own",
        "VLLMServerPolicy": "a vLLM server",
    }
    return kinds.get(type(policy).__name__, f"the engine {type(policy).__name__}")


def attach(trainer: Any) -> None:
    """Attach always: `sampling/*` is logged for every rollout, and the first rollout is held to `engine_tolerance`."""
    trainer.add_callback(Agreement(trainer.args.engine_tolerance))
