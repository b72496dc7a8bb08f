"""Hammer a tuning store: processes and threads, killed at random, a full disk, a read-only folder.

Prints what was written, lost, torn and disagreed on, and exits with 1 if anything was. Rows that a
process was told are on disk must be there, whatever came after; rows written in time of trouble are
in that process's memory and may go with it. The disk is full in the sense that no file may grow (a
limit of the process). As root, workers become nobody, since permissions do not bind root.

python scripts/hammer_store.py [--processes 8] [--threads 8] [--keys 200] [--seconds 24]
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from perfmodel.dataset.outcome import Outcome
from tuner.identity import Key
from tuner.measure.device import DeviceIdentity, Timing
from tuner.store.decisions import Decision
from tuner.store.location import FILE
from tuner.store.store import Store

DEVICE = DeviceIdentity("NVIDIA H100 80GB HBM3", "sm_90", "h100-sxm5", 132)
CONFIGS = 50
NOBODY = 65534
PHASES = ("sound", "full", "sound", "read-only", "sound")


@dataclass
class Figures:
    """What came of it; ``told`` maps (key, configuration) to a winner seen on disk."""

    killed: int = 0
    exceptions: int = 0
    calls: int = 0
    in_memory: int = 0
    told: set[tuple[int, int]] = field(default_factory=set)
    winners: dict[int, set[str]] = field(default_factory=dict)
    lost: int = 0
    torn: int = 0
    state: str | None = None

    @property
    def disagreed(self) -> int:
        """Keys for which two processes were told of different winners."""
        return sum(len(names) > 1 for names in self.winners.values())

    @property
    def sound(self) -> bool:
        """Whether all is as promised."""
        return not (self.lost or self.torn or self.exceptions or self.disagreed or self.state)


def key(number: int) -> Key:
    """Return one of the keys that all processes share."""
    return Key("hammered", f'{{"keys":{{"M":{number}}}}}', DEVICE)


def config(number: int) -> str:
    """Return the text of a configuration."""
    return f'{{"BLOCK":{number}}}'


def row(number: int) -> Timing:
    """Return the one measurement that a configuration has, whoever writes it."""
    return Timing(Outcome.OK, "events-1", (float(number + 1),) * 3)


def work(folder: Path, log: Path, seed: int, threads: int, keys: int, largest: int) -> None:
    """Write and read until killed, noting what the store promised."""
    warnings.simplefilter("ignore")
    Store.in_memory().record(key(0), config(0), row(0))  # all is loaded while it can be read
    if largest:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    if os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    store = Store.open(folder)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def one(thread: int) -> None:
        chance = random.Random(seed * 1000 + thread)
        while True:
            number, candidate = chance.randrange(keys), chance.randrange(CONFIGS)
            on_disk = store.record(key(number), config(candidate), row(candidate))
            won = store.decide(
                key(number), Decision(config(candidate), "verify", 0.0, 3), first_wins=True
            )
            found = store.timings(key(number), "events-1")
            assert found[config(candidate)] == row(candidate)
            shared = won.config if store.pending == 0 else "-"
            os.write(out, f"{number} {candidate} {int(on_disk)} {shared}\n".encode())

    running = [threading.Thread(target=one, args=(t,), daemon=True) for t in range(threads)]
    for each in running:
        each.start()
    for each in running:
        each.join()


def hammer(place: Path, processes: int, threads: int, keys: int, seconds: float) -> Figures:
    """Run workers, kill and replace them at random, and make trouble in turns; return figures."""
    folder, logs, figures, chance = place / "cache", place / "logs", Figures(), random.Random(5)
    for each in (place, folder, logs):
        each.mkdir(exist_ok=True)
        if os.getuid() == 0:
            os.chown(each, NOBODY, NOBODY)
    errors = (logs / "errors").open("ab")
    numbers = iter(range(10**6))

    def start(phase: str) -> subprocess.Popen[bytes]:
        number = next(numbers)
        largest = max((f.stat().st_size for f in folder.iterdir() if f.is_file()), default=1 << 20)

        limit = largest if phase == "full" else 0
        arguments = [folder, logs / f"log{number}", number, threads, keys, limit]
        command = [sys.executable, __file__, "--work", *map(str, arguments)]
        return subprocess.Popen(command, stderr=errors)

    running = [start("sound") for _ in range(processes)]
    try:
        for phase in PHASES:
            permit(folder, writable=phase != "read-only")
            end = time.monotonic() + seconds / len(PHASES)
            while time.monotonic() < end:
                time.sleep(chance.uniform(0.1, 0.6))
                victim = chance.randrange(len(running))
                running[victim].kill()
                running[victim].wait()
                running[victim] = start(phase)
                figures.killed += 1
    finally:
        permit(folder, writable=True)
        for process in running:
            process.kill()
            process.wait()
        errors.close()
    figures.exceptions = (logs / "errors").read_text(errors="replace").count("Traceback")
    compare(folder, logs, figures)
    return figures


def permit(folder: Path, *, writable: bool) -> None:
    """Let the folder and its files be written, or only read."""
    for path in folder.iterdir():
        path.chmod(0o600 if writable else 0o400)
    folder.chmod(0o700 if writable else 0o500)


def compare(folder: Path, logs: Path, figures: Figures) -> None:
    """Hold what the store has against what its writers were told."""
    for log in logs.glob("log*"):
        for line in log.read_text().splitlines():
            number, candidate, on_disk, won = line.split(" ")
            figures.calls += 1
            figures.in_memory += on_disk == "0"
            if on_disk == "1":
                figures.told.add((int(number), int(candidate)))
            if won != "-":
                figures.winners.setdefault(int(number), set()).add(won)
    store = Store.open(folder)
    for number in sorted({n for n, _ in figures.told}):
        found = store.timings(key(number), "events-1")
        for candidate in (c for n, c in figures.told if n == number):
            timing = found.get(config(candidate))
            figures.lost += timing is None
            figures.torn += timing is not None and timing != row(candidate)
    figures.state = store.check()
    store.close()


def main() -> None:
    """Hammer and print the figures."""
    if sys.argv[1:2] == ["--work"]:
        folder, log, *numbers = sys.argv[2:]
        work(Path(folder), Path(log), *map(int, numbers))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=24.0)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "hammer"
        Path(name).chmod(0o755)
        found = hammer(place, wanted.processes, wanted.threads, wanted.keys, wanted.seconds)
        size = (place / "cache" / FILE).stat().st_size
    print(f"{wanted.processes} processes of {wanted.threads} threads, {wanted.keys} keys")
    print(f"processes killed {found.killed}, exceptions in a caller {found.exceptions}")
    print(f"calls {found.calls:,}, of them kept in memory in times of trouble {found.in_memory:,}")
    print(f"rows told to be on disk {len(found.told):,}: lost {found.lost}, torn {found.torn}")
    print(f"keys decided {len(found.winners)}: more than one winner {found.disagreed}")
    print(f"file {size:,} bytes: {found.state or 'sound'}")
    raise SystemExit(0 if found.sound else 1)


if __name__ == "__main__":
    main()
