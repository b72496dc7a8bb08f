"""The parts of Triton that the tuner stands on, private ones included, and stand-ins without it.

Everything is looked up defensively: Triton may be absent, or a placeholder module without a
runtime, and names move between versions. `tests/tuner/test_triton_api.py` says which are expected.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from perfmodel.errors import NotInstalledError

try:
    from triton.runtime import autotuner as _autotuner
    from triton.runtime import driver as _driver

    StockAutotuner: Any = _autotuner.Autotuner
    Config: Any = _autotuner.Config
    DRIVER: Any = _driver
    INSTALLED = True
except (ImportError, AttributeError):  # absent, or a placeholder
    INSTALLED = False
    DRIVER = None

    class _AbsentConfig:
        """Holds what ``triton.Config`` holds, so that kernels can be decorated without Triton."""

        def __init__(
            self,
            kwargs: Mapping[str, Any],
            num_warps: int = 4,
            num_stages: int = 3,
            num_ctas: int = 1,
            maxnreg: int | None = None,
            pre_hook: Callable[..., Any] | None = None,
            ir_override: str | None = None,
        ) -> None:
            self.kwargs = dict(kwargs)
            self.num_warps = num_warps
            self.num_stages = num_stages
            self.num_ctas = num_ctas
            self.maxnreg = maxnreg
            self.pre_hook = pre_hook
            self.ir_override = ir_override

        def all_kwargs(self) -> dict[str, Any]:
            """Return what a launch is given."""
            names = ("num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override")
            options = {name: getattr(self, name) for name in names}
            return self.kwargs | {k: v for k, v in options.items() if v is not None}

        def __str__(self) -> str:
            return ", ".join(f"{name}: {value}" for name, value in self.all_kwargs().items())

        def __eq__(self, other: object) -> bool:
            return isinstance(other, _AbsentConfig) and vars(self) == vars(other)

        def __hash__(self) -> int:
            return hash((*self.all_kwargs().items(), self.pre_hook))

    class _AbsentAutotuner:
        """Keeps what Triton's Autotuner keeps and says what to install when it is launched."""

        def __init__(
            self,
            fn: Any,
            arg_names: list[str],
            configs: list[Any] | None,
            key: list[str],
            reset_to_zero: list[str] | None,
            restore_value: list[str] | None,
            pre_hook: Any = None,
            post_hook: Any = None,
            prune_configs_by: Mapping[str, Any] | None = None,
            warmup: Any = None,
            rep: Any = None,
            use_cuda_graph: bool = False,
            do_bench: Any = None,
            cache_results: bool = False,
        ) -> None:
            pruning = prune_configs_by or {}
            self.fn = self.base_fn = fn
            self.arg_names, self.keys = arg_names, key
            self.configs = configs or [Config({})]
            self.cache: dict[Any, Any] = {}
            self.reset_to_zero = list(reset_to_zero or ())
            self.restore_value = list(restore_value or ())
            self.pre_hook, self.post_hook = pre_hook, post_hook
            self.user_defined_pre_hook = pre_hook is not None
            self.user_defined_post_hook = post_hook is not None
            self.perf_model = pruning.get("perf_model")
            self.configs_top_k = pruning.get("top_k", 1.0)
            self.early_config_prune = pruning.get("early_config_prune")
            self.num_warmups, self.num_reps = warmup, rep
            self.use_cuda_graph, self._do_bench = use_cuda_graph, do_bench
            self.cache_results = cache_results

        def __getitem__(self, grid: Any) -> Callable[..., Any]:
            return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

        def run(self, *_args: Any, **_kwargs: Any) -> Any:
            name = getattr(self.base_fn, "__name__", "kernel")
            raise NotInstalledError(
                f"kernel {name!r} needs Triton, which is not installed; "
                "install it with: pip install 'perfmodel[triton]'"
            )

    Config = _AbsentConfig
    StockAutotuner = _AbsentAutotuner

CONFIG_OPTIONS: tuple[str, ...] = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")
"""Fields of a Config, its tile parameters and hook aside."""


def argument_names(function: Any) -> list[str]:
    """Return the names of a kernel's arguments, whatever wraps it."""
    names = getattr(function, "arg_names", None)
    return list(inspect.signature(function).parameters) if names is None else list(names)


def constexpr_names(function: Any) -> frozenset[str]:
    """Return the names of a kernel's compile-time arguments, by their annotations."""
    plain = base_function(function)
    try:
        parameters = inspect.signature(plain).parameters.values()
    except (TypeError, ValueError):
        return frozenset()
    return frozenset(p.name for p in parameters if "constexpr" in str(p.annotation))


def base_function(function: Any) -> Any:
    """Return the plain Python function inside a kernel."""
    while not inspect.isfunction(function) and hasattr(function, "fn"):
        function = function.fn
    return function


def jit_function(function: Any) -> Any:
    """Return the kernel below any heuristics."""
    while hasattr(function, "fn") and hasattr(getattr(function, "fn", None), "arg_names"):
        function = function.fn
    return function


def tuned(function: Any, known: Container[Any]) -> Any:
    """Return the first of ``known`` at or below a kernel's decorators, else ``function`` itself."""
    found = function
    while found is not None:
        if type(found).__hash__ is not None and found in known:
            return found
        found = getattr(found, "fn", None)
    return function


def is_interpreted(function: Any) -> bool:
    """Whether the kernel runs in Triton's interpreter: it has no speed to measure there."""
    return type(jit_function(function)).__name__ == "InterpretedFunction"


