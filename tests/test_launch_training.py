"""Training under `agent-gym launch`: who is started again, when the run has ended for good, what stays in memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

psutil = pytest.importorskip("psutil")
safetensors = pytest.importorskip("safetensors.numpy")
pytest.importorskip("trl")

from model_server import free_port  # noqa: E402
from process_tools import alive, until  # noqa: E402
from trainer_tools import ENV, _wait, distance, model_folder  # noqa: E402

from agent_gym.cli import agent, nodes  # noqa: E402
from agent_gym.cli.train import TrainingParser  # noqa: E402
from agent_gym.errors import ConfigError  # noqa: E402

WORDS = ["grpo", "AgentR1/GSM8K-v0", "--model_name_or_path", "some/model", "--max_episode_tokens=512"]
STEPS, LIMIT_S = 15, 900.0


# What the launcher reads.

LAUNCHES = """
import sys
from pathlib import Path
from types import SimpleNamespace
from agent_gym.cli import nodes
from agent_gym.policies.vllm import launch
folder, words = sys.argv[1], sys.argv[2:]
ended = SimpleNamespace(poll=lambda: None, wait=lambda timeout=None: 0)
launch.start_server = nodes.subprocess.Popen = lambda *given, **options: ended
launch.end_group = lambda server: None
nodes.time.sleep = lambda seconds: nodes._Mark(Path(folder)).leave(0)
for number in "01":
    given = ["--nodes", "a,b", "--node_rank", number, *words, "--output_dir", folder]
    print(nodes.launch(given), sorted({"torch", "trl", "transformers", "vllm"} & set(sys.modules)))
