"""Merges as Git's attributes say, and files that were renamed on one side."""

from pathlib import Path

import pytest

from tests.bundles import BundleBuilder, tree_of
from tests.repositories import git
from tests.unit.test_branch_landing import land, one_job, shown
from tests.unit.test_merge import LINES, hows, kinds, merged, put_in

HERE, THERE = LINES.replace(b"three", b"here"), LINES.replace(b"three", b"there")
BOTH = LINES.replace(b"three", b"here\nthere")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A person's home folder."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return home


@pytest.fixture
def root(tmp_path, home):
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    git(root, "init", "-q")
    return root


def attributes(root: Path, text: str, place: str = ".gitattributes") -> None:
    (root / place).parent.mkdir(exist_ok=True)
    (root / place).write_text(f"{text}\n")


UNION = [
    ("*.md merge=union", ".gitattributes"),
    ("*.md merge=union", "sub/.gitattributes"),
    ("sub/*.md merge=union", ".git/info/attributes"),
    ("[attr]log merge=union\nsub/a.md log", ".gitattributes"),
]


@pytest.mark.parametrize(("text", "place"), UNION)
async def test_a_union_keeps_the_lines_of_both_sides(root, text, place):
    attributes(root, text, place)
    (root / "sub/a.md").write_bytes(HERE)

    report = await merged(root, BundleBuilder().edit("sub/a.md", LINES, THERE))

    assert hows(report) == {"sub/a.md": "merged"}
    assert (root / "sub/a.md").read_bytes() == BOTH


async def test_many_lines_at_one_place_all_arrive_in_a_union(root):
    attributes(root, "*.md merge=union")
    (root / "a.md").write_bytes(LINES)
    bundles = [
        BundleBuilder().edit("a.md", LINES, LINES.replace(b"two\n", b"two\n- from %d\n" % number))
        for number in range(5)
    ]
    for bundle in bundles:
        assert (await merged(root, bundle)).complete

    after = (root / "a.md").read_bytes()
    for bundle in bundles:
        assert (await put_in(root, bundle)).complete
    assert (root / "a.md").read_bytes() == after
    assert all(after.count(b"- from %d\n" % number) == 1 for number in range(5))


async def test_a_file_that_both_sides_add_is_a_union_too(root):
    attributes(root, "*.md merge=union")
    (root / "new.md").write_bytes(b"here\n")
    bundle = BundleBuilder()

    report = await merged(root, bundle.add("new.md", bundle.file(b"there\n")))

    assert report.complete
    assert (root / "new.md").read_bytes() == b"here\nthere\n"


@pytest.mark.parametrize("rule", ["-merge", "binary", "merge=binary"])
async def test_what_is_not_to_be_merged_keeps_both_sides(root, rule):
    attributes(root, f"*.lock {rule}")
    here = LINES.replace(b"one", b"ONE")
    (root / "a.lock").write_bytes(here)

    report = await merged(
        root, BundleBuilder().edit("a.lock", LINES, LINES.replace(b"five", b"FIVE"))
    )

    assert kinds(report) == {"a.lock": "binary"}
    assert (root / "a.lock").read_bytes() == here


async def test_the_attributes_are_those_before_the_job(root):
    attributes(root, "*.md text")
    (root / "a.md").write_bytes(HERE)
    bundle = BundleBuilder().edit(".gitattributes", b"*.md text\n", b"*.md merge=union\n")

    report = await put_in(root, bundle.edit("a.md", LINES, THERE))

    assert kinds(report) == {"a.md": "overlap"}


EDITED = LINES.replace(b"five", b"FIVE")
CRLF_EDIT = EDITED.replace(b"\n", b"\r\n")


@pytest.mark.parametrize(
    ("text", "here", "there", "both"),
    [
        ("text", LINES.replace(b"one", b"ONE"), CRLF_EDIT, EDITED.replace(b"one", b"ONE")),
        ("eol=crlf", CRLF_EDIT, LINES.replace(b"one", b"ONE"), CRLF_EDIT.replace(b"one", b"ONE")),
        (
            "text=auto merge=union",
            CRLF_EDIT,
            BOTH,
            CRLF_EDIT.replace(b"three", b"here\r\nthere"),
        ),
    ],
    ids=["text", "eol", "union"],
)
async def test_texts_are_merged_with_the_line_ends_that_git_stores(root, text, here, there, both):
    attributes(root, f"*.md {text}")
    (root / "a.md").write_bytes(here)

    report = await merged(root, BundleBuilder().edit("a.md", LINES, there))

    assert report.complete
    assert (root / "a.md").read_bytes() == both


