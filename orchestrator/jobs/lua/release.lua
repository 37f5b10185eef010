-- Requeues a running job whose worker stops or cannot continue; no attempt is used up. A job whose
-- cancellation was requested ends instead.
-- ARGV: prefix, id, token, reason, the worker when it cannot read the job, which is then left to
-- others (else ''), milliseconds after which a job that Redis had no memory for ends if it is still
-- queued (else 0).
-- Returns 1, or 0 when the attempt no longer holds the job.
even_if_full()
local id = ARGV[2]
local job = held_job(id, ARGV[3])
if not job then return 0 end
if job.is_cancelled then
  end_with_error(id, 'cancelled', 'JobCancelled', 'Cancelled while its worker stopped.',
    now_ms())
  return 1
end
redis.call('HSET', key('job', id), 'ran_ms', job.ran, 'attempt', job.attempt - 1)
release_slots(id, job.root, job.host)
if ARGV[5] == '' then
  requeue(id, job.root, job.attempt - 1, ARGV[4])
else
  set_queued(id)
  leave_to_others(id, ARGV[5])
  journal(id, job.attempt - 1, {state = 'queued', reason = ARGV[4]})
end
if ARGV[6] ~= '0' then
  redis.call('ZADD', key('dispatch', 'starved'), now_ms() + ARGV[6], id)
  redis.call('HSET', key('job', id), 'starved', redis.call('HGET', key('job', id), 'requeued_at'))
end
return 1