"""


@pytest.mark.vllm
def test_the_launcher_imports_neither_torch_nor_trl(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LAUNCHES, str(tmp_path), *WORDS]
    environment = {**os.environ, "AGENT_GYM_SERVER_KEY": "key"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.stdout == "0 []\n0 []\n", done.stdout + done.stderr


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--output_dir", "runs/x", "--max_num_seqs", "7"],
        ["--vllm_max_model_length=1024", "--output-dir", "a", "--output_dir", "b"],
        ["--config", "run.yaml"],
        ["--config", "run.yaml", "--max_num_seqs", "9", "--rdzv_conf", "join_timeout=60"],
    ],
)
def test_it_reads_what_the_trainers_will(words: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OF_THE_FILE", "before")
    Path("run.yaml").write_text("output_dir: of/file\nmax_num_seqs: 8\nenv: {OF_THE_FILE: 1}\nbeta: 0.1\n")
    run = nodes._settings([*WORDS, *words])
    seen = os.environ["OF_THE_FILE"]
    (_, args, model), launcher = TrainingParser("grpo").read([*WORDS[1:], *words])
    assert os.environ["OF_THE_FILE"] == seen, "servers and trainers have the same variables"
    context = args.vllm_max_model_length or args.max_episode_tokens
    assert run == (model.model_name_or_path, Path(args.output_dir), context, args.max_num_seqs, "".join(launcher[1:]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max_num_seqs", "many"], "max_num_seqs is 'many'; it must be a whole number"),
        (["--max_num_seqs", "0"], "max_num_seqs is 0"),
        (["--max_num_sqs", "4"], "unknown argument '--max_num_sqs'; did you mean .*--max_num_seqs"),
    ],
)
def test_mistakes_end_each_machine_at_once(words: Sequence[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        nodes._settings([*WORDS, *words])


# When it has ended for good.


class Process:
    """Stands for the training command: it ends with the next of some codes."""

    def __init__(self, codes: list[int], folder: Path) -> None:
        self.codes, self.marks, self.folder = codes, list[bool](), folder
        self.words, self.variables = list[str](), dict[str, str]()

    def __call__(self, words: list[str], *, env: dict[str, str], **options: Any) -> Process:
        self.words, self.variables = words, env
        self.marks.append((self.folder / nodes._MARK).exists())
        return self

    def wait(self, timeout: float | None = None) -> int:
        if (code := self.codes.pop(0)) == nodes._INTERRUPTED:
            raise KeyboardInterrupt
        return code


@pytest.mark.parametrize(
    ("machines", "number", "codes", "starts", "left"),
    [
        (1, 0, [0], 1, 0),
        (1, 0, [1, -9, 0], 3, 0),
        (1, 0, [1, 1, 1, 1], 4, 1),
        (1, 0, [2], 1, 2),  # a mistake of the user's does not go away
        (1, 0, [-15, 130], 2, 130),
        (2, 0, [247, agent.LOST, 0], 3, 0),  # its agent was killed; the others were
        (2, 0, [1], 1, 1),  # its ranks have failed as often as they may
        (2, 1, [247, 0], 2, None),  # the first machine says how it ended
        (2, 1, [1], 1, 1),
        (2, 1, [130], 1, None),  # it may be started again by hand
    ],
)
def test_the_mark_is_left_when_training_is_not_begun_again(
    machines: int, number: int, codes: list[int], starts: int, left: int | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    process, mark = Process(codes, tmp_path), nodes._Mark(tmp_path)
    monkeypatch.setattr(nodes.subprocess, "Popen", process)
    monkeypatch.setattr(nodes, "_meet", lambda host, mark: None)
    last = codes[-1]
    try:
        ended = nodes._train([*WORDS, "--output_dir", str(tmp_path)], ["a", "b"][:machines], number, 3)
    except KeyboardInterrupt:
        ended = nodes._INTERRUPTED
    assert (ended, mark.code(), process.marks) == (last, left, [False] * starts)
    if machines > 1:  # how agents find each other, again and again
        assert f"is_host={1 - number}" in process.words
        assert process.variables["PET_LOCAL_ADDR"] == "ab"[number]
        assert process.variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"


@pytest.mark.vllm
def test_a_machine_that_failed_for_good_ends_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    popen, port = subprocess.Popen, free_port()

    def begin(command: Sequence[str], **options: Any) -> Any:
        started.append(popen([sys.executable, "-c", "import time; time.sleep(600)"], **options))
        return started[-1]

    monkeypatch.setattr(nodes.subprocess, "Popen", begin)
    monkeypatch.setattr(nodes, "_LOOK_S", 0.05)
    monkeypatch.setattr(nodes, "_MEETING_PORT", port)
    monkeypatch.setenv("AGENT_GYM_SERVER_KEY", "key")
    words, codes = [*WORDS, "--output_dir", str(tmp_path)], dict[str, int]()
    begins: dict[str, Callable[[], int]] = {
        "first": lambda: nodes._train(words, ["127.0.0.1", "127.0.0.2", "127.0.0.3"], 0, 3),
        "waits": lambda: nodes._train(words, ["127.0.0.1", "127.0.0.2", "127.0.0.3"], 1, 3),
        "serves": lambda: nodes._serve(words, "127.0.0.1", [free_port()]),
    }
    threads = [
        threading.Thread(target=lambda name=name, run=run: codes.update({name: run()})) for name, run in begins.items()
    ]
    for thread in threads:
        thread.start()
    until(lambda: len(started) == 2)  # the second one waits for the port of the first
    time.sleep(0.5)
    assert not codes
    nodes._Mark(tmp_path).leave(7)  # as the third one does
    for thread in threads:
        thread.join(30)
    assert codes["serves"] == codes["waits"] == 7 and codes["first"] != 0
    assert all(process.poll() is not None for process in started) and len(started) == 2
    assert nodes._Mark(tmp_path)._read().endswith(" 7"), "the first reason stays"


def test_agents_that_are_out_of_reach_are_told_from_ranks_that_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from torch.distributed import DistNetworkError, DistStoreError
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
    from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousTimeoutError

    failed = ChildFailedError("x", {0: ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file="none")})
    assert agent.lost(DistStoreError("x")) and agent.lost(DistNetworkError("x")) and agent.lost(RendezvousClosedError())
    assert not agent.lost(RendezvousTimeoutError()) and not agent.lost(failed)
    for error, code in ((RendezvousClosedError("gone"), agent.LOST), (ValueError("x"), None)):

        def fail(*words: Any, error: Exception = error, **options: Any) -> None:
            raise error

        monkeypatch.setattr(agent.runpy, "run_module", fail)
        with pytest.raises(ValueError if code is None else SystemExit) as raised:
            agent.main()
        assert code is None or raised.value.code == code  # type: ignore[attr-defined]
    assert "the other machines are out of reach: gone" in capsys.readouterr().err


# Two machines train, and their processes die.

MACHINE = """
import sys
from agent_gym.cli import nodes
from agent_gym.cli.main import guarded
port, number, *command = sys.argv[1:]
nodes._MEETING_PORT = int(port)
raise SystemExit(guarded(lambda: nodes._train(command, ["127.0.0.1", "127.0.0.2"], int(number), 5)))
"""
OPTIONS = f"""
    --use_cpu --report_to none --train_tasks 64 --seed 3 --per_device_train_batch_size 4 --num_generations 4
    --learning_rate 1e-3 --lr_scheduler_type constant --max_turn_tokens 8 --max_episode_tokens 700 --max_steps {STEPS}
    --use_vllm false --save_steps 3 --accelerate_config cpu --num_processes 2 --num_cpu_threads_per_process 1
    --resume_from_checkpoint auto
