"""How many groups all pairs of rows are cut into."""

from __future__ import annotations

import pytest

from spark_dedup.kernels.tiles import copies, group_count, tile_count


@pytest.mark.parametrize(
    ("rows", "tasks", "groups", "tiles"),
    [
        (0, 1, 1, 1),
        (10, 2, 1, 1),
        (10, 3, 3, 3),
        (10, 5, 3, 3),
        (10, 6, 4, 6),
        (10, 8, 4, 6),
        (10, 10, 5, 10),
        (10, 32, 8, 28),
        (50_000, 1, 1, 1),
        (50_001, 1, 3, 3),
        (150_001, 1, 4, 6),
        (400_001, 8, 9, 36),
    ],
)
def test_tiles_are_no_more_than_the_tasks_wanted_unless_groups_would_be_too_large(rows, tasks, groups, tiles):
    assert (group_count(rows, tasks), tile_count(groups)) == (groups, tiles)


@pytest.mark.parametrize(("groups", "sent"), [(1, 1), (3, 2), (4, 3), (9, 8)])
def test_a_row_is_sent_to_every_tile_of_its_group(groups, sent):
    # Each tile has two groups: tiles x 2 = groups x sent, but for the one group that is alone.
    assert copies(groups) == sent
    assert tile_count(groups) * 2 == groups * sent or groups == 1
