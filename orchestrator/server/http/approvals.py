"""The routes of approvals, and of the agents that jobs may name."""

from __future__ import annotations

from fastapi import APIRouter

from ...configuration.api_settings import Scope
from .models import (
    AgentLine,
    AgentList,
    Answered,
    ApprovalDecision,
    ApprovalList,
)
from .requests import Jobs

router = APIRouter(prefix="/v1")


@router.get("/approvals", tags=["approvals"])
async def approvals(jobs: Jobs) -> ApprovalList:
    """Return the calls of the caller's jobs that wait for a decision, oldest first."""
    return ApprovalList(items=await jobs.approvals())


@router.post("/approvals/{approval_id}", tags=["approvals"])
async def answer(jobs: Jobs, approval_id: str, decision: ApprovalDecision) -> Answered:
    """Answer an approval; the journal and the audit log record who did."""
    job_id = await jobs.answer(
        approval_id,
        decision.decision,
        arguments=decision.arguments,
        response=decision.response,
        message=decision.message,
    )
    return Answered(id=approval_id, job_id=job_id)


@router.get("/agents", tags=["agents"])
async def agents(jobs: Jobs) -> AgentList:
    """Return the agents that jobs may name."""
    jobs.caller.require(Scope.READ)
    found = [
        AgentLine(
            name=name,
            description=definition.description,
            model=definition.model if isinstance(definition.model, str) else None,
            subagents=list(definition.subagents or ()),
        )
        for name, definition in sorted((await jobs.definitions()).items())
    ]
    return AgentList(items=found)
