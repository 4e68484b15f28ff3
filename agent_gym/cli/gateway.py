"""`agent-gym gateway`: a model that any agent can use, and a record of its conversations; and the flags of agents."""

from __future__ import annotations

import queue
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from agent_gym.cli.engine import open_model, spoken
from agent_gym.cli.parser import CommandParser, check_output, positive
from agent_gym.errors import AgentGymError, ConfigError, quoted, writing
from agent_gym.gateway import ENV_ID, agent_env
from agent_gym.gateway.journal import Journal, write_all
from agent_gym.policies.served import ServedPolicy
from agent_gym.rollout import Budget, Episode, EpisodeSpec, Runner, Stream, derive_seed, to_record
from agent_gym.rollout.trajectories import to_line


def gateway(argv: Sequence[str]) -> int:
    """Serve a model to any agent (OpenAI's chat completions and responses, Anthropic's messages), and record it.

    The requests with one API key, or under one address http://HOST:PORT/NAME/v1, are an episode until they stop for
    --idle seconds.
    """
    from agent_gym.cli.serve import add_address, listening  # which brings the packages that other servers need

    parser = CommandParser("gateway", gateway.__doc__)
    add_address(parser, 8020, "sample from the model")
    parser.flag("--record FILE.jsonl", "write each episode there as it ends; for view")
    help_text = "conversations at the same time, each of which has a thread; one more is answered with 429"
    parser.flag("--max_conversations N", help_text, type=positive, default=64)
    parser.flag("--idle S", "seconds without a request that end an episode", type=float, default=300.0)
    flag = parser.add_model("what answers")
    flag("--concurrency N", "most requests at the endpoint at the same time", type=positive, default=64)
    flag("--temperature", "of the sampling, whatever a request asks for; 0 is greedy", type=float, default=1.0)
    flag("--seed", "seed of the sampling", type=int, default=0)
    usual = Budget(max_turn_tokens=1024, max_tokens=8192)
    flag("--max_turn_tokens N", "tokens sampled per answer", type=int, default=usual.max_turn_tokens)
    flag("--max_tokens N", "tokens of a conversation, prompt included", type=int, default=usual.max_tokens)
    parser.set_defaults(env_kwargs={})
    arguments = parser.parse(argv)
    if arguments.record:
        check_output(arguments.record)
    budget = Budget(arguments.max_turn_tokens, arguments.max_tokens)
    with listening(arguments.host, arguments.port) as listener:
        tokenizer, policy = open_model(arguments, ENV_ID, budget.max_tokens)
        _tell(f"agent-gym: {spoken(tokenizer)}")
        # No session waits until all others have asked something.
        policy.continuous = True
        if isinstance(policy, ServedPolicy):
            policy.fails_alone = True  # a refused request of one agent does not end the sessions of others
        with (
            closing(policy),
            closing(Runner(policy, tokenizer, budget, max_live=arguments.max_conversations)) as runner,
        ):
            return _serve(runner, listener, arguments)
    return 0


