"""Transforms: rows, geometry, and four file formats that give back every float."""

from __future__ import annotations

import csv
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from congeal.errors import CongealError
from congeal.transforms import Transforms
from congeal.transforms.transforms import COLUMNS

SUFFIXES = [".csv", ".json", ".npz", ".parquet"]


def some(n: int = 6, aligned_size: tuple[int, int] | None = (40, 30)) -> Transforms:
    rng = np.random.default_rng(3)
    matrices = np.eye(3) + rng.normal(0, [[0.1, 0.1, 5], [0.1, 0.1, 5], [1e-3, 1e-3, 0]], (n, 3, 3))
    status = ["ok"] * n
    if n > 2:
        status[1], matrices[1] = "skipped", np.nan
        status[2] = "outlier"
    score = rng.uniform(size=n)
    score[-1:] = np.nan
    ids = [f'dir/Größe, "{i}"\n.png' if i == 0 else f"im{i}.png" for i in range(n)]
    sizes = rng.integers(1, 5000, (n, 2))
    uncertainty = np.where(rng.uniform(size=n) < 0.5, np.nan, rng.uniform(size=n))
    return Transforms(ids, matrices, sizes, aligned_size, status, score, rng.uniform(size=n), uncertainty)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("n", [0, 1, 6])
def test_round_trip_is_exact(tmp_path: Path, suffix: str, n: int) -> None:
    path = tmp_path / f"t{suffix}"
    for size in (None, (40, 30)):
        before = some(n, size)
        before.save(path)
        after = Transforms.load(path)
        if suffix == ".csv":
            assert after.aligned_size is None
            after.aligned_size = size
        assert after == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name], "no temporary file is left"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_groups_are_kept_by_every_format(tmp_path: Path, suffix: str) -> None:
    plain = some()
    rows = (plain.ids, plain.matrices, plain.source_sizes, plain.aligned_size, plain.status)
    grouped = Transforms(*rows, group=[0, -1, 1, 2, 0, 1], margin=[0.5, np.nan, -0.1, 0.0, 0.25, np.nan])
    grouped.save(tmp_path / f"t{suffix}")
    after = Transforms.load(tmp_path / f"t{suffix}")
    after.aligned_size = (40, 30)
    assert after == grouped
    assert after != Transforms(*rows)
    assert (plain.group, plain.margin) == (None, None)
    assert grouped[[0, 2]].group.tolist() == [0, 1]
    named = Transforms(*rows, group=grouped.group, margin=grouped.margin, group_names=["a", "b, c", "é"])
    named.save(tmp_path / f"named{suffix}")
    after = Transforms.load(tmp_path / f"named{suffix}")
    after.aligned_size = (40, 30)
    assert after == named
    assert after != grouped
    assert after.named_groups() == ["a", "", "b, c", "é", "a", "b, c"]
    with pytest.raises(CongealError, match="every group needs a name"):
        Transforms(*rows, group=grouped.group, group_names=["a"])


@pytest.mark.parametrize("suffix", [".csv", ".json"])
@pytest.mark.parametrize("n", [3, 4, 7])
def test_round_trip_over_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, n: int) -> None:
    monkeypatch.setattr("congeal.transforms.files.ROWS_AT_ONCE", 3)
    some(n).save(tmp_path / f"t{suffix}")
    after = Transforms.load(tmp_path / f"t{suffix}")
    after.aligned_size = (40, 30)
    assert after == some(n)


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_writing_holds_a_few_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr("congeal.transforms.files.ROWS_AT_ONCE", 200)
    many = some(1_500)
    tracemalloc.start()
    many.save(tmp_path / f"t{suffix}")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5e5  # all 1,500 rows as Python objects take more than 8e5