async def test_other_line_ends_are_a_conflict_unless_git_ignores_them(root):
    attributes(root, "*.md -text")
    (root / "a.md").write_bytes(LINES.replace(b"one", b"ONE"))

    report = await merged(root, BundleBuilder().edit("a.md", LINES, CRLF_EDIT))

    assert kinds(report) == {"a.md": "overlap"}


@pytest.mark.parametrize(
    ("attribute", "encoding"),
    [
        ("UTF-16", "utf-16"),
        ("utf-16le-bom", "utf-16"),
        ("UTF-16BE", "utf-16-be"),
        ("UTF-32", "utf-32"),
    ],
)
async def test_texts_are_merged_in_the_encoding_of_the_work_tree(root, attribute, encoding):
    attributes(root, f"*.txt working-tree-encoding={attribute}")
    base, here, there, both = (
        text.decode().encode(encoding)
        for text in (LINES, LINES.replace(b"one", b"ONE"), EDITED, EDITED.replace(b"one", b"ONE"))
    )
    (root / "a.txt").write_bytes(here)

    report = await merged(root, BundleBuilder().edit("a.txt", base, there))

    assert report.complete
    assert (root / "a.txt").read_bytes() == both


@pytest.mark.parametrize("encoding", ["no-such", "rot13", "hex", "UTF-16"])
async def test_a_text_in_another_encoding_than_its_attribute_says_is_no_failure(root, encoding):
    attributes(root, f"*.txt working-tree-encoding={encoding}")
    (root / "a.txt").write_bytes(b"here\0\n")

    report = await merged(root, BundleBuilder().edit("a.txt", b"base\0\n", b"there\0\n"))

    assert kinds(report) == {"a.txt": "binary"}


def driver(root: Path, canary: Path) -> str:
    return f"echo ran >> '{canary}'; echo driven %P > %A"


async def test_a_driver_of_the_persons_own_configuration_merges(root, home, tmp_path):
    canary = tmp_path / "canary"
    git(root, "config", "--global", "merge.mine.driver", driver(root, canary))
    attributes(root, "*.md merge=mine")
    (root / "sub/a.md").write_bytes(HERE)

    report = await merged(root, BundleBuilder().edit("sub/a.md", LINES, THERE))

    assert report.complete
    assert (root / "sub/a.md").read_bytes() == b"driven sub/a.md\n"
    assert canary.exists()


async def test_a_driver_that_says_conflict_leaves_the_file(root, home):
    git(root, "config", "--global", "merge.mine.driver", "echo broken > %A; exit 1")
    attributes(root, "*.md merge=mine")
    (root / "a.md").write_bytes(HERE)

    report = await merged(root, BundleBuilder().edit("a.md", LINES, THERE))

    assert kinds(report) == {"a.md": "overlap"}
    assert (root / "a.md").read_bytes() == HERE


@pytest.mark.parametrize("code", ["exit 200", "kill -9 $$"])
async def test_a_driver_that_fails_is_a_failure_of_its_file_alone(root, home, code):
    git(root, "config", "--global", "merge.mine.driver", code)
    attributes(root, "a.md merge=mine")
    (root / "a.md").write_bytes(HERE)
    (root / "b.md").write_bytes(LINES)
    bundle = BundleBuilder().edit("a.md", LINES, THERE).edit("b.md", LINES, THERE)

    report = await merged(root, bundle)

    assert [one.path for one in report.failed] == ["a.md"]
    assert hows(report) == {"b.md": "taken"}


async def test_a_driver_merges_what_is_no_text(root, home):
    git(root, "config", "--global", "merge.ours.driver", "true")
    attributes(root, "*.bin merge=ours")
    (root / "a.bin").write_bytes(b"here\0")

    report = await merged(root, BundleBuilder().edit("a.bin", b"base\0", b"there\0"))

    assert hows(report) == {"a.bin": "already"}
    assert (root / "a.bin").read_bytes() == b"here\0"


async def test_a_driver_gets_no_key_of_a_model(root, home, tmp_path, monkeypatch):
    monkeypatch.setenv("GOOGLE_API_KEY", "canary")
    git(root, "config", "--global", "merge.mine.driver", "env > %A")
    attributes(root, "*.md merge=mine")
    (root / "a.md").write_bytes(HERE)

    await put_in(root, BundleBuilder().edit("a.md", LINES, THERE))

    assert b"canary" not in (root / "a.md").read_bytes()


