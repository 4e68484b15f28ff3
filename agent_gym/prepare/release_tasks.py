"""Tasks of software: the tests of a release that fail on the release before it and pass on its own code.

A task counts if its tests hold in the sandbox, without a network and with no package but pytest: all of
them pass on the new code in three of three runs, the fail-to-pass ones fail on the old code in three of three, and the
pass-to-pass ones pass there, too. Each fail-to-pass test needs a variant that fails on the new code, for the verdict
(agent_gym/sandbox/verdicts.py). Every other pair has a reason.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import shlex
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agent_gym.errors import write_whole
from agent_gym.prepare.release_tree import ReleaseTree, changelog_entry, patch_of
from agent_gym.prepare.variants import Change, Site, changes_of, sites_of
from agent_gym.sandbox.suites import Outcomes, Suite, run_suite
from agent_gym.sandbox.verdicts import Hidden, Variant, changed, judge

FOLDER = "/app"
_RUNS = 3
_BUILD_SECONDS = 120.0  # of CPU time, of a run
_LEAST_SECONDS, _SPARE = 20.0, 4  # of a verdict's run: at least, times the longest run of the build
_MAX_LINES, _MAX_PATCH_BYTES = 1000, 80 << 10  # of the golden patch, which a command has to hold
_MAX_JUDGING, _MAX_NAMES, _MAX_TRACES = 200, 40, 3
_MAX_TREE_BYTES = 20 << 20  # a terminal has 32 MB of files
_VARIANTS, _ROUNDS = 3, 14  # of a test; to find them
_DRAWN, _MAX_ALONE = 8, 60  # runs of the build's verdict, and variants that are then tried alone
_KEPT = 12  # so many of the tests that passed before have variants, too
_TEST_FILE = re.compile(r"test.*\.py|.*_tests?\.py|.*Tests?\.py")
_IMAGE = "python:3.11-bookworm"


class NoTask(Exception):
    """Two releases that make no task; the text says why."""


@dataclass(frozen=True)
class SoftwareTask:
    """A task."""

    name: str
    old: ReleaseTree
    new: ReleaseTree
    instructions: Mapping[str, str]  # by level
    hidden: Hidden
    patch: str


def suite_of(old: ReleaseTree, new: ReleaseTree, own: Mapping[str, bytes] | None = None) -> Suite:
    """Return the tests of a release over code: that of the release before, or other files in the package's place."""
    package, tests = old.own(), new.tests()
    gone = {*package, *old.tests()}
    tree = {path: data for path, data in old.files.items() if path not in gone}
    tree |= old.metadata() | tests | (package if own is None else dict(own))
    files = tuple(sorted(path for path in tests if _TEST_FILE.fullmatch(Path(path).name)))
    return Suite(tree, tuple(dict.fromkeys((new.root, ""))), files, new.settings)


def check(old: ReleaseTree, new: ReleaseTree) -> str:
    """Return the golden patch of two releases; `NoTask` if they make no task, as far as reading shows."""
    if old.package != new.package:
        raise NoTask(f"the package is {', '.join(new.package)}, and was {', '.join(old.package)}")
    patch = patch_of(old.own(), new.own())
    lines = sum(line.startswith(("+", "-")) for line in patch.splitlines())
    if not lines:
        raise NoTask("the package is the same")
    if lines > _MAX_LINES:
        raise NoTask(f"the package differs in {lines} lines, at most {_MAX_LINES} are a task")
    if len(patch.encode()) > _MAX_PATCH_BYTES:
        raise NoTask(f"the package differs in more than {_MAX_PATCH_BYTES >> 10} KB")
    if sum(map(len, old.files.values())) > _MAX_TREE_BYTES:
        raise NoTask(f"its files have more than {_MAX_TREE_BYTES >> 20} MB")
    if not suite_of(old, new).files:
        raise NoTask("its source archive has no tests")
    return patch


def build(old: ReleaseTree, new: ReleaseTree) -> SoftwareTask:
    """Make a task of two releases, the older one first.

    Raises:
        NoTask: with the reason, if they make none.
        SandboxError: if the sandbox failed, and not the tests.
    """
    patch = check(old, new)
    hidden, texts = _sorted_out(old, new)
    hidden = settled(suite_of(old, new, new.own()), hidden)
    name = f"{new.release.package}-{old.release.version}-{new.release.version}"
    return SoftwareTask(name, old, new, _instructions(old, new, hidden, texts), hidden, patch)


