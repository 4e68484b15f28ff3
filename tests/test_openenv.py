"""The server for OpenEnv against the real package; `tests/setup_interop.sh` makes an environment that has it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import gymnasium
import pytest

from agent_gym.testing import expert_episode, policy_texts

pytest.importorskip("openenv.core.env_server.types")
GSM8K = "AgentR1/GSM8K-v0"


def test_a_session_is_an_episode() -> None:
    from openenv.core.env_server.types import Observation

    from agent_gym.contrib.openenv import TextAction, openenv_class

    env = openenv_class(GSM8K)()
    assert isinstance(env.reset(seed=3, split="train", index=3), Observation)
    total = 0.0
    for text in policy_texts(expert_episode(gymnasium.make(GSM8K), seed=3, options={"split": "train", "index": 3})):
        seen = env.step(TextAction(text=text))
        total += seen.reward
    assert seen.done and seen.metadata["is_success"] == 1.0 and total >= 1.0
    assert env.get_task("test", 2) == {"id": "test/2", "index": 2} and "train" in env.list_splits()


@pytest.fixture
def address() -> Iterator[str]:
    """A running server of GSM8K."""
    import uvicorn

    from agent_gym.contrib.openenv import openenv_app

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(openenv_app(GSM8K, sessions=4), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        end = time.monotonic() + 60
        while not server.started and time.monotonic() < end:
            time.sleep(0.05)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(30)


def test_clients_of_openenv_play_at_once_as_gymnasium_does(address: str) -> None:
    from openenv.core.generic_client import GenericEnvClient

    clients = [GenericEnvClient(base_url=address).sync() for _ in range(3)]
    for client in clients:
        client.__enter__()
    reference = gymnasium.make(GSM8K, split="test")
    begun = [client.reset(split="test", index=n, seed=n) for n, client in enumerate(clients)]
    for n, (client, seen) in enumerate(zip(clients, begun, strict=True)):
        _, info = reference.reset(seed=n, options={"index": n})
        assert seen.observation["messages"][-1] == info["messages"][-1]
        while not seen.done:
            action = reference.unwrapped.expert_action()  # type: ignore[attr-defined]
            _, reward, terminated, truncated, _ = reference.step(action)
            seen = client.step({"text": action})
            assert seen.reward == pytest.approx(reward) and seen.done == (terminated or truncated)
        assert seen.observation["metadata"]["is_success"] == 1.0
    for client in clients:
        client.__exit__(None, None, None)
