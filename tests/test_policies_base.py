"""The contract's data, the scripted policy, and what importing the package costs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from agent_gym.errors import ConfigError
from agent_gym.policies import Policy, Request, SamplingParams, ScriptedPolicy

END = 1000


def encode(text: str) -> list[int]:
    return [*text.encode(), END]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5, "temperature": 0.001}, "0.01"),  # vLLM would sample at 0.01 instead
        ({"max_tokens": 5, "temperature": float("nan")}, "nan"),
        ({"max_tokens": 5, "stop": "</answer>"}, "tuple"),  # a bare string would be nine one-letter stops
        ({"max_tokens": 5, "stop": ("",)}, "stop"),
        ({"max_tokens": 5, "seed": 2**63}, "seed"),
    ],
)
def test_sampling_params_refuse_what_an_engine_would_misread(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        SamplingParams(**values)


def test_scripted_policy_acts_on_the_live_episode() -> None:
    def act(episode: object) -> str:
        if episode == "bad":
            raise ValueError("no expert for this row")
        return f"turn of {episode}"

    policy = ScriptedPolicy(act, encode)
    assert isinstance(policy, Policy)
    for number, episode in ((4, "bad"), (3, "three"), (1, "one"), (2, "two")):
        policy.submit(Request(number, [0], SamplingParams(50), episode=episode))
    assert policy.pending == 4
    policy.abort(1)
    policy.abort(99)
    with pytest.raises(ValueError, match="no expert"):
        policy.poll()
    finished = policy.poll()
    assert policy.pending == 0 and policy.poll() == []
    assert [generation.id for generation in finished] == [3, 2], "a script that raises loses its own request only"
    assert finished[0].token_ids == encode("turn of three")
    assert finished[0].logprobs == [0.0] * len(finished[0].token_ids)
    assert finished[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("params", "ids", "reason"),
    [
        (SamplingParams(5), [*b"hello"], "length"),
        (SamplingParams(50, stop=("o", "ll")), [*b"hell"], "stop_string"),
        (SamplingParams(3, stop=("ll",)), [*b"hel"], "length"),
    ],
)
def test_scripted_turns_end_as_sampled_ones_do(params: SamplingParams, ids: list[int], reason: str) -> None:
    policy = ScriptedPolicy(lambda episode: "hello", encode)
    policy.submit(Request(0, [0], params))
    (generation,) = policy.poll()
    assert (generation.token_ids, generation.finish_reason) == (ids, reason)


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
