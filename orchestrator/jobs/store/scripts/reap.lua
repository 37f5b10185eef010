-- ARGV: prefix, most jobs to look at. Takes back what lapsed: a message that never arrived, an attempt whose worker fell
-- silent; and ends what is over: a job whose time ran out while it waited for children, one whose worker does not hear
-- that it is cancelled. A lease that lapsed while Redis itself was away tells nothing of its worker: no attempt is used
-- up by that. Returns id and what became of it.
local now, reaped = now_ms(), {}

-- Since when Redis answers, up to two seconds too early; 0 where it does not tell, as a managed one may not.
local function up_since()
  local told = redis.pcall('INFO', 'server')
  local seconds = type(told) == 'string' and string.match(told, 'uptime_in_seconds:(%d+)')
  return seconds and now - (seconds + 1) * 1000 or 0
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', key('leases'), '-inf', '(' .. now, 'LIMIT', 0, ARGV[2])) do
  local job = redis.call('HMGET', key('job', id), 'state', 'root', 'host', 'attempt', 'max_attempts', 'cancel', 'ran_ms',
    'claimed_at', 'beat_at', 'submitted_at', 'started_at')
  if job[1] == 'queued' then
    give_back(id, job[2])
    requeue(id, job[2], job[4], 'its message did not arrive')
    reaped[#reaped + 1] = {id, 'queued'}
  elseif job[1] == 'running' then
    local ran = job[7] + job[9] - job[8]
    redis.call('HSET', key('job', id), 'ran_ms', ran)
    if job[6] == '1' then
      finish(id, job[2], job[3], job[4], 'cancelled', bare_result(id, 'cancelled', job[4], ran, job[10], job[11],
        'JobCancelled', 'The job was cancelled while its worker was lost.'), {})
      reaped[#reaped + 1] = {id, 'cancelled'}
    elseif up_since() > tonumber(job[9]) then
      redis.call('HSET', key('job', id), 'attempt', job[4] - 1)
      give_back(id, job[2], job[3])
      requeue(id, job[2], job[4] - 1, 'Redis was away for longer than its lease')
      reaped[#reaped + 1] = {id, 'queued'}
    elseif tonumber(job[4]) >= tonumber(job[5]) then
      finish(id, job[2], job[3], job[4], 'failed', bare_result(id, 'failed', job[4], ran, job[10], job[11],
        'AttemptsUsedUp', 'The worker was lost in each of the ' .. job[5] .. ' attempts.'), {})
      reaped[#reaped + 1] = {id, 'failed'}
    else
      give_back(id, job[2], job[3])
      requeue(id, job[2], job[4], 'its worker fell silent')
      reaped[#reaped + 1] = {id, 'queued'}
    end
  else
    redis.call('ZREM', key('leases'), id)
  end
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', key('deadlines'), '-inf', '(' .. now, 'LIMIT', 0, ARGV[2])) do
  local job = redis.call('HMGET', key('job', id), 'state', 'cancel', 'late')
  if job[1] == 'waiting' then
    end_here(id, 'timed_out', 'DeadlineExceeded', job[3])
    cancel_children(id)
    reaped[#reaped + 1] = {id, 'timed_out'}
  elseif job[1] == 'running' and job[2] == '1' then
    end_here(id, 'cancelled', 'JobCancelled', 'The job was cancelled, and its worker did not answer.')
    reaped[#reaped + 1] = {id, 'cancelled'}
  else
    redis.call('ZREM', key('deadlines'), id)
  end
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', key('workers'), '-inf', '(' .. now)) do
  redis.call('ZREM', key('workers'), name)
  redis.call('DEL', key('worker', name))
end
return reaped
