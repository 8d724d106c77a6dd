"""A local page for marking points and masks on the mean image, which appear on every original at once.

server.py   the HTTP server: fixed routes behind a random token on 127.0.0.1
session.py  the data of the page, and the files that it saves into RUN/studio
realign.py  groups that the user renames, merges and splits; the run again with them, without excluded images
refit.py    the pose of one image, corrected by the user
templates/  the page
"""

from __future__ import annotations

from congeal.studio.server import Studio

__all__ = ["Studio"]
