"""`FunctionCalls-v0` on a made world, without BFCL: the flow of turns, calls, copies, files, refusals."""

from __future__ import annotations

import copy
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
from bfcl_tools import ENV_ID

import agent_gym
from agent_gym import ConfigError, Sampled
from agent_gym.chat import ChatRenderer
from agent_gym.cli.main import main
from agent_gym.envs.function_calls import data
from agent_gym.envs.function_calls.answers import right_calls
from agent_gym.envs.function_calls.world import ApiObjects
from agent_gym.prepare import prepare
from agent_gym.search.files import sha256_of
from agent_gym.testing import check_text_env, play
from agent_gym.tools import HermesParser

CALL = HermesParser().render
CLASS = """
import random
from datetime import datetime
from bfcl_eval.eval_checker.multi_turn_eval.func_source_code.long_context import MORE

OPEN = []


class TicketAPI:
    def _load_scenario(self, scenario, long_context=False):
        self.tickets, self._random, self._secret = scenario["tickets"], random.Random(scenario["seed"]), object()
        self.more = MORE if long_context else []

    def create(self, title, priority=1):
        OPEN.append(title)
        self.more.append(title)
        self.tickets.append({"title": title, "priority": priority, "id": self._random.randint(1, 9999)})
        return self.tickets[-1]

    def titles(self):
        return {"titles": [one["title"] for one in self.tickets]}

    def opened(self):
        year = datetime.strptime("2026-01-01", "%Y-%m-%d").year  # it imports, too
        return {"open": len(OPEN), "more": len(self.more), "year": year}

    def power(self, base, exponent):
        return {"result": base**exponent}

    def close(self, title):
        self.tickets.remove(next(one for one in self.tickets if one["title"] == title))
        return {"closed": title}
"""


def document(name: str, required: list[str], **types: str) -> dict[str, Any]:
    properties = {key: {"type": kind, "description": key} for key, kind in types.items()}
    parameters = {"type": "dict", "properties": properties, "required": required}
    return {"name": name, "description": f"About {name}.", "parameters": parameters, "response": {"type": "dict"}}


DOCUMENTS = [
    document("create", ["title"], title="string", priority="integer"),
    document("titles", []),
    document("opened", []),
    document("power", ["base", "exponent"], base="float", exponent="float"),
    document("close", ["title"], title="string"),
]


def said(*texts: str) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": text}] if text else [] for text in texts]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the prepared one, with five scenarios in each category, and its checksums in the place of BFCL's."""
    folder = tmp_path / "bfcl_eval"
    config = {"TicketAPI": {"tickets": [], "seed": 3}}
    gold = [["create('a')", "titles()"], [], ["close(title='a')"]]
    rows: dict[str, list[Any]] = {}
    for category in data.MULTI_TURN:
        held_out = "func" in category
        common = {"initial_config": config, "involved_classes": ["TicketAPI"]}
        common |= {"missed_function": {"1": ["close"]}} if held_out else {}
        asked = [said(f"Open a {n}.", "" if held_out else f"And {n}?", f"Close {n}.") for n in range(5)]
        tasks = [{"id": f"{category}_{n}", "question": asked[n], **common} for n in range(5)]
        rows[f"data/BFCL_v4_{category}.json"] = tasks
        rows[f"data/possible_answer/BFCL_v4_{category}.json"] = [{"ground_truth": gold}] * 5
    for category in data.SINGLE_TURN + data.LIVE:
        first = [{"role": "system", "content": "Be brief."}] if "live" in category else []
        rows[f"data/BFCL_v4_{category}.json"] = [
            {"id": f"{category}_{n}", "question": [[*first, {"role": "user", "content": f"{category} {n}"}]],
             "function": [document(f"{category}.one{n}", ["x"], x="float", y="string")]} for n in range(5)
        ]  # fmt: skip
        if "irrelevance" not in category:
            answers = [{"ground_truth": [{f"{category}.one{n}": {"x": [2], "y": ["New York", ""]}}]} for n in range(5)]
            rows[f"data/possible_answer/BFCL_v4_{category}.json"] = answers
    for name in data.MODULES.values():
        rows[f"data/multi_turn_func_doc/{name}.json"] = DOCUMENTS
    texts = {name: "".join(json.dumps(one) + "\n" for one in some) for name, some in rows.items()}
    texts |= {f"{data.SOURCES}/ticket_api.py": CLASS, f"{data.SOURCES}/long_context.py": "MORE = ['more']\n"}
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(data, "_checksums", lambda: {name: sha256_of(folder / name) for name in texts})
    return folder


