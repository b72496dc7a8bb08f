"""What Triton up to 3.6 builds with a C compiler at a kernel's first launch, built ahead.

A launcher is a small module for one list of argument types; later Tritons have one for all. A build
that fails here is a miss: Triton tries again when it launches.
"""

from __future__ import annotations

import contextlib
import io

from tuner.compile import specialize
from tuner.kernels.launch import Launch


def launcher_source(launch: Launch) -> str | None:
    """Return the C code of a launch's launcher; ``None`` where this Triton needs none.

    Raises:
        NotInstalledError: Triton is absent.
    """
    try:
        # Private to Triton: gone from 3.7 on.
        from triton.backends.nvidia.driver import make_launcher  # noqa: PLC0415 - optional extra
    except ImportError:
        return None
    found = specialize(
        launch.kernel.arg_names, launch.pointers, launch.integers, launch.constexprs, launch.floats
    )
    names = list(launch.kernel.arg_names)
    constants = {(names.index(name),): value for name, value in found.constexprs.items()}
    return str(make_launcher(constants, dict(found.signature), None))


def build_launcher(launch: Launch) -> bool:
    """Build a launch's launcher into Triton's cache, and return whether none is left to build.

    Needs the CUDA driver's library, a C compiler and Python's headers.
    """
    try:
        source = launcher_source(launch)
        if source is None:
            return True
        from triton.backends.nvidia import driver  # noqa: PLC0415 - optional extra

        with contextlib.redirect_stderr(io.StringIO()):
            driver.compile_module_from_src(
                src=source, name="__triton_launcher", library_dirs=driver.library_dirs(),
                include_dirs=driver.include_dirs, libraries=driver.libraries,
            )  # fmt: skip
    except Exception:  # whatever a compiler or a linker does: see above
        return False
    return True
