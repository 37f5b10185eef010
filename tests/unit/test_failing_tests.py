"""Which tests fail is read from what test runners print."""

# ruff: noqa: RUF001 - runners print such characters

from __future__ import annotations

import pytest

from fanout.orchestrator.jobs.result import MAX_TAIL_CHARACTERS, KnownOutput, Verification
from fanout.orchestrator.landing.failing_tests import FailingTests, failing_tests

PYTEST = """\
F.F                                                       [100%]
=================================== FAILURES ===================================
=========================== short test summary info ============================
FAILED test_a.py::A::test_one - AssertionError: 1 != 2
SUBFAILED test_a.py::A::test_sub - AssertionError: 0 != 5
FAILED test_a.py::test_sum[a b]
3 failed, 2 passed in 0.15s
"""
PYTEST_NOT_IMPORTED = """\
=========================== short test summary info ============================
ERROR test_b.py
!!!!!!!!!!!!!!!!!!!! Interrupted: 1 error during collection !!!!!!!!!!!!!!!!!!!!
=============================== 1 error in 0.38s ===============================
"""
PYTEST_STOPPED = """\
FAILED test_a.py::test_one - AssertionError: 1 != 2
!!!!!!!!!!!!!!!!!!!!!!!!!! stopping after 1 failures !!!!!!!!!!!!!!!!!!!!!!!!!!!
========================= 1 failed, 1 passed in 0.14s ==========================
"""
PYTEST_CUT = """\
FAILED test_a.py::test_two - AssertionError: 1 != 2
2 failed, 1 passed in 0.14s
"""
UNITTEST = """\
======================================================================
FAIL: test_one (test_a.A.test_one)
----------------------------------------------------------------------
AssertionError: 1 != 2

======================================================================
ERROR: test_sub (test_a.A.test_sub) (i=1)
----------------------------------------------------------------------
KeyError: 1

----------------------------------------------------------------------
Ran 4 tests in 0.001s

FAILED (failures=1, errors=1)
"""
JEST = """\
FAIL src/a.test.js (5.2 s)
  ● sum › adds one

    expect(received).toBe(expected) // Object.is equality

PASS src/c.test.js
FAIL src/b.test.js
  ● top

    x

Test Suites: 2 failed, 1 passed, 3 total
Tests:       2 failed, 1 passed, 3 total
"""
VITEST = """\
 \x1b[31m❯\x1b[39m v/a.test.ts (2 tests | 1 failed) 7ms
⎯⎯⎯⎯⎯⎯ Failed Tests 1 ⎯⎯⎯⎯⎯⎯⎯

\x1b[41m\x1b[1m FAIL \x1b[22m\x1b[49m v/a.test.ts\x1b[2m > \x1b[22msum\x1b[2m > \x1b[22madds one
AssertionError: expected 1 to be 2 // Object.is equality

\x1b[2m Test Files \x1b[22m \x1b[1m\x1b[31m1 failed\x1b[39m\x1b[22m\x1b[90m (1)\x1b[39m
\x1b[2m      Tests \x1b[22m \x1b[1m\x1b[31m1 failed\x1b[39m\x1b[22m\x1b[2m | 1 passed\x1b[90m (2)
"""
GO = """\
--- FAIL: TestAdd (0.00s)
    --- FAIL: TestAdd/one (0.00s)
        add_test.go:9: 1 != 2
FAIL
FAIL\texample.com/x/add\t0.003s
ok  \texample.com/x/sub\t0.002s
FAIL
"""
CARGO = """\
     Running unittests src/lib.rs (target/debug/deps/x-5b2)

running 2 tests
test tests::ok ... ok
test tests::adds ... FAILED

failures:

---- tests::adds stdout ----
assertion `left == right` failed

failures:
    tests::adds

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.16s

error: test failed, to rerun pass `--lib`
"""
MOCHA = """\
  sum
    1) adds one
    ✔ ok


  1 passing (5ms)
  2 failing

  1) sum
       adds one:

      AssertionError [ERR_ASSERTION]: 1 == 2
      + expected - actual

  2) deep
       er
         fails:
     Error: x: y
      at Context.<anonymous> (m/a.js:3:75)
"""
MAVEN = """\
[INFO] Results:
[INFO]
[ERROR] Failures:
[ERROR]   AppTest.testB:15 expected: <1> but was: <2>
[ERROR] Errors:
[ERROR]   AppTest.testC » NullPointer
[INFO]
[ERROR] Tests run: 3, Failures: 1, Errors: 1, Skipped: 0
[INFO]
[INFO] BUILD FAILURE
"""
GRADLE = """\
> Task :app:compileJava
> Task :app:test FAILED

AppTest > testB() FAILED
    org.opentest4j.AssertionFailedError at AppTest.java:15

3 tests completed, 1 failed

FAILURE: Build failed with an exception.
"""
RSPEC = """\
Finished in 0.01 seconds (files took 0.08 seconds to load)
5 examples, 1 failure

Failed examples:

rspec ./spec/sum_spec.rb:12 # Sum adds one
"""
CTEST = """\
33% tests passed, 2 tests failed out of 3

Total Test time (real) =   0.03 sec

The following tests FAILED:
\t  2 - bad (Failed)
\t  3 - missing (Not Run)
Errors while running CTest
"""
NODE = """\
▶ suite
  ✖ inner (13.692807ms)
    AssertionError [ERR_ASSERTION]: The expression evaluated to a falsy value:
  ✔ ok (0.164664ms)
✖ suite (14.247249ms)
ℹ tests 3
ℹ fail 2

✖ failing tests:

test at n/a.test.mjs:3:27
✖ inner (13.692807ms)
"""
TAP = """\
TAP version 13
# Subtest: suite
    not ok 1 - inner
      ---
      duration_ms: 14.5
      ...
    1..1
not ok 1 - suite
ok 2 - fine
not ok 3 - later # TODO some day
1..3
# fail 2
"""


