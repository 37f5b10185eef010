-- Returns whether a request may be sent now, or when to ask again. Requests are sent in their order
-- of arrival; one that does not ask again in time loses its position, so that a dead process blocks
-- nothing.
--
-- The requests at the head of the queue for which there is room now, all together, are ready: each is
-- sent as soon as it asks. Their number and tokens are kept in the model's state, and so are the
-- tokens sent within the window, so that no look reads all requests. Earlier releases change the
-- queue and not these sums. Each of their looks draws a ticket: while one that was not counted here is
-- within the window, the sums are made from the queue again at each look.
-- ARGV: prefix, model, request, its tokens, requests per window (0: no limit), tokens per window
-- (0: no limit), the window, how long an unused turn is valid, the time in which the rate doubles
-- after a cut, shortest and longest time until a waiting request asks again, the grace for that, and
-- the time by which the longest one grows with each waiting request; all times in milliseconds.
-- Returns {0}, or {milliseconds until it asks again, milliseconds until its turn as estimated now,
-- 1 when it waits for the end of a cut}.
local model, most, most_tokens = ARGV[2], tonumber(ARGV[5]), tonumber(ARGV[6])
local window, late, doubling = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local soonest, latest, grace = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local sent, waiting = key('model-sent', model), key('model-waiting', model)
local patience, state = key('model-patience', model), key('model', model)
local now, me = now_ms(), ARGV[3] .. ' ' .. ARGV[4]

-- The most requests that one look removes, and the most that it finds ready; others do the rest.
local STEPS = 1000

-- How many requests are read at once to find the ready ones, or to estimate the tokens of all.
local SAMPLE = 16

local function count_tokens(member) return tonumber(string.match(member, ' (%d+)$')) end

-- Returns the tokens of a request; one that exceeds the whole budget is sent alone.
local function cost_of(member)
  local tokens = count_tokens(member)
  return most_tokens > 0 and math.min(tokens, most_tokens) or tokens
end

local function total(members, count)
  local sum = 0
  for _, member in ipairs(members) do sum = sum + count(member) end
  return sum
end

-- Returns waiting requests from a rank on, at most so many.
local function queued(rank, count)
  return redis.call('ZRANGE', waiting, rank, rank + count - 1)
end

local fields = {'cut_until', 'tickets', 'counted_tickets', 'recount_until', 'sent_tokens', 'ready',
  'ready_tokens', 'ready_cut'}
local sums = {}
for at, value in ipairs(redis.call('HMGET', state, unpack(fields))) do
  sums[fields[at]] = tonumber(value or 0)
end
local cut_until = sums.cut_until
local sent_count, since_cut

local function leave_ready(member)
  sums.ready, sums.ready_tokens = sums.ready - 1, sums.ready_tokens - count_tokens(member)
end

local function leave_queue(member)
  if (redis.call('ZRANK', waiting, member) or math.huge) < sums.ready then leave_ready(member) end
  redis.call('ZREM', waiting, member)
  redis.call('ZREM', patience, member)
end

local function leave_sent(member)
  if redis.call('ZREM', sent, member) == 1 then
    sums.sent_tokens = sums.sent_tokens - count_tokens(member)
  end
end

-- Makes the sums again where an earlier release has changed the queue or may have.
local function recount()
  if sums.tickets ~= sums.counted_tickets then
    sums.recount_until = now + window
  elseif sums.recount_until < now then
    sums.recount_until = 0
  end
  sums.sent_tokens = total(redis.call('ZRANGE', sent, 0, -1), count_tokens)
  sums.ready, sums.ready_tokens = 0, 0
end

-- Lets as many requests be ready as there is room for.
local function set_ready()
  local function has_room(count, tokens)
    return (most == 0 or sent_count + count <= most) and (most_tokens == 0
      or sums.sent_tokens + tokens <= most_tokens or (sums.sent_tokens == 0 and count == 1))
  end
  local function is_due(number)
    return cut_until == 0 or now >= cut_until + doubling * math.log(number) / math.log(2)
  end
  if sums.ready_cut ~= cut_until then
    sums.ready, sums.ready_tokens, sums.ready_cut = 0, 0, cut_until
  end
  while sums.ready > 0 and not has_room(sums.ready, sums.ready_tokens) do
    leave_ready(queued(sums.ready - 1, 1)[1])
  end
  for _ = 1, STEPS / SAMPLE do
    local members = queued(sums.ready, SAMPLE)
    for _, member in ipairs(members) do
      local tokens = sums.ready_tokens + count_tokens(member)
      if not is_due(since_cut + sums.ready + 1) or not has_room(sums.ready + 1, tokens) then return end
      sums.ready, sums.ready_tokens = sums.ready + 1, tokens
    end
    if #members < SAMPLE then return end
  end
