"""How a problem is cut into tiles: configurations, what they take, which are legal."""
