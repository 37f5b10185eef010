-- Requeues a job whose attempt failed, when another attempt may succeed; the attempt counts as used
-- up.
-- ARGV: prefix, id, token, reason.
-- Returns 1 when the job is requeued, 0 when its attempts are used up or the attempt no longer
-- holds it.
even_if_full()
local id = ARGV[2]
local job = held_job(id, ARGV[3])
if not job or job.is_cancelled then return 0 end
if tonumber(job.attempt) >= tonumber(job.max_attempts) then return 0 end
redis.call('HSET', key('job', id), 'ran_ms', job.ran)
release_slots(id, job.root, job.host)
requeue(id, job.root, job.attempt, ARGV[4])
return 1
