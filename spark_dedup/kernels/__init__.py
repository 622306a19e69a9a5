"""Arithmetic on NumPy and Arrow data: no Spark, no tables."""
