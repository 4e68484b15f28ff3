"""Training with vLLM behind a server: one process and two ranks, against the engine in the process."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")
pytest.importorskip("aiohttp")

from model_server import free_port, model_server  # noqa: E402
from trainer_tools import distance, in_ranks, make_trainer, model_folder, settings, weights  # noqa: E402

from agent_gym.errors import ConfigError, RolloutError  # noqa: E402

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    with model_server(Path(model_folder()), tmp_path_factory.mktemp("server") / "log.txt", context=256) as started:
        yield started


def trained(folder: str, options: dict[str, Any]) -> tuple[Any, list[dict[str, Any]]]:
    trainer = make_trainer(folder, policy=None, max_steps=2, **options)
    trainer.train()
    trainer.runner.policy.close()
    return weights(trainer.model), trainer.state.log_history


def test_one_process_and_two_ranks_train_as_without_a_server(server: Any, tmp_path: Path) -> None:
    here, _ = trained(str(tmp_path / "here"), {"per_device_train_batch_size": 8})
    served = {"layout": "server", "vllm_server_base_url": server[0]}
    one, logs = trained(str(tmp_path / "one"), {**served, "per_device_train_batch_size": 8})
    pair = in_ranks(trained, 2, str(tmp_path / "two"), {**served, "per_device_train_batch_size": 4})
    assert distance(here, one) < 1e-5
    assert distance(one, pair[0][0]) < 1e-5 and distance(pair[0][0], pair[1][0]) == 0.0
    assert distance(here, weights(make_trainer(tmp_path / "fresh").model)) > 1e-3, "it trained"
    gaps = [log["sampling/logp_difference_max"] for log in logs if "sampling/logp_difference_max" in log]
    assert len(gaps) == 2 and max(gaps) < 1e-5


def unwritable(folder: str, options: dict[str, Any]) -> str:
    with pytest.raises(RolloutError, match="weights cannot be written"):
        trained(folder, options)
    return "told"


def test_a_folder_that_cannot_be_written_stops_all_ranks(server: Any, tmp_path: Path) -> None:
    options = {
        "layout": "server",
        "vllm_server_base_url": server[0],
        "weights_folder": str(tmp_path / "missing"),
        "per_device_train_batch_size": 4,
    }
    assert in_ranks(unwritable, 2, str(tmp_path), options) == ["told", "told"]


def test_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="layout is 'servers'; allowed: colocate, server"):
        settings(tmp_path, layout="servers")
    with pytest.raises(ConfigError, match="names none: start `agent-gym serve model`"):
        settings(tmp_path, layout="server")
    with pytest.raises(ConfigError, match="belong to layout='server'"):
        settings(tmp_path, vllm_server_base_url="http://127.0.0.1:8010")
    with pytest.raises(ConfigError, match="no model server at"):
        url = f"http://127.0.0.1:{free_port()}"
        trained(str(tmp_path), {"layout": "server", "vllm_server_base_url": url, "vllm_server_timeout": 0.1})
    urls = settings(tmp_path, layout="server", vllm_server_base_url="http://a:1, http://b:2").server_urls
    assert urls == ["http://a:1", "http://b:2"]