def _serve(runner: Runner, listener: Any, arguments: Any) -> int:
    """Play an episode for each key that comes, until the user stops the process; 1 if an episode cannot be written."""
    from agent_gym.gateway.server import AgentSession, Ended, Gateway, shared_gateway

    new: queue.SimpleQueue[AgentSession] = queue.SimpleQueue()
    stream = Stream(runner, background=True)
    begun = ended = 0
    record = RecordFile(arguments.record, runner.renderer.tokenizer)

    def write(episode: Episode) -> None:
        nonlocal ended
        ended += 1
        fate = f"failed: {episode.failure.line}" if episode.failure else f"{len(episode.steps)} turns"
        _tell(f"{episode.spec.env_kwargs['session']}: {fate}, {len(episode.rows)} rows")
        record.write(episode)

    def end_all() -> None:
        for session in gate.sessions:
            session.end(Ended())

    gate = shared_gateway(Gateway(listener, new.put, arguments.max_conversations))
    _tell(f"serving at {gate.url}/v1, and at {gate.url}/NAME/v1 for an episode NAME")
    try:
        while True:
            stream.wait(lambda: True)  # raises the engine's error
            try:
                session = new.get(timeout=1.0)
            except queue.Empty:
                continue
            kwargs = {"session": session.key, "patience_s": arguments.idle, "max_turns": 1 << 30}
            seed = derive_seed(arguments.seed, begun)
            spec = EpisodeSpec(ENV_ID, kwargs, split="train", index=0, group=begun, sampling_seed=seed)
            record.begin(session, spec)
            stream.add([spec], arguments.temperature, write)
            begun += 1
    except KeyboardInterrupt:  # only then: after an error nothing is played any more, and episodes under way never end
        end_all()
        stream.wait(lambda: ended == begun)
        _tell("stopped")
    finally:
        end_all()
        gate.close()
        lost = record.close()
    return int(lost > 0)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class RecordFile:
    """The file of the episodes, None for no file, and the journal of the live ones.

    A full disk ends nothing: the gateway answers, warns, and writes the episodes when there is room.
    """

    def __init__(self, path: str | None, tokenizer: Any) -> None:
        self._path, self._tokenizer, self._waiting = path, tokenizer, list[Episode]()
        self._journal: Journal | None = None
        if path is None or (Path(path).exists() and not Path(path).is_file()):  # a device has no folder next to it
            return
        try:
            self._journal = Journal(Path(path), lambda line: _tell(f"agent-gym: warning: {line}"))
        except BlockingIOError:
            raise ConfigError(f"another gateway writes {path}: stop it, or name another file") from None
        except OSError as error:
            raise ConfigError(f"cannot write next to {path}: {error.strerror}; name another file") from error
        if self._journal.recovered:
            _tell(f"{self._journal.recovered} conversations of a gateway that was killed are in {path} now")

    def begin(self, session: Any, spec: EpisodeSpec) -> None:
        """Let the session write its turns as they are answered."""
        if self._journal is not None:
            self._journal.begin(str(spec.group), to_record(Episode(spec, task_id="train/0")))
            session.on_answer = partial(self._journal.answered, str(spec.group))

    def write(self, episode: Episode) -> None:
        """Append an episode, and the ones that have waited for room."""
        if self._path is None:
            return
        self._waiting.append(episode)
        try:
            alone = nullcontext() if self._journal is None else self._journal.writing
            with writing(self._path), alone, open(self._path, "ab", buffering=0) as file:
                while self._waiting:
                    write_all(file, to_line(to_record(self._waiting[0], self._tokenizer)).encode())
                    done = self._waiting.pop(0)
                    if self._journal is not None:
                        self._journal.end(str(done.spec.group))
        except AgentGymError as error:
            _tell(
                f"agent-gym: warning: {error}; {len(self._waiting)} episodes wait for that, and requests are answered"
            )

    def close(self) -> int:
        """Return how many episodes could not be written."""
        if self._journal is not None:
            self._journal.close()
        if left := len(self._waiting):
            kept = "; their turns are in the folder beside it" if self._journal is not None else ""
            _tell(f"agent-gym: {left} episodes are not in {self._path}{kept}")
        return len(self._waiting)


def add_agent(parser: CommandParser) -> None:
    """Add the flags of an agent that plays in place of the environment's own turns; `use_agent` reads them."""
    flag = parser.group("an agent that is not an environment's (docs/gateway.md)")
    flag("--agent PLACE", "module:function of an agent")
    flag("--agent_command TEXT", "or a program, with {name} for fields of a task")
    flag("--tasks FILE", "its tasks, where no environment gives them; a number N is as --episodes N")
    flag("--reward PLACE", "module:function of their reward")


def use_agent(env_ids: Sequence[str], env_kwargs: dict[str, Any], given: Any) -> tuple[list[str], dict[str, Any]]:
    """Return ids and arguments of the environments to be played; `given`, the flags' values, may name an agent."""
    if given.agent is None and given.agent_command is None:
        if given.tasks or given.reward:
            raise ConfigError("tasks and a reward belong to an agent: give --agent or --agent_command")
        if not env_ids:
            raise ConfigError("give an environment id, for example AgentR1/GSM8K-v0, or an --agent")
        return [*env_ids], env_kwargs
    if len(env_ids) > 1:
        raise ConfigError("an agent plays in one environment: name one id")
    if given.agent and given.agent_command:
        raise ConfigError("agent and agent_command are two agents: give one of them")
    try:
        agent = given.agent or shlex.split(given.agent_command)
    except ValueError as error:
        raise ConfigError(f"agent_command is {quoted(given.agent_command)}: {error}") from error
    settings = {"world": env_ids[0], "world_kwargs": env_kwargs} if env_ids else env_kwargs
    env_id, env_kwargs = agent_env(agent, given.tasks, given.reward, **settings)
    return [env_id], env_kwargs
