"""Bytes per GPU: training state, activations, the head, the engine's cache.

P stands for the model's parameters, T for the trained ones (P, or those of the adapters), N for the training processes.
Where a number is a library's default or its documented behaviour, it is named beside it; two are assumptions.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent_gym.plan.shapes import ModelShape

HEAD_TILE = (4096, 32768)
"""Tokens and vocabulary entries whose logits TRL computes at once (trl 1.16, `kernels/chunked_logprob.py`)."""
LIVE_PARAMETERS = 10**9
"""Parameters that DeepSpeed holds gathered at once (`stage3_max_live_parameters`)."""
BUCKET = 5 * 10**8
"""Parameters of a communication bucket of DeepSpeed's ZeRO-2 (`reduce_bucket_size`, `allgather_bucket_size`)."""
RESERVED_SHARE = 0.08
"""Assumed share of a GPU for CUDA contexts, NCCL's buffers and gaps between blocks. Not measured here."""
ENGINE_RESERVED = 2 * 2**30
"""Assumed bytes of vLLM besides weights and cache: CUDA graphs, activations of a batch. Not measured here."""


@dataclass(frozen=True, slots=True)
class TrainingState:
    """What a training process holds from step to step, in bytes."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """Their sum."""
        return self.weights + self.gradients + self.optimizer


def training_state(shape: ModelShape, sharding: str, processes: int, lora_rank: int = 0) -> TrainingState:
    """Weights, gradients and the state of AdamW on one GPU.

    Mixed precision costs 16 bytes per trained parameter, in all of its forms: 2 + 2 + 12 where weights and gradients
    are bf16 and the optimizer keeps an fp32 copy (ZeRO, arXiv:1910.02054, section 3.1), 4 + 4 + 8 where they are fp32.
    ZeRO-2 shares out gradients and optimizer, ZeRO-3 and FSDP2 the weights, too (sections 5.3 to 5.5). On top come:

    - autocast: bf16 copies of fp32 weights, 2 bytes each, for as long as a forward pass runs (`torch.autocast` caches);
    - DDP with several processes: buckets as large as the gradients (`gradient_as_bucket_view=False`);
    - ZeRO-2: two buckets; ZeRO-3: the parameters that are gathered at the moment;
    - FSDP2: two layers (the one that computes and the next), embedding and head, gathered in bf16. Gradients are shared
      out in every pass (`trainers/rows.py`): those of two layers are whole for a moment, in bf16 and in fp32 for the
      sum, and those of embedding and head in bf16 until the pass ends.

    With LoRA the base is loaded in bf16 and has neither gradients nor optimizer state.

    Args:
        shape: the model.
        sharding: "single", "ddp", "zero2", "zero3" or "fsdp2".
        processes: N.
        lora_rank: rank of the adapters, 0 for full training.
    """
    p, n = shape.parameters, processes
    t = shape.lora_parameters(lora_rank) if lora_rank else p
    if sharding in ("single", "ddp"):
        weights: float = 2 * p + 4 * t if lora_rank else (4 + 2) * p
        return TrainingState(weights, (8 if sharding == "ddp" else 4) * t, 8 * t)
    if sharding == "zero2":
        weights = 2 * (p + t) if lora_rank else 2 * p
        return TrainingState(weights, 2 * t / n + 2 * 2 * min(t, BUCKET), 12 * t / n)
    if sharding == "zero3":
        weights = (2 * (p + t) if lora_rank else 2 * p) / n + 2 * min(p, LIVE_PARAMETERS)
        return TrainingState(weights, 2 * t / n, 12 * t / n)
    if sharding == "fsdp2":
        ends = shape.embedding * (1 if shape.tied else 2)
        shares = (2 * p + 4 * t if lora_rank else 4 * p) / n
        whole = min(6 * t, 6 * 2 * shape.layer + 2 * ends)
        return TrainingState(shares + 2 * (2 * shape.layer + ends), 4 * t / n + whole, 8 * t / n)
    raise ValueError(f"unknown sharding {sharding!r}")


def layer_activations(shape: ModelShape, residual: int = 2) -> int:
    """Bytes per token that one layer keeps for its backward pass, in bf16 with attention that stores no scores.

    The list of arXiv:2205.05198, section 4.1, for a gated MLP and grouped heads: inputs of both norms, in fp32, and
    what they return; inputs of the projections; queries, keys, values, the attention's output; in the MLP the gate
    before and behind its activation, the other half and their product. Where queries and keys are normalised, that
    norm keeps its input in fp32 and what it returns.

    Args:
        shape: the model.
        residual: bytes of a number in the residual stream: 2 for bf16 weights, 4 under autocast.
    """
    norms = 2 * (4 + residual) * shape.hidden
    inputs = 2 * 2 * shape.hidden
    attention = 2 * (2 * shape.query_width + 2 * shape.kv_width)
    head_norms = (4 + 2) * (shape.query_width + shape.kv_width) * shape.qk_norm
    return norms + inputs + attention + head_norms + 4 * 2 * shape.mlp


def activations(shape: ModelShape, tokens: int, residual: int = 2) -> int:
    """Bytes of activations at the peak of a pass with gradient checkpointing.

    Each layer keeps its input only (arXiv:2205.05198, section 5: full recomputation), and the layer whose backward pass
    runs has all of its own, with gradients of the MLP's three widest.

    Args:
        shape: the model.
        tokens: tokens of the micro-batch, padding included.
        residual: see `layer_activations`.
    """
    inputs = shape.layers * residual * shape.hidden
    return tokens * (inputs + layer_activations(shape, residual) + 3 * 2 * shape.mlp)


def head(shape: ModelShape, tokens: int, trained: bool = True) -> int:
    """Bytes at the head: a tile of logits, and in fp32 the gradients of the hidden states and, if trained, of the head.

    TRL never has the logits of all tokens at once: without its tiles they would take 4 bytes x tokens x vocabulary.
    """
    tile = 2 * min(tokens, HEAD_TILE[0]) * min(shape.vocab, HEAD_TILE[1])
    return tile + 4 * tokens * shape.hidden + (4 * shape.embedding if trained else 0)


def cache_per_token(shape: ModelShape) -> int:
    """Bytes of the engine's key/value cache per token: a key and a value per layer and kv head, in bf16."""
    return 2 * 2 * shape.layers * shape.kv_width


def engine_weights(shape: ModelShape) -> int:
    """Bytes of the engine's weights in bf16."""
    return 2 * shape.parameters
