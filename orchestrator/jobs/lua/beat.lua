-- Renews the leases of the jobs that a worker runs.
-- ARGV: prefix, lease in milliseconds, then id and token of each job.
-- Returns for each job: 'held', 'cancel' (held, and its cancellation was requested) or 'lost'. The
-- next call after an answer 'cancel' confirms the cancellation: the worker that asked may be frozen
-- before it reads the answer.
even_if_full()
local lease, now, answers = tonumber(ARGV[2]), now_ms(), {}
local lease_at = lease_clock() + lease
for first = 3, #ARGV, 2 do
  local id, token = ARGV[first], ARGV[first + 1]
  local job = redis.call('HMGET', key('job', id), 'token', 'state', 'cancel',
      'cancel_told')
  if job[1] ~= token or job[2] ~= 'running' then
    answers[#answers + 1] = 'lost'
  else
    redis.call('ZADD', key('leases'), 'XX', now + lease, id)
    redis.call('HSET', key('job', id), 'beat_at', now, 'lease_at', lease_at, 'lease_of', token)
    if job[3] == '1' and job[4] then
      redis.call('ZREM', key('deadlines'), id)
    elseif job[3] == '1' then
      redis.call('HSET', key('job', id), 'cancel_told', 1)
    end
    answers[#answers + 1] = job[3] == '1' and 'cancel' or 'held'
  end
end
return answers
