-- ARGV: prefix, id ('': none more, go on with those that are listed), most jobs to look at, milliseconds that a worker has
-- to hear of it. Ends a waiting job and asks a running one to end, and all that they submitted. What is beyond `most` stays
-- listed: the caller asks again, and should it die, the reaper does. Returns the state that the job was in, false when
-- there is none; and how many are still listed.
local id, most, hearing = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local before = redis.call('HGET', key('job', id), 'state')
if before then redis.call('LPUSH', key('cancelling'), id) end
for _ = 1, most do
  local listed = redis.call('LPOP', key('cancelling'))
  if not listed then break end
  cancel_job(listed, hearing)
end
return {before, redis.call('LLEN', key('cancelling'))}
