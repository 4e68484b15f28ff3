"""What the tests share: where the data is, a tokenizer made on the spot, and the toy environments.

Nothing here touches a network. Tests that need something a machine may not have skip with the reason.
"""

from __future__ import annotations

import os

# Before any Hugging Face import: a test that would reach for the hub must fail at once and not after a timeout, and
# tokenizers must not warn about the forks of the vector environments.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# For model servers and their trainers, which would otherwise make one in the user's home.
os.environ.setdefault("AGENT_GYM_SERVER_KEY", "key-of-the-tests")

import gc
import signal
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cpu_cost import pytest_configure as pytest_configure  # measures the tests

sys.path.append(str(Path(__file__).parents[1] / "examples"))  # its agent is one of the tests

import toy_envs
from hypothesis import is_hypothesis_test, settings
from property_tools import FULL

toy_envs.register()

# A shell starts what it puts into the background with Ctrl-C switched off, and processes inherit that; those that the
# tests interrupt would never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A failing check in a helper must show its values.
pytest.register_assert_rewrite("contract", "rollout_tools")

# The same examples on every run and every machine: a red test must stay red while it is looked into.
settings.register_profile("agent-gym", deadline=None, derandomize=True, database=None, max_examples=60 if FULL else 20)
settings.load_profile("agent-gym")


DATA = Path(os.environ.get("AGENT_GYM_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("vllm") and find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests that hypothesis draws examples for, so that `./test.sh --slow` tries all of them."""
    if is_hypothesis_test(getattr(item, "obj", None)):
        item.add_marker("property")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let files with engines and ranks come first: a long one at the end would leave a core without work."""
    engines = {item.path for item in items if item.get_closest_marker("vllm")}
    ranks = {item.path for item in items if hasattr(getattr(item, "module", None), "in_ranks")}
    items.sort(key=lambda item: item.path not in engines | ranks)


def pytest_collection_finish() -> None:
    """Let no collection of garbage look through what the test modules have imported, a million objects and more."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # what libraries find at the end of the process, they report as lost


@pytest.fixture(scope="session")
def gsm8k_folder() -> Path:
    """The folder with the real GSM8K rows, `test.jsonl` and `train.jsonl`."""
    folder = DATA / "gsm8k"
    if not (folder / "test.jsonl").is_file():
        pytest.skip(f"no real GSM8K rows: {folder}/test.jsonl does not exist (set AGENT_GYM_DATA)")
    return folder


@pytest.fixture(scope="session")
def alfworld_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with official games of ALFWorld: all of valid_seen, and some of train."""
    archive = DATA / "alfworld_json_2.1.1_sample.tar.gz"
    if not archive.is_file():
        pytest.skip(f"no official games of ALFWorld: {archive} does not exist (set AGENT_GYM_DATA)")
    folder = tmp_path_factory.mktemp("alfworld")
    with tarfile.open(archive) as file:
        # Python before 3.11.4 has no filters.
        file.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """A byte-level tokenizer with a ChatML template that renders tools."""
    pytest.importorskip("transformers")
    from tiny import make_tiny_tokenizer

    return make_tiny_tokenizer()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a model with random weights, for tests that only read it."""
    pytest.importorskip("transformers")
    from tiny import make_tiny_model

    return str(make_tiny_model(tmp_path_factory.mktemp("tiny")))
