"""Protocols against golden transcripts, which were composed by the rules of the originals' code and not by ours."""

from __future__ import annotations

import copy
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import agent_gym
from agent_gym import ConfigError

pytest.importorskip("bm25s")
pytest.importorskip("math_verify")

from rollout_tools import roll  # noqa: E402

from agent_gym.chat import ChatRenderer  # noqa: E402
from agent_gym.cli.main import main  # noqa: E402
from agent_gym.envs.alfworld.protocols import PROTOCOLS as HOUSE  # noqa: E402
from agent_gym.envs.gsm8k.protocols import PROTOCOLS as PROBLEMS  # noqa: E402
from agent_gym.envs.hotpotqa.protocols import PROTOCOLS as SEARCH  # noqa: E402
from agent_gym.envs.ragen.protocols import BANDIT, COUNTDOWN, FROZENLAKE, SOKOBAN  # noqa: E402
from agent_gym.envs.retool.protocols import PROTOCOLS as CODE  # noqa: E402
from agent_gym.envs.webshop.protocols import PROTOCOLS as SHOP  # noqa: E402
from agent_gym.evaluate import make_specs  # noqa: E402
from agent_gym.registry import ENVS  # noqa: E402
from agent_gym.rollout import Budget, EpisodeSpec  # noqa: E402
from agent_gym.testing import expert_episode  # noqa: E402
from agent_gym.viewer.card import baselines  # noqa: E402

ROOT = Path(__file__).parents[1]
GOLDEN = sorted((Path(__file__).parent / "data" / "protocols").glob("*.json"))
EACH = (PROBLEMS, SEARCH, CODE, HOUSE, SHOP, SOKOBAN, FROZENLAKE, BANDIT, COUNTDOWN)
ALL = [
    (env_id, name)
    for known in EACH
    for name, protocol in known.items()
    for env_id in protocol.ids
    if env_id != "AgentR1/HotpotQA-FullWiki-v0"  # needs a corpus
]
each = pytest.mark.parametrize(("env_id", "name"), ALL)


def read(path: Path) -> dict[str, Any]:
    golden: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return golden


def kwargs_of(golden: dict[str, Any]) -> dict[str, Any]:
    return {"protocol": golden["protocol"], **golden.get("kwargs", {})}


