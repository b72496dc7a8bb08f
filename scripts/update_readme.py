"""Run the README's examples again and put their real output in.

A ``console`` block holds commands after ``$ `` and what they print; a ``python`` block is followed
by a ``text`` block with what it prints. Run it with the package installed: `perfmodel` is called.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"

CONSOLE = re.compile(r"^```console\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(
    r"^```python\n(?P<code>.*?)^```\n\n```text\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL
)


def run(command: list[str]) -> str:
    """Return what the command prints, plain and 100 columns wide."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {
        "NO_COLOR": "1", "COLUMNS": "100", "PATH": path, "TRITON_INTERPRET": "1",
    }  # fmt: skip
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, env=environment, cwd=README.parent, check=True
    )
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"


def console(block: re.Match[str]) -> str:
    """Return a console block with its output made anew."""
    text = ""
    commands = re.findall(r"^\$ ((?:.*\\\n)*.*)$", block["body"], re.MULTILINE)
    for command in commands:
        text += f"$ {command}\n" + run(["bash", "-euc", command])
    return f"```console\n{text}```"


def python(block: re.Match[str]) -> str:
    """Return a Python example with its output made anew."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "example.py"  # Triton reads kernels from their file
        file.write_text(block["code"])
        output = run([sys.executable, str(file)])
    return f"```python\n{block['code']}```\n\n```text\n{output}```"


if __name__ == "__main__":
    text = README.read_text()
    README.write_text(PYTHON.sub(python, CONSOLE.sub(console, text)))
