"""Map the top-level rooms into one import package.

The folders `envs`, `trainers`, `registry` and `examples` stand at the top of the repository because that is where
people look for them, but they install as `agent_gym.envs`, `agent_gym.trainers` and so on: generic names such as
`envs` in site-packages would collide with half the projects out there. The rest is in pyproject.toml.
"""

import sys
from pathlib import Path

from setuptools import find_packages, setup

ROOMS = ("envs", "trainers", "registry", "examples")

# The links agent_gym/<room> exist for static tools; the walk must not follow them and list every room twice.
packages = find_packages(include=["agent_gym*"], exclude=[f"agent_gym.{room}*" for room in ROOMS])
for room in ROOMS:
    packages += [f"agent_gym.{room}"] + [f"agent_gym.{room}.{sub}" for sub in find_packages(room)]

# An editable install goes through the links and puts this folder on the path. For the mapping setuptools would install
# an import hook, which comes too late where Python looks first at the folder that holds the clone: `agent_gym` is then
# the clone itself, an empty namespace.
if "editable_wheel" in sys.argv and all(Path("agent_gym", room).is_dir() for room in ROOMS):
    package_dir = {"": "."}
else:
    package_dir = {f"agent_gym.{room}": room for room in ROOMS}

setup(packages=packages, package_dir=package_dir)
