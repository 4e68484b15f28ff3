"""Tasks of software: two small releases go through the real builder, and the environment plays what it made."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import tarfile
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from swe_tools import ENV_ID, made_env, release_files, shared_folder, shared_task, write_archive

import agent_gym
from agent_gym.cli.main import main
from agent_gym.cli.prepare import _packages
from agent_gym.envs.swe.judging import counts
from agent_gym.envs.swe.tasks import read_task
from agent_gym.errors import ConfigError
from agent_gym.prepare import Options, prepare
from agent_gym.prepare.release_builder import split_of
from agent_gym.prepare.release_tree import ReleaseTree, changelog_entry, patch_of
from agent_gym.prepare.releases import Release, in_folders, release_of, unpack
from agent_gym.prepare.run import env_kwargs
from agent_gym.prepare.variants import Site, changes_of, sites_of
from agent_gym.sandbox.verdicts import Hidden

pytestmark = pytest.mark.skipif(not os.path.exists("/bin/bash"), reason="a terminal needs Linux with bash")


@pytest.fixture(scope="module")
def made() -> Path:
    return shared_folder()


@pytest.fixture(scope="module")
def task() -> Path:
    return shared_task()


def call(env: Any, name: str, **arguments: Any) -> Any:
    return env.step(env.parser.render(name, arguments))


# What the builder makes.


def test_two_releases_make_a_task(task: Path) -> None:
    facts = json.loads((task / "tests" / "swe.json").read_text())
    names = ["test_case_does_not_count", "test_longest", "test_longest_of_nothing"]
    assert facts["hidden"]["fail_to_pass"] == [f"tests/test_wordlets.py::{name}" for name in names]
    assert len(facts["hidden"]["pass_to_pass"]) == 6 and facts["own"] == ["src/wordlets/"]
    told = facts["instructions"]
    assert "`counts` ignores case." in told["changelog"] and "test_longest" not in told["changelog"]
    assert "test_longest" in told["names"] and "AttributeError" not in told["names"]
    assert "has no attribute 'longest'" in told["traceback"]
    assert (task / "instruction.md").read_text().strip() == told["names"]
    assert 'licence = "MIT"' in (task / "task.toml").read_text()
    with tarfile.open(task / "environment" / "app.tar.gz") as tar:
        assert not any(b"longest" in (tar.extractfile(one) or io.BytesIO()).read() for one in tar)
    assert "tests/" not in (task / "solution" / "golden.patch").read_text()


def test_each_judging_test_has_variants_that_fail_on_the_right_code(task: Path) -> None:
    hidden = Hidden.from_json(json.loads((task / "tests" / "swe.json").read_text())["hidden"])
    covered = {name for one in hidden.variants for name in one.ids}
    assert set(hidden.fail_to_pass) <= covered and covered & set(hidden.pass_to_pass)


def test_a_finished_folder_is_not_made_again(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(made.parent / "archives")
    assert main(["prepare", "swe", "--from", source, "--output", str(made)]) == 0
    said = capsys.readouterr().out
    assert "already there, checksums agree" in said and "1 tasks" in said and "AgentR1/SWE-v0" in said


def test_releases_that_make_no_task_have_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = release_files(False), release_files(True)
    needy = {"tests/test_wordlets.py": "import not_here\n" + new["tests/test_wordlets.py"]}
    stories = {
        "same": (old, {**old, "CHANGELOG.md": ""}, "the package is the same"),
        "untested": (old, {path: text for path, text in new.items() if "tests/" not in path}, "no tests"),
        "needy": (old, {**new, **needy}, r"no test passes: ModuleNotFoundError: No module named 'not_here'"),
        "idle": (old, {**old, "src/wordlets/more.py": "a = 1\n"}, "no test fails before and passes after"),
    }
    for name, (before, after, _) in stories.items():
        write_archive(tmp_path / "archives", "1.0", before, name)
        write_archive(tmp_path / "archives", "1.1", after, name)
    write_archive(tmp_path / "archives", "1.0", old, "single")
    folder = prepare("swe", source=[str(tmp_path / "archives")], output=tmp_path / "made").folder
    reasons = {path.parent.name: json.loads(path.read_text())["pairs"] for path in folder.rglob("report.json")}
    for name, (_, _, reason) in stories.items():
        assert len(reasons[name]) == 1 and reasons[name][0]["task"] == ""
        assert re.search(reason, reasons[name][0]["reason"]), reasons[name]
    assert reasons["single"][0]["reason"] == "it has 1 releases, and needs two"
    assert main(["prepare", "swe", "--from", str(tmp_path / "archives"), "--output", str(folder)]) == 2
    said = capsys.readouterr()
    assert "the package is the same" in said.out and "none of these releases makes a task" in said.err
    with pytest.raises(ConfigError, match="no tasks of software are in"):
        made_env(folder / "tasks")


def test_archives_are_read_within_bounds() -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, kind in {
            "a-1/plain.py": tarfile.REGTYPE,
            "a-1/link.py": tarfile.SYMTYPE,
            "a-1/hard.py": tarfile.LNKTYPE,
            "a-1/pipe": tarfile.FIFOTYPE,
            "a-1/../../out.py": tarfile.REGTYPE,
            "/a-1/out.py": tarfile.REGTYPE,
            "alone.py": tarfile.REGTYPE,
        }.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
    assert list(unpack(packed.getvalue(), "a")) == ["plain.py"]
    for made in (b"", b"no archive", packed.getvalue()[:40]):
        with pytest.raises(ConfigError, match="a cannot be unpacked"):
            unpack(made, "a")
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("a-1/large.py", bytes(5 << 20))
    with pytest.raises(ConfigError, match="a is too large"):
        unpack(bomb.getvalue(), "a")


def test_releases_are_ordered_as_versions(tmp_path: Path) -> None:
    for version in ("1.10", "1.9", "1.9.post1", "2.0rc1", "1.9.dev3"):
        write_archive(tmp_path, version, {"a.py": ""}, "some-package")
    (found,) = in_folders([tmp_path]).values()
    assert [one.version for one in found] == ["1.9", "1.9.post1", "1.10"]
    assert release_of("some.Package-1.0.tar.gz", "x") == Release("some-package", "1.0", "x")
    assert release_of("some_package-1.0-py3-none-any.whl", "x") is None
    with pytest.raises(ConfigError, match="no such file or folder"):
        in_folders([tmp_path / "nowhere"])


def test_the_package_is_found_in_every_layout() -> None:
    layouts = {
        ("src/thing/",): ["src/thing/__init__.py", "docs/__init__.py", "setup.py"],
        ("thing.py",): ["thing.py", "setup.py", "test_thing.py", "noxfile.py"],
        ("other/",): ["other/__init__.py", "tests/__init__.py", "examples/__init__.py"],
        ("lib/thing/",): ["lib/thing/__init__.py"],
    }
    for package, files in layouts.items():
        assert ReleaseTree(Release("Thing", "1", ""), dict.fromkeys(files, b"")).package == package
    two = {"a/__init__.py": b"", "b/__init__.py": b"", "src/c/__init__.py": b"", "ns/part/__init__.py": b""}
    settings = {
        "[tool.setuptools]\npackages = ['b']": "b/",
        "[tool.setuptools.packages.find]\nwhere = ['src']\n[tool.flit.module]\nname = 'b'": "b/",
        "[tool.poetry]\npackages = [{ include = 'c', from = 'src' }]": "src/c/",
        "[tool.hatch.build.targets.wheel]\npackages = ['src/c']": "src/c/",
        "[tool.uv.build-backend]\nmodule-name = 'ns.part'": "ns/",
    }
    for text, package in settings.items():
        assert ReleaseTree(Release("Thing", "1", ""), {**two, "pyproject.toml": text.encode()}).package == (package,)
    assert ReleaseTree(Release("Thing", "1", ""), {**two, "x.egg-info/top_level.txt": b"b\n"}).package == ("b/",)
    assert ReleaseTree(Release("ns.part", "1", ""), {"src/ns/part/__init__.py": b""}).package == ("src/ns/",)
    with pytest.raises(ConfigError, match="it does not say which of a/, b/ is the package"):
        _ = ReleaseTree(Release("Thing", "1", ""), {"a/__init__.py": b"", "b/__init__.py": b""}).package


def test_a_changelog_is_found_in_its_usual_places() -> None:
    entry = b"1.1\n- New things, by Zo\xeb.\n"

    def told(path: str, before: bytes = b"", after: bytes = b"") -> str:
        texts = {"1.0": before + b"1.0\n" + after, "1.1": before + entry + b"1.0\n" + after}
        trees = [ReleaseTree(Release("thing", name, ""), {"thing.py": b"", path: text}) for name, text in texts.items()]
        return changelog_entry(*trees)

    places = (
        "CHANGES HISTORY.rst NEWS.md CHANGELOG.txt ChangeLog RELEASES.md docs/changelog.rst docs/release-notes/1.md"
    )
    for path in f"{places} CHANGE_LOG.markdown docs/whats_new.rst changelog.d/12.bugfix.md CHANGES-1.x.adoc".split():
        assert told(path) == "1.1\n- New things, by Zo\xeb.", path
    assert told("README.rst") == told("docs/usage.rst") == told("tests/changes.txt") == told("news.py") == ""
    for heading in (b"## Version History / Release Notes\n", b"Changelog\n=========\n"):
        for path in ("README.md", "PKG-INFO"):
            assert told(path, b"# Thing\n" + heading, b"# Licence\n") == "1.1\n- New things, by Zo\xeb."


def test_real_packages_have_settings_and_files_of_every_kind(tmp_path: Path) -> None:
    """Tests inside the package, duplicate names of files, data that is no text, and paths with spaces."""
    old, new = release_files(False), release_files(True)
    moved = {path.replace("tests/", "src/wordlets/tests/"): text for path, text in new.items()}
    twice = {**new, "tests/a/test_same.py": "def test_a(): pass\n", "tests/b/test_same.py": "def test_b(): pass\n"}
    import_mode = {"pyproject.toml": "", "tox.ini": "[pytest]\naddopts = --import-mode=importlib\n"}
    spaced = {**new, "src/wordlets/my data.txt": "1\n2\n"}
    plugin = {**new, "tests/conftest.py": "pytest_plugins = ['not_here']\n"}
    latin = {**new, "src/wordlets/latin.py": "# -*- coding: latin-1 -*-\nname = 'Zo\xeb'\n", "ABOUT": "Zo\xeb"}
    stories = {
        "inside": ({path.replace("tests/", "src/wordlets/tests/"): text for path, text in old.items()}, moved),
        "twice": (old, {**twice, **import_mode}),
        "spaced": ({**old, "src/wordlets/my data.txt": "1\n"}, spaced),
        "latin": ({**old, "src/wordlets/latin.py": latin["src/wordlets/latin.py"]}, latin),
        "plugin": (old, plugin),
    }
    for name, files in stories.items():
        for version, some in zip(("1.0", "1.1"), files, strict=True):
            write_archive(tmp_path, version, some, name, "latin-1" if name == "latin" else "utf-8")
    folder = prepare("swe", source=[str(tmp_path)], output=tmp_path / "made").folder
    reasons = {path.parent.name: json.loads(path.read_text())["pairs"][0] for path in folder.rglob("report.json")}
    assert "No module named 'not_here'" in reasons.pop("plugin")["reason"]
    assert {name: one["reason"] for name, one in reasons.items()} == dict.fromkeys(reasons, "")
    (facts,) = (json.loads(path.read_text()) for path in folder.rglob("twice/*/tests/swe.json"))
    assert {"tests/a/test_same.py::test_a", "tests/b/test_same.py::test_b"} <= set(facts["hidden"]["pass_to_pass"])
    (spaces,) = folder.rglob("spaced/*/task.toml")
    env = made_env(spaces.parent)
    env.reset(seed=0)
    assert env.step(env.expert_action())[0] == "[no output]"
    assert call(env, "bash", command="cat 'src/wordlets/my data.txt'")[0] == "1\n2"


def test_a_split_belongs_to_a_package_however_it_is_spelled() -> None:
    assert split_of("ruamel.yaml") == split_of("Ruamel-YAML")
    assert {split_of(f"package-{number}") for number in range(100)} == {"train", "validation", "test"}


def test_patches_are_those_of_git(tmp_path: Path) -> None:
    before = {"a/x.py": b"1\n2\n3\n", "gone.py": b"x", "end.py": b"a\nb", "page": b"a\x0cb\n\r\n", 'a "\\b': b"1"}
    after = {"a/x.py": b"1\n2\n4\n", "new.py": b"y\n", "end.py": b"a\nc", "page": b"a\x0cc\n\r\n", 'a "\\b': b"2"}
    after |= {"empty.py": b"", "a b.py": b"1\n", "\xe9.py": b"1\n"}
    for name, data in before.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    patch = patch_of(before, after)
    done = os.popen(f"cd {tmp_path} && git apply - <<'E' 2>&1\n{patch}E\n").read()
    assert done == ""
    there = (path for path in tmp_path.rglob("*") if path.is_file())
    assert {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in there} == after


def test_variants_change_an_expected_value_or_the_assertion() -> None:
    source = b"""class Base:
    def test_kept(self):
        self.assertEqual(f("\xc3\xa4"), "b")

