"""The session in which a task is played, as its Dockerfile would have made it."""

from __future__ import annotations

from agent_gym.envs.terminal.harbor import Task
from agent_gym.envs.terminal.needs import Reason, Unfit
from agent_gym.sandbox.terminal import Files, Terminal, pack, shared_terminals


def files_of(task: Task) -> Files:
    """Pack the initial files of a task's session."""
    return pack(task.files, (*task.folders, *task.made), task.folder, task.folders)


def opened(task: Task) -> Terminal:
    """Open a session with a task's files, in which the commands of its Dockerfile have been run.

    `Unfit` if that fails.
    """
    terminal = shared_terminals().open(files_of(task), folder=task.folder, environment=task.variables)
    if task.setup:
        done = terminal.run(f"(\n{task.setup}\n)")
        if not done.succeeded:
            terminal.close()
            raise Unfit(Reason("what its Dockerfile runs fails here", f"{done.status}, {done.stdout.strip():.200}"))
    return terminal
