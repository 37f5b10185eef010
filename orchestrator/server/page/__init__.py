"""The page: runs, jobs and approvals in a browser, without a build step."""
