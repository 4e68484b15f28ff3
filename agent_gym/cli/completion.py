"""`agent-gym completion`: a script that lets a shell complete commands, ids of environments, and flags.

The script asks `agent-gym completion words` for what may come next, which reads the flags off a command's help.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence

from agent_gym.cli.parser import Parser
from agent_gym.registry import list_envs

_BASH = """\
_agent_gym() {
  local words
  words=$(agent-gym completion words "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)
  # Without words to offer, the shell completes files.
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}")
}
complete -o default -o bashdefault -F _agent_gym agent-gym
"""
_SCRIPTS = {
    "bash": _BASH,
    "zsh": """\
_agent_gym() {
  local -a found
  found=(${(f)"$(agent-gym completion words "${(@)words[2,CURRENT-1]}" 2>/dev/null)"})
  compadd -a found || _files
}
compdef _agent_gym agent-gym
""",
    "fish": """\
complete -c agent-gym -a '(agent-gym completion words (commandline -opc)[2..-1] 2>/dev/null)'
""",
}
_HOW = {
    "bash": 'eval "$(agent-gym completion bash)"      in ~/.bashrc',
    "zsh": 'eval "$(agent-gym completion zsh)"       in ~/.zshrc, behind compinit',
    "fish": "agent-gym completion fish | source      in ~/.config/fish/config.fish",
}


def completion(argv: Sequence[str]) -> int:
    """Print a script that lets a shell complete commands, ids and flags."""
    if argv and argv[0] == "words":
        print(*_words(argv[1:]), sep="\n")
        return 0
    parser = Parser("completion", completion.__doc__, config=False)
    parser.epilog = "use it:  " + "; ".join(" ".join(line.split()) for line in _HOW.values())
    parser.flag("shell", "the shell", choices=list(_SCRIPTS))
    print(_SCRIPTS[parser.parse(argv).shell], end="")
    return 0


def _words(before: Sequence[str]) -> list[str]:
    """Return what may follow these words."""
    from agent_gym.cli.main import COMMANDS

    if not before:
        return list(COMMANDS)
    if before[0] not in COMMANDS:
        return []
    text = _help(before[0])
    kinds = re.findall(rf"^usage: agent-gym {before[0]} ([a-z]+) ", text, re.MULTILINE)
    if kinds and len(before) == 1:
        return kinds
    if kinds:  # each has flags of its own
        text = _help(*before[:2])
    flags = sorted(set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)))
    choices = [word for one in re.findall(r"{([\w,-]+)}", text) for word in one.split(",")]
    takes_env = re.search(r"\bENV\b", text) and len(before) == 1
    return [*(list_envs() if takes_env else ()), *choices, *flags]


def _help(*words: str) -> str:
    from agent_gym.cli.main import main

    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return shown.getvalue()
