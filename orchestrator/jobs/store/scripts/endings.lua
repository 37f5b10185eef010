-- How jobs end without a word of their worker: follows common.lua in every script.

-- Ends a job that has not ended yet, with its error.
local function end_here(id, state, kind, message)
  stop_clock(id)
  local job = redis.call('HMGET', key('job', id), 'state', 'root', 'host', 'attempt', 'ran_ms', 'submitted_at',
    'started_at', 'beat_at', 'claimed_at')
  local ran = job[5]
  if job[1] == 'running' then
    ran = job[5] + job[8] - job[9]
    redis.call('HSET', key('job', id), 'ran_ms', ran)
  end
  finish(id, job[2], job[3], job[4], state, bare_result(id, state, job[4], ran, job[6], job[7], kind, message), {})
end

-- Has a job's children cancelled with all below them.
local function cancel_children(id)
  for _, child in ipairs(redis.call('SMEMBERS', key('children', id))) do
    redis.call('RPUSH', key('cancelling'), child)
  end
end

-- Ends a job that waits; asks the worker of a running one, and gives it so many milliseconds to hear.
local function cancel_job(id, hearing)
  local job = redis.call('HMGET', key('job', id), 'state', 'cancel')
  if job[1] == 'queued' or job[1] == 'waiting' then
    end_here(id, 'cancelled', 'JobCancelled', 'The job was cancelled before it ran to its end.')
  elseif job[1] == 'running' then
    if job[2] ~= '1' then redis.call('ZADD', key('deadlines'), now_ms() + hearing, id) end
    redis.call('HSET', key('job', id), 'cancel', 1)
    redis.call('PUBLISH', key('cancel'), id)
  end
  cancel_children(id)
end

-- Ends a job whose parent has ended, or is about to: nobody would wait for it, and no cancel would find it.
local function end_if_orphaned(id, parent)
  if parent == '' then return end
  local state = redis.call('HMGET', key('job', parent), 'state', 'cancel')
  if state[1] and (state[2] == '1' or redis.call('SISMEMBER', key('live'), parent) == 0) then
    end_here(id, 'cancelled', 'JobCancelled', 'The job was cancelled: its parent had ended before it was submitted.')
  end
end
