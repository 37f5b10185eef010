-- Returns the specifications of queued jobs that will probably be dispatched next, without taking
-- them: from each class the heads of its lanes, tenants and trees in the order of their turns.
-- ARGV: prefix, maximum number of jobs.
local most, found = tonumber(ARGV[2]), {}
local classes = redis.call('SMEMBERS', key('classes'))

local function heads(class, room)
  for _, tenant in ipairs(redis.call('ZRANGE', key('tenants', class), 0, room - 1)) do
    for _, root in ipairs(redis.call('ZRANGE', key('trees', class, tenant), 0, room - 1)) do
      for _, id in ipairs(redis.call('ZRANGE', key('lane', class, root, tenant), 0, room - 1)) do
        local spec = text_of('spec', id)
        if spec and redis.call('HGET', key('job', id), 'state') == 'queued' then
          found[#found + 1], room = spec, room - 1
        end
        if room == 0 then return end
      end
    end
  end
end

for at = 1, math.min(#classes, most) do heads(classes[at], math.ceil(most / #classes)) end
return found
