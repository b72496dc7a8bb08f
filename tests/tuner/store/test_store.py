from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.dataset.outcome import Outcome
from tuner.identity import Key
from tuner.measure.device import DeviceIdentity, Timing
from tuner.store import Decision, Store, Versions
from tuner.store.database import Database
from tuner.store.schema import DECISIONS, MEASUREMENTS
from tuner.store.transfer import export_lines, import_lines

A100 = DeviceIdentity(
    "NVIDIA A100-SXM4-80GB", "sm_80", "a100-sxm4-80gb", 108, 85_100_000_000, 1410.0, "570.1"
)


def test_what_was_recorded_is_there_for_the_same_key_and_protocol(store, key, timing, config):
    assert store.timings(key, "events-1") == {}
    assert store.record(key, config(1), timing(10.0, 11.0, 12.0))
    assert store.timings(key, "events-1") == {config(1): timing(10.0, 11.0, 12.0)}
    assert store.timings(key, "events-2") == {}
    assert store.timings(dataclasses.replace(key, arguments="{}"), "events-1") == {}
    assert store.timings(dataclasses.replace(key, kernel="another"), "events-1") == {}


def test_a_failure_is_kept_with_its_reason(store, key, config):
    failure = Timing(Outcome.OUT_OF_RESOURCES, "events-1", (), "needs 106496 bytes of 101376")
    store.record(key, config(1), failure)
    assert store.timings(key, "events-1")[config(1)] == failure


def test_the_newest_measurement_of_a_config_stands(store, key, timing, config):
    store.record(key, config(1), timing(10.0))
    store.record(key, config(1), timing(20.0))
    assert store.timings(key, "events-1")[config(1)].median_us == 20.0


def test_ca1_another_process_finds_it(folder, store, key, timing, config):
    """Stock Triton 3.6.0 forgets timings at exit unless ``cache_results`` is asked for."""
    store.record(key, config(1), timing(10.0))
    script = (
        "import sys; from tuner.store import Store; from tuner.identity import Key;"
        "from tuner.measure.device import DeviceIdentity as D;"
        f"key = {key!r}".replace("DeviceIdentity(", "D(")
        + ";"
        "print(Store.open(sys.argv[1]).timings(key, 'events-1'))"
    )
    said = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=True
    ).stdout
    assert "10.0" in said


def test_ca2_one_row_a_config_whatever_the_others_are(store, key, timing, config):
    """Stock Triton 3.6.0 keeps one file for the whole list, which a sixth config invalidates."""
    for number in range(5):
        store.record(key, config(number), timing(10.0 + number))
    wanted = [config(number) for number in range(6)]
    known = store.timings(key, "events-1")
    assert [c for c in wanted if c not in known] == [config(5)]
    without_winner = {c: t for c, t in known.items() if c != config(0)}
    assert min(without_winner, key=lambda c: without_winner[c].median_us) == config(1)


def test_ca14_another_devices_timing_is_a_prior_and_says_so(store, key, timing, config):
    """Stock Triton 3.6.0 keys by architecture: an H200 is served what an H100 PCIe measured."""
    theirs = dataclasses.replace(key, device=A100)
    store.record(theirs, config(1), timing(10.0))
    assert store.timings(key, "events-1") == {}
    (prior,) = store.priors(key, "events-1")
    assert prior.config == config(1)
    assert "A100" in " ".join(prior.differs)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "NVIDIA H200"},
        {"sm_count": 114},
        {"memory_bytes": 140_000_000_000},
        {"clock_mhz": 1755.0},
        {"gpu": "h100-pcie"},
        {"architecture": "sm_90a"},
    ],
)
def test_ca14_devices_that_differ_at_all_are_two(store, key, timing, config, change):
    store.record(key, config(1), timing(10.0))
    other = dataclasses.replace(key, device=dataclasses.replace(key.device, **change))
    assert store.timings(other, "events-1") == {}


@pytest.mark.parametrize(
    "change", [{"driver": "580.65"}, {"memory_bytes": 84_900_000_000}, {"clock_mhz": 1979.6}]
)
def test_ca14_a_driver_update_is_not_another_device(store, key, timing, config, change):
    store.record(key, config(1), timing(10.0))
    updated = dataclasses.replace(key, device=dataclasses.replace(key.device, **change))
    assert config(1) in store.timings(updated, "events-1")


