"""The controls of a speedrun: how their CPU seconds are divided, what they imitate, and the tables over seeds."""

from __future__ import annotations

import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trainer_tools import distance, model_folder, weights  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from agent_gym.errors import ConfigError  # noqa: E402
from agent_gym.evaluate import make_specs  # noqa: E402
from agent_gym.rollout import Budget, Episode, EpisodeSpec, Row, Step  # noqa: E402
from agent_gym.speedrun.controls import UntilUsedUp, best_attempts, endless, imitate_itself, rate_at  # noqa: E402
from agent_gym.speedrun.imitation import fitting, imitation_settings  # noqa: E402
from agent_gym.speedrun.presets import PRESETS, Controls  # noqa: E402
from agent_gym.speedrun.tables import differences, over_seeds, run_of, seeds_table  # noqa: E402
from agent_gym.speedrun.tiny import make_tiny_model  # noqa: E402
from agent_gym.trainers import AgentGRPOConfig  # noqa: E402
from agent_gym.trainers.sft import expert_episodes, train_sft  # noqa: E402

GSM8K = "AgentR1/GSM8K-v0"


def played(task: int, reward: float, success: bool = True, spec: EpisodeSpec | None = None) -> Episode:
    episode = Episode(spec or EpisodeSpec(GSM8K, index=task), rows=[Row([task])], task_id=f"train/{task}")
    episode.steps, episode.success = [Step(0, 0, 1, "", reward=reward)], success
    return episode


def test_one_success_of_each_task_is_kept_the_one_with_the_best_reward() -> None:
    failed = played(3, 9.0)
    failed.failure = object()  # type: ignore[assignment]
    episodes = [played(0, 0.5), played(0, 0.9), played(0, 2.0, success=False), played(1, 0.1, success=False)]
    episodes += [failed, *(twins := [played(2, 1.0), played(2, 1.0)])]
    chosen = [best_attempts(episodes, random.Random(seed)) for seed in range(20)]
    assert all([one.spec.index for one in kept] == [0, 2] and kept[0] is episodes[1] for kept in chosen)
    assert {id(kept[1]) for kept in chosen} == {id(twin) for twin in twins}


def test_rounds_divide_the_budget() -> None:
    """On a clock of its own: two tasks played cost 1 s, and training ends half a second late, as the last step does."""
    now, budgets, seen = [0.0], list[float](), list[list[EpisodeSpec]]()
    solved = True

    def play(specs: list[EpisodeSpec]) -> list[Episode]:
        now[0] += 1.0
        seen.append(specs)
        return [played(spec.index or 0, 1.0, solved and spec.member > 0, spec) for spec in specs]

    def train(rows: list[Row], clock: UntilUsedUp) -> None:
        budgets.append(clock.budget)
        clock.seconds = clock.budget + 0.5
        assert len(rows) == 8, "a success of each of the tasks of this round"

    tasks = make_specs(GSM8K, split="train", episodes=10)
    controls = Controls(1e-3, 1e-3, rounds=2, best_of=3, playing=0.4)
    rounds = imitate_itself(controls, 20.0, tasks, 2, play, train, 0, lambda: now[0])
    # A round has 20 / 2 = 10 s, of which 4 s are played; the second has what the first has left, 9.5 s, of which at
    # least 3.8 s are played.
    assert [one.playing_seconds for one in rounds] == [4.0, 4.0]
    assert budgets == pytest.approx([6.0, 5.5])
    assert sum(one.playing_seconds + one.training_seconds for one in rounds) == pytest.approx(20.5)
    assert [(one.played, one.succeeded, one.kept) for one in rounds] == [(24, 16, 8)] * 2
    order = [spec.index for specs in seen for spec in specs if not spec.member]
    assert sorted(order[:10]) == list(range(10)), "no task comes again before all have come"
    assert order[:10] != list(range(10)) and order[10:] == order[:6]
    specs = [spec for specs in seen for spec in specs]
    assert len({spec.sampling_seed for spec in specs}) == len(specs)
    assert {spec.seed for spec in specs} <= {task.seed for task in tasks}

    solved = False
    rounds = imitate_itself(controls, 20.0, tasks, 2, play, train, 0, lambda: now[0])
    assert [(one.playing_seconds, one.kept, one.steps) for one in rounds] == [(10.0, 0, 0)] * 2
    assert len(budgets) == 2, "there was nothing to train on"


def test_the_rate_rises_shortly_and_falls_to_nothing() -> None:
    assert rate_at(0.0, 2.0) == pytest.approx(0.2)
    assert [rate_at(used, 2.0) for used in (0.025, 0.05, 0.525, 1.0, 1.5)] == pytest.approx([1.0, 2.0, 1.0, 0.0, 0.0])


