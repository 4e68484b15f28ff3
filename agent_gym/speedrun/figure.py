"""One picture of a speedrun over several seeds: success during RL, its comparisons, and the content of episodes.

    read_runs(folder) -> over_runs(runs) -> draw(found, file)

All of it is about the same dev tasks: GRPO is evaluated on them, from its start at step 0 on, and the controls play
them, too. The demonstrator alone was measured on tasks of training. The band is Student's 95% interval of the mean over
seeds, as in tables.py, and thin lines are single seeds. Beneath success are the numbers that Agent-R1
(arXiv:2511.14460) reports to grow with it: tool calls (turns, where no tool was called) and the tokens that the policy
sampled, per episode.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_gym.errors import ConfigError, require, whole_file
from agent_gym.speedrun.tables import over
from agent_gym.untrusted import count, misfit, number, read_json

POLICY = "#0072b2"
# By M. Okabe and K. Ito (2008) and P. Tol (2021), for eyes of all kinds; two are darker, so that text is readable.
_STYLES = (
    ("#5a5a5a", (0, (5, 2))), ("#b84a00", (0, (7, 2, 1.5, 2))), ("#aa4499", (0, (1.5, 1.5))), ("#332288", (0, (3, 1))),
)  # fmt: skip
_DEMONSTRATOR = ("#00664d", (0, (10, 3)))
_SIZE, _HEIGHTS, _TEXT = (8.6, 6.8), (3.0, 1.1, 1.1), 10.5  # inches, shares, and points
_POINT = {"step": count, **dict.fromkeys(("success", "turns", "tool_calls", "tokens"), number)}
_SHAPE = {
    "preset": str,
    "algorithm?": str,
    "seed": count,
    "dev": {"split": str, "tasks": count, "decoding": str, "start": str, "evaluations": [_POINT]}
    | {"controls?": [{"policy": str, "success": number}]},
    "start?": {"demonstrator": {"success": {"value": number}}},
}
_WORDS = {"preset": "environment", "split": "dev split", "tasks": "number of dev tasks"}


def read_runs(folder: str | Path) -> list[dict[str, Any]]:
    """Read the results of a folder that `agent-gym speedrun` has left, of one run or of several seeds, by seed.

    Raises:
        ConfigError: if there are none, one is not whole, or they were written before evaluations were kept.
    """
    folder = Path(folder)
    files = [folder / "results.json"] if (folder / "results.json").is_file() else [*folder.glob("seed_*/results.json")]
    if not files:
        raise ConfigError(
            f"{folder} holds no finished run (seed_N/results.json): make some with agent-gym speedrun --seeds 0,1,2 "
            f"--output_dir {shlex.quote(str(folder))}"
        )
    runs = []
    for file in files:
        try:
            run = read_json(file, dict)
            if "dev" not in run or isinstance(run["dev"], dict) and not run["dev"].get("evaluations"):
                raise ConfigError(f"{file} holds no evaluations during RL: it is of an earlier version; run it again")
            if wrong := misfit(run, _SHAPE):
                raise ValueError(wrong)
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"{file} is not whole: {error}; run it again") from error
        runs.append(run)
    return sorted(runs, key=lambda run: run["seed"])


def over_runs(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Condense the `results.json` of several seeds to the drawn numbers.

    Returns:
        "preset", "algorithm", "split", "tasks", "decoding", "seeds", "steps", and "start", the policy before RL.
        "success", "tokens", and "tool_calls" or "turns": an `over` for each step. "lines": name to `over`, of the
        values that success is held to.

    Raises:
        ConfigError: if the runs are not of one kind, for example because their steps differ.
    """
    kinds = [_kind(run) for run in runs]
    for run, kind in zip(runs, kinds, strict=True):
        for key, value in kinds[0].items():
            if kind[key] != value:
                values = f"seed {runs[0]['seed']} has {value}, seed {run['seed']} has {kind[key]}"
                raise ConfigError(f"the runs differ in their {_WORDS.get(key, key)}: {values}; draw runs of one preset")
    evaluations = _as_long(runs)
    steps = [record["step"] for record in max(evaluations, key=len)]
    called = any(record["tool_calls"] for of_run in evaluations for record in of_run)
    series = {
        name: [over([record[name] for record in at_step], name) for at_step in zip(*evaluations, strict=True)]
        for name in ("success", "tool_calls" if called else "turns", "tokens")
    }
    lines = [_lines(run) for run in runs]
    found = kinds[0] | {"seeds": [run["seed"] for run in runs], "steps": steps, **series}
    return found | {"lines": {name: over([of_run[name] for of_run in lines], "success") for name in lines[0]}}


