"""The commands that hold results against others: `compare`, `leaderboard`, `rescore`, and `calibrate` for judges."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tqdm import tqdm

from agent_gym.cli.parser import CommandParser, json_object, left_out, read_settings
from agent_gym.cli.view import check_new, is_run, last_evaluation, named, read_files
from agent_gym.errors import ConfigError, write_whole
from agent_gym.evaluate import EvalResult, summarize
from agent_gym.evaluate.cards import differences, read_cards, terms
from agent_gym.evaluate.compare import Run, read_runs, same_kind, with_cards
from agent_gym.evaluate.compare import compare as compare_runs
from agent_gym.evaluate.panels import opened_env
from agent_gym.evaluate.prompts import few_prompts
from agent_gym.evaluate.report import align, comparison_text, interval, number
from agent_gym.evaluate.statistics import Measure
from agent_gym.evaluate.storage import CARDS
from agent_gym.judges import Judge
from agent_gym.registry.from_data import env_from_data
from agent_gym.rollout import Replay, from_record, play_again, to_record, write_trajectories
from agent_gym.untrusted import lines_of, open_regular, say
from agent_gym.viewer.page import plain_page

_SHOWN = 10  # differences that `rescore` prints
Cards = Sequence[Mapping[str, Any]]
HEADER = [
    "policy", "success", "95% interval", "prompts", "failed", "skipped", "read", "sampled", "CPU s", "GPU s", "cost",
]  # fmt: skip
_ENDING = (
    "Only rows of one table are comparable. A bar is the success with its 95% interval over distinct prompts. "
    "What failed by a fault of the machinery is counted, and in no estimate."
)


def compare(argv: Sequence[str]) -> int:
    """Compare runs on the tasks that they share: differences with 95% intervals and paired tests."""
    parser = CommandParser("compare", compare.__doc__)
    help_text = (
        "trajectory files of `eval` or `rollout`, or folders of runs, whose last evaluations count; others are held "
        "to the first policy in the first file"
    )
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
        say("\n\n".join(comparison_text(a, b, comparison) for a, b, comparison in found))
    return 0


def _read_runs(files: Sequence[str]) -> list[Run]:
    parts = [(name, _read_run(name, file)) for name, file in named(files)]
    policies = [policy for _, part in parts for policy in {run.policy for run in part}]
    # A policy that several files have is named with the file.
    return [
        dataclasses.replace(run, policy=f"{run.policy} in {name}") if policies.count(run.policy) > 1 else run
        for name, part in parts
        for run in part
    ]


def _read_run(name: str, file: str) -> list[Run]:
    if is_run(Path(file)):
        return read_runs(read_files(last_evaluation(Path(file))), name)
    return with_cards(read_runs(read_files([file]), name), file)


def _pairs(runs: Sequence[Run]) -> Iterator[tuple[Run, Run]]:
    """Pair each run with the first of its environment or, if it is the only one there, of a variant of it."""
    for i, run in enumerate(runs):
        before = [other for other in runs[:i] if same_kind(other, run)]
        if before:
            yield next((other for other in before if other.env_id == run.env_id), before[0]), run


def leaderboard(argv: Sequence[str]) -> int:
    """Build a page from the cards of evaluations and runs, with a table for each set of them that is comparable."""
    parser = CommandParser("leaderboard", leaderboard.__doc__)
    parser.flag("folder DIR", "folder with X.card.json of evaluations and card.json of runs, however deep")
    parser.flag("--output FILE", "the page; default: DIR/leaderboard.html")
    parser.flag("--title", "heading of the page", default="Leaderboard")
    arguments = parser.parse(argv)
    folder = Path(arguments.folder)
    files = sorted({*folder.rglob("*.card.json"), *folder.rglob("card.json")})
    if not files:
        raise ConfigError(f"{folder} holds no cards; agent-gym eval --output and training runs write them")
    output = Path(arguments.output or folder / "leaderboard.html")
    check_new(output)
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for file in files:
        name = str(file.relative_to(folder)).removesuffix(".card.json")
        try:
            cards = read_cards(file, left_out=left_out)
        except ConfigError as error:
            left_out(str(error))
            continue
        for card in cards:
            key = json.dumps(terms(card), sort_keys=True)
            model, policy = card.get("model") or {}, card["policy"]
            if model.get("sha256"):  # a folder: where it was is nothing to others
                policy = re.sub(rf"\S*/{re.escape(model['name'])}", model["name"], policy)
            groups.setdefault(key, []).append({**card, "policy": f"{policy} ({name})"})
    if not groups:
        raise ConfigError(f"{folder} holds no card that can be read; the lines above give the reasons")
    panels = [_panel(group) for group in groups.values()]
    newest = dict(sorted((panel["name"], panel["version"]) for panel in panels))  # the last one of a name stays
    tables = sorted(((_heading(group, newest), _rows(group)) for group in groups.values()), key=lambda table: table[0])
    sections = [_section(heading, rows) for (_, *heading), rows in tables]
    write_whole(output, plain_page(arguments.title, sections, _ENDING))
    for (_, *heading), rows in tables:
        say("\n".join([*filter(None, heading), align([HEADER, *(cells for _, cells in rows)]), ""]))
    say(output)
    return 0


def _panel(cards: Cards) -> Mapping[str, Any]:
    return max((card["panel"] for card in cards), key=lambda panel: str(panel["name"]))  # one with a name, if any


def _heading(cards: Cards, newest: Mapping[str, int]) -> tuple[Any, ...]:
    """Return a table's place, its title, its grade ("" without a newer panel), and the common facts of its cards."""
    panel, common = _panel(cards), terms(cards[0])
    name, now, last = panel["name"], panel["version"], newest[panel["name"]]
    what = f"panel {name}, version {now}" if name else f"no panel, split {panel['split']}"
    grade = f"not comparable with version {last} of this panel" if name and now < last else ""
    hashes = f"openings {panel['prompts_sha256'][:16]}, gold answers {panel['golds_sha256'][:16]}"
    shared = ("protocol", "reward weights", "arguments", "turns", "limits", "judge")
    facts = [f"{key}: {json.dumps(common[key])}" for key in shared if common[key] is not None]
    place = panel["env_id"], not name, name, -now
    prompts = max((card["counts"].get("prompts", 0) for card in cards), default=0)
    few = [few_prompts(prompts, panel["tasks"], panel["env_id"])] if prompts else []
    return place, f"{panel['env_id']}, {what}", grade, f"{panel['tasks']} tasks, {hashes}", *filter(None, few), *facts