""".split()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="machines are addresses of loopback, and die by Linux's signal")
def test_a_run_survives_its_agents_and_ranks_and_ends_with_the_weights_of_one_undisturbed(tmp_path: Path) -> None:
    # The module that registers the environment.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    model, port = model_folder(), str(free_port())

    def start(name: str, out: Path, *words: str) -> subprocess.Popen[bytes]:
        command = ["grpo", f"trainer_tools:{ENV}", *OPTIONS, "--model_name_or_path", model, "--output_dir", str(out)]
        with (tmp_path / f"{name}.txt").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, *words, *command], stdout=log, stderr=log, env=environment, start_new_session=True
            )

    straight, out = tmp_path / "straight", tmp_path / "out"
    alone = start("alone", straight, "-m", "agent_gym")
    assert alone.wait(LIMIT_S) == 0, (tmp_path / "alone.txt").read_text()[-3000:]
    machines = [start(f"machine-{number}", out, "-c", MACHINE, port, str(number)) for number in range(2)]

    def output() -> str:
        return "\n".join((tmp_path / f"machine-{number}.txt").read_text()[-3000:] for number in range(2))

    def victim(machine: int, kind: str) -> int:
        below = psutil.Process(machines[machine].pid).children(recursive=True)
        marks: dict[str, Callable[[Any], bool]] = {
            "agent": lambda process: agent.__name__ in process.cmdline(),
            "rank": lambda process: "LOCAL_RANK" in process.environ(),
        }
        return int(next(process.pid for process in below if marks[kind](process)))

    try:
        for step, machine, kind in ((3, 1, "agent"), (6, 0, "rank"), (9, 0, "agent"), (12, 1, "rank")):
            began = time.monotonic()
            checkpoint = out / f"checkpoint-{step}"
            _wait(lambda there=checkpoint.is_dir: there() or any(one.poll() is not None for one in machines), LIMIT_S)
            assert checkpoint.is_dir(), output()
            os.kill(victim(machine, kind), signal.SIGKILL)
            assert not (out / f"checkpoint-{STEPS}").exists(), "the run was over before anything was killed"
            print(f"{kind} {machine} killed after step {step}, {time.monotonic() - began:.0f} s after the one before")
        for machine, process in enumerate(machines):
            assert process.wait(LIMIT_S) == 0, f"machine {machine}: {output()}"
    finally:
        for process in machines:
            if alive(str(process.pid)):
                process.kill()  # what it has started ends with it
    for number in range(2):
        assert (tmp_path / f"machine-{number}.txt").read_text().count("begun again") >= 1
    logged = [json.loads(line)["step"] for line in (out / "log.jsonl").read_text().splitlines()]
    assert set(logged) == set(range(1, STEPS + 1))
    weights = [safetensors.load_file(folder / "model.safetensors") for folder in (straight, out)]
    assert distance(*weights) <= 1e-6
