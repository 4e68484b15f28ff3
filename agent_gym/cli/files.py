"""The commands that read files of runs: `view`, `figure`, `compare` and `rescore`."""

from __future__ import annotations

import dataclasses
import json
import sys
import webbrowser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

from tqdm import tqdm

from agent_gym.cli.judge import read_judge
from agent_gym.cli.parser import Parser, check_output, json_object, positive
from agent_gym.cli.run_page import is_run, serve_page, write_page
from agent_gym.errors import ConfigError, require, writing
from agent_gym.evaluate import summarize
from agent_gym.evaluate.cards import differences
from agent_gym.evaluate.compare import Run, read_runs, same_kind, with_cards
from agent_gym.evaluate.compare import compare as compare_runs
from agent_gym.evaluate.report import align, comparison_text, number
from agent_gym.rollout import (
    Replay,
    from_record,
    make_env,
    play_again,
    read_trajectories,
    to_record,
    write_trajectories,
)
from agent_gym.rollout.env_threads import close_env
from agent_gym.viewer.run import trajectory_files

_SHOWN = 10  # differences that `rescore` prints


def read_files(files: Iterable[str | Path]) -> Iterator[dict[str, Any]]:
    """Yield the records of trajectory files, with a bar on a terminal; lines that are left out are named on stderr."""

    def warn(text: str) -> None:
        tqdm.write(f"agent-gym: {text}", file=sys.stderr)

    records = chain.from_iterable(read_trajectories(file, left_out=warn) for file in files)
    return iter(tqdm(records, desc="reading", unit=" episodes", leave=False, disable=None, file=sys.stderr))


def _named(files: Sequence[str]) -> list[tuple[str, str]]:
    """Name each file by its stem, or by its path where two have one stem."""
    stems = [Path(file).stem for file in files]
    return [(stem if stems.count(stem) == 1 else file, file) for stem, file in zip(stems, files, strict=True)]


def view(argv: Sequence[str]) -> int:
    """Turn trajectories, or a run, into HTML pages that open anywhere, without a server or a network."""
    parser = Parser("view", view.__doc__, config=False)
    help_text = (
        "a trajectory file (.jsonl) or a folder of them; two are two runs, compared task by task; or a run's folder"
    )
    parser.flag("files FILE", help_text, nargs="+")
    parser.flag("--output FILE", "the page; default: next to the first input, ending in .html; of a run: RUN/page")
    parser.flag("--title", "heading of the page; default: the name of the input")
    parser.flag("--open", "open the page in the browser", action="store_true")
    parser.flag("--web", "serve the page of a run that may still go on, on this machine alone", action="store_true")
    parser.flag("--port PORT", "with --web; default: a free one", type=int, default=0)
    parser.flag("--terminal", "browse the episodes here, by keys, and write no page", action="store_true")
    parser.flag("--episode N", "with --terminal: show the Nth episode and end", type=positive)
    arguments = parser.parse(argv)
    run = Path(arguments.files[0])
    if len(arguments.files) == 1 and is_run(run) and not arguments.terminal:
        if arguments.web:
            return serve_page(run, arguments.title, arguments.port)
        return _done(write_page(run, arguments.title, Path(arguments.output or run / "page")), arguments.open)
    if arguments.web:
        raise ConfigError(f"--web serves the page of one run, and {arguments.files[0]} is none: name a run's folder")
    if arguments.terminal:
        _show(dict(_played_together(arguments.files)), arguments.episode)
        return 0
    runs = {name: _jsonl_files(Path(path)) for name, path in _named(arguments.files)}
    if arguments.episode:
        raise ConfigError("--episode belongs to --terminal; on the page an episode is found by search")
    from agent_gym.viewer import render_html

    output = Path(arguments.output or Path(arguments.files[0]).with_suffix(".html"))
    check_output(str(output))
    page = render_html({name: read_files(files) for name, files in runs.items()}, arguments.title or " and ".join(runs))
    with writing(output, "name another file with --output"):
        output.write_text(page, encoding="utf-8")
    return _done(output, arguments.open)


def _done(page: Path, opened: bool) -> int:
    print(page)
    if opened and not webbrowser.open(page.resolve().as_uri()):
        raise ConfigError(f"there is no browser to open; the page is at {page}")
    return 0


def _jsonl_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if (path / "trajectories").is_dir():
        path = path / "trajectories"
    # One without content is what a run leaves that was killed before its first episode ended.
    files = sorted(file for file in path.glob("*.jsonl") if file.stat().st_size)
    if not files:
        raise ConfigError(f"{path} holds no .jsonl file with episodes")
    return files


