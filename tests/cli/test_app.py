from __future__ import annotations

import json
import subprocess
import sys

import pytest

from perfmodel.cli import app as app_module
from perfmodel.cli.app import COMMANDS, main
from perfmodel.errors import RunFailedError

SQUARE = ["--m", "4096", "--n", "4096", "--k", "4096", "--dtype", "bf16", "--gpu", "h100-sxm5"]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, shipped: object) -> object:
    """Make `predict` raise what the test chooses."""

    def choose(error: BaseException) -> None:
        def fail(*_args: object, **_more: object) -> None:
            raise error

        monkeypatch.setattr("perfmodel.predictor.Predictor.rank", fail)

    return choose


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f" {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("command", ["predict", "rank", "explain"])
def test_help_of_a_command(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main([command, "gemm", "--help"]) == 0
    out = capsys.readouterr().out
    for option in ("--m", "--M", "--dtype", "--gpu", "--a-layout", "--lda", "--model", "--json"):
        assert option in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("perfmodel ")


@pytest.mark.parametrize("args", [[], ["predict"], ["gpus", "--json"]])
def test_no_command_means_help(capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    code = main(args)
    out, err = capsys.readouterr()
    if args == ["gpus", "--json"]:
        assert code == 0
        assert any(device["name"] == "h100-sxm5" for device in json.loads(out))
    else:
        assert code == 2
        assert "Usage" in out + err


def test_a_failed_run_exits_with_one(capsys: pytest.CaptureFixture[str], failing: object) -> None:
    failing(RunFailedError("the disk is full"))
    assert main(["predict", "gemm", *SQUARE]) == 1
    assert capsys.readouterr().err == "error: the disk is full\n"


def test_an_interrupt_is_quiet(capsys: pytest.CaptureFixture[str], failing: object) -> None:
    failing(KeyboardInterrupt())
    assert main(["predict", "gemm", *SQUARE]) == 130
    assert capsys.readouterr().err == ""


def test_a_bug_is_not_hidden(failing: object) -> None:
    failing(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        main(["predict", "gemm", *SQUARE])


# GB2: should the shipped model fail to load, one warning, and analytic answers.
def test_a_missing_shipped_model_is_one_warning(
    capsys: pytest.CaptureFixture[str], no_shipped: None
) -> None:
    assert main(["predict", "gemm", *SQUARE, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["basis"] == "analytic"
    assert err.startswith("warning: the shipped model cannot be used, so answers are analytic")
    assert len(err.splitlines()) == 1


def test_the_reader_may_leave_early() -> None:
    command = [sys.executable, "-m", "perfmodel", "rank", "gemm", *SQUARE, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(10)
        process.stdout.close()
        error = process.stderr.read().decode()
    assert "Traceback" not in error
    assert "Exception ignored" not in error


def test_commands_are_imported_only_when_used() -> None:
    code = (
        "import sys; from perfmodel.cli.app import main; main(['gpus', '--json']);"
        "assert not {'perfmodel.cli.data', 'perfmodel.cli.predict', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    assert app_module.USAGE == 2
