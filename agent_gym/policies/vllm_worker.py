"""What a vLLM server needs beside vLLM: workers that take the trainer's weights, from files or from a broadcast.

`agent-gym serve model` gives this class to vLLM as `--worker-extension-cls`, which mixes it into each of its workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from agent_gym.errors import RolloutError
from agent_gym.policies import vllm_cpu
from agent_gym.policies.vllm_weights import replace_weights
from agent_gym.policies.weight_broadcast import Channel, reach_store

SHARDS = "*.safetensors"


class WeightReceiver:
    """A part of `vllm.v1.worker.gpu_worker.Worker`; its methods are called by `POST /collective_rpc`.

    What fails is returned as {"error": why}: an exception would end the server.
    """

    model_runner: Any
    parallel_config: Any
    _channel: Channel | None = None

    def describe(self) -> dict[str, str]:
        """Say on what kind of device the model is."""
        return {"device": self.model_runner.device.type}

    def receive_files(self, folder: str) -> dict[str, str]:
        """Replace the model's weights by those in a folder.

        Args:
            folder: its safetensors files together hold every weight once.
        """
        return self._receive(_read(Path(folder)))

    def join_trainer(self, host: str, port: int, first_rank: int, size: int, backend: str) -> dict[str, str]:
        """Become a member of the trainer's group, in place of that of an earlier trainer.

        Args:
            host: where the members meet.
            port: its port.
            first_rank: the rank of this server's first worker.
            size: members of the group.
            backend: "nccl" or "gloo".
        """
        self._channel = None
        config = self.parallel_config
        rank = first_rank + config.data_parallel_index * config.world_size + config.rank
        try:
            self._channel = Channel(reach_store(host, port), rank, size, backend)
        except Exception as error:
            return {"error": f"no group with the trainer at {host}: {_said(error)}"}
        return {}

    def receive_broadcast(self) -> dict[str, str]:
        """Replace the model's weights by those that the trainer sends to the group."""
        if self._channel is None:
            return {"error": "the server is in no group with a trainer"}
        weights = self._channel.receive()
        answer = self._receive(weights)
        try:
            # The trainer sends to the end, also what this server has refused.
            for _ in weights:
                pass
        except Exception as error:
            answer = answer or {"error": _said(error)}
        return answer

    def _receive(self, weights: Iterator[tuple[str, torch.Tensor]]) -> dict[str, str]:
        on_cpu = self.model_runner.device.type == "cpu"
        try:
            if on_cpu:
                vllm_cpu.install_sampler(self.model_runner)
                torch.compiler.set_stance("force_eager")  # see vllm_cpu.eager
            replace_weights(self, weights, on_cpu=on_cpu)
        except Exception as error:
            return {"error": _said(error)}
        return {}


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, RolloutError) else f"{type(error).__name__}: {error}"


def _read(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    files = sorted(folder.glob(SHARDS))
    if not files:
        raise RolloutError(f"the server sees no weights in {folder}; trainer and server must share that folder")
    for file in files:
        with safe_open(file, framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118  (it is no dictionary)
                yield name, shard.get_tensor(name)
