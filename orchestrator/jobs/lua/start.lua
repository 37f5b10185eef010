-- Submits a child of a running job, which continues.
-- ARGV: prefix, id, token, maximum number of children of a job, and of a tree; the child's values as
-- for submit, and its entry for the journal.
-- Returns the child's state, {'refused', why}, or false when the attempt no longer holds the job.
local id = ARGV[2]
local job = held_job(id, ARGV[3])
if not job then return false end
local child = submission(6)
local state, refusal = store_child(child, ARGV[8], id, job, tonumber(ARGV[4]), tonumber(ARGV[5]))
if refusal then return {'refused', refusal} end
end_if_orphaned(child.id, id)
return state
