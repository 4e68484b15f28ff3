"""The speedrun in miniature: every stage of the real one in seconds, and the tiny model that it makes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from cli_tools import complaint  # noqa: E402
from trainer_tools import distance, weights  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer  # noqa: E402

import agent_gym  # noqa: E402
from agent_gym.chat import ChatRenderer  # noqa: E402
from agent_gym.cli import start  # noqa: E402
from agent_gym.cli.main import main  # noqa: E402
from agent_gym.cli.start import speedrun  # noqa: E402
from agent_gym.data import MODELS  # noqa: E402
from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.evaluate import wilson_interval  # noqa: E402
from agent_gym.rollout import from_record, read_trajectories  # noqa: E402
from agent_gym.rollout.episode import episode_values  # noqa: E402
from agent_gym.speedrun.figure import draw_figure  # noqa: E402
from agent_gym.speedrun.presets import (  # noqa: E402
    ALGORITHMS,
    PRESETS,
    TINY_GRPO,
    Controls,
    Imitation,
    Preset,
    own_preset,
    trained_by,
)
from agent_gym.speedrun.run import Speedrun, finished, run_seeds, run_speedrun  # noqa: E402
from agent_gym.speedrun.tiny import demonstration_texts, make_tiny_model, make_tiny_tokenizer  # noqa: E402
from agent_gym.trainers import AgentGRPOConfig, AgentPPOConfig  # noqa: E402
from agent_gym.trainers.run_file import RL_PARTS, history  # noqa: E402
from agent_gym.trainers.sft import expert_episodes  # noqa: E402

GSM8K = "AgentR1/GSM8K-v0"
KWARGS = {"system_prompt": ""}
SUPPORT = PRESETS["support"]

SGD = {"learning_rate": 4e-3, "lr_scheduler_type": "constant"}
MINI = Preset(
    GSM8K,
    {**KWARGS, "difficulty": 2},
    tiny={"vocab_size": 400},
    imitation=(
        Imitation("imitation", episodes=40, styles={"default": 1.0}, steps=6, batch=8, settings=SGD),
        Imitation("mixture", episodes=20, styles={"default": 0.5, "direct": 0.5}, steps=2, batch=8, settings=SGD),
    ),
    train_tasks=16,
    dev_tasks=3,
    test_tasks=5,
    grpo={**TINY_GRPO, "max_steps": 3, "per_device_train_batch_size": 8, "num_generations": 4, "micro_batch_size": 4,
          "eval_steps": 2, "max_num_seqs": 16, "max_turn_tokens": 12, "max_turns": 2},
)  # fmt: skip


@pytest.mark.parametrize(
    "engine", [pytest.param("transformers", marks=pytest.mark.slow), pytest.param("vllm", marks=pytest.mark.vllm)]
)
def test_every_stage_leaves_what_it_should(tmp_path: Path, capfd: pytest.CaptureFixture[str], engine: str) -> None:
    results = run_speedrun(MINI, 1, tmp_path, engine="auto" if engine == "vllm" else engine)
    printed = capfd.readouterr().out
    assert results == json.loads((tmp_path / "results.json").read_text())
    assert results["engine"] == engine
    policies = ["imitation", "mixture", "GRPO policy"]
    played = [("expert", "-"), *((name, decoding) for name in policies for decoding in ("greedy", "sampled"))]
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
    assert "split test, seed 1. Success with 95% Wilson intervals over distinct prompts." in printed
    assert results["results"][0]["success"] == 1.0 and "GRPO policy minus mixture" in printed
    assert results["results"][4]["success"] == 0.0 and "RL has little to compare" in printed
    # What helps is printed as a program that runs with this environment (here without the run itself).
    lines = printed.split("numbers and frames are examples):\n")[1].split("\n[")[0]
    program = textwrap.dedent(lines).replace("run_speedrun(replace", "changed = (replace")
    exec(program, found := dict[str, Any]())
    changed = found["changed"]
    assert (changed.env_id, changed.env_kwargs) == (MINI.env_id, MINI.env_kwargs)
    assert changed.imitation[0].steps == 1000 and changed.tiny["frames"]
    assert "step   0  dev success" in printed and "step   3  reward" in printed
    # With other arguments, such as a system prompt that it has not seen, the model is another player.
    command = shlex.split(printed.partition("measure it    agent-gym eval ")[2].partition("\n")[0])
    assert command[:-1] == [MINI.env_id, "--model", str(tmp_path / "grpo"), "--env_kwargs"]
    assert json.loads(command[-1]) == MINI.env_kwargs
    assert f"talk to it    agent-gym chat {MINI.env_id} --model {tmp_path / 'grpo'}" in printed

    # It is a run like any other, and its parts are runs in it.
    assert main(["runs", str(tmp_path.parent)]) == 0
    whole, *parts = [line.split()[:4] for line in capfd.readouterr().out.splitlines() if str(tmp_path) in line][:1]
    assert whole == [str(tmp_path), "speedrun", "done", "3/3"] and not parts
    assert main(["runs", str(tmp_path)]) == 0
    rows = {line.split()[0]: line.split()[1:3] for line in capfd.readouterr().out.splitlines()}
    assert rows["grpo"] == ["AgentGRPOTrainer", "done"] and rows["sft_run"] == ["SFTTrainer", "done"]
    assert main(["view", str(tmp_path)]) == 0
    page = Path(capfd.readouterr().out.strip()).read_text()
    assert f"<h1>{MINI.env_id}, a tiny model, {tmp_path.name}</h1>" in page and "change.html" in page
    assert "in 3 steps" in page and "speedrun --preset &#x27;made in Python&#x27;" in page
    assert "speedrun, which starts from the beginning each time" in complaint(capfd, "resume", str(tmp_path))
    assert main(["compare", str(tmp_path), str(tmp_path / "grpo")]) == 0
    assert "3 tasks paired" in capfd.readouterr().out

    assert "The run is over." in (tmp_path / "curve.html").read_text()
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "trajectories.html").read_text()
    assert f"<title>{MINI.env_id}: all 3 validation tasks. Solved, greedy: validation " in page
    for name in ("tiny", "sft", "grpo"):
        AutoModelForCausalLM.from_pretrained(tmp_path / name)
        AutoTokenizer.from_pretrained(tmp_path / name)
    trajectories = tmp_path / "grpo" / "trajectories"
    files = [("eval", step) for step in (0, 2, 3)] + [("train", step) for step in range(3)]
    assert {path.name for path in trajectories.iterdir()} == {f"{mode}_{step:06d}_0.jsonl" for mode, step in files}
    tested = {record["spec"]["split"] for record in read_trajectories(trajectories / "eval_000000_0.jsonl")}
    assert tested == {"validation"}


@pytest.mark.slow
def test_a_preset_with_controls_shows_its_start_and_trains_both_from_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # At a rate of 0 the control ends where it has begun: at the weights of the start.
    controls = Controls(more_sft_rate=0.0, self_imitation_rate=1e-3, rounds=2, best_of=2, raft=True)
    # RL moves its weights, though no episode of a miniature is better than another.
    grpo = {**MINI.grpo, "entropy_coef": 0.1, "warmup_steps": 0}
    preset = dataclasses.replace(MINI, controls=controls, test_split="train", grpo=grpo)
    found = run_seeds(preset, (1, 2), tmp_path, engine="transformers")
    printed = capfd.readouterr().out
    names = ["imitation", "mixture", "GRPO policy", "more SFT", "best-of-2 self-imitation", "RAFT++"]
    rows = [(name, decoding) for name in names for decoding in ("greedy", "sampled")]
    assert [(row["policy"], row["decoding"]) for row in found["results"]] == rows
    assert found == json.loads((tmp_path / "seeds.json").read_text()) and found["seeds"] == [1, 2]

    results = json.loads((tmp_path / "seed_1" / "results.json").read_text())
    assert [row["reward"]["values"][0] for row in found["results"]] == [row["reward"] for row in results["results"]]
    drawn, files = draw_figure(tmp_path)
    assert f"figure        {files[0]}, figure.svg" in printed and [file.suffix for file in files] == [".png", ".svg"]
    assert drawn["seeds"] == [1, 2] and drawn["steps"] == [0, 2, 3]
    runs = [results, json.loads((tmp_path / "seed_2" / "results.json").read_text())]
    for name in ("success", "tokens", "turns" if "turns" in drawn else "tool_calls"):
        values = zip(*([record[name] for record in run["dev"]["evaluations"]] for run in runs), strict=True)
        assert [one["values"] for one in drawn[name]] == [list(at_step) for at_step in values]
    held_to: dict[str, list[float]] = {row["policy"]: [] for row in results["dev"]["controls"]}
    for run in runs:
        for row in run["dev"]["controls"]:
            held_to[row["policy"]].append(row["success"])
    held_to["start: mixture"] = drawn["success"][0]["values"]
    held_to["demonstrator, on training tasks"] = [run["start"]["demonstrator"]["success"]["value"] for run in runs]
    assert {name: one["values"] for name, one in drawn["lines"].items()} == held_to and len(held_to) == 5
    # At a rate of 0 more SFT is the start: it has played the same dev tasks.
    assert held_to["more SFT"] == held_to["start: mixture"]
    for record in results["dev"]["evaluations"]:
        path = tmp_path / "seed_1" / "grpo" / "trajectories" / f"eval_{record['step']:06d}_0.jsonl"
        episodes = [from_record(one) for one in read_trajectories(path)]
        assert len(episodes) == 3
        for name in ("success", "turns", "tool_calls", "tokens"):
            played = [episode_values(episode)[f"episode/{name}"] for episode in episodes]
            assert record[name] == pytest.approx(sum(played) / 3)

    used = dict(results["used_seconds"])
    assert used.pop("RAFT++") > 0  # it has RL's steps, and not its seconds
    assert min(used.values()) == used["GRPO policy"] > 0
    assert results["raft_steps"] == results["dev"]["evaluations"][-1]["step"] == 3
    assert results["more_sft_steps"] > 0 and len(results["rounds"]) == 2
    assert all(one["played"] > 0 for one in results["rounds"])
    start = results["start"]
    assert start["demonstrator"]["episodes"] == 20 and start["demonstrator"]["success"]["value"] == 1.0
    assert start["headroom"]["tasks"] == 5 and start["headroom"]["attempts"] == 8
    assert start["headroom"]["pass@8"]["value"] >= start["headroom"]["pass@1"]["value"]
    # A series that is started again takes what it has; with other settings, or another engine, it does not.
    again = run_seeds(preset, (1, 2), tmp_path, engine="auto")
    assert again == found and "seed 2 is finished" in capfd.readouterr().out
    assert finished(preset, tmp_path / "seed_1", "transformers") == results
    assert finished(preset, tmp_path / "seed_1", "vllm") is None
    assert finished(dataclasses.replace(preset, attempts=4), tmp_path / "seed_1", "auto") is None
    (tmp_path / "seed_1" / "results.json").write_text(json.dumps(results)[:100])
    assert finished(preset, tmp_path / "seed_1", "auto") is None
    # This miniature is tested on what it is trained on, and says so.
    assert start["distinct_test_prompts"] == start["test_prompts_in_training"] == 5 and start["training_tasks"] == 40
    seen = "5 of these are among those of the 40 tasks of training"
    assert f"test tasks: 5, which are 5 distinct prompts; {seen}" in printed
    pairs = [("GRPO policy", "mixture"), *(("GRPO policy", name) for name in names[3:]), ("more SFT", "mixture")]
    assert list(dict.fromkeys((d["policy"], d["against"]) for d in results["differences"])) == pairs
    assert "GRPO policy minus best-of-2 self-imitation" in printed and "Seconds of training: GRPO" in printed

    moved, same, begun = (
        weights(AutoModelForCausalLM.from_pretrained(tmp_path / "seed_1" / name))
        for name in ("grpo", "more_sft", "sft")
    )
    assert distance(same, begun) == 0.0 and distance(moved, begun) > 0.0
    # Nor do controls change what is measured before them. What an earlier run has left does not get into this one.
    used_before = tmp_path / "plain" / "grpo"
    (used_before / "trajectories").mkdir(parents=True)
    for name in ("eval_000104_0.jsonl", "train_000103_0.jsonl", "mine.jsonl"):
        (used_before / "trajectories" / name).write_text("{}\n")
    (used_before / "log.jsonl").write_text('{"step": 104}\n')
    plain = run_speedrun(dataclasses.replace(preset, controls=None), 1, tmp_path / "plain", engine="transformers")
    for row, without in list(zip(results["results"], plain["results"][1:], strict=False))[::2]:  # the greedy ones
        assert row["success"] == without["success"] and row["reward"] == pytest.approx(without["reward"], abs=1e-6)
    assert {row["decoding"]: row["episodes"] for row in results["results"]} == {"greedy": 5, "sampled": 5 * 8}
    files = sorted(file.name for file in (used_before / "trajectories").iterdir())
    assert files[2] == "eval_000003_0.jsonl" and files[3] == "mine.jsonl" and len(files) == 7
    assert max(log["step"] for log in history(used_before)) == 3


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    def play(name: str) -> Any:
        results = run_speedrun(MINI, 1, tmp_path / name, engine="transformers")
        files = sorted((tmp_path / name / "grpo" / "trajectories").iterdir())
        rows = [row for path in files for record in read_trajectories(path) for row in record["rows"]]
        return [(row["success"], row["reward"]) for row in results["results"]], rows

    (numbers, rows), (numbers_again, rows_again) = play("one"), play("two")
    assert numbers == numbers_again
    for one, other in zip(rows, rows_again, strict=True):
        assert one["token_ids"] == other["token_ids"]
        # Which rows share a batch depends on which environment answered first, and the last digits depend on that.
        assert one["logprobs"] == pytest.approx(other["logprobs"], abs=1e-5)


def test_presets_are_complete_runs() -> None:
    for preset in PRESETS.values():
        settings = {**preset.grpo, "bf16": False, "use_cpu": True}
        args = AgentGRPOConfig("unused", eval_strategy="steps", **settings)
        assert args.batch_tasks * args.num_generations == args.generation_batch_size


@pytest.mark.parametrize("name", sorted(name for name, preset in PRESETS.items() if preset.controls))
def test_the_player_who_is_imitated_is_right_as_often_as_his_style_and_follows_from_the_seed(name: str) -> None:
    preset = PRESETS[name]
    (phase,) = {tuple(phase.styles.items()) for phase in preset.imitation}
    ((style, share),) = phase

    def episode(env: Any, seed: int) -> tuple[list[str], bool]:
        actions, over, info = [], False, env.reset(seed=seed)[1]
        while not over:
            actions.append(env.unwrapped.expert_action(style=style))
            _, _, terminated, truncated, info = env.step(actions[-1])
            over = terminated or truncated
        return actions, bool(info["is_success"])

    with contextlib.closing(agent_gym.make(preset.env_id, split="train", **preset.env_kwargs)) as env:
        played = [episode(env, seed) for seed in range(40)]
        assert played[:5] == [episode(env, seed) for seed in range(5)]
    solved = sum(success for _, success in played)
    assert share == 1.0 and (solved == 40 if style == "default" else 0 < solved < 40)


def test_long_texts_begin_with_smollm2_where_it_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_GYM_CACHE", str(tmp_path))
    long = "AgentR1/PaperSearch-v1"
    with pytest.warns(UserWarning, match=r"up to \d,\d+ characters.*agent-gym prepare smollm2"):
        assert own_preset(long).model is None
    (tmp_path / "smollm2" / MODELS["smollm2"]).mkdir(parents=True)
    with pytest.warns(UserWarning, match="begins with smollm2 .--model tiny"):
        found = own_preset(long, imitation_steps=7)
    assert (found.model, found.imitation[0].steps, "system_prompt" in found.env_kwargs) == ("smollm2", 7, False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert own_preset(long, model="tiny").model is None and own_preset("AgentR1/Bisect-v0").model is None


def test_a_record_has_the_command_that_repeats_a_speedrun(tmp_path: Path) -> None:
    own = own_preset("AgentR1/Bisect-v0", imitation_steps=7)
    made = {
        "--preset bisect": PRESETS["bisect"],
        """--env AgentR1/Bisect-v0 --env_kwargs '{"system_prompt": ""}' --model tiny --imitation_steps 7""": own,
        "--preset 'made in Python'": dataclasses.replace(PRESETS["bisect"], patience=3),
        "ppo --preset bargain": trained_by(PRESETS["bargain"], "ppo"),
    }
    for words, preset in made.items():
        assert shlex.join(Speedrun(preset, 3, tmp_path, None)._words()) == f"{words} --seed 3 --output_dir {tmp_path}"


def test_the_command_knows_all_presets_and_algorithms() -> None:
    assert sorted(start._PRESETS) == sorted(PRESETS) and [*start._ALGORITHMS] == [*ALGORITHMS] == [*RL_PARTS]


@pytest.mark.parametrize("name", ["ppo", "rpp"])
def test_each_preset_is_a_run_of_each_algorithm(name: str) -> None:
    for preset in PRESETS.values():
        other = trained_by(preset, name)
        config = AgentPPOConfig if name == "ppo" else AgentGRPOConfig
        args = config("unused", eval_strategy="steps", **{**other.grpo, "bf16": False, "use_cpu": True})
        assert args.num_generations == 1 and args.estimator.needs_critic == (name == "ppo")
        before = AgentGRPOConfig("unused", **{**preset.grpo, "bf16": False, "use_cpu": True})
        assert (args.generation_batch_size, args.rollout_steps) == (before.generation_batch_size, before.rollout_steps)
        assert not (other.controls and other.controls.raft)
    assert trained_by(SUPPORT, "grpo") is SUPPORT


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ppo"], ["AgentR1/Bisect-v0", "PPO               60 steps, 256 episodes a rollout", "runs/speedrun_ppo\n"]),
        (["rpp", "webshop"], ["AgentR1/WebShop-v0", "REINFORCE++       200 steps", "runs/speedrun_rpp\n"]),
        (["--preset", "support", "grpo", "--seed", "3"], ["Support-v0", "seeds [3]\n", "GRPO ", "runs/speedrun\n"]),
        (["ppo", "--seeds", "1,2", "--output_dir", "x"], ["seeds [1, 2]\n", " x\n"]),
    ],
)
def test_an_algorithm_is_named_by_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, words: list[str], told: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["speedrun", *words, "--dry_run"]) == 0
    printed = capsys.readouterr().out
    assert all(text in printed for text in told), printed
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "label"), [("ppo", "PPO"), ("rpp", "REINFORCE++")])
def test_a_run_of_another_algorithm_says_so_everywhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, label: str
) -> None:
    results = run_speedrun(trained_by(MINI, name), 1, tmp_path, engine="transformers")
    printed = capfd.readouterr().out
    assert [row["policy"] for row in results["results"]][-1] == f"{label} policy" and results["algorithm"] == label
    assert f"--model {tmp_path / name}" in printed and "GRPO" not in printed and label in results["seconds"]
    assert not (tmp_path / "grpo").exists() and (tmp_path / name / "model.safetensors").is_file()
    assert (tmp_path / name / "critic").is_dir() == (name == "ppo")
    assert main(["view", str(tmp_path)]) == 0  # which finds the part that was trained
    assert "in 3 steps" in Path(capfd.readouterr().out.strip()).read_text()
    assert main(["runs", str(tmp_path)]) == 0
    rows = {line.split()[0]: line.split()[1:3] for line in capfd.readouterr().out.splitlines()}
    assert rows[name] == ["AgentPPOTrainer" if name == "ppo" else "AgentGRPOTrainer", "done"]


def test_what_cannot_be_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="preset is 'tpu'; allowed: bisect, webshop, bargain"):
        run_speedrun("tpu", output_dir=tmp_path)
    with pytest.raises(ConfigError, match="engine is 'sglang'; allowed: auto, vllm, transformers"):
        run_speedrun(MINI, output_dir=tmp_path, engine="sglang")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="needs an NVIDIA GPU"):
            run_speedrun("gpu", output_dir=tmp_path)
    with pytest.raises(ConfigError, match="controls and no phase of imitation"):
        run_speedrun(dataclasses.replace(MINI, imitation=(), controls=Controls(1e-3, 1e-3)), output_dir=tmp_path)
    for seeds in ("0,a", "", "1,1", "-1"):
        with pytest.raises(ConfigError, match="must be different whole numbers with commas"):
            speedrun([f"--seeds={seeds}"])
    missing = dataclasses.replace(MINI, model=str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="cannot load the model .*nothing"):
        run_speedrun(missing, output_dir=tmp_path, engine="transformers")
    (tmp_path / "grpo").mkdir()
    (tmp_path / "grpo" / "run.json").write_text("{}")  # of agent-gym grpo, whose files are not ours to clear
    with pytest.raises(ConfigError, match=r"grpo holds another run \(run.json\): name another --output_dir"):
        run_speedrun(MINI, output_dir=tmp_path, engine="transformers")


# The model that is made on the spot.


@pytest.fixture(scope="module")
def tiny_tokenizer() -> Any:
    return make_tiny_tokenizer(demonstration_texts(GSM8K, KWARGS, episodes=300))


def test_the_same_seed_gives_the_same_small_model(tmp_path: Path) -> None:
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    seeds = {"one": 0, "again": 0, "other": 1}
    folders = [
        make_tiny_model(tmp_path / name, GSM8K, KWARGS, demonstrations=200, seed=seed) for name, seed in seeds.items()
    ]
    assert torch.equal(torch.random.get_rng_state(), state)
    one, again, other = (weights(AutoModelForCausalLM.from_pretrained(folder)) for folder in folders)
    assert distance(one, again) == 0.0 and distance(one, other) > 0.01
    assert (folders[0] / "tokenizer.json").read_bytes() == (folders[1] / "tokenizer.json").read_bytes()
    config = AutoConfig.from_pretrained(folders[0])
    assert config.model_type == "qwen3" and sum(weight.size for weight in one.values()) < 400_000
    assert config.head_dim % 32 == 0, "what vLLM's kernels for the CPU take"


def test_a_narrower_model_is_made_and_an_odd_width_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    narrow = make_tiny_model(tmp_path / "narrow", GSM8K, KWARGS, demonstrations=20, width=64)
    config = AutoConfig.from_pretrained(narrow)
    assert (config.hidden_size, config.num_attention_heads * config.head_dim) == (64, 64)
    for width in (0, 80):
        with pytest.raises(ConfigError, match=f"width is {width}; a multiple of 32"):
            make_tiny_model(tmp_path / "odd", GSM8K, KWARGS, width=width)
    assert not (tmp_path / "odd").exists()


def test_digits_and_the_frame_of_a_call_are_single_tokens(tiny_tokenizer: Any) -> None:
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "48/2"}}\n</tool_call>'
    pieces = {
        "<answer>4807</answer>": ["<answer>", "4", "8", "0", "7", "</answer>"],
        call: [call[: call.index("48")], "4", "8", "/", "2", '"}}\n</tool_call>'],
    }
    for text, expected in pieces.items():
        assert [tiny_tokenizer.decode([i]) for i in tiny_tokenizer(text)["input_ids"]] == expected
    for text in ("", "naïve café 😀\n\t", "<tool_response>\n12\n</tool_response>", "a" * 300, "\u0000\x7f"):
        assert tiny_tokenizer.decode(tiny_tokenizer(text)["input_ids"]) == text


def test_the_template_names_the_tools_and_carries_their_answers(tiny_tokenizer: Any) -> None:
    renderer = ChatRenderer.of(tiny_tokenizer)
    assert renderer.renders_tools and renderer.observation_role == "tool"
    assert renderer.end_of_turn == tiny_tokenizer.eos_token_id
    tool = {"type": "function", "function": {"name": "calculator", "parameters": {}}}
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "c"}]
    talk += [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    text = tiny_tokenizer.apply_chat_template(talk, tools=[tool, tool], tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\ncalculator, calculator<|im_end|>\n<|im_start|>user\nq<|im_end|>\n"
        "<|im_start|>assistant\nc<|im_end|>\n<|im_start|>user\n<tool_response>\n1\n</tool_response>\n"
        "<tool_response>\n2\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_tokenizer_is_trained_on_what_is_played(tmp_path: Path) -> None:
    texts = demonstration_texts("AgentR1/GSM8K-NoTool-v0", KWARGS, episodes=20)
    assert len(texts) == 20 and not any("<tool_call>" in text for text in texts)
    assert make_tiny_tokenizer(texts, 300).vocab_size == 300
    few = tmp_path / "few.jsonl"  # a data set with fewer tasks than episodes are wanted
    rows = [{"question": f"What is {i} + 1?", "answer": f"<<{i}+1={i + 1}>>\n#### {i + 1}"} for i in range(4)]
    few.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(demonstration_texts(GSM8K, {"data": str(few)})) == 4


def test_a_name_is_the_same_tokens_wherever_it_stands() -> None:
    texts = [f'{{"query": "{name}"}} Where was {name} born?' for name in ("Bade Fopu", "Lemi Pivo", "Sinafa")] * 20
    sentence = 'Lemi Pivo works for Sinafa. {"query": "Lemi Pivo"}'
    for names_apart in (True, False):
        tokenizer = make_tiny_tokenizer(texts, 400, names_apart=names_apart)
        tokens = tokenizer.tokenize(sentence)
        assert tokenizer.decode(tokenizer(sentence)["input_ids"]) == sentence
        first, copied = tokenizer.tokenize("Lemi Pivo"), tokenizer.tokenize(" Lemi Pivo")
        assert (copied[1:] == first) == names_apart
        assert any(tokens[i : i + len(first)] == first for i in range(1, len(tokens)))


def test_frames_are_single_tokens_and_cost_the_vocabulary_nothing() -> None:
    texts = [f"Page 1 [SEP] Next > [SEP] red shoe {n} [SEP] Buy Now" for n in range(200)]
    tokenizer = make_tiny_tokenizer(texts, 300, frames=(" [SEP] ", "Page 1 [SEP] Next > [SEP] "))
    assert tokenizer.tokenize(texts[7])[0] == "Page 1 [SEP] Next > [SEP] "
    assert tokenizer.tokenize(texts[7]).count(" [SEP] ") == 1
    assert tokenizer.decode(tokenizer(texts[7])["input_ids"]) == texts[7]
    assert not any("SEP" in token or "Pa" in token for token in tokenizer.get_vocab() if token.isalpha())
    assert make_tiny_tokenizer(texts, 300).tokenize("Page 1") != ["Page 1"]


@pytest.mark.parametrize("name", ["support", "webshop"])
def test_the_frames_of_a_preset_are_what_its_world_writes(tmp_path: Path, name: str) -> None:
    """Each is one token; with others in the environment less would be learned."""
    preset = PRESETS[name]
    folder = make_tiny_model(tmp_path, preset.env_id, preset.env_kwargs, **{**preset.tiny, "demonstrations": 60})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    styles = {"default": 0.5, **dict.fromkeys(preset.imitation[0].styles, 0.5)}
    where = (preset.env_id, preset.env_kwargs, tokenizer)
    episodes = expert_episodes(*where, split=preset.test_split, episodes=120, styles=styles)
    texts = [tokenizer.decode(episode.rows[0].token_ids) for episode in episodes]
    for frame in preset.tiny["frames"]:
        assert len(tokenizer(frame)["input_ids"]) == 1
        assert frame == "Error:" or frame.isdigit() or any(frame in text for text in texts), frame
