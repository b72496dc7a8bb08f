"""Deciding one call: legality first, then the model, then as much measuring as was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.errors import (
    IllegalConfigError,
    PerfmodelError,
)
from perfmodel.families import TileProblem, family_of
from perfmodel.predictor import Predictor
from perfmodel.problems.gemm import Gemm
from perfmodel.tiling.legality import legal_mask, require_dtype
from tuner import devices, keys, triton_api
from tuner.deciding.accounting import Fate
from tuner.deciding.arguments import is_empty
from tuner.deciding.binding import NotKnown
from tuner.deciding.decision import Call, Decision, Octave, View
from tuner.deciding.legality import generic_reasons
from tuner.deciding.pins import config_of_pin, pinned_outside
from tuner.deciding.policy import Policy, kept_of, policy_in_force
from tuner.deciding.ranks import Ranks
from tuner.deciding.tiles import TileSet
from tuner.deciding.unusable import Fates, explain_illegal, none_usable
from tuner.measure.device import DeviceIdentity

if TYPE_CHECKING:
    from tuner.autotuner.decorator import Autotuner

WITH_TIME = (Fate.TIMED, Fate.STORED)


@lru_cache(maxsize=1)
def shipped_predictor() -> Predictor:
    """Return the predictor with the shipped model, loaded once a process."""
    return Predictor()


def pinned(kernel: Autotuner) -> Any | None:
    """Return the configuration that is fixed from outside, ``None`` for none.

    Raises:
        DataError, UnknownNameError: the pin cannot be used.
    """
    pin = kernel.pinned
    if pin is not None:
        return pin
    outside = pinned_outside(kernel.name, kernel.module)
    if outside is None:
        return None
    return config_of_pin(kernel.name, kernel.arg_names, kernel.configs, outside, kernel.has_default)


def view_of(kernel: Autotuner, call: Call, identity: DeviceIdentity) -> View:
    """Return what the model sees of a call; its scores come later."""
    if kernel.binding is None:
        return View(None, devices.gpu_for_model(kernel.settings.gpu, identity))
    gpu = devices.gpu_for_model(kernel.settings.gpu, identity)
    problem = kernel.binding.problem(call.arguments, gpu)
    if not isinstance(problem, NotKnown) and gpu is not None:
        try:
            require_dtype(problem.compute_dtype, gpu)
        except PerfmodelError as error:
            problem = NotKnown(str(error))
    return View(problem, gpu)


def decide(  # noqa: PLR0911, PLR0912 - the order of the cases is the policy, read from top to bottom
    kernel: Autotuner,
    call: Call,
    *,
    may_time: bool,
    preview: bool = False,
    neighbours: Octave | None = None,
) -> Decision:
    """Choose a configuration for ``call``.

    Args:
        kernel: whose configurations.
        call: the arguments.
        may_time: whether the moment allows timing at all (no capture, no decision under way).
        preview: only say what would be done; nothing is timed.
        neighbours: calls whose timed decision holds here too where it timed the model's pick.

    Raises:
        NoUsableConfigError: every configuration is illegal or failed.
        Exception: errors of the user's own functions, and of the kernel's arguments.
    """
    identity = devices.identity_of_current(kernel.fn)
    fixed = pinned(kernel)
    if fixed is not None:
        return Decision([fixed], 0, "a pin", Policy.OFF, identity, View(None, None))
    view = view_of(kernel, call, identity)
    known = view.known is not None and view.gpu is not None
    policy = policy_in_force(kernel.settings.policy, known=known)
    every = _all_configs(kernel, view)
    candidates, fates = _pruned(kernel, call, every)
    legal = _legal(kernel, call, candidates, fates, view, policy)
    decision = Decision(candidates, legal[0], "", policy, identity, view, fates)
    _note_unknown(decision, kernel)
    if policy is not Policy.OFF and not kernel.settings.deterministic:
        legal = _harmless(kernel, call, decision, legal)
    idle = view.known is not None and view.known.flops == 0
    if idle or is_empty(call.arguments):
        decision.keep = False
        return _without_timing(decision, legal[0], legal, "there is no work to do")
    if len(legal) == 1:
        return _without_timing(decision, legal[0], legal, "the only legal config")
    if policy is Policy.OFF:
        return _without_timing(decision, legal[0], legal, "policy off: the first legal config")
    by_model = "the model" if view.ranks else "no model for it: the first legal config"
    if kernel.perf_model is not None and not view.ranks:
        by_model = "the user's perf_model"
    if kernel.settings.deterministic:
        return _without_timing(decision, view.best(legal), legal, f"{by_model} (deterministic)")
    if not policy.times:
        return _without_timing(decision, view.best(legal), legal, by_model)
    if not may_time:
        decision.keep = False
        by = f"{by_model}: nothing can be timed now"
        return _without_timing(decision, view.best(legal), legal, by)
    if not kernel.can_time(identity):
        what = "the interpreter has no speed" if identity == devices.INTERPRETER else "no device"
        return _without_timing(decision, view.best(legal), legal, f"{by_model}: {what}")
    if policy is not Policy.VERIFY or not view.ranks or Ranks.of_process() is not None:
        neighbours = None
    if neighbours is not None and _taken_over(kernel, decision, neighbours, legal):
        return decision
    from tuner.deciding import timing  # noqa: PLC0415 - it loads the search, which most processes never need

    if preview:
        return timing.preview(kernel, decision, legal)
    timing.decide_by_timing(kernel, call, decision, legal, by_model)
    if neighbours is not None and decision.result is not None:
        decision.bucket = str(neighbours)
        timed = [candidates[i] for i, (fate, _) in fates.items() if fate in WITH_TIME]
        kernel.judged.setdefault(neighbours, []).append((timed, decision.config))
    return decision


def _harmless(kernel: Autotuner, call: Call, decision: Decision, legal: list[int]) -> list[int]:
    """Positions that hung or crashed nothing before; of several ranks the first one sees to it.

    Raises:
        NoUsableConfigError: all of them did.
    """
    memory = kernel.memory()
    if not memory.sets_aside() or Ranks.of_process() is not None:
        return legal
    device = kernel.settings.device
    identity = decision.identity if device is None else device.identity
    harmful = memory.quarantined(keys.store_key(kernel, call, identity))
    for i in legal:
        reason = harmful.get(keys.text_of(kernel, decision.candidates[i])) if harmful else None
        if reason is not None:
            decision.fates[i] = (Fate.QUARANTINED, reason)
    left = [i for i in legal if i not in decision.fates]
    if not left:
        raise none_usable(kernel, decision.candidates, decision.fates, decision.view)
    decision.position = left[0]
    return left


def _taken_over(
    kernel: Autotuner, decision: Decision, neighbours: Octave, legal: Sequence[int]
) -> bool:
    """Whether this call's pick by the model was timed for a neighbour; what won there holds."""
    judged = kernel.judged.get(neighbours)
    if judged is None:
        return False
    picked = decision.candidates[decision.view.best(legal)]
    for timed, chosen in judged:
        position = next((i for i in legal if decision.candidates[i] is chosen), None)
        if position is not None and any(config is picked for config in timed):
            by = "what was timed for a neighbour, the model's pick here included"
            _without_timing(decision, position, legal, by)
            decision.bucket = str(neighbours)
            return True
    return False


