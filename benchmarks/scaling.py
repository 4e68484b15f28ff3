"""What a rollout costs per step, from 64 episodes in flight to 4,096, and what an idle episode occupies.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --quick
    python benchmarks/scaling.py --tree OTHER    # the same of another checkout, to compare with

The engine is simulated: it holds every request and, each time it is asked, finishes those that it has had for eight
rounds, with tokens that were made beforehand; a round takes half a millisecond without Python's lock. All else is real:
environments (GSM8K, embedded), templates, tokenizer, threads, deadlines, recording. An episode has eight turns: seven
calls of the calculator, and the answer.

Columns: `in flight` episodes, all alive at once; `CPU ms per step` and `per episode` of the whole process, CPU time;
`loop ms per step` of the thread that drives the engine, which no other core can share; `ratio` of the CPU time per step
to that of the first row: 1 where the cost grows linearly; `KB per episode` of Python memory after all were reset and
before their first turn, environment included (tracemalloc, in a run of its own), and `resident`, what the process
occupies more by then, per episode, its thread included. `waiting`: the same where each step of an environment waits 0
to 200 ms without Python's lock: CPU time per step, its ratio to the first row, and wall-clock seconds. The last lines
give the exponents of the total cost between the first size and the last; 1 is linear.

The second table has long observations, as of a search or a terminal: a turn of 64 sampled and about 1,024 observed
tokens. `driver` is the thread that drives the engine, `lock` all that holds Python's lock, and `encoder` the compiled
part of the tokenizer, which does not hold it, so that the threads of environments share it among the cores. `tokens/s`
are sampled tokens per second that one process sustains with one core and with four: 64 / max(lock, all / cores).
"""

from __future__ import annotations

import math
import random
import resource
import sys
import time
import tracemalloc
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).parent))
if "--tree" in sys.argv:  # before anything is imported from there
    sys.path.insert(0, sys.argv[sys.argv.index("--tree") + 1])
import _common
import gymnasium

from agent_gym import Reply, TextEnv
from agent_gym.chat import ChatRenderer
from agent_gym.policies import Generation, Request
from agent_gym.rollout import Budget, EpisodeSpec, Runner

ENV, TURNS, ROUNDS = "AgentR1/GSM8K-v0", 8, 8
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "48/2"}}\n</tool_call>'
SIZES = (64, 256, 1024, 4096)
BUDGET = Budget(max_turn_tokens=512, max_tokens=65_536, max_seconds=3600.0)
TALK = "Scaling/Talk-v0"
OBSERVED = "result {} " + "the old forest near Kyiv had 17 quick foxes and a lazy dog " * 68


class Engine:
    """Decodes nothing: a request is done after `ROUNDS` rounds."""

    continuous = True
    n_turns = TURNS

    def __init__(self, renderer: ChatRenderer) -> None:
        self.turns = [renderer.encode_action(text) for text in (CALL, "<answer>24</answer>")]
        self.running: deque[tuple[int, Request]] = deque()
        self.round = 0

    @property
    def pending(self) -> int:
        return len(self.running)

    def submit(self, request: Request) -> None:
        self.running.append((self.round + ROUNDS, request))

    def poll(self) -> list[Generation]:
        time.sleep(0.0005)  # an engine that never let go of Python's lock would starve the threads
        self.round += 1
        done = []
        while self.running and self.running[0][0] <= self.round:
            request = self.running.popleft()[1]
            episode: Any = request.episode
            ids = self.turns[len(episode.steps) == self.n_turns - 1]
            done.append(Generation(request.id, list(ids), [0.0] * len(ids), "stop"))
        return done

    def abort(self, request_id: int) -> None:
        self.running = deque(item for item in self.running if item[1].id != request_id)

    def close(self) -> None:
        self.running.clear()


class Gate(Engine):
    """Begins when it has a request of every episode, sees how much memory there is, and lets everybody answer."""

    n_turns = 1

    def __init__(self, renderer: ChatRenderer, size: int) -> None:
        super().__init__(renderer)
        self.size, self.held, self.resident = size, 0, 0

    def poll(self) -> list[Generation]:
        if not self.held:
            if len(self.running) < self.size:
                time.sleep(0.0005)
                return []
            self.held, self.resident = tracemalloc.get_traced_memory()[0] + 1, resident()
        return super().poll()


gymnasium.register(TALK, entry_point="__main__:Talk")


