from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perfmodel.dataset.outcome import Outcome
from tuner.identity import Key
from tuner.measure.device import DeviceIdentity, Timing
from tuner.store import Store, trouble
from tuner.store import store as store_module

H100 = DeviceIdentity(
    "NVIDIA H100 80GB HBM3", "sm_90", "h100-sxm5", 132, 85_000_000_000, 1980.0, "570.1"
)
A100 = DeviceIdentity(
    "NVIDIA A100-SXM4-80GB", "sm_80", "a100-sxm4-80gb", 108, 85_100_000_000, 1410.0, "570.1"
)


@pytest.fixture(autouse=True)
def _own_stores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No store of another test, no folder of the user's, and every place may warn again."""
    monkeypatch.setattr(store_module, "_stores", {})
    monkeypatch.setenv("PERFMODEL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PERFMODEL_SHARED_CACHE", raising=False)
    trouble.forget_warnings()
    yield
    trouble.forget_warnings()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    found = Store.open(folder)
    yield found
    found.close()


@pytest.fixture
def key() -> Key:
    return Key("kernel", '{"keys":{"M":64}}', H100)


@pytest.fixture
def timing() -> Callable[..., Timing]:
    def make(*samples_us: float, protocol: str = "events-1") -> Timing:
        return Timing(Outcome.OK, protocol, samples_us or (10.0, 11.0, 12.0))

    return make


@pytest.fixture
def config() -> Callable[[int], str]:
    return lambda number: f'{{"kwargs":{{"BLOCK":{number}}},"num_warps":4}}'


@pytest.fixture
def as_nobody() -> Callable[[Callable[[], Any], Path], bytes]:
    """Run something in a child that permissions bind; root's are never refused."""

    def run(work: Callable[[], Any], *folders: Path) -> bytes:
        if not hasattr(os, "fork"):
            pytest.skip("needs fork")
        for folder in folders:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, 65534, 65534) if os.getuid() == 0 else None
            for parent in folder.parents:
                if os.getuid() == 0 and parent.owner() == "root" and parent != Path("/"):
                    parent.chmod(parent.stat().st_mode | 0o055)
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                if os.getuid() == 0:
                    os.setgid(65534)
                    os.setuid(65534)
                os.write(send, repr(work()).encode())
                code = 0
            except BaseException as error:
                os.write(send, f"raised {type(error).__name__}: {error}".encode())
            finally:
                os._exit(code)
        os.close(send)
        with os.fdopen(receive, "rb") as pipe:
            said = pipe.read()
        os.waitpid(child, 0)
        return said

    return run
