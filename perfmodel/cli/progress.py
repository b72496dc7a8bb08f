"""A progress bar on stderr for steps of unknown number, and lines that do not disturb it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tell = Callable[[str, float], None]
Say = Callable[[str], None]


@contextmanager
def show_progress() -> Iterator[tuple[Tell, Say]]:
    """Yield how to tell what is being done and how far (0 to 1), and how to say a line."""
    from rich.console import Console  # noqa: PLC0415 - start-up time
    from rich.progress import (  # noqa: PLC0415 - start-up time
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0)

        def tell(what: str, share: float) -> None:
            bar.update(task, description=what, completed=share)

        yield tell, lambda line: console.print(line, highlight=False, soft_wrap=True)
