"""What must hold still while the process is copied.

A child has the forking thread alone: a lock that another thread held stays locked there for good,
and a sqlite connection believes that it holds the parent's file locks.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Forks(Protocol):
    """Something that is told of forks."""

    def before_fork(self) -> None:
        """Hold still."""

    def after_fork(self, *, child: bool) -> None:
        """Go on, in the parent or the child."""


class ForkLock(AbstractContextManager[None]):
    """A lock that no fork leaves locked in the child."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        watch(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_failure: Any) -> None:
        self._lock.release()

    def before_fork(self) -> None:
        """Wait until no other thread is inside."""
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        """Let others in; in the child there are none, and the lock is a new one."""
        if child:
            self._lock = threading.RLock()
        else:
            self._lock.release()


_watched: weakref.WeakSet[Any] = weakref.WeakSet()
_hooks = threading.Lock()
_state: dict[str, Any] = {"hooked": False, "held": []}


def watch(thing: Forks) -> None:
    """Have ``thing`` told of forks while it lives; Python cannot unhook, so one hook serves all."""
    with _hooks:
        _watched.add(thing)
        if not _state["hooked"] and hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=_before,
                after_in_parent=lambda: _after(child=False),
                after_in_child=lambda: _after(child=True),
            )
            _state["hooked"] = True


def _before() -> None:
    _hooks.acquire()
    _state["held"] = list(_watched)
    for each in _state["held"]:
        each.before_fork()


def _after(*, child: bool) -> None:
    held, _state["held"] = _state["held"], []
    for each in reversed(held):
        each.after_fork(child=child)
    _hooks.release()  # held by this very thread, in the child as well
