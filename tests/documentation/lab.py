"""Runs the blocks of a page, one after the other in one shell, in a repository of a person."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.documentation.blocks import Block
from tests.integration.cli.conftest import clean_environment
from tests.integration.scripts import conversation, says, shell, write_script

WORK = [
    shell("echo '# done' >> util.py"),
    says("## Summary\nDone as asked."),
    shell("echo '# also' >> a.py"),
    says("## Summary\nAlso done."),
]
"""What the model does with every task, and when it is told to go on."""
FILES = {
    "Makefile": "test:\n\tpython3 -c 'import util, a, b'\n",
    "util.py": "def double(number):\n    return 2 * number\n",
    "a.py": "",
    "b.py": "",
    "src/a.py": "",
    "src/b.py": "",
    "docs/index.md": "# Words\n",
    "tests/test_util.py": "",
}
RUNNER = """\
import ast, asyncio, inspect, sys, types
code = compile(sys.stdin.read(), "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
made = types.FunctionType(code, {"__name__": "__main__"})()
asyncio.run(made) if inspect.iscoroutine(made) else None
"""
"""A program whose top level may await, as at asyncio's prompt."""


@dataclass(frozen=True)
class Lab:
    """A person's folders, with a scripted model and without isolation."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        tools = Path(sys.executable).parent
        git = {
            f"GIT_{who}_{what}": "person@example.com" if what == "EMAIL" else "Person"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        return clean_environment(self.folder) | {
            **git,
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder / "configuration"),
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "FANOUT_MODEL": f"scripted:{self.folder / 'script.yaml'}",
            "MODEL": f"scripted:{self.folder / 'script.yaml'}",  # programs of a person read it
            "FANOUT_SANDBOX__PROVIDER": "local",
            "FANOUT_EMBEDDED_IDLE_SECONDS": "120",
        }

    def make(self) -> None:
        write_script(
            self.folder,
            conversation("^Take", shell("sleep 60")),
            conversation(r"^Review \S+\.$", says('{"findings": ["It has no tests."]}')),
            conversation("^Is this so", says('{"is_real": true}')),
            conversation("", *WORK),
        )
        (self.folder / "run_python.py").write_text(RUNNER)
        for name, text in FILES.items():
            path = self.folder / "repository" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self._run("git init -q && git add . && git commit -qm First")

    def run(self, blocks: list[Block]) -> None:
        """Run the blocks of a page.

        Raises:
            AssertionError: One of them failed; the text names it.
        """
        done = self._run("\n".join(["set -eu", *map(self._step, blocks)]), check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    def stop(self) -> None:
        self._run("fanout down")

    def _step(self, block: Block) -> str:
        announced = f"echo {shlex.quote(f'== {block}')} >&2"
        if block.caption:
            return f"{announced}\nprintf %s {shlex.quote(block.text)} > {block.caption}"
        if block.language == "python":
            program = shlex.quote(str(self.folder / "run_python.py"))
            return f"{announced}\n{sys.executable} {program} << 'END'\n{block.text}END"
        return f"{announced}\n{block.text}"

    def _run(self, script: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder / "repository",
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=check,
        )
