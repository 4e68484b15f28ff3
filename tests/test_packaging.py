"""What leaves the repository: the source archive, the wheel, and what an install puts into site-packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("envs", "trainers", "registry")
IGNORED = shutil.ignore_patterns(".venv", ".git", ".*_cache", "__pycache__", "*.egg-info", "build", "dist", "runs")


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_without_install(code: str, *, cwd: Path, first: Path | None = None) -> str:
    """Run code without this environment's own installation of the package, and with what that needs."""
    packages = Path(pytest.__file__).parents[1]
    path = os.pathsep.join(str(folder) for folder in (first, packages) if folder)
    return run(sys.executable, "-S", "-c", code, cwd=cwd, PYTHONPATH=path)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source archive of this checkout, and the wheel made from that archive and not from the checkout."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("packaging")
    source = folder / "source"
    shutil.copytree(ROOT, source, symlinks=True, ignore=IGNORED)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", cwd=source)
    return next((folder / "dist").glob("*.tar.gz")), next((folder / "dist").glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_data_file_once_and_under_our_name_only(archives):
    wheel = zipfile.ZipFile(archives[1])
    names = wheel.namelist()
    assert [name for name, count in Counter(names).items() if count > 1] == []
    metadata = archives[1].name.removesuffix("-py3-none-any.whl") + ".dist-info"
    assert {name.partition("/")[0] for name in names} == {"agent_gym", metadata}

    files = {file.relative_to(ROOT) for folder in ("agent_gym", *ROOMS) for file in (ROOT / folder).rglob("*")}
    rooms = {Path("agent_gym") / room for room in ROOMS}
    # Globs may or may not walk through the links, depending on the Python; either way a room counts once.
    direct = {path for path in files if not any(path.is_relative_to(room) for room in rooms)}
    shipped = {path for path in direct if (ROOT / path).is_file() and path.suffix != ".pyc"}
    expected = {str(path if path.parts[0] == "agent_gym" else "agent_gym" / path) for path in shipped}
    assert {name for name in names if name.startswith("agent_gym/")} == expected
    assert {"agent_gym/envs/gsm8k/__init__.py", "agent_gym/py.typed"} <= expected
    texts = {Path(name).name: wheel.read(name).decode() for name in names if "/licenses/" in name}
    assert texts == {name: (ROOT / name).read_text() for name in ("LICENSE", "NOTICE")}


@pytest.mark.slow
def test_the_source_archive_holds_what_a_build_needs_and_its_tests_run(archives, tmp_path):
    with tarfile.open(archives[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path)
    assert {"setup.py", "pyproject.toml", "LICENSE", "NOTICE", "README.md", "envs/gsm8k/__init__.py"} <= names
    assert not [name for name in names if name.startswith((".venv", "runs", "agent_gym/envs/"))]
    (source,) = tmp_path.iterdir()
    chosen = ("tests/test_gsm8k_env.py", "tests/test_tools.py", "tests/test_chat.py", "tests/test_data.py")
    environment = {"PYTHONPATH": str(source)}
    output = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, cwd=source, **environment)
    assert re.search(r"\d+ passed", output)


@pytest.mark.parametrize("repository", [None, "someone/agent_gym"])
def test_links_of_the_description_are_absolute_where_the_repository_is_known(repository):
    """An index shows the README alone: a picture or a page at a relative address would be missing there."""
    code = """
import runpy, setuptools
setuptools.setup = lambda **given: print(given["long_description"])
runpy.run_path("setup.py")
"""
    known = {"GITHUB_REPOSITORY": repository, "GITHUB_REF_NAME": "v1"} if repository else {"GITHUB_REPOSITORY": ""}
    text = run(sys.executable, "-c", code, cwd=ROOT, **known)
    found = re.findall(r"\]\(([^)\s]+)\)|\b(?:src|srcset|href)=\"([^\"]+)\"", text)
    addresses = {one or other for one, other in found}
    relative = {one for one in addresses if not re.match("https?:|#|mailto:", one)}
    assert len(addresses) > 10 and bool(relative) == (repository is None)
    if repository:
        assert "](https://github.com/someone/agent_gym/blob/v1/docs/" in text
        pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)|<img[^>]* src=\"([^\"]+)\"", text)
        assert pictures and all("raw.githubusercontent.com" in (one or other) for one, other in pictures)


