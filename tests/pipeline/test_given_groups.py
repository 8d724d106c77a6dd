"""Groups that somebody decided: `--groups FILE`, the tree cut anywhere, and what the studio saves of changed groups."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import congeal
from congeal.cli import main
from congeal.errors import CongealError
from congeal.images.formats.writers import check_group_name
from congeal.methods.clustering.spectral_clustering import cut_dendrogram
from congeal.runs.folder import RunFolder
from congeal.runs.originals import run_transforms
from congeal.studio.session import Session

LSC = ("--method", "lsc", "--quiet")


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: dict[str, str]) -> Path:
    path.write_text("id,group\n" + "".join(f"{id},{name}\n" for id, name in rows.items()))
    return path


@pytest.fixture(scope="module")
def pile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given") / "pile"
    folder.mkdir()
    for digit in "137":
        for i, image in enumerate(congeal.open_images(f"digits:{digit}").batch(np.arange(16))[..., 0]):
            Image.fromarray(image).save(folder / f"{digit}-{i:03d}.png")
    return folder


@pytest.fixture(scope="module")
def run(pile: Path) -> Path:
    folder = pile.parent / "run"
    assert main(["align", str(pile), "-o", str(folder), "--groups", "3", *LSC]) == 0
    return folder


@pytest.fixture
def edited(run: Path) -> Path:
    """The run without what an earlier test saved."""
    shutil.rmtree(run / "studio", ignore_errors=True)
    return run


def test_a_table_says_which_image_is_in_which_group(pile: Path, tmp_path: Path) -> None:
    ids = sorted(path.name for path in pile.iterdir())
    given = {id: {"1": "ones", "3": "threes", "7": "threes"}[id[0]] for id in ids if id != "1-003.png"}
    given["7-000.png"] = ""
    groups = write(tmp_path / "mine.csv", given)
    out = tmp_path / "out"
    assert main(["align", str(pile), "-o", str(out), "--groups", str(groups), *LSC]) == 0
    rows = {row["id"]: row for row in table(out / "transforms.csv")}
    assert {id: rows[id]["group_name"] for id in given} == given
    assert rows["1-003.png"]["group_name"] == "ones", "one that is not listed goes where it is most alike"
    assert rows["3-000.png"]["group"] == "0", "the largest group is the first"
    assert rows["7-000.png"]["status"] == "outlier"
    assert (out / "aligned" / "threes" / "3-000.png").is_file()
    assert (out / "aligned" / "outliers" / "7-000.png").is_file()
    assert (out / "groups" / "ones" / "mean.png").is_file()
    metrics = json.loads((out / "metrics.json").read_text())
    assert [group["name"] for group in metrics["groups"]] == ["threes", "ones"]
    assert "as given" in metrics["decisions"]["groups"]["sentence"]
    page = (out / "report.html").read_text()
    assert "Some images of group threes" in page
    assert run_transforms(RunFolder.existing(out)).group_names == ("threes", "ones")
    applied = tmp_path / "applied"
    assert main(["apply", str(out), str(pile), "-o", str(applied), "--limit", "12", "--quiet"]) == 0
    named = [row["group_name"] for row in table(applied / "transforms.csv")]
    assert named.count("ones") >= 11
    write(groups, given | {"3-000.png": "ones"})
    assert main(["align", str(pile), "-o", str(out), "--groups", str(groups), *LSC]) == 2, "another table is refused"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("id,group\nnobody.png,a\n", "lists none of these images"),
        ("id,group\n1-000.png,\n", "puts no image into a group"),
        ("id,group\n1-000.png,a/b\n", "cannot be the name of a group"),
        ("id,kind\n1-000.png,a\n", "needs the columns id,group"),
    ],
)
def test_bad_tables_are_one_sentence(
    pile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    (tmp_path / "bad.csv").write_text(text)
    code = main(["align", str(pile), "-o", str(tmp_path / "out"), "--groups", str(tmp_path / "bad.csv"), *LSC])
    assert code in (1, 2)
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said


@pytest.mark.parametrize("wish", ["many", "none.csv", "2.5"])
def test_a_wish_that_is_none(pile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], wish: str) -> None:
    assert main(["align", str(pile), "-o", str(tmp_path / "out"), "--groups", wish, *LSC]) == 2
    assert "--groups is a number, auto, or a CSV file" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "..", ".a", "a/b", "a\\b", "outliers", "a\n", " a", "x" * 101, "a."])
def test_names_that_are_no_folder_are_refused(name: str) -> None:
    with pytest.raises(CongealError, match="cannot be the name of a group"):
        check_group_name(name)


def test_the_tree_is_cut_anywhere(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["groups", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].strip() for line in lines] == ["3", "2", "1"]
    assert main(["groups", str(run), "--cut", "2", "-o", str(tmp_path / "two.csv")]) == 0
    before = {row["id"]: row["group"] for row in table(run / "transforms.csv")}
    after = {row["id"]: row["group"] for row in table(tmp_path / "two.csv")}
    one, other, _ = json.loads((run / "metrics.json").read_text())["decisions"]["groups"]["tree"][0]
    pair = "+".join(sorted([str(one), str(other)]))
    assert after == {id: pair if k in pair.split("+") else k for id, k in before.items()}
    out = tmp_path / "out"
    command = ["align", str(run.parent / "pile"), "-o", str(out), "--groups", str(tmp_path / "two.csv"), *LSC]
    assert main([*command, "--no-aligned"]) == 0
    assert {row["id"]: row["group_name"] for row in table(out / "transforms.csv")} == after


@pytest.mark.parametrize(
    ("more", "says"),
    [(["--cut", "4"], "cut it into 1 to 3"), (["--cut", "0"], "cut it into 1 to 3"), (["-o", "x.csv"], "give --cut K")],
)
def test_cuts_that_are_none(run: Path, capsys: pytest.CaptureFixture[str], more: list[str], says: str) -> None:
    assert main(["groups", str(run), *more]) == 2
    assert says in capsys.readouterr().err


def test_a_run_without_groups_has_no_tree(pile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["align", str(pile), "-o", str(tmp_path / "run"), "--limit", "6", *LSC]) == 0
    assert main(["groups", str(tmp_path / "run")]) == 2
    assert "was not sorted into groups" in capsys.readouterr().err


def test_merges_are_followed() -> None:
    tree = [(1, 2, 0.3), (0, 4, 0.2), (3, 5, 0.1)]
    assert cut_dendrogram(tree, 4, 4) == [0, 1, 2, 3]
    assert cut_dendrogram(tree, 4, 3) == [0, 1, 1, 2]
    assert cut_dendrogram(tree, 4, 2) == [0, 0, 0, 1]
    assert cut_dendrogram(tree, 4, 1) == [0, 0, 0, 0]


# ---- the studio


def document(groups: dict | None) -> dict:
    return {"points": [], "excluded": [], "groups": groups}


def test_changed_groups_are_saved_and_come_back(edited: Path) -> None:
    session = Session(edited)
    state = session.state()["groups"]
    assert not state["changed"]
    names, of = ["ones", *state["names"][1:]], list(state["of"])
    moved = of.index(1)
    of[moved] = -1
    of = [2 if k == 1 else k for k in of]  # merged into the third
    session.save(document({"names": names, "of": of}))
    saved = table(edited / "studio" / "groups.csv")
    assert {row["group"] for row in saved} == {"ones", "2", ""}
    assert saved[moved]["group"] == ""
    assert "--groups" in session.saved_words()["next"]
    again = Session(edited).state()["groups"]
    assert (again["names"], again["changed"]) == (["2", "ones"], True)
    assert [again["names"][k] if k >= 0 else "" for k in again["of"]] == [row["group"] for row in saved]
    found = run_transforms(RunFolder.existing(edited))
    assert found.named_groups() == [row["group"] for row in saved]
    assert np.isnan(found.margin[moved])
    original = {"names": state["names"], "of": state["of"]}
    session.save(document(original))
    assert not (edited / "studio" / "groups.csv").exists(), "nothing differs from the run any more"


def test_a_split_finds_two_kinds(edited: Path) -> None:
    session = Session(edited)
    state = session.state()["groups"]
    both = [i for i, k in enumerate(state["of"]) if k in (0, 1)]
    parted = session.split({"members": both})["parted"]
    kinds = {i: state["of"][i] for i in both}
    assert set(parted) < set(both)
    inside = [kinds[i] for i in parted]
    assert max(inside.count(0), inside.count(1)) >= 0.9 * len(inside)
    with pytest.raises(CongealError, match="too small to split"):
        session.split({"members": both[:3]})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"names": ["a", "a", "b"]}, "two groups have one name"),
        ({"names": ["../x", "a", "b"]}, "cannot be the name of a group"),
        ({"names": "abc"}, "a list of groups"),
        ({"names": [1, 2, 3]}, "the name of a group is text"),
        ({"of": [0]}, "must be a list"),
        ({"of": [7] * 48}, "does not exist"),
        ({"of": [-2] * 48}, "does not exist"),
        ({"of": [True] * 48}, "must be a list"),
        ({"of": [-1] * 48}, "at least one image"),
    ],
)
def test_strange_groups_are_not_saved(edited: Path, change: dict, says: str) -> None:
    session = Session(edited)
    state = session.state()["groups"]
    with pytest.raises(CongealError, match=says):
        session.save(document({"names": state["names"], "of": state["of"], **change}))
    assert not (edited / "studio").exists()


def test_new_images_get_the_names_of_the_studio(edited: Path, pile: Path, tmp_path: Path) -> None:
    session = Session(edited)
    state = session.state()["groups"]
    session.save(document({"names": ["a", "b", "c"], "of": state["of"]}))
    assert main(["apply", str(edited), str(pile), "-o", str(tmp_path / "new"), "--limit", "8", "--quiet"]) == 0
    assert {row["group_name"] for row in table(tmp_path / "new" / "transforms.csv")} <= {"a", "b", "c", ""}
