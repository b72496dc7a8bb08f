"""The cheap key of a call: what tells one decision from another, device included.

It is worked out on every call, so it must cost less than Triton's own: the types of the arguments
choose a plan, made once, that says where to look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Key = tuple[Any, ...]
"""Values of the key's arguments, whether strides are 1, types of the tensors, and the device."""


@dataclass(frozen=True)
class _Plan:
    """Where the parts of the key lie in one form of call."""

    values: tuple[tuple[bool, Any], ...]  # positional?, index or name
    units: tuple[tuple[bool, Any], ...]
    dtypes: tuple[tuple[bool, Any], ...]
    form: str


def _form(values: Iterable[str], tensors: Iterable[str]) -> str:
    """Which arguments the parts belong to: two optional tensors of one type are not the same."""
    return f"{','.join(values)};{','.join(tensors)}"


class CallKey:
    """Makes keys of calls to one kernel.

    Two forms of a call, positional or by name, have the same key. Beyond Triton's key (the values
    named in ``key`` and every dtype) there is the device, and for a known family whether each
    stride is 1.

    Args:
        arg_names: the kernel's.
        key: arguments whose values matter.
        unit_strides: strides of which only being 1 matters.
        buckets: functions to apply to values of the key, by argument name.
        device: returns the current device, cheaply.
    """

    def __init__(
        self,
        arg_names: Sequence[str],
        key: Sequence[str],
        unit_strides: Sequence[str],
        buckets: Mapping[str, Callable[[Any], Any]],
        device: Callable[[], Any],
    ) -> None:
        self.arg_names = tuple(arg_names)
        self.names = tuple(key)
        self.units = tuple(name for name in unit_strides if name not in self.names)
        self._buckets = tuple((i, buckets[name]) for i, name in enumerate(key) if name in buckets)
        self._device = device
        self._plans: dict[Any, _Plan] = {}

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Key:
        """Return the key of the call."""
        form = (tuple(map(type, args)), tuple(kwargs), tuple(map(type, kwargs.values())))
        plan = self._plans.get(form)
        if plan is None:
            plan = self._plans[form] = self._plan(args, kwargs)
        values = [args[at] if here else kwargs[at] for here, at in plan.values]
        if self._buckets:
            for i, bucket in self._buckets:
                values[i] = bucket(values[i])
        for here, at in plan.units:
            values.append((args[at] if here else kwargs[at]) == 1)
        for here, at in plan.dtypes:
            values.append((args[at] if here else kwargs[at]).dtype)
        values.append(plan.form)
        values.append(self._device())
        return tuple(values)

    def of_types(self, arguments: Mapping[str, Any], dtypes: Mapping[str, Any]) -> Key:
        """Return the key of a call whose tensors are known by their types only."""
        values = [arguments[name] for name in self.names if name in arguments]
        for i, bucket in self._buckets:
            values[i] = bucket(values[i])
        values += [arguments[name] == 1 for name in self.units if name in arguments]
        values += [dtypes[name] for name in self.arg_names if name in dtypes]
        form = _form(
            (n for n in self.names if n in arguments), (n for n in self.arg_names if n in dtypes)
        )
        return (*values, form, self._device())

    def _plan(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Plan:
        where: dict[str, tuple[bool, Any]] = {
            name: (True, i) for i, name in enumerate(self.arg_names[: len(args)])
        }
        where |= {name: (False, name) for name in kwargs if name in self.arg_names}

        def value(name: str) -> Any:
            here, at = where[name]
            return args[at] if here else kwargs[at]

        return _Plan(
            values=tuple(where[name] for name in self.names if name in where),
            units=tuple(where[name] for name in self.units if name in where),
            dtypes=tuple(
                where[name]
                for name in self.arg_names
                if name in where and hasattr(value(name), "dtype")
            ),
            form=_form(
                (name for name in self.names if name in where),
                (n for n in self.arg_names if n in where and hasattr(value(n), "dtype")),
            ),
        )
