"""Old names work for one release: each is the new thing, and warns."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings

import pytest

import agent_gym
from agent_gym.renamed import MODULES, renamed
from agent_gym.rollout import Episode, EpisodeSpec

NAMES = {
    "agent_gym.contrib.lending.LentEpisode": "agent_gym.contrib.lending.ExternalEpisode",
    "agent_gym.doctor.Setting": "agent_gym.doctor.StageSettings",
    "agent_gym.policies.base.until": "agent_gym.policies.base.truncate_at_stop",
    "agent_gym.protocols.Protocol": "agent_gym.protocols.PaperPreset",
    "agent_gym.registry.check_env_id": "agent_gym.registry.resolve_env_id",
    "agent_gym.registry.recipe": "agent_gym.registry.resolve_env",
    "agent_gym.serve.conversation.Limits": "agent_gym.serve.conversation.ChatLimits",
}
"""Old public names to new ones."""


@pytest.mark.parametrize("old", MODULES)
def test_a_moved_module_is_found_under_its_old_name_and_warns(old, monkeypatch):
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {MODULES[old]}"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(MODULES[old])
    assert module.__name__ == module.__spec__.name == MODULES[old]


@pytest.mark.parametrize("old", NAMES)
def test_an_old_name_is_the_new_thing_and_warns(old):
    def found(name):
        place, _, name = name.rpartition(".")
        return getattr(importlib.import_module(place), name)

    with pytest.warns(DeprecationWarning, match=f"{old} is now {NAMES[old]}") as caught:
        thing = found(old)
    assert thing is found(NAMES[old])
    assert caught[0].filename == __file__


def test_an_environment_that_overrides_an_old_method_is_asked_by_the_new_name():
    with pytest.warns(DeprecationWarning, match="Old.situation is now state_prompt"):

        class Old(agent_gym.TextEnv):
            def situation(self):
                with pytest.warns(DeprecationWarning, match="Old.situation is now state_prompt"):
                    *before, last = super().situation()
                return [*before, {**last, "content": "Old: " + last["content"]}]

            def begin(self, task):
                return task

            def respond(self, action):
                return agent_gym.Reply("on")

    env = Old({"train": ["a"]})
    env.reset(seed=0)
    assert env.state_prompt()[-1]["content"].startswith("Old: a")

    class New(Old):
        def state_prompt(self):
            return [{"role": "user", "content": "New"}]

        def on_truncated(self):
            self.left = True

    env = New({"train": ["a"]})
    env.reset(seed=0)
    with pytest.warns(DeprecationWarning, match="New.leave is now on_truncated"):
        env.leave()
    with pytest.warns(DeprecationWarning, match="New.situation is now state_prompt"):
        assert env.situation() == env.state_prompt() == [{"role": "user", "content": "New"}]
    assert env.left


def test_the_opening_of_an_episode_is_its_initial_messages():
    episode = Episode(EpisodeSpec("x"), messages=[{"role": "user", "content": "a"}], opened=1)
    with pytest.warns(DeprecationWarning, match="Episode.opening is now initial_messages"):
        assert episode.opening == episode.initial_messages == episode.messages


def test_a_name_that_never_was_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'here' has no attribute 'nothing'"):
        renamed("here", {"old": "new"})("nothing")


def test_the_package_itself_uses_no_old_name():
    code = "import agent_gym.cli.parser, agent_gym.rollout, agent_gym.evaluate, agent_gym.testing, agent_gym.vector"
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:agent_gym", "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        importlib.import_module("agent_gym.rollout")