def _played_together(inputs: Sequence[str]) -> Iterator[tuple[str, list[Path]]]:
    """Yield each step of a run, or each file, with a name."""
    for name, path in _named(inputs):
        within = f"{name}: " if len(inputs) > 1 else ""
        if steps := trajectory_files(Path(path)):
            yield from ((f"{within}{mode} {step}", files) for (mode, step), files in steps.items())
        else:
            found = _jsonl_files(Path(path))
            yield from ((name if file == Path(path) else within + file.stem, [file]) for file in found)


def _show(runs: Mapping[str, Sequence[Path]], number: int | None) -> None:
    require("rich", "terminal")
    from rich.console import Console

    from agent_gym.viewer.terminal import episode_table, episode_view

    console = Console(highlight=False)
    if number is None and console.is_terminal and sys.stdin.isatty():
        require("textual", "terminal")
        from agent_gym.viewer.browser import Browser

        Browser(runs).run()
        return
    records = list(read_files(chain.from_iterable(runs.values())))
    if number is None:
        console.print(episode_table(records))
    elif number > len(records):
        raise ConfigError(f"--episode is {number}, but there are {len(records)} episodes")
    else:
        console.print(episode_view(records[number - 1], number, len(records)))


def figure(argv: Sequence[str]) -> int:
    """Draw the runs of a speedrun as one picture: success over steps with its band, controls, tool calls, tokens."""
    parser = Parser("figure", figure.__doc__, config=False)
    parser.flag("folder FOLDER", "what `agent-gym speedrun --seeds 0,1,2 --output_dir FOLDER` has left")
    parser.flag("--output FILE.png", "the picture, and beside it the same as .svg; default: FOLDER/figure.png")
    arguments = parser.parse(argv)
    from agent_gym.examples.figure import draw_figure

    found, files = draw_figure(arguments.folder, arguments.output)
    seeds = ", ".join(map(str, found["seeds"]))
    print(f"seeds {seeds}" if len(found["seeds"]) > 1 else f"one seed, {seeds}: the picture has no band")
    print(*files, sep="\n")
    return 0


def compare(argv: Sequence[str]) -> int:
    """Compare runs on the tasks that they share: differences with 95% intervals and paired tests."""
    parser = Parser("compare", compare.__doc__, config=False)
    help_text = "trajectory files of `eval` or `rollout`; the first policy in the first file is what others are held to"
    parser.flag("files FILE.jsonl", help_text, nargs="+")
    parser.flag("--anyway", "also compare what by its cards is not comparable; the output says so", action="store_true")
    parser.flag("--json", "print the comparisons as JSON", action="store_true")
    arguments = parser.parse(argv)
    pairs = list(_pairs(_read_runs(arguments.files)))
    for a, b in pairs:
        if (reasons := differences(a.card, b.card)) and not arguments.anyway:
            cure = "--anyway compares them all the same"
            raise ConfigError(f"{a.policy} and {b.policy} are not comparable: {'; '.join(reasons)}. {cure}")
    found = [(a, b, compare_runs(a, b)) for a, b in pairs]
    if not found:
        raise ConfigError(
            f"{', '.join(arguments.files)}: nothing to compare; it takes two policies, or two files, that played the "
            "same environment"
        )
    if arguments.json:
        rows = [
            {"a": a.policy, "b": b.policy, "env_a": a.env_id, "env_b": b.env_id}
            | {"not_comparable": differences(a.card, b.card), "card_a": bool(a.card), "card_b": bool(b.card)}
            | dataclasses.asdict(comparison)
            for a, b, comparison in found
        ]
        print(json.dumps(rows, indent=2))
    else:
        print("\n\n".join(comparison_text(a, b, comparison) for a, b, comparison in found))
    return 0


def _read_runs(files: Sequence[str]) -> list[Run]:
    parts = [(name, with_cards(read_runs(read_files([file]), name), file)) for name, file in _named(files)]
    policies = [policy for _, part in parts for policy in {run.policy for run in part}]
    # A policy that several files have is named with the file.
    return [
        dataclasses.replace(run, policy=f"{run.policy} in {name}") if policies.count(run.policy) > 1 else run
        for name, part in parts
        for run in part
    ]


