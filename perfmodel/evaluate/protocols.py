"""Every protocol by name, and the imported tables that it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfmodel.errors import UsageError, closest
from perfmodel.evaluate import cost, gemm, grid, intervals, legality, library, near_best, winners
from perfmodel.evaluate.answers import Tell, Trainer
from perfmodel.evaluate.baselines import gemm_baselines
from perfmodel.evaluate.records import LARGE as LARGE_NAME
from perfmodel.evaluate.records import OURS, Record
from perfmodel.evaluate.rows import Tables, load_tables
from perfmodel.evaluate.run import GRID, MM, QUICK_SHARE, Run
from perfmodel.evaluate.training_data import training_tables
from perfmodel.learned.adapt import adapt_heads
from perfmodel.learned.booster import LARGE, SHIPPED, TrainSpec, scaled


@dataclass(frozen=True)
class Protocol:
    """What ``perfmodel evaluate NAME`` runs; ``tables`` must be imported."""

    name: str
    run: Callable[[Run], list[Record]]
    tables: tuple[str, ...]

    @property
    def about(self) -> str:
        """First line of the protocol's description."""
        return (self.run.__doc__ or "").partition("\n")[0].replace("`", "")


_TABLES = {
    "grid-loso": (MM, GRID),
    "grid-zero": (MM, GRID),
    "legality": (GRID,),
    **dict.fromkeys(
        [*library.PROTOCOLS, *near_best.PROTOCOLS, *winners.PROTOCOLS], ()
    ),  # those load the columns and rows they need
}

PROTOCOLS: Mapping[str, Protocol] = {
    name: Protocol(name, function, _TABLES.get(name, (MM,)))
    for module in (gemm, grid, legality, library, near_best, winners, intervals, cost)
    for name, function in module.PROTOCOLS.items()
}


def find_protocols(
    names: Sequence[str], known: Mapping[str, Protocol] = PROTOCOLS
) -> list[Protocol]:
    """Return protocols by name, each once, in the order given.

    ``known`` may hold more than those of this package: the tuner has one of its own.

    Raises:
        UsageError: there is no protocol of that name.
    """
    for name in names:
        if name not in known:
            raise UsageError(
                f"no protocol is called {name!r}{closest(name, known)}; use: {', '.join(known)}"
            )
    return [known[name] for name in dict.fromkeys(names)]


def specs(*, large: bool, quick: bool) -> tuple[tuple[str, TrainSpec], ...]:
    """Return the models that take part, by the name that records give them."""
    found = [(OURS, SHIPPED)]
    if large:
        found.append((LARGE_NAME, LARGE))
    if quick:
        found = [(who, scaled(spec, QUICK_SHARE)) for who, spec in found]
    return tuple(found)


def load_for(protocols: Sequence[Protocol], cache: str | Path | None = None) -> Tables:
    """Load the tables that some protocols need.

    Raises:
        MissingDataError: one is not imported; the message is the command to run.
    """
    names = list(dict.fromkeys(name for p in protocols for name in p.tables))
    tables = load_tables(names, cache)
    if any(p.name == "cost" for p in protocols):
        # Training takes whatever is imported.
        tables = replace(tables, raw={**training_tables(cache).raw, **tables.raw})
    return tables


def new_run(
    tables: Tables,
    models: tuple[tuple[str, TrainSpec], ...],
    *,
    only: Sequence[str] = (),
    by_dtype: bool = False,
    quick: bool = False,
    held_parts: int | None = None,
    tell: Tell | None = None,
    say: Callable[[str], None] | None = None,
) -> Run:
    """Return a run of those models beside every baseline."""
    return Run(
        tables=tables,
        trainer=Trainer(models, tell or (lambda _what, _share: None)),
        adapt=adapt_heads,
        baselines=gemm_baselines(),
        only=frozenset(only),
        by_dtype=by_dtype,
        quick=quick,
        held_parts=held_parts,
        say=say or (lambda _line: None),
    )
