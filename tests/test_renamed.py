"""Old names work for one release: each is the new thing, and warns."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings

import pytest

from agent_gym.renamed import MODULES, renamed

NAMES: dict[str, str] = {}
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
