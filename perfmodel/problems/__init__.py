"""What is computed: logical sizes, data types, layouts."""

from perfmodel.problems.attention import Attention
from perfmodel.problems.dtypes import DType, parse_dtype
from perfmodel.problems.gemm import Gemm
from perfmodel.problems.grouped_gemm import GroupedGemm
from perfmodel.problems.library import LibraryKernel
from perfmodel.problems.memory_bound import MemoryBound

Problem = Gemm | Attention | GroupedGemm | MemoryBound
"""What can be asked about."""

__all__ = [
    "Attention", "DType", "Gemm", "GroupedGemm", "LibraryKernel", "MemoryBound", "Problem",
    "parse_dtype",
]  # fmt: skip
