"""ALFWorld as an environment: forms of commands, how episodes end, rewards, what is shown, and its experts."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import pytest

from agent_gym import ConfigError
from agent_gym.env import HISTORY_HEADING
from agent_gym.envs.alfworld.data import load_game
from agent_gym.envs.alfworld.world import AlfworldWorld
from agent_gym.tools import HermesParser

FORMS = {
    "tool": lambda command: HermesParser().render("env_step", {"command": command}),
    "tags": lambda command: f"<action>{command}</action>",
    "text": lambda command: command,
}


def make(**kwargs: Any) -> Any:
    return gymnasium.make("AgentR1/ALFWorld-v0", **kwargs).unwrapped


def play(env: Any, style: str = "default", seed: int = 0, **options: Any) -> list[tuple[Any, ...]]:
    env.reset(seed=seed, options=options)
    steps: list[tuple[Any, ...]] = []
    while not steps or not (steps[-1][2] or steps[-1][3]):
        steps.append(env.step(env.expert_action(style)))
    return steps


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_the_same_command(form: str) -> None:
    env, world = make(commands=form), AlfworldWorld(load_game("embedded/train/2"))
    observation, info = env.reset(options={"index": 2})
    view = world.view
    assert info["messages"][-1]["content"] == view.text and observation.endswith(view.text)
    assert info["admissible_commands"] == list(view.admissible)
    for command in ("look", "inventory", view.admissible[1], "fly away", " help "):
        observation, _, _, _, info = env.step(f"<think>go on</think>{FORMS[form](command)}")
        view = world.step(command)
        assert observation == view.text
        assert info["admissible_commands"] == list(view.admissible)
        assert info["messages"][-1]["role"] == ("tool" if form == "tool" else "user")
    assert info["metrics"]["invalid_commands"] == 1.0


ENDS = ["won", "out_of_steps", "given_up"]


def test_three_ends_are_kept_apart() -> None:
    env, look = make(max_turns=3, reward_weights={"invalid": 0.5}), FORMS["tool"]("look")
    env.reset(options={"index": 0})
    out_of_steps = [env.step(look) for _ in range(3)][-1]
    env.reset(options={"index": 0})
    given_up = env.step("I cannot find it.")
    won = play(make(), index=0)
    for end, step in zip(ENDS, (won[-1], out_of_steps, given_up), strict=True):
        _, reward, terminated, truncated, info = step
        assert (reward, info["is_success"], truncated) == (float(end == "won"), end == "won", end == "out_of_steps")
        assert terminated != truncated and info["ended"] == end
        assert [info["metrics"][name] for name in ENDS] == [float(name == end) for name in ENDS]
    assert play(make(max_turns=len(won)), index=0)[-1][2:4] == (True, False), "won with the last turn"


def test_wrong_commands_cost_a_turn_and_change_nothing() -> None:
    env = make(reward_weights={"invalid": 1.0})
    env.reset(options={"index": 1})
    before = env._world.progress, env._world.view[1:]
    wrong = [
        (FORMS["tool"]("go to the moon"), "Nothing happens."),
        (FORMS["tool"]("GO TO SIDETABLE 1"), "Nothing happens."),
        ("<tool_call>{", "Error: the tool call is not closed by </tool_call>"),
        (HermesParser().render("env_step", {"command": 3}), "Error: env_step takes one argument, command, a text"),
        (HermesParser().render("walk", {}), "Error: unknown tool 'walk'; available: env_step"),
    ]
    for turn, (action, answer) in enumerate(wrong, 1):
        observation, reward, *_, info = env.step(action)
        assert (observation, reward, env.turn) == (answer, -1.0, turn)
        assert info["error"] == answer and info["metrics"]["invalid_commands"] == turn
    assert before == (env._world.progress, env._world.view[1:])


@pytest.mark.parametrize("action", ["I think I should look around.", "", FORMS["tool"]("go to the moon")])
def test_a_turn_without_a_command_costs_what_a_wrong_one_does(action: str) -> None:
    env = make(protocol="agent-r1", reward_weights={"success": 1.0, "invalid": 1.0})
    env.reset(options={"index": 1})
    _, reward, terminated, _, info = env.step(action)
    assert (reward, terminated, info["metrics"]["invalid_commands"]) == (-1.0, False, 1.0)


@pytest.mark.parametrize("form", ["tool", "tags"])
def test_only_the_first_command_of_a_turn_is_given(form: str) -> None:
    env = make(commands=form)
    env.reset(options={"index": 1})
    observation, *_, info = env.step(FORMS[form]("look") + FORMS[form]("inventory"))
    assert observation.startswith("You are in the middle of a room.") and info["metrics"]["commands"] == 1.0
    assert observation.endswith("Error: only 1 tool calls are allowed per turn; 1 more did not run")


def test_progress_telescopes_and_judges_steps() -> None:
    for index in range(6):
        env = make(reward_weights={"success": 0.0, "progress": 1.0})
        env.reset(options={"split": "test", "index": index})
        at_start = env._world.progress
        steps = play(env, split="test", index=index)
        assert sum(reward for _, reward, *_ in steps) == pytest.approx(1.0 - at_start)
        assert all(info["process_reward"] == pytest.approx(reward) for _, reward, *_, info in steps)
        assert steps[-1][4]["metrics"]["progress"] == 1.0


def test_admissible_commands_and_the_situation_are_shown() -> None:
    env, plain = make(show_admissible=True), make()
    shown, info = env.reset(options={"index": 0})
    text, _ = plain.reset(options={"index": 0})
    commands = "\n".join(f"- {command}" for command in info["admissible_commands"] if command != "help")
    assert shown == f"{text}\n\nAdmissible commands:\n{commands}"
    assert [message["role"] for message in env.state_prompt()] == ["system", "user"]
    assert HISTORY_HEADING not in env.state_prompt()[1]["content"]
    action = "<think>cold</think>" + FORMS["tool"]("go to fridge 1")
    shown = env.step(action)[0]
    assert shown.startswith(plain.step(action)[0]) and "- open fridge 1" in shown and "- go to fridge 1" not in shown
    env.step("<tool_call>{")
    shown = env.state_prompt()[1]["content"]
    assert "\n2. (no command)\n   Error: the tool call is not closed by </tool_call>\n" in shown
    assert f"{HISTORY_HEADING}\n1. go to fridge 1\n   You arrive at fridge 1. The fridge 1 is closed." in shown
    assert shown.startswith("-= Welcome") and shown.count("Admissible commands:") == 1 and "- open fridge 1" in shown


def test_a_game_is_chosen_by_its_name() -> None:
    env = make()
    _, info = env.reset(options={"game": "embedded/valid_unseen/7"})
    assert (info["game"], info["task_id"]) == ("embedded/valid_unseen/7", "given")
    assert info["task_type"] == "look_at_obj_in_light" and "desklamp" in info["goal"]
    same = env.reset(options={"split": "valid_unseen", "index": 7})[1]
    assert same["goal"] == info["goal"] and same["task_id"] == "valid_unseen/7"
    with pytest.raises(ConfigError, match="split"):
        env.reset(options={"game": "embedded/valid_unseen/7", "split": "train"})


def test_wrong_arguments_are_named() -> None:
    for kwargs, words in (
        ({"commands": "shout"}, "'shout'.*tool, tags, text"),
        ({"engine": "unity"}, "'unity'.*native, textworld"),
        ({"grammar": "old"}, "'old'.*current, legacy"),
        ({"task_types": "pick"}, "task_types is 'pick'.*pick_and_place_simple"),
        ({"data": "/no/such/folder"}, "holds no games.*agent-gym prepare alfworld"),
    ):
        with pytest.raises(ConfigError, match=words):
            make(**kwargs)


@pytest.mark.parametrize("kwargs", [{}, {"receptacles": 5}])
def test_a_searching_expert_names_only_what_was_shown(kwargs: dict[str, Any]) -> None:
    # To open and look into everything takes longer than the 50 turns of the official evaluation.
    env = make(commands="text", max_turns=80, **kwargs)
    for index in range(60):
        shown, over = env.reset(options={"split": "test", "index": index})[0], False
        while not over:
            command = env.expert_action("searching")
            assert all(name in shown for name in re.findall(r"[a-z]+ \d+", command)), f"{command!r} after {shown!r}"
            observation, _, terminated, truncated, info = env.step(command)
            shown, over = shown + observation, terminated or truncated
        assert info["is_success"]


def test_the_style_guessing_follows_from_the_seed_and_is_often_wrong() -> None:
    env = make(commands="text", receptacles=5, max_turns=12)

    def episode(seed: int) -> tuple[Any, ...]:
        steps = play(env, "guessing", seed, index=0)
        return *(info["messages"][0]["content"] for *_, info in steps), steps[-1][4]["is_success"]

    first = [episode(seed) for seed in range(40)]
    assert first == [episode(seed) for seed in range(40)] and len(set(first)) > 20
    assert 0 < sum(success for *_, success in first) < 40


def test_the_expert_wins_every_embedded_game_of_the_evaluation_splits() -> None:
    env = make()
    for split in ("valid_seen", "valid_unseen"):
        for index in range(len(env.tasks[split])):
            steps = play(env, split=split, index=index)
            assert steps[-1][4]["is_success"] and len(steps) <= 12, f"{split}/{index}"


def test_in_small_rooms_searching_wins_within_ten_turns() -> None:
    small = {"receptacles": 4, "task_types": ["pick_and_place_simple"], "commands": "text", "max_turns": 10}
    env: Any = gymnasium.make("AgentR1/ALFWorld-v0", **small).unwrapped
    for split in ("train", "valid_seen", "valid_unseen"):
        for index in range(100):
            steps = play(env, "searching", split=split, index=index)
            assert steps[-1][4]["is_success"], index
