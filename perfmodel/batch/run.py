"""From rows to predictions: requests alike are answered together, each bad row by its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.batch.gemms import REPRESENTATIVES, answer_gemms, choose_tiles
from perfmodel.batch.requests import Request, read_columns, read_request
from perfmodel.batch.short_lists import FEW, choose_by_problem
from perfmodel.errors import DataError, PerfmodelError
from perfmodel.families import family_of
from perfmodel.families.library import has_tile, kind_of, library_predictions
from perfmodel.hardware.catalog import load_gpu
from perfmodel.hardware.gpu import Gpu
from perfmodel.prediction import Prediction
from perfmodel.predictor import Predictor
from perfmodel.problems import Problem
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.gemm_table import GemmTable
from perfmodel.tiling.config import TileConfig

if TYPE_CHECKING:
    import pandas as pd

Tell = Callable[[str, float], None]
Answer = Prediction | PerfmodelError
Ask = Callable[[Sequence[Request]], list[Answer]]

OUTPUT_COLUMNS = (
    "predicted_us", "low_us", "high_us", "predicted_tflops", "limiter", "basis", "model",
    "best_config", "notes", "error",
)  # fmt: skip
"""What is added to a table: the time and the ends of its interval (microseconds), useful rate
(TFLOP/s), what limits it, on what it rests, the learned model, the tile where it was chosen here,
notes apart by ``; ``, and for a row without an answer the reason."""

TOGETHER = 4096
"""Kernels of unknown tile answered in one call."""


def predict_many(
    rows: pd.DataFrame | Iterable[Mapping[str, Any]],
    *,
    gpu: str | Path | None = None,
    predictor: Predictor | None = None,
    tell: Tell | None = None,
) -> pd.DataFrame:
    """Predict a table of mixed problems, and return it with `OUTPUT_COLUMNS` added.

    Args:
        rows: one problem a row, in columns as in `perfmodel.batch.requests`; others are kept.
        gpu: for rows that name none.
        predictor: by default one with the shipped models.
        tell: called with what is being done and the share of it that is done.

    Raises:
        DataError: the table has one of the added columns already. A bad row raises nothing: its
            reason is in ``error``.
    """
    import pandas as pd  # noqa: PLC0415 - slow to import

    table = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(list(rows))
    check_columns(list(table.columns))
    found = predict_rows(table.to_dict("records"), gpu=gpu, predictor=predictor, tell=tell)
    return pd.concat([table, pd.DataFrame(found, index=table.index, columns=list(OUTPUT_COLUMNS))],
                     axis=1)  # fmt: skip


def predict_rows(
    rows: Sequence[Mapping[Any, Any]],
    *,
    gpu: str | Path | None = None,
    predictor: Predictor | None = None,
    tell: Tell | None = None,
    ask: Ask | None = None,
) -> list[dict[str, Any]]:
    """Return the `OUTPUT_COLUMNS` of each row, ``None`` where there is nothing to say.

    ``ask`` answers requests, no two alike; by default here and now.
    """
    default = None if gpu is None else str(gpu)
    asked: list[Request | PerfmodelError] = []
    for row in rows:
        try:
            asked.append(read_request(_plain(row), default))
        except PerfmodelError as error:
            asked.append(error)
    distinct = list(dict.fromkeys(a for a in asked if isinstance(a, Request)))
    found = predict_requests(distinct, predictor, tell) if ask is None else ask(distinct)
    answers = dict(zip(distinct, found, strict=True))
    return [_cells(a, answers[a]) if isinstance(a, Request) else _reason(a) for a in asked]


def predict_requests(
    requests: Sequence[Request],
    predictor: Predictor | None = None,
    tell: Tell | None = None,
    *,
    devices: Sequence[Gpu] = (),
) -> list[Answer]:
    """Answer each request with a prediction or the error that keeps it from one.

    ``devices`` are known by their names; any others are looked up.
    """
    known = {device.name: device for device in devices}
    model = Predictor() if predictor is None else predictor
    answers: list[Answer | None] = [None] * len(requests)
    progress = _Progress(len(requests), tell or (lambda _what, _share: None))
    for (name, *_), at in _groups(requests, answers, known).items():
        progress.what = f"predicting on {name}"
        device = known[name]
        group = [requests[i] for i in at]
        for i, found in zip(at, _answer_group(group, device, model, progress), strict=True):
            answers[i] = found
        progress.settle(len(at))
    return [a for a in answers if a is not None]


def group_requests(requests: Sequence[Request]) -> list[list[int]]:
    """Return which requests are answered together, all of them once."""
    answers: list[Answer | None] = [None] * len(requests)
    groups = list(_groups(requests, answers, {}).values())
    refused = [i for i, answer in enumerate(answers) if answer is not None]
    return [*groups, refused] if refused else groups


def check_columns(names: Sequence[Any]) -> None:
    """Do nothing for a table that the output can be added to.

    Raises:
        DataError: a column has the name of one that is added.
    """
    clash = [str(name) for name in names if name in OUTPUT_COLUMNS]
    if clash:
        raise DataError(
            f"the table has a column {clash[0]!r} already, which is what would be added; rename it "
            "or leave it out"
        )


def unread_columns(names: Sequence[Any]) -> list[str]:
    """Return the columns that no row is read by."""
    known = read_columns()
    return [str(name) for name in names if _key(name) not in known]


class _Progress:
    """How much of all requests is done, a group at a time."""

    def __init__(self, total: int, tell: Tell) -> None:
        self.what = "predicting"
        self._total, self._tell = max(total, 1), tell
        self._before, self._now = 0, 0

    def add(self, count: int) -> None:
        self._now += count
        self._tell(self.what, (self._before + self._now) / self._total)

    def settle(self, count: int) -> None:
        self._before, self._now = self._before + count, 0
        self.add(0)


def _groups(
    requests: Sequence[Request], answers: list[Answer | None], known: dict[str, Gpu]
) -> dict[tuple[Any, ...], list[int]]:
    """Requests that are answered together; those of no known device are answered here."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for at, request in enumerate(requests):
        device = known.get(request.gpu) or _device(request.gpu)
        if isinstance(device, PerfmodelError):
            answers[at] = device
            continue
        known[request.gpu] = device
        tiled = has_tile(request.problem)
        key = (request.gpu, kind_of(request.problem), tiled, request.config is None)
        groups.setdefault(key, []).append(at)
    return groups


