"""A local page on which one marks the mean image and sees the marks land on every original.

server.py   who may ask, and for what: fixed routes behind a random token on 127.0.0.1
settle.py   one image whose pose the user corrects        realign.py  the run again, without excluded images
regroup.py  groups that the user renames, merges and splits
session.py  what the page sees of a run, and what it saves into RUN/studio
templates/  the page
"""

from __future__ import annotations

from congeal.studio.server import Studio

__all__ = ["Studio"]
