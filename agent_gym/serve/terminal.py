"""A conversation in the terminal: tokens as they are sampled, calls and results as they happen.

Written to a pipe it is the same text without colours, so that a script can talk, too.
"""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from agent_gym.errors import AgentGymError, ConfigError, writing
from agent_gym.rollout import write_trajectories
from agent_gym.serve.conversation import Conversation
from agent_gym.untrusted import harmless

HELP = {
    "/reset": "forget the conversation and begin anew",
    "/tools": "what the policy can call",
    "/more": "the last result in full",
    "/save FILE": "append the conversation to a file of trajectories, for agent-gym view",
    "/help": "show this",
    "/quit": "leave",
}
_FOLDED_LINES, _FOLDED_CHARS = 8, 800


class ChatTerminal:
    """Shows a conversation on a console, and reads the person's input; `model` is the name of the policy."""

    def __init__(self, conversation: Conversation, model: str, console: Console) -> None:
        self._conversation, self._model, self._console = conversation, model, console
        self._results: list[str] = []  # of the last calls, in full

    def run(self, ask: Callable[[], str | None]) -> None:
        """Talk until the person leaves; `ask` returns the next line that was typed, None at the end of input.

        Two of its `KeyboardInterrupt`s in a row leave; a turn that was stopped by Ctrl-C counts as the first.
        """
        about = self._conversation.about()
        tools = ", ".join(tool["function"]["name"] for tool in about["tools"]) or "no tools"
        self._print(f"{about['env_id']} ({tools}), played by {self._model}", "bold")
        before = "the world as it is" if about["has_state"] else "the environment would ask, for example"
        before = "the environment begins" if about["answers"] else before
        self._print(f"{before}:\n{harmless(about['opening'])}", "dim")
        if about["answers"]:
            self._print("Enter lets the environment speak, and words of yours take the place of its words", "dim")
        self._print("/help lists the commands", "dim")
        interrupted = False
        while True:
            try:
                line = ask()
            except KeyboardInterrupt:
                self._print("")
                if interrupted:
                    return
                interrupted = True
                self._print("press Ctrl-C again or write /quit to leave", "dim")
                continue
            command = "/quit" if line is None else line.strip()
            if command == "/quit":
                return
            interrupted = False
            if command.startswith("/"):
                self._command(*command.partition(" ")[::2])
            elif command or about["answers"]:
                with _interrupts(self._conversation.stop) as interrupts:
                    self._conversation.say(line or "", self.show)
                interrupted = bool(interrupts)

    def show(self, event: dict[str, Any]) -> None:
        kind = event["kind"]
        if kind == "text":
            self._console.out(harmless(event["text"]), end="", highlight=False)
        elif kind == "world":
            self._print(harmless(event["text"]), "green")
        elif kind == "turn":
            self._print("")
            for call in event["calls"]:
                if call["error"]:
                    self._print(f"→ {harmless(call['name'])} cannot run: {harmless(call['error'])}", "red")
                else:
                    # A long program gets separate lines, all else is JSON.
                    arguments = ", ".join(
                        f"{name}=\n{value}\n"
                        if isinstance(value, str) and "\n" in value
                        else f"{name}={json.dumps(value, ensure_ascii=False)}"
                        for name, value in call["arguments"].items()
                    )
                    self._print(harmless(f"→ {call['name']}({arguments})"), "cyan")
        elif kind == "results":
            self._results = [harmless(result["text"]) for result in event["results"]]
            for text, result in zip(self._results, event["results"], strict=True):
                kept = "\n".join(text.split("\n")[:_FOLDED_LINES])[:_FOLDED_CHARS]
                more = "" if kept == text else f"\n… {len(text) - len(kept)} more characters; /more shows them"
                self._print(f"← {kept}{more}", "red" if result["error"] else "green")
        elif kind == "end":
            if event["reason"] == "stopped":
                self._print("")
            numbers = f"{event['sampled']} tokens in {event['seconds']:.1f} s"
            context = f"context {event['tokens']} of {event['limit']}"
            why = [] if event["reason"] == "answer" else [harmless(event["text"])]
            self._print(f"[{' · '.join([*why, numbers, context])}]", "dim")

    def _command(self, name: str, argument: str) -> None:
        try:
            if name == "/reset":
                self._conversation.reset()
                self._results = []
                self._print("a new conversation", "dim")
            elif name == "/tools":
                tools = [tool["function"] for tool in self._conversation.about()["tools"]]
                for tool in tools:
                    self._print(f"{tool['name']}({', '.join(tool['parameters'].get('properties', {}))})", "cyan")
                    self._print(f"    {tool['description']}")
                if not tools:
                    self._print("this environment has no tools")
            elif name == "/more":
                self._print("\n".join(self._results) or "there is no result yet", "green")
            elif name == "/save":
                path = argument.strip()
                if not path:
                    raise ConfigError("/save needs a file, for example /save chat.jsonl")
                record = self._conversation.record()
                with writing(path):
                    write_trajectories(path, [record], append=True)
                self._print(f"saved; look at it with: agent-gym view {shlex.quote(path)}")
            elif name == "/help":
                self._print("\n".join(f"  {command:<12}{meaning}" for command, meaning in HELP.items()))
            else:
                raise ConfigError(f"there is no {name} here; known: {', '.join(HELP)}")
        except AgentGymError as error:
            self._print(harmless(str(error)), "yellow")

    def _print(self, text: str, style: str | None = None) -> None:
        self._console.out(text, style=style, highlight=False)


@contextmanager
def _interrupts(stop: Callable[[], None]) -> Iterator[list[int]]:
    """Call `stop` at the first Ctrl-C, and let the second one through; yields the list of the ones that came."""
    seen: list[int] = []

    def handle(signum: int, frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(signum)
        stop()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)
