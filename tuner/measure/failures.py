"""The one place that tells a configuration's failure from the user's own error.

Compilers and launches raise errors of many classes, which move between versions: they are told by
name and by where they come from, never imported.
"""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import DeviceLostError
from tuner.measure.device import Timing

BY_CLASS = {
    "OutOfResources": Outcome.OUT_OF_RESOURCES,
    "OutOfMemoryError": Outcome.OUT_OF_RESOURCES,  # torch's, for a configuration's workspace
    "PTXASError": Outcome.COMPILE_FAILED,
    "CompileTimeAssertionFailure": Outcome.COMPILE_FAILED,
    "CompilationError": Outcome.COMPILE_FAILED,
    "UnsupportedLanguageConstruct": Outcome.COMPILE_FAILED,
    "MLIRCompilationError": Outcome.COMPILE_FAILED,
}
"""Names of error classes, looked for along the class's bases."""

COMPILER_MODULES = ("triton.compiler.", "triton.backends.", "triton._C.", "triton.language.")
"""An error of any class that is raised in here is the compiler's; in the launcher
(``triton.runtime``) it is about the user's arguments."""

_COMPILER = re.compile(
    r"PassManager::run failed|ptxas|LLVM ERROR|failed to (translate|legalize|convert|compile)"
    r"|out of registers|register allocation failed",
    re.IGNORECASE,
)
_RESOURCES = re.compile(r"out of resource|too many resources requested|CUDA out of memory", re.I)
_POISONED = re.compile(
    r"illegal memory access|illegal instruction|misaligned address|device-side assert"
    r"|unspecified launch failure|launch timed out|hardware stack error|invalid pc"
    r"|illegal address|uncorrectable",
    re.IGNORECASE,
)
"""CUDA errors after which every later call in the process fails with the same error."""


@dataclass(frozen=True)
class Failure:
    """How an exception counts: ``poisoned`` says that the process can use the device no more."""

    outcome: Outcome
    reason: str
    poisoned: bool = False


def classify(error: BaseException) -> Failure | None:
    """Return what an exception says of a configuration, ``None`` for the user's own error."""
    if isinstance(error, DeviceLostError):
        return None
    if "CompilationError" in _names(error) and isinstance(_innermost(error), NameError):
        return None  # so it is with every configuration
    poisoned = isinstance(error, RuntimeError) and bool(_POISONED.search(str(error)))
    outcome = Outcome.CRASHED if poisoned else _outcome(error)
    return None if outcome is None else Failure(outcome, reason_of(error), poisoned)


def failure_of(error: BaseException, protocol: str) -> Timing | None:
    """Return the timing of a configuration that raised, ``None`` for the user's own error.

    The text of the traceback is kept, not the exception: that holds every argument of the call.
    """
    found = classify(error)
    if found is None:
        return None
    text = "".join(traceback.format_exception(error))
    return Timing(found.outcome, protocol, reason=found.reason, traceback=text)


def is_poisoned(error: BaseException) -> bool:
    """Return whether the process can use the device no more after this error."""
    found = classify(error)
    return found is not None and found.poisoned


def reason_of(error: BaseException) -> str:
    """Return the class and the one line that says what is wrong, of messages many lines long.

    An error of the compiler shows the line of source it is about; what is wrong with it is in the
    last of its causes, which for a function called by the kernel lies several deep.
    """
    said = _innermost(error) if "CompilationError" in _names(error) else error
    lines = [line.strip() for line in str(said).splitlines()]
    lines = [line for line in lines if line.strip("^") and not line.startswith("Repro command")]
    found = [
        line
        for word in ("fatal", "error")  # ptxas says what is wrong after the first
        for line in lines
        if re.search(rf"\b{word}\s*:", line, re.IGNORECASE)
    ]
    what = found[0] if found else lines[-1] if lines else "no message"
    return f"{type(error).__name__}: {what}"


def _outcome(error: BaseException) -> Outcome | None:
    for name in _names(error):
        if name in BY_CLASS:
            return BY_CLASS[name]
    if isinstance(error, MemoryError):
        return Outcome.OUT_OF_RESOURCES
    if isinstance(error, RuntimeError):
        for pattern, outcome in (
            (_RESOURCES, Outcome.OUT_OF_RESOURCES),
            (_COMPILER, Outcome.COMPILE_FAILED),
        ):
            if pattern.search(str(error)):
                return outcome
    in_compiler = _raised_in(error).startswith(COMPILER_MODULES)
    return Outcome.COMPILE_FAILED if in_compiler else None


def _names(error: BaseException) -> list[str]:
    return [c.__name__ for c in type(error).__mro__]


def _innermost(error: BaseException) -> BaseException:
    seen = {id(error)}
    while error.__cause__ is not None and id(error.__cause__) not in seen:
        error = error.__cause__
        seen.add(id(error))
    return error


def _raised_in(error: BaseException) -> str:
    """Return the name of the module whose code raised, with a dot behind it."""
    last = error.__traceback__
    if last is None:
        return ""
    while last.tb_next is not None:
        last = last.tb_next
    return f"{last.tb_frame.f_globals.get('__name__', '')}."
