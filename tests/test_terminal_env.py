"""Terminal tasks: what the generator promises, Harbor's folders read and written, and what an episode is."""

from __future__ import annotations

import copy
import json
import pickle
import random
import re
import shutil
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

import agent_gym
from agent_gym import ConfigError
from agent_gym.certify.record import outcome
from agent_gym.envs.terminal.data import task_of, write_embedded
from agent_gym.envs.terminal.embedded import WORDINGS, GeneratedTasks, build
from agent_gym.envs.terminal.embedded.kinds import KINDS, query
from agent_gym.envs.terminal.env import reward_of
from agent_gym.envs.terminal.harbor import Unfit, read_task
from agent_gym.testing import expert_episode

ID = "AgentR1/Terminal-v0"


def call(env: Any, command: str) -> Any:
    return env.step(env.parser.render("bash", {"command": command}))


def of_kind(kind: str) -> dict[str, Any]:
    return {
        "split": "test",
        "index": next(i for i, row in enumerate(GeneratedTasks("test", 200)) if row["kind"] == kind),
    }


# The generator.


def test_tasks_are_whole_and_no_split_has_text_or_content_of_another() -> None:
    texts, contents = dict[str, str](), dict[str, str]()
    for split, size in GeneratedTasks.SIZES.items():
        rows = list(GeneratedTasks(split, min(size, 500)))
        assert json.loads(json.dumps(rows)) == rows
        assert [row["level"] for row in rows[:6]] == [1, 2, 3, 4, 5, 1]
        assert {row["kind"] for row in rows} == {kind for kinds in KINDS for kind in kinds} == set(WORDINGS)
        for row in rows:
            assert texts.setdefault(row["instruction"], split) == split
            assert contents.setdefault(json.dumps(row["checks"]["goals"]), split) == split
        assert len({row["instruction"] for row in rows}) > (0.95 if split == "train" else 0.999) * len(rows)
    assert [*GeneratedTasks("test", 50)][7] == GeneratedTasks("test", 200)[7]
    assert {row["level"] for row in GeneratedTasks("train", 9, difficulty=4)} == {4}
    for wrong in ({"split": "dev"}, {"split": "test", "difficulty": 6}):
        with pytest.raises(ConfigError, match="dev|difficulty is 6"):
            GeneratedTasks(**{"size": 5, **wrong})


@pytest.mark.parametrize(("split", "index"), [("train", 7), ("train", 910), ("train", 1036), ("test", 199)])
def test_a_program_is_to_add_up_what_the_sentence_says(split: str, index: int) -> None:
    """Bounds that end in 10, which were once taken for a last digit."""
    row = GeneratedTasks(split, difficulty=3)[index]
    bound = int(re.findall(r"above (\d+)", row["instruction"])[0])
    (data,) = (text for path, text in row["files"].items() if path.endswith(".txt"))
    assert row["checks"]["goals"][0][2] == str(sum(n for n in map(int, data.split()) if n > bound))


@pytest.mark.parametrize("seed", [1445, 2429])
def test_one_customer_alone_has_spent_the_most_where_two_were_drawn(seed: int) -> None:
    draft = query(random.Random(seed))
    base = sqlite3.connect(":memory:")
    base.executescript(*draft.tables.values())
    (first, most), (_, second) = base.execute(
        "select customer, sum(amount) from orders group by customer order by sum(amount) desc limit 2"
    )
    assert first == draft.goals[0][2] and most > second


@pytest.mark.parametrize("kind", WORDINGS)
def test_each_kind_is_unsolved_at_the_start_and_solved_by_its_own_commands(kind: str) -> None:
    env: Any = agent_gym.make(ID)
    env.reset(seed=0, options=of_kind(kind))
    nothing = env.step("The task is done.")[-1]
    assert nothing["reward_terms"] == {"outcome": 0.0, "share": 0.0} and not nothing["is_success"]
    assert expert_episode(env, seed=0, options=of_kind(kind))[-1][-1]["is_success"]


