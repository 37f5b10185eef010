-- Remembers a job as the newest one that has answered a call of a script, until the job is deleted.
-- ARGV: prefix, digest of the call, id.
-- Returns 1, or 0 when the job has not succeeded, or does not exist any more.
even_if_full()
local call, id = ARGV[2], ARGV[3]
if redis.call('HGET', key('job', id), 'state') ~= 'succeeded' then return 0 end
redis.call('HSET', key('job', id), 'answered_call', call)
redis.call('SET', key('dispatch', 'answered', call), id)
return 1
