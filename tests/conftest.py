"""What the tests share: where the data is, a tokenizer made on the spot, and the toy environments.

Nothing here touches a network. Tests that need something a machine may not have skip with the reason.
"""

from __future__ import annotations

import os

# Before any Hugging Face import: a test that would reach for the hub must fail at once and not after a timeout, and
# tokenizers must not warn about the forks of the vector environments.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from pathlib import Path
from typing import Any

import pytest
import toy_envs
from hypothesis import settings

toy_envs.register()

# A failing check in a helper must show its values, as one in a test does.
pytest.register_assert_rewrite("contract", "rollout_tools")

# The same examples on every run and every machine: a red test must stay red while it is looked into.
settings.register_profile("agent-gym", deadline=None, derandomize=True, database=None, max_examples=60)
settings.load_profile("agent-gym")


@pytest.fixture(scope="session")
def gsm8k_folder() -> Path:
    """The folder with the real GSM8K rows, `test.jsonl` and `train.jsonl`."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("AGENT_GYM_DATA", beside)) / "gsm8k"
    if not (folder / "test.jsonl").is_file():
        pytest.skip(f"no real GSM8K rows: {folder}/test.jsonl does not exist (set AGENT_GYM_DATA)")
    return folder


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """A byte-level tokenizer with a ChatML template that renders tools."""
    pytest.importorskip("transformers")
    from tiny import make_tiny_tokenizer

    return make_tiny_tokenizer()
