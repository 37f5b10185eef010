-- ARGV: prefix, then seven values a job: id, root, parent ('' for none), priority, max attempts, idempotency key ('' for
-- none, made unique by tenant), specification. Returns the ids under which the jobs stand: one that is there already
-- is the same job.
local ids = {}
for first = 2, #ARGV, 7 do
  local id, root, parent, idempotency = ARGV[first], ARGV[first + 1], ARGV[first + 2], ARGV[first + 5]
  local known = idempotency ~= '' and redis.call('GET', key('idempotency', idempotency))
  if known then id = known end
  if redis.call('EXISTS', key('job', id)) == 0 then
    local sequence, now = redis.call('INCR', key('sequence')), now_ms()
    redis.call('HSET', key('job', id), 'spec', ARGV[first + 6], 'state', 'queued', 'root', root, 'parent', parent,
      'priority', ARGV[first + 3], 'max_attempts', ARGV[first + 4], 'sequence', sequence, 'attempt', 0, 'token', 0,
      'dispatched', 0, 'ran_ms', 0, 'submitted_at', now)
    if idempotency ~= '' then
      redis.call('SET', key('idempotency', idempotency), id)
      redis.call('HSET', key('job', id), 'idempotency', idempotency)
    end
    redis.call('ZADD', key('jobs'), sequence, id)
    redis.call('ZADD', key('tree', root), sequence, id)
    redis.call('SADD', key('live'), id)
    if parent ~= '' then redis.call('SADD', key('children', parent), id) end
    make_ready(id, root)
    journal(id, 0, {state = 'queued'})
  end
  ids[#ids + 1] = id
end
return ids
