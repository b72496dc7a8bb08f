"""What a GPU's machine lacks, as archives to carry there; the standard library alone is needed.

python scripts/carry.py site carried/site.tar.xz      # packages beside torch and Triton
python scripts/carry.py cache carried/cache.tar.xz    # what `collect compile` put in Triton's cache
python scripts/carry.py unpack carried/site.tar.xz FOLDER

A site is made of the wheels of constraints.txt for Python 3.12 on Linux, without what measuring
does not use. A cache is that of TRITON_CACHE_DIR: binaries and what the launcher reads beside them.
Its files name each other by absolute paths, which unpacking sets right. Triton's keys hold the
compiler itself: a cache serves the very wheel that filled it, Python's version included.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

PACKAGES = (
    "numpy", "pandas", "pyarrow", "wasmtime", "platformdirs", "filelock", "nvidia-ml-py", "typer",
    "click", "rich", "Pygments", "markdown-it-py", "mdurl", "shellingham", "typing_extensions",
    "python-dateutil", "tzdata", "importlib_resources",
)  # fmt: skip
PYTHON = "3.12"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "manylinux2014_x86_64",
             "manylinux1_x86_64", "any")  # fmt: skip
LEFT_OUT = re.compile(
    r"(^|/)(tests|include|__pycache__)/|pyarrow/(src/|.*flight|.*\.px[di]$|.*\.pyx$)"
)
"""Of the wheels: tests, headers, and libraries that nothing here loads."""

SITE_MAX_MB, ALL_MAX_MB = 50.0, 60.0
KEPT_OF_CACHE = (".cubin", ".json", ".so")
GROUP = "__grp__"


def main() -> int:
    """Pack or unpack, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("site", "cache"):
        made = verbs.add_parser(verb)
        made.add_argument("archive", type=Path)
    verbs.choices["cache"].add_argument("--from", dest="cache", type=Path, default=default_cache())
    verbs.choices["cache"].add_argument("--max-mb", type=float, help="fewer entries, if need be")
    undone = verbs.add_parser("unpack")
    undone.add_argument("archive", type=Path)
    undone.add_argument("folder", type=Path)
    given = parser.parse_args()
    try:
        if given.verb == "unpack":
            unpack(given.archive, given.folder)
        elif given.verb == "site":
            pack_site(given.archive)
        else:
            pack_cache(given.cache, given.archive, given.max_mb)
    except (OSError, subprocess.CalledProcessError, tarfile.TarError, lzma.LZMAError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def default_cache() -> Path:
    """Return the folder of Triton's cache."""
    home = Path(os.environ.get("TRITON_HOME", Path.home()))
    return Path(os.environ.get("TRITON_CACHE_DIR", home / ".triton" / "cache"))


def pack_site(archive: Path) -> None:
    """Download the packages' wheels through pip, and pack what measuring uses of them."""
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M))
    by_name = {_plain(name): f"{name}=={version}" for name, version in pins.items()}
    wanted = [by_name[_plain(name)] for name in PACKAGES if _plain(name) in by_name]
    with tempfile.TemporaryDirectory() as made:
        wheels, site = Path(made, "wheels"), Path(made, "site")
        platforms = [word for name in PLATFORMS for word in ("--platform", name)]
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary",
             ":all:", "--python-version", PYTHON, *platforms, "--dest", str(wheels), *wanted],
            check=True,
        )  # fmt: skip
        for wheel in sorted(wheels.glob("*.whl")):
            with zipfile.ZipFile(wheel) as content:
                names = [n for n in content.namelist() if not LEFT_OUT.search(n)]
                content.extractall(site, names)
        _pack(archive, ((path, path.relative_to(site)) for path in _files(site)))
    _tell(archive, SITE_MAX_MB)


def pack_cache(cache: Path, archive: Path, max_mb: float | None) -> None:
    """Pack the entries of a Triton cache, the newest first, up to a size."""
    if not cache.is_dir():
        raise FileNotFoundError(f"no Triton cache at {cache}; give it with --from")
    entries = sorted((e for e in cache.iterdir() if e.is_dir()), key=lambda e: -e.stat().st_mtime)
    while True:
        kept = ((path, path.relative_to(cache)) for entry in entries for path in _kept(entry))
        _pack(archive, kept)
        size_mb = archive.stat().st_size / 1e6
        if max_mb is None or size_mb <= max_mb or not entries:
            break
        entries = entries[: int(len(entries) * min(0.95 * max_mb / size_mb, 0.95))]
    _tell(archive, ALL_MAX_MB)
    print(f"{len(entries):,} entries of {cache}")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive; files of a cache that name each other do so by their new place."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "r:xz") as content:
        _extract(content, folder)
    for group in folder.glob(f"*/{GROUP}*.json"):
        names = json.loads(group.read_text(encoding="utf-8"))["child_paths"]
        here = {n: str(group.parent.resolve() / n) for n in names if (group.parent / n).exists()}
        partial = group.with_name(f".{group.name}.part")
        partial.write_text(json.dumps({"child_paths": here}), encoding="utf-8")
        os.replace(partial, group)


def _extract(content: tarfile.TarFile, folder: Path) -> None:
    """Unpack files alone, below ``folder`` alone; Python before 3.11.4 has no filter that does.

    Raises:
        SystemExit: the archive holds something else.
    """
    root = folder.resolve()
    for member in content.getmembers():
        inside = (root / member.name).resolve().is_relative_to(root)
        if not inside or not (member.isfile() or member.isdir()):
            raise SystemExit(f"error: {content.name} holds {member.name!r}, which is no plain file")
    if hasattr(tarfile, "data_filter"):
        content.extractall(folder, filter="data")
    else:
        content.extractall(folder)


def _kept(entry: Path) -> Iterator[Path]:
    return (p for p in sorted(entry.iterdir()) if p.name.endswith(KEPT_OF_CACHE))


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _pack(archive: Path, files: Iterator[tuple[Path, Path]]) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    partial = archive.with_name(f".{archive.name}.part")
    try:
        with tarfile.open(partial, "w:xz", preset=6) as content:
            for path, name in files:
                content.add(path, str(name))
        os.replace(partial, archive)
    finally:
        partial.unlink(missing_ok=True)


def _tell(archive: Path, max_mb: float) -> None:
    size_mb = archive.stat().st_size / 1e6
    over = f", more than the {max_mb:g} MB that may be carried" if size_mb > max_mb else ""
    print(f"wrote {archive}: {size_mb:.1f} MB{over}")


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
