"""Every error a caller may want to catch, and the exit code the command line gives it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PerfmodelError(Exception):
    """Base of every error raised on purpose by this project."""

    exit_code = 1


class UsageError(PerfmodelError):
    """The caller gave something that cannot be used; the message names it and the fix."""

    exit_code = 2


class UnknownGpuError(UsageError):
    """No device of that name is known."""


class AmbiguousGpuError(UsageError):
    """Several devices go by that name."""


class InvalidGpuSpecError(UsageError):
    """A device description has a missing, foreign or impossible field."""


class InvalidProblemError(UsageError):
    """A problem's sizes, layouts or strides make no sense together."""


class UnknownDtypeError(UsageError):
    """No data type of that name is known."""


class UnsupportedDtypeError(UsageError):
    """The device has no arithmetic for that data type."""


class InvalidConfigError(UsageError):
    """A tile configuration has an unknown key or an impossible value."""


class IllegalConfigError(UsageError):
    """A well-formed tile configuration cannot be launched on that device."""


class DataError(UsageError):
    """A data file cannot be used as it is."""


class SchemaMismatchError(DataError):
    """A data or model file was written under another schema."""


class CorruptFileError(DataError):
    """A file is truncated, tampered with, or not what its name says."""


class MissingDataError(DataError):
    """Data that this step needs has not been imported."""


class CacheFolderError(UsageError):
    """A folder that files must be written to is read-only, full or not a folder."""


class ModelFileError(DataError):
    """A model file cannot be loaded."""


class UnknownNameError(UsageError, ValueError):
    """A decorator, pin or shape names an argument or parameter that the kernel does not have."""


class UnknownOptionError(UsageError, TypeError):
    """A decorator or Config was given an option that belongs elsewhere, or nowhere."""


class UnknownShapeError(UsageError):
    """A shape to tune ahead of time lacks a value, or has one that the kernel does not take."""


class NoDeviceError(UsageError):
    """A step needs a GPU, and none can be used."""


class ResumeMismatchError(UsageError):
    """A run was begun under other conditions; the message gives both values."""


class OutputLockedError(UsageError):
    """Another run writes to the same output."""


class KernelNotPortableError(UsageError):
    """A kernel cannot be sent to another process as text."""


class NotInstalledError(UsageError):
    """An optional part of the installation is needed for this step."""


class RunFailedError(PerfmodelError):
    """The request was sound, but carrying it out failed."""


class NoUsableConfigError(RunFailedError, RuntimeError):
    """Every configuration of a kernel is illegal or failed; the message gives each one's reason."""


class OutputFullError(RunFailedError):
    """A result could not be written; all before it are on disk."""


class RunStoppedError(RunFailedError):
    """A run was told to stop; what it has done is on disk."""


class KernelRaisedError(RunFailedError):
    """A kernel raised its user's own error in a worker; a note carries the traceback there."""


class DeviceLostError(RunFailedError):
    """A device can time nothing more in this process."""


class TuningWarning(UserWarning):
    """A kernel was tuned, or could not be, in a way that its user did not ask for."""


class CacheWarning(UserWarning):
    """The tuner's cache cannot be used; what it would hold is kept in memory, if at all."""


class ModelUnavailableWarning(UserWarning):
    """The shipped model cannot be used; answers are analytic."""


def closest(name: str, allowed: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the nearest allowed name, or an empty string.

    Case does not count.
    """
    spelled = {option.lower(): option for option in reversed(list(allowed))}
    found = difflib.get_close_matches(name.lower(), spelled, n=1, cutoff=0.6)
    return f" (did you mean {spelled[found[0]]!r}?)" if found else ""
