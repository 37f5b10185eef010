"""What jobs do to files, and what the change bundle must say about it.

One case for each way to be wrong.

A case is a shell script that runs in the workspace of `make_snapshot_tree`, and its expected
entries.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Case:
    name: str
    script: str
    files: dict[str, str] = field(default_factory=dict)
    """Path to change; a rename is written `renamed<old path`."""
    ignored: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


def make_snapshot_tree(root: Path) -> None:
    """The files that every case starts from."""
    files: dict[str, bytes] = {
        "README.md": b"# sample\n\nsome text\n",
        ".gitignore": b"build/\n*.log\n!keep.log\n# caf\xe9\nleft\xe9*\n",
        "pkg/.gitignore": b"secret.txt\n",
        "pkg/__init__.py": b"",
        "pkg/core.py": "".join(f"line {number}\n" for number in range(60)).encode(),
        "pkg/other.py": b"value = 1\n",
        "pkg/deep/a/b/c.txt": b"deep\n",
        "data/binary.bin": bytes(range(256)) * 16,
        "data/empty": b"",
        "data/no-newline": b"no newline at the end",
        "data/crlf.txt": b"one\r\ntwo\r\n",
        "data/spa ce.txt": b"space\n",
        "data/ünï.txt": "grüß\n".encode(),
        'data/quo"te\nnew.txt': b"odd\n",
        "data/latin.txt": b"caf\xe9\n",
        "run.sh": b"#!/bin/sh\necho hi\n",
        "folder/x": b"x\n",
        "folder/y": b"y\n",
        "folder/sub/z": b"z\n",
        "log/tracked.log": b"tracked although ignored\n",
        ".git/HEAD": b"ref: refs/heads/main\n",
        ".git/hooks/pre-commit": b"#!/bin/sh\ntouch /tmp/hook-was-run\n",
    }
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    (root / "run.sh").chmod(0o755)
    (root / "bare").mkdir()
    (root / "link").symlink_to("README.md")
    (root / "dangling").symlink_to("nowhere/at all")
    (root / "outside").symlink_to("/etc/passwd")
    (root / "linked-folder").symlink_to("folder")
    for folder, _names, entries in os.walk(root):
        for entry in entries:
            os.utime(Path(folder, entry), (1_600_000_000, 1_600_000_000), follow_symlinks=False)


CASES = (
    Case(
        "many things are done",  # the first one: in containers it is the quick one
        "echo new > new.txt; echo more >> README.md; rm -r pkg/deep; mv pkg/core.py pkg/kernel.py; "
        "chmod 644 run.sh; rm link; ln -s data new-link; rm -r folder; echo flat > folder; "
        "printf 'x\\0y' > 'data/spa ce.txt'; echo x > a.log; mkfifo pipe; echo x > .git/HEAD",
        {
            "new.txt": "added",
            "README.md": "modified",
            "pkg/deep/a/b/c.txt": "deleted",
            "pkg/kernel.py": "renamed<pkg/core.py",
            "run.sh": "mode",
            "link": "deleted",
            "new-link": "added",
            "folder": "added",
            "folder/x": "deleted",
            "folder/y": "deleted",
            "folder/sub/z": "deleted",
            "data/spa ce.txt": "modified",
        },
        ignored=("a.log",),
        skipped=("pipe",),
    ),
    Case("nothing is done", "true"),
    Case("a file is added", "echo new > new.txt", {"new.txt": "added"}),
    Case("a file is edited", "echo more >> README.md", {"README.md": "modified"}),
    Case(
        "an edit keeps size and time",
        "f=pkg/other.py; touch -r $f /tmp/stamp; printf 'value = 2\\n' > $f; touch -r /tmp/stamp $f",
        {"pkg/other.py": "modified"},
    ),
    Case("a file is touched", "touch README.md"),
    Case("a file is rewritten with what it held", "cat README.md > /tmp/t; cat /tmp/t > README.md"),
    Case(
        "a file is replaced by an equal one",
        "cp -p README.md /tmp/t; rm README.md; cp -p /tmp/t README.md",
    ),
    Case("a file is deleted", "rm pkg/other.py", {"pkg/other.py": "deleted"}),
    Case(
        "a file is deleted and made again",
        "rm README.md; echo x > README.md",
        {"README.md": "modified"},
    ),
    Case("a file is added and deleted", "echo x > x; rm x"),
    Case("a file becomes executable", "chmod +x README.md", {"README.md": "mode"}),
    Case("a file is no longer executable", "chmod 644 run.sh", {"run.sh": "mode"}),
    Case("a mode that git does not know", "chmod 600 README.md", {"README.md": "mode"}),
    Case(
        "content and mode change",
        "echo x >> README.md; chmod +x README.md",
        {"README.md": "modified"},
    ),
    Case("a new executable", "printf '#!/bin/sh\\n' > tool; chmod 755 tool", {"tool": "added"}),
    Case(
        "a binary file is edited",
        "printf '\\0\\1' | dd of=data/binary.bin conv=notrunc bs=1 seek=9 2>/dev/null",
        {"data/binary.bin": "modified"},
    ),
    Case(
        "a binary file is added",
        "head -c 4096 data/binary.bin | tr '\\1' '\\2' > data/more.bin",
        {"data/more.bin": "added"},
    ),
    Case("an empty file is added", ": > data/void", {"data/void": "added"}),
    Case("an empty file is filled", "echo x > data/empty", {"data/empty": "modified"}),
    Case("a file is emptied", ": > README.md", {"README.md": "modified"}),
    Case("an empty file is deleted", "rm data/empty", {"data/empty": "deleted"}),
    Case("the last line gets its end", "echo >> data/no-newline", {"data/no-newline": "modified"}),
    Case(
        "line ends are changed",
        "tr -d '\\r' < data/crlf.txt > /tmp/t; cat /tmp/t > data/crlf.txt",
        {"data/crlf.txt": "modified"},
    ),
    Case(
        "bytes that are no text are edited",
        "printf '\\377\\n' >> data/latin.txt",
        {"data/latin.txt": "modified"},
    ),
    Case(
        "a file is renamed",
        "mv pkg/core.py pkg/kernel.py",
        {"pkg/kernel.py": "renamed<pkg/core.py"},
    ),
    Case(
        "a file is renamed and edited",
        "mv pkg/core.py pkg/kernel.py; sed -i 's/line 30/LINE 30/' pkg/kernel.py",
        {"pkg/kernel.py": "renamed<pkg/core.py"},
    ),
    Case(
        "a file is renamed and made executable",
        "mv pkg/core.py core; chmod +x core",
        {"core": "renamed<pkg/core.py"},
    ),
    Case(
        "a file is moved over another",
        "mv pkg/core.py pkg/other.py",
        {"pkg/core.py": "deleted", "pkg/other.py": "modified"},
    ),
    Case("a file is copied", "cp pkg/core.py pkg/copy.py", {"pkg/copy.py": "added"}),
    Case(
        "a folder is renamed",
        "mv folder directory",
        {
            "directory/x": "renamed<folder/x",
            "directory/y": "renamed<folder/y",
            "directory/sub/z": "renamed<folder/sub/z",
        },
    ),
    Case(
        "names with spaces and letters",
        "mv 'data/spa ce.txt' 'data/ünï códe.txt'; echo x >> data/ünï.txt",
        {"data/ünï códe.txt": "renamed<data/spa ce.txt", "data/ünï.txt": "modified"},
    ),
    Case(
        "names with quotes and line breaks",
        'f=$(printf \'data/quo"te\\nnew.txt\'); echo x >> "$f"; echo y > "$(printf \'a\\tb\\\\c\')"',
        {'data/quo"te\nnew.txt': "modified", "a\tb\\c": "added"},
    ),
    Case(
        "names that are no text",
        "echo x > \"$(printf 'bad\\377name')\"; echo y > 'bad\\xffname'; "
        "mv data/quo* \"$(printf 'data/\\203e.txt')\"",
        {
            r"bad\xffname": "added",
            r"bad\x5cxffname": "added",
            r"data/\x83e.txt": 'renamed<data/quo"te\nnew.txt',
        },
    ),
    Case(
        "a name that looks like an option",
        "echo x > -n; echo y > ./--stdin",
        {"--stdin": "added", "-n": "added"},
    ),
    Case("a file that begins with a colon", "echo x > ':(top)x'", {":(top)x": "added"}),
    Case("a link is added", "ln -s pkg/core.py new-link", {"new-link": "added"}),
    Case("a link is pointed elsewhere", "ln -sfn pkg link", {"link": "modified"}),
    Case("a link is deleted", "rm outside", {"outside": "deleted"}),
    Case(
        "a link becomes the file that it points to",
        "cp --remove-destination README.md link",
        {"link": "modified"},
    ),
    Case("a file becomes a link", "ln -sf /etc/passwd README.md", {"README.md": "modified"}),
    Case(
        "a file becomes a folder",
        "rm README.md; mkdir README.md; echo x > README.md/x",
        {"README.md": "deleted", "README.md/x": "added"},
    ),
    Case(
        "a file becomes an empty folder", "rm README.md; mkdir README.md", {"README.md": "modified"}
    ),
    Case(
        "a folder becomes a file",
        "rm -rf folder; echo unlike > folder",
        {
            "folder": "added",
            "folder/x": "deleted",
            "folder/y": "deleted",
            "folder/sub/z": "deleted",
        },
    ),
    Case(
        "a folder becomes a link that leads outside",
        "rm -rf folder; ln -s /etc folder",
        {
            "folder": "added",
            "folder/x": "deleted",
            "folder/y": "deleted",
            "folder/sub/z": "deleted",
        },
    ),
    Case(
        "a linked folder becomes a folder",
        "rm linked-folder; mkdir linked-folder; echo x > linked-folder/x",
        {"linked-folder": "deleted", "linked-folder/x": "added"},
    ),
    Case("a folder is deleted", "rm -rf pkg/deep", {"pkg/deep/a/b/c.txt": "deleted"}),
    Case(
        "a folder is deleted and made again with less",
        "rm -rf folder; mkdir folder; echo x > folder/x",
        {"folder/y": "deleted", "folder/sub/z": "deleted"},
    ),
    Case(
        "everything is deleted but one file",
        "rm -rf pkg data folder log bare link dangling outside linked-folder run.sh .gitignore",
        {
            ".gitignore": "deleted",
            "bare": "deleted",
            "dangling": "deleted",
            "data/binary.bin": "deleted",
            "data/crlf.txt": "deleted",
            "data/empty": "deleted",
            "data/latin.txt": "deleted",
            "data/no-newline": "deleted",
            'data/quo"te\nnew.txt': "deleted",
            "data/spa ce.txt": "deleted",
            "data/ünï.txt": "deleted",
            "folder/sub/z": "deleted",
            "folder/x": "deleted",
            "folder/y": "deleted",
            "link": "deleted",
            "linked-folder": "deleted",
            "log/tracked.log": "deleted",
            "outside": "deleted",
            "pkg/.gitignore": "deleted",
            "pkg/__init__.py": "deleted",
            "pkg/core.py": "deleted",
            "pkg/deep/a/b/c.txt": "deleted",
            "pkg/other.py": "deleted",
            "run.sh": "deleted",
        },
    ),
    Case("an empty folder is added", "mkdir -p fresh/inner", {"fresh/inner": "added"}),
    Case("an empty folder is deleted", "rmdir bare", {"bare": "deleted"}),
    Case("an empty folder is filled", "echo x > bare/x", {"bare/x": "added"}),
    Case(
        "ignored files are listed apart",
        "mkdir build; echo o > build/o.o; echo x > a.log; echo y > keep.log",
        {"keep.log": "added"},
        ignored=("a.log", "build/o.o"),
    ),
    Case("an ignored folder that is empty", "mkdir build", ignored=("build",)),
    Case(
        "rules and names that are no UTF-8",
        "mkdir \"$(printf 'caf\\351')\"; mv run.sh \"$(printf 'caf\\351')\";"
        " echo x > \"$(printf 'left\\351.txt')\"; echo x > \"$(printf 'left\\303\\251')\"",
        {r"caf\xe9/run.sh": "renamed<run.sh", "left\N{LATIN SMALL LETTER E WITH ACUTE}": "added"},
        ignored=(r"left\xe9.txt",),
    ),
    Case(
        "rules of an inner folder",
        "echo x > pkg/secret.txt; echo x > secret.txt",
        {"secret.txt": "added"},
        ignored=("pkg/secret.txt",),
    ),
    Case(
        "a tracked file that the rules name is edited",
        "echo x >> log/tracked.log",
        {"log/tracked.log": "modified"},
    ),
    Case(
        "new ignore rules hide nothing",
        "echo '*' > .gitignore; echo x > hidden.txt; echo '*' > pkg/.gitignore",
        {".gitignore": "modified", "hidden.txt": "added", "pkg/.gitignore": "modified"},
    ),
    Case(
        "a new folder's own rules hide nothing",
        "mkdir nest; echo '*' > nest/.gitignore; echo x > nest/x",
        {"nest/.gitignore": "added", "nest/x": "added"},
    ),
    Case(
        "by-products are listed apart",
        "mkdir -p pkg/__pycache__ node_modules/m; echo x > pkg/__pycache__/c.pyc;"
        " echo x > node_modules/m/i.js; echo x > stray.pyc",
        ignored=("node_modules/m/i.js", "pkg/__pycache__/c.pyc", "stray.pyc"),
    ),
    Case(
        "a special file is named only",
        "mkfifo pipe; echo x > beside",
        {"beside": "added"},
        skipped=("pipe",),
    ),
    Case("a file becomes special", "rm README.md; mkfifo README.md", skipped=("README.md",)),
    Case(
        "a huge sparse file is named only",
        "truncate -s 20G huge; echo x > beside",
        {"beside": "added"},
        skipped=("huge",),
    ),
    Case("what happens in .git is not a change", "rm -rf .git; mkdir .git; echo x > .git/HEAD"),
    Case(
        "the repository is removed", "rm -rf .git; echo x >> README.md", {"README.md": "modified"}
    ),
    Case(
        "a nested repository is carried without its .git",
        "mkdir -p vendor/lib/.git/hooks; echo x > vendor/lib/.git/HEAD; echo y > vendor/lib/code.c",
        {"vendor/lib/code.c": "added"},
    ),
    Case(
        "attributes of the job do not change the patch",
        "printf '* -text -diff\\n*.md filter=evil\\n' > .gitattributes; echo x >> README.md",
        {".gitattributes": "added", "README.md": "modified"},
    ),
    Case(
        "a file of another case of .git",
        "mkdir .GIT; echo x > .GIT/config",
        skipped=(".GIT/config",),
    ),
    Case("many lines with one change", "seq 20000 > big.txt", {"big.txt": "added"}),
)
"""Cases with commits made inside need git in the sandbox and live in the suite itself."""
