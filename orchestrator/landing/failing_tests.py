"""Which tests fail, read from the output of the test runners that people use.

Only as much is read as is needed to tell whether one run of a command is worse than another: names
that can be compared, and what ran to its end. A test that fails now is a new failure only if it had
run before, so a run that stopped early, or that could not be built, proves nothing about the tests
that it did not reach.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from ..jobs.result import Verification

ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")

MAX_CHARACTERS = 200_000
"""The end of an output that is read: that of many failures."""

MAX_LINE_CHARACTERS = 1_000
"""The beginning of a line that is read: the name of a test is shorter, and a long line takes a
pattern long."""

_KEPT = 64
"""Outputs whose failing tests are kept: a train compares each of its outputs several times."""


@dataclass(frozen=True, order=True)
class FailingTest:
    """A failing test, or a failure that kept tests from being run."""

    group: str
    """The unit that runs as a whole: a runner, or one of its packages, targets or tasks."""
    name: str


@dataclass(frozen=True)
class FailingTests:
    """The results of one run of a command, as far as its output shows them."""

    failing: frozenset[FailingTest]
    complete: frozenset[str]
    """The groups that ran to their end and whose failing tests are all among `failing`."""
    tests_run: Mapping[str, int] = field(default_factory=dict)
    """The number of tests that ran, of groups that count them."""

    def new_since(self, before: FailingTests) -> frozenset[FailingTest]:
        """Return the tests that fail here and had run before without failing."""
        new = self.failing - before.failing
        return frozenset(
            test
            for test in new
            if test.group in before.complete and not self._came_further(before, test.group)
        )

    def _came_further(self, before: FailingTests, group: str) -> bool:
        """Return whether both runs may have stopped at their first failure, and this one later."""
        here, there = self.tests_run.get(group, 0), before.tests_run.get(group, 0)
        is_one = all(
            sum(test.group == group for test in run.failing) == 1 for run in (self, before)
        )
        return is_one and here > there > 0

    def is_no_worse_than(self, before: FailingTests) -> bool:
        """Return whether everything that ran before ran again, and no passing test fails now."""
        return before.complete <= self.complete and not self.new_since(before)


def failing_tests(verification: Verification) -> FailingTests | None:
    """Return the failing tests that the output of a command names.

    Args:
        verification: A run of the command. Its output may have lost its beginning.

    Returns:
        None if the output does not say why the command failed.
    """
    if verification.exit_code == 0:
        return None
    output = verification.output
    is_cut = output.is_cut or len(output.text) > MAX_CHARACTERS
    return _read(output.text[-MAX_CHARACTERS:], is_cut)


@lru_cache(_KEPT)
def _read(output: str, is_cut: bool) -> FailingTests | None:
    lines = ANSI.sub("", output).replace("\r", "").split("\n")
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(line[:MAX_LINE_CHARACTERS] for line in lines))
    found = [result for runner in RUNNERS if (result := runner(text, is_cut)) is not None]
    failing = frozenset(test for result in found for test in result.failing)
    if not failing:
        return None
    complete = frozenset(group for one in found for group in one.complete)
    counted = {group: count for one in found for group, count in one.tests_run.items()}
    return FailingTests(failing, complete, counted)


def _of_one_group(
    group: str,
    names: Iterable[str],
    *,
    expected: int | None,
    is_complete: bool = True,
    tests_run: int | None = None,
) -> FailingTests:
    """Return the failures of a runner that runs as a whole.

    Args:
        group: The runner.
        names: The failing tests; one may be named repeatedly if it fails repeatedly.
        expected: How many the runner counted; with fewer names the beginning of them is lost.
        is_complete: Whether it ran to its end.
        tests_run: How many tests it says that it ran.
    """
    listed = list(names)
    is_complete = is_complete and (expected is None or len(listed) >= expected)
    failing = frozenset(FailingTest(group, name.strip()) for name in listed)
    counted = {} if tests_run is None else {group: tests_run}
    return FailingTests(failing, frozenset({group} if is_complete else ()), counted)


def _add_numbers(pattern: str, text: str) -> int | None:
    """Return the sum of all numbers that a pattern finds; None without any."""
    found = re.findall(pattern, text, re.MULTILINE)
    return sum(map(int, found)) if found else None


def _pytest(text: str, _: bool) -> FailingTests | None:
    summary = re.findall(
        r"^(?:=+ )?(\d+ (?=.*(?:failed|passed|errors?|skipped))[a-z0-9, ]+) in [\d.]+s"
        r"(?: \([\d:]+\))?(?: =+)?$",
        text,
        re.MULTILINE,
    )
    if not summary:
        return None
    names = re.findall(
        r"^(?:FAILED|ERROR|SUBFAILED(?:[\[(].*?[\])])?) (\S+\[.*?\](?= - |$)|.+?)(?: - .*)?$",
        text,
        re.MULTILINE,
    )
    return _of_one_group(
        "pytest",
        names,
        expected=_add_numbers(r"(\d+) (?:failed|errors?)", "\n".join(summary)),
        is_complete=all("::" in name for name in names)  # otherwise a file could not be imported
        and not re.search(
            r"^!{3,} \S", text, re.MULTILINE
        ),  # stopped, interrupted, a broken plugin
    )


def _unittest(text: str, _: bool) -> FailingTests | None:
    summary = re.findall(r"^FAILED \((.+)\)$", text, re.MULTILINE)
    if not summary or not re.search(r"^Ran \d+ tests? in ", text, re.MULTILINE):
        return None
    names = re.findall(r"^(?:FAIL|ERROR|UNEXPECTED SUCCESS): (.+)$", text, re.MULTILINE)
    counted = _add_numbers(r"(?<!expected )(?:failures|errors)=(\d+)", "\n".join(summary))
    is_complete = "unittest.loader._FailedTest" not in text  # a module that could not be imported
    return _of_one_group(
        "unittest",
        names,
        expected=counted,
        is_complete=is_complete,
        tests_run=_add_numbers(r"^Ran (\d+) tests? in ", text),
    )


def _jest(text: str, _: bool) -> FailingTests | None:
    if not re.search(r"^Test Suites: .*total$", text, re.MULTILINE):
        return None
    names, file = set(), ""
    for line in text.splitlines():
        if found := re.match(r" *(FAIL|PASS) +(.+?)(?: \([\d.]+ m?s\))?$", line):
            file = found[2] if found[1] == "FAIL" else ""
        elif file and (found := re.match(r" *● (?!Console$)(.+)$", line)):
            names.add(f"{file}: {found[1]}")
    not_run = sum("Test suite failed to run" in name for name in names)
    expected = (_add_numbers(r"^Tests: +.*?(\d+) failed", text) or 0) + not_run
    is_stopped = re.search(r"^Test Suites: .* of \d+ total$", text, re.MULTILINE) is not None
    return _of_one_group("jest", names, expected=expected, is_complete=not (not_run or is_stopped))


def _vitest(text: str, _: bool) -> FailingTests | None:
    if not re.search(r"^ *Test Files  .*\(\d+\)$", text, re.MULTILINE):
        return None
    names = set(re.findall(r"^ *FAIL  (.+)$", text, re.MULTILINE))
    return _of_one_group(
        "vitest",
        names,
        expected=_add_numbers(r"^ *Tests  (\d+) failed", text),
        is_complete=all(" > " in name for name in names),  # otherwise a file could not be loaded
    )


def _go(text: str, is_cut: bool) -> FailingTests | None:
    packages = re.findall(r"^(?:FAIL|ok  )\t", text, re.MULTILINE)
    if not packages:
        return None
    failing: set[FailingTest] = set()
    complete: set[str] = set()
    tests: list[str] = []
    has_panicked = False
    for line in text.splitlines():
        if found := re.match(r"\s*--- FAIL: (\S+)", line):
            tests.append(found[1])
        elif line.startswith("panic: "):
            has_panicked = True
        elif found := re.match(r"(FAIL|ok  )\t(\S+)(?:\s+(\[(?:build|setup) failed\]))?", line):
            verdict, package, not_built = found.groups()
            group = f"go {package}"
            if verdict == "FAIL":
                names = tests or [not_built or ("panic" if has_panicked else "failed")]
                failing |= {FailingTest(group, name) for name in names}
            if not (not_built or has_panicked or is_cut) and (tests or verdict != "FAIL"):
                complete.add(group)
            tests, has_panicked = [], False
    return FailingTests(frozenset(failing), frozenset(complete))


LISTED = r"    (\S.*)$"
"""A test in Cargo's list of failures."""


