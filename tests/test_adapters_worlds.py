"""Worlds of other libraries as environments here: any Gymnasium environment on texts, reasoning-gym, TextArena."""

from __future__ import annotations

import random
import re
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
import pytest
from openai_tools import Server, serving

import agent_gym
from agent_gym import ConfigError, EnvFailure
from agent_gym.contrib.gymnasium import FromGymnasium, wrap
from agent_gym.contrib.reasoning_gym import _Rows, harmless
from agent_gym.testing import check_text_env


class Echo(gymnasium.Env):
    """Says a number to be repeated; truncates after three wrong answers."""

    observation_space = action_space = gymnasium.spaces.Text(100)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.number, self.wrong = int(self.np_random.integers(1000)), 0
        return f"Say {self.number}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        right = action.strip() == str(self.number)
        self.wrong += not right
        return "" if right else f"No: {self.number}.", float(right), right, self.wrong == 3, {}


def test_a_text_environment_of_gymnasiums_reports_spans_and_ends_as_it_does() -> None:
    check_text_env(lambda: FromGymnasium(Echo), expert=False)
    env = wrap(Echo, max_turns=7)
    observation, _ = env.reset(seed=1)
    _, reward, terminated, truncated, info = env.step(observation[4:-1])
    assert (reward, terminated, truncated, info["is_success"]) == (1.0, True, False, True)
    env.reset(seed=1)
    ends = [env.step("x")[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    assert env.reset(seed=2) and env.max_turns == 7  # a truncation of the world's is not the next episode's budget
    assert [span.source for span in env.step("x")[4]["spans"]] == ["agent", "env"]


def test_a_function_of_a_task_makes_an_environment_per_episode() -> None:
    made: list[str] = []
    env = wrap(lambda task: made.append(task) or Echo(), tasks={"train": ["a", "b"], "test": ["c"]})
    env.reset(options={"split": "test", "index": 0})
    env.reset(options={"split": "train", "index": 1})
    assert made == ["c", "b"]


class House(Echo):
    """Says under some name whether it is won, and pays a step later; the episode ends with the payment."""

    def __init__(self, name: str = "won", yes: Any = True, no: Any = False, end: int = 3) -> None:
        self.name, self.yes, self.no, self.end = name, yes, no, end

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.wrong += 1
        about = {"steps": self.wrong}
        if self.wrong == 2 and self.name:
            about[self.name] = self.yes if action == "win" else self.no
        return "", 0.1, self.wrong == self.end, False, about


def played(env: Any, action: str, turns: int = 3) -> dict[str, Any]:
    env.reset(seed=0)
    for _ in range(turns):
        *_, info = env.step(action)
    return info


@pytest.mark.parametrize(
    ("yes", "no"),
    [
        (True, False),
        (1, 0),
        (1.0, 0.0),
        (np.True_, np.False_),
        (np.float32(1), np.int64(0)),
        (np.array(True), np.array([False])),
        ([True], [False]),
        ((np.array([1]),), (0,)),
    ],
)
@pytest.mark.parametrize("name", ["won", "success", "is_success"])
def test_success_is_read_by_name_whatever_is_paid_and_when(name: str, yes: Any, no: Any) -> None:
    env = wrap(lambda: House(name, yes, no), success=name)
    assert played(env, "win")["is_success"] is True, "said before the end, and never paid for"
    assert played(env, "lose")["is_success"] is False, "the success of the last episode is forgotten"
    env = wrap(lambda: House(name, yes, no, end=9), success=name, max_turns=2)
    assert played(env, "win", 2)["is_success"] is True, "won with the last turn of the budget"


def test_without_a_name_success_is_read_as_before() -> None:
    assert played(wrap(lambda: House("won")), "win")["is_success"] is False
    assert played(wrap(lambda: House("is_success", end=2)), "win", 2)["is_success"] is True
    assert played(wrap(House, success_reward=0.1), "lose")["is_success"] is True


def test_a_name_that_says_nothing_or_something_else_is_the_users_mistake() -> None:
    assert played(wrap(House, success=lambda info: info["steps"] > 1), "lose")["is_success"] is True
    for world, words in (
        (lambda: House("won"), r"success is 'solved', and no info of House said it; the last one has: steps"),
        (lambda: House("solved", yes=0.7), r"success='solved' of info is 0\.7 \(float\); it must be True or Fal"),
        (lambda: House("solved", yes="yes"), "success='solved' of info is 'yes'"),
        (lambda: House("solved", yes=[True, False]), "success='solved' of info is"),
    ):
        with pytest.raises(ConfigError, match=words):
            played(wrap(world, success="solved"), "win")
    with pytest.raises(ConfigError, match=r"success is 5 \(int\); it must be a name in info"):
        wrap(House, success=5)


def test_long_observations_of_a_world_are_cut_with_a_mark() -> None:
    class Long(Echo):
        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            return "x" * 10**6, 0.0, False, False, {}

    for limit, kwargs in ((16_384, {}), (100, {"max_chars": 100})):
        env = wrap(Long, **kwargs)
        env.reset(seed=0)
        observation = env.step("go")[0]
        assert len(observation) == limit and "[cut: the result has 1,000,000 characters" in observation
    with pytest.raises(ConfigError, match="max_chars is 0"):
        wrap(Long, max_chars=0)


def test_what_cannot_be_wrapped_is_named() -> None:
    with pytest.raises(ConfigError, match="hand over its id, or a function"):
        wrap(Echo())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cannot make 'Nothing-v0'"):
        wrap("Nothing-v0")
    with pytest.raises(ConfigError, match="not the id 'CartPole-v1'"):
        wrap("CartPole-v1", tasks={"train": ["a"]})
    with pytest.raises(ConfigError, match="env_kwargs are the arguments of an id"):
        wrap(Echo, env_kwargs={"level": 2})
    with pytest.raises(ConfigError, match="the observation of CartPoleEnv is"):
        wrap("CartPole-v1").reset(seed=0)


@pytest.mark.parametrize(
    "answer",
    ["__import__('os').system('id')", "exit()", "9**9**9", "(9**9)**9", "(9**9*1)**9", "'a'*99999999", "5!", "1<<99999"]
    + ["[0 for _ in iter(int, 1)]", "(lambda: 0)()", "x.__class__", "[1]*10**9", "open('x')", "(" * 5000]
    + ["[0 for a in 'ab' for b in 'ab']", "f'{1:9999999999}'", "'%999999999d' % 1", "lambda: 0", "x.args", "x[0]"]
    + ["1e99999999", "1.e-9_9999999", "9**(99*99*99*99)", "9**(99/(1/99/99/99))", "9**exp(99)", "exp(exp(exp(99)))"]
    + ["exp((9 + 0*x)**99)"],
)
def test_an_answer_that_would_be_evaluated_cannot_do_harm(answer: str) -> None:
    assert not harmless(answer)


@pytest.mark.parametrize(
    "answer",
    ["(3 + 4) * 2", "x**2*y**3 + 1", "-cos(x)/3 + C", "[[1, 2], [3, 4]]", "x**(1/2)", "_ Q\nQ _", "['ab']"]
    + ["2*(2 - 8*x)**(3/2)/3 + C", "exp(x**2) - x**-2", "entry", f"[{'-1, ' * 500}]"],
)
def test_and_plain_arithmetic_is_evaluated(answer: str) -> None:
    assert harmless(answer)


@pytest.mark.parametrize("answer", ["gold", "[gold]", "\uff47old", "row['gold']", "row"])
def test_an_answer_does_not_read_what_the_judge_knows(answer: str) -> None:
    assert not harmless(answer, ("row", "gold")) and harmless("GOLD", ("row", "gold"))


def test_seeds_for_which_a_generator_fails_are_passed_over() -> None:
    class Source:
        name = "half"

        def row(self, seed: int) -> dict[str, Any]:
            if seed % 2:
                raise TypeError("no question")
            return {"question": f"What is {seed}?", "answer": str(seed)}

    rows = [*_Rows(Source(), "test", 20)]  # type: ignore[arg-type]
    assert len({row["question"] for row in rows}) == 20 and all(int(row["answer"]) % 2 == 0 for row in rows)


def test_what_is_not_installed_is_named() -> None:
    for module, make in (
        ("reasoning_gym", lambda: agent_gym.make("AgentR1/ReasoningGym-v0", dataset="countdown")),
        ("textarena", lambda: __import__("agent_gym.contrib.textarena", fromlist=["x"]).FromTextArena("Wordle-v0")),
    ):
        if find_spec(module) is None:
            with pytest.raises(ConfigError, match=f"needs the package '{module}'"):
                make()


class TestReasoningGym:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("reasoning_gym")

    def test_splits_share_no_question_and_an_expert_solves_them(self) -> None:
        make = {"dataset": "simple_equations", "evaluation_rows": 20}
        check_text_env(lambda: agent_gym.make("AgentR1/ReasoningGym-v0", **make), episodes=2)
        env = agent_gym.make("AgentR1/ReasoningGym-v0", **make)
        asked = {split: {env.tasks[split][i]["question"] for i in range(20)} for split in env.tasks}
        assert all(len(asked[split]) == 20 for split in ("validation", "test"))
        assert not asked["train"] & asked["test"] and not asked["validation"] & asked["test"]

    def test_what_is_no_number_is_no_answer(self) -> None:
        env = agent_gym.make("AgentR1/ReasoningGym-v0", dataset="complex_arithmetic", evaluation_rows=2)
        for answer in ("nan", "inf", "nan+nanj"):  # reasoning-gym's own judge takes the first for right
            env.reset(options={"split": "test", "index": 0})
            assert env.step(f"<answer>{answer}</answer>")[1] == 0.0, answer

    @pytest.mark.parametrize(
        ("dataset", "answer"),
        [("string_insertion", "oracle_answer"), ("n_queens", "entry['metadata']['solutions'][0]")]
        + [(name, "entry['metadata']['solution']") for name in ("binary_matrix", "spiral_matrix")],
    )
    def test_a_judge_does_not_tell_the_answer(self, dataset: str, answer: str) -> None:
        env = agent_gym.make("AgentR1/ReasoningGym-v0", dataset=dataset, evaluation_rows=2)
        for action, reward in ((f"<answer>{answer}</answer>", 0.0), (None, 1.0)):
            env.reset(options={"split": "test", "index": 0})
            assert env.step(action or env.expert_action())[1] == reward

    def test_the_judge_scores_and_evaluates_nothing_else(self) -> None:
        env = agent_gym.make("AgentR1/ReasoningGym-v0", dataset="countdown", evaluation_rows=2)
        for action, score in (("<answer>exit()</answer>", 0.0), ("no answer", 0.0), (None, 1.0)):
            env.reset(options={"split": "test", "index": 1})
            _, reward, *_, info = env.step(action or env.expert_action())
            assert reward == score and bool(info["error"]) == (score == 0.0)
        with pytest.raises(ConfigError, match="no data set 'sums'"):
            agent_gym.make("AgentR1/ReasoningGym-v0", dataset="sums")
        with pytest.raises(ConfigError, match="cannot make 'countdown'"):
            agent_gym.make("AgentR1/ReasoningGym-v0", dataset="countdown", config={"nothing": 1})


class TestTextArena:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("textarena")

    def test_a_game_of_one_is_played_and_leaves_the_generators_alone(self) -> None:
        from agent_gym.contrib.textarena import FromTextArena

        before = random.getstate()
        check_text_env(lambda: FromTextArena("GuessTheNumber-v0"), expert=False, episodes=2)
        env = FromTextArena("GuessTheNumber-v0")
        env.reset(options={"split": "test", "index": 5})
        low, high, over = 1, 20, False
        while not over:
            guess = (low + high) // 2
            observation, reward, terminated, truncated, info = env.step(f"[{guess}]")
            low, high = (guess + 1, high) if "higher" in observation else (low, guess - 1)
            over = terminated or truncated
        assert reward == 1.0 and info["is_success"] and random.getstate() == before

    def test_a_game_of_two_has_a_fixed_opponent(self) -> None:
        from agent_gym.contrib.textarena import FromTextArena

        def plays(observation: str, rng: Any) -> str:
            return f"[{rng.choice(re.findall('[0-8]', observation.rpartition('Available Moves')[2]))}]"

        def play(seed: int) -> list[Any]:
            env, log, over = FromTextArena("TicTacToe-v0", opponent=plays, max_turns=9), [], False
            env.reset(seed=seed, options={"index": 0})
            for cell in (4, 0, 8, 2, 6, 1, 7, 3, 5):
                if not over:
                    observation, reward, terminated, truncated, _ = env.step(f"[{cell}]")
                    over = terminated or truncated
                    log.append((observation, reward))
            return log

        assert play(0) == play(0) != play(1)
        with pytest.raises(ConfigError, match="give opponent="):
            FromTextArena("TicTacToe-v0")
        with pytest.raises(ConfigError, match="cannot make 'Nothing-v0'"):
            FromTextArena("Nothing-v0")

    def test_an_opponent_that_fails_gives_no_win(self) -> None:
        from agent_gym.contrib.textarena import FromTextArena

        def garbles(observation: str, rng: Any) -> str:
            return "[garbage]"

        def raises(observation: str, rng: Any) -> str:
            raise ZeroDivisionError("no move")

        kinds: list[tuple[Any, type[Exception], str]] = [
            (garbles, EnvFailure, r"the opponent \S+garbles lost by an invalid move, '\[garbage\]': "),
            (raises, EnvFailure, r"the opponent \S+raises raised ZeroDivisionError: no move \(.*worlds\.py:\d+\)"),
            (lambda observation, rng: 5, ConfigError, r"the opponent \S+ returned 5 \(int\); it must return a text"),
        ]
        for opponent, error, words in kinds:
            env = FromTextArena("TicTacToe-v0", opponent=opponent)
            env.reset(seed=0)
            with pytest.raises(error, match=words):
                env.step("[4]")
        env = FromTextArena("TicTacToe-v0", opponent=garbles)
        env.reset(seed=0)
        env.step("[garbage]")
        *_, info = env.step("[garbage]")
        assert info["is_success"] is False, "the policy's own invalid moves lose the game, as before"
        with pytest.raises(ConfigError, match="opponent is 'me'"):
            FromTextArena("TicTacToe-v0", opponent="me")
        with pytest.raises(ConfigError, match="not for 3 player"):
            FromTextArena("TicTacToe-v0", opponent=garbles, players=3)

    def test_an_opponent_plays_all_other_players(self) -> None:
        def plays(observation: str, rng: Any) -> str:
            return f"[{rng.integers(25)}]"

        env: Any = agent_gym.make("AgentR1/TextArena-v0", game="ThreePlayerTicTacToe-v0", opponent=plays).unwrapped
        assert env._players == 3
        seen = [env.reset(seed=4)[0], env.step("[12]")[0]]
        assert seen == [env.reset(seed=4)[0], env.step("[12]")[0]] and all("[Player" in text for text in seen[1:])

    def test_a_served_model_is_an_opponent_with_a_conversation(self) -> None:
        pytest.importorskip("openai")
        answers = [(200, {"choices": [{"message": {"content": cell}}]}) for cell in ("[0]", "[1]", "[7]")]
        server = Server(*answers, (400, {}))
        with serving(server) as address:
            env: Any = agent_gym.make("AgentR1/TextArena-v0", game="TicTacToe-v0", opponent=address)
            env.reset(seed=0)
            for cell in (4, 8):
                env.step(f"[{cell}]")
            asked = [content["messages"] for path, content, _ in server.asked if path.endswith("/chat/completions")]
            assert [message["role"] for message in asked[1]] == ["user", "assistant", "user"]
            assert "[4]" in asked[0][-1]["content"] and "[8]" in asked[1][-1]["content"]
            env.reset(seed=0)
            env.step("[4]")
            last = [content["messages"] for path, content, _ in server.asked if path.endswith("/chat/completions")][-1]
            assert len(last) == 1, "an episode begins a conversation of its own"
            with pytest.raises(EnvFailure, match="the opponent did not answer"):
                env.step("[8]")

    def test_long_observations_are_cut_with_a_mark(self) -> None:
        from agent_gym.contrib.textarena import FromTextArena

        observation, _ = FromTextArena("GuessTheNumber-v0", max_chars=100).reset(seed=0)
        assert len(observation) == 100 and "[cut: the result has" in observation
