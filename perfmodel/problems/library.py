"""The identity of a library kernel whose tile is unknown: who launches it, which one, what version.

Written ``backend``, ``backend/kernel`` or ``backend/kernel@version``: ``cublas``,
``vllm/flash_attn_3@0.12.0``, ``trtllm@1.1``. Two versions of a library are two identities.

For a kernel that was never seen on a device the nearest known one answers, in this order, and the
answer names it: the same backend and kernel in the newest version that is not newer; the same in
the oldest newer version; the same kernel under another backend; another kernel of the same backend.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from perfmodel.errors import InvalidProblemError

_TEXT = re.compile(r"([\w.+-]+)(?:/([\w.+-]+))?(?:@([\w.+!-]+))?")


@dataclass(frozen=True, slots=True)
class LibraryKernel:
    """One library kernel. ``kernel`` and ``version`` are ``None`` where any will do."""

    backend: str
    kernel: str | None = None
    version: str | None = None

    @classmethod
    def parse(cls, text: str) -> LibraryKernel:
        """Read ``backend[/kernel][@version]``.

        Raises:
            InvalidProblemError: it is not of that form.
        """
        found = _TEXT.fullmatch(text.strip().lower())
        if found is None:
            raise InvalidProblemError(
                f"backend is {text!r}; write BACKEND, BACKEND/KERNEL or BACKEND/KERNEL@VERSION, "
                "e.g. cublas or vllm/flash_attn_3@0.12.0"
            )
        return cls(*found.groups())

    def __str__(self) -> str:
        kernel = f"/{self.kernel}" if self.kernel else ""
        version = f"@{self.version}" if self.version else ""
        return f"{self.backend}{kernel}{version}"


def as_library_kernel(value: LibraryKernel | str | None) -> LibraryKernel | None:
    """Return the identity itself, or the one written as text; ``triton`` and ``None`` are none."""
    if value is None or isinstance(value, LibraryKernel):
        return value
    if not isinstance(value, str):
        raise InvalidProblemError(f"backend is {value!r}; give a name such as 'cublas'")
    kernel = LibraryKernel.parse(value)
    return None if kernel == LibraryKernel("triton") else kernel


def nearest_kernel(
    wanted: LibraryKernel, known: Iterable[LibraryKernel]
) -> tuple[LibraryKernel, str] | None:
    """Return the known kernel that answers for ``wanted`` and why it does, ``None`` for none.

    The order is that of this module's description. An exact match has an empty reason.
    """
    listed = sorted(known, key=lambda k: (version_key(k.version), str(k)))
    if wanted in listed:
        return wanted, ""
    same = [k for k in listed if k.backend == wanted.backend and _agree(k.kernel, wanted.kernel)]
    if same and wanted.version is None:
        return same[-1], ""
    older = [k for k in same if version_key(k.version) <= version_key(wanted.version)]
    if same:
        found = older[-1] if older else same[0]
        return found, f"no data of {wanted}: {found} stands in, another version of it"
    elsewhere = [k for k in listed if k.kernel is not None and k.kernel == wanted.kernel]
    if elsewhere:
        found = elsewhere[-1]
        return found, f"no data of {wanted}: {found} stands in, the same kernel elsewhere"
    sibling = [k for k in listed if k.backend == wanted.backend]
    if sibling:
        found = sibling[-1]
        return found, f"no data of {wanted}: {found} stands in, another kernel of that backend"
    return None


def stand_in(
    wanted: LibraryKernel, known: Iterable[LibraryKernel]
) -> tuple[LibraryKernel, str] | None:
    """Return the known kernel that answers for ``wanted`` and why, in this module's order.

    A backend alone also names a kernel of any library, as ``flash_attention_3`` does.

    The reason is empty where it is what was asked for; None where nothing can answer.
    """
    listed = list(known)
    if wanted.kernel is None:
        named = [k for k in listed if k.kernel == wanted.backend]
        if wanted.version is not None:
            named = [k for k in named if k.version == wanted.version] or named
        if named:
            return max(named, key=lambda k: (version_key(k.version), str(k))), ""
    return nearest_kernel(wanted, listed)


def version_key(version: str | None) -> tuple[tuple[int, int | str], ...]:
    """Order versions by their numbers; a release candidate comes before its release."""
    parts = re.findall(r"\d+|[a-z]+", (version or "").lower())
    ordered: list[tuple[int, int | str]] = [
        (1, int(p)) if p.isdigit() else (2 if p == "post" else -1, p) for p in parts
    ]
    return (*ordered, (0, 0))


def _agree(known: str | None, wanted: str | None) -> bool:
    return wanted is None or known == wanted
