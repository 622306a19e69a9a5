"""All pairs of rows cut into tiles: rows are dealt into groups round a ring, a tile is two groups and the work of a task.

Tile t of g groups joins group t % g with the one that is t // g + 1 steps further on. Tiles of neighbours, t < g, also compare the
rows of their first group with each other: they have half as much again to do, and as the lowest they are begun first. No tile is
there for one group alone, so that a group is sent to one task less than where all pairs are a triangle of tiles.
"""

from __future__ import annotations

import math

GROUP_ROWS = 50_000
"""Distinct vectors in a group at most, on average: a task holds two groups with their features, some 300 MB."""


def group_count(rows: float, tasks: int) -> int:
    """Groups that make as many tiles as there are to be tasks or a few less, and more where a group would be too large for one.

    Args:
        rows: Rows that are dealt out, at least 0.
        tasks: Tasks wanted, at least 1.

    Returns:
        At least 1, never 2: of two groups one would have no neighbour to compare its own rows.
    """
    groups = max((1 + math.isqrt(8 * tasks + 1)) // 2, math.ceil(rows / GROUP_ROWS))
    if groups == 2:
        return 3 if rows > GROUP_ROWS else 1
    return groups


def tile_count(groups: int) -> int:
    """Tiles of so many groups, numbered from 0."""
    return max(1, groups * (groups - 1) // 2)


def copies(groups: int) -> int:
    """Tiles to which each row is sent."""
    return max(1, groups - 1)
