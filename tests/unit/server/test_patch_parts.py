"""The part of a patch that belongs to one file."""

import subprocess

import pytest

from fanout.orchestrator.server.patches import part_of

NAMES = (
    "plain.py",
    "with space.txt",
    "ümläut.txt",
    'quote".txt',
    "tab\tname.txt",
    "a b/b a/x",
    "--- a",
)


@pytest.fixture
def patch(tmp_path):
    def git(*arguments: str) -> bytes:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
        command = ["git", *identity, *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True).stdout

    git("init", "-q")
    for name in (*NAMES, "renamed.txt", "mode.sh", "gone.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"first of {name}\nsecond\n")
    (tmp_path / "blob.bin").write_bytes(bytes(range(256)) * 9)
    git("add", "-A")
    git("commit", "-qm", "before")
    for name in NAMES:
        (tmp_path / name).write_text(f"changed {name}\ndiff --git a/plain.py b/plain.py\n--- a/x\n")
    (tmp_path / "renamed.txt").rename(tmp_path / "new name.txt")
    (tmp_path / "mode.sh").chmod(0o755)
    (tmp_path / "gone.txt").unlink()
    (tmp_path / "blob.bin").write_bytes(bytes(reversed(range(256))) * 9)
    (tmp_path / "empty file").touch()
    git("add", "-A")
    return git("diff", "--cached", "--binary", "-M")


def test_each_file_has_its_own_part_whatever_its_name_is(patch):
    for name in NAMES:
        part = part_of(patch, name)
        assert part is not None, name
        assert f"+changed {name}\n".encode() in part
        assert part.count(b"\n+changed ") == 1


def test_renamed_binary_deleted_and_empty_files_and_modes_have_theirs(patch):
    expected = {
        "new name.txt": b"rename to new name.txt",
        "mode.sh": b"new mode 100755",
        "gone.txt": b"deleted file",
        "blob.bin": b"GIT binary patch",
        "empty file": b"new file",
    }

    for name, line in expected.items():
        assert line in (part_of(patch, name) or b""), name
    assert part_of(patch, "absent.txt") is None
    assert part_of(b"", "absent.txt") is None
