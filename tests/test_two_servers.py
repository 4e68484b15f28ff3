"""Two model servers at once: requests are spread, both get the weights, and training is that without servers."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("trl")
pytest.importorskip("aiohttp")

from engines import EOS, disturb, largest_difference, make_requests, run  # noqa: E402
from model_server import model_servers  # noqa: E402
from test_server_layout import trained  # noqa: E402
from trainer_tools import distance, in_ranks, model_folder  # noqa: E402
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


def served(url: str) -> int:
    """How many requests a server has answered so far, by its own count."""
    with urllib.request.urlopen(url + "/metrics", timeout=30) as answer:
        lines = answer.read().decode()
    return int(sum(float(n) for n in re.findall(r"^vllm:request_success_total\{.*\} (\S+)$", lines, re.MULTILINE)))


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
            before = [served(url) for url in urls]
            finished = run(policy, requests)
            shares = [served(url) - count for url, count in zip(urls, before, strict=True)]
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
    here, _ = trained(str(tmp_path / "here"), {"per_device_train_batch_size": 8})
    options = {"layout": "server", "vllm_server_base_url": ",".join(urls), "weights_transfer": transfer}
    before = [served(url) for url in urls]
    one, _ = trained(str(tmp_path / "one"), {**options, "per_device_train_batch_size": 8})
    middle = [served(url) for url in urls]
    pair = in_ranks(trained, 2, str(tmp_path / "two"), {**options, "per_device_train_batch_size": 4})
    after = [served(url) for url in urls]
    assert distance(here, one) < 1e-5
    assert distance(here, pair[0][0]) < 1e-5 and distance(pair[0][0], pair[1][0]) == 0.0
    # One rank uses both; of two ranks each keeps to one.
    assert min(m - b for m, b in zip(middle, before, strict=True)) > 0
    assert min(a - m for a, m in zip(after, middle, strict=True)) > 0
