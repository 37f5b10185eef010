-- Reserves what a call of a model may use, of all budgets that hold for its job, before it is sent.
-- What it reserves is the attempt's as long as this holds the job: when it ends first, it counts as
-- spent. A request that is repeated under the same name, because its answer was lost, finds its
-- reservation.
-- ARGV: prefix, id, token, name of the call, model, tokens of its input, the most and the fewest
-- tokens of its output, the price of its input and of one token of output in billionths of a dollar;
-- then of each budget the job under whose id it is, its tokens and its billionths of a dollar ('': no
-- limit).
-- Returns {'reserved', tokens of output}; {'wait'} when it has to wait for the calls of others;
-- {'used up', position of the budget from 1, 'tokens' or 'nanodollars', what is used of it, the least
-- that the call needs}; or {'lost'} when the attempt no longer holds the job.
local id, name, model = ARGV[2], ARGV[4], ARGV[5]
local input, most, fewest = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local input_price, price = tonumber(ARGV[9]), tonumber(ARGV[10])
local calls = key('dispatch', 'calls', id)
if not held_job(id, ARGV[3]) then return {'lost'} end
local known = redis.call('HGET', calls, name)
if known then return {'reserved', read_call(known).output} end

local measures = {
  {name = 'tokens', fixed = input, each = 1},
  {name = 'nanodollars', fixed = input_price, each = price},
}

-- Returns what is used of a budget.
local function used_of(account)
  local used = redis.call('HMGET', key('usage', account), 'input_tokens', 'output_tokens', 'cost_usd')
  return {tokens = (used[1] or 0) + (used[2] or 0),
    nanodollars = math.floor((used[3] or 0) * 1e9 + 0.5)}
end

local ids, output, must_wait = charged_to(id), most, false
local is_charged, lowest = {}, {}
for _, charged in ipairs(ids) do is_charged[charged] = true end
for at = 11, #ARGV, 3 do
  local account, used = ARGV[at], used_of(ARGV[at])
  local reserved = key('dispatch', 'reserved', account)
  for offset, measure in ipairs(measures) do
    local limit = tonumber(ARGV[at + offset])
    if limit then
      local needed = math.ceil(measure.fixed + fewest * measure.each)
      local left = limit - used[measure.name]
      local shown = reserved .. measure.name
      if is_charged[account] and limit < (lowest[shown] or math.huge) then
        lowest[shown] = limit
        redis.call('HSET', reserved, 'max_' .. measure.name, ARGV[at + offset])
      end
      if needed > left then
        return {'used up', (at - 8) / 3, measure.name, string.format('%.0f', used[measure.name]),
          string.format('%.0f', needed)}
      end
      local free = left - (redis.call('HGET', reserved, measure.name) or 0)
      if needed > free then must_wait = true end
      if measure.each > 0 then
        output = math.min(output, math.floor((free - measure.fixed) / measure.each))
      end
    end
  end
end
if must_wait then return {'wait'} end
output = math.max(output, fewest)  -- not less by a rounding
local call = {input = input, output = output, nanodollars = math.ceil(input_price + output * price),
  model = model}
redis.call('HSET', calls, name, write_call(call))
hold(ids, call, 1)
return {'reserved', output}
