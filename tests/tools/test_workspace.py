"""Rules of the workspace."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ninelives.tools.base import ToolRefused
from ninelives.tools.workspace import inside, open_file, open_folder, top_of, workspace_for


def test_each_owner_has_a_closed_folder_of_his_own(tmp_path: Path) -> None:
    root = tmp_path / "workspaces"
    owners = ["Ann Smith", "ann-smith", "../../etc", "", "é", "x" * 500, "a/b", "a\0b", "\ud800"]
    folders = [workspace_for(root, owner) for owner in owners]
    assert len(set(folders)) == len(owners)
    assert folders[0].name.startswith("ann-smith-")
    for folder in folders:
        assert folder.parent == root and folder.is_dir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert workspace_for(root, "Ann Smith") == folders[0]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "w"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "file.txt").write_text("here")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "w-neighbour").mkdir()
    return folder


@pytest.mark.parametrize(
    "name", ["sub/file.txt", "./sub/file.txt", "sub/../sub/file.txt", "~/sub/file.txt", "{w}/sub/file.txt"]
)
def test_a_name_inside_is_resolved(workspace: Path, name: str) -> None:
    path = inside(workspace, name.format(w=workspace))
    assert path == Path(os.path.realpath(workspace)) / "sub" / "file.txt"
    with open_file(workspace, path) as file:
        assert file.read() == b"here"


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "../secret.txt",
        "sub/../../secret.txt",
        "/etc/passwd",
        "/",
        "{w}/../secret.txt",
        "{w}-neighbour/x",
        "~/..",
    ],
)
def test_a_name_outside_is_refused_with_what_is_allowed(workspace: Path, name: str) -> None:
    with pytest.raises(ToolRefused, match="relative to the workspace"):
        inside(workspace, name.format(w=workspace))


@pytest.mark.parametrize("target", ["../secret.txt", "/etc", "..", "sub/../../secret.txt"])
def test_a_link_that_leads_outside_is_refused(workspace: Path, target: str) -> None:
    (workspace / "link").symlink_to(target)
    for name in ("link", "link/passwd", "sub/../link"):
        with pytest.raises(ToolRefused, match="outside the workspace"):
            inside(workspace, name)


def test_a_link_that_stays_inside_may_be_used(workspace: Path) -> None:
    (workspace / "link").symlink_to("sub")
    assert inside(workspace, "link/file.txt").read_text() == "here"


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 5000, "\ud800"])
def test_a_name_that_is_no_path_is_refused(workspace: Path, name: str) -> None:
    with pytest.raises(ToolRefused):
        inside(workspace, name)


def test_a_link_put_there_after_the_check_is_not_followed(workspace: Path, tmp_path: Path) -> None:
    folder, file = inside(workspace, "sub"), inside(workspace, "sub/file.txt")
    (workspace / "sub" / "file.txt").unlink()
    (workspace / "sub" / "file.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(OSError):
        open_file(workspace, file)
    (workspace / "sub" / "file.txt").unlink()
    (workspace / "sub").rmdir()
    (workspace / "sub").symlink_to(tmp_path)
    for create in (False, True):
        with pytest.raises(OSError):
            open_folder(top_of(workspace), folder, create=create)


def test_a_circle_of_links_is_an_error_and_not_a_hang(workspace: Path) -> None:
    (workspace / "a").symlink_to("b")
    (workspace / "b").symlink_to("a")
    with pytest.raises((OSError, ToolRefused)):
        open_file(workspace, inside(workspace, "a"))
