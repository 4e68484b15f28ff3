"""The merged infos of a vector environment, merged when somebody reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from agent_gym.reports import Note, write
from agent_gym.vector.infos import batch_infos

Info: TypeAlias = Mapping[str, Any] | Note


class LazyInfos(dict[str, Any]):
    """A dict that is filled at the first look at it, and from then on a dict like any other.

    Writing out and merging infos takes half of the time of cheap environments, and many of those who step dozens of
    them read little of it.

    Args:
        infos: one info, or the note that it can be written from, per environment.
    """

    __slots__ = ("_infos",)

    def __init__(self, infos: Sequence[Info]) -> None:
        """Keep what there is to merge."""
        # json writes a dict without entries as {} and asks it nothing; `_fill` takes this one out.
        super().__setitem__("", None)
        self._infos: Sequence[Info] | None = infos

    def _fill(self) -> None:
        if self._infos is not None:
            merged = batch_infos([info_of(info) for info in self._infos])
            self._infos = None
            super().clear()
            super().update(merged)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle it as the dict that it stands for."""
        return dict, (dict(self),)


def info_of(info: Info) -> Mapping[str, Any]:
    """Return an info, written out if it is a note."""
    return write(info) if isinstance(info, tuple) else info


def _filled(name: str) -> Callable[..., Any]:
    method = getattr(dict, name)

    def filled(self: LazyInfos, *args: Any, **kwargs: Any) -> Any:
        self._fill()
        return method(self, *args, **kwargs)

    filled.__name__, filled.__doc__ = name, method.__doc__
    return filled


# Whatever looks at a dict or changes it. `{**infos}` and `dict(infos)` ask for `keys` where `__iter__` is not dict's.
for _name in [
    *("__contains__", "__delitem__", "__eq__", "__getitem__", "__ior__", "__iter__", "__len__", "__ne__", "__or__"),
    *("__repr__", "__reversed__", "__ror__", "__setitem__", "clear", "copy", "get", "items", "keys", "pop", "popitem"),
    *("setdefault", "update", "values"),
]:
    setattr(LazyInfos, _name, _filled(_name))
