"""The speedrun in miniature: every stage of the real one, with numbers that make it take seconds."""

from __future__ import annotations

import dataclasses
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.evaluate import wilson_interval  # noqa: E402
from agent_gym.examples.presets import CPU, PRESETS, Imitation, Preset, get_preset  # noqa: E402
from agent_gym.examples.speedrun import imitate, imitation_settings, run_speedrun  # noqa: E402
from agent_gym.examples.tiny import make_tiny_model  # noqa: E402
from agent_gym.rollout import read_trajectories  # noqa: E402
from agent_gym.trainers import AgentGRPOConfig  # noqa: E402

SGD = {"learning_rate": 4e-3, "lr_scheduler_type": "constant"}
MINI = dataclasses.replace(
    CPU,
    imitation=(
        Imitation("imitation", episodes=40, styles={"default": 1.0}, steps=6, batch=8, settings=SGD),
        Imitation("mixture", episodes=20, styles={"default": 0.5, "direct": 0.5}, steps=2, batch=8, settings=SGD),
    ),
    train_tasks=16,
    dev_tasks=3,
    test_tasks=5,
    grpo={**CPU.grpo, "max_steps": 3, "per_device_train_batch_size": 8, "num_generations": 4, "micro_batch_size": 4,
          "eval_steps": 2, "max_num_seqs": 16, "max_turn_tokens": 12, "max_turns": 2},
)  # fmt: skip


def run(folder: Path, capfd: pytest.CaptureFixture[str], preset: Preset = MINI, **options: Any) -> tuple[Any, str]:
    results = run_speedrun(preset, seed=1, output_dir=folder, **options)
    return results, capfd.readouterr().out


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), MINI.env_id, MINI.env_kwargs, demonstrations=200)


@pytest.mark.parametrize("engine", ["transformers", pytest.param("vllm", marks=pytest.mark.vllm)])
def test_every_stage_leaves_what_it_should(tmp_path: Path, capfd: pytest.CaptureFixture[str], engine: str) -> None:
    if engine == "vllm" and find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    results, printed = run(tmp_path, capfd, engine="auto" if engine == "vllm" else engine)
    assert results == json.loads((tmp_path / "results.json").read_text())
    assert results["engine"] == engine
    policies = ["imitation", "mixture", "GRPO policy"]
    played = [(name, decoding) for name in policies for decoding in ("greedy", "sampled")]
    assert [(row["policy"], row["decoding"]) for row in results["results"]] == played
    for row in results["results"]:
        assert row["episodes"] == 5 and row["failed"] == 0
        low, high = wilson_interval(round(row["success"] * 5), 5)
        assert (row["low"], row["high"]) == pytest.approx((low, high))
        assert f"| {row['policy']:<32} | {row['decoding']:<8} | {row['success']:6.1%} [" in printed
    seconds = dict(results["seconds"])
    total = seconds.pop("total")
    assert 0.5 * total < sum(seconds.values()) <= total
    assert set(seconds) == {"model", "engine start", "imitation", "evaluation", "GRPO"}
    assert "split test, seed 1. Success with 95% Wilson intervals." in printed
    assert "step   0  dev success" in printed and "step   3  reward" in printed

    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "<html" in (tmp_path / "trajectories.html").read_text()
    for name in ("tiny", "sft", "grpo"):
        AutoModelForCausalLM.from_pretrained(tmp_path / name)
        AutoTokenizer.from_pretrained(tmp_path / name)
    trajectories = tmp_path / "grpo" / "trajectories"
    files = [("eval", step) for step in (0, 2, 3)] + [("train", step) for step in range(3)]
    assert {path.name for path in trajectories.iterdir()} == {f"{mode}_{step:06d}_0.jsonl" for mode, step in files}
    tested = {record["spec"]["split"] for record in read_trajectories(trajectories / "eval_000000_0.jsonl")}
    assert tested == {"validation"}


@pytest.mark.slow
@pytest.mark.vllm
def test_an_engine_that_does_not_start_is_replaced_with_a_message(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # More context than the model has is one of the reasons for which vLLM does not start.
    preset = dataclasses.replace(MINI, grpo={**MINI.grpo, "max_episode_tokens": 4096})
    results, printed = run(tmp_path / "auto", capfd, preset, engine="auto")
    assert results["engine"] == "transformers" and "Going on with the transformers engine" in printed
    with pytest.raises(ConfigError, match="vLLM cannot serve"):
        run(tmp_path / "vllm", capfd, preset, engine="vllm")


def test_a_phase_ends_when_it_has_reached_its_loss(tiny: Path, tmp_path: Path) -> None:
    args = AgentGRPOConfig(str(tmp_path / "grpo"), **MINI.grpo)
    seen: dict[float, int] = {}

    class Steps(TrainerCallback):
        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen[loss] = state.global_step

    for loss in (100.0, 0.0):
        phase = dataclasses.replace(MINI.imitation[0], steps=30, until_loss=loss)
        model = AutoModelForCausalLM.from_pretrained(tiny)
        settings = imitation_settings(phase, tmp_path / "sft", 0, args)
        imitate(MINI, phase, model, AutoTokenizer.from_pretrained(tiny), settings, [Steps()])
    assert seen == {100.0: 25, 0.0: 30}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def play(name: str) -> Any:
        results, _ = run(tmp_path / name, capfd, engine="transformers")
        files = sorted((tmp_path / name / "grpo" / "trajectories").iterdir())
        rows = [row for path in files for record in read_trajectories(path) for row in record["rows"]]
        return [(row["success"], row["reward"]) for row in results["results"]], rows

    (numbers, rows), (numbers_again, rows_again) = play("one"), play("two")
    assert numbers == numbers_again
    for one, other in zip(rows, rows_again, strict=True):
        assert one["token_ids"] == other["token_ids"]
        # Which rows share a batch depends on which environment answered first, and the last digits depend on that.
        assert one["logprobs"] == pytest.approx(other["logprobs"], abs=1e-5)


@pytest.mark.slow
def test_without_imitation_a_given_model_is_evaluated_first(
    tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    preset = dataclasses.replace(MINI, model=str(tiny), imitation=())
    results, _ = run(tmp_path, capfd, preset, engine="transformers")
    assert [row["policy"] for row in results["results"]] == ["before RL"] * 2 + ["GRPO policy"] * 2


def test_presets_are_complete_runs() -> None:
    for name, preset in PRESETS.items():
        assert get_preset(name) is preset
        settings = {**preset.grpo, "bf16": False, "use_cpu": True}
        args = AgentGRPOConfig("unused", eval_strategy="steps", **settings)
        assert args.batch_tasks * args.num_generations == args.generation_batch_size


def test_what_cannot_be_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="preset is 'tpu'; allowed: cpu, gpu, alfworld"):
        run_speedrun("tpu", output_dir=tmp_path)
    with pytest.raises(ConfigError, match="engine is 'sglang'; allowed: auto, vllm, transformers"):
        run_speedrun(MINI, output_dir=tmp_path, engine="sglang")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="needs an NVIDIA GPU"):
            run_speedrun("gpu", output_dir=tmp_path)
    missing = dataclasses.replace(MINI, model=str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="cannot load the model .*nothing"):
        run_speedrun(missing, output_dir=tmp_path, engine="transformers")