def settled(suite: Suite, hidden: Hidden) -> Hidden:
    """Return the tests with variants under which the right code passes, however they are drawn.

    A variant of one test can change another's result, where both use a state of the process. If a verdict of many runs
    shows that, all such variants are left out. `NoTask` if a judging test has no other, or that does not help.
    """
    if (verdict := judge(suite, hidden, runs=_DRAWN)).solved:
        return hidden
    wanted, kept = {*hidden.fail_to_pass, *hidden.pass_to_pass}, list[Variant]()
    for one in hidden.variants[:_MAX_ALONE]:
        ended = run_suite(replace(suite, tree=changed(suite.tree, [one])), wanted, seconds=hidden.seconds)
        fails = all(ended.by_id.get(name) == "failed" for name in one.ids)
        kept += [one] if fails and wanted.difference(one.touched) <= ended.passed() else []
    hidden = replace(hidden, variants=tuple(kept))
    if set(hidden.fail_to_pass) <= {name for one in hidden.variants for name in one.ids}:
        verdict = judge(suite, hidden, runs=_DRAWN)
    if not verdict.solved:
        raise NoTask(f"the verdict on the release's own code depends on which tests are variants: {verdict}")
    return hidden


def _sorted_out(old: ReleaseTree, new: ReleaseTree) -> tuple[Hidden, Mapping[str, str]]:
    """Find the tests of both kinds, their variants, and the texts of failures on the old code."""
    after = suite_of(old, new, new.own())
    golden = first_run(after)
    failing, empty = failing_on(suite_of(old, new), golden.passed())
    if not failing:
        raise NoTask(f"no test fails before and passes after{f'; {_why(golden)}' if golden.broken else ''}")
    always, seconds = passing(after, golden)
    judging, held = failing & always, always & empty.passed()
    if not judging:
        raise NoTask("no test fails before in three of three runs and passes after in three of three")
    if len(judging) > _MAX_JUDGING:
        raise NoTask(f"{len(judging)} tests fail before and pass after, at most {_MAX_JUDGING} are a task")
    variants = variants_of(after, judging, held)
    if without := judging - {name for one in variants for name in one.ids}:
        raise NoTask(f"no variant of {sorted(without)[0]} fails on the right code")
    return Hidden(tuple(sorted(judging)), tuple(sorted(held)), tuple(variants), seconds), empty.texts


def first_run(suite: Suite) -> Outcomes:
    """Run all tests of a suite once; `NoTask` if none passes."""
    first = run_suite(suite, seconds=_BUILD_SECONDS)
    if not first.passed():
        raise NoTask(f"no test passes: {_why(first)}")
    return first


def passing(suite: Suite, first: Outcomes) -> tuple[frozenset[str], float]:
    """Return the tests that pass in each of three runs, and the CPU seconds that a run of a verdict may take."""
    runs = [first, *(run_suite(suite, first.passed(), seconds=_BUILD_SECONDS) for _ in range(_RUNS - 1))]
    seconds = max(_LEAST_SECONDS, _SPARE * max(one.seconds for one in runs))
    return frozenset.intersection(*(one.passed() for one in runs)), seconds


def failing_on(suite: Suite, passed: frozenset[str]) -> tuple[frozenset[str], Outcomes]:
    """Return the tests that fail in each of three runs, of some that passed elsewhere, and the first run."""
    first = run_suite(suite, passed, seconds=_BUILD_SECONDS, texts=True)
    failing = passed - first.passed()
    runs = [first, *(run_suite(suite, failing, seconds=_BUILD_SECONDS) for _ in range(_RUNS - 1) if failing)]
    over = {name for one in runs for name in failing if one.by_id.get(name) in ("passed", "skipped")}
    return failing - over, first


def _why(outcomes: Outcomes) -> str:
    """Say why tests do not run: the last line of each kind of failure, with a file that has it."""
    found: dict[str, str] = {}
    for name in outcomes.broken:
        found.setdefault(outcomes.texts.get(name, "").strip().rpartition("\n")[2].removeprefix("E").strip(), name)
    shown = [f"{text} ({name})" for text, name in list(found.items())[:3]]
    error = outcomes.error.strip().rpartition("\n")[2].removeprefix("E").strip()
    told = f"pytest ended with {outcomes.status!r} and {len(outcomes.by_id)} tests" + (f": {error}" if error else "")
    return "; ".join(shown) or told


