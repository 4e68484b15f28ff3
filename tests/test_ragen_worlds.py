"""RAGEN's worlds: their rules against independent ones, their turns, and what their players reach."""

from __future__ import annotations

import random
import re
from fractions import Fraction
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv as TheirLake

import agent_gym
from agent_gym import ConfigError
from agent_gym.envs.ragen.board import MOVES, Board
from agent_gym.envs.ragen.embedded.trades import TRADES
from agent_gym.envs.ragen.expressions import read, solve
from agent_gym.envs.ragen.lake import Lake
from agent_gym.testing import expert_episode

SOKOBAN, LAKE, BANDIT, COUNTDOWN = (f"AgentR1/{name}-v0" for name in ("Sokoban", "FrozenLake", "Bandit", "Countdown"))


def made(env_id: str, **kwargs: Any) -> Any:
    return agent_gym.make(env_id, **kwargs).unwrapped


# FrozenLake against Gymnasium's.


@pytest.mark.parametrize("kwargs", [{}, {"is_slippery": False}, {"success_rate": 0.8}])
def test_moves_go_where_gymnasiums_go(kwargs: dict[str, Any]) -> None:
    env = made(LAKE, **kwargs)
    for index in range(20):
        rows = env.tasks["test"][index]["map"]
        theirs = TheirLake(desc=rows, **kwargs)
        lake = Lake.read(rows, env.success_rate)
        for state, moves in theirs.P.items():
            for move, transitions in moves.items():
                if lake.cells[state] in "SF":
                    known = [(chance, to) for chance, to, *_ in transitions]
                    assert lake.transitions(state, move) == known
        assert theirs.observation_space.n == len(lake.cells)


def test_an_episode_is_gymnasiums_with_the_same_generator() -> None:
    rng, ends = random.Random(0), set()
    for seed in range(30):
        env = made(LAKE, actions_per_turn=1)
        env.reset(seed=seed, options={"split": "test", "index": seed})
        theirs = TheirLake(desc=env.tasks["test"][seed]["map"])
        theirs.reset(seed=0)
        theirs._np_random = np.random.default_rng()
        theirs._np_random.bit_generator.state = env.np_random.bit_generator.state
        over = False
        while not over:
            move = rng.randrange(4)
            _, reward, terminated, truncated, _ = env.step(f"<answer>{env.names[move]}</answer>")
            state, their_reward, their_end, *_ = theirs.step(move)
            over = terminated or truncated
            assert (env.state, reward, terminated) == (state, their_reward, their_end)
        ends.add((terminated, reward))
    assert {(True, 0.0), (True, 1.0)} <= ends


def test_value_iteration_knows_the_best_chance_of_gymnasiums_map() -> None:
    lake = Lake.read(["SFFF", "FHFH", "FFFH", "HFFG"], 1 / 3)
    assert lake.values(3000)[-1, 0] == pytest.approx(14 / 17, abs=1e-4)  # known of FrozenLake-v1
    env = made(LAKE)
    rates = [Lake.read(env.tasks["test"][i]["map"], 1 / 3).values(30)[-1].max() for i in range(50)]
    assert min(rates) >= 0.6


# Sokoban.


def test_a_box_is_pushed_and_not_pulled_and_stops_at_walls_and_boxes() -> None:
    env = made(SOKOBAN, max_turns=20, reward_weights={"pushed": 1.0, "moves": 0.1})
    env.reset(options={"task": {"board": ["#######", "#PX_O_#", "#_XO__#", "#_____#", "#######"]}})
    for move, first, second, reward in (
        ("Right", "#_PXO_#", "#_XO__#", -0.1),
        ("Down", "#_PXO_#", "#_XO__#", None),  # the box goes down to the last row
        ("right", "#__XO_#", "#_PO__#", None),
    ):
        seen, got, *_ = env.step(f"<answer>{move}</answer>")
        if reward is not None:
            assert seen.splitlines()[1:3] == [first, second] and got == pytest.approx(reward)
    env.reset(options={"task": {"board": ["######", "#PXXO#", "#O___#", "######"]}})
    before = env.board
    assert env.step("<answer>Right || Up || Left</answer>")[0].splitlines()[1] == "#PXXO#" and env.board == before
    env.reset(options={"task": {"board": ["#######", "#P√_XO#", "#######"]}})
    rewards = [env.step("<answer>Right</answer>")[1] for _ in range(2)]
    assert rewards == pytest.approx([-1.1, -0.1]), "off its target, and then two boxes do not move"


