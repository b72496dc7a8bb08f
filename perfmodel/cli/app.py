"""The command line as a whole: which commands there are, and how they fail."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from perfmodel.errors import (
    CacheWarning,
    ModelUnavailableWarning,
    PerfmodelError,
    TuningWarning,
)

# name -> module with the command's `app`, and whether it has commands of its own.
COMMANDS: Mapping[str, tuple[str, bool]] = {
    "predict": ("perfmodel.cli.predict", True),
    "rank": ("perfmodel.cli.rank", True),
    "explain": ("perfmodel.cli.explain", True),
    "compare": ("perfmodel.cli.compare", True),
    "step": ("perfmodel.cli.step", False),
    "report": ("perfmodel.cli.report", False),
    "tune": ("perfmodel.cli.tune", True),
    "bench": ("perfmodel.cli.bench", True),
    "compile": ("perfmodel.cli.compile", False),
    "gpus": ("perfmodel.cli.gpus", True),
    "data": ("perfmodel.cli.data", True),
    "train": ("perfmodel.cli.train", True),
    "evaluate": ("perfmodel.cli.evaluate", False),
    "cache": ("perfmodel.cli.cache", True),
    "collect": ("perfmodel.cli.collect", True),
    "calibrate": ("perfmodel.cli.calibrate", False),
}

USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 1

# typer keeps its own copy of click in some versions and not in others; this is either's.
_ClickError: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


class _LazyCommands(MutableMapping[str, Any]):
    """Commands by name, each imported when it is asked for."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            module, has_commands = COMMANDS[name]
            app = import_module(module).app
            make = typer.main.get_group if has_commands else typer.main.get_command
            self._loaded[name] = make(app)
            self._loaded[name].name = name
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _LazyGroup(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _LazyCommands()

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)


app = typer.Typer(cls=_LazyGroup, add_completion=False, no_args_is_help=True)


def _version(wanted: bool) -> None:
    if wanted:
        import perfmodel  # noqa: PLC0415 - reads the installed metadata

        typer.echo(f"perfmodel {perfmodel.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Predict how long a GPU kernel takes, and why, on a GPU you may not have."""


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 1 for a failed run, 2 for bad input."""
    try:
        with _plain_warnings():
            code = typer.main.get_command(app).main(
                args=None if args is None else list(args),
                prog_name="perfmodel",
                standalone_mode=False,
            )
            sys.stdout.flush()
    except PerfmodelError as error:
        _complain("error", error)
        return error.exit_code
    except _ClickError as error:
        return _usage_error(error)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has had enough. Python flushes once more at exit: into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code if isinstance(code, int) else 0


def _usage_error(error: Any) -> int:
    message = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":
        if message:  # else the help is on the screen already
            typer.echo(message, err=True)
        return USAGE
    _complain("error", message)
    context = getattr(error, "ctx", None)
    if context is not None:
        typer.echo(f"help:  {context.command_path} --help", err=True)
    return int(error.exit_code)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show our own warnings as one line, without the place in the code that raised them."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Any, category: Any, *where: Any, **more: Any) -> None:
            if issubclass(category, CacheWarning | ModelUnavailableWarning | TuningWarning):
                _complain("warning", message)
            else:
                usual(message, category, *where, **more)

        warnings.showwarning = show
        yield


def _complain(kind: str, message: object) -> None:
    typer.echo(f"{kind}: {message}", err=True)


if __name__ == "__main__":
    sys.exit(main())
