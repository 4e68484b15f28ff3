"""A clock that is ahead, for a process that shows whether an environment looks at it."""

from __future__ import annotations

import datetime
import sys
import sysconfig
import time
from types import ModuleType, SimpleNamespace
from typing import Any

_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_REAL = datetime.datetime


def later(seconds: float) -> None:
    """Let `time`, and with it `date.today`, tell a later time; call it before an environment is imported.

    Clocks that measure (`time.monotonic`, `time.perf_counter`) are left alone, so that time limits hold. Code in C that
    asks the kernel, and other processes, see the true time.
    """
    real, real_ns, local, utc, text = time.time, time.time_ns, time.localtime, time.gmtime, time.strftime
    time.time = lambda: real() + seconds
    time.time_ns = lambda: real_ns() + int(seconds * 1e9)
    time.localtime = lambda at=None: local(time.time() if at is None else at)
    time.gmtime = lambda at=None: utc(time.time() if at is None else at)
    time.strftime = lambda form, at=None: text(form, time.localtime() if at is None else at)


def datetime_later(seconds: float, env: Any) -> None:
    """Let `datetime` tell a later time in the modules of an environment, and in all that are not installed.

    It cannot be exchanged for the whole process: extensions in C rely on its layout.
    """
    ahead = datetime.timedelta(seconds=seconds)

    class Same(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, _REAL)

    class Later(_REAL, metaclass=Same):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
            return _REAL.now(tz) + ahead

        @classmethod
        def utcnow(cls) -> datetime.datetime:  # type: ignore[override]
            return _REAL.now(datetime.UTC).replace(tzinfo=None) + ahead

        @classmethod
        def today(cls) -> datetime.datetime:  # type: ignore[override]
            return _REAL.now() + ahead

    module = SimpleNamespace(**{**vars(datetime), "datetime": Later})
    others = {id(_REAL): Later, id(datetime): module}
    own = {one.__module__ for one in type(env).__mro__}
    for name, held in list(sys.modules.items()):
        if name == __name__:
            continue
        if name in own or not (getattr(held, "__file__", None) or _INSTALLED[0]).startswith(_INSTALLED):
            _exchange(held, others)


def _exchange(held: ModuleType, others: dict[int, Any]) -> None:
    for name, value in list(vars(held).items()):
        if id(value) in others:
            setattr(held, name, others[id(value)])
