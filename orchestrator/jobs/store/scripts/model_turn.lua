-- Returns whether a request may be sent now, or when to ask again. Requests are sent in their order
-- of arrival; one that does not ask again in time loses its position, so that a dead process blocks
-- nothing.
-- ARGV: prefix, model, request, its tokens, requests per window (0: no limit), tokens per window
-- (0: no limit), the window, how long an unused turn is valid, the time in which the rate doubles
-- after a cut, shortest and longest time until a waiting request asks again, and the grace for
-- that; all times in milliseconds.
-- Returns {0}, or {milliseconds until it asks again, milliseconds until its turn as estimated now,
-- 1 when it waits for the end of a cut}.
local model, most, most_tokens = ARGV[2], tonumber(ARGV[5]), tonumber(ARGV[6])
local window, late, doubling = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local soonest, latest, grace = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local sent, waiting = key('model-sent', model), key('model-waiting', model)
local patience, state = key('model-patience', model), key('model', model)
local now, me = now_ms(), ARGV[3] .. ' ' .. ARGV[4]

-- Returns the tokens of a request; one that exceeds the whole budget is sent alone.
local function tokens_of(member)
  local tokens = tonumber(string.match(member, ' (%d+)$'))
  return most_tokens > 0 and math.min(tokens, most_tokens) or tokens
end

redis.call('ZREMRANGEBYSCORE', sent, '-inf', now - window)
for _, member in ipairs(redis.call('ZRANGEBYSCORE', patience, '-inf', '(' .. now)) do
  redis.call('ZREM', waiting, member)
  redis.call('ZREM', patience, member)
end
local given = redis.call('ZSCORE', sent, me)
if given and now - given <= late then return {0} end  -- its answer was lost
if given then redis.call('ZREM', sent, me) end
redis.call('ZADD', waiting, 'NX', redis.call('HINCRBY', state, 'tickets', 1), me)

local cut_until = tonumber(redis.call('HGET', state, 'cut_until') or 0)
local since_cut = cut_until > 0 and redis.call('ZCOUNT', sent, cut_until, '+inf') or 0
local times, costs, first, sum = {}, {}, 1, 0
local seen = most_tokens > 0 and redis.call('ZRANGE', sent, 0, -1, 'WITHSCORES')
  or most > 0 and redis.call('ZRANGE', sent, -most, -1, 'WITHSCORES') or {}
for at = 1, #seen, 2 do
  times[#times + 1], costs[#costs + 1] = tonumber(seen[at + 1]), tokens_of(seen[at])
  sum = sum + costs[#costs]
end

-- Computes the turn of the next request in the queue, after all requests before it.
local turn = math.max(now, cut_until)
local function schedule(member)
  local cost = tokens_of(member)
  if cut_until > 0 then
    turn = math.max(turn, math.ceil(cut_until + doubling * math.log(since_cut + 1) / math.log(2)))
    since_cut = since_cut + 1
  end
  if most > 0 and #times >= most then turn = math.max(turn, times[#times - most + 1] + window) end
  if most_tokens > 0 then
    while first <= #times and (times[first] + window <= turn or sum + cost > most_tokens) do
      turn = math.max(turn, times[first] + window)
      sum, first = sum - costs[first], first + 1
    end
  end
  times[#times + 1], costs[#costs + 1], sum = turn, cost, sum + cost
end
for _, member in ipairs(redis.call('ZRANGE', waiting, 0, redis.call('ZRANK', waiting, me))) do
  schedule(member)
end

local answer = {0}
if turn <= now then
  redis.call('ZREM', waiting, me)
  redis.call('ZREM', patience, me)
  redis.call('ZADD', sent, now, me)
else
  local wait = turn - now
  local again = math.min(wait, math.max(soonest, math.min(latest, math.ceil(wait / 4))))
  redis.call('ZADD', patience, now + again + grace, me)
  answer = {again, wait, cut_until > now and 1 or 0}
end
local kept = math.max(now, cut_until) + window + latest + grace
for _, name in ipairs({sent, waiting, patience, state}) do redis.call('PEXPIREAT', name, kept) end
return answer
