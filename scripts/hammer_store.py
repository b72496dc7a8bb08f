"""Hammer one tuning store: many processes and threads, killed at random, the folder in trouble.

Says what was written, lost, torn and disagreed on. Everything but lost or torn rows of processes
that were told "on disk" is expected: python scripts/hammer_store.py [--processes 8] [--seconds 20]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from perfmodel.dataset.outcome import Outcome
from tuner.identity import Key
from tuner.measure.device import DeviceIdentity, Timing
from tuner.store.database import Database
from tuner.store.location import FILE
from tuner.store.store import Store

KEYS = 200
DEVICE = DeviceIdentity("NVIDIA H100 80GB HBM3", "sm_90", "h100-sxm5", 132)

THREADS = 8

WORKER = """
import random, sys, threading
sys.path.insert(0, sys.argv[4])
from hammer_store import KEYS, THREADS, key, row
from tuner.store.decisions import Decision
from tuner.store.store import Store
folder, log, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = Store.open(folder)
file = open(log, "a", buffering=1)
lock = threading.Lock()

def work(thread):
    chance = random.Random(seed * 100 + thread)
    while True:
        number, config = chance.randrange(KEYS), chance.randrange(50)
        name = '{"BLOCK": %d}' % config
        on_disk = store.record(key(number), name, row(config))
        mine = Decision(name, "verify", 0.0, 3, "hammer")
        won = store.decide(key(number), mine, first_wins=True)
        store.timings(key(number), "events-1")
        if on_disk:
            with lock:
                file.write(f"{number} {config} {won.config}\\n")

threads = [threading.Thread(target=work, args=(t,), daemon=True) for t in range(THREADS)]
for t in threads: t.start()
for t in threads: t.join()
"""


def key(number: int) -> Key:
    """Return one of the keys that all processes share."""
    return Key("hammered", f'{{"keys":{{"M":{number}}}}}', DEVICE)


def row(config: int) -> Timing:
    """Return the one measurement that a configuration has, whoever writes it."""
    return Timing(Outcome.OK, "events-1", (float(config + 1),))


def main() -> None:
    """Hammer, then compare the file with what the processes were told."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "cache"
        folder.mkdir()
        errors, killed = hammer(folder, Path(name), wanted.processes, wanted.seconds)
        report(folder, Path(name), errors, killed)


def hammer(folder: Path, logs: Path, processes: int, seconds: float) -> tuple[int, int]:
    """Run workers, kill and replace them, make the folder read-only for a while meanwhile."""
    chance, running, killed, errors, number = random.Random(5), [], 0, 0, 0
    error_log = logs / "errors.txt"

    def start(number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-W", "ignore", "-c", WORKER, str(folder),
                   str(logs / f"log{number}"), str(number), str(Path(__file__).parent)]  # fmt: skip
        return subprocess.Popen(command, stderr=error_log.open("ab"))

    for _ in range(processes):
        running.append(start(number))
        number += 1
    end = time.monotonic() + seconds
    read_only_at = time.monotonic() + seconds / 2
    while time.monotonic() < end:
        time.sleep(chance.uniform(0.2, 0.8))
        victim = chance.randrange(len(running))
        running[victim].send_signal(signal.SIGKILL)
        running[victim].wait()
        running[victim] = start(number)
        killed, number = killed + 1, number + 1
        locked = read_only_at < time.monotonic() < read_only_at + seconds / 10
        os.chmod(folder, 0o500 if locked else 0o700)
    for process in running:
        process.kill()
        process.wait()
    if error_log.exists():
        errors = error_log.read_text(errors="replace").count("Traceback")
    return errors, killed


def report(folder: Path, logs: Path, errors: int, killed: int) -> None:
    """Print what the store holds against what its writers were told."""
    store = Store(Database(folder / FILE))
    told: dict[tuple[int, int], str] = {}
    winners: dict[int, set[str]] = {}
    for log in logs.glob("log*"):
        for line in log.read_text().splitlines():
            number, config, won = line.split(" ", 2)
            told[int(number), int(config)] = won
            winners.setdefault(int(number), set()).add(won)
    lost = torn = 0
    for number in range(KEYS):
        found = store.timings(key(number), "events-1")
        for config in (c for n, c in told if n == number):
            timing = found.get(f'{{"BLOCK": {config}}}')
            lost += timing is None
            torn += timing is not None and timing != row(config)
    disagreed = sum(len(who) > 1 for who in winners.values())
    print(f"processes killed {killed}, exceptions {errors}")
    print(f"rows told to be on disk {len(told):,}: lost {lost}, torn {torn}")
    print(f"keys decided {len(winners)}: more than one winner {disagreed}")
    print(f"file: {store.check() or 'sound'}")


if __name__ == "__main__":
    main()
