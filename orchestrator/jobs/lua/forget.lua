-- Deletes jobs that ended long enough ago, with their journals. A job whose parent has not ended is
-- kept until a later call: the parent may read it. Also deletes the payloads of jobs that an earlier
-- release has deleted, which knows none.
-- ARGV: prefix, milliseconds that ended jobs are kept, JSON of those of single tenants, number of
-- the oldest jobs that were kept so far, maximum number of jobs.
-- Returns the numbers of deleted jobs and of checked ones that are kept, and 1 when all are checked.

-- The time between two looks whether a job with payloads still exists.
local CHECKED_AGAIN_MS = 3600000

even_if_full()
local kept_for, of_tenants = tonumber(ARGV[2]), cjson.decode(ARGV[3])
local shortest, now = kept_for, now_ms()
for _, milliseconds in pairs(of_tenants) do shortest = math.min(shortest, milliseconds) end
local deleted, kept, skipped, most = 0, 0, tonumber(ARGV[4]), tonumber(ARGV[5])
-- By their ranks: to pass over entries from the lowest score on takes as long as to read them.
local found = redis.call('ZRANGE', key('ended'), skipped, skipped + most - 1, 'WITHSCORES')
local is_over = #found < 2 * most
for at = 1, #found, 2 do
  local id, ended_at = found[at], tonumber(found[at + 1])
  if ended_at >= now - shortest then
    is_over = true
    break
  end
  local job = redis.call('HMGET', key('job', id), 'tenant', 'parent')
  if ended_at >= now - (of_tenants[job[1] or ''] or kept_for) then
    kept = kept + 1
  elseif job[2] and redis.call('SISMEMBER', key('live'), job[2]) == 1 then
    redis.call('ZADD', key('ended'), now, id)
  else
    forget_job(id)
    deleted = deleted + 1
  end
end
local checked_before = now - CHECKED_AGAIN_MS
for _, id in ipairs(redis.call('ZRANGEBYSCORE', key('journal', 'with_payloads'), '-inf', checked_before,
    'LIMIT', 0, most)) do
  if redis.call('EXISTS', key('job', id)) == 1 then
    redis.call('ZADD', key('journal', 'with_payloads'), now, id)
  else
    redis.call('DEL', key('journal', 'payloads', id))
    redis.call('ZREM', key('journal', 'with_payloads'), id)
  end
end
return {deleted, kept, is_over and 1 or 0}
