-- Stores and queues jobs. A job that exists already, by its id or its idempotency key, is the same
-- job.
-- ARGV: prefix, then of each job two values, as `submission` reads them.
-- Returns the ids of the jobs, with a space between two; or, if they are refused, {why, whose limit
-- it is}.
local ids, new, is_new, keyed = {}, {}, {}, {}
for first = 2, #ARGV, 2 do
  local job = submission(first)
  local id, idempotency = job.id, job.idempotency
  if idempotency ~= '' then
    id = keyed[idempotency] or redis.call('GET', key('idempotency', idempotency)) or id
  end
  if not is_new[id] and redis.call('EXISTS', key('job', id)) == 0 then
    is_new[id], new[#new + 1] = true, job
    if idempotency ~= '' then keyed[idempotency] = id end
  end
  ids[#ids + 1] = id
end
if #new > 0 then
  local why, whose = why_refused(new)
  if why then return {why, whose} end
  enqueue(new)
end
for _, job in ipairs(new) do end_if_orphaned(job.id, job.parent) end
return table.concat(ids, ' ')