def test_each_protocol_has_a_transcript() -> None:
    told = {(golden["env"], golden["protocol"]) for golden in map(read, GOLDEN)}
    first = {(protocol.ids[0], name) for known in EACH for name, protocol in known.items()}
    assert told == first


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_scripted_policy_reads_what_the_original_writes(path: Path) -> None:
    golden = read(path)
    env = agent_gym.make(golden["env"], **kwargs_of(golden))
    _, info = env.reset(seed=0, options=golden["reset"])
    if "prompt" in golden:
        assert info["messages"] == golden["prompt"]
    else:
        (message,) = info["messages"]
        assert message["content"].startswith(golden["prompt_begins"])
        assert message["content"].endswith(golden["prompt_ends"])
    if "tools" in golden:
        assert json.dumps(env.template_tools) == json.dumps(golden["tools"]), "in the order that a template prints"
    rewards = []
    for turn in golden["turns"]:
        observation, reward, terminated, *_ = env.step(turn["action"])
        assert observation == turn["answer"]
        assert not terminated or turn is golden["turns"][-1]
        if "prompt" in turn:
            assert env.state_prompt() == turn["prompt"]
        rewards.append(reward)
    if "reward" in golden:
        rewards = [sum(rewards)]
    assert rewards == pytest.approx(golden.get("rewards", [golden.get("reward")]))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_rollout_shows_a_model_the_same(path: Path, tokenizer: Any, tmp_path: Path) -> None:
    """As tokens: answers inside the policy's turn in one row, prompts that are written anew in rows of their own."""
    golden = read(path)
    turns = [turn["action"] for turn in golden["turns"]]
    kwargs, reset = {**kwargs_of(golden), "max_turns": len(turns)}, golden["reset"]
    if "task" in reset:
        kwargs["data"] = str(tmp_path / "train.jsonl")
        (tmp_path / "train.jsonl").write_text(json.dumps(reset["task"]))
        reset = {"split": "train", "index": 0}
    spec = EpisodeSpec(golden["env"], kwargs, seed=0, split=reset["split"], index=reset["index"])
    (episode,) = roll(tokenizer, [spec], lambda episode: turns[len(episode.steps)], Budget(max_tokens=16_384))
    assert episode.failure is None
    env = agent_gym.make(golden["env"], **kwargs_of(golden))
    if "prompt" in golden["turns"][0]:
        prompts = [golden["prompt"], *(turn["prompt"] for turn in golden["turns"])][: len(turns)]
        expected = [ChatRenderer.of(tokenizer).prompt(prompt, env.template_tools) for prompt in prompts]
        assert [row.token_ids[: row.prompt_length] for row in episode.rows] == expected
        return
    (row,) = episode.rows
    text = tokenizer.decode(row.token_ids)
    if env.inline:
        stopped = [one for one in golden["turns"] if re.search("(</search>|</code>|\nObservation)$", one["action"])]
        assert stopped and all(one["action"] + one["answer"] in text for one in stopped)
    elif golden["protocol"] == "ragen":
        # What the last turn was answered has no turn behind it that would read it.
        assert all(f"user\n{one['answer']}" in text for one in golden["turns"][:-1])
    elif env.template_tools:
        assert all(f"<tool_response>\n{one['answer']}\n</tool_response>" in text for one in golden["turns"][:-1])


@each
def test_the_expert_plays_by_the_protocol(env_id: str, name: str) -> None:
    env = agent_gym.make(env_id, protocol=name)
    lasts = [expert_episode(env, seed=seed, options={"split": "test"})[-1][-1] for seed in range(3)]
    assert all(last["error"] is None for last in lasts)
    assert env_id == "AgentR1/FrozenLake-v0" or all(last["is_success"] for last in lasts), "ice is slippery"
    for other in (pickle.loads(pickle.dumps(env)), copy.deepcopy(env)):
        assert other.reset(seed=1)[0] == env.reset(seed=1)[0]


# What may be given beside a protocol.


def test_budgets_may_be_given_beside_a_protocol_and_what_makes_it_may_not() -> None:
    env: Any = agent_gym.make("AgentR1/HotpotQA-v0", protocol="search-r1", max_turns=3, reward_weights={"f1": 0.5})
    assert (env.max_turns, env._top_k, env.weights["em"], env.weights["f1"]) == (3, 3, 1.0, 0.5)
    assert agent_gym.make("AgentR1/MultiHopQA-v0", protocol="search-r1").max_turns == 5
    assert agent_gym.make("AgentR1/MultiHopQA-v0").max_turns == 8
    for env_id, kwargs, words in (
        (
            "AgentR1/HotpotQA-v0",
            {"protocol": "search"},
            "protocol is 'search'; allowed: search-r1, agent-r1, react, ragen",
        ),
        ("AgentR1/HotpotQA-v0", {"protocol": "react", "calls": "react"}, "protocol='react' and calls='react'"),
        ("AgentR1/HotpotQA-Direct-v0", {"protocol": "agent-r1"}, r"protocol='agent-r1' and tools=\(\)"),
        ("AgentR1/MathPython-v0", {"protocol": "verl"}, "and stateful=True.* play AgentR1/ReTool-v0"),
        ("AgentR1/ALFWorld-v0", {"protocol": "verl-agent", "system_prompt": "x"}, "and system_prompt='x'"),
        ("AgentR1/Bisect-v0", {"protocol": "verl"}, "takes no argument 'protocol'"),
    ):
        with pytest.raises(ConfigError, match=words):
            agent_gym.make(env_id, **kwargs)