def _cargo(text: str, _: bool) -> FailingTests | None:
    failing: set[FailingTest] = set()
    complete: set[str] = set()
    target, names = "", set[str]()
    is_whole, is_list = False, False
    for line in text.splitlines():
        if found := re.match(r"error: could not compile `([^`]+)`", line):
            failing.add(FailingTest("cargo", f"could not compile {found[1]}"))
        elif found := re.match(r" +(?:Running (?:unittests )?(\S+)|(Doc-tests \S+))", line):
            target, names = _cargo_target(found[1] or found[2]), set()
        elif found := re.match(LISTED if is_list else r"test (.+) \.\.\. FAILED$", line):
            names.add(found[1])
        elif found := re.match(r"test result: .* (\d+) failed;", line):
            is_whole = len(names) >= int(found[1])
            if target:
                failing |= {FailingTest(f"cargo {target}", name) for name in names}
                complete |= {f"cargo {target}"} if is_whole else set()
        elif (found := re.match(r"error: test failed, to rerun pass `(.+)`", line)) and not target:
            failing |= {FailingTest(f"cargo {found[1]}", name) for name in names}
            complete |= {f"cargo {found[1]}"} if is_whole else set()
        is_list = line == "failures:" or (is_list and line.startswith("    "))
    return FailingTests(frozenset(failing), frozenset(complete)) if complete or failing else None


def _cargo_target(source: str) -> str:
    """Return a target in the form of Cargo's options, where its source is shown."""
    if source == "src/lib.rs":
        return "--lib"
    return re.sub(r"^tests/(\w+)\.rs$", r"--test \1", source)


