-- Fails a dispatched job that cannot be sent to any worker.
-- ARGV: prefix, id, number of the dispatch, reason.
-- Returns 1, or 0 when that dispatch is over.
even_if_full()
local id = ARGV[2]
local job = redis.call('HMGET', key('job', id), 'state', 'dispatched', 'dispatches')
if job[1] ~= 'queued' or job[2] ~= '1' or job[3] ~= ARGV[3] then return 0 end
end_with_error(id, 'failed', 'InvalidJob', ARGV[4])
return 1
