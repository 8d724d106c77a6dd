"""Films and drifting stacks: how exact, how fast, how much memory.

    python benchmarks/sequences.py drift         a made stack that drifts two frame widths, against the truth
    python benchmarks/sequences.py clip FILE     make the film: 600 frames of 640 × 480
    python benchmarks/sequences.py video FILE    the film aligned, written and reported, against OpenCV doing the same
    python benchmarks/sequences.py stack 600     peak memory of so many time points, two channels of 512², as OME-TIFF

Scenes are pictures of scikit-image side by side. Nothing was tuned on them.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import tifffile
from skimage import data
from skimage.transform import resize

import congeal
from congeal.geometry.matrix import corners, map_points
from congeal.images.resample import warp_pixels

SIZE = (480, 640)


def scene(height: int = 640) -> np.ndarray:
    """Several photographs side by side, (height, about 4,000, 3)."""
    pictures = [data.astronaut(), data.coffee(), data.rocket(), data.chelsea(), data.astronaut()[:, ::-1]]
    parts = [resize(p, (height, round(p.shape[1] * height / p.shape[0])), anti_aliasing=True) for p in pictures]
    return np.rint(255 * np.concatenate(parts, 1)).astype(np.uint8)


def path(n: int, widths: float, seed: int, turn: float) -> np.ndarray:
    """scene_from_frame (n, 3, 3) of a camera that drifts and shakes."""
    rng = np.random.default_rng(seed)
    height, width = SIZE
    centre = np.array([[1, 0, (width - 1) / 2], [0, 1, (height - 1) / 2], [0, 0, 1]])
    poses = []
    for i in range(n):
        x, y = 40 + widths * width * i / (n - 1) + rng.normal(0, 2), 70 + rng.normal(0, 2)
        angle = turn * rng.normal()
        c, s = np.cos(angle), np.sin(angle)
        moved = np.array([[1, 0, x], [0, 1, y], [0, 0, 1]])
        poses.append(moved @ centre @ np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]) @ np.linalg.inv(centre))
    return np.stack(poses)


def frames(poses: np.ndarray, noise: float, seed: int = 1):
    """Each frame as the camera sees it."""
    whole, rng = scene(), np.random.default_rng(seed)
    for pose in poses:
        shown = warp_pixels(whole, pose, SIZE) + rng.normal(0, noise, (*SIZE, 3))
        yield np.clip(np.rint(shown), 0, 255).astype(np.uint8)


def apart(found: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """(n,) pixels by which each frame lies wrong against the first."""
    ours, theirs = (np.linalg.inv(some[0]) @ some for some in (found, truth))
    corner = corners(SIZE)
    return np.linalg.norm(map_points(np.linalg.inv(theirs) @ ours, corner) - corner, axis=-1).mean(1)


def drift() -> None:
    """A stack that drifts two widths, so that its ends share nothing."""
    print("| frames | turning | motion | step error median, max (px) | first to last (px) | seconds | verdict |")
    print("|---|---|---|---|---|---|---|")
    for n, turn in ((60, 0.0), (60, 0.004)):
        truth = path(n, 2.0, 0, turn)
        stack = np.stack([*frames(truth, 3.0)])
        began = time.monotonic()
        model = congeal.SequenceCongealing().fit(stack)
        seconds, found = time.monotonic() - began, model.transforms_.matrices
        steps = np.array([apart(found[i : i + 2], truth[i : i + 2])[1] for i in range(n - 1)])
        ends = apart(found[[0, -1]], truth[[0, -1]])[1]
        print(
            f"| {n} | {turn} rad | {model.motion_} | {np.median(steps):.3f}, {steps.max():.3f} | {ends:.3f} "
            f"| {seconds:.0f} | {model.quality_.verdict} |"
        )


OPENCV = """
import sys, time, cv2, numpy as np
source, target, how = sys.argv[1:]
began = time.monotonic()
film = cv2.VideoCapture(source)
writer = cv2.VideoWriter(target, cv2.VideoWriter_fourcc(*"mp4v"), 30, (640, 480))
before, whole, poses = None, np.eye(3), []
total, squares = np.zeros((480, 640, 3)), np.zeros((480, 640, 3))
while True:
    there, frame = film.read()
    if not there:
        break
    grey = cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY).astype(np.float32)
    if before is not None:
        step = np.eye(3)
        if how == "ecc":
            stop = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 50, 1e-4)
            step[:2] = cv2.findTransformECC(before, grey, np.eye(2, 3, dtype=np.float32), cv2.MOTION_EUCLIDEAN, stop)[1]
        else:
            (x, y), _ = cv2.phaseCorrelate(before, grey, window)
            step[:2, 2] = x, y
        whole = step @ whole
    else:
        window = cv2.createHanningWindow((640, 480), cv2.CV_32F)
    before = grey
    poses.append(np.linalg.inv(whole))
    aligned = cv2.warpAffine(frame, whole[:2], (640, 480), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP)
    writer.write(aligned)
    cv2.accumulate(aligned, total)
    cv2.accumulateSquare(aligned, squares)
