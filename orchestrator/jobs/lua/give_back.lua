-- Requeues a running job that its host could not run; no attempt is used up. A job whose cancellation
-- was requested ends instead.
-- ARGV: prefix, id, token, reason, the field of the record that counts this, the most that it may
-- reach, 1 if the attempt's time counts (else 0). When the host is fit and refuses the job also: the
-- workers of that host, those of others that may be able to run it, 1 if the same host would refuse
-- it again (else 0).
-- Returns 1; 0 when that has happened too often, no other worker is left, or the attempt no longer
-- holds the job.
even_if_full()
local id, count, refusing, others = ARGV[2], ARGV[5], ARGV[8], ARGV[9]
local job = held_job(id, ARGV[3])
if not job then return 0 end
if job.is_cancelled then
  end_with_error(id, 'cancelled', 'JobCancelled', 'Cancelled while its host could not run it.',
    now_ms())
  return 1
end
local known = redis.call('HMGET', key('job', id), count, 'unread_by')
if tonumber(known[1] or 0) >= tonumber(ARGV[6]) then return 0 end
local left = false
for name in string.gmatch(others or '', '%S+') do left = left or not is_listed(known[2], name) end
if ARGV[10] == '1' and not left then return 0 end
redis.call('HINCRBY', key('job', id), count, 1)
if refusing then
  -- The others of this host open its sandboxes in the same way.
  redis.call('HSET', key('job', id), 'unread_by', left and (known[2] or '') .. ' ' .. refusing or '')
  redis.call('HDEL', key('job', id), 'files_host')
end
if ARGV[7] == '1' then redis.call('HSET', key('job', id), 'ran_ms', job.ran) end
redis.call('HSET', key('job', id), 'attempt', job.attempt - 1)
release_slots(id, job.root, job.host)
requeue(id, job.root, job.attempt - 1, ARGV[4])
return 1
