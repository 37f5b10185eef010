-- ARGV: prefix, id. Ends a waiting job and asks a running one to end, and all that they submitted.
-- Returns the state that the job was in, or false when there is none.
local before = redis.call('HGET', key('job', ARGV[2]), 'state')
if not before then return false end
local queue = {ARGV[2]}
while #queue > 0 do
  local id = table.remove(queue)
  local job = redis.call('HMGET', key('job', id), 'state', 'root', 'attempt', 'ran_ms', 'submitted_at', 'started_at')
  if job[1] == 'queued' or job[1] == 'waiting' then
    finish(id, job[2], '', job[3], 'cancelled', bare_result(id, 'cancelled', job[3], job[4], job[5], job[6],
      'JobCancelled', 'The job was cancelled before it ran to its end.'), {})
  elseif job[1] == 'running' then
    redis.call('HSET', key('job', id), 'cancel', 1)
    redis.call('PUBLISH', key('cancel'), id)
  end
  for _, child in ipairs(redis.call('SMEMBERS', key('children', id))) do queue[#queue + 1] = child end
end
return before