def _rows(cards: Cards) -> list[tuple[Measure, list[str]]]:
    """Return a row per card, the best first, each with its success."""
    rows, name = [], "episode/success"
    for card in cards:
        known = card["measures"].get(name)  # None where all episodes failed
        success = Measure(*(known[key] for key in ("value", "low", "high"))) if known else Measure(0.0, 0.0, 1.0)
        # A card of an older version does not say how many prompts it is of.
        counts = [card["counts"].get(key, "-") for key in ("prompts", "failed", "skipped")]
        spent = [f"{card['tokens'][key]:,}" for key in ("read", "sampled")]
        spent += [f"{card['seconds'][key]:,.1f}" for key in ("cpu", "gpu")]
        cost = "-" if card["cost"] is None else f"{card['cost']:.4g}"
        measured = [number(name, success.value), interval(name, success)] if known else ["-", "-"]
        shown = [*measured, *map(str, counts)]
        rows.append((success, [card["policy"], *shown, *spent, cost]))
    return sorted(rows, key=lambda row: -row[0].value)


def _section(heading: Sequence[str], rows: Sequence[tuple[Measure, Sequence[str]]]) -> str:
    title, grade, *facts = map(html.escape, heading)
    warnings = [grade, *(fact for fact in facts if fact.startswith("warning"))]
    lines = [f"<section><h2>{title}</h2>", *(f'<p class="grade">{text}</p>' for text in warnings if text)]
    lines.append("<table><thead><tr>" + "".join(f"<th>{name}</th>" for name in HEADER) + "</tr></thead><tbody>")
    for success, (policy, *cells) in rows:
        places = {"low": success.low, "value": success.value, "high": success.high}
        style = ";".join(f"--{k}:{success.value if v is None else v:.3%}" for k, v in places.items())
        first = f'<td>{html.escape(policy)}<i style="{style}"></i></td>'
        others = (f'<td title="{name}">{html.escape(cell)}</td>' for name, cell in zip(HEADER[1:], cells, strict=True))
        lines.append(f"<tr>{first}{''.join(others)}</tr>")
    conditions = "".join(f"<p>{fact}</p>" for fact in facts if fact not in warnings)
    lines.append(f"</tbody></table><details><summary>{facts[0].partition(', ')[0]}, conditions</summary>{conditions}")
    return "\n".join([*lines, "</details></section>"])


