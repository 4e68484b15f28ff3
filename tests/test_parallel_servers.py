"""A mixture of experts, and models that several workers of a server hold in parts or in copies: what they are given."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("aiohttp")

import tiny  # noqa: E402
from engines import EOS, disturb, largest_difference, make_requests, run  # noqa: E402
from model_server import model_server  # noqa: E402
from trainer_tools import mixture_of_experts  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from agent_gym.errors import RolloutError  # noqa: E402
from agent_gym.policies import Policy, VLLMPolicy  # noqa: E402
from agent_gym.policies.vllm.server import VLLMServerPolicy  # noqa: E402
from agent_gym.trainers.engine import named_weights  # noqa: E402

pytestmark = pytest.mark.vllm
CONTEXT = 256
MODELS: dict[str, Any] = {
    "dense": lambda folder: str(tiny.make_tiny_model(folder, num_attention_heads=4, num_key_value_heads=2)),
    "experts": mixture_of_experts,
}


def check_syncs(policy: Policy | Any, model: Any, seed: int) -> None:
    """Hand over changed weights twice; each time the engine's logprobs must be those of the model."""
    requests, before = make_requests(8), None
    for step in range(2):
        disturb(model, seed + step)
        policy.sync(named_weights(model))
        finished = run(policy, requests)
        assert largest_difference(model, requests, finished) < 1e-5
        assert finished != before
        before = finished


@pytest.mark.slow
def test_a_mixture_of_experts_is_given_new_weights(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(mixture_of_experts(tmp_path), dtype=torch.float32)
    with closing(VLLMPolicy(tmp_path, [EOS], context=CONTEXT, kv_cache_gib=0.1)) as policy:
        check_syncs(policy, model, 0)


# vLLM's CPU build takes new weights of experts in one worker only: those of a part have another shape than it expects.
IN_PARTS = pytest.mark.xfail(raises=RolloutError, strict=True, reason="shapes differ for experts in parts, on a CPU")
KINDS = ["dense", pytest.param("experts", marks=IN_PARTS)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["--tensor-parallel-size", "--data-parallel-size"])
def test_two_workers_are_given_new_weights(kind: str, way: str, tmp_path: Path) -> None:
    folder = MODELS[kind](tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with model_server(Path(folder), tmp_path / "log.txt", context=CONTEXT, further=[way, "2"]) as (url, _):
        for seed, transfer in enumerate(("files", "broadcast")):
            with closing(VLLMServerPolicy([url], [EOS], context=CONTEXT, transfer=transfer)) as policy:
                check_syncs(policy, model, 10 * seed)