def made(folder: Path, category: Any = "multi_turn_base", **kwargs: Any) -> Any:
    return agent_gym.make(ENV_ID, category=category, data=str(folder), **{"official": True, **kwargs})


def test_a_task_is_played_turn_by_turn(world: Path) -> None:
    env = made(world)
    first, info = env.reset(options={"index": 0})
    assert first.endswith("\n\nOpen a 0.") and info["messages"][-1]["content"] == "Open a 0."
    assert [one["function"]["name"] for one in info["tools"]] == ["create", "titles", "opened", "power", "close"]
    assert info["tools"][3]["function"]["parameters"]["properties"]["base"]["type"] == "number"
    seen, *_ = env.step(CALL("create", {"title": "a"}) + CALL("titles", {}))
    assert json.loads(seen.split("\n")[0])["title"] == "a" and '"titles": ["a"]' in seen
    assert env.step("Done.")[0] == "And 0?"
    assert env.step("Nothing to do.")[0] == "Close 0."
    env.step(CALL("close", {"title": "a"}))
    *_, terminated, _, end = env.step("Done.")
    assert terminated and end["is_success"] and end["metrics"] == {"valid": 1.0, "turns": 1.0}


@pytest.mark.parametrize(
    ("actions", "turns"),
    [
        ([CALL("create", {"title": "a"}), "x", "x", CALL("close", {"title": "a"}), "x"], 2 / 3),  # no titles() read
        (["x", "x", CALL("create", {"title": "a"}), "x"], 1 / 3),  # nothing done where something was to be done
        ([CALL("titles", {}), CALL("create", {"title": "b"}), CALL("create", {"title": "a"}), "x", "x", "x"], 1 / 3),
    ],
)
def test_a_turn_is_wrong_by_its_state_its_results_or_its_silence(world: Path, actions: list[str], turns: float) -> None:
    *_, (_, reward, terminated, _, info) = play(made(world), actions, seed=0)
    assert terminated and reward == 0.0 and not info["is_success"]
    assert info["metrics"]["turns"] == pytest.approx(turns)


def test_a_function_that_is_held_out_comes_with_its_message(world: Path, tokenizer: Any) -> None:
    env = made(world, "multi_turn_miss_func", tokenizer=tokenizer)
    _, info = env.reset(options={"index": 0})
    assert "close" not in [one["function"]["name"] for one in info["tools"]]
    env.step(env.expert_action())
    message, *_, info = env.step("I cannot close it.")
    assert '"name": "close"' in message and "close" in env.tools
    assert [one["function"]["name"] for one in env.template_tools] == ["create", "titles", "opened", "power"]
    ids = env.transcript.token_ids
    env.step("I wait.")
    env.step(CALL("close", {"title": "a"}))
    assert env.step("Done.")[-1]["is_success"] and env.transcript.token_ids[: len(ids)] == ids


@pytest.mark.filterwarnings("ignore:calls of tools")
@pytest.mark.parametrize("name", ["llama3_1", "qwen3", "qwen3_5_nothink", "gptoss", "glm4moe", "gemma4"])
def test_a_model_plays_in_its_own_language_and_the_user_speaks_as_a_user(name: str, world: Path) -> None:
    """A parser that types arguments by schemas has to know the ones that a message brings."""
    pytest.importorskip("trl")
    from template_tools import decode, read_templates, tokenizer_of

    text = next(text for known, text in read_templates().items() if known.partition("#")[0] == name)
    renderer = ChatRenderer.of(tokenizer_of(text))
    env = made(world, "multi_turn_miss_func", tokenizer=renderer)
    env.reset(options={"index": 0})
    while not env._over:
        ids = renderer.encode_action(env.expert_action())
        words, *_, info = env.step(Sampled(renderer.decode_action(ids), ids))
        assert info["error"] is None
        if len(info["messages"]) > 1 and not info["tool_calls"]:
            assert info["messages"][1]["role"] == "user" and "user" in decode(renderer, info["token_ids"][len(ids) :])
    assert info["is_success"]


