from __future__ import annotations

import io

import pytest

from fanout.workers.extras.image_building import (
    BuildProgress,
    ImageStatus,
    WantedImages,
    expected_seconds,
    to_build,
)
from fanout.workers.sandbox.docker.image_failures import image_missing, unfit


def status(name: str, *, fresh: bool, base: str = "") -> ImageStatus:
    image = f"fanout/{name}:latest"
    return ImageStatus(name=name, image=image, present=fresh, up_to_date=fresh, base=base)


def chosen(has_base: bool, has_python: bool, *names: str, **wanted: str | bool) -> list[str]:
    both = [status("base", fresh=has_base, base="debian:12"), status("python", fresh=has_python)]
    return to_build(both, WantedImages(names, **wanted))


def test_only_what_is_missing_is_built_and_what_is_on_it() -> None:
    assert chosen(True, True) == []
    assert chosen(True, False) == ["python"]
    assert chosen(False, False) == ["base", "python"]
    assert chosen(False, True) == ["base", "python"]


def test_a_named_image_is_built_after_the_one_below_it() -> None:
    assert chosen(False, False, "python") == ["base", "python"]
    assert chosen(True, False, "base") == []
    assert chosen(True, True, "base", force=True) == ["base"]


def test_another_base_is_a_reason_to_build_again_the_same_one_is_not() -> None:
    assert chosen(True, True, base="debian:12") == []
    assert chosen(True, True, base="ubuntu:24.04") == ["base", "python"]


def test_the_time_grows_with_what_is_built() -> None:
    assert 0 < expected_seconds(["python"]) < expected_seconds(["base", "python"])


@pytest.mark.parametrize(
    ("image", "advice"),
    [
        ("fanout/python", "run `fanout images build`"),
        ("fanout/base:latest", "run `fanout images build`"),
        ("fanout/pyhton", "the nearest name is fanout/python."),
        ("pyhton", "the nearest name is fanout/python."),
        ("fanout/ruby", "not one of fanout's: fanout/base, fanout/python."),
        ("node:20-slm", "the nearest name is node:20-slim."),
        ("ubuntu:24.04", "build or pull it there (docker pull ubuntu:24.04)."),
    ],
)
def test_a_missing_image_is_told_with_the_command_or_the_nearest_name(
    image: str, advice: str
) -> None:
    assert advice in str(image_missing(image, ["node:20-slim"]))


@pytest.mark.parametrize(
    "refusal",
    [
        'runc create failed: exec: "python3": executable file not found in $PATH: unknown',
        "crun: executable file `python3` not found in $PATH: No such file or directory",
    ],
)
def test_what_engines_say_about_a_missing_python_is_understood(refusal: str) -> None:
    assert "has no python3" in str(unfit("node:20", refusal))
    assert unfit("node:20", "no space left on device") is None


def test_in_a_pipe_each_step_is_a_plain_line_and_a_failure_has_the_last_words() -> None:
    out = io.StringIO()
    progress = BuildProgress("fanout/base:latest", out)
    progress.begin()
    progress.line("Step 2/6 : RUN apt-get update")
    progress.line("Get:1 http://mirror \x1b[31mInRelease")
    progress.fail()

    assert out.getvalue().splitlines() == [
        "fanout/base:latest: begins",
        "fanout/base:latest: step 2 of 6: RUN apt-get update",
        "  Step 2/6 : RUN apt-get update",
        "  Get:1 http://mirror  [31mInRelease",
    ]


def test_in_a_terminal_one_line_changes_and_never_wraps() -> None:
    out = io.StringIO()
    progress = BuildProgress("fanout/base:latest", out, columns=40)
    progress.begin()
    progress.line("Step 2/6 : RUN apt-get update")
    progress.line("Unpacking a package with a very long name indeed")
    progress.end()

    *changing, last = out.getvalue().split("\r\x1b[2K")
    assert all("\n" not in line and len(line) < 40 for line in changing)
    assert "step 2 of 6" in changing[-1]
    assert last.startswith("fanout/base:latest: done in ")
