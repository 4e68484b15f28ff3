"""`agent-gym doctor --cpu`, as a user calls it: real engines, servers and ranks with tiny random models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_tools import complaint

pytest.importorskip("trl")
pytest.importorskip("psutil")
torch = pytest.importorskip("torch")

from trainer_tools import in_ranks  # noqa: E402

from agent_gym import doctor  # noqa: E402
from agent_gym.cli.main import main  # noqa: E402
from agent_gym.doctor import laptop, ranks, stages  # noqa: E402
from agent_gym.errors import RolloutError  # noqa: E402
from agent_gym.speedrun.presets import PRESETS  # noqa: E402


def examined(folder: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run the command; return its process, and the stages of its report by name."""
    command = [sys.executable, "-m", "agent_gym", "doctor", "--cpu", "--output_dir", str(folder), *words]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, env=environment)
    stages = json.loads((folder / "report.json").read_text())["stages"]
    return done, {stage["stage"]: stage for stage in stages}


def test_it_reports_the_stages_that_are_asked_for(tmp_path: Path) -> None:
    done, found = examined(tmp_path, "--only", "memory,machine")
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(found) == ["machine", "memory"], "in the order of the stages"
    assert found["machine"]["numbers"]["torch"] == torch.__version__
    assert found["memory"]["status"] == "skipped" and "no GPU" in found["memory"]["why"]
    assert done.stdout.startswith("machine  ok") and "nothing failed" in done.stdout


@pytest.mark.slow
@pytest.mark.vllm
def test_it_compares_the_engine_and_reports(tmp_path: Path) -> None:
    done, found = examined(tmp_path, "--only", "memory,engine,machine")
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(found) == ["machine", "engine", "memory"], "in the order of the stages"
    assert found["machine"]["numbers"]["torch"] == torch.__version__
    engine = found["engine"]["numbers"]
    assert 0 < engine["lora_logprobs_off"] < 1e-4 and engine["lora_weights_moved"] > 1e-3
    assert found["memory"]["status"] == "skipped" and "no GPU" in found["memory"]["why"]
    page = (tmp_path / "report.md").read_text()
    assert all(f"| {stage} | {one['status']} |" in page for stage, one in found.items())
    assert done.stdout.startswith("machine  ok") and "nothing failed" in done.stdout


def test_it_compares_a_layout_with_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In ranks that are there at once; the slow test has them started as the command does."""
    setting = doctor.StageSettings([], str(tmp_path))
    monkeypatch.setattr(stages, "in_ranks", lambda setting, _, kind: in_ranks(ranks.compare, 2, setting, kind))
    found = stages.layout(setting, "fsdp2")
    assert 0 < found["full_off"] < 0.01 and 0 < found["lora_off"] < 0.01


@pytest.mark.slow
@pytest.mark.vllm
def test_all_stages_run_without_a_gpu(tmp_path: Path) -> None:
    done, found = examined(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert tuple(found) == doctor.STAGES
    assert {"zero2", "zero3", "memory"} >= {name for name, one in found.items() if one["status"] == "skipped"}
    assert found["kill"]["numbers"]["server_s"] < 60 and found["kill"]["numbers"]["rank_s"] < 60
    assert (
        found["server"]["numbers"]["broadcast_gb_per_s"] > 0 and found["speed"]["numbers"]["rollout_tokens_per_s"] > 0
    )


def test_what_fails_hangs_or_dies_is_reported_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = doctor.StageSettings([], str(tmp_path))
    instead_of_stages = tmp_path / "agent_gym_doctor_stages.py"
    instead_of_stages.write_text(
        "import os, subprocess, sys, time\n"
        "if sys.argv[1] == 'engine':\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "    print(child.pid, flush=True)\n"
        "    time.sleep(600)\n"
        "print('killed for want of memory', flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    run = subprocess.Popen

    def instead(words: list[str], **options: Any) -> Any:
        return run([sys.executable, str(instead_of_stages), *words[3:]], **options)

    monkeypatch.setattr(subprocess, "Popen", instead)
    monkeypatch.setattr(doctor, "LIMIT_S", 3.0)
    results = [doctor.run_stage(setting, stage) for stage in ("engine", "sleep")]
    assert [result.status for result in results] == ["failed", "failed"]
    assert results[0].why == "not done within 3 s" and results[1].why == "its process ended with -9"
    child = int((tmp_path / "engine.log").read_text())
    assert not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]
    doctor.write_report(setting, results)
    assert "killed for want of memory" in (tmp_path / "report.md").read_text(), "the end of its log"


def test_an_error_of_several_lines_is_one_row_of_the_report(tmp_path: Path) -> None:
    setting = doctor.StageSettings((), str(tmp_path))
    (tmp_path / "engine.log").write_text("Traceback\n")
    doctor.write_report(setting, [doctor.Result("engine", "failed", 1.0, {"cycles": 5}, "RuntimeError: a\n\n  b\n")])
    assert (
        "| engine | failed | 1.0 | RuntimeError: a b; cycles 5 |" in (tmp_path / "report.md").read_text().splitlines()
    )


@pytest.mark.slow
def test_ranks_that_fail_say_why(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rank-0.failed").write_text('{"why": "an old one", "traceback": ""}')
    setting = doctor.StageSettings([], str(tmp_path))
    with pytest.raises(RolloutError, match=r"rank-[01] of 2: .*full\.safetensors"):
        stages.in_ranks(setting, "compare", "ddp")  # there are no weights to compare with
    log = capfd.readouterr().err
    assert log.rindex("in compare\n") > log.rindex("ChildFailedError"), "the rank's traceback is at the end"


def test_it_names_what_is_wrong(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    text = complaint(capsys, "doctor", "--gpus", "1")
    assert "torch sees 0 GPUs here" in text and "--cpu" in text
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert "--gpus is 4, and torch sees 2 GPUs" in complaint(capsys, "doctor", "--gpus", "4")
    assert "--cpu tries no GPU, and --gpus is 1" in complaint(capsys, "doctor", "--cpu", "--gpus", "1")
    assert "no stage 'engin'; did you mean engine" in complaint(capsys, "doctor", "--cpu", "--only", "engin")


@pytest.mark.parametrize("engine", ["vllm", None])
def test_without_a_gpu_it_says_which_presets_this_machine_trains(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(laptop, "find_spec", lambda name: engine)
    monkeypatch.setenv("AGENT_GYM_CACHE", str(tmp_path))  # without a prepared model
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines if line.split()[:1] and line.split()[0] in PRESETS}
    assert rows.keys() == PRESETS.keys() and max(map(len, lines)) <= 100
    assert rows["zero"].endswith("agent-gym prepare smollm2") and rows["gpu"].endswith("a GPU")
    assert int(rows["bisect"].split()[1]) >= 1 and "not timed" not in rows["zero"]


def test_minutes_follow_the_speed_of_a_core() -> None:
    preset = replace(PRESETS["zero"], seconds=(600.0, 1200.0))
    assert laptop.minutes(preset, 1.0) == "10 to 20" and laptop.minutes(preset, 3.0) == "30 to 60"
    assert laptop.minutes(replace(preset, seconds=(300.0,)), 1.0) == "5"
    assert laptop.minutes(replace(preset, seconds=()), 1.0) == "not timed"
