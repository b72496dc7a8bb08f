from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from perfmodel.cli.data import app
from perfmodel.dataset import schema, store
from perfmodel.errors import CorruptFileError, DataError, MissingDataError


def run(*args: str) -> str:
    result = CliRunner().invoke(app, list(args), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def run_json(*args: str) -> Any:
    return json.loads(run(*args, "--json"))


def pull_both(world: Any) -> str:
    return run("pull", "sample-mm", "sample-grid", "--mirror", str(world.mirror))


def test_list_says_what_is_there_and_what_is_imported(world: Any) -> None:
    pull_both(world)
    entries = {entry["name"]: entry for entry in run_json("list")}
    assert entries["sample-mm"]["state"] == "imported"
    assert entries["sample-mm"]["licence"] == "none stated"
    assert "sample-grid" in run("list")


def test_list_before_anything_is_imported(world: Any) -> None:
    assert {entry["state"] for entry in run_json("list")} == {"not imported"}


def test_pull_tells_what_came_and_what_was_dropped(world: Any) -> None:
    output = pull_both(world)
    assert "sample-mm: imported" in output
    assert "7 source rows, 4 distinct, 3 that ran; gates dropped 1 repeat and 0 rows" in output
    assert "sample-mm: already imported" in pull_both(world)


def test_pull_json(world: Any) -> None:
    (record,) = run_json("pull", "sample-mm", "--mirror", str(world.mirror))
    assert (record["name"], record["state"]) == ("sample-mm", "imported")
    assert record["report"]["outcomes"] == {"ok": 3, "compile_failed": 1}


def test_a_wrong_name_among_several_fetches_nothing(world: Any) -> None:
    with pytest.raises(DataError, match="nonsense"):
        run("pull", "sample-mm", "nonsense", "--mirror", str(world.mirror))
    assert not world.cache.exists()


def test_check_prints_the_gates_and_what_they_dropped(world: Any) -> None:
    pull_both(world)
    output = run("check")
    for words in ("sample-mm: sound", "above_peak", "above_bandwidth", "not_finite", "timeout 1"):
        assert words in output
    records = {record["name"]: record["report"] for record in run_json("check")}
    assert records["sample-grid"]["outcomes"] == {"ok": 2, "compile_failed": 1, "timeout": 1}


def test_check_of_what_is_not_imported_gives_the_command(world: Any) -> None:
    with pytest.raises(MissingDataError, match="perfmodel data pull sample-mm"):
        run("check", "sample-mm")
    with pytest.raises(MissingDataError, match="nothing is imported"):
        run("check")


def test_check_finds_times_altered_after_the_import(world: Any) -> None:
    pull_both(world)
    table = store.load("sample-mm")
    info = table.attrs["info"]
    table["latency_us"] = table["latency_us"] / 1e4
    schema.write(pd.DataFrame(table), store.table_path("sample-mm"), info)
    with pytest.raises(CorruptFileError, match=r"perfmodel data pull sample-mm --force"):
        run("check", "sample-mm")


def test_stats_count_by_device_and_type(world: Any) -> None:
    pull_both(world)
    records = {(r["name"], r["dtype"]): r for r in run_json("stats")}
    grid = records["sample-grid", "fp16"]
    assert (grid["problems"], grid["configs"], grid["ok"], grid["failed"]) == (1, 4, 2, 2)
    assert (grid["fastest_us"], grid["slowest_us"]) == (10.0, 20.0)
    failed = records["sample-mm", "tf32"]
    assert (failed["ok"], failed["fastest_us"]) == (0, None)
    assert "a100-sxm4-80gb" in run("stats", "sample-mm")


def test_help_of_the_command_line_loads_no_tables() -> None:
    code = (
        "import sys, perfmodel.cli.data; "
        "heavy = 'pandas', 'pyarrow', 'urllib.request', 'rich.progress'; "
        "print([m for m in heavy if m in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert shown.strip() == "[]"
