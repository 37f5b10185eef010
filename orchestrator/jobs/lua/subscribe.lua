-- Stores a subscription to a job. What it asks for and what has happened already is notified now, so
-- that a job which ends before it is subscribed to is not missed. A subscription to a job that does
-- not exist waits for its submission.
-- ARGV: prefix, job, id, subscription as JSON, maximum number of subscriptions of a job, seconds that
-- one waits for the submission.
-- Returns 1, or 0 when the job has that many.
local job, id = ARGV[2], ARGV[3]
local of = key('notify', 'of', job)
local is_new = redis.call('HEXISTS', of, id) == 0
if is_new and redis.call('HLEN', of) >= tonumber(ARGV[5]) then return 0 end
redis.call('HSET', of, id, ARGV[4])
local state = redis.call('HGET', key('job', job), 'state')
if not state then
  redis.call('EXPIRE', of, ARGV[6])
  return 1
end
if not is_new then return 1 end
local subscription, told = cjson.decode(ARGV[4]), {}
local function tell(what, source, event)
  if asks_for(subscription, what) then
    enter_outbox(subscription.receiver, job, id, what, source, event)
  end
end
if ENDED[state] then
  tell(state, job, '')
else
  for _, approval in ipairs(redis.call('ZRANGE', key('approvals'), 0, -1)) do
    local source = redis.call('HGET', key('approval', approval), 'job')
    local below = source and (source == job or redis.call('HGET', key('job', source), 'root') == job)
    if below and not told[source] then
      told[source] = true
      tell('approval', source, approval)
    end
  end
end
return 1