def test_another_compilers_timing_is_a_prior_and_says_so(folder, key, timing, config):
    old = Store(Database(folder / "t.sqlite"), versions=Versions("3.6.0"))
    new = Store(Database(folder / "t.sqlite"), versions=Versions("3.9.0"))
    old.record(key, config(1), timing(10.0))
    assert new.timings(key, "events-1") == {}
    assert new.priors(key, "events-1")[0].differs == ("triton (3.6.0, now 3.9.0)",)
    assert old.priors(key, "events-1") == []


def test_a_decision_is_for_its_policy_and_candidates(store, key, config):
    chosen = Decision(config(1), "verify", 0.02, 3, "fastest of 3", "space-1")
    store.decide(key, chosen)
    assert store.decision(key, "verify", "space-1") == chosen
    assert store.decision(key, "model", "space-1") is None
    assert store.decision(key, "verify", "space-2") is None


def test_where_the_first_decision_wins_all_get_it(store, key, config):
    first, second = Decision(config(1), "model"), Decision(config(2), "model")
    assert store.decide(key, first, first_wins=True) == first
    assert store.decide(key, second, first_wins=True) == first
    assert store.decide(key, second) == second
    assert store.decision(key, "model") == second


def test_quarantine_is_remembered_with_its_reason(store, key, config):
    store.quarantine(key, config(1), "compiler crashed (signal 6)")
    store.quarantine(key, config(2), "hung", any_arguments=True)
    elsewhere = dataclasses.replace(key, arguments='{"keys":{"M":1}}')
    assert set(store.quarantined(key)) == {config(1), config(2)}
    assert store.quarantined(elsewhere) == {config(2): "hung"}
    assert store.quarantined(dataclasses.replace(key, device=A100)) == {}
    assert store.release(key) == 2
    assert store.quarantined(key) == {}


def test_looking_things_up_makes_no_file(folder, key):
    assert Store.open(folder).timings(key, "events-1") == {}
    assert not folder.exists()


def test_ca12_a_store_survives_a_round_trip_through_a_worker(store, key, timing, config):
    store.record(key, config(1), timing(10.0))
    again = pickle.loads(pickle.dumps(store))
    assert config(1) in again.timings(key, "events-1")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_ca14_worker_processes_share_the_store(folder, store, key, timing, config, method):
    store.record(key, config(0), timing(10.0))  # the connection is open when the process forks
    context = multiprocessing.get_context(method)
    workers = [
        context.Process(target=_record, args=(str(folder), key, config(n), timing(1.0 + n)))
        for n in (1, 2)
    ]
    for worker in workers:
        worker.start()
    store.record(key, config(3), timing(4.0))
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert set(store.timings(key, "events-1")) == {config(n) for n in range(4)}


def _record(folder: str, key: Key, config: str, timing: Timing) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Store.open(folder).record(key, config, timing)


def test_a_fork_while_other_threads_write_neither_hangs_nor_loses(store, key, timing, config):
    stop = threading.Event()
    done: list[str] = []

    def write(first: int) -> None:
        number = first
        while not stop.is_set():
            number += 2
            assert store.record(key, config(number), timing(1.0))
            done.append(config(number))

    threads = [threading.Thread(target=write, args=(first,)) for first in (1000, 1001)]
    for thread in threads:
        thread.start()
    for number in range(5):
        child = os.fork()
        if child == 0:
            os._exit(0 if store.record(key, config(number), timing(1.0)) else 1)
        deadline = time.monotonic() + 30
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                pytest.fail("the child hangs")
            time.sleep(0.005)
        assert ended[1] == 0
    stop.set()
    for thread in threads:
        thread.join()
    found = store.timings(key, "events-1")
    assert {config(number) for number in range(5)} | set(done) <= set(found)


def test_a_shared_tier_is_read_and_never_written(
    folder, tmp_path, monkeypatch, key, config, timing
):
    shared = Store.open(tmp_path / "shared")
    shared.record(key, config(1), timing(10.0))
    shared.record(key, config(2), timing(20.0))
    shared.close()
    monkeypatch.setenv("PERFMODEL_SHARED_CACHE", str(tmp_path / "shared"))
    mine = Store.open(folder)
    assert mine.timings(key, "events-1")[config(1)].median_us == 10.0
    mine.record(key, config(1), timing(5.0))
    assert mine.timings(key, "events-1")[config(1)].median_us == 5.0
    assert set(mine.timings(key, "events-1")) == {config(1), config(2)}
    mine.close()
    monkeypatch.delenv("PERFMODEL_SHARED_CACHE")
    assert Store.open(tmp_path / "shared").timings(key, "events-1")[config(1)].median_us == 10.0


