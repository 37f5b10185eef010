-- ARGV: prefix, id, token, seconds that an answered approval is kept, what the job waits for, then id and request of
-- each approval. A job that waits for people gives its worker's place and its tree's back; no attempt is used up. One
-- that somebody cancelled ends with that, and one whose approvals are all answered goes on. Returns the state that the
-- job has now, or false when the attempt no longer holds it.
local id, token, kept, why = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local job = redis.call('HMGET', key('job', id), 'token', 'state', 'root', 'host', 'attempt', 'claimed_at', 'ran_ms',
  'cancel', 'submitted_at', 'started_at')
if job[1] ~= token or job[2] ~= 'running' then return false end
local now = now_ms()
local ran = job[7] + now - job[6]
redis.call('HSET', key('job', id), 'ran_ms', ran)
if job[8] == '1' then
  finish(id, job[3], job[4], job[5], 'cancelled', bare_result(id, 'cancelled', job[5], ran, job[9], job[10],
    'JobCancelled', 'The job was cancelled before a person answered.'), {})
  return 'cancelled'
end
local open = {}
for first = 6, #ARGV, 2 do
  local approval, request = ARGV[first], ARGV[first + 1]
  if redis.call('EXISTS', key('approval', approval)) == 0 then
    redis.call('HSET', key('approval', approval), 'job', id, 'request', request, 'requested_at', now)
    tell(id, job[5], 'approval.requested', request)
  end
  if not redis.call('HGET', key('approval', approval), 'decision') then
    redis.call('ZADD', key('approvals'), 'NX', now + #open / 1000, approval)  -- in the order of the calls
    open[#open + 1] = approval
  end
end
redis.call('HSET', key('job', id), 'attempt', job[5] - 1)
give_back(id, job[3], job[4])
if #open == 0 then
  requeue(id, job[3], job[5] - 1, 'its approvals are answered')
  return 'queued'
end
redis.call('HSET', key('job', id), 'state', 'waiting', 'dispatched', 0, 'token', 0, 'worker', '', 'host', '',
  'waiting_for', why, 'approvals', table.concat(open, ' '), 'approvals_kept', kept)
journal(id, job[5] - 1, {state = 'waiting', reason = why})
return 'waiting'
