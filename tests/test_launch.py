"""`agent-gym launch`: one command on each machine, servers that come back, and a machine that is lost in a run."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import yaml  # noqa: E402
from model_server import free_port  # noqa: E402
from process_tools import until  # noqa: E402
from trainer_tools import model_folder  # noqa: E402

from agent_gym.cli import nodes  # noqa: E402
from agent_gym.cli.train import TrainingParser  # noqa: E402
from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.policies.vllm import launch as vllm_launch  # noqa: E402
from agent_gym.speedrun.tiny import make_tiny_model  # noqa: E402

CLUSTER = Path(__file__).parents[1] / "examples" / "cluster"
ENV, BARE = "AgentR1/GSM8K-v0", '{"system_prompt": ""}'


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nodes", "a,b", "--node_rank", "0"], "no command; name grpo or ppo"),
        (["--nodes", "a,b", "grpo", ENV], "which machine is this\\? .* 0 to 1"),
        (["--nodes", "a,b", "--node_rank", "2", "grpo", ENV], "number of this machine is 2; allowed: 0 to 1"),
        (["--nodes", "a", "--node_rank", "0", "grpo", ENV], "--serving is 1 of 1 machines"),
        (["--nodes", "a,b", "--node_rank", "0", "grpo", ENV], "which model"),
        (
            ["--nodes", "a,b", "--node_rank", "0", "grpo", ENV, "--dry-run"],
            "--dry_run trains nothing: give it to agent",
        ),
    ],
)
def test_mistakes_are_named(words: Sequence[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in nodes._NUMBERS:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=message):
        nodes.launch(words)


@pytest.mark.parametrize("name", ["slurm.sh", "kubernetes.yaml"])
def test_the_examples_of_clusters_are_commands_that_are_understood(name: str) -> None:
    text = (CLUSTER / name).read_text()
    if name == "slurm.sh":
        words = shlex.split(text.partition("srun --no-kill agent-gym launch")[2].replace("$run", "/run"))
    else:
        objects = list(yaml.safe_load_all(text))
        [container] = objects[1]["spec"]["template"]["spec"]["containers"]
        words = container["args"]
        hosts = [f"{objects[1]['metadata']['name']}-{i}.{objects[0]['metadata']['name']}" for i in range(3)]
        assert words[:2] == ["--nodes", ",".join(hosts)]
        assert len(hosts) == objects[1]["spec"]["completions"] == objects[1]["spec"]["parallelism"]
    served = ["--layout", "server", "--vllm_server_base_url", "http://a:8010"]  # which launch adds
    command = [*words[words.index("grpo") :], *served]
    (_, args, model), _ = TrainingParser("grpo").read(command[1:])
    assert (model.model_name_or_path, args.max_staleness) == ("Qwen/Qwen2.5-7B-Instruct", 2)
    assert nodes._settings(command)[:3] == (model.model_name_or_path, Path(args.output_dir), 8192)
    assert {word.partition("=")[0] for word in words} >= {"--serving", "--servers", "--restarts"}


def test_the_example_for_kubernetes_follows_its_schema() -> None:
    schema = pytest.importorskip("kubernetes_validate")
    for made in yaml.safe_load_all((CLUSTER / "kubernetes.yaml").read_text()):
        schema.validate(made, schema.latest_version(), strict=True)


def test_addresses_of_ipv6_stand_in_brackets_in_urls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[Any] = []
    monkeypatch.setattr(nodes, "_train", lambda command, hosts, *_: trained.append((command, hosts)) or 0)
    assert nodes.launch(["--nodes", "fd00::1,[fd00::2],a,fd00::4", "--serving", "3", "--node_rank", "3", "grpo"]) == 0
    [(command, hosts)] = trained
    urls = command[command.index("--vllm_server_base_url") + 1]
    assert urls == "http://[fd00::1]:8010,http://[fd00::2]:8010,http://a:8010" and hosts == ["fd00::4"]


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_server_that_ends_is_started_again_until_the_trainers_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    started: list[Any] = []
    popen, port = subprocess.Popen, free_port()

    def begin(*given: Any, **options: Any) -> Any:
        started.append(popen(*given, **options))
        return started[-1]

    def command(model: str, *, host: str, port: int, **sizes: Any) -> list[str]:
        # A server that starts in no time, and not vLLM.
        return [sys.executable, "-m", "http.server", str(port), "--bind", host, "--directory", str(tmp_path)]

    monkeypatch.setattr(nodes.subprocess, "Popen", begin)
    monkeypatch.setattr(vllm_launch, "server_command", command)
    monkeypatch.setattr(nodes, "_LOOK_S", 0.05)
    monkeypatch.setenv("AGENT_GYM_SERVER_KEY", "key")
    mark = tmp_path / nodes._MARK
    mark.write_text("of-another-run 0")
    words = ["grpo", ENV, "--model_name_or_path", model_folder(), "--output_dir", str(tmp_path)]
    serving = threading.Thread(target=nodes._serve, args=(words, "127.0.0.1", [port]))
    serving.start()
    until(lambda: answers(port))
    started[0].kill()
    until(lambda: len(started) == 2 and answers(port))
    mark.write_text("of-this-run 0")
    serving.join(30)
    assert not serving.is_alive() and started[1].poll() is not None and not answers(port)
    assert f"127.0.0.1:{port} has ended with -9; it is started again" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("job", "left", "code"),
    [
        ("7", 0, 0),  # it came too late
        ("7", 1, None),  # the scheduler begins a failed run again
        ("8", 0, None),  # of another run
        ("", 0, None),  # of which run, is not known
    ],
)
def test_a_machine_that_comes_after_the_end_of_its_own_job_ends(
    job: str, left: int, code: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(nodes._JOB, job and "7")
    nodes._Mark(tmp_path).leave(left)
    monkeypatch.setenv(nodes._JOB, job)
    mark = nodes._Mark(tmp_path)
    assert mark.code() == code
    mark.leave(3)
    assert mark.code() == 3


@pytest.mark.slow
@pytest.mark.vllm
def test_a_machine_that_is_lost_costs_its_own_turns_and_nothing_else(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model", ENV, json.loads(BARE), width=64)
    steps, group, batch = 12, 4, 8
    out = tmp_path / "run"
    words = [
        "grpo", ENV, "--env_kwargs", BARE, "--model_name_or_path", str(tmp_path / "model"), "--output_dir", str(out),
        "--max_steps", str(steps), "--per_device_train_batch_size", str(batch), "--num_generations", str(group),
        "--max_turn_tokens", "48", "--max_episode_tokens", "384", "--max_staleness", "2", "--save_steps", "2",
        "--trajectories_per_step", "1000", "--report_to", "none", "--dtype", "float32", "--disable_tqdm", "true",
        "--vllm_server_timeout", "1200", "--train_tasks", "24", "--logging_steps", "1",
    ]  # fmt: skip

    def start(number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "agent_gym", "launch", "--nodes", "127.0.0.1,127.0.0.2,127.0.0.3"]
        environment = {**os.environ, "SLURM_NODEID": str(number), "AGENT_GYM_SERVER_KEY": "key", "OMP_NUM_THREADS": "1"}
        environment |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        with (tmp_path / f"node-{number}.txt").open("ab") as log:
            return subprocess.Popen(
                [*command, "--serving", "2", *words], stdout=log, stderr=log, env=environment, start_new_session=True
            )

    machines = [start(number) for number in range(3)]
    try:
        until((out / "checkpoint-2").exists, 1800)
        os.killpg(machines[1].pid, signal.SIGKILL)
        began = time.monotonic()
        assert machines[2].wait(1200) == 0, (tmp_path / "node-2.txt").read_text()[-3000:]
        print(f"12 steps, the last ten after the loss in {time.monotonic() - began:.0f} s")
        assert machines[0].wait(60) == 0, "the servers end with the trainers"
    finally:
        for machine in machines:
            if machine.poll() is None:
                os.killpg(machine.pid, signal.SIGKILL)
    log = (tmp_path / "node-2.txt").read_text()
    assert "127.0.0.2:8010 is left out" in log and "begun again" not in log
    found = Counter[Any]()
    for path in (out / "trajectories").glob("train_*.jsonl"):
        for record in map(json.loads, path.read_text().splitlines()):
            assert not record.get("failure")
            found[record["spec"]["index"], record["spec"]["member"], record["spec"]["sampling_seed"]] += 1
    assert len(found) == found.total() == steps * batch, "each episode is trained on once"
