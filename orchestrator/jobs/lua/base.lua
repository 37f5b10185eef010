-- What all other parts use; ARGV[1] is the key prefix.
local PREFIX = ARGV[1]

local function key(...) return PREFIX .. ':' .. table.concat({...}, ':') end

-- Returns the time by the clock of the Redis server, in milliseconds since the epoch.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
