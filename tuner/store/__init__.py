"""What was measured and decided, kept between processes."""

from tuner.store.decisions import Decision
from tuner.store.measurements import Prior
from tuner.store.store import Store
from tuner.store.versions import Versions

__all__ = ["Decision", "Prior", "Store", "Versions"]
