-- ARGV: prefix, id, token, state, result, data for the journal. Commits an attempt's result, once.
-- Returns 1, or 0 when the attempt no longer holds the job.
local id, token = ARGV[2], ARGV[3]
local job = redis.call('HMGET', key('job', id), 'token', 'state', 'root', 'host', 'attempt', 'claimed_at', 'ran_ms')
if job[1] ~= token or job[2] ~= 'running' then return 0 end
redis.call('HSET', key('job', id), 'ran_ms', job[7] + now_ms() - job[6])
finish(id, job[3], job[4], job[5], ARGV[4], ARGV[5], cjson.decode(ARGV[6]))
return 1
