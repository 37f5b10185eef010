-- ARGV: prefix, id, message, entry for the journal, a name for this request: one whose answer got lost is asked again
-- under the same name. Keeps a message for a job that has not ended. Returns the state that the job is in, or false
-- when there is none.
local id, message, entry, request = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local job = redis.call('HMGET', key('job', id), 'state', 'attempt', 'last_message')
if not job[1] or redis.call('SISMEMBER', key('live'), id) == 0 or job[3] == request then return job[1] end
redis.call('HSET', key('job', id), 'last_message', request)
redis.call('RPUSH', key('messages', id), message)
tell(id, job[2], 'message', entry)
return job[1]
