"""`python -m tests.fuzz.planted`: puts each fault of README.md in, and shows that a fuzzer fails.

Every fault runs in a process of its own, in which the module has the fault's text; no file changes.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TESTS_FAILED = 1
"""The exit code of pytest when it has run, and a test has failed."""


@dataclass(frozen=True)
class Fault:
    """A change of one module, and the fuzzer that has to notice it."""

    what: str
    module: str
    before: str
    after: str
    fuzzer: str

    def source(self) -> str:
        """Return the module's text with the fault."""
        path = importlib.util.find_spec(self.module)
        assert path is not None
        assert path.origin is not None
        text = Path(path.origin).read_text(encoding="utf-8")
        assert text.count(self.before) == 1, f"{self.module} does not have {self.before!r} once"
        return text.replace(self.before, self.after)


_ARCHIVES = "fanout.workers.sandbox.inside.archives"
_FRAMES = "fanout.workers.sandbox.inside.frames"
_PATCHES = "fanout.orchestrator.deep_agent.tools.patches"
_MCP = "fanout.orchestrator.deep_agent.mcp"

FAULTS = (
    Fault(
        "a member may have `..` in its name", _ARCHIVES,
        'if name.startswith("/") or ".." in name.split("/"):', 'if name.startswith("/"):',
        "test_archives.py",
    ),
    Fault(
        "a link is created below another link", _ARCHIVES,
        "if Path(self._target, above).is_symlink():", "if False:", "test_archives.py",
    ),
    Fault(
        "nesting of a header has no bound", _FRAMES,
        'if kind in (b"l", b"m") and depth < MAX_DEPTH:', 'if kind in (b"l", b"m"):', "test_frames.py",
    ),
    Fault(
        "a prefix is judged when its frame is whole", _FRAMES,
        """                self._accept(*prefix)
                self._prefix = prefix
            kind, number, header_bytes, payload_bytes = self._prefix
            middle = PREFIX.size + header_bytes
            end = middle + payload_bytes
            if len(self._data) < end:
                return
""",
        """                self._prefix = prefix
            kind, number, header_bytes, payload_bytes = self._prefix
            middle = PREFIX.size + header_bytes
            end = middle + payload_bytes
            if len(self._data) < end:
                return
            self._accept(*self._prefix)
""",
        "test_frames.py",
    ),
    Fault(
        "an entry's size has no bounds", "fanout.workers.sandbox.resident.replies",
        "if not (0 <= entry.size_bytes <= _MAX_SIZE and math.isfinite(entry.modified_at)):",
        "if not math.isfinite(entry.modified_at):", "test_frames.py",
    ),
    Fault(
        "a hunk may be found above the one before", _PATCHES,
        "start = _place(file, hunk, done)", "start = _place(file, hunk, 0)", "test_patches.py",
    ),
    Fault(
        "a line of a new file needs no `+`", _PATCHES,
        'if line and not line.startswith("+"):', "if False:", "test_patches.py",
    ),
    Fault(
        "metadata says which job is continued", "fanout.orchestrator.extras.a2a.received",
        'OWN = frozenset({"description", "context", "continues", "at", "idempotency_key"})',
        'OWN = frozenset({"description", "context", "idempotency_key"})', "test_a2a.py",
    ),
    Fault(
        "one request can be answered twice", f"{_MCP}.transport",
        """        self._open.pop(request, None)
        return {"jsonrpc": "2.0", "id": request, "result": result}
""",
        """        return {"jsonrpc": "2.0", "id": request, "result": result}
""",
        "test_mcp.py",
    ),
    Fault(
        "an unknown block goes to the SDK", f"{_MCP}.transport",
        """    except ValidationError:
        text = block.get("text")
""",
        """    except ValidationError:
        return known
        text = block.get("text")
""",
        "test_mcp.py",
    ),
    Fault(
        "deep nesting is an error of Python", f"{_MCP}.schemas",
        "    except RecursionError:\n        raise ValueError(",
        "    except KeyError:\n        raise ValueError(", "test_schemas.py",
    ),
    Fault(
        "`Connection` removes `Content-Length`", "fanout.workers.sandbox.egress.exchange",
        "dropped = _OF_THIS_HOP | (named - _NEVER_DROPPED)", "dropped = _OF_THIS_HOP | named",
        "test_heads.py",
    ),
)  # fmt: skip


def plant(fault: Fault) -> None:
    """Import the module of a fault with it, before anything imports the module itself."""
    spec = importlib.util.find_spec(fault.module)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    package, _, name = fault.module.rpartition(".")
    parent = importlib.import_module(package)
    assert fault.module not in sys.modules, "it was imported before the fault was in it"
    sys.modules[fault.module] = module
    exec(compile(fault.source(), str(spec.origin), "exec"), module.__dict__)  # noqa: S102 - it is our own
    setattr(parent, name, module)


def run_fuzzer(fault: Fault) -> int:
    """Run the fuzzer in this process, and return pytest's exit code."""
    plant(fault)
    test = Path(__file__).with_name(fault.fuzzer)
    return pytest.main(
        [str(test), "-n", "0", "-q", "-x", "-m", "slow", "--tb=no", "-p", "no:cacheprovider"]
    )


def finds(number: int) -> tuple[bool, float]:
    """Return whether a fault is found, and after how many seconds."""
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.planted", str(number)],
        cwd=REPOSITORY, env={**os.environ, "PLANTED": str(number)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode in (0, TESTS_FAILED), ended.stdout + ended.stderr
    return ended.returncode == TESTS_FAILED, time.monotonic() - began


def main() -> int:
    """Print a table of all faults, and return how many were not found."""
    missed = 0
    with ThreadPoolExecutor(2) as runs:
        results = list(runs.map(finds, range(1, len(FAULTS) + 1)))
    for number, (fault, (found, seconds)) in enumerate(zip(FAULTS, results, strict=True), start=1):
        missed += not found
        print(
            f"{number:2}  {'found' if found else 'MISSED':6}  {seconds:5.1f} s  "
            f"{fault.fuzzer:18}  {fault.what}",
            flush=True,
        )
    print(f"{len(FAULTS) - missed} of {len(FAULTS)} faults are found")
    return missed


if __name__ == "__main__":
    sys.exit(run_fuzzer(FAULTS[int(sys.argv[1]) - 1]) if sys.argv[1:] else main())