def _as_long(runs: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the evaluations of each run; a run that ended at a flat curve keeps its last policy to the longest's end.

    Raises:
        ConfigError: if the runs were evaluated at different steps.
    """
    all_of = [list(run["dev"]["evaluations"]) for run in runs]
    longest = max(all_of, key=len)
    steps, seed = [record["step"] for record in longest], runs[all_of.index(longest)]["seed"]
    for run, mine in zip(runs, all_of, strict=True):
        ended = len(mine) if run["dev"].get("flat_at") is not None else len(steps)
        if (own := [record["step"] for record in mine]) != steps[:ended]:
            values = f"seed {seed} has {steps}, seed {run['seed']} has {own}"
            raise ConfigError(f"the runs differ in their steps: {values}; draw runs of one preset")
        mine += [{**mine[-1], "step": step} for step in steps[ended:]]
    return all_of


def _kind(run: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are equal in runs drawn as one."""
    dev = run["dev"]
    kind = {"preset": run["preset"], **{key: dev[key] for key in ("split", "tasks", "decoding")}}
    return {**kind, "algorithm": run.get("algorithm", "GRPO"), "start": dev["start"], "lines": list(_lines(run))}


def _lines(run: Mapping[str, Any]) -> dict[str, float]:
    """The comparisons of RL's success: the start, the controls and the demonstrator, as far as a run has them."""
    first, *_ = run["dev"]["evaluations"]
    lines = {f"start: {run['dev']['start']}": first["success"]} if first["step"] == 0 else {}
    lines |= {control["policy"]: control["success"] for control in run["dev"].get("controls", ())}
    if "start" in run:
        lines["demonstrator, on training tasks"] = run["start"]["demonstrator"]["success"]["value"]
    return lines


def draw_figure(folder: str | Path, output: str | Path | None = None) -> tuple[dict[str, Any], list[Path]]:
    """Draw the runs of a folder.

    Args:
        folder: of `agent-gym speedrun --seeds`.
        output: the picture as a PNG; the SVG goes next to it. By default figure.png in the folder.

    Returns:
        The drawn numbers (`over_runs`), and the two files.

    Raises:
        ConfigError: as `read_runs` and `over_runs`, if the files cannot be written, or without matplotlib.
    """
    found = over_runs(read_runs(folder))
    return found, draw(found, Path(output) if output else Path(folder) / "figure.png")


def draw(found: Mapping[str, Any], path: Path) -> list[Path]:
    """Draw the result of `over_runs` as a PNG and an SVG of the same name, and return both paths."""
    require("matplotlib", "train")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    seeds = found["seeds"]
    title = f"{found['preset']}: {found['algorithm']}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    band = "One seed, so that there is no band."
    if len(seeds) > 1:
        band = f"Bands: Student's 95% interval of the mean over {len(seeds)} seeds. Thin lines: single seeds."
    # Text as shapes, so that it looks the same everywhere; the same numbers give the same bytes.
    with rc_context({"font.size": _TEXT, "svg.hashsalt": "agent-gym", "svg.fonttype": "path"}):
        figure = Figure(figsize=_SIZE, dpi=200, layout="constrained")
        figure.suptitle(title, weight="bold")
        axes = figure.subplots(len(_HEIGHTS), 1, sharex=True, gridspec_kw={"height_ratios": _HEIGHTS})
        for axis, name in zip(axes, [name for name in _TITLES if name in found], strict=True):
            _draw_panel(axis, found, name)
        axes[-1].set_xlabel(f"{found['algorithm']} step\n\n{band}")
        files = [path.with_suffix(".png"), path.with_suffix(".svg")]
        for file, about in zip(files, (None, {"Date": None}), strict=True):
            with whole_file(file) as aside:
                figure.savefig(aside, format=file.suffix[1:], metadata=about)
    return files


_TITLES = {
    "success": "Success on {tasks} tasks of the split {split}, {decoding}",
    "tool_calls": "Tool calls per episode",
    "turns": "Turns per episode",
    "tokens": "Tokens sampled per episode",
}


def _draw_panel(axis: Any, found: Mapping[str, Any], name: str) -> None:
    """Draw one quantity over the steps; next to success are the values it is compared with, the highest first."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    steps, series, success = found["steps"], found[name], name == "success"
    for values in zip(*(one["values"] for one in series), strict=True) if len(found["seeds"]) > 1 else ():
        axis.plot(steps, values, color=POLICY, linewidth=0.7, alpha=0.35)
    # Where all seeds agree the spread is 0, and the interval is the mean alone.
    lows, highs = ([one["mean"] if one[end] is None else one[end] for one in series] for end in ("low", "high"))
    axis.fill_between(steps, lows, highs, color=POLICY, alpha=0.16, linewidth=0)
    first, last = series[0]["mean"], series[-1]["mean"]
    title = _TITLES[name].format(**found)
    drawn = axis.plot(steps, [one["mean"] for one in series], color=POLICY, linewidth=2.2, marker="o", markersize=4)
    if success:
        lines, labels = found["lines"], [(last, f"{found['algorithm']} {last:.1%}", drawn[0])]
        for (line, one), (color, dashes) in zip(lines.items(), _styles(lines), strict=True):
            held_to = axis.axhline(one["mean"], color=color, linestyle=dashes, linewidth=1.5)
            labels.append((one["mean"], textwrap.fill(f"{line} {one['mean']:.1%}", 30), held_to))
        labels.sort(key=lambda label: -label[0])
        place = {"loc": "upper left", "bbox_to_anchor": (1, 1), "frameon": False}
        axis.legend([one for *_, one in labels], [text for _, text, _ in labels], **place)
        highest = max([*highs, *(one["mean"] for one in lines.values()), *(max(one["values"]) for one in series)])
        axis.set_ylim(0, min(1.0, int(10 * highest + 1.5) / 10))
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    else:
        title += f": {last:.2f}, at first {first:.2f}"
        known = [value for one in series for value in one["values"]]
        space = 0.15 * (max(known) - min(known)) or 0.5
        axis.set_ylim(max(0.0, min(known) - space), max(known) + space)  # a band of few seeds would hide the rest
    axis.set_title(title, loc="left", size=_TEXT + 0.5)
    axis.yaxis.set_major_locator(MaxNLocator(6 if success else 3, steps=[1, 2, 5, 10]))
    axis.set_xlim(steps[0], steps[-1] if len(steps) > 1 else steps[0] + 1)
    axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def _styles(lines: Mapping[str, Any]) -> list[tuple[str, Any]]:
    own = iter(_STYLES)
    return [_DEMONSTRATOR if name.startswith("demonstrator") else next(own) for name in lines]
