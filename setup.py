"""Map the top-level rooms into one import package.

The rooms stand at the top of the repository because that is where people look for them, but they install as
`agent_gym.envs` and so on: generic names such as `envs` in site-packages would collide with half the projects out
there. The rest is in pyproject.toml.
"""

import sys

from setuptools import find_packages, setup

ROOMS = ("envs", "trainers", "registry", "examples")

# The links agent_gym/<room> exist for static tools; the walk must not follow them and list every room twice.
packages = find_packages(include=["agent_gym*"], exclude=[f"agent_gym.{room}*" for room in ROOMS])
# An editable install puts this folder on the path, and agent_gym finds its rooms there by itself. For a mapping
# setuptools would install an import hook, which comes too late where Python looks first at the folder that holds the
# clone: `agent_gym` is then the clone, an empty namespace.
package_dir = {"": "."}
if "editable_wheel" not in sys.argv:
    package_dir = {f"agent_gym.{room}": room for room in ROOMS}
    for room in ROOMS:
        packages += [f"agent_gym.{room}"] + [f"agent_gym.{room}.{sub}" for sub in find_packages(room)]

setup(packages=packages, package_dir=package_dir)
