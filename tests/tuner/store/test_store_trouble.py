"""A cache that cannot be used is a miss and one warning."""

from __future__ import annotations

import errno
import os
import random
import sqlite3
import subprocess
import sys
import threading
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest

from perfmodel.errors import CacheWarning
from tuner.store import Decision, Store
from tuner.store import connection as connection_module
from tuner.store import database as database_module
from tuner.store.database import Database
from tuner.store.location import FILE


@contextmanager
def one_warning():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    ours = [w for w in caught if issubclass(w.category, CacheWarning)]
    assert len(ours) == 1, [str(w.message) for w in caught]
    assert len(str(ours[0].message).splitlines()) == 1


def works(store, key, config, timing) -> None:
    """Everything that a tuning session asks of the store."""
    assert store.timings(key, "events-1") == {}
    assert store.decision(key, "model") is None
    assert store.quarantined(key) == {}
    store.record(key, config(1), timing(10.0))
    store.quarantine(key, config(2), "hung")
    assert store.decide(key, Decision(config(1), "model"), first_wins=True).config == config(1)
    assert config(1) in store.timings(key, "events-1")
    assert store.decision(key, "model") == Decision(config(1), "model")
    assert config(2) in store.quarantined(key)


@pytest.fixture
def sound(tmp_path, key, timing, config) -> bytes:
    """The bytes of a store with rows, everything in its one file."""
    store = Store.open(tmp_path / "sound")
    for number in range(20):
        store.record(key, config(number), timing(10.0))
    store.close()
    return (tmp_path / "sound" / FILE).read_bytes()


def test_ca7_any_truncation_is_a_miss_or_the_truth_and_heals(tmp_path, sound, key, timing, config):
    """Stock Triton 3.6.0 raises JSONDecodeError for its cut file, in every later run."""
    points = {0, 1, 15, 16, 99, 100, 101, 511, 1024, len(sound) - 1}
    for point in sorted(points | set(random.Random(7).sample(range(len(sound)), 15))):
        folder = tmp_path / f"cut{point}"
        folder.mkdir()
        (folder / FILE).write_bytes(sound[:point])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            store = Store.open(folder)
            found = store.timings(key, "events-1")
            assert set(found) <= {config(number) for number in range(20)}
            assert store.record(key, config(99), timing(1.0)), point
            assert config(99) in store.timings(key, "events-1")
        assert len(caught) <= 1, [str(w.message) for w in caught]
        store.close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again = Store(Database(folder / FILE))
            assert config(99) in again.timings(key, "events-1")
            assert again.check() is None


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00garbage" * 400,
        b"{}",
        b'{"key": 1',
        "grüße".encode("latin-1"),
        os.urandom(9000),
    ],
    ids=["bytes", "json", "cut json", "latin-1", "random"],
)
def test_ca7_a_file_of_anything_else_is_moved_aside(folder, key, timing, config, content):
    folder.mkdir()
    (folder / FILE).write_bytes(content)
    store = Store.open(folder)
    with one_warning():
        works(store, key, config, timing)
    (aside,) = folder.glob("*.corrupt-*")
    assert aside.read_bytes() == content
    assert store.check() is None


def test_ca7_a_folder_in_place_of_the_file(folder, key, timing, config):
    (folder / FILE).mkdir(parents=True)
    store = Store.open(folder)
    with one_warning():
        works(store, key, config, timing)
    assert (folder / FILE).is_file()


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE cities (name)",
        "CREATE TABLE measurements (a); PRAGMA user_version = 1;PRAGMA application_id = 1886808420",
        "PRAGMA user_version = 77",
    ],
    ids=["another program's", "our marks and another table", "another version"],
)
def test_ca7_a_database_of_another_schema(folder, key, timing, config, statement):
    folder.mkdir()
    connection = sqlite3.connect(folder / FILE)
    connection.executescript(statement)
    connection.close()
    store = Store.open(folder)
    with one_warning():
        works(store, key, config, timing)
    assert store.check() is None