def _mocha(text: str, _: bool) -> FailingTests | None:
    found = re.search(r"^  (\d+) failing$", text, re.MULTILINE)
    if found is None:
        return None
    names = [
        " ".join(re.sub(r":$", "", title).split())
        for title in re.findall(
            r"^  \d+\) ((?:.+\n){0,20}?.*:)$", text[found.end() :] + "\n", re.MULTILINE
        )
    ]
    return _of_one_group(
        "mocha",
        names,
        expected=int(found[1]),
        is_complete=not any('" hook' in name for name in names),  # tests after it did not run
        tests_run=_add_numbers(r"^  (\d+) (?:passing|failing)\b", text),
    )


def _maven(text: str, _: bool) -> FailingTests | None:
    if "COMPILATION ERROR" in text and "[ERROR]" in text:
        return _of_one_group("maven", ["COMPILATION ERROR"], expected=None, is_complete=False)
    totals = re.findall(
        r"^\[(?:ERROR|WARNING|INFO)\] Tests run: \d+, Failures: (\d+), Errors: (\d+), Skipped: \d+$",
        text,
        re.MULTILINE,
    )
    if not totals:
        return None
    names = re.findall(
        r"^\[ERROR\] {2,}([\w.$]+(?:\[.*?\])?(?:\(.*?\))?)(?:[:» ]|->|$)", text, re.MULTILINE
    )
    return _of_one_group(
        "maven",
        names,
        expected=sum(int(count) for total in totals for count in total),
        tests_run=_add_numbers(
            r"^\[(?:ERROR|WARNING|INFO)\] Tests run: (\d+), .*Skipped: \d+$", text
        ),
    )


def _gradle(text: str, _: bool) -> FailingTests | None:
    failing: set[FailingTest] = set()
    complete: set[str] = set()
    task, named = "gradle", 0
    for line in text.splitlines():
        if found := re.match(r"> Task (\S+)(?: FAILED)?$", line):
            task, named = f"gradle {found[1]}", 0
        elif " > " in line and line.endswith(" FAILED") and not line.startswith((" ", "\t")):
            failing.add(FailingTest(task, line.removesuffix(" FAILED")))
            named += 1
        elif found := re.match(r"\d+ tests? completed, (\d+) failed", line):
            complete |= {task} if named >= int(found[1]) else set()
    return FailingTests(frozenset(failing), frozenset(complete)) if failing else None


def _rspec(text: str, _: bool) -> FailingTests | None:
    found = re.search(r"^\d+ examples?, (\d+) failures?(.*)$", text, re.MULTILINE)
    if found is None:
        return None
    names = [
        f"{file} {title}"
        for file, title in re.findall(
            r"^rspec (?:'?)(\S+?)(?:\[[\d:,]+\]|:\d+)?(?:'?) # (.+)$", text, re.MULTILINE
        )
    ]
    names += re.findall(r"^An error occurred while loading (\S+?)\.?$", text, re.MULTILINE)
    return _of_one_group(
        "rspec",
        names,
        expected=int(found[1]),
        is_complete="outside of examples" not in found[2],
        tests_run=_add_numbers(r"^(\d+) examples?,", found[0]),
    )


def _ctest(text: str, _: bool) -> FailingTests | None:
    found = re.search(r"^\d+% tests passed, (\d+) tests? failed out of \d+", text, re.MULTILINE)
    if found is None:
        return None
    names = re.findall(r"^[ \t]+\d+ - (.+?) \([^()]+\)", text[found.end() :], re.MULTILINE)
    return _of_one_group("ctest", names, expected=int(found[1]))


def _node(text: str, _: bool) -> FailingTests | None:
    found = re.search(r"^\u2139 fail (\d+)$", text, re.MULTILINE)
    if found is None:
        return None
    names = re.findall(r"^[ \t]*✖ (.+?) \([\d.]+m?s\)", text, re.MULTILINE)
    return _of_one_group("node", set(names), expected=int(found[1]))


def _tap(text: str, is_cut: bool) -> FailingTests | None:
    results = re.findall(r"^[ \t]*(not )?ok \d+(?: -)? ?(.*)$", text, re.MULTILINE)
    counted = _add_numbers(r"^# fail (\d+)$", text)
    if not results or (counted is None and not re.search(r"^1\.\.\d+", text, re.MULTILINE)):
        return None
    names = [
        title.partition(" # ")[0].strip()
        for is_bad, title in results
        if is_bad and not re.search(r"# *(?:todo|skip)\b", title, re.IGNORECASE)
    ]
    is_complete = not re.search(r"^Bail out!", text, re.MULTILINE)
    return _of_one_group(
        "tap",
        names,
        expected=counted,
        is_complete=is_complete and (counted is not None or not is_cut),
    )


RUNNERS: tuple[Callable[[str, bool], FailingTests | None], ...] = (
    *(_pytest, _unittest, _jest, _vitest, _go, _cargo, _mocha),
    *(_maven, _gradle, _rspec, _ctest, _node, _tap),
)
"""The readers of runners' outputs.

Each returns the results in a text, or None if the text is not of its runner. Its second argument is
whether the beginning of the text is missing."""
