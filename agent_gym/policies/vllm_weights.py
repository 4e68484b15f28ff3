"""New weights for a vLLM engine, wherever it runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from agent_gym.errors import RolloutError
from agent_gym.policies import vllm_cpu


def replace_weights(model_runner: Any, named_weights: Iterable[tuple[str, torch.Tensor]], *, on_cpu: bool) -> None:
    """Replace every weight of the model; the prefixes computed with the old ones are the caller's to forget.

    Args:
        model_runner: of a worker.
        named_weights: names as in the checkpoint, tensors on any device. Tied weights may come once or twice.
        on_cpu: whether the layers keep packed copies.

    Raises:
        RolloutError: if names or shapes are not those of the model, or do not cover it. Some weights may be replaced.
    """
    model = model_runner.get_model()
    wanted = {name for name, _ in model.named_parameters()}
    loaded: set[str] = set()
    load_weights = model.load_weights

    def recording_load(weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        loaded.update(load_weights(weights))
        return loaded

    # `reload_weights` only logs the names of weights that did not come, and keeps the old values for them. For
    # on-policy training that is a failure, so what came is counted here.
    model.load_weights = recording_load
    try:
        # Cloned, because a layer is processed when its last part has come, and by then a sharded trainer may have freed
        # the first.
        model_runner.reload_weights(
            weights_iterator=((name, weight.detach().clone()) for name, weight in named_weights)
        )
    except (ValueError, KeyError, AttributeError) as error:
        raise RolloutError(f"vLLM does not know the trainer's weights: {error}") from error
    finally:
        del model.load_weights
    if missing := sorted(wanted - loaded):
        raise RolloutError(f"the trainer sent no weights for {', '.join(missing[:5])} ({len(missing)} in all)")
    if on_cpu:
        vllm_cpu.repack_head(model)