async def test_no_driver_of_a_repository_is_started(root, tmp_path):
    canary = tmp_path / "canary"
    git(root, "config", "merge.evil.driver", driver(root, canary))
    attributes(root, "*.md merge=evil")
    (root / "sub/a.md").write_bytes(LINES.replace(b"one", b"ONE"))

    report = await merged(
        root, BundleBuilder().edit("sub/a.md", LINES, LINES.replace(b"five", b"FIVE"))
    )

    assert report.complete
    assert not canary.exists()


async def test_a_folder_in_a_repository_obeys_the_attributes_above_it(root):
    attributes(root, "sub/*.md merge=union")
    (root / "sub/a.md").write_bytes(HERE)

    report = await merged(root / "sub", BundleBuilder().edit("a.md", LINES, THERE))

    assert report.complete
    assert (root / "sub/a.md").read_bytes() == BOTH


async def test_a_persons_attributes_for_all_repositories_count(root, home):
    (home / ".config/git").mkdir(parents=True)
    (home / ".config/git/attributes").write_text("*.md merge=union\n")
    (root / "a.md").write_bytes(HERE)

    assert (await merged(root, BundleBuilder().edit("a.md", LINES, THERE))).complete


def test_a_branch_obeys_attributes(root):
    attributes(root, "*.md merge=union")
    (root / "a.md").write_bytes(HERE)
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")

    report = land(one_job(BundleBuilder().edit("a.md", LINES, THERE)), root)

    assert report.merge.complete
    assert shown(root, "a.md").encode() == BOTH


def committed(root: Path, **files: bytes) -> None:
    for name, content in files.items():
        (root / name).write_bytes(content)
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")


def renamed(old: str, new: str, after: bytes = LINES) -> BundleBuilder:
    bundle = BundleBuilder()
    return bundle.rename(old, new, bundle.file(LINES), bundle.file(after))


@pytest.mark.parametrize("is_rename_first", [True, False])
async def test_a_rename_and_an_edit_land_in_either_order(root, is_rename_first):
    committed(root, old=LINES)
    bundles = [
        renamed("old", "sub/new", LINES.replace(b"one", b"ONE")),
        BundleBuilder().edit("old", LINES, EDITED),
    ]
    for bundle in bundles if is_rename_first else bundles[::-1]:
        assert (await put_in(root, bundle)).complete
    for bundle in bundles:
        assert {one.how for one in (await put_in(root, bundle)).applied} == {"already"}

    assert not (root / "old").exists()
    assert (root / "sub/new").read_bytes() == EDITED.replace(b"one", b"ONE")


@pytest.mark.parametrize("is_rename_first", [True, False])
@pytest.mark.parametrize(("rule", "is_merged"), [("merge=union", True), ("-merge", False)])
async def test_a_renamed_file_is_merged_as_the_attributes_of_its_path_say(
    root, rule, is_merged, is_rename_first
):
    attributes(root, f"*.md {rule}")
    (root / "docs").mkdir()
    committed(root, **{"a.md": LINES})
    bundles = [
        renamed("a.md", "docs/b.md", HERE),
        BundleBuilder().edit("a.md", LINES, THERE),
    ]
    first, second = bundles if is_rename_first else bundles[::-1]
    assert (await put_in(root, first)).complete

    report = await merged(root, second)

    assert report.complete is is_merged
    if is_merged:
        after = (root / "docs/b.md").read_bytes()
        assert all(line in after for line in (b"here\n", b"there\n"))
        assert (await put_in(root, first)).complete


@pytest.mark.parametrize("is_rename_first", [True, False])
async def test_a_rename_and_another_content_land_in_either_order_and_again(root, is_rename_first):
    committed(root, old=b"old\0")
    bundle, rewritten = BundleBuilder(), b"of another length\0"
    bundles = [
        bundle.rename("old", "new", bundle.file(b"old\0"), bundle.file(b"old\0")),
        BundleBuilder().edit("old", b"old\0", rewritten),
    ]
    for one in bundles if is_rename_first else bundles[::-1]:
        assert (await put_in(root, one)).complete
    for one in bundles:
        assert {found.how for found in (await put_in(root, one)).applied} == {"already"}

    assert (root / "new").read_bytes() == rewritten


