"""The contract's data, the scripted policy, and what importing the package costs."""

from __future__ import annotations

import asyncio
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_gym.errors import ConfigError
from agent_gym.policies import Policy, Request, SamplingParams, ScriptedPolicy
from agent_gym.policies.vllm.launch import VARIABLE, WEIGHTS, Guard, key_file, server_key

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


def test_half_a_surrogate_pair_of_a_script_is_a_question_mark() -> None:
    policy = ScriptedPolicy(lambda episode: "a\ud800", lambda text: list(text.encode()))
    policy.submit(Request(0, [0], SamplingParams(50)))
    assert bytes(policy.poll()[0].token_ids) == b"a?"


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
    policy.submit(Request(0, [0], SamplingParams(50, stop=("th", "rn")), episode="three"))
    (stopped,) = policy.poll()
    assert (stopped.token_ids, stopped.finish_reason) == ([*b"turn"], "stop_string")


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


# Who may ask a model server: holders of the key, and no web page.

KEY = {"authorization": "Bearer a-key"}
PAGE = {"origin": "http://evil.example", "content-type": "text/plain"}


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"status": 200})


def ask(path: str, headers: dict[str, str], guard: Guard | None = None, **more: Any) -> Any:
    """Return the status of the answer, 200 if the request was passed on; without a guard one is made."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    given = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "headers": given, "server": ("127.0.0.1", 8010), **more}
    asyncio.run((guard or Guard(app))(scope, None, send))  # type: ignore[arg-type]
    return sent[0].get("status", sent[0].get("code"))


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "a-key")


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/collective_rpc", {"host": "127.0.0.1:8010", **KEY}, 200),
        ("/collective_rpc", {"host": "node1:8010", **KEY}, 200),
        ("/collective_rpc", {"host": "127.0.0.1:8010", "authorization": "Bearer another"}, 401),
        ("/collective_rpc", {"host": "127.0.0.1:8010", "authorization": "Bearer k\xe9y"}, 401),
        ("/reset_prefix_cache", {"host": "localhost:8010"}, 401),
        ("/inference/v1/generate", {"host": "[::1]:8010"}, 401),
        ("/collective_rpc", {"host": "127.0.0.1:8010", **PAGE, **KEY}, 403),
        ("/v1/completions", {"host": "127.0.0.1:8010", "origin": "null"}, 403),
        ("/v1/models", {"host": "127.0.0.1:8010", "sec-fetch-site": "cross-site"}, 403),
        ("/v1/models", {"host": "evil.example:8010"}, 403),
        ("/v1/completions", {"host": "127.0.0.1:8010", "content-type": "text/plain"}, 415),
        ("/v1/completions", {"host": "127.0.0.1:8010", "content-type": "Application/JSON; charset=utf-8"}, 200),
        ("/v1/models", {"host": "LOCALHOST:8010"}, 200),
        ("/health", {"host": "127.0.0.1:8010"}, 200),
    ],
)
def test_who_may_ask_what(path: str, headers: dict[str, str], status: int) -> None:
    assert ask(path, headers) == status


def test_networks_paths_below_another_and_sockets() -> None:
    # On a network the name is free, and the key is not.
    assert ask("/v1/models", {"host": "node1:8010"}, server=("10.0.0.7", 8010)) == 200
    assert ask("/collective_rpc", {"host": "node1:8010"}, server=("10.0.0.7", 8010)) == 401
    assert ask("/proxy/collective_rpc", {"host": "127.0.0.1"}, root_path="/proxy") == 401
    assert ask("/v1/collective_rpc", {"host": "127.0.0.1"}, root_path="/v1") == 401
    assert ask("/proxy/v1/models", {"host": "127.0.0.1"}, root_path="/proxy") == 200
    assert ask("/v1/realtime", {"host": "127.0.0.1", **PAGE}, type="websocket") == 1008
    assert ask("", {}, type="lifespan") == 200


def test_a_server_that_was_started_again_serves_nobody_who_has_given_weights_to_the_one_before() -> None:
    guard = Guard(app)
    for path, said, status in (
        ("/a", "", 200),
        ("/b", "wanted", 409),
        ("/finish", "given", 200),
        ("/c", "wanted", 200),
    ):
        assert ask(path, {"host": "127.0.0.1", **KEY, WEIGHTS.lower(): said}, guard) == status


def test_without_the_variable_the_key_is_in_the_home_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    made = server_key()
    assert server_key() == made == key_file().read_text().strip() and len(made) > 30
    assert stat.S_IMODE(key_file().stat().st_mode) == 0o600
    assert [file.name for file in key_file().parent.iterdir()] == ["server-key"]
    # Two that make it at once: the second finds that of the first.
    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", lambda path: False)
        assert server_key() == made
    assert [file.name for file in key_file().parent.iterdir()] == ["server-key"]
    monkeypatch.setenv("XDG_CONFIG_HOME", str(key_file()))
    with pytest.raises(ConfigError, match=f"no key for model servers: .*set the same {VARIABLE}"):
        server_key()
    monkeypatch.setenv(VARIABLE, "a\nb")
    with pytest.raises(ConfigError, match=f"the key in {VARIABLE} must be one word"):
        server_key()
