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
local known = redis.call('HMGET', key('job', job), 'state', 'approvals')
if not known[1] then
  redis.call('EXPIRE', of, ARGV[6])
elseif is_new then
  local subscription = cjson.decode(ARGV[4])
  local what = ENDED[known[1]] and known[1] or 'approval'
  if asks_for(subscription, what) and (what ~= 'approval' or (known[2] or '') ~= '') then
    enter_outbox(subscription.receiver, job, id, what, job, known[2] or '')
  end
end
return 1