def read(output: str) -> FailingTests | None:
    return failing_tests(Verification(command="check", exit_code=1, output_tail=output))


@pytest.mark.parametrize(
    ("output", "names"),
    [
        pytest.param(
            PYTEST,
            {"test_a.py::A::test_one", "test_a.py::A::test_sub", "test_a.py::test_sum[a b]"},
            id="pytest",
        ),
        pytest.param(
            UNITTEST,
            {"test_one (test_a.A.test_one)", "test_sub (test_a.A.test_sub) (i=1)"},
            id="unittest",
        ),
        pytest.param(JEST, {"src/a.test.js: sum › adds one", "src/b.test.js: top"}, id="jest"),
        pytest.param(VITEST, {"v/a.test.ts > sum > adds one"}, id="vitest"),
        pytest.param(GO, {"TestAdd", "TestAdd/one"}, id="go"),
        pytest.param(CARGO, {"tests::adds"}, id="cargo"),
        pytest.param(MOCHA, {"sum adds one", "deep er fails"}, id="mocha"),
        pytest.param(MAVEN, {"AppTest.testB", "AppTest.testC"}, id="maven"),
        pytest.param(GRADLE, {"AppTest > testB()"}, id="gradle"),
        pytest.param(RSPEC, {"./spec/sum_spec.rb Sum adds one"}, id="rspec"),
        pytest.param(CTEST, {"bad", "missing"}, id="ctest"),
        pytest.param(NODE, {"inner", "suite"}, id="node"),
        pytest.param(TAP, {"inner", "suite"}, id="tap"),
    ],
)
def test_the_failing_tests_of_a_known_runner_are_named(output: str, names: set[str]) -> None:
    found = read(output)
    assert found is not None
    assert {test.name for test in found.failing} == names
    assert found.complete
    assert found.is_no_worse_than(found)
    in_terminal = read(output.replace("\n", "\r\n"))
    assert in_terminal == found


@pytest.mark.parametrize(
    ("output", "name"),
    [
        pytest.param(PYTEST_NOT_IMPORTED, "test_b.py", id="a file cannot be imported"),
        pytest.param(PYTEST_STOPPED, "test_a.py::test_one", id="stopped at the first failure"),
        pytest.param(PYTEST_CUT, "test_a.py::test_two", id="the first names are lost"),
        pytest.param("FAIL\tx/add [build failed]\nFAIL\n", "[build failed]", id="go build"),
        pytest.param("panic: no\nFAIL\tx/add\t0.1s\n", "panic", id="go panic"),
        pytest.param("error: could not compile `x` (lib)\n", "could not compile x", id="cargo"),
        pytest.param(
            "[ERROR] COMPILATION ERROR :\n[ERROR] A.java:[1,2] no\n", "COMPILATION ERROR", id="mvn"
        ),
        pytest.param("not ok 1 - one\n1..2\nBail out! no database\n", "one", id="tap bails out"),
    ],
)
def test_a_run_that_did_not_reach_all_tests_says_nothing_about_the_others(
    output: str, name: str
) -> None:
    found = read(output)
    assert found is not None
    assert [test.name for test in found.failing] == [name]
    assert not found.complete


@pytest.mark.parametrize(
    "output",
    ["", "make: *** [check] Error 1\n", "not ok\n", "1 failed\n", "FAIL\n", "3 passed in 0.1s"],
)
def test_an_output_of_unknown_form_names_no_test(output: str) -> None:
    assert read(output) is None


def test_a_passing_run_has_no_failing_test() -> None:
    assert failing_tests(Verification(command="check", exit_code=0, output_tail=PYTEST)) is None


def test_a_test_that_had_not_run_before_is_no_new_failure() -> None:
    stopped_at_the_library = read(CARGO)
    further = read(
        "     Running unittests src/lib.rs (target/debug/deps/x-5b2)\n"
        "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n"
        "     Running tests/it.rs (target/debug/deps/it-1)\n"
        "test whole ... FAILED\n"
        "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n"
    )
    assert stopped_at_the_library is not None
    assert further is not None
    assert further.is_no_worse_than(stopped_at_the_library)
    assert not stopped_at_the_library.is_no_worse_than(further)