def test_ca7_bytes_changed_anywhere_never_give_a_wrong_row(tmp_path, sound, key, timing, config):
    chance = random.Random(11)
    for number in range(30):
        broken = bytearray(sound)
        for _ in range(8):
            broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
        folder = tmp_path / f"broken{number}"
        folder.mkdir()
        (folder / FILE).write_bytes(bytes(broken))
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            store = Store.open(folder)
            for name, found in store.timings(key, "events-1").items():
                assert name in {config(n) for n in range(20)}
                assert found == timing(10.0)
            store.record(key, config(99), timing(1.0))
            assert config(99) in store.timings(key, "events-1")
        store.close()


def test_ca8_processes_that_write_at_once_lose_nothing(folder, key, config):
    """Stock Triton 3.6.0 raises EBUSY or FileNotFoundError now and then on a network disk."""
    script = """
import sys, warnings
warnings.simplefilter("error")
from perfmodel.dataset.outcome import Outcome
from tuner.identity import Key
from tuner.measure.device import DeviceIdentity, Timing
from tuner.store import Store
store = Store.open(sys.argv[1])
key = Key("kernel", "{}", DeviceIdentity("device", "sm_90"))
for number in range(25):
    config = '{"a":%d}' % (1000 * int(sys.argv[2]) + number)
    assert store.record(key, config, Timing(Outcome.OK, "events-1", (1.0,)))
    assert config in store.timings(key, "events-1")
"""
    workers = [
        subprocess.Popen([sys.executable, "-c", script, str(folder), str(number)])
        for number in range(4)
    ]
    assert [worker.wait(120) for worker in workers] == [0] * 4
    from tuner.identity import Key  # noqa: PLC0415 - beside its use
    from tuner.measure.device import DeviceIdentity  # noqa: PLC0415 - as above

    found = Store.open(folder).timings(
        Key("kernel", "{}", DeviceIdentity("device", "sm_90")), "events-1"
    )
    assert len(found) == 100


def test_ca8_processes_that_find_the_same_corrupt_file_heal_it_once(folder, key, timing, config):
    folder.mkdir()
    (folder / FILE).write_bytes(b"garbage" * 1000)
    script = """
import sys
from perfmodel.dataset.outcome import Outcome
from tuner.identity import Key
from tuner.measure.device import DeviceIdentity, Timing
from tuner.store import Store
store = Store.open(sys.argv[1])
key = Key("kernel", "{}", DeviceIdentity("device", "sm_90"))
assert store.record(key, '{"a":%s}' % sys.argv[2], Timing(Outcome.OK, "events-1", (1.0,)))
"""
    workers = [
        subprocess.Popen([sys.executable, "-W", "ignore", "-c", script, str(folder), str(number)])
        for number in range(4)
    ]
    assert [worker.wait(120) for worker in workers] == [0] * 4
    assert len(list(folder.glob("*.corrupt-*"))) == 1
    connection = sqlite3.connect(folder / FILE)
    assert connection.execute("SELECT count(*) FROM measurements").fetchone() == (4,)
    connection.close()


