-- Stores what is reported of a running job if it ends without its worker.
-- ARGV: prefix, id, token, the result so far, the checkpoint's entry for the journal or ''.
-- Returns 1, or 0 when the attempt no longer holds the job.
local id = ARGV[2]
local job = held_job(id, ARGV[3])
if not job then return 0 end
redis.call('HSET', key('job', id), 'so_far', ARGV[4])
if ARGV[5] ~= '' then add_event(id, job.attempt, 'checkpoint', ARGV[5]) end
return 1
