-- Returns the specifications of queued jobs that will probably be dispatched next, without taking
-- them: from each class the heads of its lanes, tenants and trees in the order of their turns. Classes
-- that have no free slot come after those which a dispatch looks at.
-- ARGV: prefix, maximum number of jobs.
local most, found = tonumber(ARGV[2]), {}
local classes = redis.call('ZRANGE', key('dispatch', 'ready'), 0, most - 1)
if #classes < most then
  for _, class in ipairs(redis.call('ZRANGE', key('dispatch', 'aside'), 0, most - #classes - 1)) do
    classes[#classes + 1] = class
  end
end

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

for _, class in ipairs(classes) do heads(class, math.ceil(most / #classes)) end
return found
