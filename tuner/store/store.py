"""The store: what was measured, decided and set aside, for this process and later ones."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfmodel.files import CACHE_VARIABLE
from tuner.identity import Key
from tuner.measure.device import Timing
from tuner.store import decisions, measurements
from tuner.store.database import Database
from tuner.store.decisions import Decision
from tuner.store.forks import ForkLock
from tuner.store.location import FILE, SHARED_VARIABLE, shared_path, store_path
from tuner.store.measurements import MATCH, Prior, matching
from tuner.store.schema import DECISIONS, MEASUREMENTS, QUARANTINE, Table
from tuner.store.trouble import TROUBLE, warn_once
from tuner.store.versions import Versions

_SAME_COMPILER = "triton = ? AND ptxas = ?"
_ANY_ARGUMENTS = ""

# Working out the user's cache folder takes a tenth of a decision.
_PLACES = (CACHE_VARIABLE, SHARED_VARIABLE, "HOME", "XDG_CACHE_HOME", "LOCALAPPDATA")
_opened: dict[tuple[str | None, ...], Store] = {}
_stores: dict[tuple[str, str], Store] = {}
_stores_lock = ForkLock()


class Store:
    """Measurements, decisions and quarantine, in the user's cache folder.

    Trouble with the cache never reaches the caller: whatever cannot be read is a miss, whatever
    cannot be written stays in this process's memory and is written when the file is back, and each
    place is warned about once. Safe to use from threads, and in forked and spawned processes.

    Args:
        database: the user's own tier.
        shared: a second tier, read after the first and never written.
        versions: what rows are compiled with; by default what this process has.
    """

    def __init__(
        self,
        database: Database,
        shared: Database | None = None,
        versions: Versions | None = None,
    ) -> None:
        self._database = database
        self._shared = shared
        self._versions = versions

    @classmethod
    def open(cls, path: str | Path | None = None) -> Store:
        """Return the process's store at ``path``; never raises for trouble with the cache.

        Args:
            path: a ``.sqlite`` file or a cache folder; by default the user's own, or the folder
                in ``PERFMODEL_CACHE_DIR``. ``PERFMODEL_SHARED_CACHE`` names a second one.
        """
        place = tuple(map(os.environ.get, _PLACES)) if path is None else None
        known = None if place is None else _opened.get(place)
        if known is not None:
            return known
        try:
            file = store_path().absolute() if path is None else _file_of(Path(path))
            shared = shared_path()
        except TROUBLE as error:
            warn_once("", f"there is no cache folder ({error}); tuning results are not kept")
            return cls.in_memory()
        if shared == file:
            shared = None
        with _stores_lock:
            found = _stores.get((str(file), str(shared)))
            if found is None:
                second = None if shared is None else Database(shared, read_only=True)
                found = _stores[str(file), str(shared)] = cls(Database(file), second)
        if place is not None:
            _opened[place] = found
        return found

    @classmethod
    def in_memory(cls) -> Store:
        """Return a store that ends with the process."""
        return cls(Database(None))

    @property
    def path(self) -> Path | None:
        """The user's own tier's file, ``None`` for memory."""
        return self._database.path

    @property
    def shared(self) -> Path | None:
        """The second tier's file, if there is one."""
        return None if self._shared is None else self._shared.path

    @property
    def versions(self) -> Versions:
        """What new rows are marked with."""
        return self._versions or Versions.current()

    @property
    def pending(self) -> int:
        """How many rows could not be written yet."""
        return self._database.pending

    def timings(self, key: Key, protocol: str) -> dict[str, Timing]:
        """Return what was measured for ``key`` under ``protocol`` by this compiler, by config."""
        where = f"{MATCH} AND protocol = ? AND {_SAME_COMPILER}"
        now = self.versions
        parameters = (*matching(key), protocol, now.triton, now.ptxas)
        found = {}
        for values in self._rows(MEASUREMENTS, where, parameters):
            timing = measurements.to_timing(values)
            if timing is not None:
                found[values["config"]] = timing
        return found

    def priors(self, key: Key, protocol: str) -> list[Prior]:
        """Return measurements of the same kernel and arguments that are no timings for ``key``.

        Another device's, another compiler's and another protocol's are; each says in what it
        differs.
        """
        found = []
        now = self.versions
        where, parameters = "kernel = ? AND arguments = ?", (key.kernel, key.arguments)
        for values in self._rows(MEASUREMENTS, where, parameters):
            timing = measurements.to_timing(values)
            differs = measurements.differences(values, key, protocol, now)
            if timing is not None and differs:
                compiler = Versions(values["triton"], values["ptxas"])
                found.append(
                    Prior(values["config"], timing, tuple(differs), values["device"], compiler)
                )
        return found

    def record(self, key: Key, config: str, timing: Timing) -> bool:
        """Keep one measurement; return whether it is on disk now."""
        values = measurements.to_values(key, config, timing, self.versions)
        return self._database.write(MEASUREMENTS, [MEASUREMENTS.row(values)])

    def decision(self, key: Key, policy: str, space: str = "") -> Decision | None:
        """Return what was decided for ``key`` by this compiler, under this policy and space."""
        where = f"{MATCH} AND policy = ? AND space = ? AND {_SAME_COMPILER}"
        now = self.versions
        parameters = (*matching(key), str(policy), space, now.triton, now.ptxas)
        found = None
        for values in self._rows(DECISIONS, where, parameters):
            found = decisions.to_decision(values) or found
        return found

    def decide(self, key: Key, decision: Decision, *, first_wins: bool = False) -> Decision:
        """Keep a decision, and return the one in force.

        With ``first_wins`` an earlier one for the same key, policy and space stands: processes
        that decide at the same time all get the same answer.
        """
        values = decisions.to_values(key, decision, self.versions)
        self._database.write(DECISIONS, [DECISIONS.row(values)], keep=first_wins)
        if not first_wins:
            return decision
        return self.decision(key, decision.policy, decision.space) or decision

    def sets_aside(self) -> bool:
        """Whether there is any configuration in quarantine: cheaper than which."""
        databases = (self._database, self._shared)
        return any(each is not None and each.has(QUARANTINE) for each in databases)

    def quarantined(self, key: Key) -> dict[str, str]:
        """Return the configurations not to be tried for ``key``, with the reason of each."""
        kernel, arguments, device = matching(key)
        where = f"kernel = ? AND arguments IN (?, ?) AND device = ? AND {_SAME_COMPILER}"
        now = self.versions
        parameters = (kernel, arguments, _ANY_ARGUMENTS, device, now.triton, now.ptxas)
        return {v["config"]: v["reason"] for v in self._rows(QUARANTINE, where, parameters)}

    def quarantine(
        self, key: Key, config: str, reason: str, *, any_arguments: bool = False
    ) -> bool:
        """Keep a configuration from being tried again; return whether that is on disk now.

        It crashed or hung the compiler or the device. With ``any_arguments`` it is set aside for
        all arguments of the kernel. Another version of Triton tries it again.
        """
        kernel, arguments, device = matching(key)
        now = self.versions
        values = {
            "kernel": kernel,
            "arguments": _ANY_ARGUMENTS if any_arguments else arguments,
            "device": device,
            "config": config,
            "triton": now.triton,
            "ptxas": now.ptxas,
            "reason": reason,
            "recorded_at": time.time(),
        }
        return self._database.write(QUARANTINE, [QUARANTINE.row(values)])

    def release(self, key: Key) -> int:
        """End the quarantine of the kernel of ``key`` on its device; return how many there were."""
        kernel, _, device = matching(key)
        return self._database.delete(QUARANTINE, "kernel = ? AND device = ?", (kernel, device))

    def rows(self, table: Table) -> Iterator[dict[str, Any]]:
        """Yield every sound row of a table, the shared tier's first."""
        yield from self._rows(table, "1", ())

    def add_rows(self, table: Table, rows: list[dict[str, Any]]) -> bool:
        """Write rows as they are; return whether they are on disk now."""
        return self._database.write(table, [table.row(values) for values in rows])

    def clear(self, table: Table, where: Mapping[str, str] | None = None) -> int:
        """Remove a table's rows, or those with these values; return how many there were."""
        wanted = dict(where or {})
        condition = " AND ".join(f"{name} = ?" for name in wanted) or "1"
        return self._database.delete(table, condition, tuple(wanted.values()))

    def check(self) -> str | None:
        """Return what is wrong with the user's own tier, ``None`` for nothing."""
        return self._database.check()

    def check_shared(self) -> str | None:
        """Return what is wrong with the second tier, ``None`` for nothing."""
        return None if self._shared is None else self._shared.check()

    def close(self) -> None:
        """Let go of the files; the next use opens them again."""
        self._database.close()
        if self._shared is not None:
            self._shared.close()

    def __reduce__(self) -> tuple[Any, ...]:
        path = self._database.path
        return (Store.in_memory, ()) if path is None else (Store.open, (path,))

    def _rows(self, table: Table, where: str, parameters: tuple[Any, ...]) -> list[dict[str, Any]]:
        """Rows of all tiers, the most trusted last."""
        shared = [] if self._shared is None else self._shared.read(table, where, parameters)
        return shared + self._database.read(table, where, parameters)


def _file_of(path: Path) -> Path:
    path = path.expanduser().absolute()
    return path if path.suffix == ".sqlite" else path / FILE