def test_csv_is_the_contract(tmp_path: Path) -> None:
    some().save(tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    wanted = "id status score out_of_frame uncertainty_px source_width source_height"
    assert list(rows[0]) == [*wanted.split(), *(f"m{i}{j}" for i in range(3) for j in range(3))]
    unknown = np.isnan(some().uncertainty_px)
    assert 0 < unknown.sum() < len(unknown)
    assert [row["uncertainty_px"] == "" for row in rows] == unknown.tolist()
    assert float(rows[3]["m02"]) == some().matrices[3, 0, 2]
    assert int(rows[3]["source_height"]) == some().source_sizes[3, 0]
    assert rows[1]["status"] == "skipped"
    assert {rows[1][f"m{i}{j}"] for i in range(3) for j in range(3)} == {""}


def test_file_names_that_are_not_utf8_survive_csv(tmp_path: Path) -> None:
    odd = Transforms([b"caf\xe9.png".decode("utf-8", "surrogateescape")], np.eye(3)[None], [[1, 1]])
    odd.save(tmp_path / "t.csv")
    assert Transforms.load(tmp_path / "t.csv") == odd


ROW = "a,ok,,,,4,4,1,0,0,0,1,0,0,0,1"
HEADER = ",".join(COLUMNS)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("x.csv", b"", "first line"),
        ("x.csv", b"name,age\nme,3\n", "first line"),
        ("x.csv", f"{HEADER}\na,ok,1\n".encode(), "3 cells"),
        ("x.csv", f"{HEADER}\n{ROW.replace(',4,4', ',four,4')}\n".encode(), "four"),
        ("x.csv", f"{HEADER}\n{ROW.replace('ok', 'fine')}\n".encode(), "status 'fine'"),
        ("x.csv", f"{HEADER}\n{ROW[:-1]}\n".encode(), "no finite matrix"),
        ("x.csv", b"\x89PNG\r\n\x1a\n\0\0\0\0", "not a transforms file"),
        ("x.json", b"{", "not a transforms file"),
        ("x.json", b"[1, 2]", "congeal-transforms"),
        ("x.json", b'{"format": "congeal-transforms", "aligned_size": null, "images": [{}]}', "'id'"),
        ("x.json", b'{"format": "congeal-transforms", "aligned_size": null, "images": 3}', "not a transforms file"),
        ("x.npz", b"PK no", "not a transforms file"),
        ("x.npz", b"", "not a transforms file"),
        ("x.parquet", b"PAR1", "not a transforms file"),
        ("x.txt", b"", ".csv, .json, .npz, .parquet"),
    ],
)
def test_a_foreign_file_is_one_sentence(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CongealError) as caught:
        Transforms.load(path)
    assert sentence in str(caught.value)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_npz_and_pickles_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros(3))
    np.savez(tmp_path / "b.npz", ids=np.array([{}], dtype=object))
    np.save(tmp_path / "c.npy", np.zeros(3))
    (tmp_path / "c.npy").rename(tmp_path / "c.npz")
    for name in "abc":
        with pytest.raises(CongealError, match="not a transforms file"):
            Transforms.load(tmp_path / f"{name}.npz")


def test_missing_file_and_unwritable_place(tmp_path: Path) -> None:
    with pytest.raises(CongealError, match="there is no transforms file"):
        Transforms.load(tmp_path / "none.csv")
    with pytest.raises(CongealError, match="cannot write"):
        some().save(tmp_path / "no" / "such" / "t.csv")


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json"
    some().save(path)
    old = path.read_bytes()

    def fails(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json, "dumps", fails)
    with pytest.raises(CongealError, match="disk is full"):
        some(3).save(path)
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"matrices": np.eye(3)}, r"matrices must have shape \(2, 3, 3\)"),
        ({"source_sizes": [[1, 1]]}, "source_sizes"),
        ({"source_sizes": [[1, 1], [1, -1]]}, "negative"),
        ({"status": ["ok"]}, "status"),
        ({"status": ["ok", "good"]}, "status 'good'"),
        ({"status": ["ok", "skipped"]}, "must have a matrix of NaN"),
        ({"matrices": np.full((2, 3, 3), np.nan), "status": ["ok", "ok"]}, "no finite matrix"),
        ({"score": [1.0]}, "score"),
        ({"score": ["a", "b"]}, "score must be numbers"),
        ({"out_of_frame": np.zeros((2, 1))}, "out_of_frame"),
        ({"aligned_size": (1, 2, 3)}, "aligned_size"),
    ],
)
def test_the_constructor_validates(arguments: dict, sentence: str) -> None:
    good = {"ids": ["a", "b"], "matrices": np.tile(np.eye(3), (2, 1, 1)), "source_sizes": [[4, 4], [4, 4]]}
    assert Transforms(**good).status.tolist() == ["ok", "ok"]
    with pytest.raises(CongealError, match=sentence):
        Transforms(**(good | arguments))


