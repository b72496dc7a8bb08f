from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.cli.app import main
from tuner.store import Store
from tuner.store.decisions import Decision
from tuner.store.location import FILE


@pytest.fixture
def filled(store: Store, key, timing, config) -> Store:
    for number in range(3):
        store.record(key, config(number), timing(10.0 + number))
    store.decide(key, Decision(config(0), "verify", 0.01, 3, "the fastest of 3 timed"))
    store.quarantine(key, config(9), "the compiler crashed (signal 6)")
    return store


def test_path_is_the_file_that_is_used(folder: Path, capsys) -> None:
    assert main(["cache", "path"]) == 0
    assert capsys.readouterr().out.strip() == str(folder / FILE)


def test_show_lists_decisions_and_counts_the_rest(filled: Store, capsys) -> None:
    assert main(["cache", "show"]) == 0
    out = capsys.readouterr().out
    assert "1 decisions" in out
    assert "3 measurements" in out
    assert "1 quarantine" in out
    assert "policy verify, 3 timed, expected within 1.0 % of the best" in out
    assert main(["cache", "show", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(line["table"] for line in lines) == [
        "decisions", "measurements", "measurements", "measurements", "quarantine",
    ]  # fmt: skip


def test_what_is_exported_can_be_imported_elsewhere(
    filled: Store, tmp_path: Path, key, capsys
) -> None:
    file, other = tmp_path / "rows.jsonl", tmp_path / "other"
    assert main(["cache", "export", str(file)]) == 0
    assert "wrote 5 rows" in capsys.readouterr().out
    assert main(["cache", "import", str(file), "--cache", str(other)]) == 0
    assert "3 measurements" in capsys.readouterr().out
    taken = Store.open(other)
    assert taken.timings(key, "events-1") == filled.timings(key, "events-1")
    taken.close()


def test_lines_that_make_no_sense_are_named_and_the_rest_is_kept(
    filled: Store, tmp_path: Path, capsys
) -> None:
    file = tmp_path / "rows.jsonl"
    assert main(["cache", "export", str(file)]) == 0
    file.write_text(file.read_text(encoding="utf-8") + '{"table": "measure', encoding="utf-8")
    assert main(["cache", "import", str(file), "--cache", str(tmp_path / "b")]) == 1
    said = capsys.readouterr()
    assert "3 measurements" in said.out
    assert "line 7 left out: not JSON" in said.err


def test_explain_lookup_says_what_is_a_hit_and_lists_kernels_otherwise(
    filled: Store, capsys
) -> None:
    assert main(["cache", "explain-lookup", "kern"]) == 0
    assert "a hit" in capsys.readouterr().out
    assert main(["cache", "explain-lookup", "nothing"]) == 2
    assert "it has: kernel" in capsys.readouterr().err


def test_clear_removes_one_kernel_or_all(filled: Store, key, capsys) -> None:
    assert main(["cache", "clear", "--yes", "--kernel", "other"]) == 0
    assert "nothing to remove" in capsys.readouterr().out
    assert main(["cache", "clear", "--yes"]) == 0
    assert "removed 5 rows" in capsys.readouterr().out
    assert filled.timings(key, "events-1") == {}


def test_release_ends_the_quarantine_and_names_what_was_in_it(filled: Store, key, capsys) -> None:
    assert main(["cache", "release", "--kernel", "other"]) == 0
    assert "released 0" in capsys.readouterr().out
    assert main(["cache", "release"]) == 0
    out = capsys.readouterr().out
    assert "crashed (signal 6)" in out
    assert "released 1 configuration" in out
    assert filled.quarantined(key) == {}
    assert len(filled.timings(key, "events-1")) == 3


def test_doctor_finds_a_sound_store_sound_and_says_what_is_wrong_with_another(
    filled: Store, tmp_path: Path, capsys
) -> None:
    assert main(["cache", "doctor"]) == 0
    assert "sound" in capsys.readouterr().out
    place = tmp_path / "file"
    place.write_text("not a folder", encoding="utf-8")
    assert main(["cache", "doctor", "--cache", str(place)]) == 1
    assert "PERFMODEL_CACHE_DIR" in capsys.readouterr().err


def test_import_of_a_file_that_is_not_there(tmp_path: Path, capsys) -> None:
    assert main(["cache", "import", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl cannot be read" in capsys.readouterr().err
