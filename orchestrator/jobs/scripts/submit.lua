-- ARGV: prefix, then seven values a job: id, root, parent ('' for none), priority, max attempts, idempotency key ('' for
-- none, made unique by tenant), specification. Returns the ids under which the jobs stand: one that is there already
-- is the same job.
local ids = {}
for first = 2, #ARGV, 7 do
  local id, root, parent, idempotency = ARGV[first], ARGV[first + 1], ARGV[first + 2], ARGV[first + 5]
  local known = idempotency ~= '' and redis.call('GET', key('idempotency', idempotency))
  if known then id = known end
  if redis.call('EXISTS', key('job', id)) == 0 then
    enqueue(id, root, parent, ARGV[first + 3], ARGV[first + 4], idempotency, ARGV[first + 6])
    end_if_orphaned(id, parent)
  end
  ids[#ids + 1] = id
end
return ids