def _pairs(runs: Sequence[Run]) -> Iterator[tuple[Run, Run]]:
    """Pair each run with the first of its environment or, if it is the only one there, of a variant of it."""
    for i, run in enumerate(runs):
        before = [other for other in runs[:i] if same_kind(other, run)]
        if before:
            yield next((other for other in before if other.env_id == run.env_id), before[0]), run


def rescore(argv: Sequence[str]) -> int:
    """Play the actions of stored episodes again, without a model, and score them.

    Exit code 1 if the world answers otherwise than then or, where no other rewards were asked for, scores otherwise.
    """
    parser = Parser("rescore", rescore.__doc__)
    parser.flag("file FILE.jsonl", "trajectories of `eval`, `rollout` or a training run")
    parser.flag("--reward_weights JSON", "other weights of the reward's terms", type=json_object, default={})
    parser.add_env_kwargs("other arguments of the environments, over those of the episodes")
    parser.flag("--judge FILE", "let a judge score them, too, in place of what one has paid before")
    parser.flag("--output FILE.jsonl", "write the episodes with their new scores")
    parser.flag("--json", "print the outcome as JSON", action="store_true")
    arguments = parser.parse(argv)
    weights = {"reward_weights": arguments.reward_weights} if arguments.reward_weights else {}
    changes = {**arguments.env_kwargs, **weights}
    if arguments.output:
        check_output(arguments.output)
    judge = None if arguments.judge is None else read_judge(arguments.judge).connect()
    records = list(read_files([arguments.file]))
    replays = list(_replay(records, changes))
    if judge is not None:
        judged = [from_record(replay.record) for replay in replays]
        judge.rate(judged)
        for replay, episode in zip(replays, judged, strict=True):
            found = to_record(episode)
            names = ("reward", "reward_terms", "steps", "failure", "failure_details")
            replay.record |= {name: found[name] for name in names if name in found}
    if arguments.output:
        with writing(arguments.output):
            write_trajectories(arguments.output, (replay.record for replay in replays))
    then, now = (
        summarize([from_record({**record, "rows": []}) for record in some])
        for some in (records, (replay.record for replay in replays))
    )
    changed = [replay for replay in replays if replay.world or replay.scores]
    world, scores = sum(bool(one.world) for one in changed), sum(bool(one.scores) for one in changed)
    if arguments.json:
        counts = {"episodes": len(replays), "world_differs": world, "scores_differ": scores}
        differences = [
            {"task_id": one.record["task_id"], "spec": one.record["spec"], "world": one.world, "scores": one.scores}
            for one in changed
        ]
        print(json.dumps({**counts, "stored": then.metrics, "now": now.metrics, "differences": differences}, indent=2))
    else:
        print(f"{then.episodes} episodes played again, {then.failed} failed ones left as they are")
        print(f"the world answers otherwise in {world} of them, the score is another in {scores}")
        for one in changed[:_SHOWN]:
            print(f"  {one.record['task_id']}: {(one.world or one.scores)[0][:200]}")
        rows = [["measure", "stored", "now"]]
        for name in {**then.measures, **now.measures}:
            old, new = (result.measures[name].value if name in result.measures else 0.0 for result in (then, now))
            if old != new and not name.endswith("/latency"):  # how long a tool takes is no score
                rows.append([name, number(name, old), number(name, new)])
        if len(rows) > 1:
            print(align(rows))
    return 1 if any(one.world or one.scores and not changes for one in changed) else 0


def _replay(records: Sequence[Mapping[str, Any]], changes: Mapping[str, Any]) -> Iterator[Replay]:
    """Play the records again, in one environment per id and arguments."""
    envs: dict[str, Any] = {}
    with ExitStack() as stack:
        for record in tqdm(records, desc="episodes", leave=False, file=sys.stderr):
            if record["failure"] is not None:  # it broke off, and there is nothing to compare with
                yield Replay(dict(record))
                continue
            spec = record["spec"]
            kwargs = {**spec["env_kwargs"], **changes}
            if "reward_weights" in changes:
                stored = spec["env_kwargs"].get("reward_weights") or {}
                kwargs["reward_weights"] = {**stored, **changes["reward_weights"]}
            key = json.dumps([spec["env_id"], kwargs], sort_keys=True)
            if key not in envs:
                envs[key] = make_env(spec["env_id"], kwargs)
                stack.callback(close_env, envs[key])
            replay = play_again(record, envs[key])
            replay.record["spec"] = {**spec, "env_kwargs": kwargs}
            yield replay
