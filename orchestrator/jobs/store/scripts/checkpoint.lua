-- ARGV: prefix, id, token, what a result would hold so far, the checkpoint's entry for the journal or ''. Keeps what is
-- reported of a job that ends without its worker. Returns 1, or 0 when the attempt no longer holds the job.
local id, token = ARGV[2], ARGV[3]
local job = redis.call('HMGET', key('job', id), 'token', 'state', 'attempt')
if job[1] ~= token or job[2] ~= 'running' then return 0 end
redis.call('HSET', key('job', id), 'so_far', ARGV[4])
if ARGV[5] ~= '' then tell(id, job[3], 'checkpoint', ARGV[5]) end
return 1
