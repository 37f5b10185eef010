-- Shortens the journals of the jobs that ended first to their ends: what remains says how each job
-- ended. That of a job whose parent has not ended is kept: the parent may continue the job.
-- ARGV: prefix, time before which a job has ended, maximum number of jobs.
-- Returns the number of shortened journals, and 1 when there is no other.
even_if_full()
local before, most, shortened = ARGV[2], tonumber(ARGV[3]), 0
local from = redis.call('HGET', key('dispatch', 'memory'), 'shortened_to') or '0'
local found = redis.call('ZRANGEBYSCORE', key('ended'), from, '(' .. before, 'WITHSCORES', 'LIMIT', 0,
  most)

-- Deletes what is before the event of a job's end; returns whether there was anything.
local function shorten(id)
  for _, event in ipairs(redis.call('XREVRANGE', key('journal', id), '+', '-', 'COUNT', 5)) do
    if event[2][2] == 'job.state' then
      local bytes = redis.call('HMGET', key('job', id), 'bytes', 'owned', 'spec', 'result')
      if redis.call('XTRIM', key('journal', id), 'MINID', event[1]) == 0 then return false end
      redis.call('UNLINK', key('journal', 'payloads', id))
      redis.call('ZREM', key('journal', 'with_payloads'), id)
      shrink_journal(id)
      local left = JOB_BYTES + #(bytes[3] or '') + #(bytes[4] or '') + 2 * EVENT_BYTES
      if bytes[1] and tonumber(bytes[1]) > left then
        redis.call('HSET', key('job', id), 'bytes', left)
        count_stored(bytes[2], 0, left - bytes[1])
      end
      return true
    end
  end
end

for at = 1, #found, 2 do
  local id = found[at]
  local parent = redis.call('HGET', key('job', id), 'parent')
  if not (parent and redis.call('SISMEMBER', key('live'), parent) == 1) and shorten(id) then
    shortened = shortened + 1
  end
end
local last = found[#found]
-- of jobs that ended in the same moment there may be more
if last == from then last = '(' .. last end
local is_over = #found < 2 * most
redis.call('HSET', key('dispatch', 'memory'), 'shortened_to', is_over and '0' or last)
return {shortened, is_over and 1 or 0}