def prune(kernel: Autotuner, call: Call, configs: Sequence[Any]) -> list[Any]:
    """Return the configurations that the user's functions keep, the legal ones before ``top_k``.

    Raises:
        UnknownOptionError: ``top_k`` is no count and no share.
        AutotunerError: ``early_config_prune`` keeps none.
    """
    kept = list(configs)
    positional = dict(zip(kernel.arg_names, call.args, strict=False))
    if kernel.early_config_prune:
        kept = list(kernel.early_config_prune(kept, positional, **call.kwargs))
        if not kept:
            raise triton_api.autotuner_error(
                "no config is left: early_config_prune must return at least one"
            )
    if kernel.perf_model:
        identity = devices.identity_of_current(kernel.fn)
        view = view_of(kernel, call, identity)
        fates: Fates = {}
        legal = _legal(kernel, call, kept, fates, view, Policy.OFF)
        kept = [kept[i] for i in legal]
        wanted = kept_of(len(kept), kernel.configs_top_k)
        estimates = [
            kernel.perf_model(**positional, **call.kwargs, **config.all_kwargs()) for config in kept
        ]
        order = sorted(range(len(kept)), key=lambda i: estimates[i])
        kept = [kept[i] for i in order[:wanted]] if wanted < len(kept) else kept
    return kept


def _all_configs(kernel: Autotuner, view: View) -> Sequence[Any]:
    """The user's configurations, or for a known family without any those made for the device."""
    if not kernel.makes_configs or view.known is None or view.gpu is None:
        return list(kernel.configs)
    return _made(kernel, view.known, view.gpu)


def _made(kernel: Autotuner, problem: TileProblem, gpu: Any) -> Sequence[Any]:
    table = family_of(problem).candidates(problem, gpu)
    names = kernel.tile_names
    if names is None:
        return list(kernel.configs)
    made = kernel.made.setdefault((gpu.name, table.configs), None)
    if made is None:
        takes = [names.config(tile) for tile in table.configs if names.can_take(tile)]
        made = list({str(config): config for config in takes}.values())
        kernel.made[gpu.name, table.configs] = made
    return list(made)


def _pruned(kernel: Autotuner, call: Call, every: Sequence[Any]) -> tuple[list[Any], Fates]:
    """All configurations, whatever the user's functions brought in last, and who was left out."""
    if not kernel.prunes:
        return list(every), {}
    kept = kernel.call_prune_configs(call, every)
    candidates = list(every)
    places = {id(config): i for i, config in enumerate(candidates)}
    chosen: list[int] = []
    for config in kept:
        if id(config) not in places:
            places[id(config)] = len(candidates)
            candidates.append(config)
        chosen.append(places[id(config)])
    fates: Fates = {
        i: (Fate.PRUNED, "left out by prune_configs_by")
        for i in range(len(candidates))
        if i not in set(chosen)
    }
    ordered = chosen + [i for i in range(len(candidates)) if i in fates]
    if kernel.perf_model is not None and kernel.binding is None:
        # The user's model put them in order; without ours that order stands.
        again = {old: new for new, old in enumerate(ordered)}
        return [candidates[i] for i in ordered], {again[i]: fate for i, fate in fates.items()}
    return candidates, fates


