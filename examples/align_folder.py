"""Align a folder of images and look at the result.

    python examples/align_folder.py [FOLDER]

Without FOLDER it makes a folder of bundled digits. Writes example-run/ with the aligned images and report.html.
"""

import sys
from pathlib import Path

from PIL import Image

import congeal


def folder_of_digits(folder: Path, n: int = 60) -> Path:
    digits = congeal.open_images("digits:3", limit=n)
    folder.mkdir(exist_ok=True)
    for i in range(len(digits)):
        image = digits.read(i)
        Image.fromarray(image.pixels[..., 0]).save(folder / f"{image.id}.png")
    return folder


if __name__ == "__main__":
    pictures = Path(sys.argv[1]) if len(sys.argv) > 1 else folder_of_digits(Path("example-digits"))
    result = congeal.align(pictures, "example-run", method="lsc", size=28)
    print(result.summary())
    worst = result.transforms[result.transforms.score.argsort()[:3]]
    print("least like the others:", ", ".join(worst.ids))
