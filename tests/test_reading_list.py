"""docs/reading.md names the files through which one training step goes, from the rollout to the loss."""

from __future__ import annotations

import functools
import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trainer_tools import make_trainer, model_folder  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from agent_gym.chat import ChatRenderer  # noqa: E402
from agent_gym.policies import ScriptedPolicy  # noqa: E402

ROOT = Path(__file__).parents[1]
ROOMS = ("agent_gym/", "envs/", "trainers/", "registry/", "examples/")
MOST_FILES, MOST_LINES = 24, 6050
"""They may only fall."""
FEATURES = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("trainers/hooks/[a-z]*.py")}
"""Files of hooks, which no file of the path names."""


class Trace:
    """The files of this project whose functions run, in all threads, by step; what an import runs is left out."""

    def __init__(self) -> None:
        self.steps: list[set[str]] = []
        self.on = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        name = name_of(frame.f_code.co_filename) if self.on and event == "call" else ""
        # Each import of a package that is not installed asks the finder of old module names, wherever it happens.
        if name == "agent_gym/renamed.py" or not name.startswith(ROOMS):
            return
        if name not in self.steps[-1] and not importing(frame):
            self.steps[-1].add(name)


@functools.cache
def name_of(file: str) -> str:
    path = Path(file).resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""


def importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if "importlib" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def files_of_steps(folder: Path, **options: Any) -> list[set[str]]:
    """The files that each of two training steps runs, without those of features."""
    trainer = make_trainer(folder, max_steps=2, per_device_train_batch_size=4, num_generations=2, **options)
    trace, step = Trace(), trainer.training_step

    def traced(*args: Any) -> Any:
        trace.steps.append(set())
        trace.on = True
        try:
            return step(*args)
        finally:
            trace.on = False

    trainer.training_step = traced
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        trainer.train()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return [files - FEATURES for files in trace.steps]


def lines_of(files: Any) -> int:
    return sum(len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in files)


def test_the_reading_list_is_what_one_step_runs(tmp_path: Path) -> None:
    renderer = ChatRenderer(AutoTokenizer.from_pretrained(model_folder()))

    def expert(encode: Any) -> ScriptedPolicy:
        return ScriptedPolicy(lambda episode: episode.env.unwrapped.expert_action(), encode)

    # A model samples ids. The form of calls in which a script writes is on the list of tools.
    spelled = expert(lambda text: [*renderer.encode(text), renderer.end_of_turn])
    first, second = files_of_steps(tmp_path / "letters", policy=spelled)
    options = {"max_episode_tokens": 2000, "max_turn_tokens": 200, "policy": expert(renderer.encode_action)}
    _, with_tools = files_of_steps(tmp_path / "gsm8k", env="AgentR1/GSM8K-v0", **options)
    text = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")
    text = text.split("## One training step\n", 1)[1].split("\n## ", 1)[0]
    marks = (r"\d+\.", "-", r"\*")
    listed, once, tools = (re.findall(rf"^{mark} `([\w/]+\.py)`", text, flags=re.M) for mark in marks)
    assert set(listed) == second, f"the page lacks {second - set(listed)}; the step does not run {set(listed) - second}"
    assert set(once) == first - second, f"the first step alone runs {first - second}; the page has {once}"
    assert set(tools) == with_tools - second, f"GSM8K adds {with_tools - second}; the page has {tools}"
    assert len(listed) == len(set(listed)) <= MOST_FILES and lines_of(listed) <= MOST_LINES, lines_of(listed)


def test_no_file_of_the_path_names_a_feature() -> None:
    """A feature attaches as a hook; the step knows the hooks and none of them."""
    path = [ROOT / f"trainers/{name}.py" for name in ("grpo", "rows", "ppo", "schedule", "continuous", "hook", "batch")]
    for file in path:
        imports = re.findall(r"trainers\.hooks\.(\w+)", file.read_text(encoding="utf-8"))
        assert not imports, f"{file.name} imports the feature {imports[0]}"
    assert FEATURES, "no feature was found"