def test_rows_travel_as_json_lines(store, tmp_path, key, timing, config):
    store.record(key, config(1), timing(10.0))
    store.decide(key, Decision(config(1), "model", 0.01, 0, "why", "space"))
    store.quarantine(key, config(2), "hung")
    lines = list(export_lines(store))
    assert all(isinstance(json.loads(line), dict) for line in lines)
    other = Store.open(tmp_path / "other")
    done = import_lines(other, lines)
    assert dict(done.rows) == {"measurements": 1, "decisions": 1, "quarantine": 1}
    assert done.refused == ()
    assert done.on_disk
    assert other.timings(key, "events-1") == store.timings(key, "events-1")
    assert other.decision(key, "model", "space") == store.decision(key, "model", "space")
    assert other.quarantined(key) == store.quarantined(key)


def test_lines_that_make_no_sense_are_refused_one_by_one(store, tmp_path, key, timing, config):
    store.record(key, config(1), timing(10.0))
    sound = list(export_lines(store))[1]
    values = json.loads(sound)
    bad = [
        sound[: len(sound) // 2],
        "[]",
        json.dumps({**values, "table": "cities"}),
        json.dumps({k: v for k, v in values.items() if k != "device"}),
        json.dumps({**values, "samples_us": "[0.0]"}),
        json.dumps({**values, "samples_us": "[NaN]"}),
        json.dumps({**values, "samples_us": "[-1.0]"}),
        json.dumps({**values, "samples_us": "[]"}),
        json.dumps({**values, "outcome": "splendid"}),
        json.dumps({**values, "config": "BLOCK=1"}),
        json.dumps({**values, "recorded_at": "today"}),
        json.dumps({"format": "another"}),
    ]
    other = Store.open(tmp_path / "other")
    done = import_lines(other, [*bad, sound])
    assert [number for number, _ in done.refused] == list(range(1, len(bad) + 1))
    assert all(reason for _, reason in done.refused)
    assert done.rows["measurements"] == 1


@pytest.mark.parametrize("column", MEASUREMENTS.columns)
def test_a_row_that_was_tampered_with_is_a_miss(store, key, timing, config, column):
    store.record(key, config(1), timing(10.0))
    store.close()
    with sqlite3.connect(store.path) as connection:
        value = 5.0 if column in MEASUREMENTS.real else "[1e-9]"
        connection.execute(f"UPDATE measurements SET {column} = ?", (value,))
    connection.close()
    assert list(store.rows(MEASUREMENTS)) == []


@given(
    loss=st.none() | st.floats(allow_nan=True, allow_infinity=True),
    timed=st.integers(0, 10**6),
    why=st.text(max_size=40).filter(lambda text: "\x00" not in text),
)
def test_any_decision_comes_back(tmp_path_factory, loss, timed, why):
    device = DeviceIdentity("device", "sm_90")
    store = Store.in_memory()
    made = Decision('{"a":1}', "model", loss, timed, why.encode("utf-8", "replace").decode())
    store.decide(Key("k", "{}", device), made)
    found = store.decision(Key("k", "{}", device), "model")
    assert found is not None
    assert (found.config, found.timed, found.why) == (made.config, timed, made.why)
    assert len(list(store.rows(DECISIONS))) == 1


def test_times_under_another_compiler_environment_are_priors(
    folder, key, timing, config, monkeypatch
):
    pytest.importorskip("triton._C.libtriton")
    text, took = config(64), timing()
    store = Store.open(folder)
    store.record(key, text, took)
    store.quarantine(key, text, "hung")
    assert text in store.timings(key, took.protocol)
    monkeypatch.setenv("DISABLE_LLVM_OPT", "1")  # Triton compiles another binary
    assert store.timings(key, took.protocol) == {}
    assert store.quarantined(key) == {}
    (prior,) = store.priors(key, took.protocol)
    assert "DISABLE_LLVM_OPT" in prior.differs[0]
    monkeypatch.delenv("DISABLE_LLVM_OPT")
    assert text in store.timings(key, took.protocol)
