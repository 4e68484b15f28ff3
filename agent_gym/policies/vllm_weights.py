"""New weights for a vLLM engine, wherever it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from agent_gym.errors import RolloutError
from agent_gym.policies import vllm_cpu


def replace_weights(worker: Any, named_weights: Iterable[tuple[str, torch.Tensor]], *, on_cpu: bool) -> None:
    """Replace every weight of the model; the prefixes computed with the old ones are the caller's to forget.

    Args:
        worker: a `vllm.v1.worker.gpu_worker.Worker`. Its own method is called, and not that of its model runner: it
            sets vLLM's configuration, which mixtures of experts and quantized layers ask for when weights come.
        named_weights: names as in the checkpoint, tensors on any device. Tied weights may come once or twice.
        on_cpu: whether the layers keep packed copies.

    Raises:
        RolloutError: if names or shapes are not those of the model, or do not cover it. Some weights may be replaced.
        Exception: what reading `named_weights` raises.
    """
    model = worker.model_runner.get_model()
    wanted = {name for name, _ in model.named_parameters()}
    loaded: set[str] = set()
    load_weights = model.load_weights

    def recording_load(weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        loaded.update(load_weights(weights))
        return loaded

    # `reload_weights` only logs the names of weights that did not come, and keeps the old values for them. For
    # on-policy training that is a failure, so what came is counted here.
    model.load_weights = recording_load
    failures: list[Exception] = []

    def read() -> Iterator[tuple[str, torch.Tensor]]:
        try:
            for name, weight in named_weights:
                # Cloned, because a layer is processed when its last part has come, and by then a sharded trainer may
                # have freed the first.
                yield name, weight.detach().clone()
        except Exception as error:
            failures.append(error)
            raise

    try:
        worker.reload_weights(weights_iterator=read())
    except Exception as error:  # each layer has errors of its own
        if failures:
            raise failures[0] from None
        raise RolloutError(f"vLLM does not know the trainer's weights: {type(error).__name__}: {error}") from error
    finally:
        del model.load_weights
    if missing := sorted(wanted - loaded):
        raise RolloutError(f"the trainer sent no weights for {', '.join(missing[:5])} ({len(missing)} in all)")
    if on_cpu:
        vllm_cpu.repack_head(model)
