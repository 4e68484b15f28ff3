"""The stages of `agent-gym doctor`. A stage's process runs this module.

A stage returns its measurements. It raises `SkippedStage` where it cannot be tried, and anything else if the part that
it tries does not work.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from agent_gym.dependencies import install_command
from agent_gym.doctor import SkippedStage, StageSettings, end, ranks
from agent_gym.doctor.driver import told
from agent_gym.errors import RolloutError, described, require
from agent_gym.plan import RESERVED_SHARE, plan

GIB = 2**30
CONTEXT = 512
CYCLES, FEW_CYCLES = 100, 5  # of sleep and wake, on a GPU and without
GROWTH = 0.2 * GIB  # bytes that cycles may take for good
OFF = 0.01  # of the largest change of a weight, by which layouts may differ: sums of float32 in another order


def machine(setting: StageSettings) -> dict[str, Any]:
    """Return versions, GPUs with their connections, and free memory."""
    from agent_gym.evaluate.cards import versions

    free = require("psutil", "train").virtual_memory().available
    found = {"python": platform.python_version(), **versions(), "cpus": os.cpu_count(), "free_gib": round(free / GIB)}
    found["driver"] = " ".join(told().split())
    if Path("/dev/shm").is_dir():  # through which weights go as files
        found["shm_gib"] = round(shutil.disk_usage("/dev/shm").total / GIB, 2)
    for gpu in range(len(setting.gpus)):
        free, total = torch.cuda.mem_get_info(gpu)
        found[f"gpu{gpu}"] = f"{torch.cuda.get_device_name(gpu)}, {free / GIB:.1f} of {total / GIB:.1f} GiB free"
    if setting.gpus:
        found |= {"cuda": torch.version.cuda, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
        if tool := shutil.which("nvidia-smi"):
            found["topology"] = subprocess.run([tool, "topo", "-m"], capture_output=True, text=True).stdout
    return found


def check(holds: bool, otherwise: str) -> None:
    """Raise `RolloutError` with a text unless something holds."""
    if not holds:
        raise RolloutError(otherwise)


def with_engine(setting: StageSettings, lora: bool = False, **changes: Any) -> tuple[Any, dict[str, Any]]:
    """Train three steps with vLLM; return the trainer and how far logprobs were off, and check them."""
    settings: dict[str, Any] = {"use_vllm": True, "learning_rate": 1e-4 if setting.gpus else 1e-2}
    if setting.gpus:
        settings |= {"bf16": True, "max_turn_tokens": 256, "vllm_gpu_memory_utilization": 0.3}
    trainer = ranks.make_trainer(setting, ranks.large(setting), lora=lora, **settings | changes)
    start = ranks.weights_of(trainer)
    trainer.train()
    moved = ranks.distance(ranks.weights_of(trainer), start)
    gaps = [log[name] for log in trainer.state.log_history if (name := "sampling/logp_difference_max") in log]
    # In bfloat16 trainer and engine round in different places.
    tolerance = 0.3 if setting.gpus else 1e-3
    check(moved > 0, "the weights did not change, so that nothing was compared")
    check(len(gaps) == ranks.STEPS, f"logprobs were compared in {len(gaps)} of {ranks.STEPS} steps")
    check(max(gaps) <= tolerance, f"logprobs are off by {max(gaps):g} nats, more than {tolerance}")
    return trainer, {"logprobs_off": float(f"{max(gaps):.1e}"), "weights_moved": float(f"{moved:.1e}")}


def engine(setting: StageSettings) -> dict[str, Any]:
    """Train with an engine, and compare its logprobs and its weights with the trainer's.

    In full it is in this process, where its weights can be read; with LoRA on a GPU in a separate one, as in most runs.
    """
    from agent_gym.trainers.engine import named_weights

    found: dict[str, Any] = {}
    on_gpu = bool(setting.gpus)
    for name, lora in (("full", False), ("lora", True)):
        trainer, numbers = with_engine(setting, lora, vllm_enable_sleep_mode=on_gpu, engine_process=lora and on_gpu)
        trainer.scheduler.hand_over(version=0)
        policy = trainer.runner.policy
        off, compared = engine_off(policy, dict(named_weights(trainer.accelerator.unwrap_model(trainer.model))))
        policy.close()
        check(off == 0, f"{name}: weights in the engine are off by {off:g}, and must be the trainer's bit for bit")
        numbers |= {"weights_off": off, "compared": compared}
        found |= {f"{name}_{key}": value for key, value in numbers.items()}
    return found


def engine_off(policy: Any, weights: dict[str, Any]) -> tuple[float, str]:
    """Largest difference between an engine's weights and the trainer's, and how many of its weights were compared.

    On a CPU the engine keeps weights of layers in its own layout, so that only the others can be compared; the weights
    of an engine in a separate process cannot be read.
    """
    from agent_gym.policies import VLLMPolicy

    if not isinstance(policy, VLLMPolicy):
        return 0.0, "0, the engine is in another process"
    model, off = policy._worker.model_runner.get_model(), []
    named = dict(model.named_parameters())
    for name, weight in named.items():
        joined = [(key, parts) for key, parts in model.packed_modules_mapping.items() if f".{key}." in name]
        names = [name.replace(key, part) for key, parts in joined for part in parts] or [name]
        if weight.numel():
            mine = torch.cat([weights[one].to(weight) for one in names])
            off.append((weight - mine).abs().max().item())
    return max(off), f"{len(off)} of {len(named)}"


def sleep(setting: StageSettings) -> dict[str, Any]:
    """Let an engine take weights, sample, sleep and wake many times, and look at the memory that is taken."""
    from transformers import AutoModelForCausalLM

    from agent_gym.policies import Request, SamplingParams, VLLMPolicy

    process = require("psutil", "train").Process()
    folder = ranks.model_folder(setting, ranks.large(setting))
    device, dtype, cycles = ("cuda", "bfloat16", CYCLES) if setting.gpus else ("cpu", "float32", FEW_CYCLES)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model.to(device)
    policy = VLLMPolicy(folder, [2], context=CONTEXT, dtype=dtype, sleep=bool(setting.gpus))
    began, taken = time.perf_counter(), []
    for cycle in range(cycles):
        policy.sync(model.named_parameters())
        policy.submit(Request(cycle, [3, 4, 5], SamplingParams(16, 1.0, (), cycle)))
        while policy.pending:
            policy.poll()
        policy.sleep()
        free, total = torch.cuda.mem_get_info() if setting.gpus else (0, process.memory_info().rss)
        taken.append(total - free)
    settled = taken[cycles // 5]  # with the compilation and caches of the first cycles
    found = {"cycles": cycles, "seconds_each": round((time.perf_counter() - began) / cycles, 2)}
    found |= {"asleep_gib": round(settled / GIB, 2), "growth_mib": round((taken[-1] - settled) / 2**20, 1)}
    check(taken[-1] - settled < GROWTH, f"memory grew by {found['growth_mib']} MiB in {cycles} cycles")
    return (
        found if setting.gpus else {**found, "sleep": "skipped: on a CPU the engine takes weights and does not sleep"}
    )


def layout(setting: StageSettings, kind: str) -> dict[str, Any]:
    """Train in one process, then in ranks of a layout, on the same episodes, and compare the weights."""
    from safetensors.torch import save_file

    if kind.startswith("zero") and find_spec("deepspeed") is None:
        raise SkippedStage(f"DeepSpeed is not installed: {install_command('deepspeed')}")
    for name in ("full", "lora"):
        batch = 2 * ranks.GROUP * setting.ranks
        trainer = ranks.make_trainer(setting, ranks.TINY, lora=name == "lora", per_device_train_batch_size=batch)
        save_file(ranks.weights_of(trainer), Path(setting.folder, "start.safetensors"))
        trainer.train()
        save_file(ranks.weights_of(trainer), Path(setting.folder, f"{name}.safetensors"))
    found: dict[str, Any] = {"ranks": setting.ranks}
    off = in_ranks(setting, "compare", kind)
    for name in ("full", "lora"):
        found[f"{name}_off"] = worst = float(f"{max(one[name] for one in off):.1e}")
        check(worst <= OFF, f"{name}: the weights are off by {worst} of their largest change, more than {OFF}")
    return found


def in_ranks(setting: StageSettings, *words: str) -> list[dict[str, Any]]:
    """Run ranks to their end and return each one's result; `RolloutError` if one of them failed."""
    for old in Path(setting.folder).glob("rank-*.failed"):
        old.unlink()
    done = subprocess.run(ranks.command(setting, *words), env=environment(setting.gpus))
    # The first to fail is the cause: the others then wait for it in vain, and fail too.
    for failed in sorted(Path(setting.folder).glob("rank-*.failed"), key=lambda one: one.stat().st_mtime)[:1]:
        failure = json.loads(failed.read_text(encoding="utf-8"))
        print(failure["traceback"], file=sys.stderr)  # once more: in the log the launcher's own error follows it
        raise RolloutError(f"{failed.stem} of {setting.ranks}: {failure['why']}")
    check(done.returncode == 0, f"the ranks ended with {done.returncode}")
    results = [Path(setting.folder, f"rank-{rank}.json") for rank in range(setting.ranks)]
    return [json.loads(result.read_text(encoding="utf-8")) for result in results]