def test_notice_names_files_that_exist():
    notice = (ROOT / "NOTICE").read_text()
    for folder, names in re.findall(r"(envs/\w+) \(([^)]*\.py)\)", notice):
        assert [name for name in re.split(r",\s+", names) if not (ROOT / folder / name).is_file()] == []
    for path in re.findall(r"\b(?:agent_gym|envs|tests)/[\w/]+\.\w+", notice):
        assert (ROOT / path).is_file(), path


@pytest.mark.slow
def test_pip_installs_the_wheel_a_git_repository_and_a_zip_away_from_the_checkout(archives, tmp_path):
    clone = tmp_path / "clone"
    shutil.copytree(ROOT, clone, symlinks=True, ignore=IGNORED)
    who = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
    for words in (("init", "-q"), ("add", "-A"), (*who, "commit", "-q", "-m", "Everything")):
        run("git", *words, cwd=clone)
    run("git", "archive", "--format=zip", "--prefix=agent_gym-main/", "-o", tmp_path / "main.zip", "HEAD", cwd=clone)
    names = ("agent_gym", *(f"agent_gym.{room}" for room in ROOMS), "agent_gym.envs.gsm8k.env")
    code = f"import importlib\nfor name in {names}: print(importlib.import_module(name).__file__)"
    for number, source in enumerate((archives[1], f"git+file://{clone}", tmp_path / "main.zip")):
        site = tmp_path / "site" / str(number)
        pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation")
        run(*pip, "--target", site, source, cwd=tmp_path)
        files = run_without_install(code, cwd=tmp_path, first=site).splitlines()
        assert len(files) == len(names) and files[-1] == str(site / "agent_gym" / "envs" / "gsm8k" / "env.py")
        assert all(Path(file).is_relative_to(site) for file in files)
        assert [room for room in ROOMS if (site / room).exists()] == []


@pytest.mark.slow
@pytest.mark.parametrize("links", [True, False])
def test_an_editable_install_imports_next_to_the_clone(links, tmp_path):
    """Where Python looks first at the folder that holds the clone, `agent_gym` must not be the clone itself."""
    clone, site = tmp_path / "agent_gym", tmp_path / "site"
    shutil.copytree(ROOT, clone, symlinks=True, ignore=IGNORED)
    for room in ROOMS if not links else ():
        (clone / "agent_gym" / room).unlink()
    run(sys.executable, "-c", f"from setuptools import build_meta; build_meta.build_editable({str(site)!r})", cwd=clone)
    with zipfile.ZipFile(next(site.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    code = f"""
import site
site.addsitedir({str(site)!r})
import agent_gym, agent_gym.envs.gsm8k, agent_gym.trainers
print(agent_gym.__file__, agent_gym.envs.gsm8k.__file__)
"""
    files = (clone / "agent_gym" / "__init__.py", clone / "envs" / "gsm8k" / "__init__.py")
    assert run_without_install(code, cwd=tmp_path).split() == [str(file) for file in files]


def test_constraints_and_pins_do_not_overlap():
    """An exact version is written down once: in pyproject.toml if it is pinned there, else in constraints.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    held = [line.partition("==")[0] for line in lines if not line.startswith("#")]
    pinned = [
        dependency.partition("==")[0]
        for dependencies in [project["dependencies"], *project["optional-dependencies"].values()]
        for dependency in dependencies
        if "==" in dependency
    ]
    plain = Counter(re.sub(r"[-_.]+", "-", name).lower() for name in held + pinned)
    assert len(plain) > 80
    assert [name for name, count in plain.items() if count > 1] == []
