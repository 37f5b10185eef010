-- Parks a running job until one of its models may be asked again. It releases its slots, uses up no
-- attempt, and its time does not run, nor has it while no model answered.
-- ARGV: prefix, id, token, the accesses of its models, milliseconds that it may wait in all, those of
-- other jobs like it, what it waits for, entry for the journal, '<agent> <model>', pool of its worker,
-- 1 if a model has answered it since it waited last (else 0).
-- Returns the job's new state: 'waiting'; 'queued' when a model may be asked again; 'over' when it has
-- waited for as long as it may, which changes nothing; 'cancelled' when its cancellation was requested
-- before; or false when the attempt no longer holds the job.
even_if_full()
local id, accesses, most = ARGV[2], ARGV[4], tonumber(ARGV[5])
local job = held_job(id, ARGV[3])
if not job then return false end
local now = now_ms()
if job.is_cancelled then
  end_with_error(id, 'cancelled', 'JobCancelled', 'Cancelled.', now)
  return 'cancelled'
end
if ARGV[11] == '1' then redis.call('HDEL', key('job', id), 'model_since') end
local since = tonumber(redis.call('HGET', key('job', id), 'model_since') or now)
local is_closed = are_closed(accesses)
if is_closed and since + most <= now then return 'over' end
-- An attempt that got no answer has only found out that the model is closed.
if ARGV[11] == '1' then redis.call('HSET', key('job', id), 'ran_ms', job.ran) end
redis.call('HSET', key('job', id), 'attempt', job.attempt - 1)
release_slots(id, job.root, job.host)
if not is_closed then
  requeue(id, job.root, job.attempt - 1, 'its model answers again')
  return 'queued'
end
local mapping = key('dispatch', 'model_accesses', ARGV[10])
redis.call('HSET', mapping, ARGV[9], ARGV[6] .. ' ' .. accesses)
redis.call('EXPIRE', mapping, 86400)
count_state(id, 'waiting')
redis.call('HSET', key('job', id), 'state', 'waiting', 'dispatched', 0, 'token', 0, 'worker', '',
  'host', '', 'waiting_for', ARGV[7], 'approvals', '')
await_models(id, job.root, accesses, true, most)
add_event(id, job.attempt - 1, 'model.state', ARGV[8])
journal(id, job.attempt - 1, {state = 'waiting', reason = ARGV[7]})
return 'waiting'
