"""Small pictures of one made-up animal on coloured noise, facing left or right: something a network's features see."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFilter


def made_birds(n: int, seed: int = 0, side: int = 128) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(n, side, side, 3) uint8 pictures; (n,) whether each is mirrored; (n, 3, 2) beak, eye and tail in its pixels."""
    generator = np.random.default_rng(seed)
    pictures, flips, points = [], generator.random(n) < 0.4, []
    for flip in flips:
        low = generator.integers(90, 160, (8, 8, 3)).astype(np.uint8)
        image = Image.fromarray(low).resize((side, side), Image.Resampling.BICUBIC)
        x, y = side * (0.5 + generator.uniform(-0.1, 0.1, 2))
        size = side * generator.uniform(0.3, 0.4)
        draw = ImageDraw.Draw(image)
        draw.ellipse((x - size, y - 0.5 * size, x + 0.6 * size, y + 0.5 * size), (230, 190, 40))  # body
        draw.polygon(
            [(x - 0.8 * size, y), (x - 1.5 * size, y - 0.4 * size), (x - 1.4 * size, y + 0.2 * size)], (40, 30, 20)
        )
        head = (x + 0.6 * size, y - 0.5 * size)
        draw.ellipse(
            (head[0] - 0.4 * size, head[1] - 0.4 * size, head[0] + 0.4 * size, head[1] + 0.4 * size), (200, 60, 40)
        )
        beak = (head[0] + 0.75 * size, head[1])
        draw.polygon(
            [beak, (head[0] + 0.3 * size, head[1] - 0.15 * size), (head[0] + 0.3 * size, head[1] + 0.15 * size)],
            (20, 20, 20),
        )
        eye = (head[0] + 0.1 * size, head[1] - 0.1 * size)
        draw.ellipse((eye[0] - 4, eye[1] - 4, eye[0] + 4, eye[1] + 4), (250, 250, 250))
        draw.line((x, y + 0.5 * size, x, y + 0.9 * size), (60, 40, 20), 3)
        pixels = np.asarray(image.filter(ImageFilter.GaussianBlur(0.6)))
        places = np.array([beak, eye, (x - 1.4 * size, y - 0.2 * size)])
        if flip:
            pixels, places = pixels[:, ::-1], np.column_stack([side - 1 - places[:, 0], places[:, 1]])
        pictures.append(pixels)
        points.append(places)
    return np.stack(pictures), flips, np.stack(points)
