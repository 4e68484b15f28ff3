"""How much memory a training run needs, before anything is loaded: `agent-gym plan`.

Arithmetic only, kept by hand: calculators elsewhere know neither the layouts of our trainer (an engine that shares its
GPUs) nor TRL's tiles of logits. models.py has the shapes of models. Nothing imports torch.

P is the number of the model's parameters, T of the trained ones (P, or the adapters'), N for the training processes.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent_gym.plan.models import ModelShape, find_shape

__all__ = ["Estimate", "ModelShape", "find_shape", "plan"]

# Tokens and vocabulary entries whose logits TRL computes at once (trl 1.16, `kernels/chunked_logprob.py`).
HEAD_TILE = (4096, 32768)
LIVE_PARAMETERS = 10**9  # that DeepSpeed holds gathered at once (`stage3_max_live_parameters`)
BUCKET = 5 * 10**8  # parameters of a communication bucket of ZeRO-2 (`reduce_bucket_size`, `allgather_bucket_size`)
RESERVED_SHARE = 0.08  # of a GPU for CUDA contexts, NCCL's buffers and gaps between blocks: assumed, not measured here
ENGINE_RESERVED = 2 * 2**30  # bytes of vLLM besides weights and cache (CUDA graphs, a batch): assumed, not measured
MIN_EPISODES = 8  # whole episodes that an engine's cache must hold: below that it decodes almost one by one


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The memory of a training process from step to step, in bytes."""

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
    - FSDP2: two layers (the one that computes and the next), gathered in bf16. Other tensors that are whole for a
      moment stay with the phase of a pass in which it is, see `activations` and `head`.

    With LoRA the base is loaded in bf16 and has neither gradients nor optimizer state.

    `sharding` is "single", "ddp", "zero2", "zero3" or "fsdp2"; `processes` is N; rank 0 means full training.
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
    shares = (2 * p + 4 * t if lora_rank else 4 * p) / n  # fsdp2
    return TrainingState(shares + 2 * 2 * shape.layer, 4 * t / n, 8 * t / n)


def adapter_inputs(shape: ModelShape) -> int:
    """Bytes per token that the adapters of one layer keep under autocast: a bf16 copy of each projection's input.

    PEFT casts the input to the adapter's float32 and autocast casts it back, once per adapter: of queries, keys and
    values, of the output, of the MLP's two halves, and of their product (peft 0.21, `tuners/lora/layer.py`).
    """
    return 2 * (5 * shape.hidden + shape.query_width + shape.mlp)


def layer_activations(shape: ModelShape, residual: int = 2) -> int:
    """Bytes per token that one layer keeps for its backward pass, in bf16 with attention that stores no scores.

    The list of arXiv:2205.05198, section 4.1, for a gated MLP and grouped heads: inputs of both norms, in fp32, and
    their outputs; inputs of the projections; queries, keys, values, the attention's output; in the MLP the gate before
    and after its activation, the other half and their product. Where queries and keys are normalised, that norm keeps
    its input in fp32 and its output. `residual` is the bytes of a number in the residual stream: 2 for bf16 weights, 4
    under autocast.
    """
    norms = 2 * (4 + residual) * shape.hidden
    inputs = 2 * 2 * shape.hidden
    attention = 2 * (2 * shape.query_width + 2 * shape.kv_width)
    head_norms = (4 + 2) * (shape.query_width + shape.kv_width) * shape.qk_norm
    return norms + inputs + attention + head_norms + 4 * 2 * shape.mlp


def layer_inputs(shape: ModelShape, tokens: int, residual: int = 2) -> int:
    """Bytes that gradient checkpointing keeps: the input of each layer (arXiv:2205.05198, section 5)."""
    return tokens * shape.layers * residual * shape.hidden


def activations(
    shape: ModelShape, tokens: int, sharding: str, residual: int = 2, *, adapters: bool = False, waiting: int = 0
) -> int:
    """Bytes while the backward pass of a layer runs, besides the state.

    The layer has all of its activations, with gradients of two of the MLP's widest. `tokens` counts the padding of the
    micro-batch. Under FSDP2 the layer's gradient is whole in bf16, and that of the head in fp32, on its way to its
    shares: it is let go of when the next one leaves (torch 2.13, `_fsdp_param_group.py`). `adapters` are float32 ones
    under autocast; ZeRO has them in bf16, and casts nothing. Where the head is the embedding, its gradient waits in the
    weight's type until the backward pass has reached the embedding (`waiting`).
    """
    kept = layer_activations(shape, residual) + (adapter_inputs(shape) if adapters else 0)
    whole = 2 * shape.layer + 4 * shape.embedding if sharding == "fsdp2" else 0
    return layer_inputs(shape, tokens, residual) + tokens * (kept + 2 * 2 * shape.mlp) + whole + waiting