end

-- Returns when so much of a budget will be free that a request can be sent: first what is sent
-- leaves the window, in its order and of this mean size, then, window by window, what is sent from
-- now on.
local function when_free(needed, held, budget, mean)
  local windows = math.max(0, math.ceil((needed - held) / budget))
  needed = needed - windows * budget
  local start = now
  if needed > 0 then
    local rank = math.min(math.ceil(needed / mean), sent_count) - 1
    start = redis.call('ZRANGE', sent, rank, rank, 'WITHSCORES')[2] + window
  end
  return start + windows * window
end

-- Returns when the request of a rank, which is not ready, will have its turn: exactly where only
-- requests are limited, else by the mean tokens of the requests before it.
local function estimate(rank)
  local turn = cut_until
  if cut_until > 0 then
    turn = math.ceil(cut_until + doubling * math.log(since_cut + rank + 1) / math.log(2))
  end
  if most > 0 then
    turn = math.max(turn, when_free(sent_count + rank + 1 - most, sent_count, most, 1))
  end
  if most_tokens > 0 then
    local before = rank - sums.ready
    local known = math.min(before, SAMPLE)
    local tokens = known > 0 and total(queued(sums.ready, known), cost_of) * before / known or 0
    local needed = sums.sent_tokens + sums.ready_tokens + tokens + cost_of(me) - most_tokens
    turn = math.max(turn,
      when_free(needed, sums.sent_tokens, most_tokens, sums.sent_tokens / sent_count))
  end
  return turn
end

-- Lets this request wait for a turn, or gives it one.
local waiting_count = redis.call('ZCARD', waiting)
local longest = math.max(latest, waiting_count * tonumber(ARGV[13]))
local function ask()
  if waiting_count == 0 then sums.ready, sums.ready_tokens = 0, 0 end
  if not redis.call('ZSCORE', waiting, me) then
    sums.tickets = sums.tickets + 1
    redis.call('ZADD', waiting, sums.tickets, me)
  end
  sent_count = redis.call('ZCARD', sent)
  since_cut = cut_until > 0 and redis.call('ZCOUNT', sent, cut_until, '+inf') or 0
  if sent_count == 0 then sums.sent_tokens = 0 end
  set_ready()
  local rank = redis.call('ZRANK', waiting, me)
  if rank < sums.ready then
    leave_queue(me)
    redis.call('ZADD', sent, now, me)
    sums.sent_tokens = sums.sent_tokens + count_tokens(me)
    return {0}
  end
  local wait = math.ceil(estimate(rank)) - now
  if wait <= 0 then wait = soonest end
  local again = math.min(wait, math.max(soonest, math.min(longest, math.ceil(wait / 4))))
  redis.call('ZADD', patience, now + again + grace, me)
  return {again, wait, cut_until > now and 1 or 0}
end

local expired = redis.call('ZRANGEBYSCORE', sent, '-inf', now - window, 'LIMIT', 0, STEPS)
for _, member in ipairs(expired) do leave_sent(member) end
local silent = redis.call('ZRANGEBYSCORE', patience, '-inf', '(' .. now, 'LIMIT', 0, STEPS)
for _, member in ipairs(silent) do leave_queue(member) end
if sums.tickets ~= sums.counted_tickets or sums.recount_until > 0 then recount() end

local answer = {0}
local given = redis.call('ZSCORE', sent, me)
if not given or now - given > late then  -- else its answer was lost
  leave_sent(me)
  answer = ask()
end
redis.call('HSET', state, 'tickets', sums.tickets, 'counted_tickets', sums.tickets, 'recount_until',
  sums.recount_until, 'sent_tokens', sums.sent_tokens, 'ready', sums.ready, 'ready_tokens',
  sums.ready_tokens, 'ready_cut', sums.ready_cut)
local kept = math.max(now, cut_until) + window + longest + grace
for _, name in ipairs({sent, waiting, patience, state}) do redis.call('PEXPIREAT', name, kept) end
return answer
