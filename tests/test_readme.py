"""The README's commands exist and work as they stand there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from perfmodel.cli.app import main

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
EXAMPLES = [
    command.replace("\\\n", " ")
    for kind, text in BLOCKS
    if kind == "console"
    for command in re.findall(r"^\$ ((?:.*\\\n)*.*)$", text, re.MULTILINE)
]


@pytest.mark.parametrize("name", ["predict", "test"])
def test_ci_finds_the_command_that_does_all_the_set_up(name: str) -> None:
    marked = re.findall(rf"^<!-- run: {name} -->\n```bash\n(.*?)^```$", README, re.M | re.S)
    assert len(marked) == 1
    assert "\n\n" not in marked[0]
    assert marked[0].startswith("python3 -m venv ")
    assert not re.search(r"--(extra-)?index-url|--find-links|://", marked[0])


@pytest.mark.filterwarnings("ignore::perfmodel.errors.ModelUnavailableWarning")
@pytest.mark.parametrize("command", EXAMPLES)
def test_an_example_works(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(re.split(r"2>&1|\|", command)[0])
    assert words[0] == "perfmodel"
    assert main(words[1:]) == (2 if "|| echo" in command else 0)
    assert capsys.readouterr().out or "|| echo" in command


def test_the_examples_cover_the_main_commands() -> None:
    assert {command.split()[1] for command in EXAMPLES} >= {
        "predict", "rank", "explain", "gpus", "compare", "step", "evaluate",
    }  # fmt: skip


@pytest.mark.parametrize("code", [text for kind, text in BLOCKS if kind == "python"])
def test_a_python_example_runs(code: str, tmp_path: Path) -> None:
    if "import triton" in code:
        pytest.importorskip("triton")
    file = tmp_path / "example.py"  # Triton reads kernels from their file
    file.write_text(code)
    environment = os.environ | {"TRITON_INTERPRET": "1", "PERFMODEL_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(file)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_every_key_of_the_json_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    (command, *_) = (example for example in EXAMPLES if " predict " in example)
    assert main([*shlex.split(command)[1:], "--json"]) == 0
    documented = set(re.findall(r"`(\w+)`", README.partition("## JSON")[2].partition("## ")[0]))
    assert set(json.loads(capsys.readouterr().out)) <= documented