def _answer_group(
    group: Sequence[Request], gpu: Gpu, predictor: Predictor, progress: _Progress
) -> list[Answer]:
    first = group[0]
    try:
        tiled = has_tile(first.problem)
        if not tiled and first.config is None:
            return _of_shapes(group, gpu, predictor, progress)
        if tiled and isinstance(first.problem, Gemm) and predictor.measured is None:
            return _of_gemms(group, gpu, predictor, progress)
        if tiled and first.config is None and len(group) > FEW:
            return _by_problem(group, gpu, predictor, progress)
    except PerfmodelError:
        pass  # each row by itself says which of them it is
    return [_alone(request, gpu, predictor, progress) for request in group]


def _of_shapes(
    group: Sequence[Request], gpu: Gpu, predictor: Predictor, progress: _Progress
) -> list[Answer]:
    answers: list[Answer] = []
    for start in range(0, len(group), TOGETHER):
        part = [request.problem for request in group[start : start + TOGETHER]]
        answers += library_predictions(part, gpu, learned=predictor.model is not None)
        progress.add(len(part))
    return answers


def _of_gemms(
    group: Sequence[Request], gpu: Gpu, predictor: Predictor, progress: _Progress
) -> list[Answer]:
    problems: list[Any] = [request.problem for request in group]
    table = GemmTable.of_problems(problems)
    tiles: list[TileConfig | None] = [request.config for request in group]
    if group[0].config is None:
        if len(group) <= REPRESENTATIVES:
            return [_alone(request, gpu, predictor, progress) for request in group]
        tiles = choose_tiles(predictor, problems, table, gpu, progress.add)
    some = TileConfig(block_m=16, block_n=16, block_k=16)  # where there is none; not answered
    given = [some if tile is None else tile for tile in tiles]
    found = answer_gemms(predictor, problems, table, given, gpu)
    return [
        _alone(request, gpu, predictor, progress) if tile is None or answer is None else answer
        for request, tile, answer in zip(group, tiles, found, strict=True)
    ]


def _by_problem(
    group: Sequence[Request], gpu: Gpu, predictor: Predictor, progress: _Progress
) -> list[Answer]:
    problems: list[Any] = [request.problem for request in group]
    tiles = choose_by_problem(predictor, problems, gpu, progress.add)
    quiet = _Progress(len(group), lambda _what, _share: None)
    return [
        _answer(predictor, request.problem, gpu, tile)
        if tile is not None
        else _alone(request, gpu, predictor, quiet)
        for request, tile in zip(group, tiles, strict=True)
    ]


def _alone(request: Request, gpu: Gpu, predictor: Predictor, progress: _Progress) -> Answer:
    progress.add(1)
    return _answer(predictor, request.problem, gpu, request.config)


def _answer(predictor: Predictor, problem: Problem, gpu: Gpu, config: TileConfig | None) -> Answer:
    try:
        return predictor.predict(problem, gpu, config)
    except PerfmodelError as error:
        return error


@lru_cache(maxsize=256)
def _device(name: str) -> Gpu | PerfmodelError:
    try:
        return load_gpu(name)
    except PerfmodelError as error:
        return error


def _plain(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {_key(name): value for name, value in row.items()}


@lru_cache(maxsize=4096)
def _key(name: Any) -> str:
    return str(name).strip().lower().replace("-", "_")


def _cells(request: Request, answer: Answer) -> dict[str, Any]:
    if isinstance(answer, PerfmodelError):
        return _reason(answer)
    low, high = answer.interval_us
    chosen = None
    if request.config is None and answer.config is not None and has_tile(request.problem):
        chosen = _config_text(answer.config, family_of(request.problem).parameters)
    return {
        "predicted_us": answer.latency_us,
        "low_us": low,
        "high_us": high,
        "predicted_tflops": answer.tflops,
        "limiter": answer.limiter,
        "basis": answer.basis,
        "model": answer.model,
        "best_config": chosen,
        "notes": "; ".join(answer.notes) or None,
        "error": None,
    }


@lru_cache(maxsize=4096)
def _config_text(config: TileConfig, parameters: tuple[str, ...]) -> str:
    """The configuration as `TileConfig.parse` takes it: what the family's kernels read."""
    usual = {"split_k": 1, "num_ctas": 1, "maxnreg": None}
    return ",".join(
        f"{name}={value}"
        for name, value in config.to_dict().items()
        if name in parameters and usual.get(name, "") != value
    )


def _reason(error: PerfmodelError) -> dict[str, Any]:
    return dict.fromkeys(OUTPUT_COLUMNS) | {"error": str(error)}
