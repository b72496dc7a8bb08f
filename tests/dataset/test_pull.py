from __future__ import annotations

import errno
import hashlib
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from perfmodel.dataset import pull as pull_module
from perfmodel.dataset import store
from perfmodel.dataset.download import download
from perfmodel.dataset.pull import pull
from perfmodel.dataset.registry import SourceFile
from perfmodel.errors import (
    CacheFolderError,
    CorruptFileError,
    DataError,
    MissingDataError,
    RunFailedError,
)
from perfmodel.files import atomic_path


def files_under(folder: Path) -> list[str]:
    """What a user would find: regular files, locks aside."""
    found = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
    return sorted(name for name in found if not name.endswith(".lock"))


def test_pull_from_a_mirror_makes_one_table(world: Any) -> None:
    done = pull("sample-mm", mirror=world.mirror)
    assert files_under(world.cache) == ["datasets/sample-mm.parquet"]
    assert done.path == world.cache / "datasets/sample-mm.parquet"
    assert done.report is not None
    assert (done.report.raw_rows, done.report.rows, done.report.repeats_dropped) == (7, 4, 1)


def test_the_environment_names_the_mirror_too(world: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("PERFMODEL_DATA_MIRROR", str(world.mirror))
    pull("sample-grid")
    assert len(store.load("sample-grid")) == 4


def test_the_report_is_kept_with_the_table(world: Any) -> None:
    done = pull("sample-mm", mirror=world.mirror)
    assert done.report is not None
    info = store.load("sample-mm").attrs["info"]
    assert info.gates == done.report.to_dict()
    assert info.licence == "none stated"
    assert set(info.files) == {"sample mm.zip"}


def test_a_second_pull_does_nothing_and_force_imports_again(world: Any) -> None:
    path = pull("sample-mm", mirror=world.mirror).path
    before = path.stat().st_mtime_ns, path.read_bytes()
    assert pull("sample-mm", mirror="/nowhere").report is None
    assert path.stat().st_mtime_ns == before[0]
    assert pull("sample-mm", mirror=world.mirror, force=True).report is not None
    assert path.read_bytes() == before[1]  # the same import, to the byte


def test_progress_adds_up_to_the_files(world: Any) -> None:
    seen: dict[str, int] = {}

    def advance(step: str, size: int) -> None:
        seen[step] = seen.get(step, 0) + size

    done = pull("sample-grid", mirror=world.mirror, advance=advance)
    assert seen == {"fetch": done.dataset.size_bytes, "import": done.dataset.size_bytes}


@pytest.mark.parametrize("damage", [lambda b: b[:-20], lambda b: b[:-1] + b"!", lambda b: b""])
def test_a_truncated_or_altered_archive_names_file_and_both_checksums(
    world: Any, damage: Any
) -> None:
    path = world.mirror_file("sample mm.zip")
    expected = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CorruptFileError) as raised:
        pull("sample-mm", mirror=world.mirror)
    message = str(raised.value)
    assert "sample mm.zip" in message
    assert expected in message
    assert hashlib.sha256(path.read_bytes()).hexdigest() in message
    assert raised.value.exit_code == 2
    assert files_under(world.cache) == []


def test_a_file_that_the_mirror_lacks_is_named(world: Any) -> None:
    world.mirror_file("sample mm.zip").unlink()
    with pytest.raises(MissingDataError, match=r"github\.com/someone/timings/.*/sample mm\.zip"):
        pull("sample-mm", mirror=world.mirror)


def test_an_unknown_name_is_refused(world: Any) -> None:
    with pytest.raises(DataError, match="did you mean 'sample-mm'"):
        pull("sample-m", mirror=world.mirror)


