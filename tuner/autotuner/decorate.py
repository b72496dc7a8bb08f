"""The decorator: `tuner.autotune`, in place of ``triton.autotune``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfmodel.errors import UnknownNameError, UnknownOptionError, UsageError
from perfmodel.hardware.gpu import Gpu
from tuner import triton_api
from tuner.autotuner import checks
from tuner.autotuner.buckets import SPELLINGS, parse_buckets
from tuner.autotuner.decorator import OWN_OPTIONS, STOCK_OPTIONS, Autotuner
from tuner.autotuner.settings import LIMIT_S, VERIFIED, Settings
from tuner.deciding.binding import bind
from tuner.deciding.policy import Policy, parse_policy
from tuner.deciding.ranks import TIMEOUT_S
from tuner.measure.device import Device
from tuner.measure.isolation import Isolation


def autotune(
    configs: Sequence[Any] | None = None,
    key: Sequence[str] | None = None,
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., Any] | None = None,
    post_hook: Callable[..., Any] | None = None,
    warmup: Any = None,
    rep: Any = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool = False,
    *,
    policy: Policy | str | None = None,
    k: int = VERIFIED,
    family: str | None = None,
    problem: Callable[..., Any] | None = None,
    names: Mapping[str, str] | None = None,
    gpu: Gpu | str | Path | None = None,
    buckets: Mapping[str, Any] | bool | None = None,
    deterministic: bool = False,
    budget_s: float | None = None,
    device: Device | None = None,
    rank_timeout_s: float = TIMEOUT_S,
    check: Callable[[Mapping[str, Any]], str | None] | None = None,
    isolate: bool | Isolation | None = None,
    limit_s: float = LIMIT_S,
    **unknown: Any,
) -> Callable[[Any], Autotuner]:
    """Decorate a kernel as ``triton.autotune`` does; its arguments come first and mean the same.

    ``reset_to_zero`` and ``pre_hook`` are honoured on every launch, the first and later ones alike.
    Times are kept across processes whatever ``cache_results`` says.

    Args:
        configs: may be left out with a ``family``: the model's space for the device is used.
        key: may be left out with a ``family``: sizes and strides.
        prune_configs_by, reset_to_zero, restore_value, pre_hook, post_hook, warmup, rep,
        use_cuda_graph, do_bench, cache_results: Triton's.
        policy: ``model``, ``verify``, ``full`` or ``off`` (`Policy`); by default ``verify`` where
            the model knows the problem, else ``full``. ``PERFMODEL_AUTOTUNE`` overrides it.
        k: how many of the model's first ``verify`` times, beside the user's first.
        family: ``"gemm"`` reads the problem from conventional argument and config names;
            ``"attention"`` and ``"moe"`` take a ``problem`` besides.
        problem: a function of the arguments that returns the problem (a `Gemm`, an `Attention`, a
            `GroupedGemm`, as the family says), for other names.
        names: this kernel's names for roles (``m``, ``a``, ``block_m``) that go by another.
        gpu: the device that the model predicts for; by default the current one.
        buckets: arguments of the key whose values share a decision (`parse_buckets`); ``False``
            keeps the model from saying that a decision holds for a whole octave of rows.
        deterministic: never time.
        budget_s: seconds that one decision may time for.
        device: where to time instead of the current device (`tuner.measure.device.Device`).
        isolate: whether to time in a process of its own, which may hang or lose its CUDA context
            without harm: what takes longer than ``limit_s`` is cut off and, like what crashes, not
            tried again by any process. By default wherever a launch can be described in full: a
            kernel whose source is text and constants, tensors that share no memory, numbers, no
            hooks, no ``check``, and memory for a second set of inputs. Large floating-point tensors
            are random numbers there; ``False`` times on the call's own, in this process, as does
            what cannot be described: then a launch that never ends cannot be cut off.
            ``PERFMODEL_ISOLATE=0`` or ``1`` overrides it. ``True`` warns where it cannot be done.
        limit_s: seconds for one configuration, its loading included. Compilation has a limit of
            its own, in worker processes.
        check: looks at the arguments after a launch and returns what is wrong with the result,
            ``None`` for nothing; a configuration that is wrong is rejected before it can win.
        rank_timeout_s: how long ranks of a distributed job wait for rank 0.

    Raises:
        UnknownNameError: a name that is no argument of the kernel, an unknown policy or family.
        UnknownOptionError: an option that belongs elsewhere, or nowhere.
        UsageError: a value that cannot be used.
    """
    checks.check_options(unknown, (*STOCK_OPTIONS, *OWN_OPTIONS))
    checks.check_callables(
        problem=problem, pre_hook=pre_hook, post_hook=post_hook, do_bench=do_bench, check=check
    )
    if buckets is not None and not isinstance(buckets, bool | Mapping):
        raise UsageError(f"buckets is {buckets!r}; use {{argument: {SPELLINGS}}}, or False")
    if isolate and do_bench is not None:
        raise UsageError(
            "isolate asks for a worker's timer and do_bench is this process's; drop one"
        )
    if names and family is None and problem is None:
        raise UnknownOptionError(f"names is {dict(names)!r} without a family; add family='gemm'")
    # Now: what can be gone through once only would be empty for the second kernel.
    listed = None if configs is None else checks.configs_of(configs)
    chosen = None if policy is None else parse_policy(policy, "policy")

    def decorate(fn: Any) -> Autotuner:
        arg_names = triton_api.argument_names(fn)
        name = getattr(triton_api.base_function(fn), "__name__", "kernel")
        if key is None and family is None:
            raise UnknownNameError(
                f"{name} has no key; give the arguments whose values call for another config"
            )
        binding = bind(
            name, arg_names, family=family, problem=problem, names=names,
            key=checks.names_of(key, arg_names),
        )  # fmt: skip
        if not listed and key is None and binding is None:
            raise UnknownNameError(f"{name} has no configs; give some, or a family")
        asked = buckets if isinstance(buckets, Mapping) else {}
        given = key if key is not None else binding.keys if binding is not None else ()
        keys = checks.names_of(given, arg_names)
        settings = Settings(
            policy=chosen, k=k, gpu=gpu, deterministic=deterministic, budget_s=budget_s,
            device=device, rank_timeout_s=rank_timeout_s, check=check, isolate=isolate,
            limit_s=limit_s,
            buckets=parse_buckets(name, keys, asked), judged=buckets is not False,
        )  # fmt: skip
        return Autotuner(
            fn, arg_names, None if listed is None else list(listed), key, reset_to_zero,
            restore_value, pre_hook=pre_hook, post_hook=post_hook,
            prune_configs_by=prune_configs_by, warmup=warmup, rep=rep,
            use_cuda_graph=use_cuda_graph, do_bench=do_bench, cache_results=cache_results,
            settings=settings, binding=binding, names=names,
        )  # fmt: skip

    return decorate
