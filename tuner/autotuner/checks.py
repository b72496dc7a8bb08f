"""What is checked when a kernel is decorated, so that a slip of the pen never goes unnoticed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfmodel.errors import UnknownNameError, UnknownOptionError, UsageError, closest
from tuner import triton_api
from tuner.deciding.policy import kept_of

PRUNING_KEYS = ("perf_model", "top_k", "early_config_prune")
"""What ``prune_configs_by`` may hold."""

_BACKEND_EXTRAS = frozenset({"waves_per_eu", "matrix_instr_nonkdim", "kpack", "grf_mode"})
"""Options of backends that may not be installed here."""


def check_argument_names(kernel: str, arg_names: Sequence[str], **lists: Iterable[str]) -> None:
    """Do nothing where every name is an argument of the kernel.

    Raises:
        UnknownNameError: one is not; Triton 3.6 drops it in silence and never tunes again.
    """
    for option, names in lists.items():
        for name in names:
            if name not in arg_names:
                raise UnknownNameError(
                    f"{option} has {name!r}, which is no argument of {kernel}"
                    f"{closest(str(name), arg_names)}; its arguments: {', '.join(arg_names)}"
                )


def names_of(given: str | Iterable[str] | None, arg_names: Sequence[str]) -> list[str]:
    """Return a list of names; text is one name where it is one, else names of one letter each."""
    if isinstance(given, str):
        letters = all(letter in arg_names for letter in given)
        return list(given) if letters and given not in arg_names else [given]
    return list(given or ())


def configs_of(configs: Any) -> list[Any]:
    """Return the configurations as a list, from whatever can be gone through.

    Raises:
        UsageError: it is one configuration, a kernel, or nothing that holds any.
    """
    if hasattr(configs, "all_kwargs"):
        raise UsageError(f"configs is one Config; use a list: [Config({configs.kwargs!r})]")
    if hasattr(configs, "arg_names") or callable(configs):
        name = getattr(configs, "__name__", "a function")
        raise UsageError(
            f"configs is the kernel {name} itself; write @tuner.autotune(configs=[...], key=[...])"
        )
    if isinstance(configs, str | Mapping) or not isinstance(configs, Iterable):
        raise UsageError(f"configs is {configs!r}; use a list of triton.Config({{...}})")
    return list(configs)


def check_callables(**functions: Any) -> None:
    """Do nothing where every value is a function or ``None``.

    Raises:
        UsageError: one is neither; Triton finds out when it calls it.
    """
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise UsageError(f"{name} is {function!r}; use a function")


def check_conflicts(configs: Iterable[Any], kwargs: Mapping[str, Any]) -> None:
    """Do nothing where a call sets nothing that a configuration sets.

    Raises:
        ValueError: it does, as in Triton.
    """
    for config in configs:
        conflicts = kwargs.keys() & config.kwargs.keys()
        if conflicts:
            raise ValueError(
                f"Conflicting meta-parameters: {', '.join(sorted(conflicts))}. "
                "They are set by the call and by a config; leave them out of one."
            )


def check_options(unknown: Mapping[str, Any], options: Iterable[str]) -> None:
    """Do nothing where the decorator got no option that it does not take.

    Raises:
        UnknownOptionError: it did; the message names the right place.
    """
    known = list(options)
    for name in unknown:
        if name in triton_api.CONFIG_OPTIONS:
            raise UnknownOptionError(
                f"autotune got {name!r}, which belongs to each triton.Config: "
                f"Config({{...}}, {name}={unknown[name]!r})"
            )
        if name in PRUNING_KEYS:
            raise UnknownOptionError(
                f"autotune got {name!r}, which belongs into prune_configs_by={{{name!r}: ...}}"
            )
        raise UnknownOptionError(
            f"autotune takes no option {name!r}{closest(name, known)}; it takes: {', '.join(known)}"
        )


def check_pruning(prune_configs_by: Mapping[str, Any] | None) -> None:
    """Do nothing where ``prune_configs_by`` can be followed.

    Raises:
        UnknownOptionError: a key that nobody reads; Triton ignores it in silence.
        TopKError: ``top_k`` is no count and no share.
    """
    for name in prune_configs_by or ():
        if name not in PRUNING_KEYS:
            raise UnknownOptionError(
                f"prune_configs_by has {name!r}{closest(str(name), PRUNING_KEYS)}; it takes: "
                f"{', '.join(PRUNING_KEYS)}"
            )
    given = prune_configs_by or {}
    check_callables(**{name: given.get(name) for name in ("perf_model", "early_config_prune")})
    if prune_configs_by and "top_k" in prune_configs_by:
        kept_of(1, prune_configs_by["top_k"])


def check_configs(
    kernel: str,
    arg_names: Sequence[str],
    configs: Sequence[Any],
    decorator_options: Iterable[str],
    what: str = "configs",
) -> None:
    """Do nothing where every configuration's keys can be meant.

    Raises:
        UnknownOptionError: a key belongs to the decorator, or is a misspelt argument or option.
        UsageError: an entry is no Config.
    """
    options = frozenset(decorator_options)
    backend = triton_api.backend_options() | _BACKEND_EXTRAS
    for position, config in enumerate(configs):
        if not hasattr(config, "all_kwargs"):
            raise UsageError(
                f"{what}[{position}] of {kernel} is {config!r}; use triton.Config({{...}})"
            )
        for name in config.kwargs:
            if name in arg_names or name in backend:
                continue
            place = f"{what}[{position}] of {kernel} has {name!r}"
            if name in options:
                raise UnknownOptionError(f"{place}, which is an option of autotune itself")
            near = closest(name, arg_names) or closest(name, triton_api.CONFIG_OPTIONS)
            if near:
                raise UnknownOptionError(
                    f"{place}, which is no argument of the kernel{near}; "
                    f"its arguments: {', '.join(arg_names)}"
                )
