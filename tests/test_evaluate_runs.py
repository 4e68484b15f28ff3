"""Evaluations as a user runs them: policies, files that are gone on with, scores again, comparisons."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from cli_tools import complaint  # noqa: E402
from rollout_tools import counting, roll, scripted  # noqa: E402
from tiny import make_tiny_model  # noqa: E402

from agent_gym import ConfigError, RolloutError  # noqa: E402
from agent_gym.cli.engine import variant  # noqa: E402
from agent_gym.cli.main import main  # noqa: E402
from agent_gym.envs.gsm8k.env import GSM8KEnv  # noqa: E402
from agent_gym.evaluate import EpisodeFile, evaluate, make_specs, summarize  # noqa: E402
from agent_gym.evaluate.report import details  # noqa: E402
from agent_gym.rollout import Budget, Runner, from_record, read_trajectories, write_trajectories  # noqa: E402

GSM8K, HOTPOTQA = "AgentR1/GSM8K-v0", "AgentR1/HotpotQA-v0"
TOKENS: list[str] = []


def records_of(path: Path) -> list[dict[str, Any]]:
    return list(read_trajectories(path))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, *(TOKENS if arguments[0] == "eval" else ()), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module", autouse=True)
def played(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The expert and a random policy, twice at each of eight tasks."""
    # Where the tokenizer is, so that no command has to train one.
    TOKENS[:] = ["--tokenizer", tiny_model]
    path = tmp_path_factory.mktemp("run") / "run.jsonl"
    arguments = ["eval", GSM8K, "--policy", "expert", "random", "--episodes", "8", "--samples", "2"]
    assert main([*arguments, *TOKENS, "--output", str(path)]) == 0
    return path


# Results.


def test_attempts_at_one_task_are_counted_as_what_they_are(tokenizer: Any) -> None:
    """Two of four tasks solved by both attempts, one by one of two."""
    specs = make_specs("Toy/Counting-v0", split="train", episodes=4, group_size=2)
    won = {(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)}

    def act(episode: Any) -> str:
        wins = (episode.spec.index, episode.spec.member) in won
        return str(episode.env.unwrapped.expert_action()) if wins else "stop"

    result = summarize(roll(tokenizer, specs, act))
    assert (result.tasks, result.attempts, result.episodes) == (4, 2, 8)
    assert result.success == 5 / 8 and result.metrics["pass@2"] == 3 / 4
    assert result.metrics["pass^2"] == 2 / 4
    assert result.high - result.low > 0.6, "the interval is that of about four tasks and not of eight"


def test_categories_of_every_environment_reach_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "run.jsonl"
    arguments = ["eval", HOTPOTQA, "AgentR1/ALFWorld-v0", "--split", "train", "--policy", "expert", "--episodes", "6"]
    hotpotqa, alfworld = run(capsys, *arguments, "--output", str(output))["results"]
    assert set(hotpotqa["categories"]) == {"type", "level"} and set(alfworld["categories"]) == {"task_type"}
    assert sum(level["tasks"] for level in hotpotqa["categories"]["level"].values()) == 6
    assert {"env/em", "env/f1", "reward/em", "episode/turns", "tool/search/calls"} <= set(hotpotqa["measures"])
    found = summarize([from_record(record) for record in records_of(output) if record["categories"].get("task_type")])
    assert found.tasks == 6 and "\n\ntask_type " in details("expert", "AgentR1/ALFWorld-v0", found)


