"""Makes a sandbox on a machine that allows less: a script, because what it gives up is gone for good.

    python sandbox_machines.py MACHINE [PROPERTY ...]    # waive these; prints JSON

docker: Docker's default profile refuses to make namespaces. pod: and there are no capabilities. ubuntu: namespaces can
be made, and nothing can be done in them. old: a kernel without Landlock. nothing: neither Landlock nor namespaces.
abi1, abi2: Docker's profile on a kernel whose Landlock knows nothing of truncation (Linux 5.13, 5.19). leaky: such a
one, with a filter that lets files be emptied. bare: a kernel without filters of system calls. nomemfd, nopidfd: one
without memfd_create, without pidfd_open.
"""

from __future__ import annotations

import errno
import json
import sys

from agent_gym.sandbox import LocalSandbox, SandboxUnavailable, process
from agent_gym.sandbox.inside import kernel, seccomp

_X86 = seccomp.MACHINE == "x86_64"
NAMESPACES = {"unshare": 272, "setns": 308, "mount": 165} if _X86 else {"unshare": 97, "setns": 268, "mount": 40}
LANDLOCK = {"landlock_create_ruleset": 444}
_LATER = {"nomemfd": 319 if _X86 else 279, "nopidfd": 434}


def refuse(calls: dict[str, int], error: int) -> None:
    """Have the kernel answer these system calls with an error, here and in all that is started from here."""
    program = [(seccomp._LOAD, 0, 0, seccomp._NUMBER)]
    for number in calls.values():
        program += [(seccomp._JUMP_EQ, 0, 1, number), seccomp._refuse(error)]
    program.append(seccomp._return(seccomp._ALLOW))
    seccomp.apply(seccomp.assembled(program))


def cap_landlock(version: int) -> None:
    """Have fork servers find an older Landlock. Rights that it does not know are then not handled, as there."""
    change(f"forkserver.kernel.landlock_abi = lambda known=forkserver.kernel.landlock_abi: min(known(), {version})")


def change(statement: str) -> None:
    """Have fork servers execute this before they begin."""
    process._CODE = process._CODE.replace("{1}.main(", statement + "; {1}.main(")


def main(machine: str, waive: list[str]) -> None:
    kernel.no_new_privileges()
    if machine.startswith("abi"):
        cap_landlock(int(machine[3:]))
    if machine == "leaky":
        cap_landlock(2)
        change("forkserver.seccomp.OPEN_UNWATCHED = ()")
    if machine in ("docker", "pod", "nothing", "abi1", "abi2", "leaky"):
        refuse(NAMESPACES, errno.EPERM)
    if machine == "ubuntu":
        refuse({"mount": NAMESPACES["mount"]}, errno.EACCES)
    if machine == "bare":
        refuse({"seccomp": seccomp._SECCOMP[seccomp.MACHINE]}, errno.EINVAL)
    if machine in ("nomemfd", "nopidfd"):
        refuse({machine: _LATER[machine]}, errno.ENOSYS)
    if machine in ("old", "nothing"):
        refuse(LANDLOCK, errno.ENOSYS)
    if machine == "pod":
        kernel.drop_bounding_set()
        kernel.drop_capabilities()
    try:
        sandbox = LocalSandbox(servers=1, waive=set(waive), packages=("mpmath",))  # it is imported at once
    except SandboxUnavailable as unavailable:
        print(json.dumps({"property": unavailable.property, "message": str(unavailable)}))
        return
    done = sandbox.run("import mpmath; print(mpmath.factorial(4))")
    print(json.dumps({"report": sandbox.report, "printed": done.stdout, "error": done.stderr}))
    sandbox.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
