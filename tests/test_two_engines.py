"""Two model servers at once: requests are spread over them, both get the weights, and training is the same."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")
pytest.importorskip("aiohttp")

from model_server import model_servers  # noqa: E402
from trainer_tools import distance, in_ranks, make_trainer, model_folder, weights  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.vllm]
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


def trained(folder: str, options: dict[str, Any]) -> Any:
    """Train two steps and return the weights."""
    trainer = make_trainer(folder, policy=None, max_steps=2, **options)
    trainer.train()
    trainer.runner.policy.close()
    return weights(trainer.model)


@pytest.mark.parametrize("transfer", ["files", "broadcast"])
def test_one_rank_and_two_ranks_train_as_without_servers(urls: list[str], transfer: str, tmp_path: Path) -> None:
    here = trained(str(tmp_path / "here"), {"per_device_train_batch_size": 8})
    options = {"layout": "server", "vllm_server_base_url": ",".join(urls), "weights_transfer": transfer}
    before = served(urls)
    one = trained(str(tmp_path / "one"), {**options, "per_device_train_batch_size": 8})
    middle = served(urls)
    pair = in_ranks(trained, 2, str(tmp_path / "two"), {**options, "per_device_train_batch_size": 4})
    after = served(urls)
    assert distance(here, one) < 1e-5
    assert distance(here, pair[0]) < 1e-5 and distance(*pair) == 0.0
    # One rank uses both; of two ranks each keeps to one.
    assert min(m - b for m, b in zip(middle, before, strict=True)) > 0
    assert min(a - m for a, m in zip(after, middle, strict=True)) > 0
