"""New weights for the model of a vLLM engine, in parts, at the engine's side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from agent_gym.errors import RolloutError
from agent_gym.policies.vllm import process
from agent_gym.policies.vllm.buckets import Weights


class Reload:
    """Replaces every weight of the model of a `vllm.v1.worker.gpu_worker.Worker`, in as many parts as there are.

    vLLM builds a layer anew when the last of its weights has come. The steps are the ones of `Worker.reload_weights`,
    which wants all weights in one call. Errors of reading the weights are raised here. After any error, or where a
    reload was never finished, the next one begins from the start.
    """

    def __init__(self, worker: Any) -> None:
        from vllm.model_executor.model_loader.reload import layerwise, sanitize

        self._worker, self._layerwise, self._sanitize = worker, layerwise, sanitize.sanitize_layer_refs
        self._model = worker.model_runner.get_model()
        self._loaded: set[str] = set()
        with self._configured():
            for layer in self._model.modules():
                info = layerwise.get_layerwise_info(layer)
                info.loaded_weights.clear()
                info.load_numel = 0
            self._finalize()  # puts the weights of layers that an earlier reload has not completed back in place
            self._wanted = {name for name, _ in self._model.named_parameters()}
            layerwise.initialize_layerwise_reload(self._model)

    def load(self, named_weights: Weights) -> None:
        """Replace weights; they must stay as they are until `finish` or `keep`.

        `RolloutError` if names or shapes differ from the model's.
        """
        failures: list[Exception] = []

        def read() -> Iterator[tuple[str, torch.Tensor]]:
            try:
                for name, weight in named_weights:
                    yield name, weight.detach()
            except Exception as error:
                failures.append(error)
                raise

        try:
            with self._configured():
                self._loaded |= self._model.load_weights(read())
        except Exception as error:  # each layer has its own errors
            if failures:
                raise failures[0] from None
            raise RolloutError(f"vLLM does not know the trainer's weights: {type(error).__name__}: {error}") from error

    def keep(self, bucket: torch.Tensor) -> None:
        """Copy weights in a bucket that wait for the rest of its layer, since the bucket will be overwritten."""
        begin, end = bucket.data_ptr(), bucket.data_ptr() + bucket.nbytes
        for layer in self._model.modules():
            for _, call in self._layerwise.get_layerwise_info(layer).loaded_weights:
                for name, value in call.arguments.items():
                    if isinstance(value, torch.Tensor) and begin <= value.data_ptr() < end:
                        call.arguments[name] = value.clone()

    def finish(self) -> None:
        """End the reload, on a CPU with packed copies as well; `RolloutError` if weights have not come."""
        runner = self._worker.model_runner
        with self._configured():
            self._finalize()
        self._let_go()
        for reset in (runner.reset_lora_state, runner.reset_encoder_cache, runner.reset_mm_cache):
            reset()
        # vLLM reports the weights of experts as the weights of the layer around them.
        if missing := sorted(n for n in self._wanted if n.replace(".routed_experts.", ".") not in self._loaded):
            raise RolloutError(f"the trainer sent no weights for {', '.join(missing[:5])} ({len(missing)} in all)")
        if runner.device.type == "cpu":
            process.repack(self._model)

    def _let_go(self) -> None:
        """Take the layers out of vLLM's records of them, which it keeps as long as the layers live: none ever died."""
        for layer in self._model.modules():
            for tensors in self._layerwise.get_layerwise_info(layer).restore_metadata:
                for tensor in tensors.values():
                    if hasattr(tensor, "weight_loader"):
                        tensor.weight_loader = self._layerwise._get_original_loader(tensor)
                    self._sanitize(tensor, layer)

    @contextmanager
    def _configured(self) -> Iterator[None]:
        from vllm.config import set_current_vllm_config

        # Mixtures of experts and quantized layers ask for the configuration when weights come.
        with set_current_vllm_config(self._worker.vllm_config), torch.no_grad():
            yield

    def _finalize(self) -> None:
        self._layerwise.finalize_layerwise_reload(self._model, self._worker.model_runner.model_config)
