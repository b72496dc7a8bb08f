"""``Work`` on a ``Gpu`` becomes an ``Estimate``, by formulas alone."""