@pytest.mark.parametrize("kind", ["merge", "restore"])
def test_repositories_are_what_git_itself_finds_whole(kind: str, tmp_path: Path) -> None:
    row = GeneratedTasks("test", 200)[of_kind(kind)["index"]]
    for path, content in build(row).files.items():
        (tmp_path / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path[1:]).write_bytes(content if isinstance(content, bytes) else content.encode())
    for command in (["fsck", "--strict"], ["status", "--porcelain"]):
        done = subprocess.run(["git", "-C", tmp_path / "app", *command], capture_output=True, text=True, check=True)
        assert done.stdout == ""
    commits = subprocess.run(["git", "-C", tmp_path / "app", "log", "--all", "--format=%s"], capture_output=True)
    assert len(commits.stdout.splitlines()) == len(row["commits"])


FORGED = {
    # kind: what stands in the place of the work
    "commit": "git commit -q --allow-empty -m '{message}'",
    "merge": "git merge -q -s ours -m Merge {branch}",
    "restore": "git checkout -q HEAD~5 && git checkout -q main",
    "query": "touch x.txt",
    "update": "rm *.db; python3 -c \"import sqlite3; d = sqlite3.connect('{base}'); d.execute('create view goods as "
    "with recursive r(a) as (select 1 union all select 1 from r) select 1 thing, 2 city, 3 price, 4 stock from r')\"",
}


@pytest.mark.parametrize("kind", FORGED)
def test_repositories_and_databases_that_only_look_right_earn_nothing(kind: str) -> None:
    env: Any = agent_gym.make(ID, reward_weights={"share": 1.0})
    options = of_kind(kind)
    row = GeneratedTasks("test", 200)[options["index"]]
    env.reset(seed=0, options=options)
    goals = {goal[0]: goal for goal in row["checks"]["goals"]}
    slots = {"branch": [*row["branches"]][-1:], "base": [*row["tables"]], "message": goals.get("message", [""])[3:]}
    call(env, FORGED[kind].format(**{name: (found or [""])[0] for name, found in slots.items()}))
    info = env.step("The task is done.")[-1]
    assert not info["is_success"] and info["reward_terms"]["share"] <= 0.5


def test_git_objects_under_names_that_are_not_theirs_are_found_out() -> None:
    env: Any = agent_gym.make(ID)
    env.reset(seed=0, options=of_kind("commit"))
    for command in env._given.solution:
        call(env, command)
    call(env, "f=$(find .git/objects -type f | grep -v pack | sort | head -1); chmod u+w $f; echo x > $f")
    assert not env.step("The task is done.")[-1]["is_success"]


# Episodes.


def test_an_episode_shows_outputs_and_exit_codes_and_ends_by_a_turn_without_a_command() -> None:
    env: Any = agent_gym.make(ID, max_output_chars=120)
    env.reset(seed=0, options=of_kind("count-lines"))
    assert call(env, "echo out; echo err >&2; false")[0] == "out\nerr\n[exit code 1]"
    observation, reward, *_, info = call(env, "cd /tmp; export N=7")
    assert (observation, reward, info["error"]) == ("[no output]", 0.0, None)
    assert call(env, "pwd; echo $N")[0] == "/tmp\n7"
    assert len(call(env, "seq 999")[0]) <= 120
    assert "zero byte" in call(env, "echo \0")[0] and "100000" in call(env, "x" * 200_000)[0]
    assert call(env, "echo '\ud800'")[0] == "?"
    *_, terminated, _, info = env.step("<answer>4</answer>")
    assert terminated and info["metrics"] == {"commands": 5.0, "failed_commands": 1.0}


def test_a_copy_goes_on_alone() -> None:
    env: Any = agent_gym.make(ID)
    env.reset(seed=0, options=of_kind("rename"))
    call(env, "echo mine > mine; cd /tmp")
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        call(other, "rm /app/mine")
        assert call(other, "pwd; ls /app/mine")[0].startswith("/tmp\nls: cannot access")
    assert call(env, "cat /app/mine")[0] == "mine"


def test_turns_and_time_that_are_over_run_the_tests() -> None:
    env: Any = agent_gym.make(ID, max_turns=1)
    env.reset(seed=0, options=of_kind("count-lines"))
    *_, terminated, truncated, info = env.step(env.expert_action())
    assert (terminated, truncated, info["is_success"], info["reward_terms"]["outcome"]) == (False, True, True, 1.0)
    env = agent_gym.make(ID)
    env.reset(seed=0, options=of_kind("count-lines"))
    env._shell._room = 0.01
    *_, terminated, truncated, info = call(env, "sleep 0.1")
    assert (terminated, truncated, info["is_success"]) == (True, False, False)