def test_a_control_trains_at_its_rate_until_its_seconds_are_used_up(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path / "tiny", GSM8K, {"system_prompt": ""}, demonstrations=200)
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    rows = [e.rows[0] for e in expert_episodes(GSM8K, {"system_prompt": ""}, tokenizer, episodes=8)]
    phase = endless(PRESETS["support"].imitation[-1])
    assert phase.settings["adam_beta2"] == 0.98
    args = AgentGRPOConfig(str(tmp_path / "grpo"), **PRESETS["support"].grpo)
    moved: dict[float, Any] = {}
    for rate in (0.0, 1e-3):
        model = AutoModelForCausalLM.from_pretrained(tiny)
        before = weights(model)
        clock = UntilUsedUp(0.5, rate, time.process_time)
        settings = imitation_settings(phase, tmp_path / "sft", 0, args)
        trainer = train_sft(model, tokenizer, rows, settings, callbacks=[clock])
        moved[rate] = distance(before, weights(trainer.model))
        assert clock.seconds >= 0.5 and clock.steps == trainer.state.global_step > 1
    assert moved[0.0] == 0.0 < moved[1e-3]


def test_the_demonstrator_is_judged_by_all_that_it_played() -> None:
    seen: list[Episode] = []
    # The expert needs a turn for each computation and one for the answer.
    short, renderer = Budget(max_turns=2), AutoTokenizer.from_pretrained(model_folder())
    solved = expert_episodes(GSM8K, None, renderer, episodes=20, budget=short, on_end=seen.append)
    assert len(seen) == 20 and 0 < len(solved) < 20
    assert sum(episode.success for episode in seen) == len(solved)


def test_a_difference_is_paired_by_task() -> None:
    runs = {}
    for name, right in (("RL", (1, 1, 1, 0)), ("start", (1, 0, 0, 0))):
        for decoding in ("greedy", "sampled"):
            runs[name, decoding] = run_of(name, [played(i, 0.5 * ok, bool(ok)) for i, ok in enumerate(right)])
    found = differences(runs, [("RL", "start")])
    assert [(d["decoding"], d["measure"]) for d in found] == [
        (decoding, measure) for decoding in ("greedy", "sampled") for measure in ("success", "reward")
    ]
    assert [d["difference"] for d in found] == pytest.approx([0.5, 0.25] * 2)
    # Two tasks that one alone solved, both the same one: 2 * (1/2)^2.
    assert found[0]["p"] == pytest.approx(0.5) and found[0]["test"] == "mcnemar"


def test_over_seeds_are_means_with_students_interval() -> None:
    def run(seed: int, start: float, rl: float) -> dict[str, Any]:
        both = (("start", start), ("RL", rl))
        rows = [{"policy": name, "decoding": "greedy", "success": x, "reward": x / 2} for name, x in both]
        of = {"policy": "RL", "against": "start", "decoding": "greedy"}
        gains = [{**of, "measure": "success", "difference": rl - start, "p": 0.5}]
        return {"preset": "Env", "seed": seed, "results": rows, "differences": gains}

    found = over_seeds([run(0, 0.1, 0.4), run(1, 0.2, 0.3), run(4, 0.3, 0.8)])
    assert found["seeds"] == [0, 1, 4]
    # A standard deviation of 0.1 over three seeds and the quantile 4.3027 for two degrees of freedom.
    half = 4.3027 * 0.1 / 3**0.5
    assert found["results"][0]["success"] == {
        "mean": pytest.approx(0.2), "low": 0.0,  # not 0.2 - half, which no share can be
        "high": pytest.approx(0.2 + half, abs=1e-4), "values": [0.1, 0.2, 0.3],
    }  # fmt: skip
    reward = found["results"][0]["reward"]
    assert reward["mean"] == pytest.approx(0.1) and reward["low"] == pytest.approx(0.1 - half / 2, abs=1e-4)
    (gain,) = found["differences"]
    # Gains of 0.3, 0.1 and 0.5: a mean of 0.3 with a standard deviation of 0.2.
    assert gain["difference"] == pytest.approx(0.3) and gain["values"] == pytest.approx([0.3, 0.1, 0.5])
    assert gain["low"] == pytest.approx(0.3 - 2 * half, abs=1e-4)
    printed = seeds_table(found)
    assert "Env, seeds 0, 1, 4" in printed and "20.0% [0.0, 44.8]" in printed
    assert "+30.0 points [-19.7, +79.7]" in printed

    alone = over_seeds([run(0, 0.1, 0.4)])
    assert alone["results"][0]["success"] == {"mean": 0.1, "low": None, "high": None, "values": [0.1]}
    assert "10.0%\n" in seeds_table(alone) or "10.0% " in seeds_table(alone)


def test_demonstrations_that_are_longer_than_an_episode_may_be_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[Any] = [SimpleNamespace(token_ids=[1] * length) for length in (4, 9, 5, 6)]
    assert fitting(rows, None) == fitting(rows, 9) == rows and not capsys.readouterr().out
    assert fitting(rows, 8) == [rows[0], rows[2], rows[3]]
    assert "1 of 4 demonstrations have more than 8 tokens" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="3 of 4 demonstrations have more than 4 tokens"):
        fitting(rows, 4)
