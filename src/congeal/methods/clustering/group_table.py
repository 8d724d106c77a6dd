"""Groups given by the user: a table with the columns id and group, as the studio and `congeal groups` write it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from congeal.errors import CongealError
from congeal.images.formats.writers import check_group_name
from congeal.transforms.ids import match_ids, read_table
from congeal.transforms.transforms import NO_GROUP

NOT_LISTED = -2
"""Group number of an image that the table does not list: it is assigned to the most similar group."""
GROUP_TABLE_COLUMNS = ("id", "group")


@dataclass(frozen=True)
class GivenGroups:
    """names: of the groups, the largest first. group (n,): of each image, −1 for none, −2 where it is not listed."""

    names: tuple[str, ...]
    group: np.ndarray


def read_group_table(path: str | os.PathLike[str], ids: Sequence[str]) -> GivenGroups:
    """The groups that a table gives to images of these ids; an empty cell is no group."""
    table = {row["id"]: row["group"] for row in read_table(path, GROUP_TABLE_COLUMNS)}
    meant = match_ids(table, ids)
    known = {meant[id]: name for id, name in table.items() if id in meant}
    if not known:
        example = f", such as '{ids[0]}'" if len(ids) else ""
        raise CongealError(f"'{path}' lists none of these images: its column id must have their ids{example}")
    sizes = Counter(name for name in known.values() if name)
    if not sizes:
        raise CongealError(f"'{path}' puts no image into a group: its column group is empty")
    try:
        names = [check_group_name(name) for name, _ in sizes.most_common()]
    except CongealError as error:
        raise CongealError(f"'{path}': {error}") from error
    number = {name: k for k, name in enumerate(names)} | {"": NO_GROUP}
    group = np.array([number[known[id]] if id in known else NOT_LISTED for id in ids], dtype=np.int64)
    return GivenGroups(tuple(names), group)