def main() -> None:
    parser = _common.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rollouts per size; the best one counts")
    parser.add_argument("--tree", metavar="FOLDER", help="a checkout whose agent_gym is measured")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N", help="episodes in flight")
    options = parser.parse_args()
    sizes, rounds = ((8, 32), 1) if options.quick else (options.sizes, options.rounds)
    facts = _common.provenance(("agent-gym", "gymnasium", "transformers"))
    _common.print_provenance(facts)

    from agent_gym.speedrun.tiny import demonstration_texts, make_tiny_tokenizer

    renderer = ChatRenderer.of(make_tiny_tokenizer(demonstration_texts(ENV, episodes=300)))
    play(renderer, 8)  # what is imported, cached and compiled on first use is no cost of a step
    results = []
    for size in sizes:
        cpu, loop = (min(times) for times in zip(*[play(renderer, size) for _ in range(rounds)], strict=True))
        grown = -resident()
        gate = Gate(renderer, size)
        play(renderer, size, gate)
        waiting = []
        with slow_steps():
            for _ in range(rounds):
                wall = time.perf_counter()
                spent, _ = play(renderer, size, workers=32)
                waiting.append((spent, time.perf_counter() - wall))
        results.append(
            {"episodes": size, "cpu": cpu, "loop": loop, "resident": grown + gate.resident}
            | {"waiting_cpu": min(waiting)[0], "waiting_wall": min(waiting)[1], "bytes": memory(renderer, size)}
        )
    per_episode = {name: results[0][name] / results[0]["episodes"] for name in ("cpu", "waiting_cpu")}
    rows = [
        [
            str(one["episodes"]),
            1e3 * one["cpu"] / one["episodes"] / TURNS,
            1e3 * one["cpu"] / one["episodes"],
            1e3 * one["loop"] / one["episodes"] / TURNS,
            one["cpu"] / one["episodes"] / per_episode["cpu"],
            one["bytes"] / one["episodes"] / 1e3,
            one["resident"] / one["episodes"] / 1e3,
            1e3 * one["waiting_cpu"] / one["episodes"] / TURNS,
            one["waiting_cpu"] / one["episodes"] / per_episode["waiting_cpu"],
            one["waiting_wall"],
        ]
        for one in results
    ]
    head = (
        "in flight|CPU ms per step|per episode|loop ms per step|ratio|KB per episode|resident|waiting ms|ratio|wall s"
    )
    _common.print_table(head.split("|"), rows)
    observed = [long_observations(renderer, size) for size in sizes[:2]]
    _common.print_table("in flight|driver ms|lock ms|encoder ms|tokens/s, 1 core|4 cores".split("|"), observed)
    for name in ("cpu", "waiting_cpu"):
        print(f"exponent    {exponent(results[0], results[-1], 'episodes', name):.2f} of {name}")
    facts["load_after"] = _common.load()
    print(f"load after  {facts['load_after']}")
    _common.write_json(options.json, facts=facts, results=results, observed=observed)


def exponent(first: Mapping[str, float], last: Mapping[str, float], size: str, cost: str) -> float:
    """Return the power of its size with which a cost grows."""
    return math.log(last[cost] / first[cost]) / math.log(last[size] / first[size])


def play(
    renderer: ChatRenderer, size: int, engine: Engine | None = None, workers: int = 8, env_id: str = ENV
) -> tuple[float, float]:
    """Play so many episodes at once; return CPU seconds of the process and of this thread."""
    specs = [EpisodeSpec(env_id, seed=seed) for seed in range(size)]
    engine = engine or Engine(renderer)
    runner = Runner(engine, renderer, BUDGET, workers=workers, max_live=size)
    try:
        cpu, loop = time.process_time(), time.thread_time()
        episodes = runner.run(specs)
        spent = time.process_time() - cpu, time.thread_time() - loop
    finally:
        runner.close()
    if {(len(episode.steps), episode.terminated) for episode in episodes} != {(engine.n_turns, True)}:
        raise SystemExit(f"not every episode had {engine.n_turns} turns")
    return spent


@contextmanager
def slow_steps() -> Iterator[None]:
    """Let each step of the environment wait for 0 to 200 ms, as for a server."""
    from agent_gym.envs.gsm8k.env import GSM8KEnv

    respond, draw = GSM8KEnv.respond, random.Random(0)

    def slow(self: Any, action: str) -> Any:
        time.sleep(draw.uniform(0.0, 0.2))
        return respond(self, action)

    GSM8KEnv.respond = slow
    try:
        yield
    finally:
        GSM8KEnv.respond = respond


class Talk(TextEnv):
    """Answers each of eight turns with about 1,024 tokens."""

    reward_weights: ClassVar[Mapping[str, float]] = {"done": 1.0}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__({"train": range(1 << 20)}, max_turns=TURNS, **kwargs)

    def begin(self, task: int) -> str:
        return f"This is world {task}."

    def respond(self, action: str) -> Reply:
        return Reply(OBSERVED.format(self.turn), terms={"done": 1.0}, terminated=self.turn + 1 == TURNS)


class Timed:
    """The compiled part of a tokenizer, with the CPU seconds that its encoding takes."""

    def __init__(self, compiled: Any) -> None:
        self.compiled, self.seconds = compiled, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compiled, name)

    def encode_batch(self, *args: Any, **kwargs: Any) -> Any:
        begin = time.thread_time()
        found = self.compiled.encode_batch(*args, **kwargs)
        self.seconds += time.thread_time() - begin
        return found


def long_observations(renderer: ChatRenderer, size: int) -> list[Any]:
    """Play `Talk` with a timer around the tokenizer; return the row of the second table."""
    engine = Engine(renderer)
    engine.turns = [renderer.encode_action("word " * 60)[:64]] * 2
    compiled = renderer.tokenizer._tokenizer
    renderer.tokenizer._tokenizer = timed = Timed(compiled)
    try:
        cpu, loop = play(renderer, size, engine, workers=32, env_id=TALK)
    finally:
        renderer.tokenizer._tokenizer = compiled
    turns = size * TURNS
    whole, driver, encoder = (1e3 * spent / turns for spent in (cpu, loop, timed.seconds))
    lock = whole - encoder
    return [str(size), driver, lock, encoder, *(64e3 / max(lock, whole / cores) for cores in (1, 4))]


def resident() -> int:
    """Bytes of memory that the process occupies."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def memory(renderer: ChatRenderer, size: int) -> int:
    """Bytes that Python holds more when so many episodes wait for their first turn."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    engine = Gate(renderer, size)
    play(renderer, size, engine)
    tracemalloc.stop()
    return engine.held - before


if __name__ == "__main__":
    main()