def test_the_twenty_first_step_of_a_turn_ends_the_task(world: Path) -> None:
    env = made(world)
    env.reset(options={"index": 0})
    env.step(env.expert_action())
    for step in range(2, 22):
        seen, reward, terminated, truncated, info = env.step(CALL("titles", {}))
        assert terminated == (step == 21)
    assert "titles" in seen and reward == 0 and info["metrics"] == {"valid": 0.0, "turns": 0.0} and not truncated


def test_calls_are_bound_by_name_and_whatever_they_are_is_answered(world: Path) -> None:
    env = made(world)
    env.reset(options={"index": 0})
    deep: Any = "x"
    for _ in range(400):
        deep = [deep]
    for name, arguments, expected in (
        ("__import__", {"name": "os"}, "unknown function '__import__'; available: create, titles"),
        ("_load_scenario", {"scenario": {}}, "unknown function"),
        ("create", {}, "missing 1 required positional argument"),
        ("create", {"title": "a", "more": 1}, "unexpected keyword argument 'more'"),
        ("create", {"self": 1}, "multiple values for argument 'self'"),
        ("close", {"title": "none"}, "Error during execution: "),
        ("power", {"base": 10, "exponent": 10**9}, "exponent may be 1000 at most"),
        ("power", {"base": 10, "exponent": "2"}, "unsupported operand"),
        ("create", {"title": deep}, ""),
    ):
        seen, *_, info = env.step(CALL(name, arguments))
        assert expected in seen and "reward_terms" in info
    assert "not valid JSON" in env.step("<tool_call>{</tool_call>")[0]


def test_episodes_share_nothing_and_copies_continue(world: Path) -> None:
    envs = [made(world, "multi_turn_long_context") for _ in range(2)]
    for _ in range(2):
        for env in envs:
            env.reset(options={"index": 0})
            env.step(CALL("create", {"title": "a"}))
    opened = '{"open": 1, "more": 2, "year": 2026}'
    for env in envs:  # a list of a module, which the class changes, counts the calls of this episode alone
        for other in (pickle.loads(pickle.dumps(env)), copy.deepcopy(env)):
            assert [other.step(CALL("opened", {}))[0], other.step("Done.")[0]] == [opened, "And 0?"]
        assert env.step(CALL("opened", {}))[0] == opened
    rows = envs[0].tasks["test"]
    assert rows[0]["config"] == {"TicketAPI": {"tickets": [], "seed": 3}}


def test_the_categories_of_one_turn(world: Path) -> None:
    for category in data.SINGLE_TURN + data.LIVE:
        env = made(world, category)
        _, info = env.reset(options={"index": 1})
        assert ("Be brief." in info["messages"][0]["content"]) == ("live" in category)
        assert info["categories"] == {"category": category}
        name = f"{category}_one1"
        if "irrelevance" in category:
            answers = {"No.": 1, CALL(name, {"x": 2}): 0, "<tool_call>{</tool_call>": 0}
        else:
            answers = {CALL(name, {"x": 2}): 1, CALL(name, {"x": 2.0, "y": "new-york"}): 1, "2": 0}
            answers |= {
                CALL(name, {"x": 3}): 0,
                CALL(name, {"x": "2"}): 0,
                CALL(name, {}): 0,
                CALL(name, {"x": 2}) * 2: 0,
                "<tool_call>{": 0,
            }
        for answer, reward in answers.items():
            *_, (_, paid, terminated, _, end) = play(env, [answer], seed=0, options={"split": "test", "index": 1})
            assert (paid, terminated) == (reward, True), answer
            json.dumps(end)


def test_checks_of_environments_pass_in_all_categories(world: Path) -> None:
    check_text_env(lambda: made(world, "all", official=False))


def test_variants_of_a_scenario_are_in_one_split(world: Path) -> None:
    splits = made(world, "all", official=False).tasks
    sides = {row["id"]: split for split, rows in splits.items() for row in rows}
    assert len(sides) == len(made(world, "all").tasks["test"]) == 14 * 5
    assert all(len({sides[f"{one}_{n}"] for one in data.MULTI_TURN}) == 1 for n in range(5))


# The rules for one turn, with the corners of the original (test_function_calls_parity.py compares them).