def _legal(
    kernel: Autotuner,
    call: Call,
    candidates: Sequence[Any],
    fates: Fates,
    view: View,
    policy: Policy,
) -> list[int]:
    """Positions that the device can run, in order; the others get their fate."""
    open_ = [i for i in range(len(candidates)) if i not in fates]
    if view.known is None or view.gpu is None or kernel.tile_set is None:
        broken = generic_reasons([candidates[i] for i in open_], view.gpu)
        for at, reason in broken.items():
            fates[open_[at]] = (Fate.ILLEGAL, reason)
        legal = [i for i in open_ if i not in fates]
        if not legal:
            raise none_usable(kernel, candidates, fates, view)
        return _once_each(kernel, candidates, fates, legal)
    same = len(candidates) == len(kernel.configs) and all(
        a is b for a, b in zip(candidates, kernel.configs, strict=True)
    )
    tiles = kernel.tile_set if same else kernel.tile_set_of(candidates)
    table, kept, unreadable = tiles.table(tuple(open_), call.arguments)
    for i, reason in unreadable.items():
        fates[i] = (Fate.ILLEGAL, reason)
    view.table, view.kept = table, kept
    mask = _scored(view, policy) if len(table) else np.zeros(0, dtype=np.bool_)
    for i, legal_one in zip(kept, mask, strict=True):
        if not legal_one:
            fates[i] = (Fate.ILLEGAL, None)  # the reasons are worked out when they are asked for
    legal = [i for i in open_ if i not in fates]
    if not legal:
        explain_illegal(kernel, fates, view)
        raise none_usable(kernel, candidates, fates, view)
    return _once_each(kernel, candidates, fates, legal)


def _scored(view: View, policy: Policy) -> Any:
    """Which tiles are legal; their scores, where the policy asks the model, go into the view."""
    assert view.known is not None
    assert view.gpu is not None
    assert view.table is not None
    if policy is Policy.OFF:
        broken = family_of(view.known).check(view.known, view.table, view.gpu)
        return np.array([not reasons for reasons in broken], dtype=np.bool_)
    known, gpu, table = view.known, view.gpu, view.table
    if policy.times and isinstance(known, Gemm):  # what was timed before needs no order
        view.scorer = lambda: shipped_predictor().scores(known, gpu, table)
        return legal_mask(known, table, gpu)
    try:
        scores = shipped_predictor().scores(
            view.known, view.gpu, view.table, shortlist=policy is Policy.MODEL
        )
    except IllegalConfigError:  # none can run
        return np.zeros(len(view.table), dtype=np.bool_)
    view.scorer = lambda: scores
    return np.isfinite(scores)


def _once_each(
    kernel: Autotuner, candidates: Sequence[Any], fates: Fates, legal: list[int]
) -> list[int]:
    """Equal configurations count once.

    Hashing them takes a tenth of a decision, so it is done once a list.
    """
    known = kernel.distinct
    same = known is not None and len(known) == len(candidates) == len(legal)
    if same and all(a is b for a, b in zip(known or (), candidates, strict=True)):
        return legal
    seen: dict[Any, int] = {}
    kept = []
    for i in legal:
        try:
            first = seen.setdefault(candidates[i], i)
        except TypeError:  # a value that cannot be hashed: taken as it is
            first = i
        if first == i:
            kept.append(i)
        else:
            fates[i] = (Fate.DUPLICATE, f"the same as config {first}")
    if len(kept) == len(candidates):
        kernel.distinct = list(candidates)
    return kept


def _without_timing(decision: Decision, pick: int, legal: Sequence[int], by: str) -> Decision:
    decision.position, decision.by = pick, by
    fate = Fate.RANKED_OUT if decision.view.ranks else Fate.NOT_TIMED
    for i in legal:
        decision.fates[i] = (Fate.NOT_TIMED, None) if i == pick else (fate, None)
    return decision


def _note_unknown(decision: Decision, kernel: Autotuner) -> None:
    view = decision.view
    if isinstance(view.problem, NotKnown):
        decision.notes.append(f"the model does not know this problem: {view.problem.reason}")
    elif view.problem is not None and view.gpu is None:
        decision.notes.append(
            f"the model knows no device {decision.identity.name!r}; name one with gpu= "
            f"or {devices.VARIABLE}"
        )
    if kernel.binding is not None and decision.view.gpu is not None and kernel.settings.gpu:
        decision.notes.append(f"the model was asked for {decision.view.gpu.name} with gpu=")


__all__ = ["TileSet", "decide", "pinned", "prune", "view_of"]
