"""A kernel's hooks: called the same way on first and later calls, whatever arguments they take.

The rule, for every launch whose result the caller sees: ``pre_hook(arguments, reset_only=True)``,
or without one the arguments named in ``reset_to_zero`` set to zero; then the configuration's own
``pre_hook``; then the kernel. While timing, ``pre_hook`` and ``post_hook`` go round each launch as
in Triton. ``post_hook`` belongs to ``pre_hook`` calls that are not ``reset_only``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Arguments = Mapping[str, Any]


class Hooks:
    """What to do around launches.

    Args:
        pre_hook, post_hook: the user's, ``None`` for none.
        reset_to_zero: arguments to set to zero; a ``pre_hook`` replaces it, as in Triton.
    """

    def __init__(
        self,
        pre_hook: Callable[..., Any] | None,
        post_hook: Callable[..., Any] | None,
        reset_to_zero: Sequence[str],
    ) -> None:
        self._pre = None if pre_hook is None else _adapted(pre_hook, "reset_only")
        self._post = None if post_hook is None else _adapted(post_hook, "exception")
        self._zeroed = () if pre_hook is not None else tuple(reset_to_zero)
        self.on_launch = self._pre is not None or bool(self._zeroed)
        """Whether a launch needs `before_launch`."""
        self.called = self._pre is not None or self._post is not None
        """Whether any function of the user's is called around launches."""

    def before_launch(self, arguments: Arguments) -> None:
        """Prepare the launch whose result the caller sees."""
        if self._pre is not None:
            self._pre(arguments, True)
        else:
            self._zero(arguments)

    def before_timing(self, arguments: Arguments) -> None:
        """Prepare one launch that is timed."""
        if self._pre is not None:
            self._pre(arguments, False)
        else:
            self._zero(arguments)

    def after_timing(self, arguments: Arguments, exception: BaseException | None) -> None:
        """Follow one launch that was timed; ``exception`` is what it raised."""
        if self._post is not None:
            self._post(arguments, exception)

    def _zero(self, arguments: Arguments) -> None:
        for name in self._zeroed:
            if arguments.get(name) is not None:
                arguments[name].zero_()


def _adapted(hook: Callable[..., Any], second: str) -> Callable[[Arguments, Any], Any]:
    """Call ``hook`` with its second argument by name, by position, or not at all, as it takes it.

    Hooks were first called with the arguments alone; ``reset_only`` and ``exception`` came later.
    """
    try:
        parameters = list(inspect.signature(hook).parameters.values())
    except (TypeError, ValueError):  # a builtin: as Triton calls it today
        return lambda arguments, value: hook(arguments, **{second: value})
    kinds = {p.kind for p in parameters}
    if second in {p.name for p in parameters} or inspect.Parameter.VAR_KEYWORD in kinds:
        return lambda arguments, value: hook(arguments, **{second: value})
    positional = [
        p
        for p in parameters
        if p.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        and p.default is inspect.Parameter.empty
    ]
    if inspect.Parameter.VAR_POSITIONAL in kinds or len(positional) > 1:
        return hook
    return lambda arguments, _value: hook(arguments)