def head(shape: ModelShape, tokens: int, sharding: str, residual: int = 2, *, trained: bool = True) -> int:
    """Bytes while the backward pass of the head runs, besides the state.

    A tile of logits, and in fp32 the gradients of the hidden states and, if trained, of the head. TRL never has the
    logits of all tokens at once: without its tiles they would take 4 bytes x tokens x vocabulary. Under FSDP2 the head
    is gathered in bf16, and its gradient is whole in bf16, too.
    """
    tile = 2 * min(tokens, HEAD_TILE[0]) * min(shape.vocab, HEAD_TILE[1])
    gradients = 4 * tokens * shape.hidden + (4 * shape.embedding if trained else 0)
    whole = 2 * 2 * shape.embedding if sharding == "fsdp2" else 0
    return layer_inputs(shape, tokens, residual) + tile + gradients + whole


def cache_per_token(shape: ModelShape) -> int:
    """Bytes of the engine's key/value cache per token: a key and a value per layer and kv head, in bf16."""
    return 2 * 2 * shape.layers * shape.kv_width


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """One layout and its bytes per GPU."""

    layout: str  # "colocate" or "server"
    config: str  # the name for `--accelerate_config`
    lora_rank: int  # 0 for full training
    trainers: int  # GPUs that train; with colocate they sample, too
    servers: int  # GPUs that only sample
    tensor_parallel: int  # GPUs over which one server spreads the model
    state: TrainingState  # of a training GPU
    activations: int  # while the backward pass is in a layer
    head: int  # while it is in the head
    engine: float  # the engine's weights and its other needs besides the cache, on a sampling GPU
    cache: float  # room for the key/value cache on a sampling GPU; negative where there is none
    cache_tokens: int  # that the caches of all engines hold
    episodes: int  # of the largest size that they hold at once
    usable: float  # bytes of a GPU that may be planned with

    @property
    def training(self) -> float:
        """Bytes of a training GPU at the peak of an update, while a colocated engine sleeps."""
        return self.state.total + max(self.activations, self.head)

    @property
    def obstacle(self) -> str | None:
        """The parts that do not fit, None if all fit."""
        if self.training > self.usable:
            return "the update"
        if self.cache < 0:
            return "the engine"
        return "the cache" if self.episodes < MIN_EPISODES * self.engines else None

    @property
    def engines(self) -> int:
        """Copies of the model that sample."""
        return self.trainers if self.layout == "colocate" else self.servers // self.tensor_parallel


def plan(
    shape: ModelShape, gpus: int, gpu_bytes: float, *, episode_tokens: int, micro_batch_tokens: int, lora_rank: int
) -> list[MemoryEstimate]:
    """Estimate every layout, the preferred ones first: all weights before adapters, whole copies before shares.

    Args:
        shape: the model.
        gpus: how many GPUs of one machine.
        gpu_bytes: memory of each.
        episode_tokens: longest episode.
        micro_batch_tokens: tokens of a forward and backward pass.
        lora_rank: rank of the adapters where there are any.
    """
    splits = [(gpus, 0)]  # GPUs that train, and that only sample
    if gpus > 1:
        splits += dict.fromkeys([(gpus - gpus // 2, gpus // 2), (gpus - 1, 1)])
    # Adapters have so little state that sharing it out without the weights is of no use.
    layouts = [
        (config, rank, *split)
        for rank, several in ((0, ("ddp", "zero2", "fsdp2", "zero3")), (lora_rank, ("ddp", "zero3")))
        for split in splits
        for config in (several if split[0] > 1 else ("single",))
    ]
    usable, weights = gpu_bytes * (1 - RESERVED_SHARE), 2 * shape.parameters  # the engine's, in bf16
    # A longer row is alone in its pass, and a row that shares its opening may exceed the limit (`micro_batches`).
    tokens = max(micro_batch_tokens, episode_tokens) + episode_tokens
    estimates = []
    for config, rank, trainers, servers in layouts:
        state = training_state(shape, config, trainers, rank)
        tensor_parallel = 1
        # Until an engine has room for its episodes next to the weights; vLLM gives each GPU as many whole heads.
        while 2 * tensor_parallel <= servers and shape.heads % (2 * tensor_parallel) == 0:
            room = tensor_parallel * (usable - ENGINE_RESERVED) - weights
            if room >= MIN_EPISODES * episode_tokens * cache_per_token(shape):
                break
            tensor_parallel *= 2
        engine = weights / tensor_parallel + ENGINE_RESERVED
        cache = usable - engine - (0 if servers else state.total)
        samplers = servers // tensor_parallel * tensor_parallel if servers else trainers
        cache_tokens = int(max(0.0, cache) * samplers // cache_per_token(shape))
        residual = 4 if config in ("single", "ddp") and not rank else 2
        adapters = bool(rank) and config in ("single", "ddp")
        waiting = 0 if rank or not shape.tied or config == "fsdp2" else residual * shape.embedding
        estimates.append(
            MemoryEstimate(
                layout="server" if servers else "colocate",
                config=config,
                lora_rank=rank,
                trainers=trainers,
                servers=servers,
                tensor_parallel=tensor_parallel,
                state=state,
                activations=activations(shape, tokens, config, residual, adapters=adapters, waiting=waiting),
                head=head(shape, tokens, config, residual, trained=not rank),
                engine=engine,
                cache=cache,
                cache_tokens=cache_tokens,
                episodes=cache_tokens // episode_tokens,
                usable=usable,
            )
        )
    return estimates
