"""What an episode that failed says about its cause: kind, message, file and line of the user's code, traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
from rollout_tools import roll

from agent_gym import RolloutError
from agent_gym.rollout import (
    Episode,
    EpisodeSpec,
    Failure,
    failure_summary,
    from_record,
    read_trajectories,
    to_record,
    write_trajectories,
)

SOURCE = '''
import json
import pickle

import gymnasium
from agent_gym import EnvFailure, Reply, TextEnv, ToolEnv, ToolResult, tool


class Mute(Exception):
    def __str__(self):
        raise ValueError("no text")
    __repr__ = __str__


class Stuck(Exception):
    """Pickles and does not unpickle."""

    def __init__(self, a, b):
        super().__init__("stuck")


class MyEnv(TextEnv):
    """Fails in one of several ways, for the tasks that it is given."""

    reward_weights = {"a": 1.0}

    def __init__(self, how="", tasks=range(50), turn=0, **kwargs):
        self.how, self.bad, self.when = how, tasks, turn
        super().__init__({"train": range(50)}, **kwargs)

    def begin(self, task):
        self.task = task
        return "Go."

    def respond(self, action):
        if self.task in self.bad and self.turn == self.when:
            self.backend()
        return Reply("on", terms={"a": 1.0}, terminated=self.turn == 3)

    def backend(self):
        if self.how == "library":
            json.loads("{")  # line: library
        if self.how == "mute":
            raise Mute()  # line: mute
        if self.how == "stuck":
            raise Stuck(1, 2)  # line: stuck
        if self.how == "chained":
            try:
                self.connect()
            except OSError as error:
                raise EnvFailure("the backend is gone") from error
        if self.how == "exit":
            raise SystemExit("enough")  # line: exit

    def connect(self):
        raise ConnectionRefusedError("port 99")  # line: chained

    def close(self):
        if self.how == "close":
            raise ValueError("close() is broken")


class MyTools(ToolEnv):
    """Its tool breaks, or reports an error in some tasks."""

    reward_weights = {}

    def __init__(self, asleep=0, **kwargs):
        self.asleep = asleep
        super().__init__({"train": range(10)}, tools=[tool(self.look)], **kwargs)

    def begin(self, task):
        self.task = task
        return "Go."

    def look(self) -> ToolResult:
        """Look."""
        if not self.asleep:
            raise Mute()  # line: tool
        return ToolResult("Error: the backend is asleep", error=self.task < self.asleep)

    def answer(self, text):
        return Reply(terminated=True)

    def expert_action(self):
        return self.parser.render("look", {}) if self.turn == 0 else "done"


class Lossy(gymnasium.Wrapper):
    """Takes a field out of the infos."""

    def __init__(self, env, name, at):
        super().__init__(env)
        self.name, self.at = name, at

    def without(self, info, here):
        return {k: v for k, v in info.items() if here != self.at or k != self.name}

    def reset(self, **kwargs):
        observation, info = self.env.reset(**kwargs)
        self.even = info["task_id"][-1] in "02468"
        return observation, self.without(info, "reset") if self.even else info

    def step(self, action):
        *rest, info = self.env.step(action)
        return *rest, self.without(info, "step") if self.even else info


class Unreadable(Lossy):
    def without(self, info, here):
        return info | {self.name: object()} if here == self.at else info


def make_lossy(name, at, unreadable=False):
    return (Unreadable if unreadable else Lossy)(MyEnv(), name, at)
'''


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A user's file, outside of everything that belongs to agent_gym."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "users_world.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        for name, entry in {"My": "MyEnv", "Tools": "MyTools", "Lossy": "make_lossy"}.items():
            gymnasium.register(f"Mine/{name}-v0", entry_point=f"users_world:{entry}")
        yield folder / "users_world.py"
    for name in ("My", "Tools", "Lossy"):
        del gymnasium.registry[f"Mine/{name}-v0"]


def place(path: Path, mark: str) -> str:
    (number,) = [n for n, line in enumerate(path.read_text().splitlines(), 1) if line.endswith(f"# line: {mark}")]
    return f"{path}:{number}"


def specs(n: int, env_id: str = "Mine/My-v0", **kwargs: Any) -> list[EpisodeSpec]:
    return [EpisodeSpec(env_id, kwargs, index=i) for i in range(n)]


HOW = {
    "library": ("JSONDecodeError", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    "mute": ("Mute", "(no text: its __str__ raised ValueError)"),
    "stuck": ("Stuck", "stuck"),
    "chained": ("EnvFailure", "the backend is gone"),
    "exit": ("SystemExit", "enough"),
}


@pytest.mark.parametrize("processes", [0, 1])
def test_a_failure_names_the_line_of_the_users_file(tokenizer: Any, mine: Path, processes: int) -> None:
    wanted = [spec for how in HOW for spec in specs(3, how=how, tasks=(1,))]
    episodes = roll(tokenizer, wanted, lambda episode: "go", env_processes=processes)
    for i, (how, (kind, message)) in enumerate(HOW.items()):
        first, failed, last = episodes[3 * i : 3 * i + 3]
        assert first.success is last.success is False and not first.failure and not last.failure, how
        found = failed.failure
        assert found is not None and (found.kind, found.message) == (kind, message)
        assert found.where == place(mine, how)
        assert found.where.partition(":")[0] in found.traceback and "backend" in found.traceback
        assert found.traceback.startswith("Traceback (most recent call last)")
        if how == "chained":
            assert "ConnectionRefusedError: port 99" in found.traceback


def test_what_a_function_raises_the_policy_reads_and_its_author_once_with_the_line(
    tokenizer: Any, mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    act = lambda episode: call * 3 if episode.turns == 0 and episode.spec.index else "done"  # noqa: E731
    fine, *others = roll(tokenizer, specs(3, "Mine/Tools-v0"), act)
    assert fine.terminated and not any(episode.failure for episode in others)
    for episode in others:
        assert episode.steps[0].error == "Error: Mute: (no text: its __str__ raised ValueError)"
        assert [made["error"] for made in episode.steps[0].tool_calls] == [True] * 3 and episode.terminated
        assert sum(step.metrics.get("tool/look/raised", 0.0) for step in episode.steps) == 3.0
    err = capsys.readouterr().err
    assert err.count("agent-gym: tool 'look' raised Mute") == 1 and place(mine, "tool") in err


@pytest.mark.parametrize(
    ("at", "name", "processes"),
    [("reset", "token_ids", 0), ("reset", "task_id", 1), ("step", "error", 1), ("step", "token_spans", 0)],
)
def test_an_info_without_a_field_is_a_failed_episode(
    tokenizer: Any, mine: Path, at: str, name: str, processes: int
) -> None:
    wanted = specs(4, "Mine/Lossy-v0", at=at, name=name)
    for i, episode in enumerate(roll(tokenizer, wanted, lambda episode: "go", env_processes=processes)):
        if i % 2:
            assert not episode.failure and episode.terminated and len(episode.steps) == 4
            continue
        words = f"EnvFailure: the info of {at} has no '{name}'; the contract of TextEnv asks for it"
        assert str(episode.failure) == words
        assert not episode.steps and len(to_record(episode)["rows"]) == (at == "step")


@pytest.mark.parametrize("at", ["reset", "step"])
def test_an_info_that_cannot_be_read_is_one_too(tokenizer: Any, mine: Path, at: str) -> None:
    with pytest.raises(RolloutError, match=rf"all 1 episodes failed; the first: EnvFailure: what {at} returned cannot"):
        roll(tokenizer, specs(1, "Mine/Lossy-v0", at=at, name="messages", unreadable=True), lambda episode: "go")


def test_when_all_fail_the_error_names_place_and_kinds_and_is_chained(tokenizer: Any, mine: Path) -> None:
    wanted = [*specs(1, how="chained"), *specs(3, how="library"), *specs(2, how="mute")]
    with pytest.raises(RolloutError) as raised:
        roll(tokenizer, wanted, lambda episode: "go")
    assert str(raised.value) == (
        f"all 6 episodes failed; the first: EnvFailure: the backend is gone ({place(mine, 'chained')}); "
        "by kind: 3 x JSONDecodeError, 2 x Mute, 1 x EnvFailure"
    )
    cause = str(raised.value.__cause__)
    assert "Traceback (most recent call last)" in cause and "ConnectionRefusedError: port 99" in cause


def test_a_record_keeps_failures_and_a_summary_has_a_line_for_each_kind(
    tokenizer: Any, mine: Path, tmp_path: Path
) -> None:
    wanted = [*specs(2, how="chained", tasks=(1,)), *specs(3, how="library", tasks=(0, 2))]
    episodes = roll(tokenizer, wanted, lambda episode: "go")
    write_trajectories(tmp_path / "t.jsonl", [to_record(episode) for episode in episodes])
    records = list(read_trajectories(tmp_path / "t.jsonl"))
    for played in (episodes, [from_record(record) for record in records]):
        assert failure_summary(played) == [
            f"2 x JSONDecodeError, the first: JSONDecodeError: {HOW['library'][1]} ({place(mine, 'library')})",
            f"1 x EnvFailure, the first: EnvFailure: the backend is gone ({place(mine, 'chained')})",
        ]
    record, failure = records[2], episodes[2].failure
    assert record["failure"] == str(failure), "a text, as readers of older files expect"
    assert from_record(record).failure == failure
    del record["failure_details"]
    assert from_record(record).failure == Failure(*HOW["library"])
    noisy = Episode(EpisodeSpec("x"), failure=Failure("X", "a\n\ud800" + 1000 * "b"))
    (line,) = failure_summary([noisy])
    assert line.isprintable() and len(line) < 400


@pytest.mark.parametrize("processes", [0, 1])
def test_a_close_that_raises_loses_no_result(
    tokenizer: Any, mine: Path, processes: int, capfd: pytest.CaptureFixture[str]
) -> None:
    episodes = roll(tokenizer, specs(3, how="close"), lambda episode: "go", env_processes=processes)
    assert all(episode.terminated and not episode.failure for episode in episodes)
    if not processes:  # the fork server's processes write where it did when it was started
        assert "agent-gym: closing an environment failed: ValueError: close() is broken" in capfd.readouterr().err


def test_reading_an_error_never_raises() -> None:
    class Odd(Exception):
        __notes__ = 5  # type: ignore[assignment]

    for error in (Odd(), BaseExceptionGroup("many", [Odd(), ValueError("x")])):
        try:
            raise error
        except BaseException as raised:
            found = Failure.of(raised)
        assert found.kind == type(error).__name__ and found.where.startswith(__file__)
        assert "test_failures" in found.traceback
    cyclic = ValueError("a")
    cyclic.__cause__ = KeyError("b")
    cyclic.__cause__.__cause__ = cyclic
    assert str(Failure.of(cyclic)) == "ValueError: a"


@pytest.mark.parametrize("asleep", [4, 9])
def test_tools_that_fail_in_the_experts_own_calls_raise_an_alarm(
    tokenizer: Any, mine: Path, asleep: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("trl")
    from agent_gym.cli.main import main
    from agent_gym.trainers.sft import expert_episodes

    line = "Mine/Tools-v0: 9 of 10 tool calls of the expert failed; the first, of 'look': Error: the backend is asleep"
    flags = ["--expert", "--episodes", "10", "--split", "train", "--output", str(tmp_path / "t.jsonl")]
    assert main(["rollout", "Mine/Tools-v0", "--env_kwargs", f'{{"asleep": {asleep}}}', *flags]) == 0
    assert (f"agent-gym: warning: {line}\n" in capsys.readouterr().err) == (asleep > 5)
    expert_episodes("Mine/Tools-v0", {"asleep": asleep}, tokenizer, split="train", episodes=10)
    assert (line in capsys.readouterr().err) == (asleep > 5)
