-- ARGV: prefix, id, token, reason, the wire version that the job needs from now on (0: as before). A worker that stops,
-- or cannot go on, gives a running job back; no attempt is used up. One that somebody cancelled ends with that.
-- Returns 1, or 0 when the attempt no longer holds the job.
local id, token = ARGV[2], ARGV[3]
local job = redis.call('HMGET', key('job', id), 'token', 'state', 'root', 'host', 'attempt', 'claimed_at', 'ran_ms',
  'cancel', 'submitted_at', 'started_at')
if job[1] ~= token or job[2] ~= 'running' then return 0 end
local ran = job[7] + now_ms() - job[6]
if job[8] == '1' then
  redis.call('HSET', key('job', id), 'ran_ms', ran)
  finish(id, job[3], job[4], job[5], 'cancelled', bare_result(id, 'cancelled', job[5], ran, job[9], job[10],
    'JobCancelled', 'The job was cancelled while its worker stopped.'), {})
  return 1
end
redis.call('HSET', key('job', id), 'ran_ms', ran, 'attempt', job[5] - 1)
if ARGV[5] ~= '0' then redis.call('HSET', key('job', id), 'wire', ARGV[5]) end
give_back(id, job[3], job[4])
requeue(id, job[3], job[5] - 1, ARGV[4])
return 1
