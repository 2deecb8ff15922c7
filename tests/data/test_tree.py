import tarfile

import pytest

from sourceward._util.errors import InputError
from sourceward.data import open_dataset
from sourceward.data.tree import read_tree


def test_folder_and_tar_are_the_same_dataset(folder, archive):
    plain, packed = open_dataset(folder), open_dataset(archive)
    assert plain.domain_names == ("photo", "sketch")
    assert plain.classes == ("cat", "dog", "owl")
    assert plain.counts().tolist() == [[4, 4, 4], [4, 4, 4]]
    assert plain.ids == packed.ids
    assert plain.fingerprint() == packed.fingerprint()
    assert [item.read() for item in plain.items] == [item.read() for item in packed.items]


def test_hidden_files_are_not_mentioned(folder, put):
    put("root/.DS_Store", b"x")
    put("root/photo/cat/._0.png", b"x")
    put("root/__MACOSX/photo/cat/1.png", b"x")
    assert open_dataset(folder).problems == ()


def test_what_cannot_be_used_is_listed(folder, put, tmp_path):
    put("root/photo/cat/empty.jpg", b"")
    put("root/photo/cat/readme.txt", b"hello")
    put("root/photo/loose.png")
    (tmp_path / "root/photo/cat/link.png").symlink_to(tmp_path / "nowhere.png")
    kinds = {p.where: p.kind for p in open_dataset(folder).problems}
    assert kinds == {
        "photo/cat/empty.jpg": "empty_file",
        "photo/cat/link.png": "empty_file",
        "photo/cat/readme.txt": "not_an_image",
        "photo/loose.png": "misplaced",
    }


def test_images_directly_under_the_root(put, tmp_path):
    for number in range(3):
        put(f"flat/{number}.png")
    message = r"has no domain folders: expected <root>/<domain>/<class>/<image>, found 3 images directly"
    with pytest.raises(InputError, match=message):
        open_dataset(tmp_path / "flat")


def test_one_level_of_folders_only(put, tmp_path):
    put("one/cat/1.png")
    with pytest.raises(InputError, match="one folder per domain"):
        open_dataset(tmp_path / "one")


def test_an_empty_folder(tmp_path):
    with pytest.raises(InputError, match="found no files"):
        open_dataset(tmp_path)


def test_links_in_a_circle_end(folder):
    (folder / "photo" / "cat" / "again").symlink_to(folder)
    assert len(read_tree(folder).files) == 24


def test_a_compressed_or_truncated_tar_is_refused(folder, tmp_path):
    path = tmp_path / "packed.tar"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, "Top")
    with pytest.raises(InputError, match="Decompress it first"):
        open_dataset(path)