def environment(gpus: Sequence[str]) -> dict[str, str]:
    """Return the environment variables of processes that have these GPUs."""
    inherited = {name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    return inherited | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {"ACCELERATE_USE_CPU": "true"})


@contextmanager
def serving(setting: StageSettings, model: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Yield the address of a model server, which may still be loading, and its process; it has the last GPU."""
    port = ranks.free_port()
    words = [sys.executable, "-m", "agent_gym", "serve", "model", model, "--port", port, "--context", str(CONTEXT)]
    words += ["--", "--gpu-memory-utilization", "0.3"] if setting.gpus else ["--kv_cache_gib", "0.1"]
    process = subprocess.Popen(words, env=environment(setting.gpus[-1:]))
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        end(process)


def server(setting: StageSettings) -> dict[str, Any]:
    """Train with a model server; return how fast it takes weights in each way, in GB per second."""
    shape = ranks.large(setting)
    found: dict[str, Any] = {}
    # NCCL refuses two members on one GPU.
    ways = ("files",) if len(setting.gpus) == 1 else ("files", "broadcast")
    with serving(setting, ranks.model_folder(setting, shape)) as (url, _):
        for way in ways:
            trainer, numbers = with_engine(setting, layout="server", vllm_server_base_url=url, weights_transfer=way)
            trainer.runner.policy.close()
            seconds = min(log["time/sync"] for log in trainer.state.log_history if "time/sync" in log)
            size = sum(weight.nbytes for weight in trainer.model.parameters())
            found |= {f"{way}_gb_per_s": round(size / 1e9 / seconds, 3), f"{way}_s": round(seconds, 2)}
            found[f"{way}_logprobs_off"] = numbers["logprobs_off"]
    return found


def kill(setting: StageSettings) -> dict[str, Any]:
    """Kill a server that is sampling, and a rank that is training; return the seconds until it is reported."""
    from agent_gym.policies import Request, SamplingParams, VLLMServerPolicy

    with serving(setting, ranks.model_folder(setting, ranks.TINY)) as (url, process):
        policy = VLLMServerPolicy([url], [2], context=CONTEXT)
        for number in range(64):
            policy.submit(Request(number, [3, 4, 5], SamplingParams(CONTEXT - 8, 1.0, (), number)))
        end(process)
        began = time.perf_counter()
        try:
            while policy.pending:
                policy.poll()
            raise AssertionError("the server was killed, and answered all")
        except RolloutError as error:
            found = {"server_s": round(time.perf_counter() - began, 1), "message": str(error).partition(" (")[0]}
    if len(setting.gpus) == 1:
        return {**found, "rank": "skipped: there is one"}
    words = ranks.command(setting, "endless")
    launcher = subprocess.Popen(words, env=environment(setting.gpus), stdout=subprocess.PIPE, text=True)
    try:
        steps = (line for line in launcher.stdout or () if "'loss'" in line)
        check(next(steps, "") != "", "the ranks ended before one was killed")
        require("psutil", "train").Process(launcher.pid).children()[-1].kill()
        began = time.perf_counter()
        launcher.communicate()
        return {**found, "rank_s": round(time.perf_counter() - began, 1)}
    finally:
        end(launcher)


def speed(setting: StageSettings, kind: str) -> dict[str, Any]:
    """Measure training with the engine on the same GPUs; the peak of memory is held against `plan`."""
    if not setting.gpus and kind == "fsdp2":
        raise SkippedStage("there is no GPU whose memory could be measured")
    shape = ranks.large(setting)
    ranks.model_folder(setting, shape)
    found = in_ranks(setting, "race", kind)[0]
    if setting.gpus:
        total = torch.cuda.mem_get_info()[1]
        limits = {"episode_tokens": ranks.EPISODE, "micro_batch_tokens": ranks.MICRO_BATCH, "lora_rank": 16}
        planned = {one.config: one for one in reversed(plan(shape, len(setting.gpus), total, **limits))}
        one = planned["single" if len(setting.gpus) == 1 else kind]
        found["plan_gib"] = limit = round((one.training + RESERVED_SHARE * total) / GIB, 2)
        check(found["peak_gib"] <= limit, f"the peak is {found['peak_gib']} GiB, and plan has {limit}")
    return found


RUN: dict[str, Callable[[StageSettings], dict[str, Any]]] = {
    **{stage.__name__: stage for stage in (machine, engine, sleep, server, kill)},
    **{kind: partial(layout, kind=kind) for kind in ("ddp", "zero2", "zero3", "fsdp2")},
    "speed": partial(speed, kind="ddp"),
    "memory": partial(speed, kind="fsdp2"),
}


def main(words: Sequence[str]) -> None:
    """Try a stage, and write the result into a file of its name."""
    stage, setting = words[0], StageSettings(**json.loads(words[1]))
    from agent_gym.policies.vllm import set_environment

    set_environment()
    if setting.gpus:  # with several, a trainer in one process would spread its batches over all
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(setting.gpus if stage == "machine" else setting.gpus[:1])
    answer: dict[str, Any] = {"status": "ok", "numbers": {}}
    try:
        answer["numbers"] = RUN[stage](setting)
    except SkippedStage as reason:
        answer |= {"status": "skipped", "why": str(reason)}
    except Exception as error:
        traceback.print_exc()
        answer |= {"status": "failed", "why": described(error)[:400]}
    Path(setting.folder, f"{stage}.json").write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # threads of an engine that failed would keep the process
