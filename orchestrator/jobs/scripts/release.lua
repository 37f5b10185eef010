-- ARGV: prefix, id, token, reason. A worker that stops, or cannot go on, gives a running job back; no attempt is used up.
-- Returns 1, or 0 when the attempt no longer holds the job.
local id, token = ARGV[2], ARGV[3]
local job = redis.call('HMGET', key('job', id), 'token', 'state', 'root', 'host', 'attempt', 'claimed_at', 'ran_ms')
if job[1] ~= token or job[2] ~= 'running' then return 0 end
redis.call('HSET', key('job', id), 'ran_ms', job[7] + now_ms() - job[6], 'attempt', job[5] - 1)
give_back(id, job[3], job[4])
requeue(id, job[3], job[5] - 1, ARGV[4])
return 1
