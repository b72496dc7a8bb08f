"""Many problems of all families at once: rows of a table in, predictions out."""

from perfmodel.batch.requests import Request, read_problem, read_request
from perfmodel.batch.run import OUTPUT_COLUMNS, predict_many, predict_requests, predict_rows

__all__ = [
    "OUTPUT_COLUMNS", "Request", "predict_many", "predict_requests", "predict_rows",
    "read_problem", "read_request",
]  # fmt: skip
