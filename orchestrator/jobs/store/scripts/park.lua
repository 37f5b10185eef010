-- ARGV: prefix, id, token, seconds that an answered approval is kept, the approvals in words, most children of a job, most
-- of a tree, milliseconds that the job may run in all ('': no limit), its error when they are over, number of approvals;
-- id and request of each approval; then of each child the values as for submit, and its entry for the journal. A job
-- that waits for people or children gives its worker's place and its tree's back; no
-- attempt is used up. Its children are stored in the same step, so none can end unheard; one too many is refused, which
-- the journal tells. A job that somebody cancelled ends with that, and one that has all it waits for goes on. Returns
-- the state that the job has now, or false when the attempt no longer holds it.
local id, token, kept, words, most, most_of_tree = ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local job = redis.call('HMGET', key('job', id), 'token', 'state', 'root', 'host', 'attempt', 'claimed_at', 'ran_ms',
  'cancel', 'submitted_at', 'started_at')
if job[1] ~= token or job[2] ~= 'running' then return false end
local now = now_ms()
local ran = job[7] + now - job[6]
redis.call('HSET', key('job', id), 'ran_ms', ran)
if job[8] == '1' then
  finish(id, job[3], job[4], job[5], 'cancelled', bare_result(id, 'cancelled', job[5], ran, job[9], job[10],
    'JobCancelled', 'The job was cancelled before what it waited for was there.'), {})
  return 'cancelled'
end
local open, first_child = {}, 11 + 2 * ARGV[10]
for first = 11, first_child - 1, 2 do
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
-- A child's state, once it is stored; false when it is one too many.
local function child_state(first)
  local child = ARGV[first]
  local state = redis.call('HGET', key('job', child), 'state')
  if state then return state end
  if redis.call('SCARD', key('children', id)) >= most then
    tell_of_child(id, child, 'refused', 'a job may have ' .. most .. ' children (FANOUT_LIMITS__MAX_CHILDREN)')
    return false
  end
  if tonumber(redis.call('GET', key('offspring', job[3])) or 0) >= most_of_tree then
    tell_of_child(id, child, 'refused', 'a tree may have ' .. most_of_tree .. ' (FANOUT_LIMITS__MAX_TREE_CHILDREN)')
    return false
  end
  redis.call('INCR', key('offspring', job[3]))
  enqueue(first, job[3], id)
  tell(id, job[5], 'child.submitted', ARGV[first + SUBMISSION])
  return 'queued'
end
local ended = {succeeded = true, failed = true, timed_out = true, cancelled = true}
local awaited = 0
for first = first_child, #ARGV, SUBMISSION + 1 do
  local state = child_state(first)
  if ended[state] then
    tell_of_child(id, ARGV[first], state)
  elseif state then
    awaited = awaited + redis.call('SADD', key('awaited', id), ARGV[first])
  end
end
redis.call('HSET', key('job', id), 'attempt', job[5] - 1)
give_back(id, job[3], job[4])
local why = #open > 0 and words or 'children: 0 of ' .. awaited
redis.call('HSET', key('job', id), 'state', 'waiting', 'dispatched', 0, 'token', 0, 'worker', '', 'host', '',
  'waiting_for', why, 'approvals', table.concat(open, ' '), 'approvals_kept', kept, 'awaited', awaited)
if #open == 0 and awaited == 0 then
  requeue(id, job[3], job[5] - 1, 'what it waited for is there')
  return 'queued'
end
if ARGV[8] ~= '' then redis.call('HSET', key('job', id), 'timeout_ms', ARGV[8], 'late', ARGV[9]) end
if #open == 0 then start_clock(id) end
journal(id, job[5] - 1, {state = 'waiting', reason = why})
return 'waiting'
