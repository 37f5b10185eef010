from collections import Counter
from pathlib import PurePosixPath

from tests.architecture.sources import file_lengths, function_lengths, package_sources

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
MAX_FOLDER_MODULES = 14

LONGER = {
    "orchestrator/jobs/store/ledger.py": "one class: every script of the ledger",
    "orchestrator/jobs/store/records.py": "one class: everything that is read of the ledger",
    "workers/sandbox/docker/provider.py": "one provider and its sandbox",
    "workers/sandbox/inside/files.py": "one set of operations: reading, writing, searching files",
    "workers/sandbox/inside/commands.py": "one state machine: a command from its start to its end",
    "orchestrator/cli/commands/run.py:run_": "declares its options one by one",
}
"""Files and functions that may be longer, each with the reason."""


def test_no_file_is_too_long():
    assert [f for f in file_lengths() if f.lines > MAX_FILE_LINES and f.where not in LONGER] == []


def test_no_function_is_too_long():
    assert [
        f for f in function_lengths() if f.lines > MAX_FUNCTION_LINES and f.where not in LONGER
    ] == []


def test_no_folder_has_too_many_modules():
    paths = [PurePosixPath(name) for name, _ in package_sources()]
    modules = Counter(str(path.parent) for path in paths if path.name != "__init__.py")

    assert {folder: count for folder, count in modules.items() if count > MAX_FOLDER_MODULES} == {}


def test_every_exception_is_still_needed():
    long = {f.where for f in file_lengths() if f.lines > MAX_FILE_LINES}
    long |= {f.where for f in function_lengths() if f.lines > MAX_FUNCTION_LINES}

    assert LONGER.keys() - long == set()
