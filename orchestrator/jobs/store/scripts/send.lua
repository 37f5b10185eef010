-- ARGV: prefix, id, message, entry for the journal, a name for this request: one whose answer got lost is asked again
-- under the same name; the most messages that a job takes. Keeps a message for a job that has not ended. Returns the state
-- that the job is in, 'full' when it has had its messages, or false when there is no such job.
local id, message, entry, request, most = ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local job = redis.call('HMGET', key('job', id), 'state', 'attempt', 'last_message')
if not job[1] or redis.call('SISMEMBER', key('live'), id) == 0 or job[3] == request then return job[1] end
if redis.call('LLEN', key('messages', id)) >= most then return 'full' end
redis.call('HSET', key('job', id), 'last_message', request)
redis.call('RPUSH', key('messages', id), message)
tell(id, job[2], 'message', entry)
return job[1]