def test_evaluations_take_the_split_of_the_protocol() -> None:
    (spec,) = make_specs("AgentR1/ALFWorld-v0", {"protocol": "verl-agent"}, episodes=1)
    assert spec.split == "valid_seen"
    (spec,) = make_specs("AgentR1/ALFWorld-v0", {}, episodes=1)
    assert spec.split == "test"


@pytest.mark.parametrize(
    ("kwargs", "flags", "expected"),
    [
        ({"protocol": "verl"}, [], (1024, 1536)),
        ({"protocol": "verl"}, ["--max_tokens", "4096"], (1024, 4096)),
        ({}, [], (Budget().max_turn_tokens, Budget().max_tokens)),
    ],
)
def test_evaluations_take_the_limits_of_the_protocol(
    kwargs: dict[str, Any], flags: list[str], expected: tuple[int, int], tmp_path: Path
) -> None:
    words = ["--env_kwargs", json.dumps(kwargs), "--episodes", "1", "--output", str(tmp_path / "run.jsonl"), *flags]
    assert main(["eval", "AgentR1/GSM8K-NoTool-v0", "--expert", *words]) == 0
    (card,) = json.loads((tmp_path / "run.card.json").read_text())["cards"]
    limits = card["decoding"]["limits"]
    assert (limits["max_turn_tokens"], limits["max_tokens"]) == expected


def test_each_environment_of_an_evaluation_has_the_limits_of_its_own_protocol(tmp_path: Path, capsys: Any) -> None:
    env_ids = ["AgentR1/ALFWorld-v0", "AgentR1/WebShop-v0"]
    words = ["--env_kwargs", '{"protocol": "verl-agent"}', "--episodes", "1", "--output", str(tmp_path / "run.jsonl")]
    assert main(["eval", *env_ids, "--expert", "--json", *words]) == 0
    expected = dict(zip(env_ids, (2560, 4608), strict=True))
    for card in json.loads((tmp_path / "run.card.json").read_text())["cards"]:
        assert card["decoding"]["limits"]["max_tokens"] == expected.pop(card["environment"]["id"])
    records = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [record["settings"]["max_tokens"] for record in records] == [2560, 4608] and not expected
    assert json.loads(capsys.readouterr().out)["settings"]["max_tokens"] is None, "they have none in common"


def test_the_page_of_protocols_has_each_of_them() -> None:
    page = (ROOT / "docs" / "protocols.md").read_text(encoding="utf-8")
    ids = {entry.id for entry in ENVS}
    for known in EACH:
        for name, protocol in known.items():
            assert set(protocol.ids) <= ids
            assert f'protocol="{name}"' in page
            assert protocol.source in page
            assert f"""eval {protocol.ids[0]} --model M --env_kwargs '{{"protocol": "{name}"}}'\n""" in page


def test_the_page_of_protocols_has_each_number_that_cards_print_of_them() -> None:
    page = (ROOT / "docs" / "protocols.md").read_text(encoding="utf-8")
    known = {
        "GSM8K": PROBLEMS,
        "GSM8K-NoTool": PROBLEMS,
        "HotpotQA": SEARCH,
        "ReTool": CODE,
        "ALFWorld": HOUSE,
        "WebShop": SHOP,
    }
    published = json.loads((ROOT / "registry" / "published.json").read_text(encoding="utf-8"))
    for env_id, rows in published.items():
        name = env_id.removeprefix("AgentR1/").removesuffix("-v0")
        card = "\n".join(baselines([entry for entry in ENVS if entry.id == env_id]))
        for protocol, *cells in rows:
            assert f"| {protocol} | {' | '.join(cells)} |" in card
            if protocol:
                assert protocol in known[name] and f"| {name}, {protocol} | {' | '.join(cells)} |" in page
    printed = {protocol for rows in published.values() for protocol, *_ in rows if protocol}
    assert printed == {name for one in known.values() for name in one}
