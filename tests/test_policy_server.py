"""vLLM behind HTTP: one real server, asked with ids, given weights by engines and trainers; and one that is killed."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("aiohttp")

from engines import EOS, disturb, largest_difference, make_requests, run  # noqa: E402
from model_server import free_port, model_server, model_servers  # noqa: E402
from process_tools import held, until  # noqa: E402
from trainer_tools import distance, in_ranks, make_trainer, model_folder, settings, weights  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from agent_gym.errors import ConfigError, RolloutError  # noqa: E402
from agent_gym.policies import Engine, Request, SamplingParams  # noqa: E402
from agent_gym.policies.vllm import buckets  # noqa: E402
from agent_gym.policies.vllm import server as serving  # noqa: E402
from agent_gym.policies.vllm.launch import VARIABLE, server_key  # noqa: E402
from agent_gym.policies.vllm.load import CacheLoad  # noqa: E402
from agent_gym.policies.vllm.server import VLLMServerPolicy  # noqa: E402

pytestmark = pytest.mark.vllm
CONTEXT = 512
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    with model_server(Path(model_folder()), tmp_path_factory.mktemp("server") / "log.txt", context=CONTEXT) as started:
        yield started


@pytest.fixture(params=["files", "broadcast"])
def policy(server: tuple[str, subprocess.Popen[bytes]], request: pytest.FixtureRequest) -> Iterator[VLLMServerPolicy]:
    with closing(VLLMServerPolicy([server[0]], [EOS], context=CONTEXT, transfer=request.param)) as made:
        yield made


def through_files(test: Any) -> Any:
    """Mark a test to which it is the same how weights travel."""
    return pytest.mark.parametrize("policy", ["files"], indirect=True)(test)


@pytest.fixture
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(model_folder())


def test_logprobs_are_those_of_the_weights_that_were_sent_last(policy: VLLMServerPolicy, model: Any) -> None:
    assert isinstance(policy, Engine)
    requests = make_requests(16)
    outputs = []
    for seed in range(3):
        disturb(model, seed)
        policy.sync(model.named_parameters())
        finished = run(policy, requests)
        assert largest_difference(model, requests, finished) < TOLERANCE
        assert run(policy, requests) == finished, "seeds decide what is sampled"
        outputs.append([finished[request.id].token_ids for request in requests])
    assert outputs[0] != outputs[1] != outputs[2]
    assert {generation.finish_reason for generation in finished.values()} <= {"stop", "length"}


@through_files
def test_it_knows_how_full_the_cache_of_its_server_was(
    policy: VLLMServerPolicy, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_LOOK_S", 0.2)
    requests = make_requests(64, max_tokens=400)
    for request in requests:
        policy.submit(request)

    def seen_in_use() -> bool:
        for ended in policy.poll():  # under load all may end before the first look
            policy.submit(requests[ended.id])
        return policy.take_load()["perf/kv_cache"] > 0

    until(seen_in_use, seconds=120)
    for request_id in range(64):
        policy.abort(request_id)
    with urllib.request.urlopen(server[0] + "/metrics") as answer:
        page = answer.read().decode()
    load = CacheLoad()
    load.read("a server", page)
    assert load.take() == {"perf/kv_cache": pytest.approx(0, abs=1), "perf/preemptions": 0.0}
    later, changed = re.subn(r"(?m)^(vllm:num_preemptions_total\S+) \S+$", r"\1 7.0", page)
    assert changed == 1
    load.read("a server", later)
    load.read("another", later)
    assert load.take()["perf/preemptions"] == 7.0, "those before the first look are not this run's"


@through_files
def test_turns_end_where_they_should_and_aborted_ones_on_the_server_too(policy: VLLMServerPolicy, model: Any) -> None:
    policy.sync(model.named_parameters())
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    requests = make_requests(8, max_tokens=60)
    free = run(policy, requests)
    starts = {i: tokenizer.decode(generation.token_ids[:3]) for i, generation in free.items()}
    # Random tokens also spell bytes that are no character.
    number = next(i for i, text in starts.items() if text and "\ufffd" not in text)
    plain, first = free[number], starts[number][-1]
    params = dataclasses.replace(requests[number].params, stop=(first,))
    [stopped] = run(policy, [dataclasses.replace(requests[number], params=params)]).values()
    assert stopped.finish_reason == "stop_string"
    assert stopped.token_ids == plain.token_ids[: len(stopped.token_ids)] and len(stopped.token_ids) <= 3
    for request in make_requests(8, max_tokens=400):
        policy.submit(request)
    for request_id in range(8):
        policy.abort(request_id)
    assert policy.pending == 0 and policy.poll() == []
    # Weights are refused, and prefixes kept, while a request is being decoded.
    until(lambda: not any(policy._load.values()))
    policy.sync(model.named_parameters())
    assert len(run(policy, make_requests(2))) == 2


def test_weights_of_another_model_are_refused_and_the_server_lives_on(policy: VLLMServerPolicy, model: Any) -> None:
    policy.submit(Request(0, [3, 4], SamplingParams(200)))
    with pytest.raises(RolloutError, match="1 requests are pending"):
        policy.sync(model.named_parameters())
    policy.abort(0)
    with pytest.raises(RolloutError, match="did not take the weights: vLLM does not know the trainer's weights"):
        policy.sync([("transformer.wte.weight", torch.zeros(2, 2))])
    with pytest.raises(RolloutError, match="sent no weights for .*model.embed"):
        policy.sync(list(model.named_parameters())[1:])
    policy.sync(model.named_parameters())
    requests = make_requests(2)
    assert largest_difference(model, requests, run(policy, requests)) < TOLERANCE


def test_weights_that_cannot_be_written_are_an_error_and_all_are_read(
    server: tuple[str, Any], model: Any, tmp_path: Path
) -> None:
    policy = VLLMServerPolicy([server[0]], [EOS], context=CONTEXT, folder=tmp_path / "missing")
    read: list[str] = []

    def named() -> Iterator[tuple[str, Any]]:
        for name, weight in model.named_parameters():
            read.append(name)
            yield name, weight

    with pytest.raises(RolloutError, match="cannot be written to .*missing"):
        policy.sync(named())
    policy.close()
    assert len(read) == len(list(model.named_parameters()))


@pytest.mark.parametrize("transfer", ["files", "broadcast"])
def test_buckets_may_cut_layers_and_a_sync_that_broke_off_leaves_nothing(
    server: tuple[str, Any], model: Any, transfer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # From the smallest on each weight has a bucket: vLLM joins three in a layer, and holds the first two while they are
    # written over.
    monkeypatch.setattr(buckets, "_BUCKET_BYTES", 1)
    folder = tmp_path if transfer == "files" else None

    def broken() -> Iterator[tuple[str, Any]]:
        for number, (name, weight) in enumerate(model.named_parameters()):
            if number == 5:
                raise OSError("no memory left")
            yield name, weight + 1.0

    with closing(VLLMServerPolicy([server[0]], [EOS], context=CONTEXT, transfer=transfer, folder=folder)) as policy:
        for seed in range(2):
            disturb(model, seed)
            with pytest.raises(OSError, match="no memory left"):
                policy.sync(broken())
            policy.sync(sorted(model.named_parameters(), key=lambda named: named[1].numel()))
            requests = make_requests(4)
            assert largest_difference(model, requests, run(policy, requests)) < TOLERANCE
    assert not list(tmp_path.iterdir())


@through_files
def test_addresses_and_servers_that_cannot_work(server: tuple[str, Any], policy: VLLMServerPolicy) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        VLLMServerPolicy(["127.0.0.1:80"], [EOS], context=64)
    before = held()
    with pytest.raises(ConfigError, match="no model server at .*serve model"):
        VLLMServerPolicy([f"http://127.0.0.1:{free_port()}"], [EOS], context=64, start_timeout_s=0.1)
    with pytest.raises(ConfigError, match=f"allows {CONTEXT} tokens and episodes may have {CONTEXT + 1}"):
        VLLMServerPolicy([server[0]], [EOS], context=CONTEXT + 1)
    with pytest.raises(ConfigError, match="leaves no room"):
        policy.submit(Request(0, [3] * CONTEXT, SamplingParams(1)))
    policy.submit(Request(0, [10**6], SamplingParams(1)))
    with pytest.raises(RolloutError, match="answered 400"):
        while policy.pending:
            policy.poll()
    assert not {one for one in held() - before if "vllm-server" in one}, (
        "a policy that could not be made leaves no thread"
    )


@through_files
def test_only_holders_of_the_key_reach_the_workers(
    server: tuple[str, Any], policy: VLLMServerPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def status(path: str, body: bytes | None = None, **headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            with urllib.request.urlopen(urllib.request.Request(server[0] + path, body, named), timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    ask = json.dumps({"method": "describe"}).encode()
    key = {"Authorization": f"Bearer {server_key()}", "Content_Type": "application/json"}
    assert status("/collective_rpc", ask, **key) == 200
    assert status("/collective_rpc", ask, Content_Type="application/json") == 401
    assert status("/collective_rpc", ask, **{**key, "Origin": "http://evil.example"}) == 403
    assert status("/v1/models") == 200
    monkeypatch.setenv(VARIABLE, "another")
    with pytest.raises(ConfigError, match=f"has another key than this trainer: set the same {VARIABLE}"):
        VLLMServerPolicy([server[0]], [EOS], context=CONTEXT)


# Trainers with their engine behind the server.


def trained(folder: str, options: dict[str, Any]) -> tuple[Any, list[dict[str, Any]]]:
    trainer = make_trainer(folder, policy=None, max_steps=2, **options)
    trainer.train()
    trainer.runner.policy.close()
    return weights(trainer.model), trainer.state.log_history


@pytest.fixture(scope="module")
def two_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    folder = tmp_path_factory.mktemp("servers")
    with model_servers(Path(model_folder()), [folder / "one.txt", folder / "two.txt"], context=256) as servers:
        yield [url for url, _ in servers]


def served(urls: list[str]) -> list[int]:
    """How many requests each server has answered so far, by its own count."""
    counts = []
    for url in urls:
        with urllib.request.urlopen(url + "/metrics", timeout=30) as answer:
            found = re.findall(r"^vllm:request_success_total\{.*\} (\S+)$", answer.read().decode(), re.MULTILINE)
        counts.append(int(sum(map(float, found))))
    return counts


@pytest.mark.parametrize(
    ("servers", "transfer"),
    [
        ("server", {}),
        pytest.param("two_servers", {"weights_transfer": "files"}, marks=pytest.mark.slow),
        pytest.param("two_servers", {"weights_transfer": "broadcast"}, marks=pytest.mark.slow),
    ],
)
def test_one_process_and_two_ranks_train_as_without_servers(
    servers: str, transfer: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    urls = request.getfixturevalue(servers) if servers == "two_servers" else [request.getfixturevalue(servers)[0]]
    behind = {"layout": "server", "vllm_server_base_url": ",".join(urls), **transfer}
    here, _ = trained(str(tmp_path / "here"), {"per_device_train_batch_size": 8})
    counts = [served(urls)]
    one, logs = trained(str(tmp_path / "one"), {**behind, "per_device_train_batch_size": 8})
    counts.append(served(urls))
    pair = in_ranks(trained, 2, str(tmp_path / "two"), {**behind, "per_device_train_batch_size": 4})
    counts.append(served(urls))
    assert distance(here, one) < 1e-5
    assert distance(here, pair[0][0]) < 1e-5 and distance(pair[0][0], pair[1][0]) == 0.0
    assert distance(here, weights(make_trainer(tmp_path / "fresh").model)) > 1e-3, "it trained"
    gaps = [log["sampling/logp_difference_max"] for log in logs if "sampling/logp_difference_max" in log]
    assert len(gaps) == 2 and max(gaps) < 1e-5
    # One rank uses all servers; of two ranks each keeps to one.
    assert all(a < b < c for a, b, c in zip(*counts, strict=True))


def test_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="layout is 'servers'; allowed: colocate, server"):
        settings(tmp_path, layout="servers")
    with pytest.raises(ConfigError, match="names none: start `agent-gym serve model`"):
        settings(tmp_path, layout="server")
    with pytest.raises(ConfigError, match="belong to layout='server'"):
        settings(tmp_path, vllm_server_base_url="http://127.0.0.1:8010")
    urls = settings(tmp_path, layout="server", vllm_server_base_url="http://a:1, http://b:2").server_urls
    assert urls == ["http://a:1", "http://b:2"]