class TestIt(Base):
    def test_raises(self):
        with pytest.raises(ValueError):
            f()

def test_plain():
    '''Never changed.'''
    assert not f"{1}" and f(True) == 3
"""
    tree = {"tests/test_a.py": source}
    names = ["tests/test_a.py::TestIt::test_kept", "tests/test_a.py::test_plain[1]", "tests/test_a.py::made_by_magic"]
    sites = sites_of(tree, names)
    assert sites == {
        Site("tests/test_a.py", "Base::test_kept"): names[:1],
        Site("tests/test_a.py", "test_plain"): names[1:2],
    }
    found = changes_of(source, ["Base::test_kept", "TestIt::test_raises", "test_plain"])
    texts = {name: [one.text for one in changes] for name, changes in found.items()}
    assert {'"c"', '("b",)', "assertNotEqual"} <= set(texts["Base::test_kept"])
    assert "ZeroDivisionError" in texts["TestIt::test_raises"]
    assert {"4", "False"} <= set(texts["test_plain"]) and not any("changed" in one for one in texts["test_plain"])
    for changes in found.values():
        for one in changes:
            compile(source[: one.begin] + one.text.encode() + source[one.end :], "test_a.py", "exec")


def test_tests_in_conditions_have_variants() -> None:
    source = b"""class TestIt:
    if big:
        def test_a(self):
            assert f() == 1
    else:
        def test_a(self):
            assert f() == 2
