-- Parks a running job until its approvals are answered and its children have ended. It releases its
-- slots and uses up no attempt. Its children are stored in the same step, so that the end of none
-- is missed; a child beyond a limit is refused, and the journal says so.
-- ARGV: prefix, id, token, seconds that an answered approval is kept, description of the approvals,
-- maximum number of children of a job, and of a tree, milliseconds that the job may run in all ('':
-- no limit), its error when they are over, number of approvals; of each approval its id and
-- request; of each child the values as for submit, and its entry for the journal.
-- Returns the job's new state: 'waiting'; 'queued' when it has nothing to wait for; 'cancelled'
-- when its cancellation was requested before; or false when the attempt no longer holds the job.
even_if_full()
local id, kept, description = ARGV[2], ARGV[4], ARGV[5]
local most, most_of_tree = tonumber(ARGV[6]), tonumber(ARGV[7])
local job = held_job(id, ARGV[3])
if not job then return false end
local now = now_ms()
if job.is_cancelled then
  end_with_error(id, 'cancelled', 'JobCancelled', 'The job was cancelled before it began to wait.',
    now)
  return 'cancelled'
end
redis.call('HSET', key('job', id), 'ran_ms', job.ran)
local open, first_child = {}, 11 + 2 * ARGV[10]
for first = 11, first_child - 1, 2 do
  local approval, request = ARGV[first], ARGV[first + 1]
  if redis.call('EXISTS', key('approval', approval)) == 0 then
    redis.call('HSET', key('approval', approval), 'job', id, 'request', request,
      'requested_at', now)
    add_event(id, job.attempt, 'approval.requested', request)
  end
  if not redis.call('HGET', key('approval', approval), 'decision') then
    -- in the order of the calls
    redis.call('ZADD', key('approvals'), 'NX', now + #open / 1000, approval)
    open[#open + 1] = approval
  end
end
-- Stores a child if it is new. Returns its state, or false when it exceeds a limit.
local function child_state(first)
  local child = ARGV[first]
  local state = redis.call('HGET', key('job', child), 'state')
  if state then return state end
  if redis.call('SCARD', key('children', id)) >= most then
    report_child(id, child, 'refused',
      'a job may have ' .. most .. ' children (FANOUT_LIMITS__MAX_CHILDREN)')
    return false
  end
  if tonumber(redis.call('GET', key('offspring', job.root)) or 0) >= most_of_tree then
    report_child(id, child, 'refused',
      'a tree may have ' .. most_of_tree .. ' (FANOUT_LIMITS__MAX_TREE_CHILDREN)')
    return false
  end
  redis.call('INCR', key('offspring', job.root))
  enqueue(first, job.root, id)
  add_event(id, job.attempt, 'child.submitted', ARGV[first + SUBMISSION])
  return 'queued'
end
local ended = {succeeded = true, failed = true, timed_out = true, cancelled = true}
local awaited = 0
for first = first_child, #ARGV, SUBMISSION + 1 do
  local state = child_state(first)
  if ended[state] then
    report_child(id, ARGV[first], state)
  elseif state then
    awaited = awaited + redis.call('SADD', key('awaited', id), ARGV[first])
  end
end
redis.call('HSET', key('job', id), 'attempt', job.attempt - 1)
release_slots(id, job.root, job.host)
local why = #open > 0 and description or 'children: 0 of ' .. awaited
redis.call('HSET', key('job', id), 'state', 'waiting', 'dispatched', 0, 'token', 0, 'worker', '',
  'host', '', 'waiting_for', why, 'approvals', table.concat(open, ' '), 'approvals_kept', kept,
  'awaited', awaited)
if #open == 0 and awaited == 0 then
  requeue(id, job.root, job.attempt - 1, 'what it waited for is done')
  return 'queued'
end
if ARGV[8] ~= '' then
  redis.call('HSET', key('job', id), 'timeout_ms', ARGV[8], 'late', ARGV[9])
end
if #open == 0 then start_clock(id) end
journal(id, job.attempt - 1, {state = 'waiting', reason = why})
return 'waiting'
