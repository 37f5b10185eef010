-- Appends an event to a job's journal. A request that is repeated under the same name, because its
-- answer was lost, finds its event.
-- ARGV: prefix, id, type, attempt, data, line for the record or '', name of this request, seconds
-- to remember it, token ('': not checked), the wire version that a reader of the event needs (0: as
-- the job has), the number of payloads, then name and content of each: it is stored unless the job
-- has it; then name and amount of each used resource: it is charged to the job, to its ancestors and
-- to its tree, as far as they exist.
-- Returns the event's id, or false when the attempt of that token no longer holds the job.

-- The most bytes of the reason that a record has for what became of a job's changes.
local LONGEST_WHY = 400

-- Returns why not all that a job changed is in its parent's files; nil when all is.
local function why_unmerged(landed)
  local conflicts = type(landed.conflicts) == 'table' and landed.conflicts or {}
  local first = type(conflicts[1]) == 'table' and conflicts[1]
  if landed.outcome == 'in' and not first then return nil end
  local why = type(landed.reason) == 'string' and landed.reason or tostring(landed.outcome)
  if first then
    why = tostring(first.path) .. ': ' .. tostring(first.reason)
    if #conflicts > 1 then why = why .. ' (and ' .. #conflicts - 1 .. ' more)' end
  end
  if #why <= LONGEST_WHY then return why end
  -- no half of a character
  return string.gsub(string.sub(why, 1, LONGEST_WHY), '[\192-\255][\128-\191]*$', '') .. '…'
end

-- Writes into a child's record what became of its changes, and counts at the root of the tree those
-- jobs whose changes are not all in. The job of the journal must be the child's parent.
local function note_landing(parent, landed)
  local child = key('job', landed.id)
  local known = redis.call('HMGET', child, 'parent', 'landed')
  if known[1] ~= parent then return end
  local was, why = known[2] and cjson.decode(known[2]) or {}, why_unmerged(landed)
  local is_unmerged = why ~= nil and landed.outcome ~= 'sent back'
  redis.call('HSET', child, 'landed', cjson.encode({outcome = tostring(landed.outcome),
    why = why or '', is_unmerged = is_unmerged, at = now_ms() / 1000}))
  if is_unmerged ~= (was.is_unmerged or false) then
    count_at_root(landed.id, 'tasks_unmerged', is_unmerged and 1 or -1)
  end
  publish(landed.id)
end

-- Adds to a job's timeline, and to its children's records, what an event says.
local function note(id, kind, data)
  if kind == 'verify' then
    local seconds, code = tonumber(data.seconds) or 0, tonumber(data.exit_code) or 0
    mark(id, kind, math.floor(1000 * seconds), code)
  elseif kind == 'landing' then
    local is_begun = type(data.children) == 'table' and next(data.children)
    mark(id, is_begun and 'landing' or 'landed')
  elseif type(data.id) == 'string' then
    mark(id, 'landed')
    note_landing(id, data)
  end
end

-- Stores the payloads of an event, the arguments from the twelfth on, and returns their bytes.
local function keep_payloads(id, number)
  if number == 0 then return 0 end
  local bytes = 0
  for at = 12, 10 + 2 * number, 2 do
    if redis.call('HSETNX', key('journal', 'payloads', id), ARGV[at], ARGV[at + 1]) == 1 then
      bytes = bytes + #ARGV[at] + #ARGV[at + 1]
    end
  end
  redis.call('ZADD', key('journal', 'with_payloads'), 'NX', now_ms(), id)
  return bytes
end

-- Frees what the answered calls of a job hold: an event that reports them is charged. What they have
-- used beside that, as those do that no event reports, is charged too.
local function free_answered(id, ids, used)
  local calls, model = key('dispatch', 'calls', id), ''
  local left = {input = 0, output = 0, nanodollars = 0}
  local stored = redis.call('HGETALL', calls)
  for at = 1, #stored, 2 do
    local call = read_call(stored[at + 1])
    if call.is_answered then
      redis.call('HDEL', calls, stored[at])
      hold(ids, call, -1)
      for what in pairs(left) do left[what] = left[what] + call[what] end
      model = call.model
    end
  end
  local function beside(what, name, scale)
    return math.max(0, left[what] - math.floor((tonumber(used[name]) or 0) * scale + 0.5))
  end
  spend(ids, {input = beside('input', 'input_tokens', 1), model = model,
    output = beside('output', 'output_tokens', 1), nanodollars = beside('nanodollars', 'cost_usd', 1e9)})
end

local NOTED = {verify = true, landing = true, ['child.landed'] = true}
local id, line, request, token = ARGV[2], ARGV[6], key('appended', ARGV[7]), ARGV[9]
local known = redis.call('GET', request)
if known then return known end
local needs, payloads = tonumber(ARGV[10]), tonumber(ARGV[11])
local charges = 12 + 2 * payloads
local job = redis.call('HMGET', key('job', id), 'token', 'root', 'wire')
if token ~= '' and job[1] ~= token then return false end
count_bytes(id, keep_payloads(id, payloads))
if job[2] and needs > tonumber(job[3] or 1) then redis.call('HSET', key('job', id), 'wire', needs) end
local event = add_event(id, ARGV[4], ARGV[3], ARGV[5])
redis.call('SET', request, event, 'EX', ARGV[8])
if job[2] and NOTED[ARGV[3]] then note(id, ARGV[3], cjson.decode(ARGV[5])) end
if line ~= '' then redis.call('HSET', key('job', id), 'last_event', line) end
if not ARGV[charges] then return event end
local ids, used = charged_to(id), {}
for at = charges, #ARGV, 2 do
  used[ARGV[at]] = ARGV[at + 1]
  for _, charged in ipairs(ids) do
    redis.call('HINCRBYFLOAT', key('usage', charged), ARGV[at], ARGV[at + 1])
  end
end
if used.model_calls then free_answered(id, ids, used) end
return event
