"""The output of a speedrun at its end: policies with intervals, paired differences, and both over several seeds.

Over seeds an interval is Student's for the mean of the runs, so that it also covers the effect of another seed: the
start, the order of the data, the sampling. The interval of one run is of its test tasks alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from agent_gym.evaluate import EvalResult, Measure
from agent_gym.evaluate.compare import Run, compare
from agent_gym.evaluate.prompts import few_prompts
from agent_gym.evaluate.report import align
from agent_gym.evaluate.statistics import Difference, mean
from agent_gym.rollout import Episode

MEASURES = {"success": "episode/success", "reward": "reward"}
_NO_REWARDS = Difference(0.0, 0.0, 0.0, None, None, 1.0, "permutation")  # `compare` leaves out constant zeros


def policies(rows: Sequence[tuple[str, str, EvalResult]], *, rewards: bool) -> str:
    """Return a row per policy and way of decoding: success, calls and turns, and with `rewards` the mean reward."""
    widths = {"policy": 32, "decoding": 8, "success": 24} | ({"reward": 24} if rewards else {})

    def line(cells: Iterable[str], calls: str, turns: str) -> str:
        return f"| {' | '.join(map(str.ljust, cells, widths.values()))} | {calls} | {turns} |"

    rule = "".join(f"|{'-' * (width + 2)}" for width in [*widths.values(), 5, 5]) + "|"
    lines = [line(widths, "calls", "turns"), rule]
    for name, decoding, result in rows:
        cells = [name, decoding, f"{result.success:6.1%} [{result.low:5.1%}, {result.high:5.1%}]"]
        if rewards:
            cells.append(estimate("reward", result.measures["reward"]) if result.episodes else "-")
        calls, turns = tool_calls(result.metrics), result.metrics["episode/turns"]
        lines.append(line(cells, f"{calls:5.2f}", f"{turns:5.2f}"))
    result = rows[-1][-1]
    warning = few_prompts(result.prompts, result.tasks, "this table")
    return "\n".join([*lines, *([warning] if warning else [])])


def tool_calls(metrics: Mapping[str, float]) -> float:
    """Tool calls per episode, whatever the tools."""
    return sum(value for name, value in metrics.items() if name.startswith("tool/") and name.endswith("/calls"))


def run_of(name: str, episodes: Sequence[Episode]) -> Run:
    """Return an evaluation in the form that `compare` takes."""
    spec = episodes[0].spec
    run = Run(name, spec.env_id, dict(spec.env_kwargs))
    for episode in episodes:
        run.add(episode)
    return run


def differences(runs: Mapping[tuple[str, str], Run], pairs: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Compare pairs (policy, against), paired by test task: a record per pair, way of decoding and measure."""
    records = []
    for policy, against in pairs:
        for decoding in ("greedy", "sampled"):
            found = compare(runs[against, decoding], runs[policy, decoding]).measures
            for measure, name in MEASURES.items():
                d = asdict(found.get(name, _NO_REWARDS))
                kept = {key: d[key] for key in ("difference", "low", "high", "p", "test")}
                records.append({"policy": policy, "against": against, "decoding": decoding, "measure": measure} | kept)
    return records


def differences_table(records: Iterable[Mapping[str, Any]]) -> str:
    """Return a row per record of `differences`, or of the ones over seeds, which have no p-value."""
    rows = [["difference", "decoding", "measure", "difference [95%]", "p"]]
    for r in records:
        p = "" if "p" not in r else "< 0.0001" if r["p"] < 1e-4 else f"{r['p']:.4f}"
        measure = Measure(r["difference"], r["low"], r["high"])
        pair = f"{r['policy']} minus {r['against']}"
        rows.append([pair, r["decoding"], r["measure"], estimate(r["measure"], measure, sign="+"), p])
    return align(row if any(one[4] for one in rows[1:]) else row[:4] for row in rows)


def over_seeds(results: Sequence[Mapping[str, Any]], chosen_on: Collection[int] = ()) -> dict[str, Any]:
    """Condense the `results.json` of several seeds: means with Student's intervals over seeds, and the values.

    The paired difference of a seed is the difference of its run, so that a seed's effect on both policies cancels.
    Seeds on which settings were chosen are left out, unless all are such seeds, which is then said.
    """
    fresh = [run for run in results if run["seed"] not in chosen_on]
    left_out = [run["seed"] for run in results if run["seed"] in chosen_on]
    results = fresh or results
    first = results[0]
    rows = [
        {"policy": row["policy"], "decoding": row["decoding"]}
        | {measure: over([run["results"][i][measure] for run in results], measure) for measure in MEASURES}
        for i, row in enumerate(first["results"])
    ]
    paired = list[dict[str, Any]]()
    for record in first.get("differences", []):
        names = {key: record[key] for key in ("policy", "against", "decoding", "measure")}
        values = [r["difference"] for run in results for r in run["differences"] if names.items() <= r.items()]
        found = over(values)
        paired.append({**names, "difference": found.pop("mean"), **found})
    return {
        "preset": first["preset"],
        "seeds": [run["seed"] for run in results],
        "chose": left_out,  # seeds on which settings were chosen
        "publishable": bool(fresh),
        "prompts": first["results"][-1].get("prompts"),
        "results": rows,
        "differences": paired,
    }


def seeds_table(found: Mapping[str, Any]) -> str:
    """Return the tables of the result of `over_seeds`."""
    rows = [["policy", "decoding", "success [95% over seeds]", "reward [95% over seeds]"]]
    for row in found["results"]:
        measures = [(m, Measure(row[m]["mean"], row[m]["low"], row[m]["high"])) for m in MEASURES]
        rows.append([row["policy"], row["decoding"], *(estimate(name, measure) for name, measure in measures)])
    parts = [f"{found['preset']}, seeds {', '.join(map(str, found['seeds']))}", align(rows), *remarks(found)]
    return "\n\n".join([*parts, *([differences_table(found["differences"])] if found["differences"] else [])])


def remarks(found: Mapping[str, Any]) -> list[str]:
    """Return the notes for a reader of means over seeds: which seeds chose, and how few prompts there are."""
    lines = []
    if chose := ", ".join(map(str, found.get("chose", ()))):
        left = f"settings were chosen on seeds {chose}, which are left out"
        lines.append(left if found["publishable"] else f"settings were chosen on these very seeds ({chose}): no result")
    if found.get("prompts") is not None and (few := few_prompts(found["prompts"], 1, "this table")):
        lines.append(few.replace("1 tasks are", "its test tasks are"))
    return lines


def over(values: Sequence[float], measure: str = "") -> dict[str, Any]:
    """Return "mean", "low", "high" (Student's 95% interval, None where the seeds agree or are one) and "values".

    The interval of the measure "success" is cut at 0 and 1: over two or three seeds Student's is wider than that.
    """
    found = mean(values, [1] * len(values))
    low, high = found.low, found.high
    if measure == "success" and low is not None and high is not None:
        low, high = max(0.0, low), min(1.0, high)
    return {"mean": found.value, "low": low, "high": high, "values": list(values)}


def estimate(name: str, measure: Measure, sign: str = "") -> str:
    """Write an estimate with its interval: success in per cent, a difference of it in points."""
    scale, form = (100, f"{sign}.1f") if name == "success" else (1, f"{sign}.3f")
    unit = "" if name != "success" else " points" if sign else "%"
    value = f"{measure.value * scale:{form}}{unit}"
    if measure.low is None or measure.high is None:
        return value
    return f"{value} [{measure.low * scale:{form}}, {measure.high * scale:{form}}]"