@pytest.mark.parametrize(
    ("text", "reward"),
    [("1\n", 1.0), ("0.25", 0.25), ('{"reward": 0.5}', 0.5), ('{"score": 1}', 1.0), ('{"a": 1, "b": 1}', 0.0)]
    + [(text, 0.0) for text in ("", "yes", "nan", "1e999", "-3", "true", "[1]", "[" * 9999)]
    + [("7", 1.0)],
)
def test_rewards_of_tests_are_read_as_harbor_writes_them(text: str, reward: float) -> None:
    assert reward_of(text) == reward


# Harbor's format.


def test_written_tasks_are_read_and_played_as_they_were(tmp_path: Path) -> None:
    folders = write_embedded(tmp_path / "test", "test", 15)
    write_embedded(tmp_path / "train", "train", 2)
    env: Any = agent_gym.make(ID, data=str(tmp_path))
    assert {split: len(rows) for split, rows in env.tasks.items()} == {"train": 2, "test": 15}
    for index, (row, folder) in enumerate(zip(GeneratedTasks("test", 15), sorted(folders), strict=True)):
        read = task_of(env.tasks["test"][index])
        row = next(one for one in GeneratedTasks("test", 15) if one["name"] == folder.name)
        made = build(row)
        assert read.instruction == made.instruction and read.variables == made.variables and read.folder == "/app"
        assert {path: data for path, data in read.files.items()} == {
            path: data.encode() if isinstance(data, str) else data for path, data in made.files.items()
        }
        if index % 4 == 0:
            assert outcome(expert_episode(env, seed=0, options={"split": "test", "index": index}))[1]
    assert "GOALS" in env.gold(env.tasks["test"][0])["expected.py"]


HARBOR = {
    "instruction.md": "Write 7 into /data/out/answer.txt.",
    "task.toml": 'version = "1.0"\n[agent]\ntimeout_sec = 50\n[verifier]\ntimeout_sec = 20\nenv = { WANT = "7" }\n',
    "environment/Dockerfile": "# a comment\nFROM ubuntu:24.04\nWORKDIR /data\nENV A=1 B='two words'\n"
    'COPY in.txt \\\n  out/\nCOPY ["in.txt", "named.txt"]\nCMD ["bash"]\n',
    "environment/in.txt": "seven\n",
    "tests/test.sh": '[ "$(cat /data/out/answer.txt)" = "$WANT" ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n',
    "solution/solve.sh": "#!/bin/bash\nset -e\necho 7 > out/answer.txt\n",
}


def write(folder: Path, **changed: str) -> Path:
    for name, text in {**HARBOR, **{name.replace("__", "/"): text for name, text in changed.items()}}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_a_task_of_harbor_is_played_with_its_folder_variables_and_time(tmp_path: Path) -> None:
    write(tmp_path / "seven")
    env: Any = agent_gym.make(ID, data=str(tmp_path))
    assert env.reset(seed=0)[0].endswith(HARBOR["instruction.md"])
    assert (
        call(env, "pwd; find . -type f | sort; echo $A-$B; touch /data/x")[0]
        == "/data\n./named.txt\n./out/in.txt\n1-two words"
    )
    assert (env._given.seconds, env._given.test_seconds) == (50, 20)
    assert env.step("Done.")[-1]["is_success"] is False
    assert expert_episode(env, seed=0)[-1][-1]["is_success"]


