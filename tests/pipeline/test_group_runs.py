"""`congeal align --groups`: the run folder of a sorted pile, new images, resuming, wrong use."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import congeal
from congeal.cli import main
from congeal.evaluation.grouping import accuracy, confusion, purity
from congeal.transforms import Transforms

LSC = ("--method", "lsc", "--quiet")


def save_pile(folder: Path, first: int, last: int, digits: str = "137") -> Path:
    """Some bundled digits as files, named after what they show."""
    folder.mkdir()
    for digit in digits:
        for i, image in enumerate(congeal.open_images(f"digits:{digit}").batch(np.arange(first, last))[..., 0]):
            Image.fromarray(image).save(folder / f"{digit}-{first + i:03d}.png")
    return folder


@pytest.fixture(scope="module")
def pile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_pile(tmp_path_factory.mktemp("pile") / "pile", 0, 40)


@pytest.fixture(scope="module")
def run(pile: Path) -> Path:
    folder = pile.parent / "run"
    assert main(["align", str(pile), "-o", str(folder), "--groups", "auto", *LSC]) == 0
    return folder


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "transforms.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_run_folder_has_groups(run: Path) -> None:
    metrics = json.loads((run / "metrics.json").read_text())
    table = rows(run)
    assert list(table[0])[-2:] == ["group", "margin"]
    assert [group["n_images"] for group in metrics["groups"]] == [
        sum(row["group"] == str(number) for row in table) for number in range(len(metrics["groups"]))
    ]
    assert len(metrics["groups"]) == 3
    assert metrics["decisions"]["groups"]["n_groups"] == 3
    for row in table:
        folder = run / "aligned" / (row["group"] or "outliers")
        assert (folder / row["id"]).is_file()
    for number in range(3):
        for name in ("mean.png", "variance.png"):
            assert Image.open(run / "groups" / str(number) / name).size == (28, 28)
    found = [row for row in table if row["group"]]
    assert purity([int(row["group"]) for row in found], [row["id"][0] for row in found]) > 0.95


def test_the_mean_of_a_group_is_that_of_its_images(run: Path) -> None:
    images = [np.asarray(Image.open(path), dtype=float) for path in sorted((run / "aligned" / "0").glob("*.png"))]
    mean = np.asarray(Image.open(run / "groups" / "0" / "mean.png"), dtype=float)
    assert np.abs(np.mean(images, 0) - mean).max() <= 1


def test_the_report_shows_groups(run: Path) -> None:
    page = (run / "report.html").read_text()
    for words in (
        'id="groups"',
        "Which groups are alike",
        "How many groups",
        "Some images of group 2",
        "Least certain",
    ):
        assert words in page
    assert "Groups and labels" not in page, "files have no labels"


def test_new_images_get_a_group(run: Path, tmp_path: Path) -> None:
    new = save_pile(tmp_path / "new", 60, 70)
    assert main(["apply", str(run), str(new), "-o", str(tmp_path / "applied"), "--quiet"]) == 0
    table = rows(tmp_path / "applied")
    known = {row["id"][0]: row["group"] for row in rows(run) if row["group"] and row["status"] == "ok"}
    right = [row["group"] == known[row["id"][0]] for row in table if row["group"]]
    assert np.mean(right) > 0.9
    assert all(float(row["margin"]) >= 0 for row in table if row["group"])
    assert json.loads((tmp_path / "applied" / "metrics.json").read_text())["groups"][0]["n_images"] > 0


def test_the_same_command_resumes_and_another_number_is_refused(
    run: Path, pile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (run / "transforms.csv").read_bytes()
    (run / "aligned" / "0" / sorted(p.name for p in (run / "aligned" / "0").iterdir())[0]).unlink()
    assert main(["align", str(pile), "-o", str(run), "--groups", "auto", *LSC]) == 0
    assert (run / "transforms.csv").read_bytes() == before
    assert len(list((run / "aligned").rglob("*.png"))) == 120, "what was gone is written again"
    assert main(["align", str(pile), "-o", str(run), "--groups", "2", *LSC]) == 2
    assert "groups" in capsys.readouterr().err


def test_labels_of_a_named_set_are_compared(tmp_path: Path) -> None:
    result = congeal.align("digits:all", tmp_path / "run", method="lsc", groups=3, limit=60, quiet=True)
    known = result.metrics["group_labels"]
    assert "Groups and labels" in (tmp_path / "run" / "report.html").read_text()
    assert np.array(known["confusion"]).sum() <= 60
    assert 0 < known["accuracy"] <= 1
    assert Transforms.load(tmp_path / "run" / "transforms.csv").group is not None
    assert (tmp_path / "run" / "aligned" / "0" / "aligned.npy").is_file(), "an array comes back as arrays"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--groups", "500"), "cannot make 500 groups"),
        (("--groups", "0"), "n_groups must be"),
        (("--groups", "some"), "--groups is a number, auto, or a CSV file"),
        (("--groups", "2", "--reference", "3"), "--reference or --groups"),
        (("--groups", "2", "--method", "rasl"), "cannot align new images"),
    ],
)
def test_wrong_use_is_one_sentence(
    pile: Path, tmp_path: Path, flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["align", str(pile), "-o", str(tmp_path / "run"), *LSC, *flags]) in (1, 2)
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said


def test_a_mixed_set_is_told_of_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pile = save_pile(tmp_path / "pile", 0, 40, "30")
    main(["align", str(pile), "-o", str(tmp_path / "run"), *LSC])
    assert "--groups" in capsys.readouterr().err


# ---- agreement with labels


def test_images_in_no_group_are_wrong() -> None:
    groups, labels = [0, 0, 1, 1, -1], ["a", "a", "b", "a", "b"]
    table, names = confusion(groups, labels)
    assert (table.tolist(), names) == ([[2, 0], [1, 1]], ["a", "b"])
    assert accuracy(groups, labels) == pytest.approx(3 / 5)
    assert purity(groups, labels) == pytest.approx(3 / 4)