@pytest.mark.parametrize("is_rename_first", [True, False])
async def test_a_rename_and_another_target_of_a_link_land_in_either_order(root, is_rename_first):
    (root / "old").symlink_to("a")
    committed(root, a=LINES, b=EDITED)
    rename, target = BundleBuilder(), BundleBuilder()
    bundles = [
        rename.rename("old", "new", rename.link("a"), rename.link("a")),
        target.change("old", target.link("a"), target.link("b")),
    ]
    for one in bundles if is_rename_first else bundles[::-1]:
        assert (await put_in(root, one)).complete

    assert (root / "new").readlink() == Path("b")


@pytest.mark.parametrize("is_rename_first", [True, False])
async def test_a_rename_and_a_mode_land_in_either_order(root, is_rename_first):
    committed(root, old=LINES)
    mode = BundleBuilder()
    bundles = [
        renamed("old", "new"),
        mode.change("old", mode.file(LINES), mode.file(LINES, 0o755)),
    ]
    for bundle in bundles if is_rename_first else bundles[::-1]:
        assert (await put_in(root, bundle)).complete

    assert (root / "new").stat().st_mode & 0o100


async def test_two_renames_of_one_file_are_a_conflict(root):
    committed(root, old=LINES)
    assert (await put_in(root, renamed("old", "mine"))).complete

    report = await merged(root, renamed("old", "theirs"))

    assert kinds(report) == {"theirs": "rename"}
    assert (root / "mine").exists()


@pytest.mark.parametrize("is_rename_first", [True, False])
async def test_a_rename_and_a_deletion_are_a_conflict(root, is_rename_first):
    committed(root, old=LINES)
    deletion = BundleBuilder()
    bundles = [renamed("old", "new"), deletion.delete("old", deletion.file(LINES))]
    first, second = bundles if is_rename_first else bundles[::-1]
    assert (await put_in(root, first)).complete

    report = await merged(root, second)

    assert len(report.conflicts) == 1


async def test_a_folder_that_was_renamed_takes_edits_of_its_files_with_it(root):
    (root / "pkg").mkdir()
    other = b"".join(b"other %d\n" % number for number in range(9))
    committed(root, **{"pkg/a": LINES, "pkg/b": other})
    bundle = renamed("pkg/a", "lib/a")
    bundle.rename("pkg/b", "lib/b", bundle.file(other), bundle.file(other))
    assert (await put_in(root, bundle)).complete

    report = await merged(root, BundleBuilder().edit("pkg/a", LINES, EDITED))

    assert report.complete
    assert (root / "lib/a").read_bytes() == EDITED
    assert "pkg" not in tree_of(root)


@pytest.mark.parametrize("is_rename_first", [True, False])
async def test_a_folder_that_left_a_link_takes_edits_of_its_files_with_it(root, is_rename_first):
    (root / "pkg").mkdir()
    committed(root, **{"pkg/a": LINES})
    rename = renamed("pkg/a", "src/a")
    rename.add("pkg", rename.link("src"))
    bundles = [rename, BundleBuilder().edit("pkg/a", LINES, EDITED)]
    for one in bundles if is_rename_first else bundles[::-1]:
        assert (await put_in(root, one)).complete
    for one in bundles:
        assert (await put_in(root, one)).complete

    assert (root / "pkg").readlink() == Path("src")
    assert (root / "src/a").read_bytes() == EDITED


async def test_a_file_that_was_there_before_is_not_taken_for_a_renamed_one(root):
    committed(root, old=LINES, twin=LINES)
    (root / "old").unlink()

    report = await merged(root, BundleBuilder().edit("old", LINES, EDITED))

    assert kinds(report) == {"old": "deleted"}
    assert (root / "twin").read_bytes() == LINES


async def test_a_rename_to_a_name_in_other_letters_lands(root):
    committed(root, **{"README.md": LINES})

    report = await merged(root, renamed("README.md", "readme.md", EDITED))

    assert report.complete
    assert (root / "readme.md").read_bytes() == EDITED


@pytest.mark.parametrize("is_rename_first", [True, False])
def test_a_rename_and_an_edit_become_commits_in_either_order(root, is_rename_first):
    committed(root, old=LINES)
    bundles = {
        "rename": renamed("old", "new"),
        "edit": BundleBuilder().edit("old", LINES, EDITED),
    }
    order = ["rename", "edit"] if is_rename_first else ["edit", "rename"]
    jobs = one_job(renamed("old", "new", EDITED))
    for name in order:
        jobs.add(name, bundles[name])
    jobs.children["root"] = [(name, "in") for name in order]

    report = land(jobs, root)

    assert [commit.job_id for commit in report.commits] == order
    assert shown(root, "new").encode() == EDITED
