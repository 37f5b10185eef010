-- ARGV: prefix, id, token, reason. An attempt failed in a way that the next one may not; it counts as used up.
-- Returns 1 when the job is queued again, 0 when its attempts are used up or the attempt no longer holds it.
local id, token = ARGV[2], ARGV[3]
local job = redis.call('HMGET', key('job', id), 'token', 'state', 'root', 'host', 'attempt', 'claimed_at', 'ran_ms',
  'max_attempts', 'cancel')
if job[1] ~= token or job[2] ~= 'running' or job[9] == '1' or tonumber(job[5]) >= tonumber(job[8]) then return 0 end
redis.call('HSET', key('job', id), 'ran_ms', job[7] + now_ms() - job[6])
give_back(id, job[3], job[4])
requeue(id, job[3], job[5], ARGV[4])
return 1