try:
    import numpy
except ImportError:
    def test_b():
        assert f() == 3
"""
    assert sites_of({"t.py": source}, ["t.py::TestIt::test_a", "t.py::test_b"]).keys() == {
        Site("t.py", "TestIt::test_a"),
        Site("t.py", "test_b"),
    }
    changes = changes_of(source, ["TestIt::test_a", "test_b"])
    found = {name: [one.text for one in some] for name, some in changes.items()}
    assert {"2", "3"} <= set(found["TestIt::test_a"]) and "4" in found["test_b"]


def test_options_that_mean_nothing_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"package{number}" for number in range(100)]  # longer than the name of a file may be
    assert _packages(",".join(names)) == tuple(names)
    assert main(["prepare", "gsm8k", "--packages", "tomlkit"]) == 2
    assert "gsm8k is made of no packages" in capsys.readouterr().err
    write_archive(tmp_path, "1.0", {"a.py": ""})
    with pytest.raises(ConfigError, match="no source archive is given of tomlkit; there are wordlets"):
        prepare("swe", source=[str(tmp_path)], output=tmp_path / "made", options=Options(packages=("tomlkit",)))


def test_a_function_whose_body_is_taken_out_makes_a_task(made: Path, tmp_path: Path) -> None:
    prepared = prepare("swe-functions", source=[str(made.parent / "archives")], output=tmp_path / "made")
    kwargs = env_kwargs(prepared)
    tasks = {path.parents[1].name: json.loads(path.read_text()) for path in Path(kwargs["data"]).rglob("swe.json")}
    assert set(tasks) == {"wordlets-1.1-counts", "wordlets-1.1-longest"}
    names = ["test_longest", "test_longest_of_nothing"]
    assert tasks["wordlets-1.1-longest"]["hidden"]["fail_to_pass"] == [f"tests/test_wordlets.py::{n}" for n in names]
    env = agent_gym.make(ENV_ID, **kwargs)
    text, _ = env.reset(seed=0, options={"task": {"name": "wordlets-1.1-longest"}})
    head = 'def longest(text):\n    """Return the longest word, the first of several."""\n    raise NotImplementedError'
    assert head in text and all(name in text for name in names)
    assert "test_longest" not in call(env, "bash", command="grep -r test_longest .")[0], "the tests are not there"
    assert "max(" not in call(env, "bash", command="cat src/wordlets/__init__.py")[0]
    env.reset(seed=0, options={"task": {"name": "wordlets-1.1-longest"}})
    env.step(env.expert_action())
    assert env.step(env.expert_action())[1] == 1.0
    with pytest.raises(ConfigError, match="of level 'names'; use level='function'"):
        agent_gym.make(ENV_ID, data=kwargs["data"])


# How it plays.


def test_the_expert_solves_it_and_an_empty_patch_does_not(task: Path) -> None:
    env = made_env(task)
    text, _ = env.reset(seed=0)
    assert "wordlets 1.0" in text
    assert env.step(env.expert_action())[0] == "[no output]"
    _, reward, terminated, _, info = env.step(env.expert_action())
    assert (reward, terminated, info["is_success"]) == (1.0, True, True)
    assert info["metrics"]["forged"] == 0.0
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step("I am done.")
    assert (reward, terminated) == (0.0, True)
    assert (info["metrics"]["fail_to_pass"], info["metrics"]["pass_to_pass"]) == (0.0, 1.0)


def test_a_part_of_the_change_is_a_share(task: Path) -> None:
    env = made_env(task)
    env.reset(seed=0)
    change = {"path": "src/wordlets/__init__.py", "old": "text.split()", "text": "text.lower().split()"}
    done = call(env, "editor", command="replace", **change)
    assert "Counter(text.lower().split())" in done[0]
    _, reward, terminated, _, info = call(env, "finish")
    assert (reward, terminated) == (0.0, True)
    assert info["metrics"]["fail_to_pass"] == pytest.approx(1 / 3) and info["metrics"]["pass_to_pass"] == 1.0


def test_the_editor_views_and_changes_files(task: Path) -> None:
    env = made_env(task)
    env.reset(seed=0)
    path = "src/wordlets/__init__.py"
    assert call(env, "editor", command="view", path="src")[0] == "wordlets-1.0.dist-info/\nwordlets/"
    assert call(env, "editor", command="view", path=path, line=1, last=1)[0].strip() == '1  """Counts of words."""'
    assert "old is 2 times" in call(env, "editor", command="replace", path=path, old="Counter", text="x")[0]
    assert "old is empty" in call(env, "editor", command="replace", path=path, text="x")[0]
    assert "2  # here" in call(env, "editor", command="insert", path=path, line=1, text="# here")[0]
    assert "line is 99" in call(env, "editor", command="insert", path=path, line=99, text="x")[0]
    assert "wrote /app/a/b.py: 2 lines" in call(env, "editor", command="create", path="a/b.py", text="1\n2\n")[0]
    call(env, "editor", command="create", path="a/b.py", text="é\r\n")
    assert call(env, "bash", command="xxd -p a/b.py")[0] == "c3a90d0a"
    call(env, "editor", command="undo", path="a/b.py")
    assert call(env, "bash", command="cat a/b.py")[0] == "1\n2"
    call(env, "editor", command="undo", path="a/b.py")
    assert "nothing to undo" in call(env, "editor", command="undo", path="a/b.py")[0]
    assert "No such file" in call(env, "editor", command="view", path="a/b.py")[0]
    call(env, "editor", command="undo", path=path)
    assert call(env, "bash", command="grep -c here src/wordlets/__init__.py")[0].startswith("0")
    assert "invalid arguments" in call(env, "editor", command="delete", path=path)[0]


def test_calls_of_one_turn_run_in_their_order(task: Path) -> None:
    env = made_env(task)
    env.reset(seed=0)
    turn = env.parser.render("editor", {"command": "create", "path": "x", "text": "1"})
    turn += env.parser.render("bash", {"command": "cat x; echo 2 > x"})
    turn += env.parser.render("editor", {"command": "view", "path": "x"})
    assert re.search(r"wrote /app/x.*\b1\b.*1  2", env.step(turn)[0], flags=re.S)


def test_a_reset_is_quick_and_a_copy_plays_on(task: Path) -> None:
    env = made_env(task)
    env.reset(seed=0)
    call(env, "bash", command="ls")
    begun = time.perf_counter()
    env.reset(seed=0)
    assert time.perf_counter() - begun < 0.05
    call(env, "bash", command="echo 1 > kept")
    other = pickle.loads(pickle.dumps(env))
    assert call(other, "bash", command="cat kept")[0] == "1"


def test_the_end_of_the_turns_or_of_the_time_runs_the_tests(task: Path) -> None:
    env = made_env(task, max_turns=1)
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step(env.expert_action())
    assert (reward, terminated, truncated, info["is_success"]) == (1.0, False, True, True)
    late = made_env(task, seconds=0.01)
    late.reset(seed=0)
    assert late.step(late.expert_action())[1:3] == (1.0, True)


def test_a_stub_with_the_name_of_the_module_is_not_of_the_package(task: Path) -> None:
    module = replace(read_task(task), own=("words.py", "wordlets/"))
    counted = {path: counts(module, path) for path in ("words.py", "words.pyi", "words.py/a.py", "wordlets/a.py")}
    assert counted == {"words.py": True, "words.pyi": False, "words.py/a.py": False, "wordlets/a.py": True}


def test_settings_and_damage_are_told(task: Path, tmp_path: Path) -> None:
    for settings, words in (
        ({"level": "hints"}, "level is 'hints'; it must be one of names, changelog, traceback, function"),
        ({"seconds": 0}, "seconds is 0; it must be a number above 0"),
        ({"max_output_chars": 5}, "max_output_chars"),
    ):
        with pytest.raises(ConfigError, match=words):
            made_env(task, **settings)
    with pytest.raises(ConfigError, match="run: agent-gym prepare swe"):
        made_env(tmp_path)
    with pytest.raises(ConfigError, match=r"a task is \{'name': ...\}, one of the 1 in data; got \{'name': 'other'\}"):
        made_env(task).reset(seed=0, options={"task": {"name": "other"}})
    env = made_env(task, level="changelog")
    assert "::" not in env.reset(seed=0)[0]
    damaged = tmp_path / "damaged"
    (damaged / "tests").mkdir(parents=True)
    (damaged / "tests" / "swe.json").write_text('{"name": 1}')
    with pytest.raises(ConfigError, match="make it again: run: agent-gym prepare swe"):
        made_env(damaged)


# Real packages, where AGENT_GYM_SWE_TASKS names a folder of tasks that `agent-gym prepare swe` made of them.


@pytest.mark.slow
def test_the_expert_solves_every_real_task_and_a_script_none() -> None:
    folder = os.environ.get("AGENT_GYM_SWE_TASKS")
    if not folder:
        pytest.skip("no tasks: set AGENT_GYM_SWE_TASKS to the folder that agent-gym prepare swe made")
    played, script = 0, run_path(str(Path(__file__).parent / "attacks" / "swe.py"))["COMMAND"]
    for place in sorted(path.parents[1] for path in Path(folder).rglob("tests/swe.json")):
        env = made_env(place)
        env.reset(seed=0)
        env.step(env.expert_action())
        _, reward, _, _, info = env.step(env.expert_action())
        assert (reward, info["metrics"]["forged"]) == (1.0, 0.0), place
        env.reset(seed=0)
        call(env, "bash", command=script)
        _, reward, _, _, info = call(env, "finish")
        assert (reward, info["metrics"]["forged"]) == (0.0, 0.0), place
        played += 1
    assert played
