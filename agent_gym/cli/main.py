"""The entry point of `agent-gym`: finds the command, runs it, and turns the user's mistakes into one line.

A command's module is imported only when it is called, so that `agent-gym --help` and `agent-gym list` load neither
torch nor TRL. Exit codes: 0 done, 1 the run failed, 2 the user's mistake, 130 interrupted, 141 the reader of the output
is gone.
"""

from __future__ import annotations

import errno
import io
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module

from agent_gym import __version__
from agent_gym.cli.parser import nearest, one_line
from agent_gym.cli.told import mask_what_is_told
from agent_gym.errors import DISK_FULL, AgentGymError, ConfigError
from agent_gym.public import public_text
from agent_gym.untrusted import harmless

# Command to the function that runs it, as module of this package and name, and its description.
COMMANDS = {
    "list": ("start:list_envs", "show the environments"),
    "info": ("certify:info", "print the card of an environment"),
    "certify": ("certify:certify", "check an environment by playing it, with baselines of cheap scripts"),
    "play": ("play:play", "play an environment yourself, or watch a model play it"),
    "chat": ("play:chat", "talk to a model in an environment, with its tools"),
    "rollout": ("episodes:rollout", "let a model or the expert play, and write the trajectories"),
    "eval": ("episodes:evaluate", "measure how often a model succeeds, with 95% intervals"),
    "compare": ("compare:compare", "compare runs of eval on the same tasks, with paired tests"),
    "leaderboard": ("compare:leaderboard", "build a page from the cards of evaluations and runs"),
    "calibrate": ("compare:calibrate", "hold a judge against known labels"),
    "rescore": ("compare:rescore", "score stored episodes again, without a model"),
    "sft": ("launch:sft", "train a model on the expert's episodes (supervised warm start)"),
    "grpo": ("launch:grpo", "train a model by reinforcement learning that compares episodes (GRPO)"),
    "ppo": ("launch:ppo", "train a model by reinforcement learning with a critic (PPO)"),
    "launch": ("nodes:launch", "run grpo or ppo on several machines, of which some serve the model"),
    "runs": ("runs:runs", "list runs: status, step, last numbers"),
    "resume": ("runs:resume", "go on with a run from its last checkpoint"),
    "plan": ("prepare:plan", "estimate the memory of a training run, and which layout fits"),
    "doctor": ("prepare:doctor", "try all parts of a training run on this machine, and report"),
    "prepare": ("prepare:prepare", "make a data set or a model ready: fetch, check, convert, index"),
    "recipe": ("recipe:recipe", "prepare data and train by several algorithms, as another project does"),
    "serve": ("serve:serve", "serve a search engine or a sandbox that many trainers share"),
    "gateway": ("gateway:gateway", "serve a model to any agent, and record its conversations"),
    "export": ("export:export", "write a trained model, trajectories or tasks for others"),
    "view": ("view:view", "turn trajectories into one HTML page"),
    "figure": ("view:figure", "draw a speedrun over several seeds as one picture"),
    "new": ("new:new", "write an environment of your own to start from, also of questions or tools"),
    "completion": ("start:completion", "print a script that completes words in a shell"),
    "speedrun": ("start:speedrun", "all of it in minutes: tiny model, warm start, GRPO, results"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if argv is None:
        _print_in_any_encoding()
    if argv is None and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if argv is None:
        mask_what_is_told(sys.argv[1:])
    return guarded(lambda: _run(sys.argv[1:] if argv is None else argv))


def _print_in_any_encoding() -> None:
    """Write a sign that the terminal's encoding lacks as an escape: its encoding is no reason to end a command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


_CURES = {
    **dict.fromkeys(DISK_FULL, "make room"),
    errno.EIO: "the disk may be damaged, or its server lost",
    **dict.fromkeys((errno.EROFS, errno.ENAMETOOLONG), "name another place"),
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files (fs.file-max)",
    errno.ENOMEM: "give less work at once, or a machine or a limit with more memory",
    errno.EAGAIN: "raise the limit of processes and threads (ulimit -u)",
}

_NO_MEMORY = ("DefaultCPUAllocator: ", "std::bad_alloc")  # of torch and of other compiled code, as RuntimeError


def guarded(run: Callable[[], int]) -> int:
    """Call `run` and map the errors that we raise on purpose to a line on stderr and an exit code.

    Everything else is a defect of ours and keeps its traceback, in which `mask_what_is_told` masks secrets.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        # A terminal that is closed, or a connection that is lost, ends a command as SIGTERM does: nothing is lost.
        signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    try:
        code = run()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        return 128 + signal.SIGPIPE
    except AgentGymError as error:
        print(f"agent-gym: {harmless(public_text(one_line(error)))}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        print("agent-gym: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if _was_interrupted(error):
            print("agent-gym: interrupted", file=sys.stderr)
            return 130
        if reason := of_the_machine(error):
            print(f"agent-gym: {harmless(public_text(reason))}", file=sys.stderr)
            return 1
        raise


def of_the_machine(error: Exception) -> str:
    """Return the line for a machine that has run out of something, wherever that was noticed; else an empty text."""
    text = str(error)
    if isinstance(error, MemoryError) or any(sign in text for sign in _NO_MEMORY):
        about = f" ({one_line(error)})" if text else ""
        return f"no memory is left{about}; {_CURES[errno.ENOMEM]}"
    if isinstance(error, RuntimeError) and "can't start new thread" in text:
        return f"{text}; {_CURES[errno.EAGAIN]}"
    if not isinstance(error, OSError) or error.errno not in _CURES:
        return ""
    where = f" at {error.filename}" if isinstance(error.filename, str) else ""
    return f"{error.strerror}{where}; {_CURES[error.errno]}"


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether this is the error that a package has made of Ctrl-C while it was imported."""
    seen = 0
    while error is not None and seen < 20:
        if isinstance(error, KeyboardInterrupt):
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False


def _reader_is_gone() -> bool:
    """Whether the reader of the output has closed it (`| head` has enough); the rest of it is then thrown away."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # a broken pipe is always reported
    broken = bool(output.poll(0))
    if broken:
        # Python writes the rest when it ends, and would complain once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return broken


def _run(argv: Sequence[str]) -> int:
    command, *arguments = argv or ["--help"]
    if command == "--version":
        print(f"agent-gym {__version__}")
        return 0
    if command in ("-h", "--help", "help"):
        commands = "\n".join(f"  {name:<13}{summary}" for name, (_, summary) in COMMANDS.items())
        print(
            "usage: agent-gym COMMAND [arguments]\n\nEnvironments for LLM agents that speak text, and trainers that "
            f"learn only from the policy's own tokens.\n\ncommands:\n{commands}\n\n"
            "agent-gym COMMAND --help explains the flags of a command; --version prints the version."
        )
        return 0
    if command not in COMMANDS:
        raise ConfigError(f"unknown command {command!r}; {nearest(command, COMMANDS)}")
    # `module:id` finds a module in the folder where the command is called, as with `python -m`. Last in the list: a
    # file that is called like an installed package must not hide it.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    module, _, function = COMMANDS[command][0].partition(":")
    return getattr(import_module(f"agent_gym.cli.{module}"), function)(arguments)
