-- Stores a message for a job that has not ended.
-- ARGV: prefix, id, message, entry for the journal, name of this request, maximum number of
-- messages of a job. A request that is repeated under the same name, because its answer was lost,
-- stores nothing.
-- Returns the job's state, 'full' when it has had its maximum of messages, or false when it does
-- not exist.
local id, message, entry, request, most = ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local job = redis.call('HMGET', key('job', id), 'state', 'attempt', 'last_message')
if not job[1] or redis.call('SISMEMBER', key('live'), id) == 0 or job[3] == request then
  return job[1]
end
if redis.call('LLEN', key('messages', id)) >= most then return 'full' end
redis.call('HSET', key('job', id), 'last_message', request)
redis.call('RPUSH', key('messages', id), message)
count_bytes(id, #message)
add_event(id, job[2], 'message', entry)
return job[1]
