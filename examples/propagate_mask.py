"""Mark the mean image once and get the mark on every original.

    python examples/propagate_mask.py

Aligns bundled digits and takes the bright part of the mean as the mask. Writes the mask of every original to
example-marks/masks/, and one point to example-marks/points.csv and points.json (COCO keypoints).
"""

import numpy as np
from PIL import Image

import congeal

if __name__ == "__main__":
    run = congeal.align("digits:0", "example-mask-run", method="lsc", size=28, limit=60)
    mean = np.asarray(Image.open(run.folder / "mean.png"))
    folder = congeal.propagate_mask(run, mean > 128, "example-marks")
    y, x = np.unravel_index(mean.argmax(), mean.shape)
    points = congeal.propagate_points(run, [[x, y]], "example-marks", names=["brightest"])
    print(f"{len(list(folder.iterdir()))} masks in {folder}")
    print(f"the brightest point of the mean, on the first original: {points.xy[0, 0].round(1)}")
