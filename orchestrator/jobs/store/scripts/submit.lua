-- Stores and queues jobs. A job that exists already, by its id or its idempotency key, is the same
-- job.
-- ARGV: prefix, then the values of each job, as listed at SUBMISSION in common.lua.
-- Returns the ids of the jobs.
local ids = {}
for first = 2, #ARGV, SUBMISSION do
  local id, idempotency = ARGV[first], ARGV[first + 5]
  local known = idempotency ~= '' and redis.call('GET', key('idempotency', idempotency))
  if known then id = known end
  if redis.call('EXISTS', key('job', id)) == 0 then
    enqueue(first, ARGV[first + 1], ARGV[first + 2])
    end_if_orphaned(id, ARGV[first + 2])
  end
  ids[#ids + 1] = id
end
return ids
