"""What is computed: logical sizes, data types, layouts."""

from perfmodel.problems.dtypes import DType, parse_dtype
from perfmodel.problems.gemm import Gemm

__all__ = ["DType", "Gemm", "parse_dtype"]
