"""The contract's data, the scripted policy, and what importing the package costs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from agent_gym.errors import ConfigError
from agent_gym.policies import Policy, Request, SamplingParams, ScriptedPolicy
from agent_gym.policies.base import check_request

END = 1000


def encode(text: str) -> list[int]:
    return [*text.encode(), END]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5, "temperature": -1.0}, "temperature"),
        ({"max_tokens": 5, "temperature": 0.001}, "0.01"),  # vLLM would sample at 0.01 instead
        ({"max_tokens": 5, "temperature": float("nan")}, "nan"),
        ({"max_tokens": 5, "stop": "</answer>"}, "tuple"),  # a bare string would be nine one-letter stops
        ({"max_tokens": 5, "stop": ("",)}, "stop"),
        ({"max_tokens": 5, "seed": -1}, "seed"),
        ({"max_tokens": 5, "seed": 2**63}, "seed"),
    ],
)
def test_sampling_params_refuse_what_an_engine_would_misread(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        SamplingParams(**values)


def test_a_request_must_be_new_and_leave_room() -> None:
    request = Request(7, [1, 2, 3], SamplingParams(5))
    check_request(request, pending=[], context=4)
    with pytest.raises(ConfigError, match="7 is already pending"):
        check_request(request, pending=[7])
    with pytest.raises(ConfigError, match="3 tokens.*context of 3"):
        check_request(request, pending=[], context=3)
    with pytest.raises(ConfigError, match="empty prompt"):
        check_request(Request(8, [], SamplingParams(5)), pending=[])


def test_scripted_policy_acts_on_the_live_episode() -> None:
    seen = []

    def act(episode: object) -> str:
        seen.append(episode)
        return f"turn of {episode}"

    policy = ScriptedPolicy(act, encode)
    assert isinstance(policy, Policy)
    for number in (3, 1, 2):
        policy.submit(Request(number, [0], SamplingParams(50), episode=f"episode {number}"))
    assert policy.pending == 3
    policy.abort(1)
    policy.abort(99)
    finished = policy.poll()
    assert policy.pending == 0 and policy.poll() == []
    assert seen == ["episode 3", "episode 2"]
    assert [generation.id for generation in finished] == [3, 2]
    assert finished[0].token_ids == encode("turn of episode 3")
    assert finished[0].logprobs == [0.0] * len(finished[0].token_ids)
    assert finished[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("params", "ids", "reason"),
    [
        (SamplingParams(6), encode("hello"), "stop"),
        (SamplingParams(5), [*b"hello"], "length"),
        (SamplingParams(50, stop=("o", "ll")), [*b"hell"], "stop_string"),
        (SamplingParams(50, stop=("z",)), encode("hello"), "stop"),
        (SamplingParams(3, stop=("ll",)), [*b"hel"], "length"),
    ],
)
def test_scripted_turns_end_as_sampled_ones_do(params: SamplingParams, ids: list[int], reason: str) -> None:
    policy = ScriptedPolicy(lambda episode: "hello", encode)
    policy.submit(Request(0, [0], params))
    (generation,) = policy.poll()
    assert (generation.token_ids, generation.finish_reason) == (ids, reason)


def test_a_script_that_raises_loses_its_own_request_only() -> None:
    def act(episode: object) -> str:
        if episode == "bad":
            raise ValueError("no expert for this row")
        return "fine"

    policy = ScriptedPolicy(act, encode)
    for number, episode in enumerate(("bad", "good", "good")):
        policy.submit(Request(number, [0], SamplingParams(9), episode=episode))
    with pytest.raises(ValueError, match="no expert"):
        policy.poll()
    assert [generation.id for generation in policy.poll()] == [1, 2]


def test_neither_the_package_nor_its_environment_imports_an_engine_and_the_users_values_stay() -> None:
    code = (
        "import os, sys; os.environ['OMP_NUM_THREADS'] = '3'; os.environ['VLLM_LOGGING_LEVEL'] = 'INFO'; "
        "import agent_gym.policies as p; assert not hasattr(p, 'NoSuchPolicy'); "
        "from agent_gym.policies.vllm import set_environment; set_environment(); "
        "assert not {'torch', 'transformers', 'vllm'} & set(sys.modules); "
        "assert os.environ['OMP_NUM_THREADS'] == '3' and os.environ['VLLM_LOGGING_LEVEL'] == 'INFO'; "
        "assert os.environ['VLLM_ENABLE_V1_MULTIPROCESSING'] == '0'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
