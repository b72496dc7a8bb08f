from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "hammer_store.py"

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="kills and limits are those of POSIX"),
    pytest.mark.skipif(not SCRIPT.exists(), reason="scripts are not part of an installation"),
]


def test_nothing_that_was_said_to_be_on_disk_is_lost():
    """Killed at random, on a full disk, and while the folder may only be read."""
    spec = importlib.util.spec_from_file_location("hammer_store", SCRIPT)
    hammer = sys.modules["hammer_store"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hammer)
    for seconds in (8, 30):  # on a busy machine no worker may start in time to meet the bad times
        with tempfile.TemporaryDirectory() as name:
            Path(name).chmod(0o755)  # workers are not root
            found = hammer.hammer(Path(name) / "hammer", 3, 2, keys=20, seconds=seconds)
            errors = (Path(name) / "hammer" / "logs" / "errors").read_text()
        assert found.exceptions == 0, errors[-2000:]
        assert (found.lost, found.torn, found.disagreed, found.state) == (0, 0, 0, None)
        if found.in_memory:
            break
    # It did happen: workers were killed, rows written, and some kept in memory in bad times.
    assert found.killed >= 5
    assert len(found.told) >= 20
    assert found.in_memory >= 1