def test_the_random_policy_calls_and_answers(played: Path) -> None:
    acts = [[step["action"] for step in r["steps"]] for r in records_of(played) if r["policy"] == "random"]
    assert all(any(word in text for episode in acts for text in episode) for word in ("calculator", "<answer>"))
    assert acts[::2] != acts[1::2], "attempts at a task differ"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (f"{GSM8K}", "--policy expert"),
        (f"{GSM8K} --model m --policy rag", "GSM8K-v0 has no policy 'rag'; known: expert, random, model, notool"),
        (f"{GSM8K} --expert --output a.json", "must end in .jsonl: it gets the episodes. --json prints"),
        (f"{GSM8K} --expert --resume", "name it with --output"),
        ("Toy/World-v0 --expert", "has no expert_action, so that --policy expert cannot play it"),
    ],
)
def test_what_cannot_be_evaluated(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in complaint(capsys, "eval", *words.split())


def test_who_cannot_play_is_found_before_others_play(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"eval Toy/Counting-v0 --policy expert random --episodes 4 --output {tmp_path}/run.jsonl".split()
    assert "has no random_action, so that --policy random cannot play it" in complaint(capsys, *words)
    assert not [*tmp_path.iterdir()]


def test_two_rollouts_cannot_share_a_card(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("run.1", "run.2"):
        line = complaint(capsys, "rollout", GSM8K, "--expert", "--episodes", "1", *TOKENS, "--output", name)
        assert line.endswith(f"--output {name} must end in .jsonl: it gets the episodes") and not [*tmp_path.iterdir()]


def test_turns_and_episodes_that_a_limit_of_tokens_cut_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["eval", GSM8K, "--policy", "expert", "--episodes", "4", *TOKENS]
    said = []
    for limits in ("", "--max_turn_tokens 12", "--max_tokens 400", "--max_turn_tokens 12 --max_tokens 400"):
        assert main([*argv, *limits.split()]) == 0
        said.append([line for line in capsys.readouterr().err.splitlines() if "agent-gym: AgentR1" in line])
    assert said[0] == said[3] == [], "nothing was cut, or both limits were asked for"
    assert re.search(r"\d+ of \d+ turns were cut at 12 tokens \(--max_turn_tokens\)", said[1][-1])
    assert re.search(r"[1-4] of 4 episodes ended at 400 \(--max_tokens\)", said[2][-1])


def test_an_environment_brings_its_limits_of_tokens(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GSM8KEnv, "rollout_budget", {"max_tokens": 9_000, "max_turn_tokens": 900})
    argv = ["eval", GSM8K, "--policy", "expert", "--episodes", "1"]
    settings = [run(capsys, *argv, *more)["settings"] for more in ([], ["--max_tokens", "8000"])]
    assert [(one["max_tokens"], one["max_turn_tokens"]) for one in settings] == [(9_000, 900), (8_000, 900)]


def test_policies_that_are_variants() -> None:
    names = [variant(HOTPOTQA, policy) for policy in ("naive-rag", "react", "direct")]
    assert names == [f"AgentR1/HotpotQA-{name}-v0" for name in ("NaiveRAG", "ReAct", "Direct")]


# Going on.


def keys(path: Path) -> list[tuple[str, int, int]]:
    return sorted((r["policy"], r["spec"]["index"], r["spec"]["member"]) for r in records_of(path))


def test_a_run_goes_on_where_it_was_cut_off(played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = played.read_text().splitlines(keepends=True)
    broken = json.loads(lines[3]) | {"failure": "EnvFailure: the sandbox is dead", "reward": None}
    cut = tmp_path / "cut.jsonl"
    cut.write_text("".join([*lines[:3], json.dumps(broken) + "\n", *lines[4:20], lines[20][:500]]))

    def resume(episodes: int = 8) -> list[str]:
        words = ["eval", GSM8K, "--policy", "expert", "random", "--episodes", str(episodes), "--samples", "2"]
        return [*words, "--output", str(cut), "--resume"]

    report = run(capsys, *resume())
    assert keys(cut) == keys(played) and len(keys(cut)) == 32, "each exactly once, the failed one again"
    before = cut.read_bytes()
    assert before.startswith("".join(lines[:3] + lines[4:20]).encode()), "what was there stays as it was"
    first_actions = [sorted(r["steps"][0]["action"] for r in records_of(path)) for path in (cut, played)]
    assert first_actions[0] == first_actions[1]
    found = [(row["episodes"], row["measures"]["episode/success"]["value"]) for row in report["results"]]
    assert found == [(16, 1.0), (16, 0.0)]
    run(capsys, *resume())
    assert "played with max_turns null, now it is 3" in complaint(capsys, *resume(), "--max_turns", "3")
    kwargs = ["--env_kwargs", '{"max_turns": 3}']
    assert 'played with env_kwargs {}, now it is {"max_turns": 3}' in complaint(capsys, *resume(), *kwargs)
    assert "which this run would not play" in complaint(capsys, *resume(7), *TOKENS)
    assert cut.read_bytes() == before, "nothing was left to play, and a refusal changes nothing"
    run(capsys, *resume(9))
    assert keys(cut) == sorted([*keys(played), *((p, 8, k) for p in ("expert", "random") for k in range(2))])


def test_a_file_goes_on_with_the_same_weights_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, output = tmp_path / "model", tmp_path / "run.jsonl"

    def words(episodes: int) -> list[str]:
        playing = f"--model {make_tiny_model(model, seed=episodes)} --engine transformers --max_turn_tokens 2"
        return ["eval", GSM8K, *playing.split(), "--episodes", str(episodes), "--output", str(output), "--resume"]

    assert main(words(1)) == 0
    capsys.readouterr()
    assert "was played with model_sha256" in complaint(capsys, *words(2))
    record = records_of(output)[0]
    del record["settings"]["model_sha256"]  # as in a file of 0.2
    write_trajectories(output, [record])
    assert main(words(2)) == 0
    assert ["model_sha256" in one["settings"] for one in records_of(output)] == [False, True]


def test_a_file_through_python(tokenizer: Any, tmp_path: Path) -> None:
    policy, temperatures = scripted(tokenizer), set()
    submit = policy.submit
    policy.submit = lambda request: (temperatures.add(request.params.temperature), submit(request))[1]  # type: ignore[method-assign]
    runner = Runner(policy, tokenizer, Budget(40, 600))
    path = tmp_path / "new" / "run.jsonl"
    specs = counting(4, max_turns=6)
    result = evaluate(runner, specs[:2], output=path)
    stored = summarize([from_record(record) for record in records_of(path)])
    assert (stored.success, stored.reward, stored.tasks) == (result.success, result.reward, 2)
    again = evaluate(runner, specs, output=path, resume=True)
    assert (result.episodes, again.episodes) == (2, 4) and len(records_of(path)) == 4
    assert temperatures == {0.0}, "greedily, unless another temperature is given"
    with pytest.raises(ConfigError, match="played with temperature 0.0, now it is 1.0"):
        evaluate(runner, specs, output=path, resume=True, temperature=1.0)
    for other, words in (
        (counting(4, max_turns=2), r'env_kwargs \{"max_turns": 6\}, now it is \{"max_turns": 2\}'),
        ([dataclasses.replace(one, seed=9) for one in specs], r"seed \d, now it is 9"),
    ):
        with pytest.raises(ConfigError, match=words):
            evaluate(runner, other, output=path, resume=True)
    runner.close()
    path.write_text("")
    EpisodeFile(path).close()
    assert not path.exists(), "a file without an episode would look like a result"


def test_a_file_whose_failed_episodes_fail_again_has_its_report(tokenizer: Any, tmp_path: Path) -> None:
    runner, specs = Runner(scripted(tokenizer), tokenizer), counting(4, "Toy/Broken-v0", tasks=(1, 2))
    for resume in (False, True):
        result = evaluate(runner, specs, output=tmp_path / "run.jsonl", resume=resume)
        assert (result.episodes, result.failed) == (2, 2)
    with pytest.raises(RolloutError, match="all 2 episodes failed"):
        evaluate(runner, specs[1:3], output=tmp_path / "failed.jsonl")
    runner.close()


# Scores again.


def test_stored_scores_are_those_of_today_and_other_weights_others(
    played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rescore", str(played)]) == 0
    assert "answers otherwise in 0 of them, the score is another in 0" in capsys.readouterr().out
    output = tmp_path / "new.jsonl"
    found = run(capsys, "rescore", str(played), "--reward_weights", '{"format": 0.5}', "--output", str(output))
    assert found["scores_differ"] >= 16 and found["world_differs"] == 0
    assert found["now"]["reward/format"] == pytest.approx(5 * found["stored"]["reward/format"])
    assert found["now"]["episode/success"] == found["stored"]["episode/success"]
    assert all(r["spec"]["env_kwargs"]["reward_weights"] == {"format": 0.5} for r in records_of(output))
    assert main(["rescore", str(output)]) == 0, "the new file is consistent"
    assert "no reward term ['formt']" in complaint(capsys, "rescore", str(played), "--reward_weights", '{"formt": 1}')
    for taken in (played, output):
        before = taken.read_bytes()
        assert "holds episodes, which would be lost" in complaint(
            capsys, "rescore", str(played), "--output", str(taken)
        )
        assert taken.read_bytes() == before
    card = output.with_suffix(".card.json")
    card.write_text("{}")
    output.unlink()
    assert "is the card of other scores" in complaint(capsys, "rescore", str(played), "--output", str(output))
    # With fewer turns the world itself is another.
    short = tmp_path / "short.jsonl"
    assert main(["rescore", str(played), "--env_kwargs", '{"max_turns": 1}', "--output", str(short)]) == 1
    assert "steps early" in capsys.readouterr().out
    for then, now in zip(records_of(played), records_of(short), strict=True):
        turns = "turns" if len(then["steps"]) > 1 else then["truncation"]
        assert (now["truncated"], now["truncation"]) == (turns is not None, turns), "what ends there is cut off"


def test_changed_records_are_found(played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = records_of(played)
    records[0]["steps"][-1]["reward"] += 1
    records[0]["reward"] += 1
    records[1]["steps"][0]["observation"] = "43"
    records[2] |= {"failure": "EnvFailure: gone", "reward": None}
    write_trajectories(tmp_path / "bad.jsonl", records)
    assert main(["rescore", str(tmp_path / "bad.jsonl")]) == 1
    text = capsys.readouterr().out
    assert "31 episodes played again, 1 failed" in text
    assert "answers otherwise in 1 of them, the score is another in 1" in text


def test_attempts_of_two_policies_are_not_those_of_one(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "rescore", str(played))
    # Twice at each task the expert always solves it, and the random policy never.
    assert found["now"]["pass@2"] == found["now"]["episode/success"] == 0.5
    assert found["stored"]["pass@2"] == 0.5 and "pass@4" not in found["now"]


# Comparisons.


def test_two_policies_are_compared_task_by_task(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = run(capsys, "compare", str(played))
    assert (found["a"], found["b"], found["paired"]) == ("expert", "random", 8)
    assert found["measures"]["episode/success"]["difference"] == -1.0
    assert found["measures"]["episode/success"]["p"] == 2 / 2**8
    assert main(["compare", str(played)]) == 0
    assert "8 tasks paired, 8 distinct prompts, 0 of a alone, 0 of b alone" in capsys.readouterr().out


def test_files_are_compared_on_what_they_share(
    played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    once = [record for record in records_of(played) if record["spec"]["member"] == 0]
    other = [{**r, "policy": "expert"} for r in once if r["policy"] == "random" and r["spec"]["index"] > 1]
    files = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    write_trajectories(files[0], [r for r in once if r["policy"] == "expert" and r["spec"]["index"] < 6])
    write_trajectories(files[1], other)
    (found,) = run(capsys, "compare", *files)
    assert (found["a"], found["b"]) == ("expert in a", "expert in b"), "named by their files"
    assert (found["paired"], found["only_a"], found["only_b"]) == (4, 2, 2)
    success = found["measures"]["episode/success"]
    assert success["test"] == "mcnemar" and success["p"] == 2 / 2**4 and success["high"] < 0
    assert "nothing to compare" in complaint(capsys, "compare", files[0])
    for records, words in (
        ([{**r, "messages": [{"role": "user", "content": "another"}]} for r in other], "is not the same in both runs"),
        ([r for r in other if r["spec"]["index"] > 5], "no task of AgentR1/GSM8K-v0 in common"),
        ([{**r, "spec": r["spec"] | {"env_id": HOTPOTQA}} for r in other], "nothing to compare"),
    ):
        write_trajectories(files[1], records)
        assert words in complaint(capsys, "compare", *files)


def test_the_page_explains_every_field_of_a_line(played: Path) -> None:
    page = (Path(__file__).resolve().parents[1] / "docs" / "evaluate.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page.partition("## Files")[2], flags=re.M))
    record = records_of(played)[0]
    # Text episodes have no images, neither as a field nor in their rows.
    names = [name for name in rows if name != "failure_details"]  # this episode did not fail
    assert names == [*record, "images"], "every field, in the order of the file"
    for field, parts in (("spec", record["spec"]), ("steps", record["steps"][0]), ("rows", record["rows"][0])):
        shown = {"images"} if field == "rows" else set()
        assert set(re.findall(r"`(\w+)`", rows[field])) == set(parts) | shown
    assert all(set(call) == {"name", "arguments", "error", "seconds"} for call in record["steps"][0]["tool_calls"])
