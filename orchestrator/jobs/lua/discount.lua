-- Takes a time from what a job has run: that of the set-up of its environment.
-- ARGV: prefix, id, token, milliseconds.
-- Returns 1 unless the attempt no longer holds the job.
even_if_full()
local id = ARGV[2]
if not held_job(id, ARGV[3]) then return 0 end
redis.call('HINCRBY', key('job', id), 'ran_ms', -ARGV[4])
return 1
