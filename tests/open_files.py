"""Which files and threads this process holds open, for tests that say nothing is left of what they did."""

import gc
import os
import threading


def held() -> set[str]:
    """Every open descriptor with what is behind it, and every thread.

    In one process with a thousand other tests a count says too little: what an earlier test left to the garbage
    collector may be closed in between, and hide (or feign) a leak. A test asserts ``not held() - before`` instead.
    """
    gc.collect()
    found = {f"thread {thread.name} {thread.ident}" for thread in threading.enumerate()}
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.add(f"descriptor {descriptor} {os.readlink(f'/proc/self/fd/{descriptor}')}")
        except FileNotFoundError:
            pass  # This is the one through which the folder itself was read.
    return found