@pytest.mark.parametrize(
    ("output", "names"),
    [
        pytest.param(
            "FAILED t.py::test_a[x - y] - assert [1] == [2]\nFAILED t.py::test_a[x - z]\n"
            "2 failed, 1 passed, 3 subtests passed, 1 warning in 65.01s (0:01:05)\n",
            {"t.py::test_a[x - y]", "t.py::test_a[x - z]"},
            id="pytest: parameters with a dash, subtests",
        ),
        pytest.param(
            "FAIL: test_a (t.A.test_a)\nRan 4 tests in 0.1s\n\n"
            "FAILED (failures=1, skipped=1, expected failures=2)\n",
            {"test_a (t.A.test_a)"},
            id="unittest: expected failures",
        ),
        pytest.param(
            "PASS src/c.test.js\n  ● Console\n\n    console.log\n      hi\n\n"
            "FAIL src/a.test.js\n  ● Console\n\n    console.log\n\n  ● sum › adds\n\n"
            "Test Suites: 1 failed, 1 passed, 2 total\nTests:       1 failed, 3 passed, 4 total\n",
            {"src/a.test.js: sum › adds"},
            id="jest: what the tests print",
        ),
        pytest.param(
            "not ok 1 - adds # time=12.3ms\nok 2 - subtracts # time=1ms\n1..2\n# fail 1\n",
            {"adds"},
            id="tap: the time of a test",
        ),
    ],
)
def test_a_name_is_the_same_in_each_run(output: str, names: set[str]) -> None:
    found = read(output)
    assert found is not None
    assert {test.name for test in found.failing} == names
    assert found.complete


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(
            "FAILED t.py::test_a\n!!!!!!!!!! KeyboardInterrupt !!!!!!!!!!\n1 failed in 0.14s\n",
            id="pytest is interrupted",
        ),
        pytest.param(
            "FAIL a.test.js\n  ● adds\n\nTest Suites: 1 failed, 1 of 3 total\n"
            "Tests:       1 failed, 1 total\n",
            id="jest stops",
        ),
        pytest.param("exit status 1\nFAIL\tx/add\t0.1s\n", id="go exits"),
        pytest.param(
            '  0 passing (5ms)\n  1 failing\n\n  1) sum\n       "before each" hook for "adds":\n'
            "     Error: x\n",
            id="a hook of mocha fails",
        ),
    ],
)
def test_a_run_that_was_stopped_is_not_complete(output: str) -> None:
    found = read(output)
    assert found is not None
    assert found.failing
    assert not found.complete


def test_a_run_that_stops_at_its_first_failure_may_come_further() -> None:
    first, further, same = (
        read(f"FAIL: {name} (t.A.{name})\nRan {count} tests in 0.1s\n\nFAILED (failures=1)\n")
        for name, count in (("test_a", 1), ("test_b", 2), ("test_b", 1))
    )
    assert first is not None
    assert further is not None
    assert same is not None
    assert further.is_no_worse_than(first)
    assert not same.is_no_worse_than(first)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text", ["\n", " ", "a > ", "= ", "FAILED x\n", "FAIL ", "[ERROR]   A.", "1 a, ", "  1) aa\n"]
)
def test_an_output_of_any_form_is_read_soon(text: str) -> None:
    long = text * (1_000_000 // len(text))
    known = KnownOutput(f"1 failing\n{long}\n  1 failing\n{long}", is_cut=True)
    failing_tests(Verification(command="check", exit_code=1).with_output(known))


def test_what_kept_tests_from_running_is_a_new_failure() -> None:
    before, broken = read(PYTEST), read(PYTEST_NOT_IMPORTED)
    assert before is not None
    assert broken is not None
    assert [test.name for test in broken.new_since(before)] == ["test_b.py"]


def test_runners_of_one_command_are_read_together() -> None:
    found = read(PYTEST + JEST)
    assert found is not None
    assert {test.group for test in found.failing} == {"pytest", "jest"}


def test_tests_are_read_from_more_than_the_tail_where_the_command_ran() -> None:
    long = f"{GO}\n{'x' * 3 * MAX_TAIL_CHARACTERS}\n"
    run = Verification(command="check", exit_code=1, output_tail=long[-MAX_TAIL_CHARACTERS:])
    whole, cut = (run.with_output(KnownOutput(long, is_cut=is_cut)) for is_cut in (False, True))

    assert failing_tests(run) is None
    found, incomplete = failing_tests(whole), failing_tests(cut)
    assert found is not None
    assert found == read(GO)
    assert incomplete is not None
    assert not incomplete.complete
    assert Verification.model_validate_json(whole.model_dump_json()) == run


def test_output_that_lost_its_beginning_is_complete_only_if_it_counts() -> None:
    padding = "x" * MAX_TAIL_CHARACTERS
    go, counted = (
        read((padding + "\n" + GO)[-MAX_TAIL_CHARACTERS:]),
        read((padding + "\n" + PYTEST)[-MAX_TAIL_CHARACTERS:]),
    )
    assert go is not None
    assert counted is not None
    assert not go.complete
    assert counted.complete
