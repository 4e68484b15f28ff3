"""`agent-gym rollout ENV`: play episodes, write the trajectories, say how it went and how fast."""

from __future__ import annotations

from collections.abc import Sequence

from agent_gym.cli.episodes import add_limits, add_output, add_player, check_player, open_file, open_runner, play
from agent_gym.cli.parser import Parser, positive
from agent_gym.evaluate import EvalResult, make_specs, summarize
from agent_gym.rollout import RolloutStats


def main(argv: Sequence[str]) -> int:
    """Play and report."""
    parser = Parser("rollout", "Let a model, or the environment's expert, play episodes and write the trajectories.")
    parser.add_argument("env_id", metavar="ENV", help="environment id, for example AgentR1/GSM8K-v0")
    parser.add_argument("--episodes", type=positive, default=8, metavar="N", help="number of tasks")
    parser.add_argument("--group_size", type=positive, default=1, metavar="G", help="attempts per task")
    parser.add_argument("--split", default="train", help="split to take the tasks from, its first one first")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the sampling; 0 is greedy")
    add_output(parser, "trajectories.jsonl")
    add_player(parser)
    add_limits(parser)
    arguments = parser.parse(argv)
    (player,) = check_player(arguments, [arguments.env_id])
    specs = make_specs(
        arguments.env_id,
        arguments.env_kwargs,
        split=arguments.split,
        episodes=arguments.episodes,
        group_size=arguments.group_size,
        seed=arguments.seed,
    )
    with open_file(arguments) as file, open_runner(arguments, arguments.env_id, player.engine) as (tokenizer, runner):
        episodes = play(arguments, player.name, specs, file, runner, tokenizer)
    print("\n".join([*_report(summarize(episodes)), *_speed(runner.stats), f"trajectories: {arguments.output}"]))
    return 0


def _report(result: EvalResult) -> list[str]:
    lines = [f"success: {result}", f"reward: {result.reward:.3f}"]
    lines += [f"failed episodes: {result.failed}"] if result.failed else []
    lines += [f"  {line}" for line in result.failures]
    return lines + [f"  {name}: {value:.3g}" for name, value in sorted(result.metrics.items())]


def _speed(stats: RolloutStats) -> list[str]:
    parts = {"engine": stats.engine_seconds, "waiting for envs": stats.wait_seconds, "loop": stats.overhead_seconds}
    split = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in parts.items())
    return [
        f"throughput: {stats.tokens_per_second:.0f} tokens/s "
        f"({stats.sampled_tokens} tokens in {stats.wall_seconds:.2f} s: {split})"
    ]
