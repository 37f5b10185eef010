-- ARGV: prefix, id, token, state, result, data for the journal, how many messages to the job the result knows of (-1: it
-- does not matter). Commits an attempt's result, once.
-- Returns 1, 0 when the attempt no longer holds the job, or 2 when more messages came meanwhile.
local id, token = ARGV[2], ARGV[3]
local job = redis.call('HMGET', key('job', id), 'token', 'state', 'root', 'host', 'attempt', 'claimed_at', 'ran_ms')
if job[1] ~= token or job[2] ~= 'running' then return 0 end
local known = tonumber(ARGV[7])
if known >= 0 and redis.call('LLEN', key('messages', id)) > known then return 2 end
redis.call('HSET', key('job', id), 'ran_ms', job[7] + now_ms() - job[6])
finish(id, job[3], job[4], job[5], ARGV[4], ARGV[5], cjson.decode(ARGV[6]))
return 1
