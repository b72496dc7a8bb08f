"""Hand-made samples in each source's format, and a registry and mirror that hold them."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfmodel.dataset import registry as registry_module

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "https://github.com/someone/timings"

MM_HEADER = (
    "m,k,n,mat1_dtype,mat2_dtype,mat1_stride_0,mat1_stride_1,mat2_stride_0,mat2_stride_1,"
    "mat1_iscontig,mat2_iscontig,using_tf32,choice,feedback"
)


def triton_choice(
    block_m: int = 64, block_n: int = 64, block_k: int = 32, stages: int = 3, warps: int = 4
) -> str:
    return (
        f"type=triton_BLOCK-M={block_m}_BLOCK-K={block_k}_BLOCK-N={block_n}"
        f"_numstages={stages}_numwarps={warps}"
    )


def mm_row(
    choice: str, ms: float | str, *, m: int = 512, k: int = 256, n: int = 128,
    dtype: str = "float16", b_dtype: str | None = None, tf32: str = "not_float_32",
    a: tuple[int, int] | None = None, b: tuple[int, int] | None = None,
) -> str:  # fmt: skip
    a, b = a or (k, 1), b or (n, 1)
    values = [m, k, n, f"torch.{dtype}", f"torch.{b_dtype or dtype}", *a, *b, True, True, tf32]
    return ",".join(map(str, [*values, choice, ms]))


def mm_text(rows: list[str], capability: tuple[int, int] = (8, 0), name: str = "mm") -> str:
    header = {"shared_memory": 166912, "device_capa": list(capability), "name": name}
    return "\n".join([json.dumps(header), MM_HEADER, *rows]) + "\n"


def zip_bytes(members: dict[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def grid_entry(block_m: int = 64, warps: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "BLOCK_SIZE_M": block_m, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8,
        "num_stages": 3, "num_warps": warps, **more,
    }  # fmt: skip


@dataclass
class World:
    """A registry and a mirror in a temporary folder; ``add`` publishes a dataset in both."""

    root: Path
    entries: list[str] = field(default_factory=list)

    @property
    def mirror(self) -> Path:
        return self.root / "mirror"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def registry_path(self) -> Path:
        return self.root / "registry.toml"

    def add(self, name: str, importer: str, files: dict[str, bytes]) -> None:
        lines = [
            f"[datasets.{name}]",
            'title = "A hand-made sample"', 'family = "gemm"', f'importer = "{importer}"',
            f'repository = "{REPOSITORY}"', f'commit = "{COMMIT}"', 'licence = "none stated"',
        ]  # fmt: skip
        for path, content in files.items():
            lines += [
                f"[[datasets.{name}.files]]",
                f'address = "https://raw.githubusercontent.com/someone/timings/{COMMIT}/{path}"',
                f'sha256 = "{hashlib.sha256(content).hexdigest()}"',
                f"bytes = {len(content)}",
            ]
            target = self.mirror_file(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        self.entries += lines
        self.registry_path.write_text("\n".join(["registry_version = 1", *self.entries]))

    def add_wheel(self, name: str, importer: str, tables: list[str], content: bytes) -> Path:
        """Publish a dataset that comes as a wheel; the wheel lies outside of the mirror."""
        wheel = "some_timings-1.2.0-cp311-abi3-manylinux_2_28_x86_64.whl"
        self.entries += [
            f"[datasets.{name}]",
            'title = "A hand-made wheel"', 'family = "mixed"', f'importer = "{importer}"',
            'kind = "wheel"', f'repository = "{REPOSITORY}"', 'licence = "none stated"',
            f"tables = {json.dumps(tables)}",
            f"[[datasets.{name}.files]]",
            'project = "some-timings"', 'version = "1.2.0"', f'name = "{wheel}"',
            f'sha256 = "{hashlib.sha256(content).hexdigest()}"', f"bytes = {len(content)}",
        ]  # fmt: skip
        self.registry_path.write_text("\n".join(["registry_version = 1", *self.entries]))
        path = self.root / wheel
        path.write_bytes(content)
        return path

    def mirror_file(self, path: str) -> Path:
        return self.mirror / "github.com/someone/timings" / COMMIT / path


@pytest.fixture
def sample() -> SimpleNamespace:
    """Builders of rows and files in the sources' formats."""
    return SimpleNamespace(
        triton_choice=triton_choice, mm_row=mm_row, mm_text=mm_text, zip_bytes=zip_bytes,
        grid_entry=grid_entry,
    )  # fmt: skip


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A registry and mirror with two small datasets, ``sample-mm`` and ``sample-grid``."""
    made = World(tmp_path)
    monkeypatch.setattr(registry_module, "registry_path", lambda: made.registry_path)
    monkeypatch.delenv("PERFMODEL_DATA_MIRROR", raising=False)
    monkeypatch.setenv("PERFMODEL_CACHE_DIR", str(made.cache))
    rows = [
        mm_row("extern_mm", 0.050),
        mm_row(triton_choice(), 0.080),
        mm_row(triton_choice(), 0.080),
        mm_row(triton_choice(), 0.082),
        mm_row(triton_choice(), 0.090),
        mm_row(triton_choice(128, 128), 0.060),
        mm_row(triton_choice(128, 128, stages=5), "inf", dtype="float32", tf32="True"),
    ]
    members = {"a100/": b"", "a100/a100_mm.txt": mm_text(rows).encode()}
    made.add("sample-mm", "autoheuristic", {"sample mm.zip": zip_bytes(members)})
    results = [grid_entry(ms=0.02, compile_time=0.5), grid_entry(128, ms=0.01, compile_time=0.6)]
    fails = [grid_entry(256, compile_time=0.01), grid_entry(512, compile_time=9.0)]
    made.add(
        "sample-grid",
        "triton_grid",
        {
            "fp16/512_results.json": json.dumps(results).encode(),
            "fp16/512_fails.json": json.dumps(fails).encode(),
        },
    )
    return made
