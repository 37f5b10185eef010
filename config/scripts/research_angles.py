"""Research a question from ten angles, and reconcile what was found.

question: the question, in plain language
angles: a list of other angles than the ten of the script
report: the file to write; default: report.md
"""

import asyncio

ANGLES = [
    "what it costs and what it saves",
    "what was measured, as opposed to promised",
    "what can go wrong",
    "what depends on a date or a deadline",
    "what others have done, and how it went for them",
    "who is affected, and how",
    "which rules and contracts apply",
    "what the alternatives are",
    "what the technical limits are",
    "what speaks against the obvious answer",
]
FINDINGS = {
    "type": "object",
    "properties": {
        "answer": {
            "type": "string",
            "description": "The answer from this angle, in a few sentences.",
        },
        "evidence": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Places that show it.",
        },
        "doubts": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["answer", "evidence", "doubts"],
}


async def researched(question, angle):
    result = await agent(
        f"Research this from one angle only, {angle}: {question}",
        agent="researcher",
        output_schema=FINDINGS,
        label=angle,
        files="discard",
        check=False,
    )
    if not result.ok:
        log(f"not researched, {angle}: {result.error}")
    return result


async def main():
    question, angles = inputs["question"], inputs.get("angles", ANGLES)
    path = inputs.get("report", "report.md")
    phase("Research")
    results = await asyncio.gather(*[researched(question, angle) for angle in angles])
    found = [(angle, one.output) for angle, one in zip(angles, results) if one.ok]
    missing = [angle for angle, one in zip(angles, results) if not one.ok]
    if not found:
        raise ValueError("No angle was researched, so there is nothing to reconcile.")
    phase("Reconcile")
    notes = "\n\n".join(
        [
            f"## {angle}\n{one['answer']}\nEvidence: {'; '.join(one['evidence'])}\nDoubts: {'; '.join(one['doubts'])}"
            for angle, one in found
        ]
    )
    if missing:
        notes += "\n\nNobody has researched: " + "; ".join(missing)
    report = await agent(
        f"Answer this, and write the answer to {path}: {question}\n"
        f"{len(found)} researchers looked at it, each from one angle; the context has what they found. "
        "Where they contradict each other, look yourself which is right, and say so. Say what nobody knows.",
        context=notes,
        label="reconcile",
    )
    return {
        "answer": report.summary,
        "report": path,
        "angles": len(found),
        "not_researched": missing,
    }
