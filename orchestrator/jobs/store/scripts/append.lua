-- Appends an event to a job's journal. A request that is repeated under the same name, because its
-- answer was lost, finds its event.
-- ARGV: prefix, id, type, attempt, data, line for the record or '', name of this request, seconds
-- to remember it, token ('': not checked), then name and amount of each used resource: it is
-- charged to the job, to its ancestors and to its tree, as far as they exist.
-- Returns the event's id, or false when the attempt of that token no longer holds the job.
local id, line, request, token = ARGV[2], ARGV[6], key('appended', ARGV[7]), ARGV[9]
local known = redis.call('GET', request)
if known then return known end
local job = redis.call('HMGET', key('job', id), 'token', 'root')
if token ~= '' and job[1] ~= token then return false end
local event = add_event(id, ARGV[4], ARGV[3], ARGV[5])
redis.call('SET', request, event, 'EX', ARGV[8])
if line ~= '' then redis.call('HSET', key('job', id), 'last_event', line) end
if not ARGV[10] then return event end
local function charge(charged)
  for at = 10, #ARGV, 2 do
    redis.call('HINCRBYFLOAT', key('usage', charged), ARGV[at], ARGV[at + 1])
  end
end
local root, is_charged = job[2], false
while id and id ~= '' do
  local above = redis.call('HMGET', key('job', id), 'root', 'parent')
  if not above[1] then break end
  charge(id)
  is_charged = is_charged or id == root
  id = above[2]
end
if root and not is_charged then charge(root) end
return event