def rescore(argv: Sequence[str]) -> int:
    """Play the actions of stored episodes again, without a model, and score them.

    Exit code 1 if the world answers otherwise than then or, where no other rewards were asked for, scores otherwise.
    """
    parser = CommandParser("rescore", rescore.__doc__)
    parser.flag("file FILE.jsonl", "trajectories of `eval`, `rollout` or a training run")
    parser.flag("--reward_weights JSON", "other weights of the reward's terms", type=json_object, default={})
    parser.add_env_kwargs("other arguments of the environments, over those of the episodes")
    help_text = "make the environments as the file names them, also modules, commands, folders and addresses in it"
    parser.flag("--trust_file", help_text, action="store_true")
    parser.flag("--judge FILE", "let a judge score them, too, in place of what one has paid before")
    parser.flag("--output FILE.jsonl", "write the episodes with their new scores")
    parser.flag("--json", "print the outcome as JSON", action="store_true")
    arguments = parser.parse(argv)
    weights = {"reward_weights": arguments.reward_weights} if arguments.reward_weights else {}
    changes = {**arguments.env_kwargs, **weights}
    if arguments.output:
        check_new(arguments.output)
        card = Path(arguments.output).with_suffix(CARDS)
        if card.exists():  # it would vouch for the new scores
            raise ConfigError(f"{card} is the card of other scores: name another file with --output")
    judge = None if arguments.judge is None else Judge.of(read_settings(arguments.judge)).connect()
    records = list(read_files([arguments.file]))
    replays = list(_replay(records, changes, arguments.file, arguments.trust_file))
    if judge is not None:
        judged = [from_record(_apart(replay.record)) for replay in replays]
        judge.rate(judged)
        for replay, episode in zip(replays, judged, strict=True):
            found = to_record(episode)
            names = ("reward", "reward_terms", "steps", "failure", "failure_details")
            replay.record |= {name: found[name] for name in names if name in found}
    if arguments.output:
        write_trajectories(arguments.output, (replay.record for replay in replays))
    then, now = (
        summarize([from_record({**_apart(record), "rows": []}) for record in some])
        for some in (records, (replay.record for replay in replays))
    )
    changed = [replay for replay in replays if replay.world or replay.scores]
    _show_outcome(replays, changed, then, now, as_json=arguments.json)
    return 1 if any(one.world or one.scores and not changes for one in changed) else 0


def _show_outcome(
    replays: Sequence[Replay], changed: Sequence[Replay], then: EvalResult, now: EvalResult, *, as_json: bool
) -> None:
    """Print the outcome of a replay: the episodes that changed, and each measure then and now."""
    world, scores = sum(bool(one.world) for one in changed), sum(bool(one.scores) for one in changed)
    if as_json:
        counts = {"episodes": len(replays), "world_differs": world, "scores_differ": scores}
        differences = [
            {"task_id": one.record["task_id"], "spec": one.record["spec"], "world": one.world, "scores": one.scores}
            for one in changed
        ]
        print(json.dumps({**counts, "stored": then.metrics, "now": now.metrics, "differences": differences}, indent=2))
    else:
        say(f"{then.episodes} episodes played again, {then.failed} failed ones left as they are")
        say(f"the world answers otherwise in {world} of them, the score is another in {scores}")
        for one in changed[:_SHOWN]:
            say(f"  {one.record['task_id']}: {(one.world or one.scores)[0][:200]}")
        rows = [["measure", "stored", "now"]]
        for name in {**then.measures, **now.measures}:
            old, new = (result.measures[name].value if name in result.measures else 0.0 for result in (then, now))
            if old != new and not name.endswith("/latency"):  # the time of a tool is not a score
                rows.append([name, number(name, old), number(name, new)])
        if len(rows) > 1:
            say(align(rows))


def _apart(record: Mapping[str, Any]) -> dict[str, Any]:
    """Put the policy into the split: attempts of two policies are not attempts of one at one task."""
    spec = record["spec"]
    return {**record, "spec": {**spec, "split": (spec["split"], record.get("policy"))}}


def _replay(
    records: Sequence[Mapping[str, Any]], changes: Mapping[str, Any], file: str, trusted: bool
) -> Iterator[Replay]:
    """Play the records again, in one environment per id and arguments."""
    if not trusted:
        cure = "say --trust_file if you know who made the file"
        for spec in (record["spec"] for record in records if record["failure"] is None):
            env_from_data(spec["env_id"], spec["env_kwargs"], file, given=changes, cure=cure)
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
                envs[key] = stack.enter_context(opened_env(spec["env_id"], kwargs))
            replay = play_again(record, envs[key])
            replay.record["spec"] = {**spec, "env_kwargs": kwargs}
            yield replay


def calibrate(argv: Sequence[str]) -> int:
    """Hold a judge against known labels: agreement, position bias, length bias and cost."""
    from agent_gym.judges.calibrate import calibrate as measure
    from agent_gym.judges.calibrate import read_labels

    parser = CommandParser("calibrate", calibrate.__doc__)
    parser.flag("judge JUDGE", "a yaml or toml file with a judge, as for --judge of other commands")
    help_text = "episodes of `rollout` or `eval`, labelled by their success, or lines with messages and a label"
    parser.flag("labels LABELS.jsonl", help_text)
    parser.flag("--output FILE.json", "write the measures there, too")
    arguments = parser.parse(argv)
    if arguments.output:
        check_new(arguments.output)
    judge = Judge.of(read_settings(arguments.judge))
    try:
        file = open_regular(Path(arguments.labels))
        labelled = read_labels((line.decode() for line in lines_of(file)), arguments.labels)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {arguments.labels}: {error}") from error
    found = measure(judge.connect(), labelled)
    judge.close()
    say(f"{found.judge['kind']} by {found.judge['model']}: {found.labelled} episodes, {found.failed} without a verdict")
    for reason in found.failures:
        say(f"  {reason}")
    say(align(found.rows()))
    say("spent: " + ", ".join(f"{name} {value:g}" for name, value in found.spent.items()))
    if arguments.output:
        write_whole(arguments.output, json.dumps(found.to_record(), indent=1) + "\n")
    return 0
