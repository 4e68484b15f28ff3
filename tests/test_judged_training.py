"""Training and commands with a judge: its reward, its costs in logs and cards, and calibration against labels."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from judge_tools import Asked, judged_by, serving
from judge_tools import JudgeServer as Server

from agent_gym import ConfigError, RolloutError
from agent_gym.cli.main import main
from agent_gym.judges import Judge
from agent_gym.judges.calibrate import Labelled, calibrate, read_labels
from agent_gym.judges.questions import Case, JudgedTurn, Question

pytest.importorskip("trl")

from trainer_tools import ENV, logged, make_trainer, model_folder, played_by, trained  # noqa: E402

from agent_gym.trainers import task_dataset  # noqa: E402
from agent_gym.trainers.batch import training_episode  # noqa: E402


def vowels(text: str) -> float:
    return sum(letter in "aeiou" for letter in text) / max(1, len(text))


def by_vowels(asked: Asked) -> list[int]:
    return [round(10 * vowels(" ".join(asked.of("turn"))))]


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_trainer_learns_from_the_judge_too(tmp_path: Path, staleness: int) -> None:
    with judged_by(by_vowels, weight=2.0) as (judge, server):
        more = {"eval_dataset": task_dataset(ENV, split="test", tasks=2), "eval_strategy": "steps", "eval_steps": 2}
        trainer, _, episodes = trained(tmp_path, judge=judge, max_staleness=staleness, max_steps=2, **more)
        assert all("judge" in e.reward_terms for e in episodes) and (len(episodes) == 18 or staleness)
        for e in episodes:
            assert e.reward == pytest.approx(sum(e.reward_terms.values()))
        assert len(logged(trainer, "reward/judge")) == 2 == len(logged(trainer, "judge/requests"))
        assert logged(trainer, "eval_reward/judge")[0] > 0.0
        spent, seen = json.loads((tmp_path / "card.json").read_text())["training"], len(server.seen)
        assert spent["spent"]["judge_requests"] == seen == judge.spent()["requests"]
        assert spent["spent"]["judge_read_tokens"] == 100 * seen and spent["judge"] == judge.describe()


def test_thoughts_are_credited_to_their_steps(tmp_path: Path) -> None:
    def rule(asked: Asked) -> list[int]:
        return [number for turn in range(asked.count // 2) for number in (10, 10 if turn else 0)]

    with judged_by(rule, "reasoning") as (judge, _):
        _, batches, episodes = trained(tmp_path, judge=judge, max_steps=1, process_norm="none", outcome_weight=0.0)
    for episode in episodes:
        steps = len(episode.steps)
        process = training_episode(episode, 0).process
        assert process == pytest.approx([0.0, *[1 / steps] * (steps - 1)])
    assert any(len(episode.steps) > 1 for episode in episodes) and batches[0]["advantages"].abs().sum() > 0


def test_a_judge_that_is_down_stops_a_run_and_pays_nobody(tmp_path: Path) -> None:
    with judged_by(lambda asked: 500) as (judge, server):
        trainer = make_trainer(tmp_path, judge=judge)
        with pytest.raises(RolloutError, match="all 8 episodes failed; the first: JudgeFailure"):
            trainer.train()
        server.rule = lambda asked: by_vowels(asked) if len(" ".join(asked.of("turn"))) % 2 else "nonsense"
        trainer, batches, episodes = trained(tmp_path / "b", judge=judge, max_steps=1)
    failed = sum(bool(e.failure) for e in episodes)
    assert 0 < failed < 8 and logged(trainer, "rollout/failed") == [failed / 8] and trainer.spent["failed"] == failed
    assert batches[0]["advantages"].isfinite().all()


class AnyWords(Question):
    """Takes any answer for a verdict: a model of random weights writes no JSON."""

    def read(self, answer: str, attempt: int) -> list[int]:
        return [round(10 * vowels(answer))]


class ByWords:
    compares = per_step = False

    def questions(self, cases: Sequence[Case]) -> list[Question]:
        return [AnyWords((*cases[0].before(), *cases[0].after()), "How good is it?", 1, 10)]

    def scores(self, cases: Sequence[Case], verdicts: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[verdicts[0][0] / 10]]


@pytest.mark.slow
@pytest.mark.vllm
def test_vllm_samples_the_policy_and_judges_it(tmp_path: Path) -> None:
    """Logprobs of the policy stay the trainer's beside a judge's prompts; the judge answers with the newest weights."""
    pytest.importorskip("vllm")
    judge = Judge(ByWords(), "engine", max_answer_tokens=12)
    wide = {"vllm_max_model_length": 2048, "max_num_seqs": 16}
    trainer = make_trainer(
        tmp_path, policy=None, model=model_folder(), use_vllm=True, judge=judge, learning_rate=5e-3, **wide
    )
    episodes, asked, sampled = played_by(trainer), list[Any](), trainer.runner.policy.submit

    def submit(request: Any) -> None:
        asked.append(request)
        sampled(request)

    trainer.runner.policy.submit = submit
    trainer.train()
    trainer.runner.policy.close()
    assert len(episodes) == 24 and all(0.0 <= e.reward_terms["judge"] <= 1.0 for e in episodes)
    questions = [request for request in asked if request.episode is None]
    assert len(questions) == judge.spent()["requests"] > 0 and all(q.params.temperature == 0 for q in questions)
    assert judge.spent()["read_tokens"] == sum(len(q.prompt_ids) for q in questions)
    gaps = logged(trainer, "sampling/logp_difference_max")
    assert len(gaps) == 3 and max(gaps) < 1e-3


@pytest.mark.parametrize(
    ("options", "message"), [({"num_generations": 1}, "must be 2 or more"), ({}, "no model server")]
)
def test_judges_that_cannot_work_are_found_at_the_beginning(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        options |= {"advantage_estimator": "reinforce_pp"} if options else {}
        make_trainer(tmp_path, judge=Judge.ranking("http://127.0.0.1:9/v1"), **options)


def test_commands_take_a_judge_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(lambda asked: [4, 8])
    with serving(server) as url:
        settings = tmp_path / "judge.toml"
        settings.write_text(
            f'kind = "rubric"\nendpoint = "{url}"\n[criteria]\n"It is right." = 3\n"It is short." = 1\n'
        )
        run, again = str(tmp_path / "run.jsonl"), str(tmp_path / "again.jsonl")
        expert = ["eval", "AgentR1/GSM8K-v0", "--policy", "expert", "--episodes", "3", "--judge", str(settings)]
        assert main([*expert, "--output", run]) == 0
        assert "reward/judge" in capsys.readouterr().out and len(server.seen) == 3
        records = [json.loads(line) for line in Path(run).read_text().splitlines()]
        assert [record["reward_terms"]["judge"] for record in records] == [0.5] * 3
        (card,) = json.loads((tmp_path / "run.card.json").read_text())["cards"]
        assert card["judge"]["model"] == "m" and card["judge_spent"]["requests"] == 3
        assert main(["rescore", run]) == 0, "what the judge has paid stays"
        server.rule = lambda asked: [8, 8]
        assert main(["rescore", run, "--judge", str(settings), "--output", again]) == 0
        records = [json.loads(line) for line in Path(again).read_text().splitlines()]
        assert [record["reward_terms"]["judge"] for record in records] == [0.8] * 3
        assert main(["rescore", again]) == 0, "the new file is consistent"
        settings.write_text(f'kind = "ranking"\nendpoint = "{url}"\n')
        assert main(expert) == 2 and "needs at least two of each" in capsys.readouterr().err
        assert main(["rescore", run, "--judge", str(settings)]) == 2 and "no task has two" in capsys.readouterr().err
        expert[3:4] = ["expert", "random"]
        two = str(tmp_path / "two.jsonl")
        assert main([*expert[:-2], "--output", two]) == 0
        assert main(["rescore", two, "--judge", str(settings)]) == 2, "each policy has tried each task once"
    assert main(expert) == 2, "a script has no two attempts"


# Calibration.


def labelled(n: int, members: int = 4) -> list[Labelled]:
    """Right answers say "yes" and are no longer or shorter than wrong ones."""
    cases = []
    for task in range(n):
        for member in range(members):
            label = (task + member) % 2
            text = ("yes" if label else "no ") + "." * (10 * member + task)
            cases.append(Labelled(Case((("user", f"task {task}"),), (JudgedTurn(text, ""),)), float(label), task))
    return cases


def by_label(asked: Asked) -> list[int]:
    if asked.count == 1 and asked.most == 10:
        return [9 if "yes" in asked.of("turn 1")[0] else 2]
    good = ["yes" in text for i in range(9) for text in asked.of(f"assistant {i + 1}, turn 1")]
    return [90 if one else 10 for one in good] if asked.most == 100 else [0 if good[0] == good[1] else 2 - good[0]]


@pytest.mark.parametrize("kind", ["rubric", pytest.param("pairwise", marks=pytest.mark.slow), "ranking"])
def test_a_perfect_judge(kind: str) -> None:
    with judged_by(by_label, kind) as (judge, server):
        found = calibrate(judge, labelled(6))
    assert found.accuracy and found.kappa and found.spearman
    assert (found.accuracy.value, found.accuracy.high, found.kappa.value, found.failed) == (1.0, 1.0, 1.0, 0)
    assert found.spearman.value > 0.85 and found.accuracy.low < 1.0
    assert found.length_bias is None or abs(found.length_bias.value) < 0.3
    if kind == "rubric":
        assert found.position_bias is None and found.length_bias is None, "nothing is left when the label is known"
    else:
        assert found.position_bias and found.position_bias.value == 0.0
    assert found.spent["requests"] == len(server.seen) == {"rubric": 24, "pairwise": 72, "ranking": 12}[kind]


def test_biases_are_measured() -> None:
    with judged_by(lambda asked: [1], "pairwise") as (judge, _):
        found = calibrate(judge, labelled(6))
    assert found.position_bias and found.position_bias.value == 1.0 and found.accuracy
    assert found.accuracy.value == 0.5 and found.spearman is None, "all scores are the same"
    with judged_by(lambda asked: [100, 60, 30, 0], "ranking") as (judge, _):
        assert (turned := calibrate(judge, labelled(6)).position_bias) and turned.value == 1.0
        turned = calibrate(judge, [*labelled(6), *labelled(6)]).position_bias
        assert turned and turned.value == 1.0, "equal episodes are no pair, as in pairwise"
    with judged_by(lambda asked: [min(10, len(asked.of("turn 1")[0]) // 5)]) as (judge, _):
        found = calibrate(judge, labelled(8))
    assert found.length_bias and found.length_bias.value > 0.95 and found.length_bias.low > 0.9  # type: ignore[operator]
    assert found.kappa and abs(found.kappa.value) < 0.3
    with judged_by(lambda asked: "no idea" if "yes" in asked.of("turn 1")[0] else [3]) as (judge, _):
        found = calibrate(judge, labelled(4))
    assert (found.labelled, found.failed) == (16, 8) and "no verdict under the mark" in found.failures[0]


def test_the_command_reads_episodes_and_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels, output = tmp_path / "labels.jsonl", tmp_path / "found.json"
    run = tmp_path / "run.jsonl"
    assert main(["rollout", "AgentR1/GSM8K-v0", "--expert", "--episodes", "2", "--output", str(run)]) == 0
    # JSON may hold signs at which str.splitlines breaks a line, and a file blank lines.
    talk = [{"role": "user", "content": "?\u2028\x85"}, {"role": "assistant", "content": "wrong"}]
    line = json.dumps({"messages": talk, "label": 0}, ensure_ascii=False)
    labels.write_text(f"{run.read_text()}\n{line}\n", encoding="utf-8")
    with labels.open(encoding="utf-8") as lines:
        found = read_labels(lines, "labels")
    assert [one.label for one in found] == [1.0, 1.0, 0.0] and len({one.group for one in found}) == 3
    capsys.readouterr()
    with serving(Server(lambda asked: [1 if "wrong" in asked.of("turn 1")[0] else 8])) as url:
        settings = tmp_path / "judge.yaml"
        settings.write_text(f"kind: rubric\nendpoint: {url}\ncriteria: {{It is right.: 1}}\n")
        assert main(["calibrate", str(settings), str(labels), "--output", str(output)]) == 0
    shown = capsys.readouterr().out
    assert "rubric by m: 3 episodes, 0 without a verdict" in shown and "accuracy       1.000" in shown
    assert json.loads(output.read_text())["accuracy"]["value"] == 1.0
    labels.write_text('{"messages": []}\n')
    assert main(["calibrate", str(settings), str(labels)]) == 2
    assert "line 1: no labelled episode: KeyError('label')" in capsys.readouterr().err
    labels.write_text(f"{json.dumps({'messages': talk, 'label': math.nan})}\n")  # as pandas writes a missing one
    assert main(["calibrate", str(settings), str(labels)]) == 2
    assert "line 1: no labelled episode: ValueError('label is nan')" in capsys.readouterr().err


@pytest.mark.slow
def test_a_tiny_model_learns_what_only_the_judge_says(tmp_path: Path) -> None:
    """The environment pays nothing; the judge ranks the members of a group by their share of vowels."""

    def rule(asked: Asked) -> list[int]:
        texts = [" ".join(asked.of(f"assistant {i + 1}, turn")) for i in range(asked.count)]
        return [round(100 * vowels(text)) for text in texts]

    with judged_by(rule, "ranking") as (judge, server):
        nothing = {"reward_weights": {"letters": 0.0, "length": 0.0}, "max_turns": 1}
        steps = {"max_steps": 25, "per_device_train_batch_size": 64, "num_generations": 8, "learning_rate": 1e-2}
        trainer = make_trainer(tmp_path, judge=judge, policy=None, env_kwargs=nothing, **steps)
        trainer.train()
    found = logged(trainer, "reward/judge")
    assert logged(trainer, "reward") == pytest.approx(found) and sum(found[-5:]) > 1.3 * sum(found[:5])
