"""A kernel that picks its own configuration: Triton's Autotuner, deciding by the model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tuner import devices, triton_api
from tuner.autotuner import checks
from tuner.autotuner.buckets import neighbours_of
from tuner.autotuner.call_key import CallKey, Key
from tuner.autotuner.hooks import Hooks
from tuner.autotuner.processes import alive, reduced
from tuner.autotuner.settings import Settings
from tuner.deciding.accounting import Account
from tuner.deciding.binding import Binding
from tuner.deciding.decision import Call, Decision, Octave
from tuner.deciding.tiles import TileNames, TileSet
from tuner.identity import kernel_hash
from tuner.measure.isolation import Isolation

if TYPE_CHECKING:
    from tuner.store import Store

STOCK_OPTIONS = (
    "configs", "key", "prune_configs_by", "reset_to_zero", "restore_value", "pre_hook",
    "post_hook", "warmup", "rep", "use_cuda_graph", "do_bench", "cache_results",
)  # fmt: skip
OWN_OPTIONS = (
    "policy", "k", "family", "problem", "names", "gpu", "buckets", "deterministic", "budget_s",
    "device", "rank_timeout_s", "check", "isolate", "limit_s",
)  # fmt: skip

ACCOUNTS_KEPT = 1024  # decisions of one kernel that `explain` remembers


class _ThreadState(threading.local):
    """What one thread is in the middle of."""

    deciding: int = 0


_thread = _ThreadState()


class Autotuner(triton_api.StockAutotuner):  # type: ignore[misc]  # Triton publishes no types
    """Triton's Autotuner with the decision replaced; made by `tuner.autotune`.

    What Triton and other libraries read of an Autotuner is here and means the same. Nothing of a
    call is kept on this object, so threads may share it.
    """

    def __init__(
        self,
        fn: Any,
        arg_names: Sequence[str],
        configs: Sequence[Any] | None,
        key: Sequence[str] | None,
        reset_to_zero: Sequence[str] | None,
        restore_value: Sequence[str] | None,
        pre_hook: Callable[..., Any] | None = None,
        post_hook: Callable[..., Any] | None = None,
        prune_configs_by: Mapping[str, Any] | None = None,
        warmup: Any = None,
        rep: Any = None,
        use_cuda_graph: bool = False,
        do_bench: Callable[..., Any] | None = None,
        cache_results: bool = False,
        *,
        settings: Settings | None = None,
        binding: Binding | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self._nargs = threading.local()
        plain = triton_api.base_function(fn)
        self.name: str = getattr(plain, "__name__", "kernel")
        self.module: str = getattr(plain, "__module__", "")
        given = binding.keys if key is None and binding is not None else key
        keys = checks.names_of(given, arg_names)
        reset_to_zero = checks.names_of(reset_to_zero, arg_names)
        restore_value = checks.names_of(restore_value, arg_names)
        checks.check_argument_names(
            self.name, arg_names, key=keys, reset_to_zero=reset_to_zero,
            restore_value=restore_value,
        )  # fmt: skip
        checks.check_pruning(prune_configs_by)
        checks.check_configs(self.name, arg_names, configs or (), (*STOCK_OPTIONS, *OWN_OPTIONS))
        super().__init__(
            fn, arg_names, configs, keys, reset_to_zero, restore_value, pre_hook=pre_hook,
            post_hook=post_hook, prune_configs_by=prune_configs_by, warmup=warmup, rep=rep,
            use_cuda_graph=use_cuda_graph, do_bench=do_bench, cache_results=cache_results,
        )  # fmt: skip
        self.settings = settings or Settings()
        self.binding = binding
        self.hooks = Hooks(pre_hook, post_hook, self.reset_to_zero)
        self.own_do_bench = do_bench
        """The user's timer. What Triton makes of ``warmup`` and ``rep`` needs a device."""
        self.makes_configs = not configs and binding is not None
        self.tile_names: TileNames | None = None
        self.tile_set: TileSet | None = None
        if binding is not None:
            self.tile_names = TileNames(
                self.name, arg_names, configs or (), names or {}, binding.family
            )
            self.tile_set = TileSet(self.tile_names, self.configs)
        self.made: dict[Any, Any] = {}
        self.texts: dict[int, tuple[Any, dict[str, Any], str]] = {}  # see `keys.text_of`
        self.pinned: Any = None
        self.looked_up: dict[Key, Any] = {}
        self.distinct: list[Any] | None = None  # a list of configurations without a duplicate
        self._interpreted = triton_api.is_interpreted(fn)
        self.call_key = CallKey(
            arg_names, keys, () if binding is None else binding.unit_strides,
            self.settings.buckets,
            (lambda: None) if self._interpreted else devices.current_index,
        )  # fmt: skip
        self.best_config: Any = None
        self.late_decisions = 0
        """Keys that were decided during ordinary calls although `warm` or `tune` had been used."""
        self._prepares = self.hooks.on_launch
        self._warmed = False
        self._single: Any = None
        self._accounts: dict[Key, Decision] = {}
        self.judged: dict[Octave, list[tuple[list[Any], Any]]] = {}
        self._lock = threading.Lock()
        self._key_locks: dict[Key, threading.Lock] = {}
        alive.add(self)

    # What a call does

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Launch with the configuration chosen for these arguments, choosing it if need be."""
        configs = self.configs
        if self._single is not None and len(configs) == 1 and configs[0] is self._single:
            config = self._single
        else:
            key = self.call_key(args, kwargs)
            config = self.cache.get(key)
            if config is None:
                config = self._decide(key, args, kwargs)
        self.best_config = config
        chosen = config.all_kwargs()
        if self._prepares or config.pre_hook is not None:
            arguments = {**dict(zip(self.arg_names, args, strict=False)), **kwargs, **chosen}
            self.hooks.before_launch(arguments)
            if config.pre_hook is not None:
                config.pre_hook(arguments)
        return self.fn.run(*args, **kwargs, **chosen)

    def _decide(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Choose for a key that is new to this process; one thread a key, the others wait."""
        checks.check_conflicts(self.configs, kwargs)
        call = Call.of(self.arg_names, args, kwargs)
        if _thread.deciding:
            # A kernel launched by a hook, or while another is timed: neither timed nor kept, and no
            # lock is waited for, since another thread may wait for this one's.
            return self._new_decision(call, may_time=False).config
        if not self._interpreted and triton_api.driver_of_process(start=True) is not None:
            key = self.call_key(args, kwargs)  # the device has a number now
        with self._deciding(key):
            config = self.cache.get(key) or self._given_by_others(call)
            if config is None:
                self._warn_if_late(key)
                capturing = devices.is_capturing()
                decision = self._new_decision(
                    call, may_time=not capturing, octave_=neighbours_of(self, key, call)
                )
                if capturing and not decision.keep:
                    decision.notes.append("a CUDA graph was being captured: to be timed later")
                self._remember(key, decision)
                config = decision.config
        return config

    def _new_decision(
        self,
        call: Call,
        *,
        may_time: bool,
        preview: bool = False,
        octave_: Octave | None = None,
    ) -> Decision:
        from tuner.deciding.decide import decide  # noqa: PLC0415 - it loads the model

        _thread.deciding += 1
        try:
            return decide(self, call, may_time=may_time, preview=preview, neighbours=octave_)
        finally:
            _thread.deciding -= 1

    @contextmanager
    def _deciding(self, key: Key) -> Iterator[None]:
        with self._lock:
            lock = self._key_locks.setdefault(key, threading.Lock())
        try:
            with lock:
                yield
        finally:
            with self._lock:
                if key in self.cache:
                    self._key_locks.pop(key, None)

    def _remember(self, key: Key, decision: Decision) -> None:
        with self._lock:
            self._accounts.pop(key, None)
            self._accounts[key] = decision
            while len(self._accounts) > ACCOUNTS_KEPT:
                self._accounts.pop(next(iter(self._accounts)))
        if not decision.keep:
            return
        if len(self.configs) == 1 and decision.config is self.configs[0]:
            self._single = decision.config
        self.cache[key] = decision.config

    def _given_by_others(self, call: Call) -> Any:
        """A configuration that other code put into ``cache`` under Triton's own key."""
        if not self.cache:
            return None
        values = [call.arguments[name] for name in self.keys if name in call.arguments]
        types = [str(v.dtype) for v in call.arguments.values() if hasattr(v, "dtype")]
        try:
            return self.cache.get((*values, *types))
        except TypeError:
            return None

    # What Triton and other libraries call

    @property
    def nargs(self) -> Any:
        """The arguments of the call that this thread is in, ``None`` outside."""
        return getattr(self._nargs, "value", None)

    @nargs.setter
    def nargs(self, value: Any) -> None:
        self._nargs.value = value

    @property
    def prunes(self) -> bool:
        """Whether the user, or a subclass, has a say in which configurations are left."""
        return bool(
            self.early_config_prune
            or self.perf_model
            or type(self).prune_configs is not Autotuner.prune_configs
        )

    def prune_configs(self, kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the configurations that the user's functions keep for ``nargs`` and ``kwargs``."""
        if not (self.early_config_prune or self.perf_model):
            return list(self.configs)
        from tuner.deciding.decide import prune  # noqa: PLC0415 - it loads the model

        positional = self.nargs or {}
        args = tuple(positional[name] for name in self.arg_names if name in positional)
        return prune(self, Call.of(self.arg_names, args, kwargs), self.configs)

    def call_prune_configs(self, call: Call, every: Sequence[Any]) -> list[Any]:
        """Call `prune_configs` as Triton does, also where a subclass overrides it."""
        before, self.nargs = self.nargs, dict(zip(self.arg_names, call.args, strict=False))
        try:
            if self.makes_configs and type(self).prune_configs is Autotuner.prune_configs:
                from tuner.deciding.decide import prune  # noqa: PLC0415 - as above

                return prune(self, call, every)
            return list(self.prune_configs(dict(call.kwargs)))
        finally:
            self.nargs = before

    def key_of(self, call: Call) -> Key:
        """Return the key of a call in which types may stand for tensors."""
        types = {n: v for n, v in call.arguments.items() if triton_api.is_dtype(v)}
        if types:
            return self.call_key.of_types(call.arguments, types)
        return self.call_key(call.args, call.kwargs)

    def can_time(self, identity: Any, *, isolated: bool = True) -> bool:
        """Whether there is anything to time with."""
        given = (self.settings.device, self.own_do_bench)
        if any(each is not None for each in given):
            return True
        if isolated and isinstance(self.settings.isolate, Isolation):
            return True
        old = self._do_bench is not None  # Triton's own, of warmup= and rep=
        return identity not in (devices.INTERPRETER, *(() if old else (devices.NOWHERE,)))

    def memory(self) -> Store:
        """Return where measurements are kept."""
        from tuner.store import Store  # noqa: PLC0415 - not needed for a warm call

        return Store.open()

    @cached_property
    def source_hash(self) -> str:
        """What tells this kernel's source, callees included, from any other."""
        return kernel_hash(self.fn)

    def tile_set_of(self, configs: Sequence[Any]) -> TileSet:
        """Return the tiles of another list of configurations than the user's."""
        assert self.tile_names is not None
        key = tuple(map(id, configs))
        kept = self.made.get(key)
        if kept is None:
            kept = self.made[key] = (list(configs), TileSet(self.tile_names, list(configs)))
        return kept[1]

    def has_default(self, name: str) -> bool:
        """Whether the kernel's argument ``name`` may be left out."""
        import inspect  # noqa: PLC0415 - pins are rare

        return triton_api.default_value(self.fn, name) is not inspect.Parameter.empty

    # What this project adds

    def pin(self, config: Any | Mapping[str, Any] | None) -> None:
        """Use one configuration verbatim from now on, or with ``None`` choose again.

        Raises:
            UnknownNameError: a key that the kernel does not have, or one that is missing.
        """
        if isinstance(config, Mapping):
            from tuner.deciding.pins import config_of_pin  # noqa: PLC0415 - pins are rare

            config = config_of_pin(
                self.name, self.arg_names, self.configs, config, self.has_default
            )
        elif config is not None:
            checks.check_configs(self.name, self.arg_names, [config], OWN_OPTIONS, "pin")
        self.pinned = config
        self._forget()

    def explain(self, *args: Any, **kwargs: Any) -> Account:
        """Print and return what became of every configuration for these arguments, and why.

        A call that was decided is accounted for as it was; for any other the account says what
        would be done. Nothing is timed or launched, and no GPU is needed. Arguments are those of a
        call, or by name those of a shape, as for `tuner.config_for`.

        Raises:
            UnknownShapeError: a value is missing, or a name is no argument.
        """
        from tuner.autotuner.ahead import explained_call  # noqa: PLC0415 - as above
        from tuner.deciding.account_of import account_of  # noqa: PLC0415 - it loads the model

        call = explained_call(self, args, kwargs)
        decision = self._accounts.get(self.key_of(call))
        if decision is None:
            decision = self._new_decision(call, may_time=True, preview=True)
        account = account_of(self, decision)
        print(account)
        return account

    def tune(self, shapes: Any, inputs: Callable[..., Any] | None = None) -> dict[Any, Any]:
        """Decide for each shape ahead of time, timing as the policy says."""
        from tuner.autotuner.ahead import tune  # noqa: PLC0415 - not part of a call

        self._warmed = True
        return tune(self, shapes, inputs)

    def warm(self, shapes: Any) -> dict[Any, Any]:
        """Decide for each shape ahead of time, with nothing timed."""
        from tuner.autotuner.ahead import warm  # noqa: PLC0415 - not part of a call

        self._warmed = True
        return warm(self, shapes)

    def decide_without_timing(self, call: Call) -> Decision:
        """Decide for a call that is not made, and keep nothing."""
        return self._new_decision(call, may_time=False)

    def decide_ahead(self, call: Call, *, may_time: bool) -> Decision:
        """Decide for a call that is not made, and keep the decision."""
        key = self.key_of(call)
        with self._deciding(key):
            decision = self._new_decision(call, may_time=may_time)
            # Nothing was timed because nothing was asked to be: that answer stands.
            known = decision.view.known
            decision.keep = known is None or bool(known.flops)
            self._remember(key, decision)
        return decision

    def _warn_if_late(self, key: Key) -> None:
        if not self._warmed:
            return
        self.late_decisions += 1
        if self.late_decisions == 1:
            from tuner.autotuner.ahead import warn_late  # noqa: PLC0415 - once a kernel

            warn_late(self, key)

    def _forget(self) -> None:
        with self._lock:
            self.cache.clear()
            self._accounts.clear()
            self.judged.clear()
            self.looked_up.clear()
            self._single = None

    def reset_after_fork(self) -> None:
        """Forget locks that a thread of the parent process held."""
        self._lock = threading.Lock()
        self._key_locks = {}

    def __copy__(self) -> Autotuner:
        """A kernel is one thing, as a function is, also in a copy of what holds it."""
        return self

    def __deepcopy__(self, _memo: Any) -> Autotuner:
        return self

    def __reduce__(self) -> Any:
        """Pickle by name, as functions are, with what was decided: another process keeps it."""
        return reduced(self)