def test_a_dockerfile_s_variables_stand_for_their_values_and_one_that_is_copied_is_a_file(tmp_path: Path) -> None:
    lines = [
        "FROM ubuntu",
        "ENV ROOT=/data",
        "WORKDIR $ROOT/in",
        "ENV PATH=$ROOT/bin:$PATH PRICE='$5'",
        "COPY . ${ROOT}/x",
    ]
    write(tmp_path / "one", environment__Dockerfile="\n".join(lines), environment__web__Dockerfile="FROM x")
    task = read_task(tmp_path / "one")
    assert task.folder == "/data/in" and sorted(task.files) == ["/data/x/in.txt", "/data/x/web/Dockerfile"]
    assert task.variables["PRICE"] == "$5"
    lines[3] = "ENV PATH=$ROOT/bin:$PATH"
    write(tmp_path / "one", environment__Dockerfile="\n".join(lines))
    env: Any = agent_gym.make(ID, data=str(tmp_path))
    env.reset(seed=0)
    assert call(env, "touch here; pwd; ls; echo $PATH")[0].startswith("/data/in\nhere\n/data/bin:/usr")


def test_tasks_that_differ_in_the_variables_of_their_tests_alone_are_tested_each(tmp_path: Path) -> None:
    test = "echo $WANT > /logs/verifier/reward.txt"
    for want in "01":
        settings = f'[verifier]\nenv = {{ WANT = "{want}" }}\n'
        write(tmp_path / want, **{"tests__test.sh": test, "task.toml": settings})
    env: Any = agent_gym.make(ID, data=str(tmp_path))
    for index in range(2):
        env.reset(options={"index": index})
        assert env.step("Done.")[-1]["is_success"] == bool(index)


UNFIT = {
    "RUN apt-get": {"environment/Dockerfile": "FROM ubuntu\nRUN apt-get install x"},
    "the image 'nvidia/cuda": {"environment/Dockerfile": "FROM nvidia/cuda:12"},
    "the variable 'HOME', which it does not set": {"environment/Dockerfile": "FROM ubuntu\nWORKDIR $HOME/x"},
    "COPY --from=build": {"environment/Dockerfile": "FROM ubuntu\nCOPY --from=build a b"},
    "copies 'missing'": {"environment/Dockerfile": "FROM ubuntu\nWORKDIR /app\nCOPY missing x"},
    "'/usr/lib/x', which belongs to the system": {
        "environment/Dockerfile": "FROM ubuntu\nWORKDIR /app\nCOPY in.txt /usr/lib/x"
    },
    "names the path '../../x'": {"environment/Dockerfile": "FROM ubuntu\nWORKDIR /app\nCOPY in.txt ../../x"},
    "'/', which belongs": {"environment/Dockerfile": "FROM ubuntu\n"},
    "tests/test.sh calls curl": {"tests/test.sh": "# curl\ncurl -LsSf https://example.com | sh"},
    "docker_image = 'some/image'": {"task.toml": "[environment]\ndocker_image = 'some/image'"},
    "several containers": {"environment/docker-compose.yaml": "services: {}"},
    "it is not whole": {"task.toml": "[["},
    "several steps": {"task.toml": "[[steps]]\nname = 'a'"},
}


def test_tasks_that_need_an_image_are_listed_with_the_reason_and_left_out_on_request(tmp_path: Path) -> None:
    for number, changed in enumerate(UNFIT.values()):
        write(tmp_path / f"task{number}", **{name.replace("/", "__"): text for name, text in changed.items()})
    for reason, number in zip(UNFIT, range(len(UNFIT)), strict=True):
        with pytest.raises(Unfit, match=reason.replace("(", r"\(")):
            read_task(tmp_path / f"task{number}")
    with pytest.raises(ConfigError, match=r"^13 of 13 tasks in [^\n]*\n(.*\n)*  1: .*RUN apt-get.* \[task0\]"):
        agent_gym.make(ID, data=str(tmp_path), skip=True)
    write(tmp_path / "fit")
    with pytest.raises(ConfigError, match="skip=True leaves them out"):
        agent_gym.make(ID, data=str(tmp_path))
    with pytest.warns(UserWarning, match="13 of 14 tasks"):
        env: Any = agent_gym.make(ID, data=str(tmp_path), skip=True)
    assert len(env.tasks["train"]) == 1
    shutil.rmtree(tmp_path / "fit" / "tests")
    for wrong, words in (
        ({"data": str(tmp_path / "none")}, "'embedded', or a folder"),
        ({"difficulty": 9}, "difficulty is 9"),
    ):
        with pytest.raises(ConfigError, match=words):
            agent_gym.make(ID, **wrong)
