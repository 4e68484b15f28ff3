"""Map the top-level rooms into one import package, and make the links of the description absolute.

The rooms stand at the top of the repository because that is where people look for them, but they install as
`agent_gym.envs` and so on: generic names such as `envs` in site-packages would collide with half the projects out
there. The rest is in pyproject.toml.

An index shows the README without the files around it. Where the repository is known (`GITHUB_REPOSITORY`, as in the
release workflow), relative links and pictures get its address and the tag.
"""

import os
import re
import sys
from pathlib import Path

from setuptools import find_packages, setup

ROOMS = ("envs", "trainers", "registry")

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


def description() -> str:
    """Return the README, with absolute addresses where the repository is known."""
    text = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    repository, tag = os.environ.get("GITHUB_REPOSITORY"), os.environ.get("GITHUB_REF_NAME", "main")
    if not repository:
        return text
    page = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{repository}/blob/{tag}/"
    file = f"https://raw.githubusercontent.com/{repository}/{tag}/"
    relative = r"(?!https?:|#|mailto:)"
    text = re.sub(rf'\b(src|srcset)="{relative}', rf'\1="{file}', text)
    text = re.sub(rf'\bhref="{relative}', f'href="{page}', text)
    text = re.sub(rf"(!\[[^\]]*\]\(){relative}", rf"\1{file}", text)
    return re.sub(rf"((?<!!)\[(?:[^\[\]]|!?\[[^\]]*\]\([^)]*\))*\]\(){relative}", rf"\1{page}", text)


setup(
    packages=packages,
    package_dir=package_dir,
    long_description=description(),
    long_description_content_type="text/markdown",
)
