"""What an alignment finds: one matrix per image with its id, sizes, status and score, and the files it is kept in.

transforms.py   `Transforms`, the value object
files.py        CSV, JSON, NPZ, Parquet
ids.py          a million names in one block; tables and lists of ids that people write
"""

from congeal.transforms.transforms import STATUSES, Transforms

__all__ = ["STATUSES", "Transforms"]