writer.release()
mean = total / len(poses)
cv2.imwrite(target + "-mean.png", np.rint(mean).astype(np.uint8))
cv2.imwrite(target + "-variance.png", np.clip(squares / len(poses) - mean**2, 0, 255).astype(np.uint8))
np.save(target + ".npy", poses)
print(time.monotonic() - began)
"""


FRAMES = 600


def clip(file: str) -> None:
    """A film of a camera that drifts by a third of its width, shakes and turns."""
    import av

    with av.open(file, "w") as film:
        stream = film.add_stream("libx264", rate=Fraction(30))
        stream.height, stream.width, stream.pix_fmt, stream.options = *SIZE, "yuv420p", {"crf": "14"}
        for pixels in frames(path(FRAMES, 0.3, 0, 0.004), 2.0):
            film.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        film.mux(stream.encode())


def _spent() -> float:
    """CPU seconds of all programs that were started from here and have ended: on a busy machine they say more."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def video(clip: str) -> None:
    """The film aligned, written and reported, against OpenCV: both with all cores, one after the other."""
    with tempfile.TemporaryDirectory() as place:
        others = {}
        for how in ("ecc", "phase"):
            command = [sys.executable, "-c", OPENCV, str(clip), str(Path(place) / f"{how}.mp4"), how]
            began = _spent()
            seconds = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            others[how] = seconds, _spent() - began
        began, before = time.monotonic(), _spent()
        command = [
            sys.executable,
            "-m",
            "congeal.cli",
            "align",
            str(clip),
            "-o",
            str(Path(place) / "run"),
            "--sequence",
            "--quiet",
        ]
        subprocess.run(command, check=True)
        seconds, spent = time.monotonic() - began, _spent() - before
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        metrics = json.loads((Path(place) / "run" / "metrics.json").read_text())
        found = congeal.Transforms.load(Path(place) / "run" / "transforms.csv").matrices
        truth = path(FRAMES, 0.3, 0, 0.004)[: len(found)]
        error = apart(found, truth)
        print(
            f"congeal: {seconds:.1f} s ({spent:.1f} CPU), fit {metrics['fit_seconds']} s, "
            f"writing {metrics['align_seconds']} s, peak {memory:.0f} MB, {metrics['motion']}, {metrics['verdict']}"
        )
        print(f"error against the first: median {np.median(error):.3f} px, max {error.max():.3f} px")
        for how, (theirs, cpu) in others.items():
            error = apart(np.load(Path(place) / f"{how}.mp4.npy"), truth)
            print(
                f"OpenCV {how}: {theirs:.1f} s ({cpu:.1f} CPU), theirs / ours {theirs / seconds:.2f} "
                f"({cpu / spent:.2f} CPU), "
                f"median {np.median(error):.3f} px, max {error.max():.3f} px"
            )


def stack(count: str) -> None:
    """An OME-TIFF whose frames move by whole pixels, aligned and written by a process of its own."""
    n, rng = int(count), np.random.default_rng(0)
    whole = resize(data.camera(), (600, 600), anti_aliasing=True) * 3000

    def pages():
        for t in range(n):
            y, x = round(40 + 10 * np.sin(t / 3)), round(40 + 10 * np.cos(t / 4))
            for brighter in (1.0, 1.1):
                yield (brighter * whole[y : y + 512, x : x + 512] + rng.integers(0, 100, (512, 512))).astype(np.uint16)

    with tempfile.TemporaryDirectory() as place:
        file, shape = Path(place) / "stack.ome.tif", (n, 2, 512, 512)
        tifffile.imwrite(file, pages(), shape=shape, dtype=np.uint16, ome=True, metadata={"axes": "TCYX"})
        options = ["-o", str(Path(place) / "run"), "--motion", "translation", "--quiet"]
        subprocess.run([sys.executable, "-m", "congeal.cli", "align", str(file), *options], check=True)
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"{n} time points, {file.stat().st_size / 1e6:.0f} MB: peak {memory:.0f} MB")


if __name__ == "__main__":
    {"drift": drift, "clip": clip, "video": video, "stack": stack}[sys.argv[1]](*sys.argv[2:])
