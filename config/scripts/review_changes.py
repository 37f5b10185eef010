"""Review every changed file, and have each finding verified by a second agent.

base: the commit with which Git compares the files; default: HEAD
files: a pattern such as src/**/*.py, to review these files instead of those that Git says have changed
"""

import asyncio

FINDING = {
    "type": "object",
    "properties": {
        "line": {"type": "integer"},
        "fault": {"type": "string", "description": "What goes wrong, and when."},
    },
    "required": ["line", "fault"],
}
FINDINGS = {
    "type": "object",
    "properties": {"findings": {"type": "array", "items": FINDING}},
    "required": ["findings"],
}
VERDICT = {
    "type": "object",
    "properties": {
        "is_real": {"type": "boolean"},
        "reason": {"type": "string", "description": "What was run or read, and what it showed."},
    },
    "required": ["is_real", "reason"],
}


async def changed_files():
    if "files" in inputs:
        return await files(inputs["files"])
    base = inputs.get("base", "HEAD")
    git = await run(
        f"git diff --name-only --diff-filter=d {base} && git ls-files --others --exclude-standard"
    )
    if git.exit_code != 0:
        raise ValueError(
            "Git cannot say what has changed; give a pattern as the input files. " + git.output
        )
    return [line.strip() for line in git.output.splitlines() if line.strip()]


async def verified(path, finding):
    """Return a finding with the verdict of an agent that has not seen how it was found."""
    verdict = await agent(
        f"Somebody says of {path}, line {finding['line']}: {finding['fault']}\n"
        "Find out whether this is so. Try to show that it is wrong; run the code where you can.",
        agent="reviewer",
        output_schema=VERDICT,
        label=f"verify {path}:{finding['line']}",
        files="discard",
        check=False,
    )
    return {"path": path, **finding, "verdict": verdict.output if verdict.ok else None}


async def reviewed(path):
    """Return the findings about a file; None if its review failed."""
    review = await agent(
        f"Review {path} as it is now. Report only faults that you can explain.",
        agent="reviewer",
        output_schema=FINDINGS,
        label=f"review {path}",
        files="discard",
        check=False,
    )
    if not review.ok:
        log(f"{path} was not reviewed: {review.error}")
        return None
    return await asyncio.gather(*[verified(path, one) for one in review.output["findings"]])


async def main():
    paths = await changed_files()
    phase("Review")
    log(f"{len(paths)} files to review")
    reviews = await asyncio.gather(*[reviewed(path) for path in paths])
    found = [finding for review in reviews if review is not None for finding in review]
    judged = [finding for finding in found if finding["verdict"] is not None]
    return {
        "files": len(paths),
        "not_reviewed": [path for path, review in zip(paths, reviews) if review is None],
        "confirmed": [one for one in judged if one["verdict"]["is_real"]],
        "refuted": [one for one in judged if not one["verdict"]["is_real"]],
        "not_verified": [finding for finding in found if finding["verdict"] is None],
    }
