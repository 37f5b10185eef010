-- Parks a running job until its approvals are answered and its children have ended. It releases its
-- slots and uses up no attempt. Its children are stored in the same step, so that the end of none
-- is missed; a child beyond a limit is refused, and the journal says so.
-- ARGV: prefix, id, token, seconds that an answered approval is kept, description of the approvals,
-- maximum number of children of a job, and of a tree, milliseconds that the job may run in all ('':
-- no limit), its error when they are over, the time at which it resumes although not all children
-- have ended ('': never), in how many milliseconds it resumes when anything of what it waits for has
-- arrived ('': when all has), number of approvals, number of children that it started before; of
-- each approval its id and request; the ids of those children; of each new child the values as for
-- submit, and its entry for the journal.
-- Returns the job's new state: 'waiting'; 'queued' when it has nothing to wait for; 'cancelled'
-- when its cancellation was requested before; or false when the attempt no longer holds the job.
even_if_full()
local id, kept, description = ARGV[2], ARGV[4], ARGV[5]
local most, most_of_tree = tonumber(ARGV[6]), tonumber(ARGV[7])
local job = held_job(id, ARGV[3])
if not job then return false end
local now = now_ms()
if job.is_cancelled then
  end_with_error(id, 'cancelled', 'JobCancelled', 'Cancelled.',
    now)
  return 'cancelled'
end
redis.call('HSET', key('job', id), 'ran_ms', job.ran)
local any, is_answered, has_ended = ARGV[11], false, false
local open, first_started, asked = {}, 14 + 2 * ARGV[12], nil
local first_child = first_started + ARGV[13]
for first = 14, first_started - 1, 2 do
  local approval, request = ARGV[first], ARGV[first + 1]
  if redis.call('EXISTS', key('approval', approval)) == 0 then
    redis.call('HSET', key('approval', approval), 'job', id, 'request', request,
      'requested_at', now)
    asked = add_event(id, job.attempt, 'approval.requested', request)
  end
  if not redis.call('HGET', key('approval', approval), 'decision') then
    -- in the order of the calls
    redis.call('ZADD', key('approvals'), 'NX', now + #open / 1000, approval)
    open[#open + 1] = approval
  else
    is_answered = true
  end
end
local awaited = 0
local function await(child, state)
  if ENDED[state] then
    has_ended = true
    report_child(id, child, state)
  elseif state then
    awaited = awaited + redis.call('SADD', key('awaited', id), child)
  end
end
for index = first_started, first_child - 1 do
  local child = redis.call('HMGET', key('job', ARGV[index]), 'state', 'parent')
  if child[2] == id then await(ARGV[index], child[1]) end
end
for first = first_child, #ARGV, 3 do
  local child = submission(first)
  local state, refusal = store_child(child, ARGV[first + 2], id, job, most, most_of_tree)
  if refusal then report_child(id, child.id, 'refused', refusal) end
  await(child.id, state)
end
-- What wakes up often, because it waits for any of many, is not lost with the third of its workers:
-- its attempts are counted anew.
local attempt = any ~= '' and 0 or job.attempt - 1
redis.call('HSET', key('job', id), 'attempt', attempt)
release_slots(id, job.root, job.host)
local why = #open > 0 and description or 'children: 0 of ' .. awaited
count_state(id, 'waiting')
redis.call('HSET', key('job', id), 'state', 'waiting', 'dispatched', 0, 'token', 0, 'worker', '',
  'host', '', 'waiting_for', why, 'approvals', table.concat(open, ' '), 'approvals_kept', kept,
  'awaited', awaited)
if any ~= '' then redis.call('HSET', key('job', id), 'wake_any', any) end
if (#open == 0 and awaited == 0) or (any ~= '' and is_answered) or (any == '0' and has_ended) then
  redis.call('DEL', key('awaited', id))
  requeue(id, job.root, attempt, 'what it waited for is done')
  return 'queued'
end
if ARGV[8] ~= '' then
  redis.call('HSET', key('job', id), 'timeout_ms', ARGV[8], 'late', ARGV[9])
end
if ARGV[10] ~= '' then redis.call('HSET', key('job', id), 'wake_at', ARGV[10]) end
if #open == 0 then resume_clock(id) end
if any ~= '' and has_ended then wake_in(id, any) end
journal(id, attempt, {state = 'waiting', reason = why})
if asked then
  notify(id, 'approval', asked, id)
  if job.root ~= id then notify(job.root, 'approval', asked, id) end
end
return 'waiting'
