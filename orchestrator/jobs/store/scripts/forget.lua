-- Deletes jobs that ended before a time, with their journals and payloads. A job whose parent has not
-- ended is kept until a later call: the parent may read it. Also deletes the payloads of jobs that
-- an earlier release has deleted, which knows none.
-- ARGV: prefix, end of the retention in milliseconds since the epoch, maximum number of jobs.
-- Returns the deleted ids, and the number of jobs that were checked.

-- The time between two looks whether a job with payloads still exists.
local CHECKED_AGAIN_MS = 3600000

even_if_full()
local before, deleted = tonumber(ARGV[2]), {}
local old = redis.call('ZRANGEBYSCORE', key('ended'), '-inf', '(' .. before, 'LIMIT', 0, ARGV[3])
for _, id in ipairs(old) do
  local job = redis.call('HMGET', key('job', id), 'root', 'parent', 'idempotency', 'owned')
  if job[2] and redis.call('SISMEMBER', key('live'), job[2]) == 1 then
    redis.call('ZADD', key('ended'), now_ms(), id)
  else
    count_state(id)
    redis.call('ZREM', key('ended'), id)
    redis.call('ZREM', key('jobs'), id)
    redis.call('ZREM', key('ids'), id)
    redis.call('ZREM', key('ids_by_end'), id)
    redis.call('ZREM', key('reversed_ids'), string.reverse(id))  -- of releases before ids_by_end
    redis.call('ZREM', key('uncollected'), id)
    if job[1] then
      redis.call('ZREM', key('tree', job[1]), id)
      if redis.call('EXISTS', key('tree', job[1])) == 0 then
        redis.call('DEL', key('offspring', job[1]), key('usage', job[1]))
      end
    end
    if job[2] and job[2] ~= '' then redis.call('SREM', key('children', job[2]), id) end
    if job[3] and job[3] ~= '' then redis.call('DEL', key('idempotency', job[3])) end
    if job[4] then redis.call('ZREM', key('owned', job[4]), id) end
    redis.call('DEL', key('job', id), key('spec', id), key('result', id), key('journal', id),
      key('payloads', id), key('children', id), key('notify', 'of', id))
    redis.call('ZREM', key('with_payloads'), id)
    if id ~= job[1] then redis.call('DEL', key('usage', id)) end
    deleted[#deleted + 1] = id
  end
end
local checked_before = now_ms() - CHECKED_AGAIN_MS
for _, id in ipairs(redis.call('ZRANGEBYSCORE', key('with_payloads'), '-inf', checked_before, 'LIMIT', 0,
    ARGV[3])) do
  if redis.call('EXISTS', key('job', id)) == 1 then
    redis.call('ZADD', key('with_payloads'), now_ms(), id)
  else
    redis.call('DEL', key('payloads', id))
    redis.call('ZREM', key('with_payloads'), id)
  end
end
return {deleted, #old}
