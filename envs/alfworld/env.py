"""ALFWorld as an environment: a household task, commands in text, a room that answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from agent_gym.chat import Message
from agent_gym.env import HISTORY_HEADING, Reply
from agent_gym.envs.alfworld.data import EMBEDDED, LADDER, game_names, load_game
from agent_gym.envs.alfworld.embedded.files import GRAMMARS
from agent_gym.envs.alfworld.expert import Expert
from agent_gym.envs.alfworld.original import TextWorld
from agent_gym.envs.alfworld.protocols import ARGUMENT, PROTOCOLS
from agent_gym.envs.alfworld.world import COMMANDS, AlfworldWorld
from agent_gym.errors import ConfigError, at_difficulty, one_of, only_embedded
from agent_gym.formats.react import ReActParser
from agent_gym.formats.tags import TagParser
from agent_gym.protocols import takes_protocol
from agent_gym.rewards import after_thought
from agent_gym.tool_env import ToolEnv
from agent_gym.tools import Parser, TextTool, ToolCall, ToolResult

STYLES = ("default", "searching", "guessing", "direct")
ENGINES = ("native", "textworld")
ENDS = ("won", "out_of_steps", "given_up")
_MOVE = "move (object) to (receptacle)"
_COMMANDS = "\n".join(COMMANDS).replace(_MOVE, f"{_MOVE}, in some houses: put (object) in/on (receptacle)")
_ABOUT = "Give one command to the world and see what happens.", 'for example "go to cabinet 1"'
_PROMPT = f"""You are in a house and have a task, which you solve by commands. The commands are:
{_COMMANDS}
Name things with their numbers, as in "take mug 1 from shelf 2". You can hold one object at a time. A command that is \
not possible does nothing, but costs a turn. """


class ALFWorldEnv(ToolEnv):
    """Household tasks in text: find things, carry them, heat, cool and clean them.

    ## Description
    Each episode is one game of ALFWorld: a room with furniture and objects, and one of six types of tasks (put
    something somewhere, put two of a kind, put something clean, hot or cool, look at something under a lamp). The
    policy gives one command per turn and reads the result. It has to find the places of things.

    ## Observation
    The original engine's texts, word for word. `reset` returns the welcome, the receptacles in the room and the task
    (after the system prompt, if there is one). A command that is not admissible as it is written is answered by
    "Nothing happens." and costs its turn. A call that cannot be read, or a second one, is answered by a line that
    starts with "Error:". With `show_admissible` each observation ends with all commands that would do something;
    `info["admissible_commands"]` always has them.

    ## Action
    Free text with one command, in the form that `commands` says:
    - "tool" (default): `<tool_call>{"name": "env_step", "arguments": {"command": "go to desk 1"}}</tool_call>`
    - "tags": `<action>go to desk 1</action>`, with reasoning around it. A turn stops at `</action>`.
    - "text": the turn itself, or its text after `</think>`. A turn without any command gives up; under a protocol it is
    an invalid one instead.

    ## Reward
    - `success` (weight 1): 1 when the task is solved.
    - `progress` (0): the change of the share of the goal's conditions that hold, such as "is hot" and "is in the
      fridge"; an undone change is paid back. A process term.
    - `invalid` (0): -1 for a turn whose command was not admissible or could not be read, and under a protocol for one
      that has none. A process term.

    ## Episode end
    `terminated` when the task is solved or the policy gives up, `truncated` after `max_turns` turns (50, as in the
    official evaluation). `is_success` is whether it was solved. `info["ended"]` is "won", "given_up" or
    "out_of_steps", and `info["metrics"]` has the three as numbers, and after each turn `progress`, and `commands` and
    `invalid_commands` so far.

    ## Arguments
    - `data`: "embedded" (default); "official", which looks in `$ALFWORLD_DATA`, `~/.cache/alfworld` and where
      `agent-gym prepare alfworld` puts games; a folder that holds `json_2.1.1`, or the one of Agent-R1's recipe; or
      one of that recipe's files of rows.
    - `protocol`: "verl-agent" or "agent-r1" plays as these do (docs/protocols.md): a separate prompt for each turn,
      form of commands, and, unless they are given, turns and weights of the reward. None by default.
    - `task_types`: only games of these types, for example ("pick_and_place_simple", "look_at_obj_in_light").
    - `receptacles`: of generated games, the most that a room has, at least 4; there are few objects then, and 30,000,
      3,000 and 3,000 games. None (default) makes rooms as full as the official ones.
    - `difficulty`: 1 to 5, of generated games. 1: put or look at something, 4 receptacles; 2, 3, 4: all types, with 6,
      12 and as many as in official rooms; 5: the four longer types in such rooms.
    - `engine`: "native" (default), which is this package's own, or "textworld", the original one, which needs the extra
      `alfworld` (a C++ compiler, and parts under the GPL) and has a process for each environment.
    - `commands`, `show_admissible`: see above; `parser` reads commands in another format, such as
      `TagParser({"env_step": "command"})`, or "react" for `Thought: ...` and `Action: Env_step[go to desk 1]`.
    - `grammar`: "current" (`move .. to ..`) or "legacy" (`put .. in/on ..`); None (default) as the game is written.
    - everything `TextEnv` takes: split, system_prompt, max_turns, reward_weights, tokenizer, render_mode.

    `reset(options={"game": path})` plays the game of a file or folder, or "embedded/<split>/<number>". `info` then and
    always has its name as `game`, and `goal` and `task_type`.

    ## Data
    Splits are `train`, `valid_seen` (the rooms of train; also called `validation`) and `valid_unseen` (other rooms;
    also `test`). The official games (json_2.1.1) are 3,553, 140 and 134 that can be solved, under the MIT licence.
    "embedded" is a seeded generator of as many games in the official file format; `write_embedded` in
    embedded/__init__.py writes them to a folder. The goals of a split's games, in a room with such furniture, none of
    another split does.

    ## References
    Shridhar et al., ALFWorld, arXiv:2010.03768, after ALFRED, arXiv:1912.01734. The tool is that of Agent-R1's recipe
    (arXiv:2511.14460), which allows 20 turns and shows the admissible commands.

    ## Versions
    v0: first version. After 0.2.0 no generated game of evaluation opens like one of training; for that some games of
    train and of small rooms, and most of `valid_seen`, are others. `valid_unseen` in usual rooms is as it was.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"success": 1.0, "progress": 0.0, "invalid": 0.0}
    process_terms: ClassVar[frozenset[str]] = frozenset({"progress", "invalid"})

    @takes_protocol(PROTOCOLS)
    def __init__(
        self,
        data: str = EMBEDDED,
        *,
        protocol: str | None = None,
        task_types: Collection[str] | None = None,
        receptacles: int | None = None,
        difficulty: int | None = None,
        engine: str = "native",
        commands: str = "tool",
        parser: Parser | str | None = None,
        show_admissible: bool = False,
        grammar: str | None = None,
        system_prompt: str | None = None,
        max_turns: int = 50,
        **kwargs: Any,
    ) -> None:
        self.protocol = PROTOCOLS[protocol] if protocol else None
        one_of("grammar", grammar, (*GRAMMARS, None))
        one_of("engine", engine, ENGINES)
        one_of("commands", commands, _FORMS)
        only_embedded("difficulty", difficulty, data)
        rung = at_difficulty(difficulty, LADDER, task_types=task_types, receptacles=receptacles)
        self._tool, known, rule = _FORMS[commands]
        if parser == "react":
            parser, rule = ReActParser({self._tool: ARGUMENT}, finish=None), _FORMS["tags"][2]
        description, about = (self.protocol and self.protocol.about) or _ABOUT
        self._original = TextWorld() if engine == "textworld" else None
        super().__init__(
            game_names(data, **rung),
            tools=[TextTool(self._tool, description, ARGUMENT, about, self._give)],
            parser=parser or known,
            max_calls_per_turn=1,
            system_prompt=_PROMPT + rule if system_prompt is None else system_prompt,
            max_turns=max_turns,
            **kwargs,
        )
        self._show, self._grammar = show_admissible, grammar

    def gold(self, task: Any) -> str:
        problem = str(load_game(task, self._grammar).data["pddl_problem"])
        return problem[problem.lower().index("(:init") :]  # where things are, and the goal, without the game's name

    def begin(self, task: Any) -> str:
        self._game = load_game(task, self._grammar)
        self._world = AlfworldWorld(self._game)
        if self._original:
            self._original.check(self._world.view, game=self._game.data)
        self._expert = Expert(self._world)
        self._given, self._invalid = list[str](), 0
        self._history: list[tuple[str, str]] = []  # commands and answers
        self._first = self._now = self._world.view.text
        self._steps: list[tuple[str, str]] = []  # observations, each with the command that followed it
        return self._prompt() if self.protocol else self._shown(self._first)

    def respond(self, action: str) -> Reply:
        before, given = self._world.progress, len(self._given)
        reply = super().respond(action)
        won, gave_up, progress = self._world.view.won, reply.terminated, self._world.progress
        reply.terminated, reply.success = won or gave_up, won
        reply.terms |= {"success": float(won), "progress": progress - before}
        self._invalid += reply.error is not None
        counts = {"commands": float(len(self._given)), "invalid_commands": float(self._invalid)}
        reply.metrics |= {"progress": progress, **counts}
        if reply.terminated or self.turn + 1 >= self.max_turns:
            self._ended = "won" if won else "given_up" if gave_up else "out_of_steps"
            reply.metrics |= {end: float(end == self._ended) for end in ENDS}
        if calls := reply.tool_calls:
            answers = "\n".join(call.answer for call in calls)
            self._history.append((self._given[-1] if len(self._given) > given else "(no command)", answers))
            calls[-1].answer = self._shown(calls[-1].answer)
            if not self.parser.in_templates:  # a command is not a call that a tool answers
                text = "\n".join(call.answer for call in calls)
                reply.text = self.parser.observe(text) if isinstance(self.parser, ReActParser) else text
        if self.protocol:
            reply.text = self._answered(len(self._given) > given)
            if self.protocol.well_formed:
                reply.terms["invalid"] = -float(not self.protocol.well_formed(action))
        return reply

    def _answered(self, acted: bool) -> str:
        """Note the last turn's action for the next prompt, and return its observation."""
        assert self.protocol is not None
        self._steps.append((self._now, self._given[-1] if acted else "<invalid_tool_call>: missing env_step tool call"))
        self._now = self._world.view.text if acted else self.protocol.refusal.replace("{}", self._now)
        return self._now

    def _prompt(self) -> str:
        assert self.protocol is not None
        return self.protocol.prompt(self._now, self._steps, self._world.view.admissible)

    def answer(self, text: str) -> Reply:
        if self.protocol is None:
            return Reply(terminated=True)
        return Reply(error="no command", terms={"invalid": -1.0})  # else prose would be better than trying

    def score_calls(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> dict[str, float]:
        return {"invalid": float(-any(result.error for result in results))}

    def categories(self, task: Any) -> dict[str, str]:
        return {"task_type": self._game.task_type}

    def expert_action(self, style: str = "default") -> str:
        """Return the next command of a short way to the goal, which the expert knows and the policy has to find.

        Args:
            style: "default"; "searching" to use only shown objects; "guessing" to go anywhere and try; or "direct" to
                give up at once.
        """
        self.check_style(style, STYLES)
        if style == "direct":
            return ""
        if style == "guessing":
            command = self._expert.random_command(self._given[-1] if self._given else "", self.np_random)
        else:
            command = self._expert.next_command(searching=style == "searching")
        turn = self.protocol.turn if self.protocol else "{}"
        return turn.replace("{}", self.parser.render(self._tool, {ARGUMENT: command}))

    def random_action(self, rng: np.random.Generator) -> str:
        commands = list(self._world.view.admissible)
        return self.parser.render(self._tool, {ARGUMENT: commands[int(rng.integers(len(commands)))]})

    def close(self) -> None:
        if self._original:
            self._original.close()
        super().close()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode; see `TextEnv.reset`. `options={"game": ...}` picks a game by its path or name."""
        options = dict(options or {})
        game = options.pop("game", None)
        if game is not None:
            if options:
                raise ConfigError(f"the reset option game picks the game alone, but there are {sorted(options)} too")
            options["task"] = game
        observation, info = super().reset(seed=seed, options=options)
        about = {"game": self._game.name, "goal": self._game.task, "task_type": self._game.task_type}
        info |= {"rebuilds": True} if self.protocol else {}
        return observation, {**info, **about, "admissible_commands": list(self._world.view.admissible)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        info["admissible_commands"] = list(self._world.view.admissible)
        if terminated or truncated:
            info["ended"] = self._ended
        return observation, reward, terminated, truncated, info

    def state_prompt(self) -> list[Message]:
        if self.protocol:
            return self.with_system_prompt(self._prompt())
        lines = [f"{n}. {command}\n   {text}" for n, (command, text) in enumerate(self._history, 1)]
        history = "\n".join(["", "", HISTORY_HEADING, *lines]) if lines else ""
        return self.with_system_prompt(self._shown(self._first + history))

    def _give(self, command: str) -> ToolResult:
        admissible = command.strip() in self._world.view.admissible
        self._world.step(command)
        if self._original:
            self._original.check(self._world.view, command=command)
        self._given.append(command)
        return ToolResult(self._world.view.text, error=not admissible)

    def _shown(self, text: str) -> str:
        # help does nothing for the task, and its answer is in the system prompt.
        commands = "\n".join(f"- {command}" for command in self._world.view.admissible if command != "help")
        return f"{text}\n\nAdmissible commands:\n{commands}" if self._show else text


class PlainParser:
    """Takes a turn, or the text after its reasoning, as a command."""

    stop: tuple[str, ...] = ()
    in_templates = False

    def parse(self, text: str) -> list[ToolCall]:
        command = after_thought(text).strip()
        return [ToolCall("env_step", {ARGUMENT: command})] if command else []

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        return str(arguments[ARGUMENT])

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        return ""


# Form of commands to the name of the tool, the parser that finds its calls, and the rule in the system prompt.
_FORMS: dict[str, tuple[str, Parser | None, str]] = {
    "tool": ("env_step", None, "Give exactly one command per turn, by a call of env_step."),
    "tags": ("action", TagParser({"action": ARGUMENT}), "Think, then give exactly one command per turn."),
    "text": (
        "env_step",
        PlainParser(),
        "Answer with exactly one command, as a line of its own and nothing else.",
    ),
}