def variants_of(after: Suite, judging: frozenset[str], held: frozenset[str]) -> list[Variant]:
    """Find variants of the judging tests, and of some that passed before, which fail on the right code.

    Where other values make some for all ids of a function, these are all: an opposite assertion is easier to tell from
    the right one.
    """
    all_sites = sites_of(after.tree, sorted(judging | held))
    own = {site for site, ids in all_sites.items() if not judging.isdisjoint(ids)}
    near = sorted(site for site in all_sites.keys() - own if site.file in {one.file for one in own})
    wanted = [*sorted(own), *near[:: max(1, len(near) // _KEPT)][:_KEPT]]
    left: dict[Site, list[Change]] = {}
    for file in {site.file for site in wanted}:
        inner = {site.function: site for site in wanted if site.file == file}
        left |= {inner[name]: changes for name, changes in changes_of(after.tree[file], inner).items()}
    found: dict[Site, list[Variant]] = {site: [] for site in wanted}
    without = {site: set(judging.intersection(all_sites[site]) or all_sites[site]) for site in wanted}
    for _ in range(_ROUNDS):
        tried = {
            site: Variant(site.file, *changes.pop(0)[:3], (), tuple(all_sites[site]))
            for site, changes in left.items()
            if changes and (without[site] or (len(found[site]) < _VARIANTS and changes[0].plain))
        }
        if not tried:
            break
        suite = replace(after, tree=changed(after.tree, list(tried.values())))
        names = [name for one in tried.values() for name in one.touched]
        ended = run_suite(suite, names, seconds=_BUILD_SECONDS).by_id
        for site, one in tried.items():
            if failed := tuple(name for name in one.touched if ended.get(name) == "failed"):
                found[site].append(replace(one, ids=failed))
                without[site].difference_update(failed)
    return [one for some in found.values() for one in some]


def _instructions(old: ReleaseTree, new: ReleaseTree, hidden: Hidden, texts: Mapping[str, str]) -> dict[str, str]:
    """Write the instruction of each level; the one of the changelog alone only if the changelog says something."""
    entry, names = changelog_entry(old, new), hidden.fail_to_pass
    begin = (
        f"The current folder holds the source of {new.release.package} {old.release.version}. Bring it to "
        f"release {new.release.version}. Only changes of {' and '.join(new.package)} count; tests that are not "
        "here decide."
    )
    said = f"{begin}\n\nThe changelog of {new.release.version}:\n\n{entry}" if entry else begin
    listed = "\n".join(f"- {name}" for name in names[:_MAX_NAMES])
    more = f"\n- and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    named = f"{said}\n\nThese tests of the new release fail, and have to pass:\n\n{listed}{more}"
    traces = [texts[name] for name in names if name in texts][:_MAX_TRACES]
    broken = {name.partition("::")[0] for name in names}
    traces = traces or [texts[name] for name in sorted(broken) if name in texts][:_MAX_TRACES]
    traced = "\n\n".join([named, *(f"```\n{text}\n```" for text in traces)])
    return {"names": named, "traceback": traced, **({"changelog": said} if entry else {})}


def write(task: SoftwareTask, folder: Path) -> None:
    """Write a task as a folder in Harbor's form, with the verdict's data in tests/swe.json."""
    new, old = task.new, task.old
    facts = {
        "name": task.name,
        "package": new.release.package,
        "own": new.package,
        "root": new.root,
        "config": new.settings,
        "files": suite_of(old, new).files,
        "instructions": dict(task.instructions),
        "hidden": task.hidden.to_json(),
    }
    about = {"package": new.release.package, "before": old.release.version, "after": new.release.version}
    about |= {"licence": new.licence, "source_before": old.release.source, "sha256_before": old.release.sha256}
    about |= {"source_after": new.release.source, "sha256_after": new.release.sha256}
    place, seconds = f"{FOLDER}/{new.root}".rstrip("/"), task.hidden.seconds
    words = [f"-c {FOLDER}/{new.settings}" if new.settings else "-c /dev/null", "-o addopts= -p no:cacheprovider"]
    texts: dict[str, str | bytes] = {
        "instruction.md": next(iter(task.instructions.values())) + "\n",
        "task.toml": 'version = "1.0"\n\n[metadata]\n'
        + "".join(f"{name} = {json.dumps(value)}\n" for name, value in about.items())
        + f"\n[agent]\ntimeout_sec = 600.0\n\n[verifier]\ntimeout_sec = {seconds}\n"
        + "\n[environment]\nallow_internet = false\n",
        "environment/Dockerfile": f"FROM {_IMAGE}\nWORKDIR {FOLDER}\nRUN pip install pytest\n"
        f"COPY app.tar.gz /tmp/app.tar.gz\nRUN tar -xzf /tmp/app.tar.gz -C {FOLDER} && rm /tmp/app.tar.gz\n",
        "tests/test.sh": "#!/bin/bash\n# For Harbor; AgentR1/SWE-v0 judges by swe.json.\n"
        f"tar -xzf /tests/tree.tar.gz -C {FOLDER}\n"
        f"cd {FOLDER} && PYTHONPATH={shlex.quote(place)} python3 -m pytest {' '.join(words)} @/tests/ids.txt\n"
        "[ $? = 0 ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n",
        "tests/ids.txt": "".join(f"{one}\n" for one in (*task.hidden.fail_to_pass, *task.hidden.pass_to_pass)),
        "tests/swe.json": json.dumps(facts, ensure_ascii=False, indent=1) + "\n",
        "solution/golden.patch": task.patch,
        "solution/solve.sh": f"#!/bin/bash\ncd {FOLDER} && git apply /solution/golden.patch\n",
        "environment/app.tar.gz": _archive({**old.files, **old.metadata()}),
        "tests/tree.tar.gz": _archive(new.tests()),
    }
    for name, content in texts.items():
        write_whole(folder / name, content)


def _archive(files: Mapping[str, bytes]) -> bytes:
    """Pack files so that the same files give the same bytes."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for path, data in sorted(files.items()):
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(data), 0o755 if data.startswith(b"#!") else 0o644
            tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()
