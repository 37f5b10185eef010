-- ARGV: prefix, most jobs to take, jobs at once in a tree, milliseconds that a message may be under way.
-- Takes waiting jobs for which the living workers have room, trees in turn. Returns id, number of the dispatch and
-- specification of each.
local most, tree_limit, transit = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local now = now_ms()

local function capacity()
  local total = 0
  for _, places in pairs(places_by_host(now)) do total = total + places end
  return total
end

local room = math.min(most, capacity() - redis.call('ZCARD', key('leases')))
local taken = {}
while room > 0 do
  local root = redis.call('ZRANGE', key('trees'), 0, 0)[1]
  if not root then break end
  if redis.call('SCARD', key('active', root)) >= tree_limit then
    redis.call('ZREM', key('trees'), root)  -- comes back when one of its jobs gives its place back
  else
    local id = redis.call('ZPOPMIN', key('ready', root))[1]
    if not id then
      redis.call('ZREM', key('trees'), root)
      redis.call('HDEL', key('served'), root)
    else
      local turn = redis.call('INCR', key('turns'))
      redis.call('HSET', key('served'), root, turn)
      redis.call('ZADD', key('trees'), turn, root)
      redis.call('SADD', key('active', root), id)
      redis.call('ZADD', key('leases'), now + transit, id)
      redis.call('HSET', key('job', id), 'dispatched', 1)
      local number = redis.call('HINCRBY', key('job', id), 'dispatches', 1)
      taken[#taken + 1] = {id, number, redis.call('HGET', key('job', id), 'spec')}
      room = room - 1
    end
  end
end
return taken