def test_boards_have_solutions_of_the_promised_length_that_solve_them() -> None:
    for difficulty, fewest, most in ((1, 2, 4), (None, 5, 10), (3, 6, 12), (4, 9, 18)):
        env = made(SOKOBAN, difficulty=difficulty)
        lengths = set()
        for index in range(15):
            board = Board.read(env.tasks["train"][index]["board"])
            moves = board.solution(most)
            assert moves is not None and not board.boxes & board.targets
            for move in moves:
                board = board.moved(move)
            assert board.boxes == board.targets
            lengths.add(len(moves))
        assert fewest <= min(lengths) and max(lengths) <= most and len(lengths) > 1


def test_a_search_that_knows_only_the_signs_agrees_with_the_rules() -> None:
    """Random moves on drawn boards, by a simulator on text alone."""
    rng = random.Random(1)
    env = made(SOKOBAN, difficulty=3)
    for index in range(20):
        rows = env.tasks["test"][index]["board"]
        board, width, text = Board.read(rows), len(rows[0]), list("".join(rows))
        for _ in range(40):
            move = rng.choice(MOVES)
            step = {"Up": -width, "Down": width, "Left": -1, "Right": 1}[move]
            at = next(i for i, sign in enumerate(text) if sign in "PS")
            if text[at + step] in "X√" and text[at + 2 * step] in "_O":
                text[at + 2 * step] = "X" if text[at + 2 * step] == "_" else "√"
                text[at + step] = "_" if text[at + step] == "X" else "O"
            if text[at + step] in "_O":
                text[at + step] = "P" if text[at + step] == "_" else "S"
                text[at] = "_" if text[at] == "P" else "O"
            board = board.moved(move)
            assert "".join(board.rows()) == "".join(text)


# Countdown.


@pytest.mark.parametrize(
    ("text", "numbers", "value"),
    [
        ("2+5-3", [2, 5, 3], 4), ("(2+5)*-3", [2, 5, 3], -21), ("10 - 2 - 3", [10, 2, 3], 5), ("12/2/3", [12, 2, 3], 2),
        ("8/(3-8/3)", [8, 3, 8, 3], 24), ("2 × 3 ÷ 4 − 1", [2, 3, 4, 1], Fraction(1, 2)), ("((((2))))", [2], 2),
        ("2-(3-4)", [2, 3, 4], 3), ("1/3*3", [1, 3, 3], 1), ("-(2+5)", [2, 5], -7),
        ("2+(3", [2, 3], None), ("2+3)", [2, 3], None), (")(", [], None), ("3(4)", [3, 4], None), ("2 3", [2, 3], None),
        ("2**3", [2, 3], None), ("2//3", [2, 3], None), ("3/0", [3, 0], None), ("2=2", [2, 2], None), ("", [], None),
        ("1.5", [1, 5], None), ("abs(2)", [2], None), ("__import__('os')", [], None), ("\u0663+1", [1], None),
        ("(" * 400 + "1", [], None), ("9" * 400, [], None), ("9" * 12, [], None),
    ],
)  # fmt: skip
def test_an_expression_is_read_exactly(text: str, numbers: list[int], value: Any) -> None:
    found, result = read(text)
    assert result == value and (value is None or found == numbers)


def test_values_are_pythons_in_fractions() -> None:
    rng = random.Random(0)

    def drawn(depth: int) -> str:
        if not depth or rng.random() < 0.2:
            return str(rng.randint(0, 20))
        inner = f"{drawn(depth - 1)} {rng.choice('+-*/')} {drawn(depth - 1)}"
        return f"({inner})" if rng.random() < 0.5 else f"-{inner}" if rng.random() < 0.2 else inner

    checked = 0
    for text in (drawn(3) for _ in range(2000)):
        fractions = re.sub(r"(\d+)", r"Fraction(\1)", text)
        try:
            expected = eval(fractions)
        except ZeroDivisionError:
            expected = None
        if len(text) <= 300:
            assert read(text)[1] == expected, text
            checked += 1
    assert checked > 1500