def test_rows() -> None:
    t = some()
    assert t.ok.tolist() == [True, False, False, True, True, True]
    assert t[-1].ids == ("im5.png",)
    assert t[1:3].status.tolist() == ["skipped", "outlier"]
    assert t[t.ok] == t[[0, 3, 4, 5]] == t[np.array([0, 3, 4, 5])]
    assert t[2:2].aligned_size == (40, 30)
    assert [part.ids[0] for part in t] == list(t.ids)
    assert t[::-1] != t
    with pytest.raises(IndexError):
        t[6]


def test_the_arrays_are_own_copies() -> None:
    matrices = np.tile(np.eye(3), (2, 1, 1))
    t = Transforms("ab", matrices, [[4, 4], [4, 4]])
    matrices[:] = 7
    assert (t.matrices == np.eye(3)).all()


def test_matching() -> None:
    t = some()
    assert t.matching(["im4.png", "im1.png"]) == t[[4, 1]]
    with pytest.raises(CongealError, match=r"belong to another set: 1 of 2 images have no row, the first is 'x.png'"):
        t.matching(["im4.png", "x.png"])
    with pytest.raises(CongealError, match="occur twice"):
        t[[0, 0]].matching(t.ids[:1])


def test_points_go_to_the_aligned_frame_and_back() -> None:
    t = some()
    xy = np.array([[0.0, 0.0], [10, 3], [7, 20]])
    there = t.apply_points(xy)
    assert there.shape == (6, 3, 2)
    one = t.matrices[3] @ [10, 3, 1]
    np.testing.assert_allclose(there[3, 1], one[:2] / one[2], rtol=1e-12)
    assert np.isnan(there[1]).all()
    back = t.apply_points(there, inverse=True)
    np.testing.assert_allclose(back[t.ok], np.broadcast_to(xy, back.shape)[t.ok], atol=1e-9)
    np.testing.assert_allclose(t.inverse().apply_points(there)[t.ok], back[t.ok], atol=1e-12)
    for wrong in (np.zeros(2), np.zeros((3, 3)), np.zeros((5, 3, 2))):
        with pytest.raises(CongealError, match="points must be"):
            t.apply_points(wrong)


def test_inverse_swaps_the_two_sizes() -> None:
    t = Transforms("ab", np.tile(np.diag([2.0, 4, 1]), (2, 1, 1)), [[8, 6], [8, 6]], (32, 12))
    back = t.inverse()
    assert back.aligned_size == (8, 6)
    assert back.source_sizes.tolist() == [[32, 12], [32, 12]]
    np.testing.assert_allclose(back.matrices[0], np.diag([0.5, 0.25, 1]))
    assert back.inverse() == t
    singular = Transforms("a", np.diag([1.0, 1, 0])[None], [[8, 6]])
    with pytest.raises(CongealError, match="'a' has no inverse"):
        singular.inverse()


def test_compose_is_first_self_then_other() -> None:
    shift = np.array([[1.0, 0, 5], [0, 1, 0], [0, 0, 1]])
    double = np.diag([2.0, 2, 1])
    first = Transforms("abc", np.stack([shift] * 3), [[4, 4]] * 3, (4, 4), ["ok", "blank", "ok"])
    assert first.compose(double).apply_points([[1.0, 1]])[0].tolist() == [[12.0, 2.0]]
    second = Transforms(
        "cba", np.stack([np.full((3, 3), np.nan), double, double]), [[4, 4]] * 3, (9, 9), ["skipped", "ok", "ok"]
    )
    both = first.compose(second)
    assert both.ids == ("a", "b", "c")
    assert both.status.tolist() == ["ok", "blank", "skipped"]
    assert both.aligned_size == (9, 9)
    np.testing.assert_array_equal(both.matrices[:2], np.stack([double @ shift] * 2))
    with pytest.raises(CongealError, match="compose needs"):
        first.compose(np.zeros((2, 3, 3)))
    with pytest.raises(CongealError, match="another set"):
        first.compose(second[:2])


def test_notebook_view_escapes_and_counts() -> None:
    t = Transforms(["<b>.png", *map(str, range(9))], np.tile(np.eye(3), (10, 1, 1)), [[4, 4]] * 10, (4, 5))
    page = t._repr_html_()
    assert "&lt;b&gt;.png" in page
    assert "<b>.png" not in page
    assert "10 images: 10 ok" in page
    assert "5 more" in page
    assert repr(t) == "Transforms(10 images: 10 ok, aligned to 4×5 (h×w))"
