-- ARGV: prefix, id, number of the dispatch, why. Ends a job that was dispatched and cannot be sent to anybody.
local id = ARGV[2]
local job = redis.call('HMGET', key('job', id), 'state', 'dispatched', 'dispatches', 'root', 'attempt', 'ran_ms',
  'submitted_at', 'started_at')
if job[1] ~= 'queued' or job[2] ~= '1' or job[3] ~= ARGV[3] then return 0 end
finish(id, job[4], '', job[5], 'failed', bare_result(id, 'failed', job[5], job[6], job[7], job[8], 'InvalidJob', ARGV[4]), {})
return 1