class Failing:
    """Fails as told, then lets through."""

    def __init__(self, real, errors) -> None:
        self.real, self.errors, self.calls = real, list(errors), 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.real(*args, **kwargs)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ESTALE, "Stale file handle"),
        OSError(errno.EBUSY, "Device or resource busy"),
        FileNotFoundError(errno.ENOENT, "No such file or directory"),
        sqlite3.OperationalError("disk I/O error"),
        sqlite3.OperationalError("unable to open database file"),
    ],
    ids=str,
)
def test_ca8_ca9_a_failure_that_passes_is_tried_again(
    folder, monkeypatch, key, timing, config, error
):
    """Stock Triton 3.6.0 lets ESTALE, EBUSY and a vanished file through to the user's call."""
    monkeypatch.setattr(
        connection_module.sqlite3, "connect", failing := Failing(sqlite3.connect, [error])
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = Store.open(folder)
        assert store.record(key, config(1), timing(10.0))
        assert config(1) in store.timings(key, "events-1")
    assert failing.calls >= 2


def test_ca9_a_file_that_stays_stale_is_memory_until_it_is_back(
    folder, monkeypatch, key, timing, config
):
    now = [0.0]
    stale = OSError(errno.ESTALE, "Stale file handle")
    real = sqlite3.connect

    def connect(target, *args, **kwargs):
        if broken and target != ":memory:":
            raise stale
        return real(target, *args, **kwargs)

    broken = [True]
    monkeypatch.setattr(connection_module.sqlite3, "connect", connect)
    store = Store(Database(folder / FILE, clock=lambda: now[0]))
    with one_warning():
        works(store, key, config, timing)
    assert store.pending == 3
    broken.clear()
    now[0] += database_module.RETRY_S + 1
    assert store.record(key, config(5), timing(1.0))
    assert store.pending == 0
    store.close()
    fresh = Store(Database(folder / FILE))
    assert set(fresh.timings(key, "events-1")) == {config(1), config(5)}
    assert fresh.decision(key, "model") == Decision(config(1), "model")


def test_a_store_locked_by_another_is_memory_and_waits_once(folder, store, key, timing, config):
    store.record(key, config(0), timing(1.0))
    patient = Store(Database(folder / FILE, locked_s=0.2))
    other = sqlite3.connect(folder / FILE, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with one_warning():
        assert not patient.record(key, config(1), timing(10.0))
        assert not patient.record(key, config(2), timing(10.0))
        assert {config(1), config(2)} <= set(patient.timings(key, "events-1"))
    other.execute("ROLLBACK")
    other.close()


def test_ca10_no_home_folder(tmp_path):
    """Stock Triton 3.6.0 fails with PermissionError where its cache folder cannot be made."""
    script = """
import warnings
from perfmodel.dataset.outcome import Outcome
from tuner.identity import Key
from tuner.measure.device import DeviceIdentity, Timing
from tuner.store import Store
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    store = Store.open()
    key = Key("kernel", "{}", DeviceIdentity("device", "sm_90"))
    assert not store.record(key, '{"a":1}', Timing(Outcome.OK, "events-1", (1.0,)))
    assert '{"a":1}' in store.timings(key, "events-1")
print([w.category.__name__ for w in caught])
"""
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    for home in (str(blocked / "home"), "/dev/null"):
        environment = {k: v for k, v in os.environ.items() if "CACHE" not in k} | {"HOME": home}
        said = subprocess.run(
            [sys.executable, "-c", script],
            check=False,
            capture_output=True,
            text=True,
            env=environment,
        )
        assert said.returncode == 0, said.stderr
        assert said.stdout.strip() == "['CacheWarning']"


def test_ca10_a_folder_that_may_not_be_written(folder, as_nobody, key, timing, config):
    folder.mkdir(parents=True)

    def work():
        folder.chmod(0o500)
        with one_warning():
            works(Store.open(folder), key, config, timing)
        return "fine"

    assert as_nobody(work, folder) == b"'fine'"


def test_ca10_what_a_read_only_folder_holds_is_read(folder, as_nobody, key, timing, config):
    first = Store.open(folder)
    first.record(key, config(1), timing(10.0))
    first.close()

    def work():
        for path in folder.iterdir():
            path.chmod(0o400)
        folder.chmod(0o500)
        store = Store(Database(folder / FILE))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert config(1) in store.timings(key, "events-1")
        with one_warning():
            assert not store.record(key, config(2), timing(10.0))
        return sorted(store.timings(key, "events-1"))

    assert as_nobody(work, folder) == repr(sorted([config(1), config(2)])).encode()


def test_ca10_a_folder_made_read_only_midway(folder, as_nobody, key, timing, config):
    folder.mkdir(parents=True)

    def work():
        store = Store.open(folder)
        for number in range(6):
            if number == 3:
                for path in folder.iterdir():
                    path.chmod(0o400)
                folder.chmod(0o500)
                store.close()  # what is open stays writable; a later process has nothing open
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                store.record(key, config(number), timing(10.0))
        return len(store.timings(key, "events-1"))

    assert as_nobody(work, folder) == b"6"


def test_ca10_a_full_disk(folder, store, monkeypatch, key, timing, config):
    """Stock Triton 3.6.0 lets ENOSPC through to the user's call."""
    store.record(key, config(0), timing(1.0))
    real = Store.open(folder)._database._connection(make=True)
    assert real is not None
    pages = real.execute("PRAGMA page_count").fetchone()[0]
    real.execute(f"PRAGMA max_page_count = {pages}")
    monkeypatch.setattr(Database, "_let_go", lambda self: None)  # the disk stays full
    with one_warning():
        for number in range(1, 200):
            store.record(key, config(number), timing(float(number)))
    assert len(store.timings(key, "events-1")) == 200
    assert store.pending > 0


@pytest.mark.parametrize("path", ["\x00", "a" * 5000, "/dev/null", "/proc/nothing/here"])
def test_ca10_a_path_that_cannot_be(path, key, timing, config):
    with one_warning():
        works(Store.open(path), key, config, timing)


def test_a_shared_tier_in_trouble_is_a_miss(folder, tmp_path, monkeypatch, key, timing, config):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / FILE).write_bytes(b"garbage" * 1000)
    monkeypatch.setenv("PERFMODEL_SHARED_CACHE", str(tmp_path / "shared"))
    with one_warning():
        works(Store.open(folder), key, config, timing)
    assert (tmp_path / "shared" / FILE).read_bytes() == b"garbage" * 1000


def test_threads_that_find_trouble_at_once_warn_once(folder, key, timing, config):
    folder.mkdir()
    folder.joinpath(FILE).mkdir()
    (folder / FILE / "inside").write_text("so that it cannot be replaced")
    store = Store.open(folder)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            store.record(key, config(number), timing(1.0))
            assert config(number) in store.timings(key, "events-1")
        except BaseException as error:
            errors.append(error)

    with one_warning():
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    assert isinstance(folder, Path)


@pytest.fixture
def broken_for_a_while(folder, monkeypatch):
    """A store whose file is out of reach until told otherwise."""
    now, broken, real = [0.0], [True], sqlite3.connect

    def connect(target, *args, **kwargs):
        if broken and target != ":memory:":
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(target, *args, **kwargs)

    def back() -> None:
        broken.clear()
        now[0] += database_module.RETRY_S + 1

    monkeypatch.setattr(connection_module.sqlite3, "connect", connect)
    return Store(Database(folder / FILE, clock=lambda: now[0])), back


@pytest.mark.filterwarnings("ignore::perfmodel.errors.CacheWarning")
def test_rows_that_waited_never_replace_newer_ones(broken_for_a_while, key, timing, config):
    store, back = broken_for_a_while
    store.record(key, config(1), timing(10.0))
    back()
    assert store.record(key, config(1), timing(20.0))
    assert store.timings(key, "events-1")[config(1)].median_us == 20.0


@pytest.mark.filterwarnings("ignore::perfmodel.errors.CacheWarning")
def test_a_decision_that_waited_gives_way_to_the_first(
    broken_for_a_while, folder, key, timing, config
):
    store, back = broken_for_a_while
    mine = store.decide(key, Decision(config(1), "model"), first_wins=True)
    assert mine.config == config(1)
    back()
    others = Store(Database(folder / FILE))
    others.decide(key, Decision(config(2), "model"), first_wins=True)
    store.record(key, config(3), timing(1.0))
    assert store.decision(key, "model").config == config(2)
    assert store.pending == 0


@pytest.mark.filterwarnings("ignore::perfmodel.errors.CacheWarning")
def test_what_was_cleared_while_it_waited_does_not_come_back(
    broken_for_a_while, key, timing, config
):
    store, back = broken_for_a_while
    store.record(key, config(1), timing(10.0))
    assert store.clear(database_module.TABLES[0]) == 1
    back()
    store.record(key, config(2), timing(20.0))
    assert set(store.timings(key, "events-1")) == {config(2)}
