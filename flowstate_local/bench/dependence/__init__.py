"""Dependence: seeded episodes whose last decision needs facts that stand only in raw results of earlier requests."""