@pytest.mark.parametrize(
    "interruption",
    [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device"), MemoryError()],
    ids=["ctrl-c", "full disk", "out of memory"],
)
def test_an_interrupted_import_leaves_nothing_half_written(
    world: Any, monkeypatch: pytest.MonkeyPatch, interruption: BaseException
) -> None:
    written = pq.ParquetWriter.write_table

    def half(writer: Any, table: Any, **options: Any) -> None:
        written(writer, table, **options)
        raise interruption

    monkeypatch.setattr(pq.ParquetWriter, "write_table", half)
    expected = CacheFolderError if isinstance(interruption, OSError) else type(interruption)
    with pytest.raises(expected):
        pull("sample-mm", mirror=world.mirror)
    assert files_under(world.cache) == []
    monkeypatch.undo()


def test_an_interrupted_import_keeps_the_previous_table(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pull("sample-mm", mirror=world.mirror).path
    before = path.read_bytes()

    def fail(*_args: Any, **_options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetWriter, "write_table", fail)
        with pytest.raises(CacheFolderError, match=r"No space left.*--cache DIR"):
            pull("sample-mm", mirror=world.mirror, force=True)
    assert path.read_bytes() == before
    assert files_under(world.cache) == ["datasets/sample-mm.parquet"]


def test_what_a_killed_process_left_behind_is_swept(world: Any) -> None:
    folder = world.cache / "datasets"
    folder.mkdir(parents=True)
    (folder / ".sample-mm.parquet.abc.part").write_bytes(b"half")
    pull("sample-mm", mirror=world.mirror)
    assert files_under(world.cache) == ["datasets/sample-mm.parquet"]


def test_a_cache_that_is_a_file_is_a_clear_error(world: Any, tmp_path: Path) -> None:
    (tmp_path / "occupied").write_text("x")
    with pytest.raises(
        CacheFolderError, match=r"occupied.*--cache DIR or PERFMODEL_CACHE_DIR"
    ) as e:
        pull("sample-mm", mirror=world.mirror, cache=tmp_path / "occupied")
    assert e.value.exit_code == 2


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_cache_is_a_clear_error(world: Any, tmp_path: Path) -> None:
    folder = tmp_path / "read-only"
    folder.mkdir()
    folder.chmod(0o500)
    try:
        with pytest.raises(CacheFolderError, match=r"read-only.*Permission denied"):
            pull("sample-mm", mirror=world.mirror, cache=folder)
    finally:
        folder.chmod(0o700)
    assert files_under(folder) == []


def test_a_read_only_file_system_is_a_clear_error(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: Any, **_options: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(CacheFolderError, match="Read-only file system"):
        pull("sample-mm", mirror=world.mirror)


def test_a_read_only_cache_still_loads(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pull("sample-mm", mirror=world.mirror)

    def refuse(*_args: Any, **_options: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert pull("sample-mm", mirror=world.mirror).report is None
    assert len(store.load("sample-mm")) == 4


def test_loading_before_pulling_gives_the_command(world: Any) -> None:
    with pytest.raises(MissingDataError, match=r"run: perfmodel data pull sample-mm$"):
        store.load("sample-mm")


def test_a_table_from_files_that_the_registry_no_longer_names_is_out_of_date(
    world: Any, sample: Any
) -> None:
    pull("sample-mm", mirror=world.mirror)
    world.entries.clear()
    text = sample.mm_text([sample.mm_row("extern_mm", 1.0)])
    world.add("sample-mm", "autoheuristic", {"new.zip": sample.zip_bytes({"a_mm.txt": text})})
    with pytest.raises(MissingDataError, match=r"out of date.*perfmodel data pull sample-mm"):
        store.load("sample-mm")
    assert pull("sample-mm", mirror=world.mirror).report is not None  # no --force needed
    assert len(store.load("sample-mm")) == 1


def test_a_corrupt_table_is_an_error_to_load_and_pull_heals_it(world: Any) -> None:
    path = pull("sample-mm", mirror=world.mirror).path
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CorruptFileError, match=r"sample-mm\.parquet"):
        store.load("sample-mm")
    pull("sample-mm", mirror=world.mirror)
    assert len(store.load("sample-mm")) == 4


def test_the_state_of_every_entry_is_known(world: Any) -> None:
    pull("sample-mm", mirror=world.mirror)
    assert {e.dataset.name: e.problem for e in store.imported()} == {
        "sample-mm": None,
        "sample-grid": store.NOT_IMPORTED,
    }


def test_the_cache_argument_goes_before_the_environment(world: Any, tmp_path: Path) -> None:
    pull("sample-mm", mirror=world.mirror, cache=tmp_path / "mine")
    assert (tmp_path / "mine/datasets/sample-mm.parquet").is_file()
    assert not world.cache.exists()
    assert len(store.load("sample-mm", cache=tmp_path / "mine")) == 4


def test_pulls_at_the_same_time_make_one_table(world: Any) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            pull("sample-mm", mirror=world.mirror)
        except BaseException as error:  # noqa: BLE001, RUF100 - reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert files_under(world.cache) == ["datasets/sample-mm.parquet"]


def test_atomic_path_replaces_only_on_success(tmp_path: Path) -> None:
    target = tmp_path / "deep/er/file"
    with atomic_path(target) as partial:
        partial.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"


def test_atomic_path_keeps_the_old_file_on_failure(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def fail() -> None:
        with atomic_path(target) as partial:
            partial.write_text("half")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert files_under(tmp_path) == ["file"]
    assert target.read_text() == "old"


class Server:
    """Serves one file's bytes; ``stop_after`` cuts the next answer short."""

    def __init__(self) -> None:
        self.content = bytes(range(256)) * 2000
        self.stop_after: int | None = None
        self.ranges: list[str | None] = []
        self.honours_ranges = True
        self.status = 200
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = self.headers.get("Range")
                outer.ranges.append(asked)
                if outer.status != 200:
                    self.send_error(outer.status)
                    return
                start = 0
                if asked and outer.honours_ranges:
                    start = int(asked.removeprefix("bytes=").rstrip("-"))
                    self.send_response(206)
                else:
                    self.send_response(200)
                body = outer.content[start:]
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body if outer.stop_after is None else body[: outer.stop_after])
                outer.stop_after = None

            def log_message(self, *_args: Any) -> None:
                """Stay quiet."""

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def file(self, content: bytes | None = None) -> SourceFile:
        content = self.content if content is None else content
        address = f"http://127.0.0.1:{self.http.server_port}/o/r/c/a file.bin"
        return SourceFile(address, hashlib.sha256(content).hexdigest(), len(content))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


def fetched(server: Server, folder: Path) -> tuple[Path, int]:
    """Download the server's file; return its path and the bytes reported."""
    reported: list[int] = []
    download(server.file(), folder / "f.bin", reported.append)
    return folder / "f.bin", sum(reported)


def test_a_download_arrives_whole(server: Server, tmp_path: Path) -> None:
    path, reported = fetched(server, tmp_path / "new")
    assert path.read_bytes() == server.content
    assert reported == len(server.content)
    assert files_under(tmp_path) == ["new/f.bin"]


def test_a_broken_download_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.stop_after = 200_000
    with pytest.raises(RunFailedError, match=r"try again.*--mirror DIR"):
        fetched(server, tmp_path)
    (part,) = files_under(tmp_path)
    have = (tmp_path / part).stat().st_size
    assert part == "f.bin.part"
    assert 0 < have <= 200_000
    path, reported = fetched(server, tmp_path)
    assert server.ranges == [None, f"bytes={have}-"]
    assert path.read_bytes() == server.content
    assert reported == len(server.content)


def test_a_server_without_ranges_sends_it_again(server: Server, tmp_path: Path) -> None:
    server.stop_after, server.honours_ranges = 100_000, False
    with pytest.raises(RunFailedError):
        fetched(server, tmp_path)
    assert fetched(server, tmp_path)[0].read_bytes() == server.content


def test_a_file_finished_but_not_renamed_needs_no_server(server: Server, tmp_path: Path) -> None:
    (tmp_path / "f.bin.part").write_bytes(server.content)
    assert fetched(server, tmp_path)[0].read_bytes() == server.content
    assert server.ranges == []


@pytest.mark.parametrize("sent", [b"something else", bytes(600_000), bytes(512_000)])
def test_a_download_of_another_content_is_refused_and_not_kept(
    server: Server, tmp_path: Path, sent: bytes
) -> None:
    expected = server.file()
    server.content = sent
    wrong = CorruptFileError if len(sent) >= expected.size_bytes else RunFailedError
    with pytest.raises(wrong):
        download(expected, tmp_path / "f.bin", lambda _size: None)
    assert not (tmp_path / "f.bin").exists()


def test_a_tampered_part_is_thrown_away_and_the_next_try_heals(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "f.bin.part").write_bytes(b"!" * 1000)
    with pytest.raises(CorruptFileError, match="nothing was kept"):
        fetched(server, tmp_path)
    assert files_under(tmp_path) == []
    assert fetched(server, tmp_path)[0].read_bytes() == server.content


def test_a_missing_page_is_a_failed_run(server: Server, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(RunFailedError, match="404") as raised:
        fetched(server, tmp_path)
    assert raised.value.exit_code == 1


def test_a_full_disk_while_downloading_leaves_nothing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(CacheFolderError, match="No space left"):
        download(server.file(), tmp_path / "f.bin", fail)
    assert files_under(tmp_path) == []


def test_without_a_mirror_files_are_downloaded_once(
    server: Server, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.content = world.mirror_file("sample mm.zip").read_bytes()
    monkeypatch.setattr(SourceFile, "url", server.file().url)
    pull("sample-mm")
    pull("sample-mm", force=True)
    assert len(server.ranges) == 1
    assert len(store.load("sample-mm")) == 4
    kept = next(p for p in files_under(world.cache) if p.startswith("downloads/"))
    (world.cache / kept).write_bytes(b"altered since")
    pull("sample-mm", force=True)  # fetched again rather than trusted
    assert len(server.ranges) == 2


def test_verify_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(CorruptFileError, match=r"/x is truncated or altered"):
        pull_module.verify(tmp_path / "x", "0" * 64)
