-- Cancels a job and all its descendants: ends queued and waiting ones, and asks the workers of
-- running ones to end them. Jobs beyond the maximum stay listed: the caller repeats the call, and
-- if the caller dies, the reaper does.
-- ARGV: prefix, id ('': continue with the listed jobs), maximum number of jobs, milliseconds that a
-- worker has to confirm a cancellation.
-- Returns the state that the job had before, false when it does not exist; and how many jobs are
-- still listed.
even_if_full()

-- How many children are listed in the time in which a job is ended.
local CHILDREN_OF_A_JOB = 500

local id, most, hearing = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local before = redis.call('HGET', key('job', id), 'state')
if before then redis.call('LPUSH', key('cancelling'), id) end
while most > 0 do
  local listed = redis.call('LPOP', key('cancelling'))
  if not listed then break end
  most = most - 1 - math.floor(cancel_one(listed, hearing) / CHILDREN_OF_A_JOB)
end
return {before, redis.call('LLEN', key('cancelling'))}