@pytest.mark.parametrize(
    ("schema", "right", "yes", "no"),
    [
        ({"type": "string"}, ["New York"], ["new york", "NEW-YORK", "New_York."], ["NewYorkCity", 1, None, ""]),
        ({"type": "integer"}, [5], [5], [5.0, "5", True, 6]),
        ({"type": "float"}, [5.0], [5, 5.0], ["5", True]),
        ({"type": "boolean"}, [True], [True], [1, "true", False]),
        ({"type": "array", "items": {"type": "string"}}, [["A b", "c"]], [["ab", "C"]], [["c", "ab"], ["ab"], "ab"]),
        ({"type": "dict"}, [{"a": ["x", "y"], "b": [1, ""]}], [{"a": "X"}, {"a": "y", "b": 1}], [{}, {"a": "z"}, []]),
        ({"type": "array", "items": {"type": "dict"}}, [[{"a": [1]}]], [[{"a": 1}]], [[], [{"a": 2}], [{}], [1]]),
        ({"type": "integer"}, ["n"], ["n"], ["m", 1]),  # the name of a variable
    ],
)
def test_values_that_are_right(schema: Any, right: list[Any], yes: list[Any], no: list[Any]) -> None:
    functions = [{"name": "f", "parameters": {"properties": {"p": schema}, "required": ["p"]}}]
    for expected, values in ((True, yes), (False, no)):
        for value in values:
            made = right_calls("simple_python", functions, [("f", {"p": value})], [{"f": {"p": right}}])
            assert made == expected, value


def test_parallel_calls_are_right_in_any_order() -> None:
    parameters = {"properties": {"p": {"type": "integer"}}, "required": []}
    functions = [{"name": name, "parameters": parameters} for name in "fg"]
    golds: Any = [{"f": {"p": [1, ""]}}, {"g": {"p": [2]}}]
    calls: Any = [("g", {"p": 2}), ("f", {})]
    assert right_calls("parallel_multiple", functions, calls, golds)
    for wrong in (calls[:1], calls * 2, [calls[0]] * 2, [("g", {}), ("f", {})], [("g", {"p": 2, "q": 1}), ("f", {})]):
        assert not right_calls("parallel_multiple", functions, wrong, golds)


# What a user can get wrong.


@pytest.mark.parametrize("category", ["simple", "", [], ["multi_turn", 3], None, {"a": 1}])
def test_an_unknown_category_is_named_with_the_known_ones(category: Any, world: Path) -> None:
    with pytest.raises(ConfigError, match=r"category is .*; it must be one of multi_turn, single_turn, live, all"):
        made(world, category)
    with pytest.raises(ConfigError, match="official is 'yes'; it must be True or False"):
        made(world, official="yes")
    with pytest.raises(ConfigError, match="a task has the keys category, classes, config, functions, gold, id, turns"):
        made(world).reset(options={"task": {"category": "multi_turn_base"}})


def test_without_the_data_or_with_others_the_cure_is_named(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENT_GYM_CACHE", str(tmp_path / "none"))
    assert main(["play", ENV_ID]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "the data of BFCL are not in" in message and "agent-gym prepare bfcl" in message
    file = world / data.SOURCES / "ticket_api.py"
    checked = data._checksums()
    monkeypatch.setattr(data, "_checksums", lambda: checked)
    for cache in (data.load, data._rows, data.documents_of):
        cache.cache_clear()
    file.write_text(CLASS + "\nimport os\n")
    with pytest.raises(
        ConfigError,
        match=r"ticket_api.py is not that of bfcl-eval 2026.3.23; leave out data=, and run: agent-gym prepare",
    ):
        made(world).reset(seed=0)
    file.unlink()
    with pytest.raises(ConfigError, match=r"ticket_api.py cannot be read \(No such file or directory\)"):
        ApiObjects(world, ["TicketAPI"], {}, False)


def test_gold_calls_are_read_and_not_evaluated() -> None:
    assert data.gold_calls("f('a', b=[1, {'c': None}])") == ("f", ["a"], {"b": [1, {"c": None}]})
    with pytest.raises(ValueError, match="malformed node"):
        data.gold_calls("f(__import__('os').getcwd())")


def test_the_wheel_of_another_version_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "bfcl_eval-2025.1.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as zipped:
        zipped.writestr("bfcl_eval/data/BFCL_v4_multiple.json", "{}")
    with pytest.raises(ConfigError, match=r"2025.1.1.* is not the wheel of bfcl-eval==2026.3.23, by its checksum"):
        prepare("bfcl", source=[str(wheel)], output=tmp_path / "out")
