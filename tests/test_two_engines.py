"""Two engines at once: two model servers, or one vLLM inside each of two ranks. Training is that of one process.

Requests are spread over the servers, and both get the weights.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")
pytest.importorskip("aiohttp")

from engines import EOS, disturb, largest_difference, make_requests, run  # noqa: E402
from model_server import model_servers  # noqa: E402
from trainer_tools import distance, in_ranks, make_trainer, model_folder, weights  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from agent_gym.policies.vllm.server import VLLMServerPolicy  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]
CONTEXT = 256


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    folder = tmp_path_factory.mktemp("servers")
    logs = [folder / "one.txt", folder / "two.txt"]
    with model_servers(Path(model_folder()), logs, context=CONTEXT) as servers:
        yield [url for url, _ in servers]


def served(urls: list[str]) -> list[int]:
    """How many requests each server has answered so far, by its own count."""
    counts = []
    for url in urls:
        with urllib.request.urlopen(url + "/metrics", timeout=30) as answer:
            found = re.findall(r"^vllm:request_success_total\{.*\} (\S+)$", answer.read().decode(), re.MULTILINE)
        counts.append(int(sum(map(float, found))))
    return counts


def trained(folder: str, options: dict[str, Any]) -> tuple[Any, list[float], str]:
    """Train two steps; return the weights, the largest gaps between trainer's and engine's logprobs, and the engine."""
    trainer = make_trainer(folder, policy=None, max_steps=2, **options)
    trainer.train()
    policy = trainer.runner.policy
    policy.close()
    logs = trainer.state.log_history
    gaps = [log["sampling/logp_difference_max"] for log in logs if "sampling/logp_difference_max" in log]
    return weights(trainer.model), gaps, type(policy).__name__


@pytest.mark.parametrize("transfer", ["files", "broadcast"])
def test_requests_are_spread_and_both_have_the_weights(urls: list[str], transfer: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder())
    policy = VLLMServerPolicy(urls, [EOS], context=CONTEXT, transfer=transfer)
    alone = [VLLMServerPolicy([url], [EOS], context=CONTEXT) for url in urls]
    requests = make_requests(24)
    try:
        for seed in range(2):
            disturb(model, seed)
            policy.sync(model.named_parameters())
            before = served(urls)
            finished = run(policy, requests)
            shares = [now - then for now, then in zip(served(urls), before, strict=True)]
            assert sum(shares) == 24 and min(shares) >= 8
            assert largest_difference(model, requests, finished) < 1e-5
            # Each by itself, without a sync of its own.
            for one in alone:
                assert largest_difference(model, requests, run(one, requests)) < 1e-5
    finally:
        for one in (policy, *alone):
            one.close()


@pytest.mark.parametrize("transfer", ["files", "broadcast"])
def test_one_rank_and_two_ranks_train_as_without_servers(urls: list[str], transfer: str, tmp_path: Path) -> None:
    here, *_ = trained(str(tmp_path / "here"), {"per_device_train_batch_size": 8})
    options = {"layout": "server", "vllm_server_base_url": ",".join(urls), "weights_transfer": transfer}
    before = served(urls)
    one, *_ = trained(str(tmp_path / "one"), {**options, "per_device_train_batch_size": 8})
    middle = served(urls)
    pair = in_ranks(trained, 2, str(tmp_path / "two"), {**options, "per_device_train_batch_size": 4})
    after = served(urls)
    assert distance(here, one) < 1e-5
    assert distance(here, pair[0][0]) < 1e-5 and distance(pair[0][0], pair[1][0]) == 0.0
    # One rank uses both; of two ranks each keeps to one.
    assert min(m - b for m, b in zip(middle, before, strict=True)) > 0
    assert min(a - m for a, m in zip(after, middle, strict=True)) > 0


def test_two_ranks_with_an_engine_each_train_as_one_process(tmp_path: Path) -> None:
    here = {"per_device_train_batch_size": 8}
    plain, *_ = trained(str(tmp_path / "plain"), here)
    [(alone, *_)] = in_ranks(trained, 1, str(tmp_path / "one"), {**here, "use_vllm": True}, timeout_s=600)
    options = {"use_vllm": True, "per_device_train_batch_size": 4}
    (one, gaps, name), (other, *_) = in_ranks(trained, 2, str(tmp_path / "two"), options, timeout_s=600)
    assert name == "VLLMPolicy" and distance(one, other) == 0.0
    # The same tasks and seeds: the engines draw the same tokens, up to rounding of their logits.
    assert distance(one, alone) < 1e-5 and distance(one, plain) < 1e-5
    assert distance(one, weights(make_trainer(tmp_path / "fresh").model)) > 1e-3, "it trained"
    assert len(gaps) == 2 and max(gaps) < 1e-5