def test_the_search_is_exhaustive_and_its_answers_count() -> None:
    assert solve([3, 3, 8, 8], 24) == "8 / (3 - 8 / 3)" and solve([1, 1, 1, 1], 24) is None
    for kwargs in ({}, {"numbers": 3, "largest": 9, "operators": "*/"}):
        env = made(COUNTDOWN, **kwargs)
        for index in range(40):
            row = env.tasks["train"][index]
            for answer in (row["answer"], solve(row["nums"], row["target"])):
                numbers, value = read(answer)
                assert sorted(numbers) == sorted(row["nums"]) and value == row["target"]


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("(1 + 5) * 6 / 2", 1.0), ("1*(6/2)*(5+1)", 0.0), ("1 + 5 + 6 + 2", 0.1), ("5 + 6 + 2", 0.0), ("18", 0.0),
        ("1 + 5 + 6 / (2 - 2)", 0.0), ("(1 + 5) * 6 / 2 = 18", 0.0), ("1 5 6 2", 0.1),
    ],
)  # fmt: skip
def test_ragen_pays_a_tenth_for_the_right_numbers(answer: str, reward: float) -> None:
    env = made(COUNTDOWN, protocol="ragen")
    env.reset(options={"task": {"nums": [1, 5, 6, 2], "target": 18}})
    assert env.step(f"<think>Hm.</think><answer>{answer}</answer>")[1] == pytest.approx(reward)


# Bandit.


def test_the_risky_arm_pays_more_on_average_and_names_belong_to_a_split() -> None:
    env = made(BANDIT)
    paid = []
    for seed in range(2000):
        env.reset(seed=seed, options={"split": "test", "index": seed % 128})
        _, reward, _, _, info = env.step(f"<answer>{env._better.upper()}</answer>")
        paid.append(reward)
        assert info["is_success"] and reward in (0.0, 1.0)
    assert np.mean(paid) == pytest.approx(0.25, abs=0.03)  # three standard errors
    env.reset(seed=0, options={"split": "test", "index": 0})
    steady = next(name for name in env.names if name != env._better)
    assert env.step(f"<answer>{steady}</answer>")[1] == 0.1
    names = [set(" ".join(trades).split()) for trades in TRADES.values()]
    assert sum(map(len, names)) == len(set.union(*names))


# Turns.


def test_moves_are_carried_out_in_order_and_what_is_left_out_is_told() -> None:
    env = made(SOKOBAN, actions_per_turn=2, max_turns=9)
    board = {"board": ["######", "#P___#", "#__XO#", "#____#", "######"]}
    env.reset(options={"task": board})
    for turn, player, error in (
        ("<think>x</think><answer>right||DOWN</answer>", (2, 2), None),
        ("<answer>Up || fly</answer>", (1, 2), "'fly' was left out. Allowed: Up, Down, Left, Right, as in"),
        ("<answer>Left || Right || Down</answer>", (1, 2), "The first 2 of 3 actions were carried out."),
        ("Down", (1, 2), "The turn has no <answer>. Allowed: Up"),
        ("<think><answer>Down</answer></think> Up", (1, 2), "The turn has no <answer>"),
    ):
        seen, _, terminated, _, info = env.step(turn)
        assert divmod(env.board.player, 6) == player and not terminated
        assert (info["error"] or "").startswith(error or "")
        assert seen == (f"{info['error']}\n" if error else "") + "\n".join(env.board.rows())
    assert env.step("<answer>Down || Right</answer>")[0] == "", "the move that solves the board is answered by nothing"


