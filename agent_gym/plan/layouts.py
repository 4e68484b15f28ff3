"""Which ways to lay a run out over GPUs there are, and what has room where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agent_gym.errors import ConfigError
from agent_gym.plan import memory
from agent_gym.plan.shapes import ModelShape

MIN_EPISODES = 8
"""Whole episodes that an engine's cache must hold: below that it decodes almost one by one."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """One layout and its bytes per GPU.

    Attributes:
        layout: "colocate" or "server".
        config: the name for `--accelerate_config`.
        lora_rank: rank of the adapters, 0 for full training.
        trainers: GPUs that train; with colocate they sample, too.
        servers: GPUs that only sample.
        tensor_parallel: GPUs over which one server spreads the model.
        state: training state of a training GPU.
        activations: at the peak of a forward and backward pass.
        head: logits and the head's gradients.
        engine: the engine's weights and what it needs besides the cache, on a sampling GPU.
        cache: room for the key/value cache on a sampling GPU; negative where there is none.
        cache_tokens: tokens that the caches of all engines hold.
        episodes: episodes of the largest size that they hold at once.
        usable: bytes of a GPU that may be planned with.
    """

    layout: str
    config: str
    lora_rank: int
    trainers: int
    servers: int
    tensor_parallel: int
    state: memory.TrainingState
    activations: int
    head: int
    engine: float
    cache: float
    cache_tokens: int
    episodes: int
    usable: float

    @property
    def training(self) -> float:
        """Bytes of a training GPU at the peak of an update, while a colocated engine sleeps."""
        return self.state.total + self.activations + self.head

    @property
    def obstacle(self) -> str | None:
        """What does not fit, None if all does."""
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
) -> list[Estimate]:
    """Estimate every layout, those to be preferred first: all weights before adapters, whole copies before shares.

    Args:
        shape: the model.
        gpus: how many GPUs of one machine.
        gpu_bytes: memory of each.
        episode_tokens: longest episode.
        micro_batch_tokens: tokens of a forward and backward pass.
        lora_rank: rank of the adapters where there are any.

    Raises:
        ConfigError: for numbers with which nothing can run.
    """
    numbers = {"gpus": gpus, "episode_tokens": episode_tokens, "micro_batch_tokens": micro_batch_tokens}
    for name, value in {**numbers, "lora_rank": lora_rank}.items():
        if value < 1:
            raise ConfigError(f"{name} is {value}; it must be at least 1")
    usable = gpu_bytes * (1 - memory.RESERVED_SHARE)
    tokens = max(micro_batch_tokens, episode_tokens)  # a longer row is alone in its pass
    estimates = []
    for config, rank, trainers, servers in _layouts(gpus, lora_rank):
        state = memory.training_state(shape, config, trainers, rank)
        tensor_parallel = 1
        while servers and memory.engine_weights(shape) / tensor_parallel > usable and 2 * tensor_parallel <= servers:
            tensor_parallel *= 2
        engine = memory.engine_weights(shape) / tensor_parallel + memory.ENGINE_RESERVED
        cache = usable - engine - (0 if servers else state.total)
        samplers = servers // tensor_parallel * tensor_parallel if servers else trainers
        cache_tokens = int(max(0.0, cache) * samplers // memory.cache_per_token(shape))
        residual = 4 if config in ("single", "ddp") and not rank else 2
        estimates.append(
            Estimate(
                layout="server" if servers else "colocate",
                config=config,
                lora_rank=rank,
                trainers=trainers,
                servers=servers,
                tensor_parallel=tensor_parallel,
                state=state,
                activations=memory.activations(shape, tokens, residual),
                head=memory.head(shape, tokens, trained=not rank),
                engine=engine,
                cache=cache,
                cache_tokens=cache_tokens,
                episodes=cache_tokens // episode_tokens,
                usable=usable,
            )
        )
    return estimates


def _layouts(gpus: int, lora_rank: int) -> Iterator[tuple[str, int, int, int]]:
    """Accelerate config, rank of the adapters, training GPUs, sampling GPUs."""
    splits = [(gpus, 0)]
    if gpus > 1:
        splits += dict.fromkeys([(gpus - gpus // 2, gpus // 2), (gpus - 1, 1)])
    for rank in (0, lora_rank):
        for trainers, servers in splits:
            # Adapters have so little state that sharing it out without the weights is of no use.
            several = ("ddp", "zero3") if rank else ("ddp", "zero2", "fsdp2", "zero3")
            for config in several if trainers > 1 else ("single",):
                yield config, rank, trainers, servers
