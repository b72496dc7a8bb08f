"""The store's key of a call, made by the one function that every reader and writer uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tuner.identity import Key, arguments_text, config_text
from tuner.measure.device import DeviceIdentity

if TYPE_CHECKING:
    from tuner.autotuner.decorator import Autotuner
    from tuner.deciding.decision import Call

__all__ = ["config_text", "store_key", "text_of"]


def text_of(kernel: Autotuner, config: Any) -> str:
    """Return `config_text` of one of a kernel's configurations, worked out once while it is so."""
    fields = getattr(config, "__dict__", None)
    if fields is None or fields.get("pre_hook") is not None:
        return config_text(config)  # what a hook does may change
    known = kernel.texts.get(id(config))
    if known is not None and known[0] is config and known[1] == fields:
        return known[2]
    text = config_text(config)
    kernel.texts[id(config)] = (config, {**fields, "kwargs": dict(config.kwargs)}, text)
    return text


def store_key(kernel: Autotuner, call: Call, device: DeviceIdentity) -> Key:
    """Return what measurements of this call are kept under.

    Values of the kernel's key count, bucketed where it asked for that; of the other arguments only
    what the compiler specialises on.
    """
    buckets = kernel.settings.buckets
    values = {
        name: buckets[name](call.arguments[name]) if name in buckets else call.arguments[name]
        for name in kernel.call_key.names
        if name in call.arguments
    }
    others = {name: value for name, value in call.arguments.items() if name not in values}
    # A time counts as checked only where it was.
    more = {} if kernel.settings.check is None else {"checked": True}
    return Key(kernel.source_hash, arguments_text(values, others, **more), device)
