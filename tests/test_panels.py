"""Panels: tasks pinned by hashes, which the generators still give, and which refuse any other byte."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from conftest import DATA
from rollout_tools import roll
from toy_envs import IDS

from agent_gym import ConfigError
from agent_gym.cli.main import main
from agent_gym.evaluate import make_specs
from agent_gym.evaluate.panels import (
    SIZES,
    Panel,
    canonical,
    look,
    played_panel,
    prompt_sha256,
    read_panel,
    sha256,
    write_panels,
)
from agent_gym.registry import ENVS
from agent_gym.rollout import derive_seed, from_record, make_env, to_record

GSM8K = "AgentR1/GSM8K-v0"
FILES = {file.name.removesuffix(".json") for file in resources.files("agent_gym.registry").joinpath("panels").iterdir()}
OURS = sorted(name for name in FILES if "official" not in name)


def panel(name: str) -> Panel:
    short, _, rest = name.partition(".")
    return read_panel(rest, f"AgentR1/{short}")


# The panels of the registry.


@pytest.mark.parametrize("name", OURS)
def test_the_generator_still_gives_the_bytes_of_each_panel(name: str) -> None:
    found = panel(name)
    found.check({})
    assert (found.name, found.version >= 1) == (name, True)
    size = len(make_env(found.env_id).get_wrapper_attr("tasks")[found.split])
    assert len(found.tasks) == min(size, SIZES[found.split])


def test_every_environment_has_its_panels_and_no_file_is_left_over() -> None:
    entries = [entry for entry in ENVS if entry.id in IDS]
    wanted = {f"{e.id.partition('/')[2]}.{split}" for e in entries for split in (["test"] if e.kwargs else SIZES)}
    assert wanted == set(OURS)


def test_panels_of_one_environment_are_disjoint() -> None:
    for entry in ENVS:
        if entry.id not in IDS or entry.kwargs:
            continue
        found = {split: read_panel(split, entry.id).tasks for split in SIZES}
        # By what is read, everywhere; by gold where that names one room, product, maze or set of papers.
        places = [1, 2] if any(name in entry.id for name in ("ALFWorld", "WebShop", "Maze", "PaperSearch")) else [1]
        for place in places:
            contents = [{task[place] for task in tasks} for tasks in found.values()]
            assert sum(map(len, contents)) == len(set.union(*contents)), (entry.id, place)


def test_variants_ask_for_the_same_answers_in_other_words() -> None:
    for base, variants in {
        "GSM8K-v0": ["GSM8K-NoTool-v0"],
        "HotpotQA-v0": ["HotpotQA-Direct-v0", "HotpotQA-NaiveRAG-v0", "HotpotQA-ReAct-v0"],
        "ReTool-v0": ["MathPython-v0"],
    }.items():
        panels = [panel(f"{name}.test") for name in (base, *variants)]
        assert len({one.golds_sha256 for one in panels}) == 1
        assert len({one.prompts_sha256 for one in panels}) == len(panels)


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("GSM8K-v0.official-test", {"data": str(DATA / "gsm8k")}),
        (
            "WebShop-v0.official-small-test",
            {"data": str(DATA / "webshop" / "items_shuffle_1000.json"), "goals": "synthetic"},
        ),
    ],
)
def test_official_files_still_give_the_bytes_of_their_panel(name: str, kwargs: Mapping[str, Any]) -> None:
    if not Path(kwargs["data"]).exists():
        pytest.skip(f"{kwargs['data']} does not exist (set AGENT_GYM_DATA)")
    panel(name).check(kwargs)


def test_official_games_still_give_the_bytes_of_their_panel(alfworld_folder: Path) -> None:
    panel("ALFWorld-v0.official-valid_seen").check({"data": str(alfworld_folder)})


@pytest.mark.slow
def test_made_anew_the_panels_are_the_same_files(tmp_path: Path) -> None:
    for name in OURS[:3]:  # with hashes that are wrong, these get the next version
        file = tmp_path / f"{name}.json"
        panel(name).write(file)
        file.write_text(file.read_text().replace('golds_sha256": "', 'golds_sha256": "0'))
    write_panels(tmp_path)
    for name in OURS:
        then, now = vars(panel(name)), vars(read_panel(str(tmp_path / f"{name}.json"), panel(name).env_id))
        assert now == {**then, "version": then["version"] + (name in OURS[:3])}


# Hashes.


def test_a_hash_is_of_canonical_json() -> None:
    text = '{"messages":[{"content":"f\\u00fcr \\ud800","role":"user"}],"tools":[]}'
    message = {"role": "user", "content": "für \ud800"}
    assert prompt_sha256([message], []) == hashlib.sha256(text.encode()).hexdigest()
    assert prompt_sha256([dict(reversed(message.items()))], []) == prompt_sha256([message], [])


def test_hashes_do_not_depend_on_order_and_know_of_each_change() -> None:
    rows = list(look(GSM8K, {}, "test", 6))
    made = [Panel.of("p", GSM8K, {}, "test", some) for some in (rows, random.Random(0).sample(rows, 6))]
    assert made[0] == made[1]
    wrong = [{**rows[0], "gold_sha256": sha256("43")}, *rows[1:]]
    changed = Panel.of("p", GSM8K, {}, "test", wrong)
    assert changed.prompts_sha256 == made[0].prompts_sha256 and changed.golds_sha256 != made[0].golds_sha256
    with pytest.raises(ConfigError, match=rf"1001 tasks asked for, but split 'test' of {GSM8K} has 1000"):
        next(look(GSM8K, {}, "test", 1001))
    with pytest.raises(ConfigError, match=rf"panel p, version 1, has: test/{rows[0]['index']} of 6\. It was made"):
        changed.check({})


def test_what_was_played_has_the_hash_of_its_panel_whatever_the_chat_template_shows(tokenizer: Any) -> None:
    """One template renders tools; with the other one they are described in the system prompt."""
    plain = copy.deepcopy(tokenizer)
    plain.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    differ = []
    for env_id in (GSM8K, "AgentR1/ALFWorld-v0", "AgentR1/HotpotQA-ReAct-v0", "AgentR1/Bisect-v0"):
        wanted = Panel.of("", env_id, {}, "test", look(env_id, {}, "test", range(5)))
        openings = []
        for one in (tokenizer, plain):
            episodes = roll(one, make_specs(env_id, episodes=5))
            openings.append(episodes[0].initial_messages)
            assert played_panel(episodes) == wanted, env_id
        differ.append(openings[0] != openings[1])
    assert differ == [True, True, False, False]


def test_images_count_by_their_pixels_also_from_a_file() -> None:
    from vision_tools import loaded_processor

    specs = make_specs("AgentR1/VisualMaze-v0", episodes=3)
    episodes = roll(loaded_processor(), specs)
    wanted = Panel.of("", "AgentR1/VisualMaze-v0", {}, "test", look("AgentR1/VisualMaze-v0", {}, "test", range(3)))
    assert played_panel(episodes) == wanted
    stored = [from_record(json.loads(json.dumps(to_record(episode)))) for episode in episodes]
    assert played_panel(stored) == wanted and len({prompt for _, prompt, _ in wanted.tasks}) == 3


# As a user.


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "test.jsonl"
    tasks = [{"question": f"What is {n} + {n}?", "answer": f"#### {2 * n}"} for n in range(5)]
    file.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return file


def test_exported_tasks_can_be_hashed_again_and_their_panel_be_played(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kwargs = ["--env_kwargs", json.dumps({"data": str(rows)})]
    out = tmp_path / "out" / "mine.jsonl"
    assert main(["export", "tasks", GSM8K, str(out), *kwargs]) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["task_id"] for line in lines] == [f"test/{n}" for n in range(5)] and "#### 2" not in out.read_text()
    for n, line in enumerate(lines):
        said = canonical({"messages": line["messages"], "tools": line["tools"]})
        assert line["prompt_sha256"] == hashlib.sha256(said.encode()).hexdigest()
        assert line["gold_sha256"] == hashlib.sha256(f'["{2 * n}"]'.encode()).hexdigest()
    file = str(out.with_suffix(".json"))
    found = read_panel(file, GSM8K)
    assert (found.name, found.env_kwargs) == ("mine", {"data": "test.jsonl"}), "no path of this machine"
    specs = make_specs(GSM8K, {"data": str(rows)}, panel=found, group_size=2, seed=9)
    assert [(spec.index, spec.seed) for spec in specs[::2]] == [(n, derive_seed(0, n)) for n in range(5)]

    before, panel = out.read_bytes(), out.with_suffix(".json").read_bytes()
    out.with_suffix(".json").write_text("{}")
    assert main(["export", "tasks", GSM8K, str(out), *kwargs, "--tasks", "2"]) == 2
    assert "mine.json is not a panel" in capsys.readouterr().err and out.read_bytes() == before
    out.with_suffix(".json").write_bytes(panel)

    rows.write_text(rows.read_text().replace("#### 4", "#### 5").replace("What is 4", "What was 4"))
    capsys.readouterr()
    assert main(["eval", GSM8K, "--expert", "--panel", file, *kwargs]) == 2
    message = capsys.readouterr().err
    assert "other tasks here than panel mine, version 1, has: test/2, test/4 of 5. It was made with" in message


@pytest.mark.parametrize(
    ("name", "env_id", "message"),
    [
        ("tset", GSM8K, "no panel 'tset' of AgentR1/GSM8K-v0; it has: official-test, test, train, validation"),
        ("none.json", GSM8K, "no panel 'none.json'"),
        ("broken.json", GSM8K, "broken.json is not a panel"),
        ("other.json", GSM8K, "is of AgentR1/Bisect-v0, and AgentR1/GSM8K-v0 is to be played"),
    ],
)
def test_what_is_no_panel(
    name: str, env_id: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text('{"name": "x"}')
    read_panel("test", "AgentR1/Bisect-v0").write(Path("other.json"))
    with pytest.raises(ConfigError, match=message):
        read_panel(name, env_id)


def test_a_panel_says_what_is_played_alone() -> None:
    with pytest.raises(ConfigError, match="leave out the split and the episodes"):
        make_specs(GSM8K, split="test", panel=read_panel("test", GSM8K))