def is_jit(function: Any) -> bool:
    """Whether it is Triton's own kernel object, compiled or interpreted."""
    return bool(_KERNELS & {kind.__name__ for kind in type(function).__mro__})


def is_heuristics(function: Any) -> bool:
    """Whether it is what ``@triton.heuristics`` makes."""
    return "Heuristics" in {kind.__name__ for kind in type(function).__mro__}


def heuristic_values(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments that heuristics on top of a kernel would give it, in their order."""
    found: dict[str, Any] = {}
    while hasattr(function, "values") and hasattr(function, "fn"):
        named = dict(zip(function.arg_names, args, strict=False))
        for name, value in function.values.items():
            found[name] = value({**named, **kwargs, **found})
        function = function.fn
    return found


_KERNELS = {"JITFunction", "InterpretedFunction"}

NO_DEFAULT = inspect.Parameter.empty


def default_value(function: Any, name: str) -> Any:
    """Return a kernel argument's default, ``inspect.Parameter.empty`` for none."""
    try:
        return inspect.signature(base_function(function)).parameters[name].default
    except (KeyError, TypeError, ValueError):
        return inspect.Parameter.empty


def driver_of_process(*, start: bool = False) -> Any:
    """Return Triton's active driver, ``None`` where there is none.

    Unless ``start`` is set, only one that something else has already asked for: looking for a
    device must not be a side effect. Where none could be started this is not tried again: it takes
    a tenth of a decision. One that a launch, or other code, starts later is found all the same.
    """
    global _driver_missing  # noqa: PLW0603 - a fact about the process
    if DRIVER is None:
        return None
    # From 3.6 both live on the configuration object; an earlier one is asked in full.
    found = getattr(DRIVER, "_active", None)
    found = found if found is not None else getattr(DRIVER, "_default", None)
    if found is not None or not start or _driver_missing:
        return found
    try:
        return DRIVER.active
    except Exception:  # no driver, or one that cannot start; each version has its own class
        _driver_missing = True
        return None


_driver_missing = False


def backend_options() -> frozenset[str]:
    """Return the launch options that an installed backend of Triton's own knows."""
    names: set[str] = set()
    for module, classes in (("nvidia", "CUDAOptions"), ("amd", "HIPOptions")):
        try:
            loaded = __import__(f"triton.backends.{module}.compiler", fromlist=[classes])
            names |= set(getattr(loaded, classes).__dataclass_fields__)
        except (ImportError, AttributeError):
            continue
    return frozenset(names)


def knob(group: str, name: str) -> Any:
    """Return one of Triton's knobs (``autotuning.print``), ``None`` where it has none such."""
    if not INSTALLED:
        return None
    try:
        from triton import knobs  # noqa: PLC0415 - from 3.4 on
    except ImportError:
        variable = f"TRITON_{name.upper()}_{group.upper()}"
        return os.environ.get(variable) == "1"
    return getattr(getattr(knobs, group, None), name, None)


def autotuner_error(message: str) -> Exception:
    """Return the error that Triton's own autotuner would raise."""
    try:
        from triton.runtime.errors import AutotunerError  # noqa: PLC0415 - optional, and from 3.0 on
    except ImportError:
        return ValueError(message)
    return AutotunerError(message)  # type: ignore[no-any-return]  # Triton publishes no types


def is_dtype(value: Any) -> bool:
    """Whether an argument is an element type that stands for a tensor, as in ``kernel.warmup``."""
    return type(value).__name__ in ("dtype", "DType") and not hasattr(value, "data_ptr")


def specialized(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[str, dict[str, str], dict[str, Any], dict[tuple[int, ...], Any]] | None:
    """Return target, signature, constants and attributes that a launch would be compiled with.

    Worked out by Triton's own launcher, so that its cache finds what is compiled elsewhere.
    ``None`` where this Triton's launcher has other parts, or the target is no CUDA device.
    """
    given = dict(kwargs)
    for name in ("grid", "warmup"):
        given.pop(name, None)
    try:
        given |= heuristic_values(function, args, given)
        while hasattr(function, "values") and hasattr(function, "fn"):
            function = function.fn
        device = DRIVER.active.get_current_device()
        _, _, target, backend, binder = function.device_caches[device]
        bound, specialization, options = binder(*args, **given)
        _, signature, constants, attributes = function._pack_args(
            backend, given, bound, specialization, options
        )
    except (AttributeError, TypeError, ValueError, KeyError, AssertionError):
        return None  # what is wrong with the call shows when it is launched
    if target.backend != "cuda" or any(len(path) != 1 for path in constants):
        return None
    names = list(signature)
    return (
        f"sm_{target.arch}",
        dict(signature),
        {names[path[0]]: value for path, value in constants.items()},
        dict(attributes),  # empty ones included: the cache key holds their text
    )


@contextmanager
def binaries_dropped(function: Any) -> Iterator[None]:
    """Let go of what is compiled inside; Triton's own cache has it where it is needed again.

    Triton keeps every binary of a kernel while the process lives, with all its text.
    """
    before = _binaries(function)
    known = None if before is None else set(before)
    try:
        yield
    finally:
        after = _binaries(function)
        if after is not None:
            for key in set(after) - (known or set()):
                after.pop(key, None)


def _binaries(function: Any) -> dict[Any, Any] | None:
    if DRIVER is None or not hasattr(jit_function(function), "device_caches"):
        return None
    driver = driver_of_process()
    if driver is None:
        return None
    try:
        found = jit_function(function).device_caches[driver.get_current_device()][0]
    except Exception:  # a private structure: another version may have another
        return None
    return found if isinstance(found, dict) else None
