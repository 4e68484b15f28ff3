"""README's "What to read" names the files through which one training step goes, from the rollout to the loss."""

from __future__ import annotations

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
ROOMS = ("agent_gym", "envs", "trainers", "registry", "examples")
MOST = 30
NOT_READ = {"agent_gym/errors.py"}  # only defines exceptions


class Trace:
    """The files of this project whose functions run, in all threads, while `on`; what an import runs is left out."""

    def __init__(self) -> None:
        self.on, self.files, self._known = False, dict[str, None](), dict[str, str | None]()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self.on or event != "call":
            return
        name = self._known.setdefault(frame.f_code.co_filename, self._place(frame.f_code.co_filename))
        if name is not None and name not in self.files and not self._importing(frame):
            self.files[name] = None

    @staticmethod
    def _place(file: str) -> str | None:
        path = Path(file).resolve()
        if not path.is_relative_to(ROOT):
            return None
        name = path.relative_to(ROOT).as_posix()
        return name if name.startswith(tuple(f"{room}/" for room in ROOMS)) else None

    @staticmethod
    def _importing(frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code.co_name == "<module>" and "importlib" in str(frame.f_back and frame.f_back.f_code):
                return True
            frame = frame.f_back
        return False


def reading_list() -> list[str]:
    """The files that README lists, in its order."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.split("## What to read\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\d+\. `([\w/]+\.py)`", section, flags=re.M)


def test_the_reading_list_is_what_one_step_runs(tmp_path: Path) -> None:
    renderer = ChatRenderer(AutoTokenizer.from_pretrained(model_folder()))
    policy = ScriptedPolicy(lambda episode: episode.env.unwrapped.expert_action(), renderer.encode_action)
    trainer = make_trainer(
        tmp_path,
        env="AgentR1/GSM8K-v0",
        policy=policy,
        max_steps=1,
        per_device_train_batch_size=4,
        num_generations=2,
        max_episode_tokens=2000,
        max_turn_tokens=200,
        trajectories_per_step=0,
    )
    trace, step = Trace(), trainer.training_step

    def traced(*args: Any) -> Any:
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
    listed = reading_list()
    unlisted, unread = sorted(set(trace.files) - NOT_READ - set(listed)), sorted(set(listed) - set(trace.files))
    assert not unlisted and not unread, f"README lacks {unlisted}; the step does not run {unread}"
    assert len(listed) == len(set(listed)) <= MOST
