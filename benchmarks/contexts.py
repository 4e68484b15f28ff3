"""What a context policy costs in training: rows, tokens and step time on the same episodes.

    python benchmarks/contexts.py            # about a minute

A script plays the same 32 tasks of the embedded GSM8K under each context policy: 11 calls of the calculator, each with
a line of thought, and then the answer. It says the same whatever it is shown, so that only the rows differ, and under
`summarize` the summaries, which are steps of their own. Then each side makes an optimizer step (tiny model, float32,
micro-batches of 32 rows) by turns, and the columns are:

    rows            contexts the policy was trained in, per episode
    tokens          tokens that the forward and backward pass read, per episode, padding not counted
    sampled         tokens that are trained on, the same for all, but for the summaries
    prompt tokens   tokens of all prompts, per episode: what the engine reads, most of it from its cache while appending
    step            seconds of the optimizer step, median, and as a ratio to append
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import _common

PACKAGES = ("agent-gym", "trl", "transformers", "torch", "gymnasium")
TURNS = 12
ENV, BARE = "AgentR1/GSM8K-v0", {"system_prompt": "", "max_turns": TURNS}
CONTEXTS = ("append", "window:3", "budget:384", "summarize:384", "template", "rebuild")
THOUGHT = "First I need the next number, so I compute it with the calculator."
SUMMARY = "I used the calculator and go on with the next step."


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    facts = _common.provenance(PACKAGES)
    _common.print_provenance(facts)
    n, repeats = (4, 1) if options.quick else (32, options.repeats)
    with tempfile.TemporaryDirectory() as folder:
        sides = make_sides(Path(folder), n)
        times: dict[str, list[float]] = {context: [] for context in sides}
        for _ in range(repeats + 1):  # the first round warms up
            for context, trainer in sides.items():
                begin = time.perf_counter()
                trainer.training_step(trainer.model, [])
                times[context].append(time.perf_counter() - begin)
                trainer.model.zero_grad()
    rows, plain = [], _common.median(times["append"][1:])
    for context, trainer in sides.items():
        episodes, batch = trainer.played, trainer._generated
        seconds = _common.median(times[context][1:])
        read = int(batch["attention_mask"][batch["episode_of"] >= 0].sum())
        asked = sum(step.start for episode in episodes for step in episode.steps)
        n_steps = sum(len(episode.steps) for episode in episodes)
        counts = [n_steps, int((batch["episode_of"] >= 0).sum()), read, int(batch["action_mask"].sum()), asked]
        rows.append([context, *(count / n for count in counts), seconds, seconds / plain])
    head = ["context", "steps", "rows", "tokens", "sampled", "prompt tokens", "step, s", "ratio"]
    _common.print_table(head, rows)
    _common.write_json(options.json, facts=facts, head=head, rows=rows, times=times)


def make_sides(folder: Path, n: int) -> dict[str, Any]:
    """Make a trainer per context policy and let it play; its batch stays in place for the steps that are timed."""
    from transformers import AutoTokenizer

    from agent_gym.chat import ChatRenderer
    from agent_gym.policies import ScriptedPolicy
    from agent_gym.rollout.contexts import REQUEST
    from agent_gym.speedrun.tiny import make_tiny_model
    from agent_gym.trainers import AgentGRPOConfig, AgentGRPOTrainer, task_dataset

    def act(episode: Any) -> str:
        env, acts = episode.env.unwrapped, sum(step.kind == "act" for step in episode.steps)
        if episode.messages[-1]["content"].endswith(REQUEST):
            return SUMMARY
        if acts + 1 == TURNS:
            return env.expert_action("direct")
        call = env.parser.render("calculator", {"expression": f"{acts + 3} * 7 + {episode.spec.index}"})
        return f"{THOUGHT}\n{call}"

    model = str(make_tiny_model(folder / "model", ENV, BARE))
    tokenizer = AutoTokenizer.from_pretrained(model)
    tasks = task_dataset(ENV, BARE, tasks=n)
    sides = {}
    for context in CONTEXTS:
        args = AgentGRPOConfig(
            str(folder / "run"), per_device_train_batch_size=n, num_generations=n, micro_batch_size=32,
            context=context, max_turn_tokens=64, max_episode_tokens=1024, trajectories_per_step=0, bf16=False,
            use_cpu=True, gradient_checkpointing=False, report_to="none", save_strategy="no", disable_tqdm=True,
            model_init_kwargs={"dtype": "float32"}, max_steps=1,
        )  # fmt: skip
        policy = ScriptedPolicy(act, ChatRenderer.of(tokenizer).encode_action)
        trainer: Any = AgentGRPOTrainer(
            model, args=args, train_dataset=tasks, policy=policy, processing_class=tokenizer
        )
        trainer.num_generations = 1  # each episode a task of its own: this compares costs and learns nothing
        trainer.current_gradient_accumulation_steps = 1
        play = trainer.rollout
        trainer.rollout = lambda *given, play=play, side=trainer: setattr(side, "played", play(*given)) or side.played
        rows = list(tasks)
        batch = trainer._generate_and_score_completions(rows)
        trainer._generate_and_score_completions = lambda inputs, batch=batch: batch
        trainer.train_dataset = tasks
        sides[context] = trainer
    return sides


if __name__ == "__main__":
    main()