def test_an_episode_has_so_many_actions() -> None:
    env = made(LAKE, is_slippery=False, max_actions=3, actions_per_turn=2)
    env.reset(options={"task": {"map": ["SFFF", "FFFF", "HHHG"]}})
    assert env.step("<answer>Right || Left</answer>")[2:4] == (False, False)
    *_, terminated, truncated, _ = env.step("<answer>Right || Right</answer>")
    assert (terminated, truncated) == (False, True) and env.state == 1
    env.reset(options={"task": {"map": ["SFFF", "FFFF", "HHHG"]}})
    assert not env.step("<answer>Right</answer>")[3] and env.actions_left == 2


@pytest.mark.parametrize(
    ("env_id", "style", "low", "high"),
    [(SOKOBAN, "careless", 0.7, 0.95), (LAKE, "hasty", 0.25, 0.6), (LAKE, "default", 0.8, 1.0),
     (BANDIT, "cautious", 0.15, 0.45), (COUNTDOWN, "additive", 0.0, 0.2)],
)  # fmt: skip
def test_weak_players_are_weak(env_id: str, style: str, low: float, high: float) -> None:
    env, won = made(env_id), 0
    for index in range(60):
        env.reset(seed=index, options={"split": "test", "index": index})
        over = False
        while not over:
            _, _, terminated, truncated, info = env.step(env.expert_action(style))
            over = terminated or truncated
        won += info["is_success"]
    assert low <= won / 60 <= high


def test_the_same_seed_is_the_same_slips() -> None:
    first, second = (expert_episode(gymnasium.make(LAKE), seed=5) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("env_id", "kwargs", "words"),
    [
        (SOKOBAN, {"size": 4}, "size is 4"), (SOKOBAN, {"boxes": 5}, "boxes is 5"),
        (SOKOBAN, {"difficulty": 2, "longest": 8}, "sets longest"), (LAKE, {"actions_per_turn": 0}, "actions_per_turn"),
        (SOKOBAN, {"size": 5, "boxes": 4, "longest": 40}, "no board of size 5 with 4 boxes"),
        (LAKE, {"success_rate": 0}, "success_rate is 0"), (LAKE, {"is_slippery": 1}, "is_slippery is 1"),
        (LAKE, {"success_rate": float("nan")}, "success_rate is nan"),
        (BANDIT, {"chance": 0.1}, "chance is 0.1"), (BANDIT, {"chance": "high"}, "chance is 'high'"),
        (COUNTDOWN, {"operators": "+^"}, "operators is"), (COUNTDOWN, {"numbers": 9}, "numbers is 9"),
        (COUNTDOWN, {"protocol": "ragen", "system_prompt": "x"}, "the protocol sets system_prompt"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(env_id: str, kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made(env_id, **kwargs).reset(seed=0)


@pytest.mark.parametrize(
    ("env_id", "task"),
    [
        (SOKOBAN, {"board": ["####", "#PX#", "####"]}), (SOKOBAN, {"board": ["#####", "#PXO", "#####"]}),
        (SOKOBAN, {"board": ["_____", "#PXO#", "#####"]}), (SOKOBAN, "board"), (SOKOBAN, {"board": []}),
        (SOKOBAN, {"board": ["#####", "#P√_#", "#####"]}), (SOKOBAN, {"board": ["#####", "#aXO#", "#####"]}),
        (LAKE, {"map": ["FF", "FG"]}), (LAKE, {"map": ["SF", "F"]}), (LAKE, {"map": "SFG"}), (LAKE, {}), (LAKE, ["SX"]),
        (BANDIT, {"arms": ["A", "A"], "risky": "A"}), (BANDIT, {"arms": ["A", "B"], "risky": "C"}), (BANDIT, 3),
        (COUNTDOWN, {"nums": [1, 2], "target": 9}), (COUNTDOWN, {"nums": [0, 2], "target": 2}), (COUNTDOWN, [1]),
        (COUNTDOWN, {"nums": [1, True], "target": 2}), (COUNTDOWN, {"nums": [], "target": 2}),
    ],
)  # fmt: skip
def test_wrong_tasks_are_named(env_id: str, task: Any) -> None:
    with pytest.raises(ConfigError, match="a task"):
        made(env_id).reset(options={"task": task})
