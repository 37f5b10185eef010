"""Putting a job's changes into a workspace, three ways.

The snapshot, the job's version, and the file now.
"""

from __future__ import annotations

from orchestrator.jobs.changes import ChangeBundle
from orchestrator.workspace.dry_run import Rehearsal
from orchestrator.workspace.folder_merge import FolderMerge, MergeReport
from orchestrator.workspace.rooted import RootedFolder
from orchestrator.workspace.workspace import Workspace


async def merge(workspace: Workspace, bundle: ChangeBundle, *, check: bool = False) -> MergeReport:
    """Put a bundle's changes into the workspace; merging the same bundle again changes nothing.

    Each file is put in whole or not at all. With `check` nothing is written; the report says what
    would be.

    Raises:
        WorkspaceUnusable: there is no folder.
    """
    folder = (Rehearsal if check else RootedFolder)(workspace.root)
    return await workspace.alone(FolderMerge(folder, bundle).run)
